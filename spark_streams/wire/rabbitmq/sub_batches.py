"""Read and write sub-batches: several records, perhaps compressed, in one entry.

::

    sub-batch   1(bit) compression(3 bits) 0(4 bits) records(u16) plain bytes(u32) stored bytes(u32) body
    body        inflated: for each record  0(bit) length(31 bits) message

Spec: docs/specifications.md, S-41 to S-43; osiris_log.erl, "Entry".
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Positions, Readable
from spark_streams.wire.rabbitmq.compression import Compression, compress, decompress
from spark_streams.wire.rabbitmq.entries import Entries, read_entries

MAX_PLAIN_BYTES: Final = 64 << 20
"""The most bytes to which one sub-batch may inflate: the limit of brokers (S-43)."""
SUB_BATCH_HEAD_BYTES: Final = 11
_HEAD: Final = struct.Struct(">BHII")


class SubBatch(NamedTuple):
    """The head of a sub-batch.

    Args:
        compression: a ``Compression``, or another number of three bits.
        records: number of records inside.
        plain_bytes: number of bytes to which the body inflates.
        start: first byte of the stored body, inclusive.
        end: byte after it.
    """

    compression: int
    records: int
    plain_bytes: int
    start: int
    end: int

    @classmethod
    def read(cls, buffer: Readable, at: int, end: int) -> SubBatch:
        """Read the head at ``at``; of the body, check only that it ends by ``end``.

        Raises:
            RemoteProtocolError: the head or the body is incomplete.
        """
        start = at + SUB_BATCH_HEAD_BYTES
        if start > end:
            raise RemoteProtocolError(f"a sub-batch's head of 11 bytes at byte {at}: {end - at} are left")
        kind, records, plain_bytes, stored_bytes = _HEAD.unpack_from(buffer, at)
        if stored_bytes > end - start:
            raise RemoteProtocolError(f"a sub-batch of {stored_bytes} bytes at byte {at}: {end - start} are left")
        return cls(kind >> 4 & 7, records, plain_bytes, start, start + stored_bytes)

    def check(self, max_plain_bytes: int) -> None:
        """Make the checks that brokers make before they accept a sub-batch.

        Raises:
            RemoteProtocolError: it is bad.
        """
        if not self.records:
            raise RemoteProtocolError("a sub-batch of no records: expected at least 1")
        if 4 * self.records > self.plain_bytes:
            raise RemoteProtocolError(f"a sub-batch of {self.records} records in {self.plain_bytes} bytes")
        if self.plain_bytes > max_plain_bytes:
            raise RemoteProtocolError(f"a sub-batch of {self.plain_bytes} bytes: expected at most {max_plain_bytes}")


class RecordSpans:
    """The places of the messages of entries of both kinds, collected in order.

    Args:
        buffer: holds the entries.
        max_sub_batch_bytes: the most bytes to which one sub-batch may inflate.
        max_inflated_bytes: the most bytes to which all of them together may inflate.

    Attributes:
        records: number of records collected so far.
        inflated_bytes: number of bytes to which compressed sub-batches have inflated so far.
    """

    def __init__(self, buffer: Readable, max_sub_batch_bytes: int, max_inflated_bytes: int) -> None:
        self.records = 0
        self.inflated_bytes = 0
        self._buffer = buffer
        self._max_sub_batch_bytes = max_sub_batch_bytes
        self._max_inflated_bytes = max_inflated_bytes
        self._inflated: list[bytes] = []
        self._runs: list[tuple[int, Entries]] = []

    def add(self, entries: Entries) -> None:
        """Add plain entries."""
        self._keep(0, entries)

    def add_sub_batch(self, batch: SubBatch) -> None:
        """Add a sub-batch's records.

        Raises:
            RemoteProtocolError: the sub-batch is bad; none of its records was added.
        """
        batch.check(self._max_sub_batch_bytes)
        if batch.compression == Compression.NONE:
            if batch.end - batch.start != batch.plain_bytes:
                raise RemoteProtocolError(
                    f"a sub-batch of {batch.end - batch.start} bytes: expected {batch.plain_bytes}, as its head says"
                )
            self._keep(0, _records(self._buffer, batch.start, batch.end, batch.records))
            return
        if batch.plain_bytes > self._max_inflated_bytes - self.inflated_bytes:
            raise RemoteProtocolError("sub-batches that inflate to more than what is taken at once")
        packed = memoryview(self._buffer)[batch.start : batch.end]
        plain = decompress(batch.compression, packed, batch.plain_bytes)
        entries = _records(plain, 0, len(plain), batch.records)
        self.inflated_bytes += len(plain)
        self._inflated.append(plain)
        self._keep(len(self._inflated), entries)

    def _keep(self, piece: int, entries: Entries) -> None:
        if entries.starts.size:
            self._runs.append((piece, entries))
            self.records += entries.starts.size

    def collected(self) -> tuple[Readable, Positions, Positions]:
        """Return a buffer, and every record's start (inclusive) and end (exclusive) in it, in rising order."""
        pieces: list[Readable] = [self._buffer, *self._inflated]
        nothing = np.empty(0, np.int64)
        if not self._runs:
            return self._buffer, nothing, nothing
        if len({piece for piece, _ in self._runs}) == 1:
            buffer, shifts = pieces[self._runs[0][0]], [0] * len(self._runs)
        else:
            # Keep the order of the entries: bytes of the frame after an inflated sub-batch come after it.
            parts: list[Readable] = []
            shifts, end = [], 0
            for piece, entries in self._runs:
                first, stop = int(entries.starts[0]), int(entries.ends[-1])
                parts.append(memoryview(pieces[piece])[first:stop])
                shifts.append(end - first)
                end += stop - first
            buffer = b"".join(parts)
        starts = [entries.starts + shift for shift, (_, entries) in zip(shifts, self._runs, strict=True)]
        ends = [entries.ends + shift for shift, (_, entries) in zip(shifts, self._runs, strict=True)]
        if len(starts) == 1:
            return buffer, starts[0], ends[0]
        return buffer, np.concatenate(starts), np.concatenate(ends)


def _records(buffer: Readable, at: int, end: int, count: int) -> Entries:
    entries = read_entries(buffer, at, end, count)
    if entries.starts.size < count:
        raise RemoteProtocolError("a sub-batch inside a sub-batch: expected plain records")
    if entries.stop != end:
        raise RemoteProtocolError(f"a sub-batch with {end - entries.stop} bytes after its {count} records")
    return entries


def pack_sub_batch(kind: int, records: int, plain: Readable) -> bytes:
    """Return a sub-batch, head included, of records that are already encoded as a chain of entries.

    Raises:
        LocalProtocolError: there is no record, there are too many records or bytes, or the compression is unknown.
    """
    if not 1 <= records <= 0xFFFF:
        raise LocalProtocolError(f"a sub-batch of {records} messages: expected 1 to 65535")
    if len(plain) > MAX_PLAIN_BYTES:
        raise LocalProtocolError(f"a sub-batch of {len(plain)} bytes: expected at most {MAX_PLAIN_BYTES}")
    stored = compress(kind, plain)
    return _HEAD.pack(0x80 | kind << 4, records, len(plain), len(stored)) + stored
