"""Finds the events of one page: from any place, forwards or backwards, with a filter or without.

Events are read and searched block by block (``log/search.py``), so that other work of the thread has its turn between
two blocks. A page ends when it has its rows, or after ``MOST_BYTES`` or ``MOST_EVENTS``: it then says how far it came,
and the next page goes on there. Only what a row shows is decoded.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow.compute as pc

from spark_streams.errors import CorruptLog
from spark_streams.filters.tree import Expression
from spark_streams.instants import read_instant
from spark_streams.log import Partition, Records
from spark_streams.log.format.records import message_columns_of
from spark_streams.log.search import BLOCK_BYTES, Block, Search
from spark_streams.server.counters import logger
from spark_streams.server.web.event_parts import head_size, message_of
from spark_streams.server.web.formats import whole
from spark_streams.server.web.shown_text import CUT, one_visible_line, text_of

STARTS: Final = ("latest", "earliest", "offset", "before", "time")
"""Where a page may start: the last events, the first ones, from an offset on, before an offset, from a time on."""
MOST_BYTES: Final = 64 << 20
MOST_EVENTS: Final = 100_000
_SHOWN: Final = 200
"""Characters of a value that a row shows."""
_HEX_SHOWN: Final = 32
"""Bytes of a value that a row shows in hexadecimal."""
_LONG_BYTES: Final = 16 << 10
"""A longer message is shown by its first bytes, as ``event_parts.py`` finds them."""
_MOST_STRIDE: Final = 65_536
_END: Final = 2**63 - 1


@dataclass(frozen=True)
class Row:
    """An event in the table.

    Args:
        offset: its offset.
        time_ms: its time; ``NO_TIMESTAMP`` for none.
        key: its key; None without one.
        subject: property subject, likewise.
        content_type: property content-type, likewise.
        preview: the beginning of its value; None for an event without a body.
        is_text: whether the preview is text; if not, it is bytes in hexadecimal.
        size: the bytes of its value.
    """

    offset: int
    time_ms: int
    key: str | None
    subject: str | None
    content_type: str | None
    preview: str | None
    is_text: bool
    size: int


@dataclass
class EventPage:
    """The events of a page.

    Attributes:
        rows: the events, in the order of the log.
        first, end: the offsets that were examined, ``end`` exclusive.
        backwards: whether the search went from ``end`` to ``first``.
        finished: whether the page has its rows, or there is nothing more to look at; if not, the search may go on.
        records: how many events were examined.
        size: the bytes of their values.
        fault: why the page ended early; empty when it did not.
    """

    rows: list[Row] = field(default_factory=list)
    first: int = 0
    end: int = 0
    backwards: bool = False
    finished: bool = True
    records: int = 0
    size: int = 0
    fault: str = ""

    @property
    def spent(self) -> bool:
        """Whether it has examined as much as one page may."""
        return self.size >= MOST_BYTES or self.records >= MOST_EVENTS

    def has(self, field: str) -> bool:
        """Whether a row has a key, a subject or a content type."""
        return any(getattr(row, field) is not None for row in self.rows)


def start_of(kind: str, place: str) -> tuple[str, int]:
    """Return where a page starts: one of ``STARTS``, and an offset or a time in ms.

    Args:
        kind: the form's choice, one of ``STARTS``.
        place: the text beside it: an offset or a time.

    Raises:
        ValueError: they are no position; the message says what was expected.
    """
    if kind not in STARTS:
        raise ValueError(f"start is '{kind:.40}', expected one of {', '.join(STARTS)}")
    if kind == "time":
        return kind, read_instant(place)
    if kind in ("offset", "before"):
        offset = whole(place.strip())
        if offset is None:
            raise ValueError(f"offset is '{place:.40}', expected a number from 0 on")
        return kind, min(offset, _END)
    return kind, 0


def page_of(
    partition: Partition, expression: Expression | None, start: tuple[str, int], most: int
) -> Generator[object, None, EventPage]:
    """Return a page of events, in steps.

    Args:
        partition: the partition.
        expression: the filter; None for none.
        start: where it starts, see ``start_of``.
        most: the most rows.

    Raises:
        FilterError: the filter looks at what messages cannot have.
        CorruptLog: a time cannot be found, because stored events are damaged.
        PartitionClosed: the log was closed, or the stream deleted.
    """
    kind, place = start
    search = Search(partition, expression)
    page = EventPage(backwards=kind in ("latest", "before"))
    if kind == "time":
        found = partition.offset_for_time(place)
        place = partition.next_offset if found is None else found[0]
    if page.backwards:
        yield from _backwards(page, partition, search, place if kind == "before" else _END, most)
    else:
        yield from _forwards(page, partition, search, place, most)
    return page


def _block(page: EventPage, partition: Partition, search: Search, at: int, end: int) -> Block | None:
    """Search a block, and count it; return None, and set the page's ``fault``, where the stored events are damaged."""
    try:
        try:
            block = search.block(at, end)
        except CorruptLog:  # the damage may be further on: the sound batches before it can be shown
            block = search.block(at, end, 1)
    except CorruptLog as fault:
        logger.error("stream %r partition %s: %s", partition.stream, partition.id, fault)
        page.fault = (
            f"Stored events are damaged: some from offset {at} on cannot be read. The server's log names the file."
        )
        return None
    page.records += block.records
    page.size += block.size
    return block


