"""Decodes published bodies, an Arrow stream or event lines as in a feed, to rows of stored messages.

::

    application/vnd.apache.arrow.stream  column value (binary or string), and perhaps key (string) and timestamp
    application/x-ndjson                 {"event": …} or {"data": …}, with "key" and "encoding" as in a feed, no others

Stored messages have the AMQP sink's form: a data section, the key as annotation, the timestamp as creation-time. A null
event is an amqp-value null.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import RemoteProtocolError, SchemaError
from spark_streams.log import NO_TIMESTAMP
from spark_streams.server.feed.arrow_sizes import inflated_bytes
from spark_streams.server.http.requests import HttpError
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.feed.line import NDJSON, Dialect
from spark_streams.wire.feed.lines import parse_lines

ARROW: Final = "application/vnd.apache.arrow.stream"
PIECE_BYTES: Final = 128 << 10
"""Bytes to unpack and decode at a time."""
PIECE_ROWS: Final = 16_384
"""Rows of an Arrow stream to decode at a time."""
_BLANK: Final = b" \t\r\n"
_NEWLINE: Final = 0x0A
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string)
_COLUMNS: Final = {
    "value": ("binary or string", (*_TEXTS, pa.types.is_binary, pa.types.is_large_binary)),
    "key": ("string", (*_TEXTS, pa.types.is_null)),
    "timestamp": ("timestamp", (pa.types.is_timestamp, pa.types.is_null)),
}
"""The columns of an Arrow stream: the expected type of each, as text, and the tests of which one has to be true."""


Rows: TypeAlias = pa.RecordBatch
"""Events to store, with the columns of ``SCHEMA``."""
SCHEMA: Final = pa.schema([("values", pa.large_binary()), ("keys", pa.binary()), ("timestamps", pa.int64())])
"""Encoded messages; keys in UTF-8, null for none; ms since the epoch, ``NO_TIMESTAMP`` for none."""
NO_ROWS: Final = Rows.from_pylist([], SCHEMA)


def plain_pieces(body: Iterable[bytes], coding: str, most: int) -> Iterator[bytes]:
    """Decode a body's content coding, a piece at a time.

    Args:
        body: the body as it was sent, in parts.
        coding: its content coding.
        most: how many bytes it may have, decoded.

    Yields:
        Pieces of at most ``PIECE_BYTES``.

    Raises:
        HttpError: 415 for an unknown coding, 413 for too many bytes, 400 for a body that cannot be unpacked.
    """
    given = (part[at : at + PIECE_BYTES] for part in body for at in range(0, len(part), PIECE_BYTES))
    if coding in ("", "identity"):
        yield from given
    elif coding == "gzip":
        size = 0
        for piece in _inflated(given):
            size += len(piece)
            if size > most:
                raise _too_large(most)
            yield piece
    else:
        raise HttpError(415, f"content encoding '{coding:.40}' is not taken, expected gzip or none")


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body has more than {most} bytes when it is unpacked: publish less at a time")


def _inflated(given: Iterator[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        for packed in given:
            if unpacker.eof:
                raise _no_member()
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, PIECE_BYTES)
                packed = unpacker.unconsumed_tail
        # After a full piece the unpacker may have more bytes.
        while not unpacker.eof and (piece := unpacker.decompress(b"", PIECE_BYTES)):
            yield piece
    except zlib.error as fault:
        raise HttpError(400, f"the body is no gzip: {fault}") from fault
    if not unpacker.eof or unpacker.unused_data:
        raise _no_member()


def _no_member() -> HttpError:
    return HttpError(400, "the body is no whole gzip member, or more than one")


def read_body(
    body: Iterable[bytes], coding: str, content_type: str, most: int, most_events: int
) -> Generator[None, None, Rows]:
    """Decode a body in steps of some milliseconds: a generator that yields between them.

    Args:
        body: the body as it was sent, in parts.
        coding: its content coding.
        content_type: its content type.
        most: how many bytes it may have unpacked, an Arrow stream's compressed buffers included.
        most_events: how many events it may hold.

    Returns:
        Its events in their order.

    Raises:
        HttpError: 415 for an unknown content type or coding, 413 for too many bytes or events, 400 for a body that is
            not of its type.
    """
    kind = content_type.partition(";")[0].strip().lower()
    pieces = plain_pieces(body, coding, most)
    if kind == ARROW:
        tables = _arrow(pieces, most)
    elif kind in (NDJSON, "application/ndjson"):
        tables = _lines(pieces)
    else:
        raise HttpError(415, f"content type '{kind:.80}' cannot be published, expected {ARROW} or {NDJSON}")
    parts: list[Rows] = []
    events = 0
    for columns in tables:
        if columns is not None:
            parts.append(_stored(columns))
            events += len(parts[-1])
            if events > most_events:
                raise HttpError(413, f"the body has more than {most_events} events: publish fewer at a time")
        yield
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts or [NO_ROWS])


def read_within(
    size: int, body: Sequence[bytes], coding: str, content_type: str, most: int, most_events: int
) -> Generator[None, None, Rows | None]:
    """Decode a body as ``read_body`` does, if it has at most ``size`` bytes, unpacked too.

    Returns:
        None for a body that has more bytes.

    Raises:
        HttpError: 415 or 400 as ``read_body``.
    """
    if sum(map(len, body)) > size:
        return None
    try:
        return (yield from read_body(body, coding, content_type, min(most, size), most_events))
    except HttpError as refusal:
        if refusal.status_code != 413:
            raise
        return None


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Return a batch's rows, checked as those of an Arrow stream.

    Raises:
        HttpError: 400, the batch has other columns, or rows that cannot be stored.
    """
    _check_columns(batch.schema)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as fault:
        raise HttpError(400, f"the rows cannot be stored: {fault!s:.300}") from fault
    return _stored(_columns_of(batch))


