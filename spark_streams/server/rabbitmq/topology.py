"""Maps the streams and super streams of the door, by their names, to partitions of the log.

::

    log `orders`, one partition         stream `orders`
    log `orders`, partitions 0, 1 …     super stream `orders` with streams `orders-0`, … and binding keys "0", …
    made by CreateSuperStream           the names and binding keys that it gave

The log keeps the names that CreateSuperStream gave (``Stream.partition_names``), and ensures that no two streams share
a name; its state store keeps the arguments and binding keys that came through this door. Logs that other doors made,
and partitions that were added later, have the names above.

A partition that was split and closed is still a stream of its super stream, for its readers; publishers are refused,
and its binding key leads to no stream: the keys of the partitions that replace it lead to those. A partition whose
history was redistributed is no stream any more.

Spec: docs/specifications.md, S-134.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from spark_streams.errors import StreamExists, UnknownStream
from spark_streams.log import Partition, ReferenceLog, Stream
from spark_streams.server.counters import logger
from spark_streams.server.rabbitmq.stream_arguments import (
    DEFAULT_FILTER_BYTES,
    filter_bytes,
    known_arguments,
    stream_config,
)
from spark_streams.server.stream_changes import maker_of
from spark_streams.server.turns import Worker
from spark_streams.wire.rabbitmq.frames import ResponseCode

NAMESPACE: Final = "rabbitmq-streams"
RESERVED_PREFIX: Final = "amq."


@dataclass(frozen=True)
class Served:
    """One stream, as clients see it.

    Args:
        name: its name.
        stream: the log's stream that it belongs to.
        partition: the log's partition that it serves.
        super_stream: the name of its super stream; None for a plain stream.
        index: the partition's number, which stays when other partitions come and go.
        filter_bytes: size of the bloom filters of its chunks.
    """

    name: str
    stream: Stream
    partition: Partition
    super_stream: str | None
    index: int
    filter_bytes: int

    @property
    def key(self) -> str:
        """The stream's identity: a stream that was deleted and created again has another key."""
        return f"{self.stream.incarnation}/{self.partition.id}"


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the state store keeps about a log; it counts only while the log has the same incarnation."""

    incarnation: str
    arguments: dict[str, str]
    bindings: tuple[str, ...] = ()


class Topology:
    """All streams of a log.

    Args:
        log: the log.
        max_partitions: the most partitions of one super stream.
        worker: the worker that creates and removes streams, one after the other: each partition waits for the disk.
    """

    def __init__(self, log: ReferenceLog, max_partitions: int, worker: Worker) -> None:
        self._log = log
        self._max_partitions = max_partitions
        self._worker = worker
        self._change_lock = asyncio.Lock()
        self._changes: set[asyncio.Task[ResponseCode]] = set()
        # The stream that is being created: ``find`` does not return it before its names are known.
        self._coming: str | None = None
        self._records: dict[str, _Record] = {}
        self._seen: dict[str, str] = {}
        self._looked_at = -1
        for name, stored in log.state.items(NAMESPACE):
            record = msgspec.json.decode(stored, type=_Record)
            stream = self._stream(name)
            if stream is not None and stream.incarnation == record.incarnation:
                self._records[name] = record
            else:
                log.state.drop(NAMESPACE, name)  # another door deleted it while this one was shut

    # --- finding

    def find(self, name: str) -> Served | None:
        """Return the stream of a name, None when there is none. From now on ``changed`` reports when it is gone."""
        served = self._find(name)
        if served is not None:
            self._seen.setdefault(name, served.key)
        return served

    def changed(self) -> dict[str, str]:
        """Return the streams that ``find`` returned once and that are gone: name to ``Served.key``.

        A stream that was deleted and created again is among them too. Each is returned once.
        """
        gone: dict[str, str] = {}
        changes = self._log.changes
        if changes == self._looked_at:  # it is asked ten times a second, and thousands of streams may have been found
            return gone
        self._looked_at = changes
        for name, key in list(self._seen.items()):
            served = self._find(name)
            if served is None or served.key != key:
                gone[name] = self._seen.pop(name)
        return gone

    def _find(self, name: str) -> Served | None:
        found = self._log.shown(name)
        if found is None:
            return None
        stream, number = found
        if stream.name == self._coming:
            return None
        if number is None:
            return None if self._is_super(stream) else self._served(stream, next(iter(stream.partitions)), name, None)
        if number not in stream.partitions or not self._is_super(stream):
            return None
        return self._served(stream, number, name, stream.name)

    def names(self) -> list[str]:
        """Return the names of all streams, partitions of super streams included."""
        found: list[str] = []
        for stream in self._log.streams():
            if stream.name != self._coming:
                found += self._names(stream).values() if self._is_super(stream) else (stream.name,)
        return found

    def super_stream(self, name: str) -> tuple[Served, ...] | None:
        """Return the streams of a super stream, in their order; None when there is no such super stream."""
        stream = self._stream(name)
        if stream is None or not self._is_super(stream):
            return None
        return tuple(self._served(stream, number, each, name) for number, each in self._names(stream).items())

    def route(self, partitions: Sequence[Served], key: str) -> tuple[str, ...]:
        """Return the names of those streams of a super stream that a binding key leads to, perhaps none."""
        record = self._record(partitions[0].stream)
        known = dict(enumerate(record.bindings if record is not None else ()))
        taking = [p for p in partitions if not p.partition.closed]
        return tuple(p.name for p in taking if known.get(int(p.partition.id), p.partition.id) == key)

    def _stream(self, name: str) -> Stream | None:
        return None if name == self._coming else self._log.find(name)

    def _record(self, stream: Stream) -> _Record | None:
        record = self._records.get(stream.name)
        return record if record is not None and record.incarnation == stream.incarnation else None

    def _is_super(self, stream: Stream) -> bool:
        return len(stream.partitions) > 1 or stream.partition_names is not None

    def _names(self, stream: Stream) -> dict[str, str]:
        """Return the streams' names by partition."""
        given = dict(enumerate(stream.partition_names or ()))
        return {number: given.get(int(number), f"{stream.name}-{number}") for number in stream.partitions}

    def _served(self, stream: Stream, number: str, name: str, super_stream: str | None) -> Served:
        record = self._record(stream)
        arguments = record.arguments if record is not None else {}
        return Served(name, stream, stream.partitions[number], super_stream, int(number), filter_bytes(arguments))

    # --- changing

    async def in_turn(self, change: Callable[[], Coroutine[object, object, ResponseCode]]) -> ResponseCode:
        """Make one of the changes below after the earlier ones; it goes on when the connection that wants it ends.

        Args:
            change: calls ``create``, ``create_super``, ``delete`` or ``delete_super``: none of them waits for an
                earlier change itself, so nothing else may call them.
        """

        async def alone() -> ResponseCode:
            async with self._change_lock:
                return await change()

        task = asyncio.get_running_loop().create_task(alone())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def create(self, name: str, arguments: Mapping[str, str], user: str) -> ResponseCode:
        """Create a stream, called through ``in_turn``; return the code to answer."""
        stream = self._stream(name)
        if stream is not None and not self._is_super(stream):
            same = self._has(stream, arguments)
            return ResponseCode.STREAM_ALREADY_EXISTS if same else ResponseCode.PRECONDITION_FAILED
        if self._find(name) is not None or stream is not None:
            return ResponseCode.STREAM_ALREADY_EXISTS
        return await self._create(name, partial(self._make, name, arguments, user))

    def _has(self, stream: Stream, arguments: Mapping[str, str]) -> bool:
        """Return whether ``create`` with these arguments would have made this stream."""
        record = self._record(stream)
        if record is not None:
            return known_arguments(arguments) == record.arguments
        try:
            # Made by another door, or without arguments: only the settings that these arguments give must be equal.
            same = stream_config(arguments, stream.config) == stream.config
        except ValueError:
            return False
        return same and filter_bytes(arguments) == DEFAULT_FILTER_BYTES

    async def create_super(
        self, name: str, partitions: Sequence[str], bindings: Sequence[str], arguments: Mapping[str, str], user: str
    ) -> ResponseCode:
        """Create a super stream, called through ``in_turn``; return the code to answer."""
        # Two partitions may have one binding key: a message with it goes to both.
        counts = {len(partitions), len(bindings), len(set(partitions))}
        if len(counts) > 1 or not 1 <= len(partitions) <= self._max_partitions:
            return ResponseCode.PRECONDITION_FAILED
        if any(not each or each.startswith(RESERVED_PREFIX) for each in partitions):
            return ResponseCode.PRECONDITION_FAILED
        if self._stream(name) is not None or any(self._find(each) is not None for each in (name, *partitions)):
            return ResponseCode.STREAM_ALREADY_EXISTS
        make = partial(self._make, name, arguments, user, tuple(partitions), tuple(bindings))
        return await self._create(name, make)

    async def _create(self, name: str, make: Callable[[], _Record | ResponseCode]) -> ResponseCode:
        if not name or name.startswith(RESERVED_PREFIX):
            return ResponseCode.PRECONDITION_FAILED
        self._coming = name
        try:
            record = await self._worker.step(make)
        finally:
            self._coming = None
        if isinstance(record, ResponseCode):
            return record
        self._records[name] = record
        return ResponseCode.OK

    def _make(
        self,
        name: str,
        arguments: Mapping[str, str],
        user: str,
        partitions: tuple[str, ...] | None = None,
        bindings: tuple[str, ...] = (),
    ) -> _Record | ResponseCode:
        """Make a stream of one partition, or a super stream of these partitions; runs in the worker thread."""
        try:
            config = stream_config(arguments, self._log.config.stream)
            count = 1 if partitions is None else len(partitions)
            stream = self._log.create_stream(name, count, config, partition_names=partitions, maker=maker_of(user))
        except StreamExists:
            return ResponseCode.STREAM_ALREADY_EXISTS
        except ValueError as fault:
            logger.info("stream %r is not created: %s", name, fault)
            return ResponseCode.PRECONDITION_FAILED
        except OSError as fault:
            logger.error("stream %r is not created: %s", name, fault)
            return ResponseCode.INTERNAL_ERROR
        record = _Record(stream.incarnation, known_arguments(arguments), bindings)
        try:
            self._log.state.put(NAMESPACE, name, msgspec.json.encode(record))
        except OSError as fault:
            logger.error("stream %r is not created: %s", name, fault)
            self._remove(name)
            return ResponseCode.INTERNAL_ERROR
        return record

    async def delete(self, name: str) -> ResponseCode:
        """Delete a stream, called through ``in_turn``; return the code to answer.

        A partition goes only with its super stream.
        """
        served = self._find(name)
        if served is None:
            return ResponseCode.STREAM_DOES_NOT_EXIST
        if served.super_stream is not None:
            return ResponseCode.PRECONDITION_FAILED
        return await self._delete(name)

    async def delete_super(self, name: str) -> ResponseCode:
        """Delete a super stream with its partitions, called through ``in_turn``; return the code to answer."""
        stream = self._stream(name)
        if stream is None or not self._is_super(stream):
            return ResponseCode.STREAM_DOES_NOT_EXIST
        return await self._delete(name)

    async def _delete(self, name: str) -> ResponseCode:
        code = await self._worker.step(partial(self._remove, name))
        if code == ResponseCode.OK:
            self._records.pop(name, None)
        return code

    def _remove(self, name: str) -> ResponseCode:
        """Remove a stream; runs in the worker thread."""
        try:
            self._log.delete_stream(name)
        except UnknownStream:
            return ResponseCode.STREAM_DOES_NOT_EXIST
        except OSError as fault:
            logger.error("stream %r is not deleted: %s", name, fault)
            return ResponseCode.INTERNAL_ERROR
        self._log.state.drop(NAMESPACE, name)  # a record that stays has an incarnation that is gone
        return ResponseCode.OK
