"""Decodes a feed's lines into rows, in columns, and finds the first event for which an expression is true.

It decodes blocks of lines without a Python object per event. A feed cannot seek: to start at the first match, a reader
starts at the feed's beginning, drops the events before the match, and ends the search once a checkpoint covers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.row_columns import feed_columns
from spark_streams.filters.tree import Expression
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.wire.columnar.arrays import fixed_width, repeated, strings
from spark_streams.wire.feed.json_pointer import extract_text, extract_timestamp
from spark_streams.wire.feed.lines import Lines


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
        self._waiting: list[tuple[pa.Array, pa.Array]] = []
        self._schema = pa.schema([COMMON_SCHEMA.field(name) for name in self.columns])
        self._constants = {"stream": self.stream, "partition": str(self.partition)}

    def drop_waiting(self) -> None:
        """Drop the events that no checkpoint covers: the client requests them again."""
        self._waiting = []

    def take(self, lines: Lines) -> pa.RecordBatch | None:
        """Return the rows that a block completes, None if there is none; errors as ``rows``."""
        if not len(lines.cursors):
            if lines.count:
                self._waiting.append((lines.values, lines.keys))
            return None
        covered = int(lines.covered[-1])
        before = sum(len(values) for values, _ in self._waiting)
        pieces = [*self._waiting, lines.events(0, covered)]
        self._waiting = [lines.events(covered, lines.count)] if covered < lines.count else []
        values = pieces[0][0] if len(pieces) == 1 else pa.concat_arrays([piece for piece, _ in pieces])
        if not len(values):
            return None
        keys = pa.concat_arrays([keys for _, keys in pieces])
        return self.batch(values, keys, lines.covered + before, lines.cursors)

    def batch(
        self, values: pa.BinaryArray, keys: pa.StringArray, covered: NDArray[np.int64], checkpoints: pa.StringArray
    ) -> pa.RecordBatch:
        """Return the rows of events that checkpoints cover.

        Args:
            values: the events.
            keys: each event's key, or null.
            covered: the number of these events up to each checkpoint.
            checkpoints: the checkpoints' cursors.

        Raises:
            RemoteProtocolError: a timestamp is no instant, or does not fit; the error names the cursor that covers it.
        """
        cursors = None
        if "offset" in self.columns:
            index = np.searchsorted(covered, np.arange(len(values)), side="right")
            cursors = checkpoints.take(fixed_width(index, pa.int64()))
        try:
            columns = [self._column(name, values, keys, cursors) for name in self.columns]
        except RemoteProtocolError as fault:
            cursor = checkpoints[int(np.searchsorted(covered, self._first_wrong(values), side="right"))]
            where = f"stream '{self.stream}' partition '{self.partition}', an event up to cursor '{cursor}'"
            raise type(fault)(f"{where}: {fault}") from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _first_wrong(self, values: pa.Array) -> int:
        """Return the number of the first event whose timestamp cannot be read; there is at least one."""
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
                return pa.nulls(len(values), COMMON_SCHEMA.field(name).type)
            return extract_timestamp(values, self.timestamp_field, overflow=self.overflow)
        return {"value": values, "key": keys, "offset": cursors}[name]


def from_first_match(batches: Iterator[pa.RecordBatch], expression: Expression) -> Iterator[pa.RecordBatch]:
    """Yield rows from the first one on for which an expression is true.

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

    def take(self, lines: Lines) -> Lines:
        """Return the remaining events and checkpoints of a block of lines.

        Of the checkpoints before the matching event the last one remains, so that the search can continue there.

        Args:
            lines: the content of the lines.
        """
        if self._seen:
            self.found = self.found or bool(len(lines.cursors))
            return lines
        row = self._row(lines)
        self._seen = row is not None
        start = lines.count if row is None else row
        before = int(np.searchsorted(lines.covered, start, side="right"))
        self.found = self._seen and before < len(lines.cursors)
        values, keys = lines.events(start, lines.count)
        kept = slice(max(before - 1, 0), None)
        covered = np.maximum(lines.covered[kept] - start, 0)
        return Lines(values, lines.cursors[kept], covered, lines.ends[kept], keys)

    def _row(self, lines: Lines) -> int | None:
        if not lines.count:
            return None
        # Decode the events as if a checkpoint covered all of them.
        return _first(
            self.rows.batch(lines.values, lines.keys, np.array([lines.count]), strings([""])), self.expression
        )


def _first(batch: pa.RecordBatch, expression: Expression) -> int | None:
    found = np.flatnonzero(np.asarray(mask(expression, feed_columns(batch), batch.num_rows)))
    return int(found[0]) if len(found) else None
