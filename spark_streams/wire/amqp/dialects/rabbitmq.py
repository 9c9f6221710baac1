"""The dialect of RabbitMQ 4, whose stream queues are logs: one queue is one partition, offsets are numbers with holes.

Offsets without a message belong to the broker's own chunks (stored offsets, publishers' numbers) and to messages that
AMQP 1.0 cannot show. The broker leaves filters that it did not understand out of its echo, and then reads from the end.

A producer's annotation whose key does not begin with ``x-`` ends its link; a null among the annotations ends its
session, or that of each reader. ``x-routing-key`` and ``x-exchange`` are overwritten, and so is ``x-stream-offset`` in
streams; other queues keep it. ``x-cc``, further routing keys, must be a list: a text ends the link.

Spec: docs/specifications.md, Q-1 to Q-16.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final
from urllib.parse import quote

from spark_streams.offsets import first_wanted
from spark_streams.position import After, At, Earliest
from spark_streams.wire.amqp.dialects.dialect import Conditions, Dialect, LinkProperties, Place, Places, StartFilter
from spark_streams.wire.amqp.event_streams import GROUP_KEY
from spark_streams.wire.amqp.message import MESSAGE_ANNOTATIONS
from spark_streams.wire.amqp.values import Described, Symbol, Timestamp, ULong

START: Final = "rabbitmq:stream-offset-spec"
PRODUCT: Final = "RabbitMQ"
"""``product`` of the open's properties."""
_NOT_SHOWN: Final = (
    "over AMQP 1.0 RabbitMQ takes and shows only AMQP messages whose annotations have keys that begin with 'x-': read "
    "a stream that holds others with format 'rabbitmq-stream', and leave such annotations out of column 'message'"
)
OFFSET_KEY: Final = "x-stream-offset"
RECEIVED_TIME: Final = "x-opt-rabbitmq-received-time"
"""The time at which the broker took a message, where its operator has set an interceptor for it."""


def queue_address(queue: str) -> str:
    """Return the address of a queue, of any kind (v2)."""
    return f"/queues/{quote(queue, safe='')}"


def exchange_address(exchange: str, routing_key: str) -> str:
    """Return the address of an exchange with a routing key, which may be empty (v2)."""
    named = f"/exchanges/{quote(exchange, safe='')}"
    return f"{named}/{quote(routing_key, safe='')}" if routing_key else named


def _specification(value: object) -> tuple[StartFilter, ...]:
    return (StartFilter(Described(Symbol(START), value)),)


def _start_filters(start: Earliest | At | After, behind: Earliest | After) -> tuple[StartFilter, ...]:
    first = first_wanted(start)
    return _specification("first" if first is None else ULong(first))


def _start_filters_at_time(timestamp_ms: int) -> tuple[StartFilter, ...]:
    """Return the filter that begins at an instant: up to a second and a chunk too early (the caller drops those)."""
    return _specification(Timestamp(max(0, timestamp_ms)))


RABBITMQ: Final = Dialect(
    name="rabbitmq",
    title="RabbitMQ 4",
    recognised=lambda seen: seen.product == PRODUCT,
    sign=f"the product {PRODUCT}",
    places=Places(
        offset=Place(MESSAGE_ANNOTATIONS, OFFSET_KEY, "long"),
        timestamp=Place(MESSAGE_ANNOTATIONS, RECEIVED_TIME, "timestamp"),
        filter_value=Place(MESSAGE_ANNOTATIONS, "x-stream-filter-value", "string"),
        prefix="x-",
        broker_keys=frozenset({OFFSET_KEY, "x-routing-key", "x-exchange", "x-cc", RECEIVED_TIME}),
        other_keys=frozenset({GROUP_KEY}),
        null_values=False,
    ),
    source_address=lambda stream, partition, group: queue_address(stream if partition is None else partition),
    target_address=lambda stream, partition: queue_address(stream if partition is None else partition),
    link_properties=LinkProperties(),
    start_name=START,
    start_filters=_start_filters,
    start_filters_at_time=_start_filters_at_time,
    echoes_start=True,
    conditions=Conditions(advice=(("reserved_annotation_key", _NOT_SHOWN),), unreadable="amqp:internal-error"),
    numeric_offsets=True,
    drains=True,
    virtual_hosts=True,
    sql_filters=True,
    tokens="password",
)


@cache
def keyed(annotation: str) -> Dialect:
    """Return the dialect with an annotation for the key; without it, property group-id is the key."""
    return replace(RABBITMQ, places=replace(RABBITMQ.places, key=Place(MESSAGE_ANNOTATIONS, annotation, "string")))
