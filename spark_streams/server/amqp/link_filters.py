"""Reads the filter set of an attach: which filters are in force and echoed, which are ignored, which are refused.

Spec: Event Stream Extensions §5.2; AMQP Filter Expressions 1.0 §2.2, §6 (``amqp:sql-filter`` alone); AMQP 1.0 part 3
§3.5.8; A-10 (all are ANDed), A-21, A-22.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.errors import FilterError
from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.filters.predicates.conditions import Condition, conjunction
from spark_streams.filters.predicates.event_streams import annotations_predicate, parse_sql
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.wire.amqp.engine.session import INVALID_FIELD
from spark_streams.wire.amqp.engine.termini import FILTER, Terminus
from spark_streams.wire.amqp.event_streams import ANNOTATIONS_FILTER, FULL_SQL_FILTER, SQL_FILTER
from spark_streams.wire.amqp.values import Described, Symbol

_MAX_SQL_CHARACTERS: Final = 16_384
"""RabbitMQ takes 4096; a filter is evaluated for every event, so it must have some bound."""


@dataclass(frozen=True)
class LinkFilters:
    """The filters of one link.

    Args:
        predicate: the conjunction of the filters; None when no filter is in force.
        echo: name to described value of the filters in force, for the answer.
    """

    predicate: Condition | None
    echo: Mapping[Any, Any]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that is equal for equal filters: a durable terminus resumes only with the filters that it had.

        It is kept with the terminus, so it depends on what the peer sent and not on how filters are represented here:
        the SHA-256 of ``[[symbol of the filter, value], …]``, sorted, as JSON. The names of the filters do not matter,
        nor whether a descriptor is a symbol or a code, nor whether a text is a symbol or a string.
        """
        if not self.echo:
            return "None"
        sent = [(symbol, each.value) for each in self.echo.values() for symbol, _ in _known(each.descriptor)]
        text = f"[{', '.join(sorted(json.dumps(each, sort_keys=True) for each in sent))}]"
        return hashlib.sha256(text.encode()).hexdigest()


def read_filters(source: Terminus) -> LinkFilters:
    """Read the filter set of a source.

    Args:
        source: what the peer's attach says.

    Raises:
        LinkRefused: a known filter is malformed, or the set is no map (amqp:invalid-field).
    """
    found = source.field(FILTER, object, None)
    if found is None:
        return LinkFilters(None, {})
    if not isinstance(found, Mapping):
        raise LinkRefused(INVALID_FIELD, "the source's filter is no map: expected name to described filter")
    predicates: list[Condition] = []
    echo: dict[Any, Any] = {}
    for name, described in found.items():
        if not isinstance(described, Described):
            continue
        for _, read in _known(described.descriptor):
            predicates.append(read(str(name), described.value))
            echo[name] = described
    return LinkFilters(conjunction(predicates) if predicates else None, echo)


def _known(descriptor: Any) -> list[tuple[str, Callable[[str, Any], Condition]]]:
    """Return the symbol of a known filter and the function that reads its value, one pair; none for others."""
    return [(symbol, read) for (code, symbol), read in _KNOWN if _is(descriptor, code, symbol)]


def _is(descriptor: Any, code: int, symbol: str) -> bool:
    if isinstance(descriptor, Symbol):
        return str(descriptor) == symbol
    return isinstance(descriptor, int) and not isinstance(descriptor, bool) and int(descriptor) == code


def _annotations(name: str, value: Any) -> Condition:
    if not isinstance(value, Mapping):
        raise _invalid(name, f"its value is {_kind(value)}: expected a map of delivery annotations")
    entries: dict[str, object] = {}
    for key, bound in value.items():
        if not isinstance(key, str):
            raise _invalid(name, f"{key!r:.80} is no symbol")
        # a timestamp, an ulong … is an int and a symbol a str; a bool or any other value stays as it is.
        entries[str(key)] = str(bound) if isinstance(bound, str) else bound
    try:
        return annotations_predicate(entries)
    except ValueError as fault:
        raise _invalid(name, str(fault)) from fault


def _sql(parse: Callable[[str], Condition], name: str, value: Any) -> Condition:
    if not isinstance(value, str) or isinstance(value, Symbol):
        raise _invalid(name, f"its value is {_kind(value)}: expected a string")
    if len(value) > _MAX_SQL_CHARACTERS:
        raise _invalid(name, f"its text has {len(value)} characters: expected at most {_MAX_SQL_CHARACTERS}")
    try:
        return parse(value)
    except FilterError as fault:
        raise _invalid(name, str(fault)) from fault


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def _invalid(name: str, problem: str) -> LinkRefused:
    return LinkRefused(INVALID_FIELD, f"filter '{name}': {problem}")


_KNOWN: Final = (
    (ANNOTATIONS_FILTER, _annotations),
    (SQL_FILTER, functools.partial(_sql, parse_sql)),
    (FULL_SQL_FILTER, functools.partial(_sql, parse_amqp_sql)),
)
"""The descriptor of each known filter, and the function that reads its value."""
