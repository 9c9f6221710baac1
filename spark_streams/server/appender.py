"""Appending for the door: at once, or, where an append waits for the disk or is large, off the loop and many together.

With fsync policy ``always`` an append takes as long as the disk does; a large one takes as long as encoding it does. It
then runs in a thread, one at a time for each partition; what comes for the same partition meanwhile is joined and
appended together (group commit). In all cases ``done`` is called on the loop, and events of one link keep their order
within a partition.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LogError, PartitionEnded
from spark_streams.log import Partition
from spark_streams.log.format.batching import Notes, is_large
from spark_streams.log.storage.files import is_full
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.amqp.error_conditions import (
    INTERNAL_ERROR,
    INVALID_FIELD,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    LinkRefused,
)

_NONE: Final = pa.array([], pa.large_binary())
_THREADS: Final = 4
COMPLAIN_S: Final = 1.0
"""How often a partition's failed appends are logged, in seconds."""
_complained: Final[WeakKeyDictionary[Partition, float]] = WeakKeyDictionary()

logger = logging.getLogger("spark_streams.server")


@dataclass(eq=False)
class Batch:
    """Events of one link for one partition.

    Args:
        values: stored messages, large_binary.
        keys: group keys, binary, null for none.
        timestamps: creation times in ms, ``NO_TIMESTAMP`` for none.
        done: called on the loop: with None for each event that is stored, or why not; all events in their order.
        notes: stored with the batches of this append (``Partition.append``); it is then not joined with others.
        due: asked on the loop when the append is about to start, after all earlier ones of the partition have been
            told their outcome; False refuses it.
        groups: of how many consecutive events each is that are stored together or not at all; None: one.
    """

    values: pa.Array
    keys: pa.Array
    timestamps: NDArray[np.int64]
    done: Callable[[list[LinkRefused | None]], None]
    notes: Notes = ()
    due: Callable[[], bool] | None = None
    groups: NDArray[np.int64] | None = None


class Appender:
    """Appends batches.

    Args:
        loop: where ``done`` is called.
        off_loop: whether an append waits for the disk. Those that do not, and are large, are made one at a time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, off_loop: bool) -> None:
        self._loop = loop
        self._off_loop = off_loop
        self._pool = ThreadPoolExecutor(_THREADS if off_loop else 1, "spark-streams-append")
        self._waiting: dict[Partition, list[Batch]] = {}
        self._closed = False

    def append(self, partition: Partition, batch: Batch) -> None:
        """Append a batch; its ``done`` may be called before this returns."""
        queued = self._waiting.get(partition)
        if queued is not None:
            queued.append(batch)
        elif batch.due is not None and not batch.due():
            batch.done(_not_due(batch))
        elif self._off_loop or is_large(batch.values, batch.keys):
            self._waiting[partition] = []
            self._start(partition, [batch])
        else:
            batch.done(_store_together(partition, [batch]))

    def after(self, partition: Partition, done: Callable[[], None]) -> None:
        """Have ``done`` called on the loop when all appends to a partition so far have ended; at once if none is."""
        nothing = Batch(_NONE, pa.nulls(0, pa.binary()), np.empty(0, np.int64), lambda outcomes: done())
        queued = self._waiting.get(partition)
        if queued is None:
            done()
        else:
            queued.append(nothing)

    def _start(self, partition: Partition, batches: list[Batch]) -> None:
        future = self._pool.submit(_outcomes, partition, batches)
        future.add_done_callback(lambda f: self._finish_on_loop(partition, batches, f.result()))

    def _finish_on_loop(self, partition: Partition, batches: list[Batch], outcomes: list[LinkRefused | None]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finished, partition, batches, outcomes)
        except RuntimeError:
            # The loop has ended: the producers' connections are gone, and nobody was told of a success.
            logger.warning("an append ended after the server did")

    def _finished(self, partition: Partition, batches: list[Batch], outcomes: list[LinkRefused | None]) -> None:
        if self._closed:
            return  # whoever sent these, or what is queued, is gone
        start = 0
        for batch in batches:
            _tell(partition, batch, outcomes[start : start + len(batch.values)])
            start += len(batch.values)
        # After the outcomes have been told: what is due may depend on them.
        while queued := self._waiting.pop(partition, None):
            self._waiting[partition] = []
            due = []
            for batch in queued:
                if _is_due(partition, batch):
                    due.append(batch)
                else:
                    _tell(partition, batch, _not_due(batch))
            if due:
                self._start(partition, due)
                return

    def close(self) -> None:
        """Wait for what is under way; what is queued behind it is not appended, and nobody is told any more."""
        self._closed = True
        self._pool.shutdown()


def _tell(partition: Partition, batch: Batch, outcomes: list[LinkRefused | None]) -> None:
    """Tell a batch's sender; whoever sent the others, and what is queued, has no part in what goes wrong in that."""
    try:
        batch.done(outcomes)
    except Exception:
        logger.exception("stream %r partition %s: a sender is not told", partition.stream, partition.id)


