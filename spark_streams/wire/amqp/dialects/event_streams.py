"""The dialect of the OASIS draft, and its filters for the position where a link begins, of two kinds.

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

Spec: Event Stream Extensions §3.1, §4.6, §5.1.1, §5.2.
"""

from __future__ import annotations

from typing import Final

from spark_streams.errors import LocalProtocolError
from spark_streams.instants import MIN_TIMESTAMP_MS
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.wire.amqp.dialects.dialect import Conditions, Dialect, LinkProperties, Place, Places, StartFilter
from spark_streams.wire.amqp.event_streams import (
    ANNOTATIONS_FILTER,
    CAPABILITY,
    CONSUMER_GROUP,
    EPOCH,
    GROUP_KEY,
    OFFSET_KEY,
    PARTITION,
    SOURCE_PARTITION_KEY,
    SQL_FILTER,
    TARGET_PARTITION_KEY,
    TIMESTAMP_KEY,
)
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS
from spark_streams.wire.amqp.values import Described, Symbol, Timestamp, ULong


def _start_filters(start: Earliest | At | After, behind: Earliest | After) -> tuple[StartFilter, ...]:
    """Return the filters that begin at ``start``, the preferred one first.

    Each of the two kinds can express ``After`` and ``EARLIEST``. The annotations filter excludes the offset that it
    names, and we may construct no other offset (ES-301), so for ``At`` it has to begin earlier
    (docs/adr/0029-one-offset-filter.md).

    Raises:
        LocalProtocolError: the offset cannot be a symbol.
    """
    if isinstance(start, At):
        earlier = _start_filters(behind, EARLIEST)[0]
        return StartFilter(_sql(OFFSET_KEY, ">=", _quoted(start.offset))), earlier._replace(early=True)
    offset = "@earliest" if isinstance(start, Earliest) else as_symbol(start.offset)
    return StartFilter(_annotation(OFFSET_KEY, Symbol(offset))), StartFilter(_sql(OFFSET_KEY, ">", _quoted(offset)))


def _start_filters_at_time(timestamp_ms: int) -> tuple[StartFilter, ...]:
    """Return the filters that match events not earlier than ``timestamp_ms``, the preferred one first.

    The annotations filter means "greater than", in whole milliseconds, and nothing is below the smallest instant. The
    SQL of event streams has no negative numbers (A-13).
    """
    if timestamp_ms <= MIN_TIMESTAMP_MS:
        return _start_filters(EARLIEST, EARLIEST)
    exclusive = StartFilter(_annotation(TIMESTAMP_KEY, Timestamp(timestamp_ms - 1)))
    return (exclusive, StartFilter(_sql(TIMESTAMP_KEY, ">=", str(timestamp_ms)))) if timestamp_ms >= 0 else (exclusive,)


def _annotation(name: str, bound: object) -> Described:
    return Described(ULong(ANNOTATIONS_FILTER[0]), {Symbol(name): bound})


def _sql(name: str, comparison: str, literal: str) -> Described:
    return Described(ULong(SQL_FILTER[0]), f"d.{name} {comparison} {literal}")


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


EVENT_STREAMS: Final = Dialect(
    name="event-streams",
    title="OASIS event streams",
    recognised=lambda seen: CAPABILITY in seen.offered,
    sign=f"the capability {CAPABILITY}",
    places=Places(
        offset=Place(DELIVERY_ANNOTATIONS, OFFSET_KEY, "symbol"),
        timestamp=Place(DELIVERY_ANNOTATIONS, TIMESTAMP_KEY, "timestamp"),
        source_partition=Place(DELIVERY_ANNOTATIONS, SOURCE_PARTITION_KEY, "symbol"),
        key=Place(MESSAGE_ANNOTATIONS, GROUP_KEY, "string"),
        target_partition=Place(DELIVERY_ANNOTATIONS, TARGET_PARTITION_KEY, "symbol"),
    ),
    source_address=lambda stream, partition, group: stream,
    target_address=lambda stream, partition: stream,
    link_properties=LinkProperties(PARTITION, CONSUMER_GROUP, EPOCH),
    start_name="start",
    start_filters=_start_filters,
    start_filters_at_time=_start_filters_at_time,
    echoes_start=True,
    conditions=Conditions(),
    numeric_offsets=False,
    drains=True,
    groups="named",
    event_stream_filters=True,
    sql_filters=None,
)
