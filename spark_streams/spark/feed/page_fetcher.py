"""Fetches one partition ahead of the micro-batches, and writes its lines to the spool; a ``FetchPool`` gives it turns.

It requests page after page from its cursor on. At the current end of the partition it asks again after the poll
interval, or waits in a long response (``stream``) for events if the feed offers that. Where the feed's list of
partitions has their end cursors, one request for the list shows which of thousands have more, and the others rest. It
stops reading ahead when enough events or bytes wait, also in the middle of a response. A running query fetches nothing
twice.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Final

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.feed import Lines
from spark_streams.client.feed.client import FEED_BACKOFF, FeedClient
from spark_streams.client.feed.http import Expired
from spark_streams.client.feed.range_reader import BEGINNING, EMPTY_RESPONSES
from spark_streams.client.feed.row_decoder import FirstMatch
from spark_streams.client.retry import Attempts
from spark_streams.errors import SparkStreamsError
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.spark.feed.fetch_pool import FetchPool
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.feed.spool_writer import SpoolWriter

_log = logging.getLogger(__name__)

QUIET_RESPONSES: Final = 10
"""Consecutive responses without events that count as the current end, although each had another cursor."""
MOVING_S: Final = 0.1
"""Pause in seconds after each of those: a filtered feed's cursor may pass events that do not match, or only time."""
LONG_POLL_MS: Final = 20_000
"""Milliseconds that a response may wait for events; gateways cut responses of more than about half a minute."""
REST_S: Final = 30.0
"""Seconds until the next request for a partition that is read to the end cursor of the list; sooner if that changes."""


