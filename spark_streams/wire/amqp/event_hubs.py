"""Converts messages for the Event Hubs door, many at once: renames their keys, and adds the log's annotations.

A message goes out with the log's own annotations in front of the stored ones, and no annotation twice::

    00 53 72 d1 size(4) count(4)                       message annotations
    a3 15 x-opt-sequence-number  81 int64
    a3 0c x-opt-offset           a1 14 20 digits       the offset as all doors write it
    a3 13 x-opt-enqueued-time    83 int64 ms           left out of an event without timestamp
    stored annotations, the key's renamed              event-streams-group-key <-> x-opt-partition-key
    all sections after them

Everything except the first five lines is sent from the log's own bytes.

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.offsets import format_offset
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.dialects.event_hubs import (
    ENQUEUED_TIME_KEY,
    OFFSET_KEY,
    PARTITION_KEY,
    SEQUENCE_NUMBER_KEY,
)
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.event_streams import GROUP_KEY, NO_TIMESTAMP, by_timestamp, digits_field
from spark_streams.wire.amqp.message import (
    MESSAGE_ANNOTATIONS,
    each_entry,
    skip_value,
    split_sections,
)
from spark_streams.wire.amqp.sections import HEAD_BYTES, walk_items, walk_sections
from spark_streams.wire.amqp.values import Described, Symbol, Timestamp, ULong
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions, Words
from spark_streams.wire.columnar.interleave import Field, Ranges, grouped, heads, interleave

_HEAD: Final = b"\x00\x53\x72\xd1"
_SECTION: Final = _HEAD[:3]
_HEAD_BYTES: Final = len(_HEAD) + 8
_ASSIGNED: Final = (SEQUENCE_NUMBER_KEY, OFFSET_KEY, ENQUEUED_TIME_KEY)
NONE_ENQUEUED_MS: Final = -62_135_596_800_000
"""The instant that the service reports as the last one of an empty partition: the first of the year 1."""


# --- one section at a time


def _one(raw: bytes, old: str, new: bytes, dropped: Collection[str], assigned: bytes) -> tuple[bytes, int]:
    """Return the new message annotations of one message, and the place after the old ones.

    Raises:
        RemoteProtocolError: the message has no sections that can be read.
    """
    sections = split_sections(raw, MESSAGE_ANNOTATIONS)
    kept, after, pieces = 0, sections[-1].end if sections else 0, [assigned]
    entries = [
        entry for section in sections if section.code == MESSAGE_ANNOTATIONS for entry in each_entry(raw, section.value)
    ]
    renamed = any(entry.key == old for entry in entries)
    for entry in entries:
        if entry.key == old:
            pieces += [new, raw[entry.value : entry.end]]
        elif entry.key in dropped or (renamed and entry.key.encode() == new[2:]):
            continue
        else:
            pieces.append(raw[entry.start : entry.end])
        kept += 2
    content = b"".join(pieces)
    count = kept + _count(assigned)
    return (_HEAD + struct.pack(">II", 4 + len(content), count) + content if count else b""), after


def _count(assigned: bytes) -> int:
    """Return how many keys and values encoded entries have."""
    count = at = 0
    while at < len(assigned):
        at, count = skip_value(assigned, at), count + 1
    return count


# --- many messages


class _Annotations:
    """Where the message annotations of many messages are, and the entry of one key in them.

    Attributes:
        begin: the first entry of each message; the message's start where it has no annotations.
        end: the end of the section, or the message's start.
        count: how many keys and values it has.
        key: where the entry begins, or ``begin`` where there is none.
        value: where its value begins, or ``begin``.
        has: which messages have the entry.
        odd: which messages are to be read one at a time.
    """

    def __init__(
        self, buffer: bytes | NDArray[np.uint8], starts: Positions, ends: Positions, key: str, dropped: Collection[str]
    ) -> None:
        n = starts.size
        origin = int(starts.min()) if n else 0
        words = PaddedWords(np.frombuffer(buffer, np.uint8), origin, int(ends.max()) if n else 0)
        found = walk_sections(words, starts - origin, ends - origin, MESSAGE_ANNOTATIONS)
        self.begin, self.end = starts.copy(), starts.copy()
        self.count = np.zeros(n, np.int64)
        self.odd: Mask = found.irregular
        at = found.value.get(MESSAGE_ANNOTATIONS)
        rows = np.flatnonzero((at >= 0) & ~self.odd) if at is not None else np.zeros(0, np.int64)
        key_at, value_at = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        if at is not None and rows.size:
            places, stops = at[rows], found.end[MESSAGE_ANNOTATIONS][rows]
            head = HEAD_BYTES.take((words.big(places) >> 56) & 0xFF)
            counted = words.big(places + head)
            self.begin[rows] = places + 2 * head - 1 + origin
            self.end[rows] = stops + origin
            self.count[rows] = np.where(head == 2, (counted >> 56) & 0xFF, (counted >> 32) & 0xFFFF_FFFF)
            for step in walk_items(words, rows, places, stops, self.odd, 2):
                for name in dropped:
                    self.odd[step.rows[words.equal(step.key.start, step.key.end, name.encode())]] = True
                same = words.equal(step.key.start, step.key.end, key.encode())
                if same.any():
                    there = step.chosen(same)
                    self.odd[there.rows[key_at[there.rows] >= 0]] = True
                    key_at[there.rows] = there.key.start - HEAD_BYTES.take(there.key.code) + origin
                    value_at[there.rows] = there.key.end + origin
        self.has: Mask = (key_at >= 0) & ~self.odd
        self.key = np.where(self.has, key_at, self.begin)
        self.value = np.where(self.has, value_at, self.begin)


def _symbol(text: str) -> bytes:
    return encode_value(Symbol(text))


_GROUP, _PARTITION = _symbol(GROUP_KEY), _symbol(PARTITION_KEY)


def with_group_keys(block: MessageBlock) -> MessageBlock:
    """Return producers' messages with their partition keys as the group keys that the log stores.

    Header and delivery annotations, which are meant for the door alone, are left out of those that have one.
    """
    starts, ends = np.asarray(block.starts, np.int64), np.asarray(block.ends, np.int64)
    memory = np.frombuffer(block.buffer, np.uint8)
    if not starts.size or memory[int(starts.min()) : int(ends.max())].tobytes().find(PARTITION_KEY.encode()) < 0:
        return block
    found = _Annotations(memory, starts, ends, PARTITION_KEY, (GROUP_KEY,))
    has = found.has
    sizes = 4 + (found.key - found.begin) + len(_GROUP) + (found.end - found.value)
    own = heads(int(has.sum()), _HEAD, (sizes[has], ">u4"), (found.count[has], ">u4"))
    head_starts = np.zeros(starts.size, np.int64)
    head_starts[has] = _HEAD_BYTES * np.arange(len(own), dtype=np.int64)
    head_ends = head_starts + np.where(has, _HEAD_BYTES, 0)
    resume = np.where(has, found.value, starts)
    before = np.where(has, found.key, starts), np.where(has, found.begin, starts)
    extra = bytearray()
    for row in np.flatnonzero(found.odd).tolist():
        raw = memory[starts[row] : ends[row]].tobytes()
        if PARTITION_KEY.encode() not in raw:
            continue
        try:
            section, after = _one(raw, PARTITION_KEY, _GROUP, (), b"")
        except RemoteProtocolError:
            continue  # the message is found to be malformed when it is read
        head_starts[row] = own.size + len(extra)
        extra += section
        head_ends[row] = own.size + len(extra)
        resume[row] = starts[row] + after
    rendered = np.concatenate((own.reshape(-1), np.frombuffer(extra, np.uint8)))
    pieces = (
        Ranges(rendered, head_starts, head_ends),
        Ranges(memory, before[1], before[0]),
        _constant(_GROUP, has),
        Ranges(memory, resume, ends),
    )
    joined = interleave(*pieces)
    stops = np.cumsum(sum(piece.ends - piece.starts for piece in pieces))
    return MessageBlock(np.frombuffer(joined, np.uint8), np.concatenate(([0], stops[:-1])), stops)


def _constant(text: bytes, rows: Mask) -> Ranges:
    """Return a piece that is the same in some rows, and empty in the others."""
    return Ranges(text, np.zeros(rows.size, np.int64), np.where(rows, len(text), 0))


def outgoing_pieces(
    buffer: bytes, starts: Positions, ends: Positions, offsets: Positions, timestamps: Positions
) -> tuple[Ranges, ...]:
    """Return what stored messages consist of as they are sent, with the log's annotations in front of their own.

    Args:
        buffer: holds the messages.
        starts: the first byte of each after header and delivery annotations, inclusive.
        ends: the end of each, exclusive.
        offsets: the events' numbers.
        timestamps: milliseconds; ``NO_TIMESTAMP`` for an event without timestamp.
    """
    n = starts.size
    memory = np.frombuffer(buffer, np.uint8)
    begins = Words(memory).little(starts) & 0xFFFFFF
    # A section's descriptor in a longer form is read one at a time.
    annotated = np.flatnonzero((begins == int.from_bytes(_SECTION, "little")) | (begins >> 8 & 0xFF != 0x53))
    annotated = annotated[ends[annotated] - starts[annotated] >= len(_SECTION)]
    begin, split, resume, stop = (starts.copy() for _ in range(4))
    counts, has, odd = np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    if annotated.size:
        found = _Annotations(memory, starts[annotated], ends[annotated], GROUP_KEY, (*_ASSIGNED, PARTITION_KEY))
        has[annotated], odd[annotated] = found.has, found.odd
        for column, each in ((begin, found.begin), (split, found.key), (resume, found.value), (stop, found.end)):
            column[annotated] = np.where(found.odd, starts[annotated], each)
        counts[annotated] = np.where(found.odd, 0, found.count)
    assigned = [(rows, _written(offsets[rows], times)) for rows, times in by_timestamp(timestamps)]
    own, own_starts, own_ends = grouped(n, assigned)
    sizes = 4 + (own_ends - own_starts - _HEAD_BYTES) + (split - begin) + (stop - resume)
    sizes += np.where(has, len(_PARTITION), 0)
    counts += np.where(timestamps != NO_TIMESTAMP, 6, 4)
    own[own_starts[:, None] + np.arange(_HEAD_BYTES)] = heads(n, _HEAD, (sizes, ">u4"), (counts, ">u4"))
    extra = bytearray()
    for row in np.flatnonzero(odd).tolist():
        ours = own[own_starts[row] + _HEAD_BYTES : own_ends[row]].tobytes()
        raw = memory[starts[row] : ends[row]].tobytes()
        try:
            section, after = _one(raw, GROUP_KEY, _PARTITION, _ASSIGNED, ours)
        except RemoteProtocolError:
            continue  # bytes that the RabbitMQ door took as they were: nothing of them can be read here either
        own_starts[row], own_ends[row] = own.size + len(extra), own.size + len(extra) + len(section)
        extra += section
        resume[row] = starts[row] + after
    if extra:
        own = np.concatenate((own, np.frombuffer(extra, np.uint8)))
    first, last = Ranges(own, own_starts, own_ends), Ranges(buffer, resume, ends)
    if not has.any():
        return first, last
    return first, Ranges(buffer, begin, split), _constant(_PARTITION, has), last


def _written(offsets: Positions, timestamps: Positions | None) -> NDArray[np.uint8]:
    """Return the annotations that the log gives events, each after room for the section's head."""
    number, digits = _symbol(SEQUENCE_NUMBER_KEY) + b"\x81", _symbol(OFFSET_KEY) + b"\xa1\x14"
    fields: list[Field] = [bytes(_HEAD_BYTES), number, (offsets, ">i8"), digits, digits_field(offsets)]
    if timestamps is not None:
        fields += _symbol(ENQUEUED_TIME_KEY) + b"\x83", (timestamps, ">i8")
    return heads(offsets.size, *fields)


# --- what the log is now


class Newest(NamedTuple):
    """The newest event of a partition.

    Args:
        sequence_number: its number; -1 where no event was ever sent.
        timestamp_ms: when the log took it.
    """

    sequence_number: int
    timestamp_ms: int

    @property
    def offset(self) -> str:
        """Its offset."""
        return "-1" if self.sequence_number < 0 else format_offset(self.sequence_number)


def runtime_metrics(newest: Newest, now_ms: int) -> bytes:
    """Return the delivery annotations by which a receiver knows how far behind it is."""
    annotations = {
        Symbol("last_enqueued_sequence_number"): newest.sequence_number,
        Symbol("last_enqueued_offset"): newest.offset,
        Symbol("last_enqueued_time_utc"): Timestamp(newest.timestamp_ms),
        Symbol("runtime_info_retrieval_time_utc"): Timestamp(now_ms),
    }
    return encode_value(Described(ULong(0x71), annotations))
