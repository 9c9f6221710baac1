"""The commands of publishers; decode Publish, PublishConfirm and PublishError in columns, and encode the answers.

::

    Publish 1      key(0x0002) version(1) publisher(u8) count(i32)  entries:
                       id(u64) 0(bit) length(31 bits) message
                       id(u64) sub-batch (see sub_batches.py), which has one id and is confirmed once
    Publish 2      key(0x0002) version(2) publisher(u8) count(i32)  entries, none of them a sub-batch:
                       id(u64) filter value: length(i16), -1 for none, and UTF-8    length(i32) message
    Confirm        key(0x0003) version(1) publisher(u8) count(i32)  ids(u64)
    PublishError   key(0x0004) version(1) publisher(u8) count(i32)  id(u64) code(u16)

Spec: Streams Protocol Reference, DeclarePublisher to DeletePublisher; docs/specifications.md, S-41,
S-92, S-107.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Positions, Readable, numbers_at
from spark_streams.wire.rabbitmq.entries import read_entries
from spark_streams.wire.rabbitmq.fields import U8, U64, Text
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Request, frame_head
from spark_streams.wire.rabbitmq.publish_v2 import FILTERED_HEAD_BYTES, filtered_begins
from spark_streams.wire.rabbitmq.sub_batches import MAX_PLAIN_BYTES, RecordSpans, SubBatch

Ids = NDArray[np.uint64]

PUBLISH_KEY = 0x0002
"""The key of Publish, versions 1 and 2, from the client."""
CONFIRM_KEY = 0x0003
"""The key of PublishConfirm, from the server."""
PUBLISH_ERROR_KEY = 0x0004
"""The key of PublishError, from the server."""
MAX_REFERENCE_BYTES = 255
"""The longest reference: the protocol allows 256 characters, but brokers refuse more than 255 bytes (S-102)."""


class DeclarePublisher(Request, key=0x0001):
    """A request to open a publisher; an empty reference means one without deduplication (S-101)."""

    publisher_id: U8
    reference: Text
    stream: Text


class DeclarePublisherAnswer(Answer, key=0x0001 | ANSWER):
    """Whether the publisher is open."""


class QueryPublisherSequence(Request, key=0x0005):
    """A request for the last publishing id of a reference."""

    reference: Text
    stream: Text


class QueryPublisherSequenceAnswer(Answer, key=0x0005 | ANSWER):
    """The last publishing id; 0 for none (S-104)."""

    sequence: U64 = 0


class DeletePublisher(Request, key=0x0006):
    """A request to close a publisher."""

    publisher_id: U8


class DeletePublisherAnswer(Answer, key=0x0006 | ANSWER):
    """Whether the publisher existed."""


# --- in columns

MAX_INFLATED_BYTES: Final = 256 << 20
"""The most bytes to which the sub-batches of one frame may inflate together; frames have 1 MiB unless configured."""
_HEAD: Final = struct.Struct(">BI")
_ERROR: Final = np.dtype([("id", ">u8"), ("code", ">u2")])
_ID: Final = 8
_SUB_BATCH: Final = 0x80
"""The bit, in the byte after an id, that marks a sub-batch."""


@dataclass(frozen=True)
class Published:
    """The content of a Publish frame: entries, and the records in them.

    Args:
        publisher_id: the publisher's id.
        ids: the publishing id of every entry, including those that were left out.
        counts: number of records of every entry; 1 for a plain one, 0 for one that was left out.
        buffer: holds the messages: the frame itself or, with compressed sub-batches, a new one.
        starts: first byte of every record's message, inclusive.
        ends: byte after it.
        filter_starts: first byte of every entry's filter value, inclusive, -1 for none; None in version 1.
        filter_ends: byte after it, -1 for none; None in version 1.
        bad_from: the first entry that was left out because it is a bad sub-batch; all later entries are left out, too.
            A server answers them with PublishError. None when no entry was left out.
    """

    publisher_id: int
    ids: Ids
    counts: Positions
    buffer: Readable
    starts: Positions
    ends: Positions
    filter_starts: Positions | None = None
    filter_ends: Positions | None = None
    bad_from: int | None = None


class Confirmed(NamedTuple):
    """The content of a PublishConfirm frame."""

    publisher_id: int
    ids: Ids


class PublishErrors(NamedTuple):
    """The content of a PublishError frame: a response code for each id."""

    publisher_id: int
    ids: Ids
    codes: NDArray[np.uint16]


def _read_head(buffer: Readable, start: int, end: int, least: int, what: str) -> tuple[int, int, int]:
    """Return publisher id, count and the start of the items, each of which has at least ``least`` bytes."""
    if end - start < _HEAD.size:
        raise RemoteProtocolError(f"{what}: {end - start} bytes: expected a publisher id and a count")
    publisher_id, count = _HEAD.unpack_from(buffer, start)
    start += _HEAD.size
    if count * least > end - start:
        raise RemoteProtocolError(f"{what}: {count} items in {end - start} bytes")
    return publisher_id, count, start


def decode_publish(
    buffer: Readable, start: int, end: int, version: int, *, max_inflated_bytes: int = MAX_INFLATED_BYTES
) -> Published:
    """Read the content of a Publish frame.

    Args:
        buffer: the bytes.
        start: first byte after key and version, inclusive.
        end: end of the frame, exclusive.
        version: the frame's version, 1 or 2.
        max_inflated_bytes: the most bytes to which all sub-batches of the frame may inflate together; the first that
            exceeds it is a bad one.

    Raises:
        RemoteProtocolError: the frame itself is malformed. A bad sub-batch is not an error: see ``Published.bad_from``.
    """
    (whole,) = filter(None, _parts(buffer, start, end, version, _Limits(MAX_PLAIN_BYTES, max_inflated_bytes)))
    return whole


def publish_parts(
    buffer: Readable, start: int, end: int, version: int, *, max_uncompressed_bytes: int = MAX_PLAIN_BYTES
) -> Iterator[Published | None]:
    """Read the content of a Publish frame in parts, so that a frame that inflates to much needs little memory.

    Args:
        buffer: holds the frame.
        start: first byte after key and version, inclusive.
        end: end of the frame, exclusive.
        version: 1 or 2.
        max_uncompressed_bytes: the most bytes to which one sub-batch may inflate; a larger one is a bad one.

    Returns:
        At least one part: consecutive entries with some ten thousand records, or one sub-batch that has more. After a
        bad sub-batch all parts have entries that were left out. A frame of version 2, which inflates nothing, is one
        part. Before each part with sub-batches comes None, when none of them is inflated yet.

    Raises:
        RemoteProtocolError: the frame itself is malformed, perhaps only after the parts before the fault.
    """
    limits = _Limits(max_uncompressed_bytes, MAX_INFLATED_BYTES, 1 << 14, 1 << 20, 256)
    return _parts(buffer, start, end, version, limits)


class _Limits(NamedTuple):
    """The limits of a sub-batch, of the frame, and of a part."""

    sub_batch_bytes: int
    inflated_bytes: int
    part_records: int = 2**62
    part_bytes: int = 2**62
    part_pieces: int = 2**62


def _parts(buffer: Readable, start: int, end: int, version: int, limits: _Limits) -> Iterator[Published | None]:
    if version == 2:
        yield _decode_filtered(buffer, start, end)
        return
    if version != 1:
        raise RemoteProtocolError(f"Publish version {version}: expected 1 or 2")
    publisher_id, left, at = _read_head(buffer, start, end, _ID + 4, "Publish")
    inflated, bad = 0, False
    while True:
        spans = RecordSpans(buffer, limits.sub_batch_bytes, limits.inflated_bytes - inflated)
        ids: list[Ids] = []
        counts: list[Positions] = []
        taken, bad_from, asked = 0, 0 if bad else None, False
        most = min(left, limits.part_records)
        while (
            taken < most
            and spans.records < limits.part_records
            and spans.inflated_bytes < limits.part_bytes
            and len(ids) < limits.part_pieces
        ):
            if at + _ID < end and buffer[at + _ID] & _SUB_BATCH:
                ids.append(np.array([int.from_bytes(buffer[at : at + _ID], "big")], np.uint64))
                batch = SubBatch.read(buffer, at + _ID, end)
                if not asked:
                    asked = True
                    yield None
                if not bad:
                    try:
                        spans.add_sub_batch(batch)
                    except RemoteProtocolError:
                        bad, bad_from = True, taken
                counts.append(np.array([0 if bad else batch.records]))
                at = batch.end
            else:
                entries = read_entries(buffer, at, end, most - taken, before=_ID)
                ids.append(numbers_at(buffer, entries.starts - (_ID + 4), ">u8").astype(np.uint64))
                counts.append(np.full(entries.starts.size, 0 if bad else 1))
                if not bad:
                    spans.add(entries)
                at = entries.stop
            taken += ids[-1].size
        left -= taken
        inflated += spans.inflated_bytes
        if not left:
            _check_end(at, end)
        every = ids[0] if len(ids) == 1 else np.concatenate((np.empty(0, np.uint64), *ids))
        of_each = counts[0] if len(counts) == 1 else np.concatenate((np.empty(0, np.int64), *counts))
        yield Published(publisher_id, every, of_each, *spans.collected(), bad_from=bad_from)
        if not left:
            return


def _check_end(at: int, end: int) -> None:
    if at != end:
        raise RemoteProtocolError(f"Publish: {end - at} bytes after its last entry")


def _decode_filtered(buffer: Readable, start: int, end: int) -> Published:
    publisher_id, count, at = _read_head(buffer, start, end, FILTERED_HEAD_BYTES + 4, "Publish 2")
    begins = filtered_begins(buffer, at, end, count)
    _check_end(int(begins[-1]), end)
    heads = begins[:-1]
    lengths = numbers_at(buffer, heads + _ID, ">i2").astype(np.int64)
    filter_starts = heads + FILTERED_HEAD_BYTES
    filter_ends = filter_starts + np.maximum(lengths, 0)
    return Published(
        publisher_id,
        numbers_at(buffer, heads, ">u8").astype(np.uint64),
        np.ones(count, np.int64),
        buffer,
        filter_ends + 4,
        begins[1:],
        np.where(lengths < 0, -1, filter_starts),
        np.where(lengths < 0, -1, filter_ends),
    )


def encode_confirm(publisher_id: int, ids: Ids) -> bytes:
    """Return a whole PublishConfirm frame."""
    content = np.asarray(ids, ">u8").tobytes()
    return frame_head(_HEAD.size + len(content), CONFIRM_KEY) + _HEAD.pack(publisher_id, len(ids)) + content


def decode_confirm(buffer: Readable, start: int, end: int) -> Confirmed:
    """Read the content of a PublishConfirm frame; it begins at ``start``, after key and version.

    Raises:
        RemoteProtocolError: its size does not match its count.
    """
    publisher_id, count, start = _read_head(buffer, start, end, 8, "PublishConfirm")
    if end - start != 8 * count:
        raise RemoteProtocolError(f"PublishConfirm: {count} ids in {end - start} bytes")
    return Confirmed(publisher_id, np.frombuffer(buffer, ">u8", count, start).astype(np.uint64))


def encode_publish_error(publisher_id: int, ids: Ids, codes: NDArray[np.uint16]) -> bytes:
    """Return a whole PublishError frame."""
    rows = np.empty(len(ids), _ERROR)
    rows["id"], rows["code"] = ids, codes
    content = rows.tobytes()
    return frame_head(_HEAD.size + len(content), PUBLISH_ERROR_KEY) + _HEAD.pack(publisher_id, len(ids)) + content


def decode_publish_error(buffer: Readable, start: int, end: int) -> PublishErrors:
    """Read the content of a PublishError frame; it begins at ``start``, after key and version.

    Raises:
        RemoteProtocolError: its size does not match its count.
    """
    publisher_id, count, start = _read_head(buffer, start, end, _ERROR.itemsize, "PublishError")
    if end - start != _ERROR.itemsize * count:
        raise RemoteProtocolError(f"PublishError: {count} items in {end - start} bytes")
    rows = np.frombuffer(buffer, _ERROR, count, start)
    return PublishErrors(publisher_id, rows["id"].astype(np.uint64), rows["code"].astype(np.uint16))
