"""Appending what publishers send, each request once.

A request with an ``Idempotency-Key`` and an ``Idempotency-Sequence`` is cut by partition, and each part is stored as
one batch together with the number (``log/sequences.py``): a part is in the log whole, with its number, or not at all. A
request that is sent again finds the parts that are there already and adds the others. For that its events have to go
where they went before: keyed ones by their key, and the unkeyed ones of a request all to one partition, which the
reference and the number choose as a key would. A partition that was split meanwhile is asked before its children.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.errors import LogError
from spark_streams.log import Partition, ReferenceLog, Stream
from spark_streams.log.sequences import SequenceKind, SequenceLine, Sequences
from spark_streams.server.appender import Appender, Batch
from spark_streams.server.conditions import INVALID_FIELD, RESOURCE_LIMIT, LinkRefused
from spark_streams.server.feed.bodies import Rows
from spark_streams.server.feed.refusals import Refusal
from spark_streams.server.feed.spreading import ancestors, spread

__all__ = ["PUBLISHERS", "Published", "Publishing"]

PUBLISHERS: Final = SequenceKind(b"feedapi-publishers", "feedapi-sequences")

logger = logging.getLogger("spark_streams.server")


@dataclass(frozen=True)
class Published:
    """What became of a request's events.

    Args:
        appended: stored by this request.
        repeated: stored by an earlier request with the same key and number.
    """

    appended: int
    repeated: int


class Publishing:
    """Appends for all publishers of a door.

    Args:
        log: the log.
        max_publishers: references whose last number is remembered, a partition.
        loop: the server's.
    """

    def __init__(self, log: ReferenceLog, max_publishers: int, loop: asyncio.AbstractEventLoop) -> None:
        self._sequences = Sequences(log, max_publishers, PUBLISHERS)
        self._appender = Appender(loop, off_loop=log.config.fsync == "always")
        self._loop = loop
        self._turn = 0
        self._locks: dict[tuple[str, str], _Lock] = {}

    async def publish(self, stream: Stream, rows: Rows, reference: str | None, sequence: int) -> Published:
        """Store events.

        Args:
            stream: where.
            rows: the events.
            reference: the ``Idempotency-Key``; None stores them however often they come.
            sequence: the ``Idempotency-Sequence``; each request of a reference has a higher one than those before it.

        Raises:
            Refusal: something is not stored; 5xx are to be sent again as they are.
        """
        if not len(rows):
            return Published(0, 0)
        if reference is None:
            return await self._publish(stream, rows, None, 0)
        # One request of a reference at a time: a repeated one looks when the first one's fate is known.
        key = (stream.incarnation, reference)
        lock = self._locks.setdefault(key, _Lock())
        lock.users += 1
        try:
            async with lock.lock:
                return await self._publish(stream, rows, reference, sequence)
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]

    async def _publish(self, stream: Stream, rows: Rows, reference: str | None, sequence: int) -> Published:
        seed = None if reference is None else f"{reference}/{sequence}".encode()
        places = spread(stream, rows.keys, seed, self._turn)
        self._turn += 0 if reference is not None else len(rows)
        appended = repeated = 0
        stored = []
        for name in dict.fromkeys(places.tolist()):
            partition = stream.partitions[str(name)]
            chosen = np.flatnonzero(places == name)
            if reference is not None and self._is_there(stream, partition, reference, sequence):
                repeated += len(chosen)
                continue
            part = rows if len(chosen) == len(rows) else _taken(rows, chosen)
            stored.append(self._append(stream, partition, part, reference, sequence))
            appended += len(chosen)
        refusals = [refusal for refusal in await asyncio.gather(*stored) if refusal is not None]
        if refusals:
            raise refusals[0]
        return Published(appended, repeated)

    def _is_there(self, stream: Stream, partition: Partition, reference: str, sequence: int) -> bool:
        for each in (partition, *ancestors(stream, partition)):
            last = self._line(stream, each).last(reference)
            if last is not None and sequence <= last:
                return True
        return False

    def _line(self, stream: Stream, partition: Partition) -> SequenceLine:
        try:
            return self._sequences.of(stream, partition)
        except LogError as fault:
            logger.error("stream %r partition %s: %s", stream.name, partition.id, fault)
            raise Refusal(500, "the log cannot be read") from fault

    def _append(
        self, stream: Stream, partition: Partition, rows: Rows, reference: str | None, sequence: int
    ) -> asyncio.Future[Refusal | None]:
        """Append to one partition; the future tells what went wrong."""
        future: asyncio.Future[Refusal | None] = self._loop.create_future()
        numbers = {} if reference is None else {reference: sequence}
        line = None if reference is None else self._line(stream, partition)
        if line is not None:
            line.begin(numbers)
        done = functools.partial(self._appended, future, line, numbers)
        self._appender.append(
            partition,
            Batch(
                rows.values,
                rows.keys,
                rows.timestamps,
                done,
                (PUBLISHERS.note_of(numbers),) if numbers else (),
                groups=np.array([len(rows)], np.int64) if numbers else None,
            ),
        )
        return future

    def _appended(
        self,
        future: asyncio.Future[Refusal | None],
        line: SequenceLine | None,
        numbers: dict[str, int],
        outcomes: list[LinkRefused | None],
    ) -> None:
        failed = next((outcome for outcome in outcomes if outcome is not None), None)
        if line is not None:
            if failed is None:
                line.advance(numbers)
            else:
                line.fail(numbers)
        if not future.done():  # its client is gone, and the events are stored all the same
            future.set_result(None if failed is None else _refusal(failed))

    def forget(self, incarnation: str) -> None:
        """Forget what was kept about a log that was deleted."""
        self._sequences.forget(incarnation)

    def close(self) -> None:
        """Wait for what is under way, and write down what the next start would otherwise have to look for."""
        self._appender.close()
        self._sequences.close()


class _Lock:
    """A lock that is there as long as somebody uses it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


def _refusal(outcome: LinkRefused) -> Refusal:
    if outcome.name == INVALID_FIELD:
        return Refusal(400, outcome.description)
    if outcome.name == RESOURCE_LIMIT:
        return Refusal(507, f"{outcome.description}. Send the request again as it is when there is room")
    return Refusal(503, f"{outcome.description}. Send the request again as it is")


def _taken(rows: Rows, chosen: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Rows:
    indices = pa.array(chosen)
    return Rows(rows.values.take(indices), rows.keys.take(indices), rows.timestamps[chosen])