def _forwards(
    page: EventPage, partition: Partition, search: Search, start: int, most: int
) -> Generator[object, None, None]:
    there = partition.next_offset
    end = min(search.bounds.end, there)
    page.first = page.end = min(max(start, search.bounds.first, partition.first_offset), there)
    while page.end < end and len(page.rows) < most:
        if page.spent:
            page.finished = False
            return
        block = _block(page, partition, search, page.end, end)
        if block is None:
            return
        taken = block.matching.slice(0, most - len(page.rows))
        page.rows += rows_of(taken)
        page.end = block.following if len(page.rows) < most else int(taken.offsets[-1]) + 1
        yield None


def _backwards(
    page: EventPage, partition: Partition, search: Search, before: int, most: int
) -> Generator[object, None, None]:
    """Search stretches of the partition, the last one first; each is searched forwards, as it is stored."""
    page.end = page.first = max(partition.first_offset, min(before, search.bounds.end, partition.next_offset))
    lowest = min(page.end, search.skipped(max(partition.first_offset, search.bounds.first)))
    stride = _stride(partition)
    if search.expression is None:
        stride = min(stride, most)
    while page.first > lowest and len(page.rows) < most:
        if page.spent:
            page.finished = False
            return
        start = max(lowest, page.first - stride)
        at, found = start, list[Row]()
        while at < page.first:
            block = _block(page, partition, search, at, page.first)
            if block is None:
                break
            found = (found + rows_of(block.matching.slice(max(0, len(block.matching) - most))))[-most:]
            at = block.following
            yield None
        page.rows = (found + page.rows)[-most:]
        page.first = start if len(page.rows) < most else page.rows[0].offset
        if page.fault:
            return


def _stride(partition: Partition) -> int:
    """Return how many events to search at a time backwards: about four blocks, by their mean size."""
    events = max(1, partition.next_offset - partition.first_offset)
    mean = max(1, partition.stored_bytes // events)
    return max(1, min(_MOST_STRIDE, 4 * BLOCK_BYTES // mean))


def rows_of(records: Records) -> list[Row]:
    """Return records as rows of the table."""
    count = len(records)
    if not count:
        return []
    columns = message_columns_of(_heads(records), ("key", "properties"))
    bodies = _beginnings(records)
    texts = {
        "key": columns["key"].to_pylist(),
        "subject": pc.struct_field(columns["properties"], "subject").to_pylist(),
        "content_type": pc.struct_field(columns["properties"], "content_type").to_pylist(),
    }
    rows = []
    for row in range(count):
        content, size = bodies[row]
        preview, is_text = preview_of(content, size)
        short = {name: _short(each[row]) for name, each in texts.items()}
        rows.append(
            Row(
                int(records.offsets[row]), int(records.timestamps[row]), preview=preview, is_text=is_text,
                size=size, **short,
            )
        )  # fmt: skip
    return rows


def _heads(records: Records) -> Records:
    """Return records whose long values are cut where their bodies begin, so that no body is walked for a key."""
    sizes = records.value_ends - records.value_starts
    ends = records.value_ends.copy()
    for row in np.flatnonzero(sizes > _LONG_BYTES).tolist():
        ends[row] = records.value_starts[row] + head_size(records.value(row))
    return replace(records, value_ends=ends)


def _beginnings(records: Records) -> list[tuple[bytes | None, int]]:
    """Return the beginning of each record's value, None without a body, and the value's size."""
    most = 4 * _SHOWN + 4
    sizes = records.value_ends - records.value_starts
    found: dict[int, tuple[bytes | None, int]] = {}
    for row in np.flatnonzero(sizes > _LONG_BYTES).tolist():  # one by one: a long value may be much work to decode
        body = message_of(records.value(row), most).body
        found[row] = (None, 0) if body is None else (body.content, body.size)
    others = np.flatnonzero(sizes <= _LONG_BYTES)
    values = message_columns_of(records.take(others), ("value",))["value"]
    lengths = pc.fill_null(pc.binary_length(values), 0).to_pylist()
    cut = pc.binary_slice(values, 0, most).to_pylist()
    found.update(zip(others.tolist(), zip(cut, lengths, strict=True), strict=True))
    return [found[row] for row in range(len(records))]


def _short(text: str | None) -> str | None:
    return None if text is None else one_visible_line(text, _SHOWN)


def preview_of(content: bytes | None, size: int) -> tuple[str | None, bool]:
    """Return the beginning of a value on one line, and whether it is text.

    Args:
        content: the beginning of the value; None for an event without a body.
        size: the bytes of the value.
    """
    if content is None:
        return None, True
    text = text_of(content, cut=size > len(content))
    if text is not None:
        line = one_visible_line(text, _SHOWN)
        return line + (CUT if size > len(content) and not line.endswith(CUT) else ""), True
    return content[:_HEX_SHOWN].hex(" ") + (f" {CUT}" if size > _HEX_SHOWN else ""), False
