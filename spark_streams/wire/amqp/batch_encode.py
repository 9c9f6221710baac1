"""Joins encoded events to batches of Event Hubs, in columns; ``event_batches.py`` splits them.

::

    [00 53 72 c1 size 02  a3 13 x-opt-partition-key  a1 n key]      the key of all its events, if they have one
    00 53 75 a0 n event                                             a data section for each event, as it is
    00 53 75 a0 n event ...                                         b0 and four bytes of size where one needs them

Events of one key go together, in their order; so do those without a key. Where they are few, they stay plain messages.

Spec: docs/specifications.md, H-13; AMQP 1.0 part 3 §3.2.3 and §3.2.6 (message annotations, data).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.encode_maps import section
from spark_streams.wire.amqp.columns.encoded_runs import as_bytes, constant, counted, join, sized
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import DATA
from spark_streams.wire.amqp.values import Symbol
from spark_streams.wire.columnar.arrays import fixed_width, layout
from spark_streams.wire.columnar.byte_view import Mask, Positions, run_ends
from spark_streams.wire.columnar.interleave import Ranges, heads, interleave

_SHORT: Final = 256
"""Sizes from here on take four bytes."""
_MAP_HEAD_BYTES: Final = 9
_TEXT_HEAD_BYTES: Final = 5
_RADIX_SORTED: Final = 1 << 16
"""NumPy sorts numbers below this one ten times as fast."""


class Batches(NamedTuple):
    """The deliveries of events, as batches and plain messages.

    Args:
        payloads: a batch or a plain message for each delivery.
        batched: which of these are batches.
        rows: the events' numbers, in the order in which they are sent.
        bounds: where the events of each delivery begin in ``rows``, and the end of the last one's.
    """

    payloads: pa.LargeBinaryArray
    batched: Mask
    rows: Positions
    bounds: Positions


def join_batches(payloads: pa.LargeBinaryArray, places: Places, most_bytes: int, fewest: int = 2) -> Batches | None:
    """Return events as batches; None where they make no batch.

    Args:
        payloads: an encoded message for each event, without nulls, in less than 2 GiB.
        places: where messages have their key, by the peer's dialect.
        most_bytes: the size of a batch, at most; an event that is larger stays a plain message.
        fewest: the fewest events of a batch, at least 2; fewer stay plain messages.
    """
    bounds, memory = layout(payloads)
    starts, ends = bounds[:-1], bounds[1:]
    if len(starts) < fewest:
        return None
    incoming = incoming_columns(MessageBlock(memory, starts, ends), places=places)
    keys = incoming.group_key
    found = _by_key(keys, fewest)
    if found is None:
        return None
    rows, groups = found
    sizes = (ends - starts)[rows]
    head = heads(len(rows), b"\x00\x53", bytes((DATA,)), *_sizes(sizes))
    alone = (incoming.malformed | (ends == starts))[rows]
    apart = alone[1:] | alone[:-1]
    if groups is not None:
        apart |= groups[1:] != groups[:-1]
    segments = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(rows)]))
    envelopes = _envelope_bytes(keys, rows[segments[:-1]], places)
    before = np.concatenate(([0], np.cumsum(sizes + head.shape[1])))
    first = _without_few(_cut(segments, before, most_bytes - envelopes), fewest)
    batched = np.diff(first) > 1
    if not batched.any():
        return None
    joined, stops = interleave(head, Ranges(memory, starts[rows], ends[rows])), before[first]
    if groups is not None or not batched.all():
        begins = stops[:-1] + np.where(batched, 0, head.shape[1])  # a plain message is no data section
        parts = [Ranges(joined, begins, stops[1:])]
        if groups is not None:
            parts.insert(0, _envelopes(keys.take(fixed_width(rows[first[:-1]], pa.int64())), batched, places))
        joined = interleave(*parts)
        stops = np.concatenate(([0], np.cumsum(sum(part.ends - part.starts for part in parts))))
    bounds = pa.py_buffer(np.ascontiguousarray(stops))
    deliveries = pa.Array.from_buffers(pa.large_binary(), len(batched), [None, bounds, joined])
    return Batches(deliveries, batched, rows, first)


def _by_key(keys: pa.StringArray, fewest: int) -> tuple[Positions, Positions | None] | None:
    """Return the rows so that those of one key, or of none, follow one another; and their keys' numbers, if any.

    None where no key has as many as ``fewest``.
    """
    if keys.null_count == len(keys):
        return np.arange(len(keys)), None
    encoded = keys.dictionary_encode(null_encoding="encode")
    groups = np.asarray(encoded.indices)
    if int(np.bincount(groups).max()) < fewest:
        return None
    if len(encoded.dictionary) < _RADIX_SORTED:
        groups = groups.astype(np.uint16)
    rows = np.argsort(groups, kind="stable")
    return rows, groups[rows]


def _sizes(sizes: Positions) -> tuple[bytes, tuple[Positions, str]]:
    return (b"\xa0", (sizes, "u1")) if int(sizes.max()) < _SHORT else (b"\xb0", (sizes, ">u4"))


def _envelope_bytes(keys: pa.StringArray, rows: Positions, places: Places) -> Positions:
    """Return how many bytes the message annotations of a batch take at most, by a row of it."""
    if places.key is None or keys.null_count == len(keys):
        return np.zeros(len(rows), np.int64)
    sizes = np.diff(layout(keys)[0])[rows]
    fixed = len(section(places.key.section)) + _MAP_HEAD_BYTES + len(_symbol(places)) + _TEXT_HEAD_BYTES
    return np.asarray(sizes + fixed, np.int64)


def _cut(segments: Positions, before: Positions, room: Positions) -> Positions:
    """Return where batches begin, and the end of the last one.

    Args:
        segments: where the events that may go together begin, and the end of the last ones.
        before: bytes of the data sections before each event, and of all.
        room: bytes that the data sections of a batch may have, for each segment.
    """
    large = np.flatnonzero(before[segments[1:]] - before[segments[:-1]] > room)
    more: list[int] = []
    for number in large.tolist():
        at, stop = int(segments[number]), int(segments[number + 1])
        more += [at + end for end in run_ends(before[at + 1 : stop + 1] - before[at], int(room[number]))]
    return np.unique(np.concatenate((segments, np.array(more, np.int64))))


def _without_few(first: Positions, fewest: int) -> Positions:
    """Return where batches begin, and the end of the last one; the events of too small batches are plain messages."""
    counts = np.diff(first)
    few = np.repeat((counts > 1) & (counts < fewest), counts)
    return np.union1d(first, np.flatnonzero(few)) if few.any() else first


def _symbol(places: Places) -> bytes:
    assert places.key is not None
    return encode_value(Symbol(places.key.key))


def _envelopes(keys: pa.StringArray, batched: Mask, places: Places) -> Ranges:
    """Return the message annotations of each delivery that is a batch and has a key."""
    assert places.key is not None
    present = batched & np.asarray(keys.is_valid())
    texts = as_bytes(pc.if_else(pa.array(present), keys, pa.nulls(len(keys), keys.type)))
    entry = constant(_symbol(places), present) + sized(0xA1, texts)
    sections = join(counted(0xC1, entry, np.full(len(keys), 2), present, section(places.key.section)))
    bounds, memory = layout(sections)
    return Ranges(memory, bounds[:-1], bounds[1:])
