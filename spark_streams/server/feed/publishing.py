"""Publishes requests: routes a request's events to partitions and appends them, each request once.

A request with an ``Idempotency-Key`` and an ``Idempotency-Sequence`` is divided by partition, and each part is stored
as one batch together with the number (``log/publisher_sequences.py``): the log has a part whole, with its number, or
not at all. A repeated request finds the parts that are stored already and adds the others. For that its events must go
to the same partitions as before: keyed events by their key, and all unkeyed events of a request to one partition, which
the reference and the number choose as a key would. A partition that was split meanwhile is read before its children.

A publisher sends a request when those before it are confirmed. So a number below one that any partition has is wholly
stored, and its request stores nothing. An ``Idempotency-Digest``, a checksum of the events, is stored in the lower half
of the number: a repeated request with another digest is refused before any of it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LogError
from spark_streams.log import Partition, ReferenceLog, Stream
from spark_streams.log.publisher_sequences import PublisherSequences, SequenceKind, Sequences
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.appender import Appender, AppendRefused, Batch, Outcome, RefusalReason
from spark_streams.server.counters import DoorCounters, logger
from spark_streams.server.feed.request_bodies import Rows
from spark_streams.server.http.requests import HttpError
from spark_streams.server.turns import Worker
from spark_streams.wire.columnar.arrays import distinct, layout

LONG_BYTES: Final = 16 << 10
"""Longer keys are not copied."""
PUBLISHERS: Final = SequenceKind(b"feedapi-publishers", "feedapi-sequences")

DIGEST_BITS: Final = 32
"""The digest's bits in a stored number, below the bits of the sequence."""

MOST_SPLITS: Final = 5
"""How many times one request is routed again at most."""
FEW_BYTES: Final = 128 << 10
"""Rows of at most so many bytes are routed on the loop."""
TURN_PARTITIONS: Final = 8
"""Partitions to look up, or to append to, before other tasks run."""


def spread(stream: Stream, keys: pa.BinaryArray, seed: bytes | None, turn: int) -> NDArray[np.int64]:
    """Return the number of each event's partition, int64[n].

    Args:
        stream: the stream.
        keys: the events' keys; null for none.
        seed: the key for events without one; None: these go to the open partitions in turn.
        turn: how many events were routed in turn before.
    """
    while True:
        open_before = stream.open_partitions
        codes, values = distinct(keys)
        homes = np.array([int(stream.home(key)) for key in _each(values)] or [0], np.int64)
        places: NDArray[np.int64] = homes[codes]
        unkeyed = np.flatnonzero(codes < 0)
        if seed is not None and len(unkeyed):
            places[unkeyed] = int(stream.home(seed))
        elif len(unkeyed):
            numbers = np.array(open_before, np.int64)
            places[unkeyed] = numbers[(turn + np.arange(len(unkeyed))) % len(numbers)]
        # All events are routed by one state of the stream: with the states before and after a split, the events of a
        # request for one partition could go there in two parts.
        if stream.open_partitions == open_before:
            return places


def _each(keys: pa.BinaryArray) -> Sequence[bytes | memoryview]:
    """Return keys, none null; long ones are not copied, as Python would with its lock held."""
    if not len(keys):
        return []
    bounds, content = layout(keys)
    if np.diff(bounds).max() <= LONG_BYTES:
        return keys.to_pylist()  # type: ignore[no-any-return]
    return [content.data[start:end] for start, end in pairwise(bounds.tolist())]


class Published(NamedTuple):
    """The outcome of a request to publish.

    Args:
        appended: how many events it stored.
        repeated: how many events an earlier request with the same key and number had stored.
        last: the highest number of the reference in the feed now; None without a reference.
    """

    appended: int
    repeated: int
    last: int | None = None


