"""Renders stored events for one kind of fetch: applies its filters, and writes the lines of its dialect."""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.log import Records
from spark_streams.log.format.records import message_columns_of
from spark_streams.server.feed.event_filters import wanted
from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.fetch_arguments import Fetch
from spark_streams.wire.feed.lines_encode import encode_lines

ALL_HEADERS: Final = "_all"


def checkpoint(fetch: Fetch, cursor: str) -> bytes:
    """Return the line of a checkpoint.

    Args:
        fetch: the fetch that it answers; version 1 has the partition in each line.
        cursor: the cursor, hexadecimal digits.
    """
    if fetch.dialect is Dialect.V1:
        return b'{"partition":%d,"cursor":"%s"}\n' % (fetch.partition, cursor.encode())
    return b'{"cursor":"%s"}\n' % cursor.encode()


def render(records: Records, fetch: Fetch) -> tuple[NDArray[np.int64] | None, bytes]:
    """Return the rows that pass the filters of a fetch, None for all, and their lines in its dialect."""
    rows: NDArray[np.int64] | None = None
    names = ("value", "key", *(("application_properties",) if fetch.headers else ()))
    if fetch.filters:
        rows = wanted(records, fetch.filters)
        records = records.take(rows)
        if not len(rows):
            return rows, b""
    columns = message_columns_of(records, names)
    # A message without a body is an event, too: the empty text.
    values = pc.fill_null(columns["value"], b"")
    keys = columns["key"] if columns["key"].null_count < len(values) else None
    lines = encode_lines(values, fetch.dialect, fetch.partition, keys=keys)
    if fetch.headers:
        lines = _with_headers(lines, columns["application_properties"], fetch.headers)
    return rows, lines


def _with_headers(lines: bytes, properties: pa.MapArray, names: tuple[str, ...]) -> bytes:
    """Put the member ``headers`` into lines of version 1; clients seldom request it, so a loop is fast enough."""
    out = []
    for line, pairs in zip(lines.split(b"\n")[:-1], properties.to_pylist(), strict=True):
        given = {
            name: value for name, value in pairs or () if value is not None and (ALL_HEADERS in names or name in names)
        }
        head, comma, rest = line.partition(b",")
        members = json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
        out.append((head + b',"headers":' + members + comma + rest if given else line) + b"\n")
    return b"".join(out)
