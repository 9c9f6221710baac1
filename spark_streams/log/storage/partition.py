"""One open partition: an append-only sequence of records in segments, its listeners, and its end.

Delivery guarantee: when ``append`` returns, the records are with the operating system and the recovery point says so:
they survive kill -9 of the process. They survive a power cut too once ``sync`` has returned (``fsync`` policy
``always`` does that before ``append`` returns). Readers never see a record before it is written whole.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.errors import PartitionEnded
from spark_streams.log.config import StreamConfig
from spark_streams.log.format.batching import Notes, encode_records, place
from spark_streams.log.format.record_batch import BatchHeader, Body
from spark_streams.log.storage.files import logger
from spark_streams.log.storage.readable_partition import ReadablePartition
from spark_streams.log.storage.segments import Segments

Observer = Callable[[pa.LargeBinaryArray, Sequence[tuple[BatchHeader, bytes]]], None]
"""Takes the values of an append, and the batches that hold them, header and bytes, in their order."""


@dataclass(frozen=True)
class Appended:
    """Where an append is stored: first and last offset (both inclusive), and the time of the append, in ms."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


class Partition(ReadablePartition):
    """An open partition.

    A lock makes appends one at a time; reads may run beside them from any thread.

    Args:
        folder: the partition's folder; it is created when it is missing.
        stream: the stream's name.
        partition_id: the partition's identifier.
        config: the stream's settings.
        sync_each_append: fsync policy ``always``.
        clock: returns the time now, in ms since the epoch.

    Attributes:
        config: the stream's settings.
        starts_after: the closed partition that holds the records before the first one; None without one.
        cursor_from: the redistributed partitions whose offsets ``Stream.translate`` takes; nearest first.

    Raises:
        CorruptLog: an acknowledged batch of the last segment fails its check, or the segment is missing.
    """

    def __init__(
        self,
        folder: Path,
        stream: str,
        partition_id: str,
        config: StreamConfig,
        *,
        sync_each_append: bool,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(stream, partition_id, Segments(folder, config))
        self.config = config
        self.starts_after: str | None = None
        self.cursor_from: tuple[str, ...] = ()
        self._sync_each_append = sync_each_append
        self._clock = clock
        self._lock = threading.Lock()
        self._retention_waits = False
        self._listeners: list[Callable[[], None]] = []
        self._observers: list[Observer] = []

    def _check_appendable(self) -> None:
        if self.successors:
            raise PartitionEnded(self.stream, self.id, self.successors)
        self._check_open()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make appends, ``sync``, retention and closing wait while a split takes effect.

        Raises:
            PartitionEnded: the partition was split already.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        with self._lock:
            self._check_appendable()
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Make retention wait: it removes no segment meanwhile."""
        with self._lock:
            self._retention_waits = True
        try:
            yield
        finally:
            with self._lock:
                self._retention_waits = False

    def append(
        self,
        values: pa.Array | Sequence[bytes],
        keys: pa.Array | Sequence[bytes | None] | None = None,
        timestamps: npt.NDArray[np.int64] | Sequence[int | None] | None = None,
        *,
        notes: Notes = (),
        groups: npt.NDArray[np.int64] | None = None,
    ) -> Appended:
        """Append records.

        Args:
            values: the values, none null, at least one.
            keys: as many keys, or None.
            timestamps: as many instants in ms, ``NO_TIMESTAMP`` or None for none; they count only in a stream whose
                timestamp type is ``create``.
            notes: record headers for the first record of each batch that the append makes, so that they are stored or
                lost together with the records; ``batches`` returns them. An append of more than 1 MiB, or with instants
                and "no timestamp" in a stream of create time, becomes several batches, and a kill before the
                acknowledgement may keep the first of them without the others. For notes that must not speak of lost
                records give a function: it takes ``start`` (inclusive) and ``stop`` (exclusive), rows of this append,
                and returns the notes of the batch that holds these rows.
            groups: int64[k], how many consecutive records each group has; the records of a group share a stored batch,
                however large it is, and so are kept or lost together. None: each record is a group of its own.

        Raises:
            ValueError: no value, a null value, lengths that differ, or, in a stream of create time, a group of records
                with and without timestamps, which no batch can hold.
            TimestampRefused: an instant before 1970 in a stream whose ``timestamp_format`` is ``legacy`` and whose
                ``legacy_negative`` is ``error`` (rows W5 and W9 of docs/specifications.md). A record without a
                timestamp is stored as such in every stream (W3).
            OSError: the system refused the write; nothing of this append is stored.
            PartitionEnded: the partition was split.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        # Before the lock: small appends to the same partition do not wait until a large one is encoded.
        bodies = encode_records(values, keys, timestamps, self.config, notes, groups)
        with self._lock:
            self._check_appendable()
            now = self._clock()
            batches = place(bodies, self.next_offset, now)
            appended = self._store(batches, now)
        if self._observers and isinstance(values, pa.LargeBinaryArray):
            for observer in tuple(self._observers):
                self._call(functools.partial(observer, values, batches))
        for listener in tuple(self._listeners):
            self._call(listener)
        return appended

    def append_copies(self, copies: Sequence[tuple[Sequence[Body], int]], now_ms: int) -> None:
        """Append records of another partition with the timestamps that they have; nothing is forced to the disk.

        Args:
            copies: for each stored batch of the other partition (at least one): its encoded records, and the time of
                its append in ms, which counts in a stream of append time.
            now_ms: when the records were appended to the other partition, in ms; retention by age uses it.

        Raises:
            OSError: the system refused the write; nothing of this call is stored.
            PartitionEnded: the partition was split.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        with self._lock:
            self._check_appendable()
            batches: list[tuple[BatchHeader, bytes]] = []
            for bodies, append_time_ms in copies:
                batches += place(bodies, batches[-1][0].next_offset if batches else self.next_offset, append_time_ms)
            self._store(batches, now_ms, sync=False)

    def _call(self, listener: Callable[[], None]) -> None:
        """Call a listener, outside the lock; the records are stored, so no exception of it may fail the append."""
        try:
            listener()
        except Exception:
            logger.exception("%s/%s: a listener failed", self.stream, self.id)

    def _store(self, batches: list[tuple[BatchHeader, bytes]], now: int, *, sync: bool = True) -> Appended:
        self._files.store(batches, now, sync=sync and self._sync_each_append)
        return Appended(batches[0][0].base_offset, batches[-1][0].next_offset - 1, now)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each append, in the appending thread; it must be quick.

        Its exceptions are logged, not passed on: the records are stored by then.
        """
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Undo ``add_listener``."""
        self._listeners.remove(listener)

    def add_observer(self, observer: Observer) -> None:
        """Call ``observer`` after each append of values in an Arrow ``LargeBinaryArray``, before the listeners.

        The observer takes the values and the batches that hold them, header and bytes, which saves reading them back.
        It does not see appends of other types of values, so it must not rely on seeing all. It runs in the appending
        thread, beside appends of other threads; its exceptions are logged.
        """
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Undo ``add_observer``."""
        self._observers.remove(observer)

    def sync(self) -> None:
        """Force all appended records to the disk; a closed partition has nothing to force.

        Raises:
            OSError: the system refused.
        """
        with self._lock:
            if not self.gone:
                self._files.sync()

    def enforce_retention(self) -> int:
        """Remove the segments that retention no longer keeps; return how many, 0 when the partition is closed.

        Raises:
            OSError: the system refused.
        """
        with self._lock:
            return 0 if self.gone or self._retention_waits else self._files.remove_expired(self._clock())

    def close(self) -> None:
        """Force everything to the disk and close; closing twice is harmless.

        Raises:
            OSError: the system refused; the partition is closed all the same.
        """
        self._leave(self._files.close)

    def discard(self) -> None:
        """Close without forcing anything to the disk: the stream is being deleted."""
        self._leave(self._files.discard)

    def _leave(self, release: Callable[[], None]) -> None:
        with self._lock:
            if not self.gone:
                self.gone = True
                release()