def _arrow(pieces: Iterator[bytes], most: int) -> Iterator[dict[str, pa.Array] | None]:
    """Yield the columns of an Arrow stream, some of its rows at a time; None is a step without rows."""
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece)
        yield None
    body = held[0] if len(held) == 1 else b"".join(held)
    held.clear()
    try:
        if inflated_bytes(body) > most:
            raise _too_large(most)
        with pa.ipc.open_stream(body) as reader:
            _check_columns(reader.schema)  # first: a refused type need not be read
            for batch in reader:
                batch.validate(full=True)
                for start in range(0, batch.num_rows, PIECE_ROWS):
                    yield _columns_of(batch.slice(start, PIECE_ROWS))
    except (pa.ArrowException, OSError, ValueError, struct.error) as fault:
        raise HttpError(400, f"the body is no Arrow stream: {fault!s:.200}") from fault


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    named = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column for name, column in named if not pa.types.is_null(column.type)}


def _check_columns(schema: pa.Schema) -> None:
    names = schema.names
    if "value" not in names or len(set(names)) < len(names) or set(names) - set(_COLUMNS):
        present = ", ".join(names)
        raise HttpError(400, f"the columns are {present:.300}: expected value, and key and timestamp or not")
    for name in names:
        kind = schema.field(name).type
        expected, tests = _COLUMNS[name]
        if not any(test(kind) for test in tests):
            raise HttpError(400, f"column {name} is {kind!s:.200}, expected {expected}")


def _lines(pieces: Iterator[bytes]) -> Iterator[dict[str, pa.Array] | None]:
    """Yield the columns of event lines, those of a piece at a time; None is a step without lines."""
    held: list[bytes] = []
    first = 1
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if not end:
            held.append(piece)
            yield None
            continue
        block = b"".join((*held, piece[:end]))
        held = [piece[end:]] if end < len(piece) else []
        yield _events_of(block, first)
        first += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))
    if held:
        yield _events_of(b"".join(held), first)


def _events_of(block: bytes, first: int) -> dict[str, pa.Array] | None:
    if block.isspace() and not block.strip(_BLANK):  # isspace first: it copies nothing, but accepts more
        return None
    try:
        lines = parse_lines(block, Dialect.PUBLISHED, first=first)
    except RemoteProtocolError as fault:
        raise HttpError(400, str(fault).replace("of the response", "of the body")) from fault
    return {"value": lines.values, **({"key": lines.keys} if lines.keys.null_count < lines.count else {})}


def _stored(columns: dict[str, pa.Array]) -> Rows:
    count = len(columns["value"])
    if not count:
        return NO_ROWS
    try:
        values = encode_columns(columns)
        keys = columns["key"].cast(pa.binary()) if "key" in columns else pa.nulls(count, pa.binary())
        instants = np.full(count, NO_TIMESTAMP, np.int64)
        if "timestamp" in columns:
            micros = columns["timestamp"].cast(pa.timestamp("us", tz=columns["timestamp"].type.tz)).cast(pa.int64())
            floored = np.asarray(pc.fill_null(micros, 0)) // 1000  # N-07: towards the past, as encode_columns does
            instants = np.where(np.asarray(micros.is_valid()), floored, NO_TIMESTAMP)
    except (SchemaError, pa.ArrowInvalid) as fault:
        raise HttpError(400, f"the rows cannot be stored: {fault!s:.300}") from fault
    return Rows.from_arrays([values, keys, pa.array(instants)], schema=SCHEMA)
