"""Splits a filter between a feed, by the feed's own filters (``filter-<name>``), and the client.

The server defines what a feed's filter compares (FeedAPI, "filter-*"), so the client pushes nothing on a guess: the
user declares the field, or discovery does (``filterFields``, an extension). Cursors are valid for the identical filters
only (C-13): a query keeps its pushed filters, and a filter that no longer implies them cannot use their cursors.

Spec: docs/specifications.md, C-13, C-20, F-27, F-28, Z-21. ADR 18.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_streams.errors import OptionError
from spark_streams.filters.targets.feed import KEY_FIELD, FeedSplit, field_of, split_for_feed
from spark_streams.filters.tree import Expression, Reference, references
from spark_streams.redaction import safe_text
from spark_streams.wire.feed.discovery import Discovery

ANY_POINTER: Final = "/*"
"""The filter that stands for all JSON pointers, where discovery gives this name as its field too."""
MAX_VALUE: Final = 1_000
"""Characters of a pushed value at most, as it becomes part of an address."""


class NotImplied(Exception):
    """A filter matches events that a pushed filter leaves out."""


@dataclass(frozen=True)
class FeedFilter:
    """One filter that is pushed, or that may be.

    Args:
        value: the value that it requires; empty as long as it has none.
        field: what it compares: ``key``, or a JSON pointer into the event.
        exact: whether the feed itself declares the field; if not, the client checks the filter again.
    """

    value: str
    field: str
    exact: bool = False


def offered(discovery: Discovery) -> tuple[str, ...]:
    """Return the filters that a feed offers on all its partitions."""
    of_all = [set(partition.filters) for partition in discovery.partitions]
    shared = set.intersection(*of_all) if of_all else set()
    return tuple(dict.fromkeys((*discovery.filters, *sorted(shared))))


def push(
    expression: Expression | None,
    discovery: Discovery,
    *,
    declared: Mapping[str, str] | None,
    key_field: str | None,
    taken: Collection[str] = (),
    starts: Sequence[Expression] = (),
) -> dict[str, FeedFilter]:
    """Return the filters that a new query pushes, by their names.

    Args:
        expression: the filter; None if there is none.
        discovery: the discovery document of a feed of version 2a.
        declared: filter name to the field that it compares, as the user declares it; an empty mapping pushes nothing;
            None uses the declarations of discovery.
        key_field: JSON pointer to the value of column ``key``; None for the member ``key`` of the event's line.
        taken: names, in lower case, of filters with values that the user has given.
        starts: the expressions where reading starts: they cannot find an event that a pushed filter leaves out, so only
            filters that each of them implies too are pushed.

    Raises:
        OptionError: the user names a filter that the feed does not offer.
    """
    names = offered(discovery)
    if declared is not None:
        for name in declared:
            if name not in names:
                there = safe_text(", ".join(f"'{each}'" for each in names)) or "none"
                raise OptionError("filterFields", f"the feed does not offer filter '{name}'; it offers {there}")
        offers = {
            name: FeedFilter("", (key_field or KEY_FIELD) if field == KEY_FIELD else field)
            for name, field in declared.items()
        }
    else:
        offers = {name: FeedFilter("", field, True) for name, field in discovery.filter_fields.items() if name in names}
    if expression is None:
        return {}
    if offers.get(ANY_POINTER) == FeedFilter("", ANY_POINTER, True):
        fields = [field_of(reference, key_field) for reference in references(expression)]
        offers |= {field: FeedFilter("", field, True) for field in fields if field is not None and field[:1] == "/"}
    offers = {name: offer for name, offer in offers.items() if name.lower() not in taken}
    while True:
        found = _split(expression, offers, key_field).filters
        kept = {name for name, value in found.items() if len(value) <= MAX_VALUE}
        for start in starts:
            demanded = _split(start, offers, key_field).filters
            kept = {name for name in kept if demanded.get(name) == found[name]}
        if kept == found.keys():
            return {name: replace(offers[name], value=value) for name, value in found.items()}
        offers = {name: offers[name] for name in kept}


def left_of(
    expression: Expression | None, pushed: Mapping[str, FeedFilter], key_field: str | None
) -> Expression | None:
    """Return the part of a filter that the client checks on the received events; None for nothing.

    Args:
        expression: the filter.
        pushed: the filters that the feed checks.
        key_field: see ``push``.

    Raises:
        NotImplied: the feed would leave out events that the filter matches.
    """
    if not pushed:
        return expression
    if expression is None:
        raise NotImplied
    split = _split(expression, pushed, key_field)
    if dict(split.filters) != {name: each.value for name, each in pushed.items()}:
        raise NotImplied
    return split.residual if all(each.exact for each in pushed.values()) else expression


def shown(pushed: Mapping[str, FeedFilter]) -> str:
    """Return pushed filters for people."""
    return ", ".join(f"filter-{name}={each.value}" for name, each in sorted(pushed.items())) or "nothing"


def _split(expression: Expression, offers: Mapping[str, FeedFilter], key_field: str | None) -> FeedSplit:
    """Split an expression between filters, one for each field; prefer those with a field from the feed itself."""
    places: dict[str, Reference] = {}
    for reference in references(expression):
        field = field_of(reference, key_field)
        if field is not None:
            places.setdefault(field, reference)
    chosen: dict[str, str] = {}
    for name, offer in sorted(offers.items(), key=lambda each: not each[1].exact):
        if offer.field in places:
            chosen.setdefault(offer.field, name)
    return split_for_feed(expression, {name: places[field] for field, name in chosen.items()})