def _is_due(partition: Partition, batch: Batch) -> bool:
    try:
        return batch.due is None or batch.due()
    except Exception:
        logger.exception("stream %r partition %s: a batch is refused", partition.stream, partition.id)
        return False


def _outcomes(partition: Partition, batches: list[Batch]) -> list[LinkRefused | None]:
    """Append in a thread; whatever goes wrong there is an outcome, for the partition's next append waits for it."""
    try:
        return _store_together(partition, batches)
    except Exception:
        logger.exception("stream %r partition %s: append failed", partition.stream, partition.id)
        refusal = LinkRefused(INTERNAL_ERROR, "an unexpected error in the server, see its log")
        return [refusal] * sum(len(batch.values) for batch in batches)


def _not_due(batch: Batch) -> list[LinkRefused | None]:
    return [LinkRefused(INTERNAL_ERROR, "an earlier append failed")] * len(batch.values)


def _store_together(partition: Partition, batches: list[Batch]) -> list[LinkRefused | None]:
    if len(batches) == 1 or any(batch.notes for batch in batches):
        outcomes: list[LinkRefused | None] = []
        failed = False
        for b in batches:
            # What was due counted on those before it, and whether they failed nobody has been told yet.
            told = (
                _not_due(b)
                if failed and b.due is not None
                else _store(partition, b.values, b.keys, b.timestamps, b.notes, b.groups)
            )
            failed = failed or any(told)
            outcomes += told
        return outcomes
    return _store(
        partition,
        pa.concat_arrays([b.values for b in batches]),
        pa.concat_arrays([b.keys for b in batches]),
        np.concatenate([b.timestamps for b in batches]),
    )


def _store(
    partition: Partition,
    values: pa.Array,
    keys: pa.Array,
    timestamps: NDArray[np.int64],
    notes: Notes = (),
    groups: NDArray[np.int64] | None = None,
) -> list[LinkRefused | None]:
    """Append; events that the stream's rules refuse are found by halving, so that the others are stored."""
    count = len(values)
    if not count:
        return []
    try:
        partition.append(values, keys, timestamps, notes=notes, groups=groups)
    except ValueError as fault:
        if count == 1 or notes:  # notes are about the whole
            return [LinkRefused(INVALID_FIELD, str(fault))] * count
        half = count // 2
        return [
            *_store(partition, values[:half], keys[:half], timestamps[:half]),
            *_store(partition, values[half:], keys[half:], timestamps[half:]),
        ]
    except PartitionEnded as fault:
        # It was split after these were routed: whoever knows their keys may route them anew.
        return [LinkRefused(RESOURCE_DELETED, str(fault))] * count
    except (OSError, LogError) as fault:
        _complain(partition, fault)
        told = f"the log cannot be written: {fault}"
        if is_full(fault):
            return [LinkRefused(RESOURCE_LIMIT, f"{told}: make room on the disk of the log")] * count
        return [LinkRefused(INTERNAL_ERROR, told)] * count
    return [None] * count


def _complain(partition: Partition, fault: Exception) -> None:
    """Log a failed append; while a disk is full each append fails, and the log of that must not fill another one."""
    # A stream that is deleted under its producers is no fault of the log.
    level = logging.INFO if isinstance(fault, PartitionClosed) else logging.ERROR
    now = time.monotonic()
    if now - _complained.get(partition, now - COMPLAIN_S) >= COMPLAIN_S:
        _complained[partition] = now
        logger.log(level, "stream %r partition %s: append failed: %s", partition.stream, partition.id, fault)
