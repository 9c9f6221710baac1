"""Read what a log node needs from producers' messages, a whole block at a time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.columns.block import MessageBlock, chosen, foreign
from spark_streams.wire.amqp.columns.decode import Lockstep, together
from spark_streams.wire.amqp.columns.plain_bodies import are_plain_bodies
from spark_streams.wire.amqp.columns.properties import field_numbers
from spark_streams.wire.amqp.columns.shaped_columns import ShapedColumns
from spark_streams.wire.amqp.columns.shaped_rows import by_shape
from spark_streams.wire.amqp.columns.single_message import CREATION_TIME, message_steps
from spark_streams.wire.amqp.decode import LONG_BYTES, finished
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP
from spark_streams.wire.columnar.byte_view import Positions


@dataclass(frozen=True)
class Incoming:
    """The parts of a producer's transfers that a log node needs, one row for each message.

    Args:
        value_starts: first byte after header and delivery annotations: the log stores the message from here on.
        group_key: the dialect's annotation for the key, such as event-streams-group-key, or null.
        target_partition: the dialect's annotation for the partition, such as event-streams-target-partition, or null.
        creation_time_ms: property creation-time, or ``NO_TIMESTAMP``.
        malformed: messages that cannot be decoded; their other columns mean nothing.
    """

    value_starts: NDArray[np.int64]
    group_key: pa.StringArray
    target_partition: pa.StringArray
    creation_time_ms: NDArray[np.int64]
    malformed: NDArray[np.bool_]


_READ = frozenset({"value", "key", "properties_ms", "application_properties", "message_annotations"})
"""All columns that a reader of the stored message may decode."""


def incoming_columns(block: MessageBlock, *, thorough: bool = False, places: Places = EVENT_STREAMS.places) -> Incoming:
    """Return what ``incoming_steps`` does, at once."""
    return finished(incoming_steps(block, thorough=thorough, places=places))


def incoming_steps(
    block: MessageBlock, *, thorough: bool = False, places: Places = EVENT_STREAMS.places
) -> Generator[None, None, Incoming]:
    """Read what a log node needs from a producer's messages; see ``Incoming``.

    Args:
        block: the messages.
        thorough: also mark messages as malformed that only a reader would fail on, such as broken application
            properties; this costs about as much as decoding all columns. Without it, of those that are read in columns
            only the order and sizes of the sections, and the annotations and properties of the result, are checked.
        places: where the messages have key and target partition, by the dialect of the door.

    Yields:
        None, between messages that are read one by one, and within a long one.

    Raises:
        LocalProtocolError: a range is outside the buffer.
    """
    if are_plain_bodies(block):
        count = len(block.starts)
        nulls = pa.nulls(count, pa.string())
        return Incoming(block.starts, nulls, nulls, np.full(count, NO_TIMESTAMP), np.zeros(count, np.bool_))
    parts, rest = by_shape(block, places=places)
    if not parts:
        return (yield from _walked(block, thorough, places))
    try:
        columns = ShapedColumns(parts, len(block.starts))
        texts = columns.column("group_key"), columns.column("target_partition")
        if thorough:
            columns.check()
    except RemoteProtocolError:
        return (yield from _walked(block, thorough, places))  # the walk says which messages are malformed
    shaped = Incoming(columns.bare_starts, *texts, columns.creation_time_ms, np.zeros(columns.rows.size, np.bool_))
    if not rest.size:
        return shaped
    walked = yield from _walked(chosen(block, rest), thorough, places)
    return _together((columns.rows, rest), shaped, walked)


def _together(rows: tuple[Positions, Positions], one: Incoming, other: Incoming) -> Incoming:
    """Return both parts of a block as one; ``rows`` are the numbers of their messages."""
    order = np.argsort(np.concatenate(rows))
    return Incoming(
        np.concatenate((one.value_starts, other.value_starts))[order],
        together(rows, (one.group_key, other.group_key)),
        together(rows, (one.target_partition, other.target_partition)),
        np.concatenate((one.creation_time_ms, other.creation_time_ms))[order],
        np.concatenate((one.malformed, other.malformed))[order],
    )


def _walked(block: MessageBlock, thorough: bool, places: Places) -> Generator[None, None, Incoming]:
    """Read messages of any shapes: in columns, and one by one those that the columns leave out."""
    names = frozenset({"group_key", "target_partition", "creation_time_ms"})
    long = block.ends - block.starts > LONG_BYTES
    others = MessageBlock(block.buffer, block.starts, np.where(long, block.starts, block.ends))
    lockstep = Lockstep(others, names, places, m.FOOTER)
    malformed, alone = foreign(block, sure=True), lockstep.irregular
    try:
        for name in ("group_key", "target_partition"):
            lockstep.column(name, {})
        if thorough:
            readers = Lockstep(others, _READ)
            for name in _READ:
                readers.column(name, {})
            alone |= readers.irregular
    except RemoteProtocolError:
        alone[:] = True  # which shows the broken one
    alone |= long
    value_starts = lockstep.sections.bare_start + lockstep.origin
    milliseconds, valid = field_numbers(lockstep, lockstep.properties, CREATION_TIME)
    creation_time_ms = np.where(valid, milliseconds, NO_TIMESTAMP)
    singly: dict[int, dict[str, Any]] = {}
    rows = np.flatnonzero(alone & ~malformed).tolist()
    for row in rows:
        if row != rows[0]:
            yield
        try:
            singly[row] = yield from message_steps(block.raw(row), places)
        except RemoteProtocolError:
            malformed[row] = True
            continue
        value_starts[row] = block.starts[row] + singly[row]["bare_start"]
        if singly[row]["creation_time_ms"] is not None:
            creation_time_ms[row] = singly[row]["creation_time_ms"]
    group_key, target_partition = (lockstep.column(name, singly) for name in ("group_key", "target_partition"))
    return Incoming(value_starts, group_key, target_partition, creation_time_ms, malformed)
