"""The names of AMQP event streams (annotations, link properties, filters, capabilities), and delivery annotations.

``delivery_annotations`` writes the delivery-annotations sections of a log node's transfers, all at once, from a
template. Offsets are 20 decimal digits (A-24), so every section of one block has the same width, and only digits and
timestamps differ from row to row::

    00 53 71                                   section
    c1 size count                              map8
    a3 14 event-streams-offset                 a3 14 20 digits
    a3 17 event-streams-timestamp              83 int64 ms                left out in a block of rows without timestamp
    a3 1e event-streams-source-partition       a3 n partition             left out if the caller passes None

Spec: Event Stream Extensions §4.6.4, §5.1.1, §5.1.2 (ES-117, ES-119, ES-300).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.offsets import OFFSET_DIGITS, offset_digits
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.values import Described, Symbol, Timestamp, ULong
from spark_streams.wire.columnar.interleave import Field, heads

OFFSET_KEY: Final = "event-streams-offset"
TIMESTAMP_KEY: Final = "event-streams-timestamp"
SOURCE_PARTITION_KEY: Final = "event-streams-source-partition"
TARGET_PARTITION_KEY: Final = "event-streams-target-partition"
GROUP_KEY: Final = "event-streams-group-key"
"""A message annotation; those above are delivery annotations."""
ASSIGNED_KEYS: Final = ("event-streams-associated-partitions-changed", "event-streams-assigned-partitions-changed")
"""Both names of one annotation: the specification's heading has associated, its text assigned (A-1)."""

PARTITION: Final = "event-streams-partition"
CONSUMER_GROUP: Final = "event-streams-consumer-group"
EPOCH: Final = "event-streams-epoch"
"""Link properties."""

ANNOTATIONS_FILTER: Final = (512, "amqp:event-streams-delivery-annotations-filter")
SQL_FILTER: Final = (513, "amqp:event-streams-sql-filter")
FULL_SQL_FILTER: Final = (0x120, "amqp:sql-filter")
"""The numeric and the symbolic descriptor; we send the numeric one, and accept either in the answer."""

CAPABILITY: Final = "AMQP_EVENT_STREAMS_V1_0"
"""Spec: Event Stream Extensions §3.1 (ES-010)."""
SQL_CAPABILITY: Final = "AMQP_FILTEX_SQL_V1_0"
"""Spec: AMQP Filter Expressions 1.0 §2.2."""

NO_TIMESTAMP: Final = -(2**63)
"""The int64 milliseconds that stand for no timestamp; extended record batches use the same number (KIP-228)."""


def delivery_annotations(
    offsets: NDArray[np.int64], timestamps: NDArray[np.int64], partition: str | None
) -> list[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """Return each event's delivery-annotations section.

    Args:
        offsets: event numbers, not negative.
        timestamps: milliseconds; ``NO_TIMESTAMP`` for an event without timestamp, whose section then has none.
        partition: the source partition; None leaves the annotation out.

    Returns:
        Groups ``(rows, sections)``: ``sections[i]``, uint8 in C order, is the section of event ``rows[i]``. Rows are in
        ascending order, each event is in exactly one group; there are two groups only when some events have a
        timestamp and some have none.

    Raises:
        LocalProtocolError: an offset is negative, or the partition is no symbol.
    """
    if offsets.size and int(offsets.min()) < 0:
        raise LocalProtocolError(f"offset {int(offsets.min())} is negative")
    return [(rows, _sections(offsets[rows], times, partition)) for rows, times in by_timestamp(timestamps)]


def by_timestamp(timestamps: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.int64] | None]]:
    """Return the rows that have a timestamp, with these, and the rows that have none, with None; no empty group."""
    timed = timestamps != NO_TIMESTAMP
    rows, others = np.flatnonzero(timed), np.flatnonzero(~timed)
    groups = ((rows, timestamps[rows]), (others, None))
    return [group for group in groups if group[0].size]


def _sections(
    offsets: NDArray[np.int64], timestamps: NDArray[np.int64] | None, partition: str | None
) -> NDArray[np.uint8]:
    marker = "\x01" * OFFSET_DIGITS
    annotations: dict[Symbol, object] = {Symbol(OFFSET_KEY): Symbol(marker)}
    if timestamps is not None:
        annotations[Symbol(TIMESTAMP_KEY)] = Timestamp(0)
    if partition is not None:
        annotations[Symbol(SOURCE_PARTITION_KEY)] = Symbol(partition)
    before, _, behind = encode_value(Described(ULong(0x71), annotations)).partition(marker.encode())
    fields: list[Field] = [before, digits_field(offsets), behind]
    if timestamps is not None:
        at = behind.index(TIMESTAMP_KEY.encode()) + len(TIMESTAMP_KEY) + 1
        fields[2:] = behind[:at], (timestamps, ">i8"), behind[at + 8 :]
    return heads(offsets.size, *fields)


def digits_field(offsets: NDArray[np.int64]) -> Field:
    """Return the digits of offsets, as ``heads`` takes them."""
    kind = f"S{OFFSET_DIGITS}"
    return offset_digits(offsets).view(kind), kind
