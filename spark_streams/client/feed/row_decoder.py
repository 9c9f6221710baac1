"""Decodes a feed's lines into rows, in columns, and finds the first event that an expression is true of.

It decodes blocks of lines without a Python object an event. A feed cannot seek: to start at the first match, a reader
starts at the feed's beginning, drops the events before the match, and ends the search once a checkpoint covers it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from spark_streams.errors import RemoteProtocolError
from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.row_columns import feed_columns
from spark_streams.filters.tree import Expression
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.wire.columnar.arrays import fixed_width, repeated, strings
from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.json_pointer import extract_text, extract_timestamp
from spark_streams.wire.feed.line import read_line
from spark_streams.wire.feed.lines import Lines, parse_lines


@dataclass
class FeedRows:
    """Makes record batches of the events that a checkpoint covers, in the order of arrival.

    Events after the last checkpoint of a block wait for the next one: a row carries the cursor of the checkpoint that
    covers it, and an event that none covers is never returned.

    Args:
        stream: the feed's name.
        partition: the partition's id.
        columns: names of the columns, in the order of the rows.
        key_field: JSON pointer to the value of ``key``; None for the member ``key`` of the event's line, which our own
            door writes beside the event.
        timestamp_field: JSON pointer to the value of ``timestamp``, None for null.
        overflow: the treatment of an instant that does not fit: ``fail`` or ``null``.
    """

    stream: str
    partition: int
    columns: tuple[str, ...]
    key_field: str | None = None
    timestamp_field: str | None = None
    overflow: Literal["fail", "null"] = "fail"

    def __post_init__(self) -> None:
        self._waiting: list[tuple[pa.Array, pa.Array | None]] = []
        self._schema = pa.schema([COMMON_SCHEMA.field(name) for name in self.columns])
        self._constants = {"stream": self.stream, "partition": str(self.partition)}

    def drop_waiting(self) -> None:
        """Drop the events that no checkpoint covers: the client requests them again."""
        self._waiting = []

    def take(self, lines: Lines) -> pa.RecordBatch | None:
        """Return the rows that a block completes, None for none.

        Raises:
            RemoteProtocolError: a timestamp is no instant, or does not fit; the error names the cursor that covers it.
        """
        assert lines.values is not None
        checkpoints = len(lines.cursors)
        if not checkpoints:
            if lines.count:
                self._waiting.append((lines.values, lines.keys))
            return None
        covered = int(lines.covered[-1])
        before = sum(len(values) for values, _ in self._waiting)
        pieces = [*self._waiting, _part(lines, 0, covered)]
        self._waiting = [_part(lines, covered, lines.count)] if covered < lines.count else []
        values = pieces[0][0] if len(pieces) == 1 else pa.concat_arrays([piece for piece, _ in pieces])
        if not len(values):
            return None
        keys = cursors = None
        ends = np.asarray(lines.covered, dtype=np.int64) + before
        if "key" in self.columns:
            keys = pa.concat_arrays([_nulls(piece, "key") if known is None else known for piece, known in pieces])
        if "offset" in self.columns:
            index = np.searchsorted(ends, np.arange(len(values)), side="right")
            cursors = lines.cursors.take(fixed_width(index, pa.int64()))
        try:
            columns = [self._column(name, values, keys, cursors) for name in self.columns]
        except RemoteProtocolError as fault:
            cursor = lines.cursors[int(np.searchsorted(ends, self._first_wrong(values), side="right"))]
            where = f"stream '{self.stream}' partition '{self.partition}', an event up to cursor '{cursor}'"
            raise type(fault)(f"{where}: {fault}") from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _first_wrong(self, values: pa.Array) -> int:
        """Return the number of the first event whose timestamp cannot be read; one of them cannot."""
        for row in range(len(values)):
            try:
                self._column("timestamp", values.slice(row, 1), None, None)
            except RemoteProtocolError:
                return row
        raise AssertionError("all can be read")

    def _column(self, name: str, values: pa.Array, keys: pa.Array | None, cursors: pa.Array | None) -> pa.Array:
        if name in self._constants:
            return repeated(self._constants[name], len(values))
        if name == "key" and self.key_field is not None:
            return extract_text(values, self.key_field)
        if name == "timestamp":
            if self.timestamp_field is None:
                return _nulls(values, name)
            return extract_timestamp(values, self.timestamp_field, overflow=self.overflow)
        return {"value": values, "key": keys, "offset": cursors}[name]


def _part(lines: Lines, start: int, stop: int) -> tuple[pa.Array, pa.Array | None]:
    assert lines.values is not None
    keys = None if lines.keys is None else lines.keys.slice(start, stop - start)
    return lines.values.slice(start, stop - start), keys


def _nulls(values: pa.Array, column: str) -> pa.Array:
    return pa.nulls(len(values), COMMON_SCHEMA.field(column).type)


def from_first_match(batches: Iterator[pa.RecordBatch], expression: Expression) -> Iterator[pa.RecordBatch]:
    """Yield rows from the first one on that an expression is true of.

    Args:
        batches: rows of one partition, with the columns that ``columns_needed`` returns.
        expression: any expression.
    """
    for batch in batches:
        row = _first(batch, expression)
        if row is not None:
            yield batch.slice(row)
            break
    yield from batches


@dataclass
class FirstMatch:
    """Removes the events before the first matching one from the lines of a partition, but not the last checkpoint.

    Args:
        expression: any expression that does not refer to ``offset``, as the cursor that covers an event is not known
            yet.
        rows: makes the columns that the expression needs of the partition's events.
    """

    expression: Expression
    rows: FeedRows

    def __post_init__(self) -> None:
        self._seen = False
        self.found = False
        """Whether a checkpoint covers the matching event: from then on ``take`` keeps all lines."""

    def drop_uncovered(self) -> None:
        """Forget a matching event that no checkpoint covers: the client requests it again, and another may come."""
        self._seen = self.found

    def take(self, block: bytes, lines: Lines, dialect: Dialect) -> tuple[bytes, Lines]:
        """Return the remaining lines of a block of whole lines, and their events and cursors.

        Of the lines before the matching event the last checkpoint remains, so that the search can continue there.

        Args:
            block: the lines.
            lines: their content, with the events themselves until the match is found.
            dialect: the dialect of the lines.
        """
        if self._seen:
            self.found = self.found or bool(len(lines.cursors))
            return block, lines
        row = self._row(lines)
        if row is None:
            left = self._checkpoint(lines, len(lines.cursors), dialect)
        else:
            self._seen = True
            before = int(np.searchsorted(lines.covered, row, side="right"))
            self.found = before < len(lines.cursors)
            left = self._checkpoint(lines, before, dialect) + block[self._place(block, row, dialect) :]
        return left, parse_lines(left, dialect, self.rows.partition, values=False)

    def _row(self, lines: Lines) -> int | None:
        if not lines.count:
            return None
        # Decode the events as if a checkpoint covered all of them.
        covered = replace(lines, cursors=strings([""]), covered=np.array([lines.count]))
        batch = self.rows.take(covered)
        assert batch is not None and batch.num_rows == lines.count
        return _first(batch, self.expression)

    def _checkpoint(self, lines: Lines, count: int, dialect: Dialect) -> bytes:
        """Return a line for the last of the first ``count`` checkpoints; its own line may hold an event too (C-06)."""
        if not count:
            return b""
        whose = {"partition": self.rows.partition} if dialect is Dialect.V1 else {}
        cursor = lines.cursors[count - 1].as_py()
        return json.dumps({**whose, "cursor": cursor}, ensure_ascii=False).encode() + b"\n"

    def _place(self, block: bytes, row: int, dialect: Dialect) -> int:
        """Return where the line of an event begins."""
        start = 0
        while True:
            end = block.find(b"\n", start) + 1 or len(block)
            read = read_line(block[start:end].rstrip(b"\r\n"), 1, dialect, self.rows.partition)
            if read is not None and read.is_event:
                if not row:
                    return start
                row -= 1
            start = end


def _first(batch: pa.RecordBatch, expression: Expression) -> int | None:
    found = np.flatnonzero(np.asarray(mask(expression, feed_columns(batch), batch.num_rows)))
    return int(found[0]) if len(found) else None
