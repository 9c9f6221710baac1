"""Split an expression for a feed: its ``filter-<name>`` arguments, and the residual.

Spec: FeedAPI version 2a, discovery ``filters``; docs/specifications.md, Z-8, Z-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_streams.filters.split import Inexpressible, PeerSplit, Split, split
from spark_streams.filters.tree import Expression, Operator, Predicate, Reference, ReferenceKind, ValueType
from spark_streams.wire.feed.json_pointer import parse_pointer, pointer_of

KEY_FIELD: Final = "key"
"""The field of a filter that compares the member ``key`` of an event's line; any other field is a JSON pointer."""


@dataclass(frozen=True)
class FeedSplit(PeerSplit):
    """An expression, split between a feed and the reader.

    Args:
        filters: name to value, without ``filter-`` and not yet percent-encoded; empty for none. A cursor is valid for
            one set of filters only.
        residual: the part left to check on each event; None when nothing remains.
    """

    filters: Mapping[str, str]
    residual: Expression | None

    @property
    def phrases(self) -> tuple[str, ...]:
        """The filters that the peer gets, for people."""
        return tuple(f"filter-{name}={value}" for name, value in self.filters.items())


def split_for_feed(expression: Expression, fields: Mapping[str, Reference]) -> FeedSplit:
    """Split an expression for a feed.

    Args:
        expression: any filter.
        fields: the feed's filters, by name without ``filter-``, to the part that each compares *exactly*: an
            event passes ``filter-<name>=v`` if and only if that part is the text v.
    """
    found = split(expression, _Arguments(fields))
    return FeedSplit(found.pushed or {}, found.residual)


class _Arguments:
    """The arguments of a fetch as a target: each compares one part with one text, and an event must pass all."""

    def __init__(self, fields: Mapping[str, Reference]) -> None:
        self._names = {reference: name for name, reference in reversed(list(fields.items()))}

    def both(self, left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
        if any(left.get(name, value) != value for name, value in right.items()):
            raise Inexpressible
        return {**left, **right}

    def either(self, left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
        if left != right:
            raise Inexpressible
        return left

    def test(self, predicate: Predicate) -> Split[dict[str, str]]:
        name = self._names.get(predicate.reference)
        equals_one = predicate.operator in (Operator.EQUALS, Operator.IN) and len(set(predicate.values)) == 1
        if name is None or predicate.type is not ValueType.STRING or not equals_one:
            raise Inexpressible
        value = str(predicate.values[0])
        if not value or not value.isprintable():
            raise Inexpressible  # the specification does not define an empty argument, or control characters in one
        return Split({name: value}, None)


def field_of(reference: Reference, key_field: str | None = None) -> str | None:
    """Return the field of an event that a reference means, as filters name it; None when no filter compares it.

    Args:
        reference: any.
        key_field: JSON pointer to the value of column ``key``; None for the member ``key`` of the event's line.
    """
    if reference.kind is ReferenceKind.KEY:
        return key_field or KEY_FIELD
    name = reference.name
    if reference.kind is not ReferenceKind.PROPERTY or name is None:
        return None
    if not name.startswith("/"):
        # An index into an array differs from a member, and a pointer cannot distinguish them.
        return None if name.isdecimal() else pointer_of(name)
    try:
        parse_pointer(name)
    except ValueError:
        return None
    return name
