"""A thread that fetches one partition ahead of the micro-batches, and writes what comes to the spool.

It asks for page after page from its cursor on; when it has come to the end of what there is, it asks again after the
poll interval, or, where the feed offers it, waits in a long response (``stream``) for what comes. It stops reading
ahead when enough waits, in the middle of a response too. Nothing that it has fetched is fetched again by this query
while it runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from spark_streams.client.feed import Lines
from spark_streams.client.feed.client import PATIENT, FeedClient, pause_for
from spark_streams.client.feed.http import Expired
from spark_streams.client.feed.range_reader import BEGINNING, EMPTY_RESPONSES, first_of, until
from spark_streams.client.feed.row_decoder import FirstMatch
from spark_streams.client.retry import Attempts
from spark_streams.errors import SparkStreamsError
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.feed.spool import Spool
from spark_streams.spark.feed.spool_writer import SpoolWriter

_log = logging.getLogger(__name__)

QUIET_RESPONSES: Final = 10
"""So many responses in a row without events pass for the end for now, though each had another cursor."""
MOVING_S: Final = 0.1
"""Pause after each of those: a filtered feed may move on through events that do not match, or its clock only."""
LONG_POLL_MS: Final = 20_000
"""How long a response may wait for events; gateways cut what takes longer than half a minute or so."""


class PageFetcher(threading.Thread):
    """Fetches one partition.

    Args:
        connect: opens a client.
        spool: where to.
        partition: the partition's id.
        cursor: reading goes on behind it.
        file_prefix: what the names of its files begin with.
        read_ahead_bytes: how much may wait, about.
        read_ahead_events: no further page is asked for while as many wait; None for no limit.
        poll_interval_ms: pause between two questions when there is nothing new.
        slots: how many followers may fetch at a time.
        lost: is told of a cursor that the feed has nothing after any more, and why; it raises if that is to fail the
            query. Otherwise the partition is read from its beginning.
        start: drops what comes before the first event that is wanted; None for nothing.
    """

    def __init__(
        self,
        connect: Callable[[], FeedClient],
        spool: Spool,
        partition: int,
        cursor: str,
        *,
        file_prefix: str,
        read_ahead_bytes: int,
        read_ahead_events: int | None,
        poll_interval_ms: int,
        slots: threading.Semaphore,
        lost: Callable[[str, str], None],
        start: FirstMatch | None = None,
    ) -> None:
        super().__init__(name=f"feed-partition-{partition}", daemon=True)
        self.partition = partition
        self.cursor = cursor
        self._connect = connect
        self._read_ahead_bytes = read_ahead_bytes
        self._read_ahead_events = read_ahead_events
        self._poll_s = poll_interval_ms / 1_000
        self._slots = slots
        self._lost = lost
        self._start_at = start
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._client: FeedClient | None = None
        self._written = SpoolWriter(spool, f"{file_prefix}-{partition}")
        self._empty = 0
        self._long_polls = False
        self._closed_with: tuple[str, ...] | None = None
        self._stops: tuple[str, ...] | None = None
        self._empty_since_closed = 0
        self.fault: SparkStreamsError | None = None
        self.idle = False
        """Whether this is the end of what there is now: the last response brought nothing, or waits for more."""
        self.finished = False
        """Whether the partition is closed and fully fetched."""
        self.at_stop = False
        """Whether it has come to the end that ``stop_at`` set."""
        self.full = False
        """Whether it waits until some of what it has fetched is planned."""

    # --- what the planner calls

    def long_polls(self) -> None:
        """Wait in long responses for what comes, from now on."""
        with self._changed:
            self._long_polls = True
            self._changed.notify_all()

    def closed(self, last_cursor: str | None) -> None:
        """Note that no event will be added to the partition any more, and its last cursor, where that is told."""
        with self._changed:
            if self._closed_with is None:
                self._closed_with = () if last_cursor is None else (last_cursor,)
                self._empty_since_closed = 0
                self._look()

    def stop_at(self, cursors: tuple[str, ...]) -> None:
        """Stop at one of these cursors, or at the end of what there is; to be called before ``start``.

        A closed partition has an end of its own, and is read up to that.
        """
        with self._changed:
            self._stops = cursors
            self._look()

    def busy(self) -> bool:
        """Return whether it is worth waiting for: it fetches what there is already."""
        with self._changed:
            if not self.is_alive() or self.full or self.finished or self.at_stop:
                return False
            return not self.idle or self._stops is not None or self._closed_with is not None

    def waiting(self) -> int:
        """Return how many events wait to be planned."""
        return self._written.waiting_events

    def wait_for_change(self, seconds: float) -> None:
        """Return when something has come, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def cut(self, most_events: int | None, most_bytes: int, most_at_least: int | None = None) -> PlannedPages | None:
        """Take what the next micro-batch gets, as ``SpoolWriter.cut``."""
        taken = self._written.cut(most_events, most_bytes, most_at_least)
        with self._changed:
            self.full = self.full and not self._has_room(events=True)
            self._changed.notify_all()
        return taken

    def stop(self) -> None:
        """End the thread, soon: what it waits for is broken off."""
        self._stopping.set()
        if self._client is not None:
            self._client.abort()
        self._written.close()
        with self._changed:
            self._changed.notify_all()

    # --- the thread

    def run(self) -> None:
        """Fetch until stopped; what goes wrong for good is in ``fault``."""
        attempts = Attempts(PATIENT)
        try:
            with self._connect() as client:
                self._client = client
                while not self._over():
                    waits = LONG_POLL_MS if self._long_polls and self.idle and self._closed_with is None else None
                    began = time.monotonic()
                    try:
                        pause_s = self._response(client, attempts, waits)
                    except Expired as fault:
                        self._drop_uncovered()
                        if self.cursor == BEGINNING:
                            raise
                        self._lost(self.cursor, str(fault))
                        self._start_over()
                        continue
                    except SparkStreamsError as fault:
                        self._drop_uncovered()
                        if self._stopping.is_set():
                            break
                        pause_for(fault, attempts, self._stopping.wait)
                        continue
                    if waits is not None:
                        # A feed that takes no notice of 'stream' answers at once.
                        pause_s -= time.monotonic() - began
                    elif self._long_polls and self.idle:
                        continue
                    if pause_s > 0:
                        self._pause(pause_s, ended_by_long_polls=waits is None)
        except SparkStreamsError as fault:
            self.fault = fault
        except Exception as fault:  # a defect: the query must not wait for ever
            _log.exception("partition %d", self.partition)
            self.fault = SparkStreamsError(f"partition {self.partition}: {fault!r}")
        with self._changed:
            self._changed.notify_all()

    def _start_over(self) -> None:
        """Go on from the partition's beginning; the feed may be another one now, in which it is open again."""
        with self._changed:
            self.cursor = BEGINNING
            self._closed_with = None
            self._empty = self._empty_since_closed = 0
            self.idle = False

    def _pause(self, seconds: float, *, ended_by_long_polls: bool) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping.is_set() or (ended_by_long_polls and self._long_polls and self.idle), seconds
            )

    def _over(self) -> bool:
        return self._stopping.is_set() or self.finished or self.at_stop

    def _response(self, client: FeedClient, attempts: Attempts, waits: int | None) -> float:
        """Fetch one response; return how long to pause before the next one, in seconds."""
        asked = self.cursor
        events = 0
        closed_before = self._closed_with is not None
        searching = self._start_at is not None and not self._start_at.found
        self._wait_for_room(slot=False, events=True)
        if self._stopping.is_set():
            return 0.0
        if waits is None:
            self._slots.acquire()
        try:
            for block, lines in client.lines(self.partition, asked, stream_ms=waits, values=searching):
                stop = first_of(lines, self._stops or ())
                if stop is not None:
                    lines = until(lines, stop)
                    block = block[: int(lines.ends[-1])]
                events += lines.count
                if searching:
                    assert self._start_at is not None and client.dialect is not None
                    block, lines = self._start_at.take(block, lines, client.dialect)
                before = self.cursor
                self._take(block, lines)
                # In a long response this is all there is; more may come at any time. In another, more may follow, but
                # where there was nothing more, a checkpoint alone is no sign of it.
                self.idle = waits is not None or (self.idle and not events)
                if len(lines.cursors) and (int(lines.covered[-1]) or self.cursor != before):
                    attempts.progressed()
                if self._stopping.is_set() or stop is not None:
                    break
                self._wait_for_room(slot=waits is None)
        finally:
            if waits is None:
                self._slots.release()
        self._drop_uncovered()
        with self._changed:
            attempts.progressed()
            self._empty = 0 if events else self._empty + 1
            same = self.cursor == asked
            self.idle = not events and (same or self._empty >= QUIET_RESPONSES)
            if closed_before:
                self._empty_since_closed = self._empty_since_closed + 1 if not events and same else 0
            self._look(ended=not events and (same or self._empty >= EMPTY_RESPONSES))
            self._changed.notify_all()
            if not self.idle:
                return 0.0
            return self._poll_s if same else min(self._poll_s, MOVING_S)

    def _look(self, *, ended: bool = False) -> None:
        """Find out whether the end was reached that a closed partition has, or that was set."""
        if self._closed_with is not None:
            self.finished = self.cursor in self._closed_with or self._empty_since_closed >= 2
            self.at_stop = self._stops is not None and self.finished
        elif self._stops is not None:
            self.at_stop = ended or self.at_stop or self.cursor in self._stops

    def _take(self, block: bytes, lines: Lines) -> None:
        cursor = lines.cursors[-1].as_py() if len(lines.cursors) else self.cursor
        if not self._written.take(block, lines, moved=cursor != self.cursor):
            return  # stopped
        with self._changed:
            self.cursor = cursor
            self._changed.notify_all()

    def _has_room(self, *, events: bool) -> bool:
        if events and self._read_ahead_events is not None and self._written.waiting_events >= self._read_ahead_events:
            return False
        return self._written.waiting_bytes < self._read_ahead_bytes

    def _wait_for_room(self, *, slot: bool, events: bool = False) -> None:
        """Wait while enough waits to be planned; others may fetch meanwhile.

        Args:
            slot: whether it fetches, and lets others do so.
            events: whether their number counts, too. In the middle of a page only bytes do: a page has an end, and the
                feed may not wait for long with the rest of it.
        """
        with self._changed:
            if self._has_room(events=events):
                return
            self.full = True
            self._changed.notify_all()
        if slot:
            self._slots.release()
        try:
            with self._changed:
                while not self._stopping.is_set() and not self._has_room(events=events):
                    self._changed.wait(1.0)
                self.full = False
        finally:
            if slot:
                self._slots.acquire()

    def _drop_uncovered(self) -> None:
        """Leave out what no checkpoint of a response covers: the next response's first one does not cover it either."""
        self._written.drop_uncovered()
        if self._start_at is not None:
            self._start_at.drop_uncovered()
