"""Renders blocks of events as lines of a feed, in columns, and caches them for further readers.

A block holds the rows of one read of the log, or ``MOST_ROWS`` of them, counted from the first record of a stored
batch. It does not depend on the reader's position: every reader takes the part of the same block that it needs.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections import OrderedDict
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.log import Records
from spark_streams.log.format.records import message_columns_of
from spark_streams.log.format.varint import Longs
from spark_streams.server.feed.event_filters import wanted
from spark_streams.wire.feed.fetch_arguments import Fetch
from spark_streams.wire.feed.lines_encode import encode_lines

ALL_HEADERS: Final = "_all"
MOST_ROWS: Final = 4_096
"""Rows to render or search at a time: a read of tiny events has many times as many, which would take too long."""
MOST_BLOCKS: Final = 8_192
"""Blocks to keep at most, however small: each takes some 0.5 KB besides its lines."""

Key = tuple[object, ...] | None
"""A partition, dialect and number, which determine the lines of an event; None for lines that no other fetch shares."""


class Events:
    """A block: consecutive records of a partition, of which those that pass the filters are rendered.

    Attributes:
        first, next: offset of the first record, and 1 + that of the last one.
        lines: the events' lines.
        line_ends: int64[n], where in ``lines`` each event ends (exclusive).
        places: int64[n], 1 + each event's offset: the next offset to read after it.
        scanned: how many stored bytes were read.
        key: the block's key in the cache.
    """

    __slots__ = ("first", "key", "line_ends", "lines", "next", "places", "scanned")

    def __init__(self, records: Records, fetch: Fetch, key: Key) -> None:
        offsets = records.offsets
        self.key = key
        self.first = int(offsets[0])
        self.next = int(offsets[-1]) + 1
        self.scanned = int(records.value_ends[-1] - records.value_starts[0])
        rows, lines = render(records, fetch)
        self.lines = memoryview(lines)
        self.line_ends: Longs = np.flatnonzero(np.frombuffer(lines, np.uint8) == 0x0A) + 1
        self.places: Longs = (offsets if rows is None else offsets[rows]) + 1
        assert len(self.places) == len(self.line_ends), "an event is not one line"


class EventCache:
    """A bounded cache of the blocks of all feeds; the least recently used go first.

    Args:
        max_bytes: how many bytes of lines to keep.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._recent: OrderedDict[int, Events] = OrderedDict()
        self._blocks: dict[Key, list[Events]] = {}

    def find(self, key: Key, offset: int, first_offset: int) -> Events | None:
        """Return the block with the record ``offset``; None when it is not kept.

        Args:
            key: of the blocks.
            offset: of a record.
            first_offset: the partition's first retained offset; blocks that begin before it are not returned.
        """
        blocks = self._blocks.get(key, ())
        index = bisect_right(blocks, offset, key=_FIRST) - 1
        if index >= 0 and offset < blocks[index].next and blocks[index].first >= first_offset:
            block = blocks[index]
            self._recent.move_to_end(id(block))
            return block
        return None

    def keep(self, block: Events) -> None:
        """Keep a block for further readers, unless it is too large or none could share it."""
        key = block.key
        if key is None or len(block.lines) > self._max // 4:
            return
        blocks = self._blocks.get(key, ())
        index = bisect_right(blocks, block.first, key=_FIRST) - 1
        if index >= 0 and blocks[index].first == block.first:
            # The new block has the same batches and more, because the log has grown.
            self._drop(blocks[index])
        insort(self._blocks.setdefault(key, []), block, key=_FIRST)
        self._recent[id(block)] = block
        self._bytes += len(block.lines)
        while self._bytes > self._max or len(self._recent) > MOST_BLOCKS:
            self._drop(next(iter(self._recent.values())))

    def _drop(self, block: Events) -> None:
        del self._recent[id(block)]
        self._bytes -= len(block.lines)
        blocks = self._blocks[block.key]
        blocks.remove(block)
        if not blocks:
            del self._blocks[block.key]

    def clear(self) -> None:
        """Forget all blocks."""
        self._recent.clear()
        self._blocks.clear()
        self._bytes = 0


_FIRST: Final = attrgetter("first")


def render(records: Records, fetch: Fetch) -> tuple[NDArray[np.int64] | None, bytes]:
    """Return the rows that pass the filters of a fetch, None for all, and their lines in its dialect."""
    rows: NDArray[np.int64] | None = None
    names = ("value", "key", *(("application_properties",) if fetch.headers else ()))
    if fetch.filters:
        rows = wanted(records, fetch.filters)
        records = records.take(rows)
        if not len(rows):
            return rows, b""
    columns = message_columns_of(records, names)
    values = columns["value"]
    keys = columns["key"] if columns["key"].null_count < len(values) else None
    lines = encode_lines(values, fetch.dialect, fetch.partition, keys=keys)
    if fetch.headers:
        lines = _with_headers(lines, columns["application_properties"], fetch.headers)
    return rows, lines


def _with_headers(lines: bytes, properties: pa.MapArray, names: tuple[str, ...]) -> bytes:
    """Put the member ``headers`` into lines of version 1; clients seldom request it, so a loop is fast enough."""
    out = []
    for line, pairs in zip(lines.split(b"\n")[:-1], properties.to_pylist(), strict=True):
        given = {
            name: value for name, value in pairs or () if value is not None and (ALL_HEADERS in names or name in names)
        }
        head, comma, rest = line.partition(b",")
        members = json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
        out.append((head + b',"headers":' + members + comma + rest if given else line) + b"\n")
    return b"".join(out)
