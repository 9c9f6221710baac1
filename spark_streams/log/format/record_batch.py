"""Headers and encoding of record batches, the log's stored form: Kafka's v2 with KIP-228's isTimestampExtended bit.

A batch, big-endian::

    0   baseOffset            i64    set by the log; outside the CRC
    8   batchLength           i32    bytes after this field
    12  partitionLeaderEpoch  i32    0 here; outside the CRC
    16  magic                 i8     2
    17  crc                   u32    CRC-32C of everything from attributes to the end
    21  attributes            i16    bits 0-2 compression, 3 timestampType (1: append), 4 isTransactional,
                                     5 isControlBatch, 6 isTimestampExtended
    23  lastOffsetDelta       i32
    27  baseTimestamp         i64    of the first record ("firstTimestamp" in the KIP)
    35  maxTimestamp          i64    of the records, or the append time
    43  producerId            i64    -1
    51  producerEpoch         i16    -1
    53  baseSequence          i32    -1
    57  recordsCount          i32
    61  records

A record, all varints zigzag::

    length varint | attributes i8 | timestampDelta varlong | offsetDelta varint
    | keyLength varint (-1: null) | key | valueLength varint (-1: null) | value
    | headersCount varint | (keyLength varint | key | valueLength varint | value)*

A batch whose isTimestampExtended bit is set says "no timestamp" with Long.MIN_VALUE, and every other value is an
instant, -1 among them; a batch without the bit says it with -1. Inside this package "no timestamp" is always
``NO_TIMESTAMP``. The rows W1..W9 and R1..R7 are in docs/specifications.md.

Today's Kafka gives bit 6 another meaning (hasDeleteHorizonMs, KIP-534): the log never sends these batches to a Kafka
nor reads them from one. It refuses compressed, transactional and control batches: nothing here writes them, and no door
could serve them.

Spec: KIP-228, "Changes in binary message format"; Kafka documentation, "Implementation: message format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

# CRC-32C comes from a library: google-crc32c uses the processor's instruction, is Apache-2.0 and ships wheels for every
# supported Python, which the LGPL package `crc32c` and pure Python versions do not offer together.
import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.log.format.record_encode import NO_HEADERS, encode_columns
from spark_streams.log.format.varint import MAX_VARINT_BYTES, encode_varint

NO_TIMESTAMP = -(2**63)
"""Long.MIN_VALUE: no timestamp in extended batches, and everywhere in this package's own API."""
LEGACY_NO_TIMESTAMP = -1
"""No timestamp in batches without the bit."""
OnNegative = Literal["error", "degrade"]
HEADER_BYTES: Final = 61
FEW_RECORDS: Final = 96
"""Up to so many records, encoding one by one beats the fixed cost of columns (measured: break-even is near 100)."""
LENGTH_PREFIX_BYTES: Final = 12
"""baseOffset and batchLength: what must be read to know where the batch ends."""
CRC_START: Final = 21
MAGIC: Final = 2
COMPRESSION_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
EXTENDED: Final = 0x40
KNOWN_BITS: Final = APPEND_TIME | EXTENDED

COPIED_BYTES: Final = 16 << 10
"""A copy of so many bytes costs as much as a view does."""
AT_ONCE_BYTES: Final = 1 << 20
"""The most bytes to copy or check with Python's lock held; google_crc32c releases it for bytes objects this large."""
NULL: Final = encode_varint(-1)
"""The length of a null key or value."""
MAX_BATCH_LENGTH: Final = 2**31 - 1
"""The largest batchLength, an int32."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNSTAMPED = struct.Struct(">qiibI")
"""The part of the header before the bytes that the CRC covers."""
_STAMPED = struct.Struct(">hiqqqhii")
"""The rest of the header."""
_COMPRESSIONS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
Header = tuple[bytes, bytes | None]
"""A record header: its key, and its value or null."""


class BatchFault(ValueError):
    """Some bytes are no record batch of this log; the message names the failed check."""


class BatchHeader(NamedTuple):
    """The fixed part of a batch; ``size`` is the whole batch in bytes, header included.

    A named tuple, as the scan at start-up makes one for each batch: a frozen dataclass takes four times as long.
    """

    base_offset: int
    size: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    records_count: int

    @property
    def extended(self) -> bool:
        """Whether KIP-228's bit is set."""
        return bool(self.attributes & EXTENDED)

    @property
    def append_time(self) -> bool:
        """Whether every record has the batch's ``max_timestamp``."""
        return bool(self.attributes & APPEND_TIME)

    @property
    def next_offset(self) -> int:
        """1 + the last record's offset."""
        return self.base_offset + self.last_offset_delta + 1


