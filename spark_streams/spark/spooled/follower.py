"""A thread that fetches one partition ahead of the micro-batches, and writes what comes to the spool.

It asks for page after page from its cursor on; when it has come to the end of what there is, it asks again after the
poll interval, or, where the feed offers it, waits in a long response (``stream``) for what comes. It stops reading
ahead when enough waits. Nothing that it has fetched is fetched again by this query while it runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from spark_streams.client.feed import Lines
from spark_streams.client.feed.feed import PATIENT, FeedClient, pause_for
from spark_streams.client.feed.scan import BEGINNING, EMPTY_RESPONSES
from spark_streams.client.feed.session import Expired
from spark_streams.client.feed.stops import first_of, until
from spark_streams.client.retry import Attempts
from spark_streams.errors import RemoteProtocolError, SparkStreamsError
from spark_streams.spark.spooled.pages import Cut, Pages, SpooledFile
from spark_streams.spark.spooled.spool import PageWriter, Spool

__all__ = ["Follower"]

_log = logging.getLogger(__name__)

FILE_BYTES: Final = 32 << 20
"""A file that is longer is finished at the next checkpoint."""
LONG_POLL_MS: Final = 20_000
"""How long a response may wait for events; gateways cut what takes longer than half a minute or so."""


class Follower(threading.Thread):
    """Fetches one partition.

    Args:
        connect: opens a client.
        spool: where to.
        partition: the partition's id.
        cursor: reading goes on behind it.
        file_prefix: what the names of its files begin with.
        read_ahead_bytes: how much may wait, about.
        poll_interval_ms: pause between two questions when there is nothing new.
        slots: how many followers may fetch at a time.
        lost: is told of a cursor that the feed has nothing after any more, and why; it raises if that is to fail the
            query. Otherwise the partition is read from its beginning.
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
        poll_interval_ms: int,
        slots: threading.Semaphore,
        lost: Callable[[str, str], None],
    ) -> None:
        super().__init__(name=f"feed-partition-{partition}", daemon=True)
        self.partition = partition
        self.cursor = cursor
        self._connect = connect
        self._spool = spool
        self._prefix = file_prefix
        self._read_ahead_bytes = read_ahead_bytes
        self._poll_s = poll_interval_ms / 1_000
        self._slots = slots
        self._lost = lost
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._pages = Pages()
        self._file: SpooledFile | None = None
        self._writer: PageWriter | None = None
        self._events = 0
        self._uncovered = 0
        self._empty = 0
        self._number = 0
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

    # --- what the planner calls

    def long_polls(self) -> None:
        """Wait in long responses for what comes, from now on."""
        self._long_polls = True

    def closed(self, last_cursor: str | None) -> None:
        """Note that no event will be added to the partition any more, and its last cursor, where that is told."""
        with self._changed:
            if self._closed_with is None:
                self._closed_with = () if last_cursor is None else (last_cursor,)
                self._empty_since_closed = 0
                self._look()

    def stop_at(self, cursors: tuple[str, ...]) -> None:
        """Stop at one of these cursors, or at the end of what there is; to be called before ``start``."""
        self._stops = cursors

    def waiting(self) -> int:
        """Return how many events wait to be planned."""
        with self._changed:
            return self._pages.events + (self._file.events if self._file is not None else 0)

    def wait_for_change(self, seconds: float) -> None:
        """Return when something has come, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def cut(self, most_events: int | None, most_bytes: int) -> Cut | None:
        """Take what the next micro-batch gets, as ``Pages.cut``; finishes the file that is being written, if it can."""
        with self._changed:
            if not self._uncovered:
                self._finish_file()
            taken = self._pages.cut(most_events, most_bytes)
            self._changed.notify_all()
            return taken

    def stop(self) -> None:
        """End the thread; it may take until its connection times out."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    # --- the thread

    def run(self) -> None:
        """Fetch until stopped; what goes wrong for good is in ``fault``."""
        attempts = Attempts(PATIENT)
        try:
            with self._connect() as client:
                while not self._over():
                    self._wait_for_room()
                    if self._stopping.is_set():
                        break
                    try:
                        came = self._response(client, attempts)
                    except Expired as fault:
                        self._break_off()
                        if self.cursor == BEGINNING:
                            raise
                        self._lost(self.cursor, str(fault))
                        self.cursor = BEGINNING
                        continue
                    except SparkStreamsError as fault:
                        self._break_off()
                        pause_for(fault, attempts, self._stopping.wait)
                        continue
                    if not came and not self._long_polls:
                        self._stopping.wait(self._poll_s)
        except SparkStreamsError as fault:
            self.fault = fault
        except Exception as fault:  # a defect: the query must not wait for ever
            _log.exception("partition %d", self.partition)
            self.fault = SparkStreamsError(f"partition {self.partition}: {fault!r}")
        with self._changed:
            self._changed.notify_all()

    def _over(self) -> bool:
        return self._stopping.is_set() or self.finished or self.at_stop

    def _response(self, client: FeedClient, attempts: Attempts) -> bool:
        """Fetch one response; return whether it brought events, or may not have been the end."""
        asked = self.cursor
        events = checkpoints = 0
        waits = LONG_POLL_MS if self._long_polls and self.idle and self._closed_with is None else None
        closed_before = self._closed_with is not None
        if waits is None:
            self._slots.acquire()
        try:
            for block in client.fetch(self.partition, asked, stream_ms=waits):
                lines = client.parse(block, self.partition, asked, values=False)
                stop = first_of(lines, self._stops or ())
                if stop is not None:
                    lines = until(lines, stop)
                    block = block[: int(lines.ends[-1])]
                events += lines.count
                checkpoints += len(lines.cursors)
                self._write(block, lines)
                # In a long response this is all there is; more may come at any time.
                self.idle = waits is not None
                attempts.progressed()
                if self._stopping.is_set() or stop is not None:
                    break
        finally:
            if waits is None:
                self._slots.release()
        with self._changed:
            self._drop_uncovered()
            if not checkpoints and not self._stopping.is_set():
                raise RemoteProtocolError(
                    f"{client.describe(self.partition, asked)}: the response has no cursor, and every response must "
                    "have one (FeedAPI, 'checkpoint command')"
                )
            self._empty = 0 if events else self._empty + 1
            same = self.cursor == asked
            self.idle = not events and (same or self._empty >= EMPTY_RESPONSES)
            if closed_before:
                self._empty_since_closed = self._empty_since_closed + 1 if not events and same else 0
            self._look()
            self._changed.notify_all()
        return bool(events) or not (same or self._empty >= EMPTY_RESPONSES)

    def _look(self) -> None:
        """Find out whether the end was reached that a closed partition has, or that was set."""
        if self._closed_with is not None:
            self.finished = self.cursor in self._closed_with or self._empty_since_closed >= 2
        if self._stops is not None:
            self.at_stop = self.idle or self.finished or self.cursor in self._stops

    def _write(self, block: bytes, lines: Lines) -> None:
        with self._changed:
            if self._writer is None or self._file is None:
                name = f"{self._prefix}-{self.partition}-{self._number}.ndjson"
                self._number += 1
                self._writer, self._file = self._spool.writer(name), SpooledFile(name)
                self._events = 0
            base = self._writer.size
            self._writer.write(block)
            covered = int(lines.covered[-1]) if len(lines.cursors) else 0
            ends = np.asarray(lines.ends, dtype=np.int64) + base
            totals = np.asarray(lines.covered, dtype=np.int64) + self._events
            self._file.add(ends, totals, lines.cursors)
            self._events += lines.count
            if len(lines.cursors):
                self.cursor = lines.cursors[-1].as_py()
                self._uncovered = lines.count - covered
            else:
                self._uncovered += lines.count
            if self._writer.size >= FILE_BYTES and not self._uncovered:
                self._finish_file()
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        with self._changed:
            while not self._stopping.is_set() and self._pages.bytes >= self._read_ahead_bytes:
                self._changed.wait(1.0)

    def _break_off(self) -> None:
        with self._changed:
            self._drop_uncovered()

    def _drop_uncovered(self) -> None:
        """Leave out what no checkpoint of a response covers: the next response's first one does not cover it either."""
        if self._uncovered:
            self._uncovered = 0
            self._finish_file()

    def _finish_file(self) -> None:
        """Close the file that is being written, and offer it."""
        writer, file = self._writer, self._file
        if writer is None or file is None:
            return
        self._writer = self._file = None
        writer.close()
        if file.marks:
            self._pages.add(file)
        else:
            self._spool.remove([file.name])
