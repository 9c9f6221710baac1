"""What a publisher sends: an Arrow stream, or event lines as a feed has them; to rows, and to stored messages.

::

    application/vnd.apache.arrow.stream  column value (binary or string), key (string) and timestamp, or not
    application/x-ndjson                 {"event": …} or {"data": …}, with "key" and "encoding" as a feed says them

Stored messages are what the AMQP sink writes: a data section, the key as annotation, the timestamp as creation-time.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError, SchemaError
from spark_streams.log import NO_TIMESTAMP
from spark_streams.server.feed.arrow_sizes import inflated_bytes
from spark_streams.server.feed.refusals import Refusal
from spark_streams.wire.columns import encode_columns
from spark_streams.wire.feed.dialect import NDJSON, Dialect
from spark_streams.wire.feed.lines import parse_lines

__all__ = ["ARROW", "Rows", "read_rows", "unpacked"]

ARROW: Final = "application/vnd.apache.arrow.stream"
_COLUMNS: Final = ("value", "key", "timestamp")


@dataclass(frozen=True)
class Rows:
    """Events to be stored.

    Args:
        values: encoded messages, large_binary.
        keys: UTF-8 bytes, binary; null for none.
        timestamps: int64, ms since the epoch; ``NO_TIMESTAMP`` for none.
    """

    values: pa.LargeBinaryArray
    keys: pa.BinaryArray
    timestamps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, chosen: NDArray[np.int64]) -> Rows:
        """Return some rows, by their numbers."""
        indices = pa.array(chosen)
        return Rows(self.values.take(indices), self.keys.take(indices), self.timestamps[chosen])

    def joined(self, others: list[Rows]) -> Rows:
        """Return these rows and then others."""
        if not others:
            return self
        every = (self, *others)
        return Rows(
            pa.concat_arrays([each.values for each in every]),
            pa.concat_arrays([each.keys for each in every]),
            np.concatenate([each.timestamps for each in every]),
        )


def unpacked(body: bytes, coding: str, most: int) -> bytes:
    """Take a body's content coding off.

    Raises:
        Refusal: 415 for an unknown one, 413 for too much, 400 for what cannot be unpacked.
    """
    if coding in ("", "identity"):
        return body
    if coding != "gzip":
        raise Refusal(415, f"content encoding '{coding:.40}' is not taken, expected gzip or none")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(body, most + 1)
    except zlib.error as fault:
        raise Refusal(400, f"the body is no gzip: {fault}") from fault
    if len(plain) > most:
        raise Refusal(413, f"the body has more than {most} bytes when it is unpacked: publish less at a time")
    if not unpacker.eof or unpacker.unused_data:
        raise Refusal(400, "the body is no whole gzip member, or more than one")
    return plain


def read_rows(body: bytes, content_type: str, most: int) -> Rows:
    """Read a body.

    Args:
        body: without its content coding.
        content_type: what it says it is.
        most: bytes that an Arrow stream's compressed buffers may become.

    Raises:
        Refusal: 415 for an unknown content type, 413 for too much, 400 for a body that is not what it says.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == ARROW:
        columns = _arrow(body, most)
    elif kind in (NDJSON, "application/ndjson"):
        columns = _lines(body)
    else:
        raise Refusal(415, f"content type '{kind:.80}' cannot be published, expected {ARROW} or {NDJSON}")
    return _stored(columns)


def _arrow(body: bytes, most: int) -> dict[str, pa.Array]:
    try:
        if inflated_bytes(body) > most:
            raise Refusal(413, f"the body has more than {most} bytes when it is unpacked: publish less at a time")
        with pa.ipc.open_stream(body) as reader:
            _check_columns(reader.schema)  # first: what is refused for its type need not be read
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error) as fault:
        raise Refusal(400, f"the body is no Arrow stream: {fault!s:.200}") from fault
    columns: dict[str, pa.Array] = {}
    for name in table.column_names:
        if not pa.types.is_null(table.schema.field(name).type):
            columns[name] = table.column(name).combine_chunks()
    if columns["value"].null_count:
        raise Refusal(400, f"column value has {columns['value'].null_count} nulls: an event needs a value")
    return columns


def _check_columns(schema: pa.Schema) -> None:
    names = schema.names
    if "value" not in names or len(set(names)) < len(names) or set(names) - set(_COLUMNS):
        told = ", ".join(names)
        raise Refusal(400, f"the columns are {told:.300}: expected value, and key and timestamp or not")
    for name in names:
        kind = schema.field(name).type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        good, expected = {
            "value": (binary or text, "binary or string"),
            "key": (text or pa.types.is_null(kind), "string"),
            "timestamp": (pa.types.is_timestamp(kind) or pa.types.is_null(kind), "timestamp"),
        }[name]
        if not good:
            raise Refusal(400, f"column {name} is {kind!s:.200}, expected {expected}")


def _lines(body: bytes) -> dict[str, pa.Array]:
    try:
        lines = parse_lines(body, Dialect.V2A)
    except RemoteProtocolError as fault:
        raise Refusal(400, str(fault).replace("of the response", "of the body")) from fault
    given = sum(1 for line in body.split(b"\n") if line.strip())
    if lines.count != given or len(lines.cursors):
        raise Refusal(
            400,
            f"{given} lines hold {lines.count} events and {len(lines.cursors)} cursors: expected nothing but events, "
            '{"event": …} with a JSON object or a text',
        )
    columns = {"value": lines.values}
    if lines.keys is not None:
        columns["key"] = lines.keys
    return columns


def _stored(columns: dict[str, pa.Array]) -> Rows:
    count = len(columns["value"])
    if not count:
        return Rows(pa.array([], pa.large_binary()), pa.array([], pa.binary()), np.empty(0, np.int64))
    try:
        values = encode_columns(columns)
        keys = columns["key"].cast(pa.binary()) if "key" in columns else pa.nulls(count, pa.binary())
        instants = np.full(count, NO_TIMESTAMP, np.int64)
        if "timestamp" in columns:
            micros = columns["timestamp"].cast(pa.timestamp("us", tz=columns["timestamp"].type.tz)).cast(pa.int64())
            floored = np.asarray(pc.fill_null(micros, 0)) // 1000  # N-07: towards the past, as encode_columns does
            instants = np.where(np.asarray(micros.is_valid()), floored, NO_TIMESTAMP)
    except (SchemaError, pa.ArrowInvalid) as fault:
        raise Refusal(400, f"the rows cannot be stored: {fault!s:.300}") from fault
    return Rows(values, keys, instants)
