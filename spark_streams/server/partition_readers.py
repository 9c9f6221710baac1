"""Shares the partitions that links and subscriptions read, and wakes those that wait for the next append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_streams.log import Partition


class PartitionReader:
    """A partition that is read by one or more links or subscriptions, and functions that wait for its next append.

    Args:
        partition: of the log.
        loop: where the waiting functions are called.

    Attributes:
        users: how many links or subscriptions read it.
    """

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self.partition = partition
        self.users = 0
        self._loop = loop
        self._functions: set[Callable[[], None]] = set()
        self._scheduled = False

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` on the loop after the next append: once, even if there are several appends."""
        if not self._functions:
            self.partition.add_listener(self._appended)
        self._functions.add(wake)

    def remove_waiter(self, wake: Callable[[], None]) -> None:
        """Undo ``add_waiter``."""
        if wake in self._functions:
            self._functions.discard(wake)
            if not self._functions:
                self.partition.remove_listener(self._appended)

    def _appended(self) -> None:
        # Called in the appending thread, which may be any thread: many appends make one call on the loop, or two.
        if self._scheduled:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            self._scheduled = False  # the loop has ended, so nobody waits any more

    def _wake(self) -> None:
        self._scheduled = False  # first, so that an append from now on schedules another call
        woken, self._functions = self._functions, set()
        if woken:
            self.partition.remove_listener(self._appended)
        for wake in woken:
            wake()


R = TypeVar("R", bound=PartitionReader)


@dataclass(eq=False)
class PartitionReaders(Generic[R]):
    """The readers in use, one for each partition.

    Args:
        loop: the server's.
        make: the class of the readers.
    """

    loop: asyncio.AbstractEventLoop
    make: Callable[[Partition, asyncio.AbstractEventLoop], R]
    _readers: dict[int, R] = field(default_factory=dict, init=False)

    def use(self, partition: Partition) -> R:
        """Return the partition's reader; give it back with ``release``."""
        reader = self._readers.get(id(partition))
        if reader is None:
            reader = self._readers[id(partition)] = self.make(partition, self.loop)
        reader.users += 1
        return reader

    def release(self, reader: R) -> None:
        """Give a reader back, after its waiting functions are removed; the last user drops it, with its cache."""
        reader.users -= 1
        if reader.users == 0:
            del self._readers[id(reader.partition)]
