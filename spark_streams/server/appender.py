"""Appends the events that doors receive: at once, or in a thread and many together.

With fsync policy ``always`` an append takes as long as the disk does; a large one takes as long as encoding it does.
Such an append runs in a thread, one at a time for each partition; batches that come for the same partition meanwhile
are joined and appended together (group commit). In all cases ``done`` is called on the loop, and events of one link
keep their order within a partition.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LogError, PartitionEnded
from spark_streams.log import Appended, Partition
from spark_streams.log.format.batching import Notes, is_large
from spark_streams.log.storage.files import is_full
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.counters import DoorCounters, logger
from spark_streams.wire.columnar.arrays import layout

_NONE: Final = pa.array([], pa.large_binary())
_THREADS: Final = 4
COMPLAIN_S: Final = 1.0
"""How often a partition's failed appends are logged, in seconds."""
_complained: Final[WeakKeyDictionary[Partition, float]] = WeakKeyDictionary()


class RefusalReason(Enum):
    """Why events are not stored; the doors answer each with a code of their protocol."""

    INVALID = auto()
    """They break a rule of the stream."""
    SPLIT = auto()
    """The partition was split after they were routed; a caller that knows their keys may route them again."""
    DISK_FULL = auto()
    """The log's disk has no room."""
    FAILED = auto()
    """The log cannot be written for another reason, or an earlier append that they rely on failed."""

    @property
    def label(self) -> str:
        """Its name in ``DoorCounters.refused_events``."""
        return self.name.lower()


@dataclass(frozen=True)
class AppendRefused:
    """The outcome of an event that is not stored.

    Args:
        reason: why.
        description: what was wrong, and what to do; it holds no secret.
    """

    reason: RefusalReason
    description: str


Outcome = AppendRefused | None
"""The refusal of an event; None: it is stored."""


@dataclass(eq=False)
class Batch:
    """Events of one link for one partition.

    Args:
        values: stored messages, large_binary.
        keys: group keys, binary, null for none.
        timestamps: creation times in ms, ``NO_TIMESTAMP`` for none.
        done: called on the loop with one outcome for each event, in their order: None for a stored one, else why not.
        notes: stored with the batches of this append (``Partition.append``); it is then not joined with others.
        due: called on the loop when the append is about to start, after ``done`` of all earlier ones of the partition;
            False refuses the append.
        groups: numbers of consecutive events that are stored together or not at all; None: each event by itself.
        rerouted: bool[n], the events that the caller routes again when the partition is split; None: none of them.
        begun_s: when ``Appender.append`` got it, on the clock of ``time.perf_counter``.
    """

    values: pa.Array
    keys: pa.Array
    timestamps: NDArray[np.int64]
    done: Callable[[list[Outcome]], None]
    notes: Notes = ()
    due: Callable[[], bool] | None = None
    groups: NDArray[np.int64] | None = None
    rerouted: NDArray[np.bool_] | None = None
    begun_s: float = 0.0