def parse_header(buffer: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Read the header at ``position``; the CRC is not checked here.

    Raises:
        BatchFault: fewer than 61 bytes, another magic, or invalid lengths and counts.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise BatchFault(f"{len(buffer) - position} bytes are no whole batch header of {HEADER_BYTES}")
    (base, length, epoch, magic, crc, attributes, last_delta, base_ts, max_ts, _, _, _, count) = _HEADER.unpack_from(
        buffer, position
    )
    if magic != MAGIC:
        raise BatchFault(f"magic is {magic}, expected {MAGIC} (record batch v2)")
    size = length + LENGTH_PREFIX_BYTES
    if size < HEADER_BYTES:
        raise BatchFault(f"batch length {length} is shorter than a header")
    if base < 0 or count < 0 or last_delta < 0 or count != last_delta + 1:
        raise BatchFault(f"base offset {base}, last offset delta {last_delta} and {count} records do not fit together")
    return BatchHeader(base, size, epoch, crc, attributes, last_delta, base_ts, max_ts, count)


def batch_max_timestamp(header: BatchHeader) -> int:
    """Return a batch's largest timestamp, in ms since the epoch; ``NO_TIMESTAMP`` when no record has one."""
    none = not header.extended and header.max_timestamp == LEGACY_NO_TIMESTAMP
    return NO_TIMESTAMP if none else header.max_timestamp


def check_place(header: BatchHeader, offset: int, bytes_left: int) -> None:
    """Check what the CRC does not cover: base offset, leader epoch and length.

    Args:
        header: the batch's header.
        offset: the expected base offset.
        bytes_left: how many bytes the segment has from the batch's beginning on.

    Raises:
        BatchFault: a check failed.
    """
    if header.base_offset != offset:
        raise BatchFault(f"the batch says offset {header.base_offset}, expected {offset}")
    if header.leader_epoch:
        raise BatchFault(f"the batch says leader epoch {header.leader_epoch}, expected 0")
    if header.size > bytes_left:
        raise BatchFault(f"the batch says {header.size} bytes, {bytes_left} are there")


def verify(buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
    """Check that the whole batch is there, its CRC fits, and that it is of a kind this log stores.

    Raises:
        BatchFault: a check failed.
    """
    end = position + header.size
    if end > len(buffer):
        raise BatchFault(f"the batch says {header.size} bytes, {len(buffer) - position} are there")
    found = _crc(buffer, position + CRC_START, end)
    if found != header.crc:
        raise BatchFault(f"CRC-32C is {found:08x}, the batch says {header.crc:08x}")
    compression = header.attributes & COMPRESSION_MASK
    if compression:
        name = _COMPRESSIONS.get(compression, str(compression))
        raise BatchFault(f"the batch is compressed ({name}); this log stores uncompressed batches only")
    if header.attributes & (TRANSACTIONAL | CONTROL):
        raise BatchFault("the batch is transactional or a control batch; this log stores neither")
    if header.attributes & ~KNOWN_BITS:
        raise BatchFault(f"attributes {header.attributes:#06x} have bits that this log does not know")


def _crc(buffer: bytes | memoryview, start: int, end: int) -> int:
    """Return the CRC-32C of a part of a buffer.

    A short part is copied; a longer one, whose copy would cost more than the CRC, is read in views, each with the lock.
    """
    if end - start < COPIED_BYTES:
        return google_crc32c.value(bytes(memoryview(buffer)[start:end]))  # type: ignore[no-any-return]
    crc = 0
    whole = np.frombuffer(buffer, np.uint8)
    for at in range(start, end, AT_ONCE_BYTES):
        crc = google_crc32c.extend(crc, whole[at : min(at + AT_ONCE_BYTES, end)])
    return crc


class Body(NamedTuple):
    """The encoded records of one batch, to which ``seal`` gives a place in the log.

    Args:
        parts: the records' bytes, in one part or several.
        records_count: the number of records.
        attributes: the batch's attributes, int16.
        base_timestamp: the first record's timestamp, as stored, in ms; unused in a batch of append time.
        max_timestamp: the largest timestamp of the records, likewise.
    """

    parts: tuple[bytes | memoryview, ...]
    records_count: int
    attributes: int
    base_timestamp: int = 0
    max_timestamp: int = 0


def seal(body: Body, base_offset: int, append_time_ms: int = 0) -> tuple[BatchHeader, bytes]:
    """Return a whole batch around encoded records, with its CRC: its header, and its bytes.

    Args:
        body: the records.
        base_offset: the first record's offset.
        append_time_ms: the time of the append, for a batch of append time.

    Raises:
        ValueError: the batch has more bytes than the format's batchLength can hold.
    """
    parts, count, attributes, base, highest = body
    if attributes & APPEND_TIME:
        base = highest = append_time_ms
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + sum(map(len, parts))
    if length > MAX_BATCH_LENGTH:
        raise ValueError(f"{length} bytes are more than a batch holds, {MAX_BATCH_LENGTH}: send less")
    stamped = _STAMPED.pack(attributes, count - 1, base, highest, -1, -1, -1, count)
    crc = google_crc32c.value(stamped)
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
        else:  # Python copies with its lock held, but joins bytes objects without
            pieces += [bytes(part[at : at + AT_ONCE_BYTES]) for at in range(0, len(part), AT_ONCE_BYTES)]
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    header = BatchHeader(base_offset, length + LENGTH_PREFIX_BYTES, 0, crc, attributes, count - 1, base, highest, count)
    return header, b"".join((_UNSTAMPED.pack(base_offset, length, 0, MAGIC, crc), stamped, *pieces))


def encode_batch(
    values: pa.LargeBinaryArray,
    keys: pa.LargeBinaryArray | None,
    timestamps: npt.NDArray[np.int64] | None,
    *,
    extended: bool,
    headers: Sequence[Header] = (),
) -> Body:
    """Encode n records as one batch, in columns; none but the first has headers.

    Args:
        values: the values, none null.
        keys: the keys, or None when all are null.
        timestamps: as stored (``to_stored``), in ms, all of them "none" or none of them; None: the batch says
            timestampType 1, and the time of the append is every record's timestamp.
        extended: whether to set KIP-228's bit.
        headers: those of the first record.
    """
    # The deltas are modulo 2^64; a reader adds them back modulo 2^64.
    records, second = encode_columns(values, keys, None if timestamps is None else timestamps - timestamps[0])
    parts: tuple[bytes | memoryview, ...] = (records, NO_HEADERS)
    if headers:
        # The first record stays as it is, except for its length and its number of headers.
        size_bytes = next(n for n, byte in enumerate(bytes(records[:MAX_VARINT_BYTES]), 1) if byte < 0x80)
        first, encoded = records[size_bytes : second - len(NO_HEADERS)], _headers(headers)
        others = (records[second:], NO_HEADERS) if len(values) > 1 else ()
        parts = (encode_varint(len(first) + len(encoded)), first, encoded, *others)
    return _body(parts, len(values), timestamps, extended=extended)


def encode_few(
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    timestamps: npt.NDArray[np.int64] | None,
    *,
    extended: bool,
    headers: Sequence[Header] = (),
) -> Body:
    """Encode a few records as one batch, one by one and from Python objects; see ``encode_batch``."""
    deltas = [0] * len(values) if timestamps is None else (timestamps - timestamps[0]).tolist()
    records = [
        single_record(value, key=key, headers=() if row else headers, timestamp_delta=delta, offset_delta=row)
        for row, (value, key, delta) in enumerate(zip(values, keys, deltas, strict=True))
    ]
    return _body((b"".join(records),), len(values), timestamps, extended=extended)


def _body(
    parts: tuple[bytes | memoryview, ...], count: int, timestamps: npt.NDArray[np.int64] | None, *, extended: bool
) -> Body:
    bits = EXTENDED if extended else 0
    if timestamps is None:
        return Body(parts, count, bits | APPEND_TIME)
    return Body(parts, count, bits, int(timestamps[0]), int(timestamps.max()))


def single_record(
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: Sequence[Header] = (),
    timestamp_delta: int = 0,
    offset_delta: int = 0,
) -> bytes:
    """Encode one record with its headers; slower than ``encode_batch``, which encodes only records without headers."""
    # Straight-line code: one record at a time is how most doors append, and a generator costs as much as the rest.
    body = b"".join(
        (
            b"\x00",
            encode_varint(timestamp_delta),
            encode_varint(offset_delta),
            _sized(key),
            _sized(value),
            _headers(headers) if headers else NO_HEADERS,
        )
    )
    return encode_varint(len(body)) + body


def _headers(headers: Sequence[Header]) -> bytes:
    return b"".join((encode_varint(len(headers)), *(_sized(part) for header in headers for part in header)))


def _sized(part: bytes | None) -> bytes:
    return NULL if part is None else encode_varint(len(part)) + part


class TimestampRefused(ValueError):
    """A record batch cannot store a timestamp under its rule."""


def from_stored(timestamps: npt.NDArray[np.int64], extended: npt.NDArray[np.bool_] | bool) -> npt.NDArray[np.int64]:
    """Return what stored timestamps mean to a reader that knows KIP-228.

    Rows R1 (-1 without the bit is none), R2 (-1 with it is an instant), R3 and R6 (MIN is none), R4, R5 and R7 (every
    other value stays: a reader survives negatives that other clients stored).

    Args:
        timestamps: int64[n], as stored, in ms.
        extended: whether the batch carries the bit; bool[n] when the records are of several batches.

    Returns:
        int64[n], instants in ms since the epoch; ``NO_TIMESTAMP`` for none.
    """
    none = ~np.asarray(extended) & (timestamps == LEGACY_NO_TIMESTAMP)
    return np.where(none, np.int64(NO_TIMESTAMP), timestamps)


def to_stored(
    timestamps: npt.NDArray[np.int64], extended: bool, on_negative: OnNegative = "error"
) -> npt.NDArray[np.int64]:
    """Return the values to store for instants in ms (``NO_TIMESTAMP`` for none).

    Args:
        timestamps: instants, or ``NO_TIMESTAMP``.
        extended: whether the batch carries the bit (rows W4, W6, W8); without it (W1, W3, W5, W9) only instants from
            1970 on can be held.
        on_negative: without the bit, ``error`` refuses an instant before 1970, ``degrade`` stores it as none.

    Raises:
        TimestampRefused: an instant before 1970 in a batch without the bit, under ``error``.
    """
    if extended:
        return timestamps
    real_negative = (timestamps < 0) & (timestamps != NO_TIMESTAMP)
    if on_negative == "error" and real_negative.any():
        first = int(timestamps[int(np.argmax(real_negative))])
        raise TimestampRefused(
            f"timestamp {first} ms lies before 1970, and this stream stores batches without KIP-228's bit: create the "
            "stream with timestamp_format 'extended', or with legacy_negative 'degrade' to store it without a timestamp"
        )
    return np.where(timestamps < 0, np.int64(LEGACY_NO_TIMESTAMP), timestamps)
