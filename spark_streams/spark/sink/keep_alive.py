"""A thread that serves a sink's connection while the task waits for its next rows.

A peer drops a connection that is silent for longer than its idle-time-out (AMQP) or two heartbeats (RabbitMQ), and
Spark may well compute for minutes between two batches of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from spark_streams.errors import SparkStreamsError

KEEP_ALIVE_S: Final = 1.0
"""How often an idle connection is served; peers' idle-time-outs and heartbeats are tens of seconds."""


class KeepAlive:
    """The thread, and the lock by which it and the task take turns.

    Args:
        serve: serves the connection without waiting; it is called in the thread.
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
        """Keep the thread away from the connection, which the task uses meanwhile.

        Raises:
            SparkStreamsError: what the thread met since the last time; it serves no more then.
        """
        with self._lock:
            if self._fault is not None:
                raise self._fault
            yield

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
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
