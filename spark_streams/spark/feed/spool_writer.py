"""The writer of one fetcher's spool files: events that checkpoints cover, and events that wait for their checkpoint.

A file has only events that a checkpoint covers, so that it can be finished at any time. The writer holds events after
the last checkpoint back; many of them go to a separate file, which has no checkpoint until theirs comes.

The fetcher's thread writes, and the planner's thread takes pages. A slow file system delays the planner only where it
needs the same file that is being written.
"""

from __future__ import annotations

import threading
from typing import Final

import pyarrow as pa

from spark_streams.client.feed import Lines
from spark_streams.spark.feed.page_file import Checkpoints, PageFile
from spark_streams.spark.feed.pages import Pages, PlannedPages, SpooledFile
from spark_streams.spark.feed.spool import Spool

FILE_BYTES: Final = 32 << 20
"""Size in bytes at which a file is finished, at the next checkpoint."""
HELD_BYTES: Final = 4 << 20
"""Most bytes of events that wait in memory for their checkpoint; more of them are written to a file."""


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
        self._file: PageFile | None = None
        self._name = ""
        self._bytes = 0
        self._uncovered = False
        self._held: list[tuple[pa.BinaryArray, pa.StringArray]] = []
        self._held_bytes = 0
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

    def take(self, lines: Lines, *, moved: bool) -> bool:
        """Write the events that a checkpoint covers, and hold the events after the last checkpoint back.

        Args:
            lines: the content of whole lines.
            moved: whether the last checkpoint's cursor differs from the previous one; if not, and there are no events,
                nothing is written.

        Returns:
            False if the writer is closed; it did nothing then.
        """
        with self._writing:
            if self._closed:
                return False
            covered = 0
            if len(lines.cursors):
                covered = int(lines.covered[-1])
                if lines.count or self._held or self._uncovered or moved:
                    self._write(lines)
            if lines.count > covered:
                self._held.append(lines.events(covered, lines.count))
                self._held_bytes += self._held[-1][0].nbytes
                if self._held_bytes >= HELD_BYTES:
                    self._write_held()
        return True

    def drop_uncovered(self) -> None:
        """Drop the events that no checkpoint of a response covers, as those of the next one do not cover them."""
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

    def _write(self, lines: Lines) -> None:
        file = self._opened()
        self._put_held(file)
        ends, totals = lines.ends + self._bytes, lines.covered + file.events
        file.add(*lines.events(0, int(lines.covered[-1])))
        with self._counting:
            self._blocks.append(Checkpoints(ends, totals, lines.cursors))
        self._bytes = int(ends[-1])
        self._uncovered = False
        if file.size >= FILE_BYTES:
            self._finish_file()

    def _write_held(self) -> None:
        if not self._uncovered:
            self._finish_file()
        self._put_held(self._opened())
        self._uncovered = True

    def _put_held(self, file: PageFile) -> None:
        for held in self._held:
            file.add(*held)
        self._bytes += self._held_bytes
        self._forget_held()

    def _forget_held(self) -> None:
        self._held, self._held_bytes = [], 0

    def _opened(self) -> PageFile:
        """Return the current file, or a new one."""
        if self._file is None:
            self._name = f"{self._prefix}-{self._number}.events"
            self._number += 1
            self._file = self._spool.writer(self._name)
            with self._counting:
                self._blocks = []
            self._bytes = 0
        return self._file

    def _finish_file(self) -> None:
        """Close the current file, and add it to the pages if it has a checkpoint; else remove it."""
        file, self._file = self._file, None
        if file is None:
            return
        checkpoints = Checkpoints.joined(self._blocks) if self._blocks else None
        file.finish(checkpoints)
        if checkpoints is None:
            self._spool.remove([self._name])
            return
        with self._counting:
            self._blocks = []
            self._pages.add(SpooledFile(self._name, checkpoints))
