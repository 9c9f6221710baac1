"""Who waits for a partition's next append, and how it reaches them on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from spark_streams.log import Partition

__all__ = ["AppendWaiters"]


class AppendWaiters:
    """Functions of the loop that wait for the next append to a partition.

    Args:
        partition: of the log.
        loop: where the functions are called.

    """

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self._partition = partition
        self._loop = loop
        self._functions: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self._scheduled = False

    def add(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called on the loop after the next append; once, however many there are."""
        if not self._functions:
            self._partition.add_listener(self._appended)
        self._functions.add(wake)

    def remove(self, wake: Callable[[], None]) -> None:
        """Take back ``add``."""
        if wake in self._functions:
            self._functions.discard(wake)
            if not self._functions:
                self._partition.remove_listener(self._appended)

    def clear(self) -> None:
        """Forget all."""
        if self._functions:
            self._functions.clear()
            self._partition.remove_listener(self._appended)

    def _appended(self) -> None:
        # Called in the appending thread, which may be any: one call on the loop for many appends.
        with self._lock:
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            self._scheduled = False  # the loop has ended: nobody waits any more

    def _wake(self) -> None:
        with self._lock:
            self._scheduled = False
        woken, self._functions = self._functions, set()
        if woken:
            self._partition.remove_listener(self._appended)
        for wake in woken:
            wake()
