"""Keeps the offsets that named consumers store, in the log's state store, for each incarnation of a stream.

StoreOffset has no answer, and some consumers send one for every message. So offsets are written together, a moment
after they came, or before the answer to a QueryOffset: an offset in an answer survives kill -9. Offsets of a stream
that is gone are removed in the worker thread, a few at a time.

Any user who may write a stream may store under any name on it, as at brokers. A name counts for the user who stored
under it first, and each user may have ``max_stored_offsets`` names, so that nobody fills the disk.

Spec: docs/specifications.md, S-111, S-112.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from spark_streams.errors import LogError
from spark_streams.log import ReferenceLog
from spark_streams.server.counters import logger
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.server.turns import Timer, Worker

NAMESPACE: Final = "rabbitmq-offsets"
WRITE_INTERVAL_S: Final = 0.1
RETRY_S: Final = 1.0
"""Seconds after which a write that the system refused is tried again."""
MAX_WAITING: Final = 1_000
"""The most offsets to write at once, some 4 ms of the loop, and the most that wait while writes fail."""
REMOVED_AT_ONCE: Final = 1_000
"""Offsets to remove at once; nobody else can use the state store meanwhile."""


class StoredOffsets:
    """All stored offsets.

    Args:
        log: the log.
        loop: the server's.
        worker: the worker that removes the offsets of streams that are gone.
        most: the most names that one user may create.
    """

    def __init__(self, log: ReferenceLog, loop: asyncio.AbstractEventLoop, worker: Worker, most: int) -> None:
        self._log = log
        self._loop = loop
        self._worker = worker
        self._removals: set[asyncio.Task[None]] = set()
        self._waiting: dict[tuple[str, str], int] = {}
        self._timer = Timer(loop)
        self._failing = False
        self._most = most
        self._makers: dict[tuple[str, str], str] = {}
        self._made: Counter[str] = Counter()
        known = {stream.incarnation for stream in log.streams()}
        gone: set[str] = set()
        for key, stored in log.state.items(NAMESPACE):
            stream_key, reference = json.loads(key)
            if _incarnation(stream_key) not in known:
                gone.add(_incarnation(stream_key))  # another door deleted the stream while this one was shut
            else:
                self._make((stream_key, reference), stored.partition(b" ")[2].decode())
        for incarnation in gone:
            self.forget(incarnation)

    def _make(self, key: tuple[str, str], user: str) -> None:
        self._makers[key] = user
        self._made[user] += 1

    def store(self, served: Served, reference: str, offset: int, user: str) -> bool:
        """Remember an offset; return whether the user may have it under this name."""
        key = (served.key, reference)
        if key not in self._makers:
            if self._made[user] >= self._most:
                return False
            self._make(key, user)
        if self._failing and len(self._waiting) >= MAX_WAITING and key not in self._waiting:
            return True
        self._waiting[key] = offset
        if len(self._waiting) >= MAX_WAITING and not self._failing:
            self.write()
        elif not self._timer.due:
            self._timer.start(WRITE_INTERVAL_S, self.write)
        return True

    def query(self, served: Served, reference: str) -> int | None:
        """Return the last stored offset, None if there is none; while writes fail, the last one that was written.

        Raises:
            CorruptLog: the state store fails its check.
        """
        waiting = (served.key, reference)
        offset = self._waiting.get(waiting)
        if offset is not None and self._put([waiting]):
            return offset
        stored = self._log.state.get(NAMESPACE, _key(served.key, reference))
        return None if stored is None else int(stored.partition(b" ")[0])

    def write(self) -> None:
        """Write the waiting offsets; those that the system refuses stay waiting."""
        self._timer.stop()
        if self._waiting and not self._put(list(self._waiting)):
            self._timer.start(RETRY_S, self.write)

    def _put(self, chosen: Sequence[tuple[str, str]]) -> bool:
        """Write some of the waiting offsets; return whether the system accepted them."""
        values = {_key(*each): f"{self._waiting[each]} {self._makers.get(each, '')}".encode() for each in chosen}
        try:
            self._log.state.put_all(NAMESPACE, values)
        except OSError as fault:
            if not self._failing:
                logger.error("stored offsets cannot be written down, and are tried again: %s", fault)
            self._failing = True
            return False
        self._failing = False
        for each in chosen:
            del self._waiting[each]
        return True

    def forget(self, incarnation: str) -> None:
        """Begin to remove the offsets of a stream that is gone; the next start removes those that remain at the end."""
        for known in [known for known in self._makers if _incarnation(known[0]) == incarnation]:
            self._made[self._makers.pop(known)] -= 1
        self._waiting = {key: offset for key, offset in self._waiting.items() if _incarnation(key[0]) != incarnation}
        removal = self._loop.create_task(self._remove(incarnation))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, incarnation: str) -> None:
        prefix = json.dumps([f"{incarnation}/"])[:-2]
        try:
            while await self._worker.step(partial(self._log.state.delete_some, NAMESPACE, prefix, REMOVED_AT_ONCE)):
                pass
        except (OSError, LogError) as fault:
            logger.warning("stored offsets of a stream that is gone stay for now: %s", fault)

    def close(self) -> None:
        """Write the waiting offsets; those that the system refuses now are lost (StoreOffset has no answer)."""
        self.write()
        self._timer.stop()
        for removal in self._removals:
            removal.cancel()


def stored_in(log: ReferenceLog) -> Iterator[tuple[str, str, str, int, str]]:
    """Yield what is stored, in any thread: incarnation, partition, reference, offset, and user."""
    for key, stored in log.state.walk(NAMESPACE):
        stream_key, reference = json.loads(key)
        incarnation, _, partition = stream_key.partition("/")
        offset, _, user = stored.partition(b" ")
        yield incarnation, partition, reference, int(offset), user.decode()


def _incarnation(stream_key: str) -> str:
    return stream_key.partition("/")[0]


def _key(stream_key: str, reference: str) -> str:
    return json.dumps([stream_key, reference])
