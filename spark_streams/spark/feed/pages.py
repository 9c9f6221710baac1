"""Fetched pages of a fetcher: files of the spool with their checkpoints, from which micro-batches are planned.

A micro-batch ends at a checkpoint, as reading can continue only there (FeedAPI, "checkpoint command").
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark_streams.spark.feed.page_file import Checkpoints, PageRange


@dataclass
class SpooledFile:
    """A finished file of the spool, and how much of it is planned.

    Args:
        name: the file's name.
        checkpoints: all of its checkpoints.
        start: bytes of lines that are planned.
        planned: number of events that are planned.
    """

    name: str
    checkpoints: Checkpoints
    start: int = 0
    planned: int = 0

    @property
    def end(self) -> int:
        """Bytes of the lines up to the last checkpoint."""
        return int(self.checkpoints.ends[-1])

    @property
    def events(self) -> int:
        """Number of events before the last checkpoint that are not planned yet."""
        return int(self.checkpoints.events[-1]) - self.planned


class PlannedPages(NamedTuple):
    """The pages of one partition for one micro-batch.

    Args:
        ranges: ranges of events, in order.
        events: number of events in them.
        bytes: number of bytes of their lines.
        cursor: cursor of the last checkpoint.
        done: names of files that have nothing for later micro-batches.
        marks: file name to its checkpoints.
    """

    ranges: list[PageRange]
    events: int
    bytes: int
    cursor: str
    done: list[str]
    marks: dict[str, Checkpoints]

    def split(self, count: int) -> list[list[PageRange]]:
        """Return the events in at most ``count`` parts of about as many bytes, which end at checkpoints."""
        out: list[list[PageRange]] = [[]]
        done = 0
        for file, start, stop in self.ranges:
            ends, events, _ = self.marks[file]
            begin, end = (int(np.append(0, ends)[np.searchsorted(events, at, side="right")]) for at in (start, stop))
            while len(out) < count:
                target = begin + max(1, self.bytes * len(out) // count - done)
                at = min(int(np.searchsorted(ends, target)), len(ends) - 1)
                if not start < (cut := int(events[at])) < stop:
                    break
                out[-1].append(PageRange(file, start, cut))
                out.append([])
                done += int(ends[at]) - begin
                start, begin = cut, int(ends[at])
            out[-1].append(PageRange(file, start, stop))
            done += end - begin
        return [part for part in out if part]


class Pages:
    """Finished files, in the order in which they were fetched."""

    def __init__(self) -> None:
        self._files: deque[SpooledFile] = deque()

    def add(self, file: SpooledFile) -> None:
        """Add a finished file."""
        self._files.append(file)

    @property
    def events(self) -> int:
        """Number of events that are not planned yet."""
        return sum(file.events for file in self._files)

    @property
    def bytes(self) -> int:
        """Number of bytes that are not planned yet."""
        return sum(file.end - file.start for file in self._files)

    def plan(self, most_events: int | None, most_bytes: int, most_at_least: int | None = None) -> PlannedPages | None:
        """Remove the pages of the next micro-batch, and return them.

        Args:
            most_events: maximum number of events, None for no limit. The first checkpoint with events is taken even if
                it covers more, except with 0, which takes only cursors.
            most_bytes: the same limit in bytes, roughly.
            most_at_least: most events that a first checkpoint beyond the limit may cover; None for any number.

        Returns:
            The pages, or None when there is not even a checkpoint.
        """
        ranges: list[PageRange] = []
        done: list[str] = []
        marks: dict[str, Checkpoints] = {}
        events = taken_bytes = 0
        cursor: str | None = None
        while self._files:
            file = self._files[0]
            left = None if most_events is None else most_events - events
            must = 0 if events or most_events == 0 else sys.maxsize if most_at_least is None else most_at_least
            at = self._last_within(file, left, most_bytes - taken_bytes, must)
            if at is None:
                break
            ends, totals, cursors = file.checkpoints
            end, total = int(ends[at]), int(totals[at])
            if total > file.planned:
                ranges.append(PageRange(file.name, file.planned, total))
                marks[file.name] = file.checkpoints
            events += total - file.planned
            taken_bytes += end - file.start
            cursor = cursors[at].as_py()
            file.start, file.planned = end, total
            if end < file.end:
                break
            done.append(file.name)
            self._files.popleft()
        return None if cursor is None else PlannedPages(ranges, events, taken_bytes, cursor, done, marks)

    @staticmethod
    def _last_within(file: SpooledFile, most_events: int | None, most_bytes: int, must: int) -> int | None:
        """Return the index of the last checkpoint within the limits, or of the first one with up to ``must`` events."""
        ends, totals, _ = file.checkpoints
        low = int(np.searchsorted(ends, file.start, side="right"))
        fits = int(np.searchsorted(ends, file.start + max(most_bytes, 0), side="right"))
        if most_events is not None:
            fits = min(fits, int(np.searchsorted(totals, file.planned + most_events, side="right")))
        if must and fits < len(ends) and (fits <= low or int(totals[fits - 1]) == file.planned):
            first = int(np.searchsorted(totals, file.planned, side="right"))
            if first == len(ends):
                return first - 1  # no event follows: the cursor moves to the end
            if int(totals[first]) - file.planned <= must:
                return first
        return fits - 1 if fits > low else None
