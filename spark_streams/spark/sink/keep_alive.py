"""A thread that serves a sink's connection while the task waits for its next rows.

A peer closes a connection that is silent for longer than its idle-time-out (AMQP) or two heartbeats (RabbitMQ), and
Spark may compute for minutes between two batches of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from spark_streams.errors import SparkStreamsError

KEEP_ALIVE_S: Final = 1.0
"""Seconds between two services of an idle connection; peers' idle-time-outs and heartbeats are tens of seconds."""


class KeepAlive:
    """The thread, and the lock that the thread and the task take in turns.

    Args:
        serve: serves the connection without waiting; the thread calls it.
    """

    def __init__(self, serve: Callable[[], object]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._fault: SparkStreamsError | None = None
        self._thread = threading.Thread(target=self._run, name="spark-streams-keep-alive", daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the thread from the connection while the task uses it.

        Raises:
            SparkStreamsError: the connection failed in the thread, which then stopped serving it.
        """
        with self._lock:
            if self._fault is not None:
                raise self._fault
            yield

    def stop(self) -> None:
        """End the thread, and return when it has ended."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(KEEP_ALIVE_S):
            with self._lock:
                try:
                    self._serve()
                except SparkStreamsError as fault:
                    self._fault = fault
                    return
