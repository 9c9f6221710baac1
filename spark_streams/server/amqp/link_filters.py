"""The filter set of an attach: what is in force, what is left out of the echo, what is refused.

Spec: Event Stream Extensions §5.2; AMQP Filter Expressions 1.0 §2.2, §6 (``amqp:sql-filter`` alone); AMQP 1.0 part 3
§3.5.8; A-10 (all are ANDed), A-21, A-22.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import proton

from spark_streams.errors import FilterError
from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.filters.predicates.event_streams import Condition, and_, annotations_predicate, parse_sql
from spark_streams.server.amqp.attach_request import decoded
from spark_streams.server.amqp.error_conditions import INVALID_FIELD, LinkRefused
from spark_streams.wire.amqp.event_streams import ANNOTATIONS_FILTER, FULL_SQL_FILTER, SQL_FILTER

__all__ = ["LinkFilters", "read_filters"]

_MAX_SQL_CHARACTERS: Final = 16_384
"""RabbitMQ takes 4096; a filter is evaluated for every event, so it must have some bound."""


@dataclass(frozen=True)
class LinkFilters:
    """The filters of one link.

    Args:
        predicate: their conjunction; None when there is none in force.
        echo: name to described value, of those in force.

    """

    predicate: Condition | None
    echo: Mapping[Any, Any]

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal filters: a durable terminus goes on only with the filters it had."""
        return repr(self.predicate)


def read_filters(terminus: Any) -> LinkFilters:
    """Read the filter set of a source.

    Args:
        terminus: the peer's ``proton.Terminus``.

    Raises:
        LinkRefused: a known filter is malformed, or the set is no map (amqp:invalid-field).

    """
    stored = terminus.filter
    stored.rewind()
    found = decoded(stored.get_object, "the source's filter") if stored.next() is not None else None
    if found is None:
        return LinkFilters(None, {})
    if not isinstance(found, Mapping):
        raise LinkRefused(INVALID_FIELD, "the source's filter is no map: expected name to described filter")
    predicates: list[Condition] = []
    echo: dict[Any, Any] = {}
    for name, described in found.items():
        if not isinstance(described, proton.Described):
            continue
        if _is(described.descriptor, ANNOTATIONS_FILTER):
            predicates.append(_annotations(str(name), described.value))
        elif _is(described.descriptor, SQL_FILTER):
            predicates.append(_sql(str(name), described.value, parse_sql))
        elif _is(described.descriptor, FULL_SQL_FILTER):
            predicates.append(_sql(str(name), described.value, parse_amqp_sql))
        else:
            continue
        echo[name] = described
    return LinkFilters(and_(predicates) if predicates else None, echo)


def _is(descriptor: Any, known: tuple[int, str]) -> bool:
    code, name = known
    if isinstance(descriptor, proton.symbol):
        return str(descriptor) == name
    return isinstance(descriptor, int) and not isinstance(descriptor, bool) and int(descriptor) == code


def _annotations(name: str, value: Any) -> Condition:
    if not isinstance(value, Mapping):
        raise _invalid(name, f"its value is {_kind(value)}: expected a map of delivery annotations")
    entries: dict[str, object] = {}
    for key, bound in value.items():
        if not isinstance(key, str):
            raise _invalid(name, f"{key!r:.80} is no symbol")
        # proton's timestamp, ulong … are ints and its symbol is a str; a bool or any other value is told as it is.
        entries[str(key)] = str(bound) if isinstance(bound, str) else bound
    try:
        return annotations_predicate(entries)
    except ValueError as fault:
        raise _invalid(name, str(fault)) from fault


def _sql(name: str, value: Any, parse: Callable[[str], Condition]) -> Condition:
    if not isinstance(value, str) or isinstance(value, proton.symbol):
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
