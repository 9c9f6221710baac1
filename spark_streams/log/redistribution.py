"""Copying the records of a partition onto others, by their keys: the work of a split that takes the history along.

What is appended together stays together: each stored batch of the parent becomes at most one of each child (unless it
is too large), with its timestamps and its notes; of notes by record each gets what is about its own. Records without a
key go to the children in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import LogError
from spark_streams.log.format.batch_headers import notes_of_rows
from spark_streams.log.format.record_batch import Header
from spark_streams.log.format.records import Records, record_headers
from spark_streams.log.format.timestamps import NO_TIMESTAMP
from spark_streams.log.split_history import SplitHistory
from spark_streams.log.storage.partition import Copied, Partition

__all__ = ["PUBLISHERS_SUFFIX", "Redistribution"]

PUBLISHERS_SUFFIX = b"-publishers"
"""How the names of notes end whose value is a JSON object of publishers and their last sequence numbers."""
READ_BYTES = 4 << 20
KNOWN_KEYS = 100_000


class Redistribution:
    """The copies that are being made; to be asked once more while the parent is held, when nothing can be added.

    Args:
        parent: what is split; retention has to leave it alone.
        children: empty partitions that begin at the parent's first offset.
        child_of: key to index of the child.
    """

    def __init__(self, parent: Partition, children: Sequence[Partition], child_of: Callable[[bytes], int]) -> None:
        self._parent = parent
        self._children = children
        self._child_of = lru_cache(KNOWN_KEYS)(child_of)
        self._first = self._next = parent.first_offset
        self._places: list[NDArray[np.uint8]] = []
        self._notes: dict[str, dict[str, int]] = {}

    @property
    def behind(self) -> int:
        """How many records of the parent are not copied yet."""
        return self._parent.next_offset - self._next

    def catch_up(self) -> None:
        """Copy what was appended since the last call.

        Raises:
            LogError: records have headers of their own.
            OSError: the system refused a write.
            CorruptLog: the parent's records cannot be read.
        """
        end = self._parent.next_offset
        while self._next < end:
            records = self._parent.read(self._next, READ_BYTES)
            assert records is not None and int(records.offsets[0]) == self._next
            self._copy(records)
            self._next += len(records)

    def history(self) -> SplitHistory:
        """Return where each record went."""
        places = np.concatenate([np.empty(0, np.uint8), *self._places])
        return SplitHistory(self._first, places, self._notes)

    def _copy(self, records: Records) -> None:
        self._check_headers(records)
        places = self._places_of(records)
        self._places.append(places)
        copies: list[list[Copied]] = [[] for _ in self._children]
        for start, stop in zip(records.batch_rows, (*records.batch_rows[1:], len(records)), strict=True):
            notes = tuple(record_headers(records, start))
            self._learn(notes)
            here = places[start:stop]
            for child in np.unique(here).tolist():
                copies[child].append(_picked(records, np.flatnonzero(here == child), start, notes))
        now = self._parent.appended_ms(self._next)
        for child, made in zip(self._children, copies, strict=True):
            if made:
                child.append_copies(made, now)

    def _places_of(self, records: Records) -> NDArray[np.uint8]:
        places = (records.offsets % len(self._children)).astype(np.uint8)
        for row in np.flatnonzero(records.key_starts >= 0).tolist():
            places[row] = self._child_of(records.key(row) or b"")
        return places

    def _check_headers(self, records: Records) -> None:
        after = np.frombuffer(records.buffer, np.uint8)[records.value_ends]
        after[list(records.batch_rows)] = 0
        if after.any():
            offset = int(records.offsets[np.flatnonzero(after)[0]])
            raise LogError(
                f"record {offset} of partition {self._parent.id} of stream '{self._parent.stream}' has headers of its "
                "own, which are not redistributed: split without the history"
            )

    def _learn(self, notes: Sequence[Header]) -> None:
        for name, value in notes:
            if name.endswith(PUBLISHERS_SUFFIX):
                known = self._notes.setdefault(name.decode(), {})
                for reference, sequence in json.loads(value or b"{}").items():
                    known.pop(reference, None)  # who wrote last is forgotten last
                    known[reference] = sequence


def _picked(records: Records, rows: NDArray[np.int64], start: int, notes: tuple[Header, ...]) -> Copied:
    """Return some records of the batch that begins at row ``start``; ``rows`` count from there."""
    chosen = (rows + start).tolist()
    timestamps = records.timestamps[rows + start]
    none = timestamps == NO_TIMESTAMP
    return Copied(
        [records.value(row) for row in chosen],
        [records.key(row) for row in chosen],
        timestamps,
        lambda first, end: notes_of_rows(notes, rows[first:end]),
        together=bool(none.all() or not none.any()),
    )
