"""Makes the filters for the position where a link begins, of the two kinds that event streams have.

A node has the delivery annotations filter, the SQL filter, or both (§8); its echo shows which (A-21). So there are
several filters for one position, and the client uses the first that the node accepts.

=================  ====================================  ===============================================
begins             delivery annotations filter           SQL filter
=================  ====================================  ===============================================
earliest           ``{offset: @earliest}``               ``d.event-streams-offset > '@earliest'``
after an offset    ``{offset: X}``                       ``d.event-streams-offset > 'X'``
at an offset       only from an earlier one on           ``d.event-streams-offset >= 'X'``
from a time on     ``{timestamp: T - 1}``                ``d.event-streams-timestamp >= T``, from 1970 on
=================  ====================================  ===============================================

Spec: Event Stream Extensions §5.1.1, §5.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import proton

from spark_streams.errors import LocalProtocolError
from spark_streams.position import EARLIEST, MIN_TIMESTAMP_MS, After, At, Earliest
from spark_streams.wire.amqp.event_streams import ANNOTATIONS_FILTER, OFFSET_KEY, SQL_FILTER, TIMESTAMP_KEY


@dataclass(frozen=True)
class StartFilter:
    """A filter for the position where a link begins.

    Args:
        filter: the described filter.
        early: whether it begins before the wanted position, so that the client has to drop the first events.
    """

    filter: Any
    early: bool = False


def start_filters(start: Earliest | At | After, behind: Earliest | After = EARLIEST) -> tuple[StartFilter, ...]:
    """Return the filters that begin at ``start``, the preferred one first.

    A peer has the delivery annotations filter, the SQL filter, or both (§8). Each of them can express ``After`` and
    ``EARLIEST``. The annotations filter excludes the offset that it names, and we may construct no other offset
    (ES-301), so for ``At`` it has to begin earlier (docs/adr/0029-one-offset-filter.md).

    Args:
        start: where to begin.
        behind: an earlier position, for a link that cannot begin at ``start``: the client has dropped what lies before.

    Raises:
        LocalProtocolError: the offset cannot be a symbol.
    """
    if isinstance(start, At):
        return StartFilter(_sql(OFFSET_KEY, ">=", _quoted(start.offset))), replace(start_filters(behind)[0], early=True)
    offset = "@earliest" if isinstance(start, Earliest) else as_symbol(start.offset)
    return StartFilter(_annotation(OFFSET_KEY, proton.symbol(offset))), StartFilter(
        _sql(OFFSET_KEY, ">", _quoted(offset))
    )


def start_filters_at_time(timestamp_ms: int) -> tuple[StartFilter, ...]:
    """Return the filters that match events not earlier than ``timestamp_ms``, the preferred one first.

    The annotations filter means "greater than", in whole milliseconds, and nothing is below the smallest instant. The
    SQL of event streams has no negative numbers (A-13).
    """
    if timestamp_ms <= MIN_TIMESTAMP_MS:
        return start_filters(EARLIEST)
    exclusive = StartFilter(_annotation(TIMESTAMP_KEY, proton.timestamp(timestamp_ms - 1)))
    return (exclusive, StartFilter(_sql(TIMESTAMP_KEY, ">=", str(timestamp_ms)))) if timestamp_ms >= 0 else (exclusive,)


def _annotation(name: str, bound: Any) -> Any:
    return proton.Described(proton.ulong(ANNOTATIONS_FILTER[0]), {proton.symbol(name): bound})


def _sql(name: str, comparison: str, literal: str) -> Any:
    return proton.Described(proton.ulong(SQL_FILTER[0]), f"d.{name} {comparison} {literal}")


def _quoted(offset: str) -> str:
    return "'" + as_symbol(offset).replace("'", "''") + "'"


def as_symbol(text: str) -> str:
    """Return an offset or the name of a partition unchanged, after a check that it can be a symbol.

    Raises:
        LocalProtocolError: the text cannot be a symbol.
    """
    if not text.isascii():
        raise LocalProtocolError(f"{text!r} is not ASCII: offsets and partitions of AMQP event streams are symbols")
    return text
