"""Says how messages are published, and encodes columns of them as Publish frames, none larger than negotiated."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Positions, run_ends
from spark_streams.wire.columnar.interleave import Ranges, heads, interleave
from spark_streams.wire.rabbitmq.frames import frame_head
from spark_streams.wire.rabbitmq.publish_decode import PUBLISH_KEY
from spark_streams.wire.rabbitmq.sub_batches import pack_sub_batch

Routing = Literal["hash", "rstream", "key"]
"""By the hash of RabbitMQ's own clients, by rstream's, or by binding key."""
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True)
class RabbitPublishing:
    """How to publish.

    Args:
        super_stream: the super stream that rows are routed in; None when rows name their streams, or all go to one.
        routing: which partition of the super stream a row goes to: by ``hash`` of its key (murmur3, as RabbitMQ's
            clients), by that of ``rstream``, or the one whose binding key is the row's ``key``.
        compression: of sub-entry batches.
        sub_entry_size: messages of a sub-entry batch; 1 for none, each message an entry of its own.
        max_in_flight: messages that may wait for their confirm, at most.
        request_timeout_ms: how many milliseconds the broker may confirm nothing, or not answer.
    """

    super_stream: str | None = None
    routing: Routing = "hash"
    compression: Codec = "none"
    sub_entry_size: int = 1
    max_in_flight: int = 10_000
    request_timeout_ms: int = 30_000


_HEAD: Final = struct.Struct(">BI")
FRAME_HEAD_BYTES: Final = 13
"""The bytes of size, key, version, publisher id and count."""
MAX_FILTER_BYTES: Final = 0x7FFF


def ranges_of(column: pa.Array) -> Ranges:
    """Return each row's byte range in a string or binary array, or a slice of one; a null has no bytes."""
    bounds, content = layout(column)
    starts, ends = bounds[:-1], bounds[1:]
    if column.null_count:
        ends = np.where(np.asarray(column.is_valid()), ends, starts)
    return Ranges(content, starts, ends)


def encode_publish(
    publisher_id: int,
    ids: NDArray[np.uint64],
    values: pa.LargeBinaryArray,
    filter_values: pa.StringArray | None = None,
    max_frame_bytes: int = 0,
) -> list[bytes]:
    """Return the frames that publish these messages, in order.

    Args:
        publisher_id: the publisher's id.
        ids: each message's publishing id.
        values: the messages, no nulls.
        filter_values: each message's filter value; null for none. A frame without any is of version 1.
        max_frame_bytes: the largest frame, its size field included; 0 for no limit.

    Raises:
        LocalProtocolError: a message does not fit into a frame, or a filter value has more than 32767 bytes; the error
            names the row.
    """
    body = ranges_of(values)
    if values.null_count:
        raise LocalProtocolError("messages with nulls: expected bytes in every row")
    sizes = 12 + (body.ends - body.starts)
    filtered, valid = None, np.zeros(len(ids), np.bool_)
    if filter_values is not None and filter_values.null_count < len(filter_values):
        filtered, valid = ranges_of(filter_values), np.asarray(filter_values.is_valid())
        lengths = filtered.ends - filtered.starts
        if lengths.max() > MAX_FILTER_BYTES:
            row = int(lengths.argmax())
            raise LocalProtocolError(f"row {row}: a filter value of {lengths[row]} bytes: expected at most 32767")
        sizes += 2 + lengths
    frames: list[bytes] = []
    for first, end in _frame_bounds(sizes, max_frame_bytes):
        rows = slice(first, end)
        part = Ranges(body.buffer, body.starts[rows], body.ends[rows])
        ids_of_part, size = (ids[rows], ">u8"), (part.ends - part.starts, ">u4")
        if filtered is None or not (present := valid[rows]).any():
            version, content = 1, interleave(heads(end - first, ids_of_part, size), part)
        else:
            version = 2
            value = Ranges(filtered.buffer, filtered.starts[rows], filtered.ends[rows])
            marked = np.where(present, value.ends - value.starts, -1)
            before = heads(end - first, ids_of_part, (marked, ">i2"))
            content = interleave(before, value, heads(end - first, size), part)
        frames.append(_frame(publisher_id, version, end - first, [content]))
    return frames


def encode_sub_batches(
    publisher_id: int,
    ids: NDArray[np.uint64],
    counts: NDArray[np.int64],
    values: pa.LargeBinaryArray,
    compression: int,
    max_frame_bytes: int = 0,
) -> list[bytes]:
    """Return the frames that publish these messages in sub-batches, in order.

    Args:
        publisher_id: the publisher's id.
        ids: each sub-batch's publishing id.
        counts: number of messages in each sub-batch, 1 to 65535.
        values: the messages, as many as the sum of ``counts``, no nulls.
        compression: a ``Compression``.
        max_frame_bytes: the largest frame, its size field included; 0 for no limit.

    Raises:
        LocalProtocolError: a sub-batch does not fit into a frame, or has too many messages or bytes; the error names
            its first row.
    """
    ends_at = np.cumsum(counts)
    if values.null_count or len(values) != (int(ends_at[-1]) if ends_at.size else 0):
        raise LocalProtocolError(
            f"{len(values)} messages, {values.null_count} of them null, for {len(ids)} sub-batches"
        )
    body = ranges_of(values)
    lengths = body.ends - body.starts
    chain = memoryview(interleave(heads(lengths.size, (lengths, ">u4")), body))
    bounds = np.concatenate(([0], np.cumsum(lengths + 4)))
    packed: list[bytes] = []
    for row, count in zip((ends_at - counts).tolist(), counts.tolist(), strict=True):
        try:
            packed.append(pack_sub_batch(compression, count, chain[bounds[row] : bounds[row + count]]))
        except LocalProtocolError as fault:
            raise LocalProtocolError(f"row {row}: {fault}") from fault
    sizes = np.array([8 + len(piece) for piece in packed], np.int64)
    frames: list[bytes] = []
    for first, end in _frame_bounds(sizes, max_frame_bytes, ends_at - counts):
        numbers = np.asarray(ids[first:end], ">u8").tobytes()
        content: list[bytes] = []
        for number, piece in enumerate(packed[first:end]):
            content += numbers[8 * number : 8 * number + 8], piece
        frames.append(_frame(publisher_id, 1, end - first, content))
    return frames


def _frame_bounds(sizes: Positions, max_frame_bytes: int, rows: Positions | None = None) -> Iterator[tuple[int, int]]:
    """Return the entries of each frame, as half-open ranges."""
    room = (max_frame_bytes or 0x7FFFFFFF) - FRAME_HEAD_BYTES
    if sizes.size and sizes.max() > room:
        entry = int((sizes > room).argmax())
        row = entry if rows is None else int(rows[entry])
        raise LocalProtocolError(
            f"row {row}: {sizes[entry]} bytes with the entry's head: expected at most {room}, so that it fits into a "
            f"frame of {room + FRAME_HEAD_BYTES} bytes"
        )
    return pairwise([0, *run_ends(np.cumsum(sizes), room)])


def _frame(publisher_id: int, version: int, entries: int, content: list[Any]) -> bytes:
    size = sum(len(piece) for piece in content)
    head = frame_head(_HEAD.size + size, PUBLISH_KEY, version) + _HEAD.pack(publisher_id, entries)
    return b"".join((head, *content))
