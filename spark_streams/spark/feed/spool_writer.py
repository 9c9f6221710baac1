"""The writer of one fetcher's spool files: lines that checkpoints cover, and lines that wait for their checkpoint.

A file has only lines that a checkpoint covers, so that it can be finished at any time. The writer holds lines after the
last checkpoint back; many of them go to a separate file, which has no checkpoint until theirs comes.

The fetcher's thread writes, and the planner's thread takes pages. A slow file system delays the planner only where it
needs the same file that is being written.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from spark_streams.client.feed import LinePlaces, Lines
from spark_streams.spark.feed.page_index import PageIndex
from spark_streams.spark.feed.pages import Checkpoints, Pages, PlannedPages, SpooledFile
from spark_streams.spark.feed.spool import PageWriter, Spool

FILE_BYTES: Final = 32 << 20
"""Size in bytes at which a file is finished, at the next checkpoint."""
HELD_BYTES: Final = 4 << 20
"""Most bytes of lines that wait in memory for their checkpoint; more of them are written to a file."""


class SpoolWriter:
    """Writes the pages of one partition; the fetcher's and the planner's thread use it.

    Args:
        spool: the spool to write to.
        prefix: prefix of the names of its files.
    """

    def __init__(self, spool: Spool, prefix: str) -> None:
        self._spool = spool
        self._prefix = prefix
        self._writing = threading.Lock()
        """Lock, held while a file is written or finished; ``_counting`` guards ``_pages`` and ``_blocks`` instead."""
        self._writer: PageWriter | None = None
        self._name = ""
        self._events = 0
        self._uncovered = False
        self._index = PageIndex()
        self._held: list[tuple[bytes, LinePlaces | None]] = []
        self._held_bytes = 0
        self._held_events = 0
        self._number = 0
        self._closed = False
        self._counting = threading.Lock()
        """Lock, held briefly and never during a write; taken after ``_writing``."""
        self._pages = Pages()
        self._blocks: list[Checkpoints] = []
        """The checkpoints of each block of the current file; it changes only with both locks held."""

    @property
    def waiting_events(self) -> int:
        """Number of events that are not planned yet."""
        with self._counting:
            return self._pages.events + (int(self._blocks[-1].events[-1]) if self._blocks else 0)

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that are not planned yet."""
        with self._counting:
            return self._pages.bytes + (int(self._blocks[-1].ends[-1]) if self._blocks else 0)

    def close(self) -> None:
        """Write nothing more; written pages can still be planned."""
        with self._writing:
            self._closed = True

    def take(self, block: bytes, lines: Lines, *, moved: bool) -> bool:
        """Write the lines that a checkpoint covers, and hold the lines after the last checkpoint back.

        Args:
            block: whole lines.
            lines: the content of the lines.
            moved: whether the last checkpoint's cursor differs from the previous one; if not, and there are no lines,
                nothing is written.

        Returns:
            False if the writer is closed; it did nothing then.
        """
        with self._writing:
            if self._closed:
                return False
            whole = int(lines.ends[-1]) if len(lines.cursors) else 0
            left = lines.count
            if whole:
                if lines.count or self._held or self._uncovered or moved:
                    self._write(block[:whole], lines)
                left -= int(lines.covered[-1])
            if left:
                self._held.append((block[whole:], _part(lines.places, whole, len(block))))
                self._held_bytes += len(block) - whole
                self._held_events += left
                if self._held_bytes >= HELD_BYTES:
                    self._write_held()
        return True

    def drop_uncovered(self) -> None:
        """Drop the lines that no checkpoint of a response covers; the next response's checkpoints do not cover them."""
        with self._writing:
            self._forget_held()
            if self._uncovered:
                self._uncovered = False
                self._finish_file()

    def plan(self, most_events: int | None, most_bytes: int, most_at_least: int | None = None) -> PlannedPages | None:
        """Finish the current file, if possible, and return the pages of the next micro-batch; see ``Pages.plan``."""
        with self._writing:
            if not self._uncovered:
                self._finish_file()
        with self._counting:
            return self._pages.plan(most_events, most_bytes, most_at_least)

    # --- with ``_writing`` held

    def _write(self, block: bytes, lines: Lines) -> None:
        writer = self._opened()
        self._put_held(writer)
        totals = np.asarray(lines.covered, dtype=np.int64) + self._events + self._held_events
        self._forget_held()
        ends = np.asarray(lines.ends, dtype=np.int64) + writer.size
        self._put(writer, block, _part(lines.places, 0, len(block)))
        with self._counting:
            self._blocks.append(Checkpoints(ends, totals, lines.cursors))
        self._events = int(totals[-1])
        self._uncovered = False
        if writer.size >= FILE_BYTES:
            self._finish_file()

    def _write_held(self) -> None:
        if not self._uncovered:
            self._finish_file()
        self._put_held(self._opened())
        self._events += self._held_events
        self._uncovered = True
        self._forget_held()

    def _put_held(self, writer: PageWriter) -> None:
        for held, places in self._held:
            self._put(writer, held, places)

    def _put(self, writer: PageWriter, block: bytes, places: LinePlaces | None) -> None:
        if places is not None:
            self._index.add(writer.size, block, places)
        writer.write(block)

    def _forget_held(self) -> None:
        self._held, self._held_bytes, self._held_events = [], 0, 0

    def _opened(self) -> PageWriter:
        """Return the current file, or a new one."""
        if self._writer is None:
            self._name = f"{self._prefix}-{self._number}.ndjson"
            self._number += 1
            self._writer = self._spool.writer(self._name)
            with self._counting:
                self._blocks = []
            self._events = 0
            self._index = PageIndex()
        return self._writer

    def _finish_file(self) -> None:
        """Close the current file, and add it to the pages if it has a checkpoint; else remove it."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self._blocks:
            writer.close()
            self._spool.remove([self._name])
            return
        writer.write(self._index.to_bytes())
        writer.close()
        file = SpooledFile(self._name, Checkpoints.joined(self._blocks))
        with self._counting:
            self._blocks = []
            self._pages.add(file)


def _part(places: LinePlaces | None, start: int, stop: int) -> LinePlaces | None:
    return None if places is None else places.between(start, stop)
