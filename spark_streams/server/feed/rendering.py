"""Renders stored events for one kind of fetch: applies its filters, and writes the lines of its dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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


def checkpoint(dialect: Dialect, partition: int, cursor: str) -> bytes:
    """Return the line of a checkpoint.

    Args:
        dialect: the dialect; version 1 has the partition in each line.
        partition: the partition's number there.
        cursor: the cursor, hexadecimal digits.
    """
    if dialect is Dialect.V1:
        return b'{"partition":%d,"cursor":"%s"}\n' % (partition, cursor.encode())
    return b'{"cursor":"%s"}\n' % cursor.encode()


@dataclass(frozen=True)
class Rendering:
    """How the events of one partition are rendered for one kind of fetch.

    Args:
        dialect: the dialect, which decides the members of a line.
        partition: the partition's number in lines of version 1; else 0.
        filters: name to value, as ``wanted`` takes them.
        headers: version 1: names of application properties to send along, or ``_all``.
    """

    dialect: Dialect
    partition: int
    filters: Mapping[str, str] = field(default_factory=dict)
    headers: tuple[str, ...] = ()

    @classmethod
    def of(cls, fetch: Fetch) -> Rendering:
        """Return the rendering that a fetch requests."""
        partition = fetch.partition if fetch.dialect is Dialect.V1 else 0
        return cls(fetch.dialect, partition, dict(fetch.filters), fetch.headers)

    @property
    def key(self) -> tuple[object, ...] | None:
        """The key that fetches with the same rendered events share; None: this fetch shares none."""
        return None if self.filters or self.headers else (self.dialect, self.partition)

    def render(self, records: Records) -> tuple[NDArray[np.int64] | None, bytes]:
        """Return the rows that pass the filters, None for all, and their lines."""
        rows: NDArray[np.int64] | None = None
        names = ("value", "key", *(("application_properties",) if self.headers else ()))
        if self.filters:
            rows = wanted(records, self.filters)
            records = records.take(rows)
            if not len(rows):
                return rows, b""
        columns = message_columns_of(records, names)
        # A message without a body is an event, too: the empty text.
        values = pc.fill_null(columns["value"], b"")
        keys = columns["key"] if columns["key"].null_count < len(values) else None
        lines = encode_lines(values, self.dialect, self.partition, keys=keys)
        if self.headers:
            lines = self._with_headers(lines, columns["application_properties"])
        return rows, lines

    def _with_headers(self, lines: bytes, properties: pa.MapArray) -> bytes:
        """Put the member ``headers`` into lines of version 1; clients seldom request it, so a loop is fast enough."""
        out = []
        for line, pairs in zip(lines.split(b"\n")[:-1], properties.to_pylist(), strict=True):
            wanted = {
                name: value
                for name, value in pairs or ()
                if value is not None and (ALL_HEADERS in self.headers or name in self.headers)
            }
            head, comma, rest = line.partition(b",")
            members = json.dumps(wanted, ensure_ascii=False, separators=(",", ":")).encode()
            out.append((head + b',"headers":' + members + comma + rest if wanted else line) + b"\n")
        return b"".join(out)
