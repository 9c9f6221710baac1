"""The stored form of published bytes: every door can serve it, and this door returns the bytes that were published.

::

    an AMQP message           its bytes as they are, a header or delivery annotations in front included
    anything else             ESCAPE size(u32) its bytes: a data section, its descriptor in the long form
    bytes that begin so       the same: removing one ESCAPE always gives the bytes that were published

A RabbitMQ stream accepts any bytes as a message. The other doors do not: an AMQP reader has to find sections.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.log import NO_TIMESTAMP
from spark_streams.log.format.varint import Longs
from spark_streams.server.rabbitmq.filter_values import ValueColumn
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.encoded_runs import EncodedRun, fixed, join
from spark_streams.wire.amqp.columns.from_producers import incoming_steps
from spark_streams.wire.amqp.columns.plain_bodies import plain_rows
from spark_streams.wire.columnar.byte_view import Readable, Words
from spark_streams.wire.columnar.gather import copied
from spark_streams.wire.columnar.interleave import heads

ESCAPE: Final = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0"
"""Descriptor 0x75 (data) as an eight-byte ulong, which encoders hardly ever write, and the code of a binary32."""
ESCAPE_BYTES: Final = len(ESCAPE) + 4

STEP_ROWS: Final = 4_096
"""Rows of a step: some 3 ms."""


class Stored(NamedTuple):
    """Messages in their stored form, one row each.

    Args:
        values: large_binary, none null.
        keys: binary, the annotation event-streams-group-key; null for none.
        timestamps: int64, property creation-time in ms; ``NO_TIMESTAMP`` for none.
        filters: their filter values; None: no row has one.
    """

    values: pa.LargeBinaryArray
    keys: pa.Array
    timestamps: Longs
    filters: ValueColumn | None = None

    def only(self, rows: NDArray[np.bool_]) -> Stored:
        """Return some of the messages."""
        mask = pa.array(rows)
        filters = None if self.filters is None else self.filters.only(rows)
        return Stored(self.values.filter(mask), self.keys.filter(mask), self.timestamps[rows], filters)


def stored_steps(buffer: Readable, starts: Longs, ends: Longs) -> Generator[None, None, Stored]:
    """Return the stored form of published messages, without filter values.

    Args:
        buffer: holds the messages.
        starts: int64[n], first byte of each, inclusive; rising.
        ends: int64[n], end of each, exclusive.

    Yields:
        None, after each few thousand messages, and within messages that are read one by one.
    """
    parts = []
    for at in range(0, len(starts) or 1, STEP_ROWS):  # no messages are one part, too
        if at:
            yield
        part = yield from _part_steps(buffer, starts[at : at + STEP_ROWS], ends[at : at + STEP_ROWS])
        parts.append(part)
    return joined(parts)


def _part_steps(buffer: Readable, starts: Longs, ends: Longs) -> Generator[None, None, Stored]:
    values, count = copied(buffer, starts, ends), len(starts)
    keys, timestamps = pa.nulls(count, pa.binary()), np.full(count, NO_TIMESTAMP, np.int64)
    buffer = buffer if len(buffer) else b"\0"  # with only empty messages, too, the code below reads one byte
    words = Words(np.frombuffer(buffer, np.uint8))
    plain = plain_rows(words, starts, ends)
    if plain.all():
        return Stored(values, keys, timestamps)
    # An AMQP section begins with byte 0: bytes that begin otherwise are no message, without a closer look.
    escaped = (ends > starts) & (words.bytes.take(starts, mode="clip") != 0)
    others = ~plain & ~escaped
    rows = np.flatnonzero(others)
    if len(rows):
        incoming = yield from incoming_steps(MessageBlock(buffer, starts[rows], ends[rows]), thorough=True)
        escaped[rows] = incoming.malformed | _begin_with_escape(words, starts[rows], ends[rows])
        timestamps[rows] = np.where(incoming.malformed, NO_TIMESTAMP, incoming.creation_time_ms)
        keys = pc.replace_with_mask(keys, pa.array(others), incoming.group_key.cast(pa.binary()))
    return Stored(_with_escapes(values, escaped) if escaped.any() else values, keys, timestamps)


def joined(parts: Sequence[Stored]) -> Stored:
    """Return the rows of one or more parts, in their order; of several parts without filter values."""
    if len(parts) == 1:
        return parts[0]
    values, keys, timestamps, _ = zip(*parts, strict=True)
    return Stored(pa.concat_arrays(values), pa.concat_arrays(keys), np.concatenate(timestamps))


def unescape(buffer: Readable, starts: Longs, ends: Longs) -> Longs:
    """Return where the published bytes of stored messages start: after the escape, in those that have one.

    Args:
        buffer: holds the stored messages.
        starts: int64[n], first byte of each, inclusive.
        ends: int64[n], end of each, exclusive.
    """
    escaped = _begin_with_escape(Words(np.frombuffer(buffer, np.uint8)), starts, ends)
    return np.where(escaped, starts + ESCAPE_BYTES, starts) if escaped.any() else starts


def _begin_with_escape(words: Words, starts: Longs, ends: Longs) -> NDArray[np.bool_]:
    found = np.zeros(len(starts), np.bool_)
    # Hardly any message has the escape's second byte: comparing one byte avoids comparing eight for most of them.
    fits = np.flatnonzero((words.bytes.take(starts + 1, mode="clip") == ESCAPE[1]) & (ends - starts >= ESCAPE_BYTES))
    found[fits] = words.holds(starts[fits], ESCAPE)
    return found


def _with_escapes(values: pa.LargeBinaryArray, escaped: NDArray[np.bool_]) -> pa.LargeBinaryArray:
    sizes = np.asarray(pc.binary_length(values)).astype(np.int64)
    begins = heads(len(values), ESCAPE, (sizes, ">u4"))
    return join(fixed(begins, escaped) + EncodedRun((values,), sizes))