@dataclass(eq=False)
class Publishing:
    """Appends for all publishers of a door.

    Args:
        log: the log.
        max_publishers: how many references to remember per partition.
        loop: the server's loop.
        aside: the worker that routes many events; None: they are routed on the loop.
        counters: the door's, if there is one.
    """

    log: ReferenceLog
    max_publishers: int
    loop: asyncio.AbstractEventLoop
    aside: Worker | None = None
    counters: DoorCounters = field(default_factory=DoorCounters)

    def __post_init__(self) -> None:
        self._sequences = Sequences(self.log, self.max_publishers, PUBLISHERS)
        self._appender = Appender(self.loop, self.log.config.fsync == "always", self.counters)
        self._incarnations: set[str] = set()
        self._turn = 0
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Incarnation and reference to the lock of their requests, as long as one of them holds it or waits for it."""

    async def publish(
        self, stream: Stream, rows: Rows, reference: str | None, sequence: int, digest: int = 0, user: str = ""
    ) -> Published:
        """Store events.

        Args:
            stream: the stream.
            rows: the events.
            reference: the ``Idempotency-Key``; None stores the events at each call.
            sequence: the ``Idempotency-Sequence``; each request of a reference has a higher one than those before it.
            digest: the ``Idempotency-Digest``, 32 bits; 0: it is not compared.
            user: the publisher's user; the reference counts for this user's share.

        Raises:
            HttpError: some events are not stored; after a 5xx the client sends the same request again. 422: the number
                is stored with another digest, and no event of this request is stored.
        """
        if not len(rows):
            return Published(0, 0)
        if reference is None:
            return await self._publish(stream, rows, None, 0, user)
        self._incarnations.add(stream.incarnation)
        number = sequence << DIGEST_BITS | digest
        # One request of a reference at a time: a repeated one waits for the outcome of the first.
        lock = self._locks.setdefault((stream.incarnation, reference), asyncio.Lock())
        async with lock:
            last = await self._last(stream, reference, number)
            if last > sequence:
                return Published(0, len(rows), last)
            return await self._publish(stream, rows, reference, number, user)

    async def _last(self, stream: Stream, reference: str, number: int) -> int:
        """Return the highest sequence of a reference in any partition, -1 for none.

        Raises:
            HttpError: 422, a partition has this sequence with another digest.
        """
        while True:
            partitions = list(stream.partitions.values())
            last = -1
            for count, partition in enumerate(partitions):
                await _yield_turn(count)
                if partition.id in stream.partitions:
                    last = max(last, self._last_of(stream, partition, reference, number))
            if partitions == list(stream.partitions.values()):  # else one was split meanwhile
                return last

    def _last_of(self, stream: Stream, partition: Partition, reference: str, number: int) -> int:
        stored = self._publishers_of(stream, partition).last(reference)
        if stored is None:
            return -1
        if stored >> DIGEST_BITS == number >> DIGEST_BITS and stored != number and _digest(stored) * _digest(number):
            raise HttpError(
                422,
                f"request {number >> DIGEST_BITS} of this Idempotency-Key is stored with other events: digest "
                f"{_digest(stored):08x}, not {_digest(number):08x}. Nothing of this one is stored",
            )
        return stored >> DIGEST_BITS

    async def _publish(self, stream: Stream, rows: Rows, reference: str | None, number: int, user: str) -> Published:
        sequence = number >> DIGEST_BITS
        seed = None if reference is None else f"{reference}/{sequence}".encode()
        appended = repeated = 0
        for _ in range(MOST_SPLITS):
            turn = self._turn
            self._turn += 0 if reference is not None else len(rows)
            ended: list[Rows] = []
            parts: list[Rows] = []
            stored: list[asyncio.Future[Outcome]] = []
            for count, (name, part) in enumerate(await self._spread(stream, rows, seed, turn)):
                await _yield_turn(count)
                partition = stream.partitions.get(name)
                if partition is None:  # it has just left, its history redistributed
                    ended.append(part)
                    continue
                if reference is not None and self._is_there(stream, partition, reference, sequence):
                    repeated += len(part)
                    continue
                parts.append(part)
                stored.append(self._append(stream, partition, part, reference, number, user))
            outcomes = await asyncio.gather(*stored)
            failed = [each for each in outcomes if each is not None and each.reason is not RefusalReason.SPLIT]
            if failed:
                raise _refusal(failed[0])
            appended += sum(len(part) for part, each in zip(parts, outcomes, strict=True) if each is None)
            ended += [part for part, each in zip(parts, outcomes, strict=True) if each is not None]
            if not ended:
                return Published(appended, repeated, None if reference is None else sequence)
            # A partition was split since its events were routed: they go to its children.
            rows = ended[0] if len(ended) == 1 else pa.concat_batches(ended)
        self.counters.refused_events[RefusalReason.SPLIT.label] += len(rows)
        raise HttpError(503, "partitions are split faster than events can be stored. Send the request again as it is")

    async def _spread(self, stream: Stream, rows: Rows, seed: bytes | None, turn: int) -> list[tuple[str, Rows]]:
        """Return the rows of each partition, in their order."""

        def parts() -> list[tuple[str, Rows]]:
            places = spread(stream, rows["keys"], seed, turn)
            if (places == places[0]).all():
                return [(str(places[0]), rows)]
            order = np.argsort(places, kind="stable")
            names, starts = np.unique(places[order], return_index=True)
            sorted_rows = rows.take(pa.array(order))
            ends = [*starts[1:].tolist(), len(rows)]
            return [
                (str(name), sorted_rows.slice(start, end - start))
                for name, start, end in zip(names.tolist(), starts.tolist(), ends, strict=True)
            ]

        return parts() if self.aside is None or rows.nbytes <= FEW_BYTES else await self.aside.step(parts)

    def _is_there(self, stream: Stream, partition: Partition, reference: str, sequence: int) -> bool:
        before = stream.predecessors(partition.id) if partition.id in stream.partitions else []
        for each in (partition, *before):
            last = self._publishers_of(stream, each).last(reference)
            if last is not None and sequence <= last >> DIGEST_BITS:
                return True
        return False

    def _publishers_of(self, stream: Stream, partition: Partition) -> PublisherSequences:
        try:
            return self._sequences.of(stream, partition)
        except PartitionClosed:
            raise  # the stream was deleted meanwhile: 404
        except LogError as fault:
            logger.error("stream %r partition %s: %s", stream.name, partition.id, fault)
            raise HttpError(500, "the log cannot be read") from fault

    def _append(
        self, stream: Stream, partition: Partition, rows: Rows, reference: str | None, number: int, user: str
    ) -> asyncio.Future[Outcome]:
        """Append to one partition; the result of the future is the error, None without one."""
        future: asyncio.Future[Outcome] = self.loop.create_future()
        numbers = {} if reference is None else {reference: number}
        publishers = None if reference is None else self._publishers_of(stream, partition)
        if publishers is not None:
            publishers.begin(numbers)

        def done(outcomes: list[Outcome]) -> None:
            failed = next((outcome for outcome in outcomes if outcome is not None), None)
            if publishers is not None:
                if failed is None:
                    publishers.advance(numbers, user)
                else:
                    publishers.fail(numbers)
            if not future.done():  # else the client has gone; the events are stored all the same
                future.set_result(failed)

        self._appender.append(
            partition,
            Batch(
                rows["values"],
                rows["keys"],
                rows["timestamps"].to_numpy(),
                done,
                (PUBLISHERS.note_of(numbers),) if numbers else (),
                groups=np.array([len(rows)], np.int64) if numbers else None,
                rerouted=np.ones(len(rows), np.bool_),
            ),
        )
        return future

    def close(self) -> None:
        """Wait for the appends under way, and write snapshots of the publishers, so that the next start reads less."""
        self._appender.close()
        for deleted in self._incarnations - {stream.incarnation for stream in self.log.streams()}:
            self._sequences.forget(deleted)
        self._sequences.close()


async def _yield_turn(count: int) -> None:
    if count % TURN_PARTITIONS == TURN_PARTITIONS - 1:
        await asyncio.sleep(0)


def _digest(number: int) -> int:
    return number & ((1 << DIGEST_BITS) - 1)


def _refusal(outcome: AppendRefused) -> HttpError:
    if outcome.reason is RefusalReason.INVALID:
        return HttpError(400, outcome.description)
    if outcome.reason is RefusalReason.DISK_FULL:
        return HttpError(507, f"{outcome.description}. Send the request again as it is when there is room")
    return HttpError(503, f"{outcome.description}. Send the request again as it is")