class Appender:
    """Appends batches.

    Args:
        loop: where ``done`` is called.
        off_loop: whether appends wait for the disk, so that all run in threads. If not, only large appends run in a
            thread, one at a time.
        counters: the counters of the door that appends; None where nobody asks for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, off_loop: bool, counters: DoorCounters | None = None) -> None:
        self._counters = DoorCounters() if counters is None else counters
        self._loop = loop
        self._off_loop = off_loop
        self._pool = ThreadPoolExecutor(_THREADS if off_loop else 1, "spark-streams-append")
        self._waiting: dict[Partition, list[Batch]] = {}
        self._closed = False

    def append(self, partition: Partition, batch: Batch) -> None:
        """Append a batch; its ``done`` may be called before this returns."""
        batch.begun_s = time.perf_counter()
        queued = self._waiting.get(partition)
        if queued is not None:
            queued.append(batch)
        elif batch.due is not None and not batch.due():
            self._count(batch, refused := _not_due(batch))
            batch.done(refused)
        elif self._off_loop or is_large(batch.values, batch.keys):
            self._waiting[partition] = []
            self._start(partition, [batch])
        else:
            self._count(batch, outcomes := _store_together(partition, [batch]))
            batch.done(outcomes)

    def after(self, partition: Partition, done: Callable[[], None]) -> None:
        """Call ``done`` on the loop when all appends to a partition so far have ended; at once if there are none."""
        queued = self._waiting.get(partition)
        if queued is None:
            done()
        else:
            queued.append(Batch(_NONE, pa.nulls(0, pa.binary()), np.empty(0, np.int64), lambda outcomes: done()))

    def _start(self, partition: Partition, batches: list[Batch]) -> None:
        future = self._pool.submit(_outcomes, partition, batches)
        future.add_done_callback(lambda f: self._finish_on_loop(partition, batches, f.result()))

    def _finish_on_loop(self, partition: Partition, batches: list[Batch], outcomes: list[Outcome]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finished, partition, batches, outcomes)
        except RuntimeError:
            # The loop has ended: the producers' connections are gone, and no producer got a success.
            logger.warning("an append ended after the server did")

    def _finished(self, partition: Partition, batches: list[Batch], outcomes: list[Outcome]) -> None:
        if self._closed:
            return  # the senders of these batches and of the queued ones are gone
        start = 0
        for batch in batches:
            self._tell(partition, batch, outcomes[start : start + len(batch.values)])
            start += len(batch.values)
        # After ``done`` of these batches: ``due`` of the queued ones may depend on it.
        while queued := self._waiting.pop(partition, None):
            self._waiting[partition] = []
            due = []
            for batch in queued:
                if _is_due(partition, batch):
                    due.append(batch)
                else:
                    self._tell(partition, batch, _not_due(batch))
            if due:
                self._start(partition, due)
                return

    def _tell(self, partition: Partition, batch: Batch, outcomes: list[Outcome]) -> None:
        """Tell a batch's sender its outcomes; an error in that does not affect other senders or queued batches."""
        self._count(batch, outcomes)
        try:
            batch.done(outcomes)
        except Exception:
            logger.exception("stream %r partition %s: a sender is not told", partition.stream, partition.id)

    def _count(self, batch: Batch, outcomes: list[Outcome]) -> None:
        if outcomes:  # there are no events of ``after``
            took_s = time.perf_counter() - batch.begun_s
            count_append(self._counters, batch.values, outcomes, took_s, batch.rerouted)

    def close(self) -> None:
        """Wait for the appends under way; queued ones are not appended, and no further ``done`` is called."""
        self._closed = True
        self._pool.shutdown()


def count_append(
    counters: DoorCounters,
    values: pa.Array,
    outcomes: list[Outcome],
    seconds: float,
    rerouted: NDArray[np.bool_] | None = None,
) -> None:
    """Count an append.

    Args:
        counters: the door's.
        values: stored messages, large_binary.
        outcomes: one for each.
        seconds: how long it took.
        rerouted: as in ``Batch``; an event that is stored elsewhere does not count as refused.
    """
    counters.appends.observe(seconds)
    stored = outcomes.count(None)
    counters.received += stored
    if stored < len(outcomes):
        for reason in RefusalReason:
            of_it = np.array([each is not None and each.reason is reason for each in outcomes])
            if reason is RefusalReason.SPLIT and rerouted is not None:
                of_it &= ~rerouted
            if of_it.any():
                counters.refused_events[reason.label] += int(of_it.sum())
    if stored:
        counters.received_bytes += _size(values, outcomes if stored < len(outcomes) else None)


def _size(values: pa.Array, outcomes: list[Outcome] | None) -> int:
    """Return the bytes of all values, large_binary, or of those that are stored; five times as fast as ``nbytes``."""
    bounds, content = layout(values)
    if outcomes is None:
        return len(content)
    return int(np.diff(bounds)[[each is None for each in outcomes]].sum())


def _is_due(partition: Partition, batch: Batch) -> bool:
    try:
        return batch.due is None or batch.due()
    except Exception:
        logger.exception("stream %r partition %s: a batch is refused", partition.stream, partition.id)
        return False


def _outcomes(partition: Partition, batches: list[Batch]) -> list[Outcome]:
    """Append in a thread; any error becomes an outcome, because the partition's next append waits for this one."""
    try:
        return _store_together(partition, batches)
    except Exception:
        logger.exception("stream %r partition %s: append failed", partition.stream, partition.id)
        refusal = AppendRefused(RefusalReason.FAILED, "an unexpected error in the server, see its log")
        return [refusal] * sum(len(batch.values) for batch in batches)


