"""Redistributes the history of a split partition: copies its records to its children, and keeps a file about it.

Records go to the child of their key, records without a key to the children in turn. What is appended together stays
together: each stored batch of the parent becomes at most one of each child (unless it is too large), with its
timestamps and its notes. Notes by record are divided: each child's batch gets those of its own records.

The file ``DIR/streams/NAME/splits/PARTITION`` outlives the partition, big-endian::

    0    first offset   i64    that was retained; the children's offsets begin there too
    8    count          i64    of records
    16   notes length   u32
    20   notes          JSON   name of a note of publishers to its publishers' last sequence numbers
    ..   children       u8 each: the child that has the record, an index into the parent's children
    end  crc            u32    CRC-32C of everything before

A child has its share of the records in the parent's order. Record number k of the share is record number k of the
child, so an offset of the parent becomes an offset of a child by counting how many records before it went there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import CorruptLog, LogError
from spark_streams.log.config import StreamConfig
from spark_streams.log.format.batch_headers import headers_of_rows
from spark_streams.log.format.batching import encode_records
from spark_streams.log.format.record_batch import NO_TIMESTAMP, Body, Header
from spark_streams.log.format.records import Records, record_headers
from spark_streams.log.storage.files import write_atomically
from spark_streams.log.storage.partition import Partition

PUBLISHERS_SUFFIX = b"-publishers"
"""The end of the names of notes whose value is a JSON object of publishers and their last sequence numbers."""
READ_BYTES = 4 << 20
KNOWN_KEYS = 100_000
_HEAD: Final = struct.Struct(">qqI")
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, eq=False)
class SplitHistory:
    """Where the records of a redistributed partition went.

    Args:
        first_offset: the first record that was retained.
        children: uint8[n], for each record from there on the index of the child that has it.
        notes: name of a note of publishers to its publishers' last sequence numbers.
    """

    first_offset: int
    children: NDArray[np.uint8]
    notes: Mapping[str, Mapping[str, int]]

    def translate(self, child: int, offset: int) -> int:
        """Return the next record to read on a child where ``offset`` was the next one to read on the parent.

        An offset whose record retention had removed becomes an offset below the child's first. An offset beyond the
        parent's end counts as the end.
        """
        if offset < self.first_offset:
            return offset
        return self.first_offset + int(np.count_nonzero(self.children[: offset - self.first_offset] == child))

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all, and force it to the disk.

        Raises:
            OSError: the system refused.
        """
        notes = json.dumps(self.notes, separators=(",", ":")).encode()
        content = _HEAD.pack(self.first_offset, len(self.children), len(notes)) + notes + self.children.tobytes()
        write_atomically(path, content + _CRC.pack(google_crc32c.value(content)))

    @classmethod
    def read(cls, path: Path) -> SplitHistory:
        """Read the file.

        Raises:
            CorruptLog: the file is missing or fails its check.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise CorruptLog(str(path), 0, "the file is missing") from None
        end = len(content) - _CRC.size
        if end < _HEAD.size or _CRC.unpack_from(content, end)[0] != google_crc32c.value(content[:end]):
            raise CorruptLog(str(path), 0, "the file does not pass its CRC-32C")
        first, count, size = _HEAD.unpack_from(content)
        start = _HEAD.size + size
        if start + count != end:
            raise CorruptLog(str(path), 8, f"it says {count} records and has room for {end - start}")
        notes = json.loads(content[_HEAD.size : start])
        return cls(first, np.frombuffer(content, np.uint8, count, start), notes)


class Redistribution:
    """Copies the records of one partition; the last call of ``catch_up`` runs while the parent is held against appends.

    Args:
        parent: the partition that is split; retention must leave it alone.
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
        """Copy the records that were appended since the last call.

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
        """Return where each copied record went."""
        places = np.concatenate([np.empty(0, np.uint8), *self._places])
        return SplitHistory(self._first, places, self._notes)

    def _copy(self, records: Records) -> None:
        self._check_headers(records)
        places = (records.offsets % len(self._children)).astype(np.uint8)
        for row in np.flatnonzero(records.key_starts >= 0).tolist():
            places[row] = self._child_of(records.key(row) or b"")
        self._places.append(places)
        copies: list[list[tuple[list[Body], int]]] = [[] for _ in self._children]
        for start, stop in zip(records.batch_rows, (*records.batch_rows[1:], len(records)), strict=True):
            notes = tuple(record_headers(records, start))
            self._learn(notes)
            here = places[start:stop]
            for child in np.unique(here).tolist():
                copies[child].append(_picked(records, np.flatnonzero(here == child), start, notes, self._parent.config))
        now = self._parent.appended_ms(self._next)
        for child, made in zip(self._children, copies, strict=True):
            if made:
                child.append_copies(made, now)

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
                    known.pop(reference, None)  # keeps references in the order of their last append
                    known[reference] = sequence


def _picked(
    records: Records, rows: NDArray[np.int64], start: int, notes: tuple[Header, ...], config: StreamConfig
) -> tuple[list[Body], int]:
    """Encode some records of the batch that begins at row ``start``, and return the first one's timestamp with them.

    They share one batch, unless some of them have a timestamp and others none; ``rows`` count from ``start``.
    """
    chosen = (rows + start).tolist()
    timestamps = records.timestamps[rows + start]
    none = timestamps == NO_TIMESTAMP
    bodies = encode_records(
        [records.value(row) for row in chosen],
        [records.key(row) for row in chosen],
        timestamps,
        config,
        lambda first, end: headers_of_rows(notes, rows[first:end]),
        np.array([len(rows)]) if none.all() or not none.any() else None,
    )
    return bodies, int(timestamps[0])
