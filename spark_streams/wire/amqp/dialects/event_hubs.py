"""The dialect of Azure Event Hubs: partitions in the address, numbers as offsets, signing in over ``$cbs``.

``x-opt-sequence-number`` orders and counts the events of a partition, so it is the offset of rows; the service's own
``x-opt-offset`` is a text without an order.

Spec: docs/specifications.md, H-1 to H-16.
"""

from __future__ import annotations

from typing import Final

from spark_streams.offsets import first_wanted
from spark_streams.position import After, At, Earliest
from spark_streams.wire.amqp.dialects.dialect import (
    Conditions,
    Dialect,
    LinkProperties,
    Place,
    Places,
    StartFilter,
)
from spark_streams.wire.amqp.message import MESSAGE_ANNOTATIONS
from spark_streams.wire.amqp.values import Described, Symbol

SELECTOR: Final = "apache.org:selector-filter:string"
"""The key and the descriptor of the filter; other programs write the descriptor as one of two numbers."""
SELECTOR_NUMBERS: Final = (0x0000_468C_0000_0004, 0x0000_0137_0000_000A)
SEQUENCE_NUMBER_KEY: Final = "x-opt-sequence-number"
OFFSET_KEY: Final = "x-opt-offset"
ENQUEUED_TIME_KEY: Final = "x-opt-enqueued-time"
PARTITION_KEY: Final = "x-opt-partition-key"
EPOCH: Final = "com.microsoft:epoch"
RECEIVER_NAME: Final = "com.microsoft:receiver-name"
RUNTIME_METRIC: Final = "com.microsoft:enable-receiver-runtime-metric"
"""The capability by which a receiver asks to be told how far behind it is."""
HUB_TYPE: Final = "com.microsoft:eventhub"
PARTITION_TYPE: Final = "com.microsoft:partition"
"""The types of the entities that ``$management`` describes."""
ARGUMENT_ERROR: Final = "com.microsoft:argument-error"
ARGUMENT_OUT_OF_RANGE: Final = "com.microsoft:argument-out-of-range"
SERVER_BUSY: Final = "com.microsoft:server-busy"
OPERATION_CANCELLED: Final = "com.microsoft:operation-cancelled"
CBS_MECHANISM: Final = "MSSBCBS"
"""The SASL mechanism that only this service offers."""
HOSTS: Final = (".servicebus.windows.net", ".servicebus.chinacloudapi.cn", ".servicebus.usgovcloudapi.net")
DEFAULT_GROUP: Final = "$Default"
CBS: Final = "$cbs"
BATCH_FORMAT: Final = 0x8001_3700
"""The message format of a batch: each of its data sections is a whole encoded message."""


def _selector(key: str, comparison: str, value: object) -> tuple[StartFilter, ...]:
    return (StartFilter(Described(Symbol(SELECTOR), f"amqp.annotation.{key} {comparison} '{value}'")),)


def _start_filters(start: Earliest | At | After, behind: Earliest | After) -> tuple[StartFilter, ...]:
    first = first_wanted(start)
    return _selector(OFFSET_KEY, ">", -1) if first is None else _selector(SEQUENCE_NUMBER_KEY, ">=", first)


def _start_filters_at_time(timestamp_ms: int) -> tuple[StartFilter, ...]:
    return _selector(ENQUEUED_TIME_KEY, ">", timestamp_ms - 1)


EVENT_HUBS: Final = Dialect(
    name="event-hubs",
    title="Azure Event Hubs",
    recognised=lambda seen: CBS_MECHANISM in seen.mechanisms or seen.host.lower().endswith(HOSTS),
    sign=f"the SASL mechanism {CBS_MECHANISM}, or a host of *{HOSTS[0]}",
    places=Places(
        offset=Place(MESSAGE_ANNOTATIONS, SEQUENCE_NUMBER_KEY, "long"),
        timestamp=Place(MESSAGE_ANNOTATIONS, ENQUEUED_TIME_KEY, "timestamp"),
        key=Place(MESSAGE_ANNOTATIONS, PARTITION_KEY, "string"),
        broker_keys=frozenset({SEQUENCE_NUMBER_KEY, OFFSET_KEY, ENQUEUED_TIME_KEY}),
    ),
    source_address=lambda hub, part, group: f"{hub}/ConsumerGroups/{group or DEFAULT_GROUP}/Partitions/{part}",
    target_address=lambda hub, part: hub if part is None else f"{hub}/Partitions/{part}",
    link_properties=LinkProperties(epoch=EPOCH),
    start_name=SELECTOR,
    start_filters=_start_filters,
    start_filters_at_time=_start_filters_at_time,
    echoes_start=False,
    conditions=Conditions(
        not_found=("amqp:not-found", ARGUMENT_OUT_OF_RANGE),
        position_lost=(ARGUMENT_ERROR,),
        passes=(
            SERVER_BUSY,
            "com.microsoft:timeout",
            OPERATION_CANCELLED,
            "com.microsoft:container-close",
            "amqp:internal-error",
            "amqp:connection:forced",
            "amqp:link:detach-forced",
            "amqp:resource-limit-exceeded",
        ),
        busy=(
            (SERVER_BUSY, 4.0),
            ("com.microsoft:timeout", 2.0),
            (OPERATION_CANCELLED, 0.1),
            ("com.microsoft:container-close", 4.0),
        ),
        advice=(
            (
                "could not be found",
                "the hub is in option 'stream', and a reader's consumer group, which has to exist, in 'consumerGroup'",
            ),
            (
                "claim",
                "'Listen' is the right to read, 'Send' to write: the rule of the key, or the token's role, needs it",
            ),
        ),
    ),
    numeric_offsets=True,
    drains=False,
    groups="always",
    partition_in_address=True,
    batch_format=BATCH_FORMAT,
    tokens="cbs",
)
