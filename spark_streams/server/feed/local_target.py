"""Publishes to the log of a data directory on this machine without a server, by the door's own code on an open log.

It holds the directory's lock only while it appends, so several tasks take turns. While a server has the directory open
they wait, and fail after their time-out.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_streams.errors import LogLocked, NotFound, Refused, UnknownStream
from spark_streams.log import ReferenceLog
from spark_streams.log.stream_metadata import METADATA_FILE, folder_name
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.publishing import Published, Publishing
from spark_streams.server.feed.request_bodies import rows_of
from spark_streams.server.http.requests import HttpError

LOOK_AGAIN_S: Final = 0.02
"""Mean pause in seconds before the lock is tried again; random, so that waiting tasks do not stay in step."""


class FeedFolder:
    """One stream of a data directory, for one thread at a time.

    Args:
        data_dir: the directory.
        stream: the stream's name.
        timeout_ms: how long to wait for the directory's lock.
    """

    def __init__(self, data_dir: str, stream: str, timeout_ms: int) -> None:
        self._data_dir = data_dir
        self._stream = stream
        self._timeout_ms = timeout_ms
        self._opened: ExitStack | None = None

    def check(self) -> None:
        """Check that log and stream exist; nothing is opened.

        Raises:
            NotFound: the directory, a log in it, or the stream is not there.
        """
        streams = Path(self._data_dir) / "streams"
        if not streams.is_dir():
            raise NotFound(
                "no log",
                f"there is none in '{self._data_dir}'. Option 'url' is a feed's http(s) address or the data directory "
                "of a log on this machine: make one with spark-streams log create NAME --data-dir DIR",
                f"publish to '{self._stream}'",
            )
        try:
            exists = (streams / folder_name(self._stream) / METADATA_FILE).is_file()
        except ValueError:
            exists = False
        if not exists:
            raise self._not_found()

    def _not_found(self) -> NotFound:
        return NotFound(
            "no such stream",
            "the stream must be there: create it with spark-streams log create NAME --data-dir DIR",
            f"publish to '{self._stream}' in '{self._data_dir}'",
        )

    def publish(self, rows: pa.RecordBatch, reference: str | None, number: int, digest: int) -> Published:
        """Store rows, as a request to publish does; the log stays open until ``rest`` is called.

        Args:
            rows: columns ``value``, ``key`` and ``timestamp``.
            reference: the ``Idempotency-Key``; None stores the rows at each call.
            number: the ``Idempotency-Sequence``.
            digest: the ``Idempotency-Digest``.

        Returns:
            How many rows were appended, how many were stored before, and the highest number of the reference.

        Raises:
            NotFound: no such log or stream.
            LogLocked: another process kept the directory open for too long.
            Refused: the rows cannot be stored; ``condition`` is the door's status.
            CorruptLog: an acknowledged batch fails its check.
        """
        if self._opened is None:
            self.check()
            self._opened = self._open()
        try:
            stream = self._log.stream(self._stream)
            publishing = self._publishing.publish(stream, rows_of(rows), reference, number, digest)
            return self._loop.run_until_complete(publishing)
        except HttpError as refusal:
            raise Refused(
                f"status {refusal.status_code}", refusal.text, f"publish to '{self._stream}' in '{self._data_dir}'"
            ) from None
        except UnknownStream:
            raise self._not_found() from None

    def _open(self) -> ExitStack:
        """Open the log, with a loop of its own for the door's code; return what closes them."""
        with ExitStack() as stack:
            self._log = stack.enter_context(self._log_when_free())
            self._loop = asyncio.new_event_loop()
            stack.callback(self._loop.close)
            self._publishing = Publishing(self._log, FeedConfig().max_publishers, self._loop)
            stack.callback(self._publishing.close)  # before the log, whose state store takes its snapshot
            return stack.pop_all()

    def _log_when_free(self) -> ReferenceLog:
        """Open the log as soon as no other process has it.

        Raises:
            LogLocked: another one has it for longer than the time-out.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                return ReferenceLog(self._data_dir)
            except LogLocked:
                if time.monotonic() > deadline:
                    raise LogLocked(
                        f"the data directory {self._data_dir} was open in another process for the "
                        f"{self._timeout_ms} ms of option 'requestTimeout': if a server has it, give the feed's http "
                        "address in option 'url'; if other tasks or queries do, give them more time"
                    ) from None
                time.sleep(LOOK_AGAIN_S * random.uniform(0.5, 1.5))

    def rest(self) -> None:
        """Force the appended rows to the disk and release the log."""
        opened, self._opened = self._opened, None
        if opened is not None:
            del self._log, self._loop, self._publishing  # so that a closed log takes no memory while this rests
            opened.close()

    close = rest