def _not_due(batch: Batch) -> list[Outcome]:
    return [AppendRefused(RefusalReason.FAILED, "an earlier append failed")] * len(batch.values)


def _store_together(partition: Partition, batches: list[Batch]) -> list[Outcome]:
    if len(batches) > 1 and not any(batch.notes for batch in batches):
        batches = [_joined(batches)]
    outcomes: list[Outcome] = []
    failed = False
    for batch in batches:
        # A batch that was due relied on the batches before it, whose senders have not been told of a failure yet.
        of_batch = _not_due(batch) if failed and batch.due is not None else _store(partition, batch)
        failed = failed or any(of_batch)
        outcomes += of_batch
    return outcomes


def _joined(batches: list[Batch]) -> Batch:
    """Return the events of all batches as one batch."""
    groups = None
    if any(batch.groups is not None for batch in batches):
        groups = np.concatenate([_group_sizes(batch) for batch in batches])
    return replace(
        batches[0],
        values=pa.concat_arrays([batch.values for batch in batches]),
        keys=pa.concat_arrays([batch.keys for batch in batches]),
        timestamps=np.concatenate([batch.timestamps for batch in batches]),
        groups=groups,
    )


def _group_sizes(batch: Batch) -> NDArray[np.int64]:
    return np.ones(len(batch.values), np.int64) if batch.groups is None else batch.groups


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return the groups of a batch as two batches."""
    groups = _group_sizes(batch)
    half = len(groups) // 2
    at = int(groups[:half].sum())
    first, rest = (
        replace(batch, values=batch.values[of], keys=batch.keys[of], timestamps=batch.timestamps[of], groups=sizes)
        for of, sizes in ((slice(at), groups[:half]), (slice(at, None), groups[half:]))
    )
    return first, rest


def _store(partition: Partition, batch: Batch) -> list[Outcome]:
    """Append, and find the events that the stream's rules refuse by halving, so that the others are stored."""
    count = len(batch.values)
    if not count:
        return []
    found = append_whole(partition, batch.values, batch.keys, batch.timestamps, batch.notes, batch.groups)
    if isinstance(found, Appended):
        return [None] * count
    if found.reason is RefusalReason.INVALID and len(_group_sizes(batch)) > 1 and not batch.notes:
        first, rest = _halves(batch)  # notes describe the whole append, and cannot be halved
        return _store(partition, first) + _store(partition, rest)
    return [found] * count


def append_whole(
    partition: Partition,
    values: pa.Array,
    keys: pa.Array,
    timestamps: NDArray[np.int64],
    notes: Notes = (),
    groups: NDArray[np.int64] | None = None,
) -> Appended | AppendRefused:
    """Append events in the thread of the caller, all or none; the arguments are those of ``Partition.append``.

    Returns:
        Where they are, or why they are not stored.
    """
    try:
        return partition.append(values, keys, timestamps, notes=notes, groups=groups)
    except ValueError as fault:
        return AppendRefused(RefusalReason.INVALID, str(fault))
    except PartitionEnded as fault:
        return AppendRefused(RefusalReason.SPLIT, str(fault))
    except (OSError, LogError) as fault:
        _complain(partition, fault)
        text = f"the log cannot be written: {fault}"
        if is_full(fault):
            return AppendRefused(RefusalReason.DISK_FULL, f"{text}: make room on the disk of the log")
        return AppendRefused(RefusalReason.FAILED, text)


def _complain(partition: Partition, fault: Exception) -> None:
    """Log a failed append, at most once in ``COMPLAIN_S``: with a full disk each one fails, and messages fill disks."""
    # A stream that was deleted while producers write to it is no fault of the log.
    level = logging.INFO if isinstance(fault, PartitionClosed) else logging.ERROR
    now = time.monotonic()
    if now - _complained.get(partition, now - COMPLAIN_S) >= COMPLAIN_S:
        _complained[partition] = now
        logger.log(level, "stream %r partition %s: append failed: %s", partition.stream, partition.id, fault)