@dataclass(eq=False, repr=False)
class PageFetcher:
    """Fetches one partition.

    Args:
        options: of the stream.
        policy: raises or warns when the feed has expired a cursor; after a warning it reads the partition from its
            beginning.
        pool: gives it turns.
        writer: writes its files.
        partition: the partition's id.
        cursor: the cursor after which reading continues; it moves on with what is fetched.
        read_ahead_bytes: bytes that may wait to be planned, about.
        stops: cursors to stop at, or at the current end of the partition; None for no end. A closed partition is read
            to its own end.
        begins_at: drops the lines before the first wanted event; None drops nothing.
    """

    options: FeedSourceOptions
    policy: LossPolicy
    pool: FetchPool
    writer: SpoolWriter
    partition: int
    cursor: str
    _: KW_ONLY
    read_ahead_bytes: int
    stops: tuple[str, ...] | None
    begins_at: FirstMatch | None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._client: FeedClient | None = None
        self._attempts = Attempts(FEED_BACKOFF)
        self._empty = 0
        self._long_polls = False
        self._closed_with: tuple[str, ...] | None = None
        self._empty_since_closed = 0
        self._told_end: str | None = None
        self._rests = False
        self.fault: SparkStreamsError | None = None
        """The error that retries did not help against."""
        self.started = False
        """Whether it has begun to have turns."""
        self.idle = False
        """Whether it is at the current end: the last response had no events, or waits for more."""
        self.finished = False
        """Whether the partition is closed and fully fetched."""
        self.at_stop = False
        """Whether it has reached one of ``stops``."""
        self.full = False
        """Whether it waits until some fetched events are planned."""
        self._look()

    # --- the interface to the planner

    def start(self) -> None:
        """Begin to fetch."""
        self.started = True
        self.pool.add(self)

    def is_alive(self) -> bool:
        """Return whether it fetches, or will: it has begun and not ended."""
        return self.started and not self._ended.is_set()

    def long_polls(self) -> None:
        """Wait for events in long responses from now on."""
        with self._changed:
            if self._long_polls:
                return
            self._long_polls = True
            self._changed.notify_all()
        if self.idle:
            self.pool.wake(self)

    def closed(self, last_cursor: str | None) -> None:
        """Note that the partition gets no more events, and its last cursor, None where the feed does not tell."""
        with self._changed:
            if self._closed_with is not None:
                return
            self._closed_with = () if last_cursor is None else (last_cursor,)
            self._empty_since_closed = 0
            self._look()
            rested, self._rests = self._rests, False
        if rested:
            self.pool.wake(self)

    def told_end(self, cursor: str | None) -> None:
        """Note the cursor of the partition's end, as the feed told it just now; None where it does not tell it."""
        with self._changed:
            self._told_end = cursor
            has_more = self._rests and cursor != self.cursor
            if has_more:
                self._rests = self.idle = False  # so that the planner waits for the new events
        if has_more:
            self.pool.wake(self)

    def busy(self) -> bool:
        """Return whether the planner should wait for it, as it fetches events that are already there."""
        with self._changed:
            if not self.is_alive() or self.full or self.finished or self.at_stop:
                return False
            return not self.idle or self.stops is not None or self._closed_with is not None

    def waiting(self) -> int:
        """Return the number of events that are not planned yet."""
        return self.writer.waiting_events

    def wait_for_change(self, seconds: float) -> None:
        """Return at the next change of state, or after ``seconds``."""
        with self._changed:
            self._changed.wait(seconds)

    def plan(self, most_events: int | None, most_bytes: int, most_at_least: int | None = None) -> PlannedPages | None:
        """Return the pages of the next micro-batch; see ``SpoolWriter.plan``."""
        taken = self.writer.plan(most_events, most_bytes, most_at_least)
        with self._changed:
            was_full, self.full = self.full, self.full and not self._has_room(events=True)
            self._changed.notify_all()
        if was_full and not self.full:
            self.pool.wake(self)
        return taken

    def stop(self) -> None:
        """Make it end soon: it aborts the current request."""
        self._stopping.set()
        with self._changed:
            if self._client is not None:
                self._client.abort()
        self.writer.close()
        with self._changed:
            self._changed.notify_all()
        self.pool.wake(self)

    # --- its turns

    def turn(self, client: Callable[[], FeedClient]) -> float | None:
        """Make a request; see ``Fetcher.turn``."""
        seconds: float | None = None
        try:
            seconds = None if self._over() else self._turn(client)
        except SparkStreamsError as fault:
            self.fault = fault
        except Exception as fault:  # a defect: the query must not wait for ever
            _log.exception("partition %d", self.partition)
            self.fault = SparkStreamsError(f"partition {self.partition}: {fault!r}")
        if seconds is None:
            self._ended.set()
        with self._changed:
            self._changed.notify_all()
        return seconds

    def _turn(self, connected: Callable[[], FeedClient]) -> float | None:
        with self._changed:
            self._rests = False
            self.full = not self._has_room(events=True)
            if self.full:
                return math.inf
        client = connected()
        with self._changed:
            if self._stopping.is_set():
                return None
            self._client = client
        waits = LONG_POLL_MS if self._long_polls and self.idle and self._closed_with is None else None
        began = time.monotonic()
        try:
            pause_s = self._response(client, waits)
        except Expired as fault:
            if self.cursor == BEGINNING:
                raise
            self.policy.report(str(self.partition), f"after cursor '{self.cursor}'", str(fault))
            self._start_over()
            return 0.0
        except SparkStreamsError as fault:
            if self._stopping.is_set():
                return None
            pause_s = self._attempts.pause_s(fault)
            _log.info("%s; trying again in %.1f s", fault, pause_s)
            return pause_s
        finally:
            with self._changed:
                self._client = None
        if self._over():
            return None
        if waits is not None:
            # A feed that ignores 'stream' answers at once.
            return max(0.0, pause_s - (time.monotonic() - began))
        if self._long_polls and self.idle:
            return 0.0
        with self._changed:
            open_ended = self.stops is None and self._closed_with is None
            self._rests = self.idle and open_ended and self._told_end == self.cursor
            return max(REST_S, pause_s) if self._rests else pause_s

    def _start_over(self) -> None:
        """Continue from the partition's beginning; the feed may be another one now, whose partition is open."""
        with self._changed:
            self.cursor = BEGINNING
            self._closed_with = None
            self._empty = self._empty_since_closed = 0
            self.idle = False

    def _over(self) -> bool:
        return self._stopping.is_set() or self.finished or self.at_stop

    def _response(self, client: FeedClient, waits: int | None) -> float:
        """Fetch one response, and return the pause before the next one, in seconds."""
        requested, stops = self.cursor, self.stops or ()
        events = 0
        closed_before = self._closed_with is not None
        try:
            with nullcontext() if waits is None else self.pool.not_fetching():
                for lines in client.lines(self.partition, requested, stops, stream_ms=waits):
                    events += lines.count
                    if self.begins_at is not None:
                        lines = self.begins_at.take(lines)
                    before = self.cursor
                    self._take(lines)
                    # A long response has sent all events there are; more may come at any time. In another response more
                    # may follow; but at the current end a checkpoint alone does not mean that there is more.
                    self.idle = waits is not None or (self.idle and not events)
                    if len(lines.cursors) and (int(lines.covered[-1]) or self.cursor != before):
                        self._attempts.progressed()
                    if self._stopping.is_set() or (len(lines.cursors) and self.cursor in stops):
                        break
                    self._wait_for_room(fetches=waits is None)
        finally:
            # Checkpoints of the next response do not cover lines that no checkpoint of this response covers.
            self.writer.drop_uncovered()
            if self.begins_at is not None:
                self.begins_at.drop_uncovered()
        with self._changed:
            self._attempts.progressed()
            self._empty = 0 if events else self._empty + 1
            same = self.cursor == requested
            self.idle = not events and (same or self._empty >= QUIET_RESPONSES)
            if closed_before:
                self._empty_since_closed = self._empty_since_closed + 1 if not events and same else 0
            self._look(ended=not events and (same or self._empty >= EMPTY_RESPONSES))
            self._changed.notify_all()
            if not self.idle:
                return 0.0
            poll_s = self.options.poll_interval_ms / 1_000
            return poll_s if same else min(poll_s, MOVING_S)

    def _look(self, *, ended: bool = False) -> None:
        """Update whether the end of a closed partition, or one of ``stops``, was reached."""
        if self._closed_with is not None:
            self.finished = self.cursor in self._closed_with or self._empty_since_closed >= 2
            self.at_stop = self.stops is not None and self.finished
        elif self.stops is not None:
            self.at_stop = ended or self.at_stop or self.cursor in self.stops

    def _take(self, lines: Lines) -> None:
        cursor = lines.cursors[-1].as_py() if len(lines.cursors) else self.cursor
        if not self.writer.take(lines, moved=cursor != self.cursor):
            return  # stopped
        with self._changed:
            self.cursor = cursor
            self._changed.notify_all()

    def _has_room(self, *, events: bool) -> bool:
        most, least = self.options.max_offsets_per_trigger, self.options.min_offsets_per_trigger
        if events and most is not None and self.writer.waiting_events >= max(most, least or 0):
            return False
        return self.writer.waiting_bytes < self.read_ahead_bytes

    def _wait_for_room(self, *, fetches: bool) -> None:
        """Wait, within a page, while enough bytes wait to be planned; other fetchers may fetch meanwhile.

        Only bytes count here: a page has an end, and the feed may not wait long before it sends the rest.

        Args:
            fetches: whether this fetcher counts among those that fetch.
        """
        with self._changed:
            if self._has_room(events=False):
                return
            self.full = True
            self._changed.notify_all()
        with self.pool.not_fetching() if fetches else nullcontext(), self._changed:
            while not self._stopping.is_set() and not self._has_room(events=False):
                self._changed.wait(1.0)
            self.full = False
