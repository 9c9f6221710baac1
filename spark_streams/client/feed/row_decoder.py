"""Rows of events: the columns that the query wants, from blocks of lines, without a Python object an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa

from spark_streams.rows import COMMON_SCHEMA
from spark_streams.wire.feed.json_pointer import extract_text, extract_timestamp
from spark_streams.wire.feed.lines import Lines

__all__ = ["FeedRows"]


class FeedRows:
    """Makes record batches of what is covered by a checkpoint, in the order of arrival.

    Events after the last checkpoint of a block wait for the next one: a row carries the cursor of the checkpoint that
    covers it, and an event that none covers is never handed out.

    Args:
        stream: the feed's name.
        partition: the partition's id.
        columns: which, in the order of the rows.
        key_field: JSON pointer to what becomes ``key``; None for the member ``key`` of the event's line, which our own
            door writes beside the event.
        timestamp_field: JSON pointer to what becomes ``timestamp``, None for null.
        overflow: what becomes of an instant that does not fit: ``fail`` or ``null``.
    """

    def __init__(
        self,
        stream: str,
        partition: int,
        columns: tuple[str, ...],
        key_field: str | None = None,
        timestamp_field: str | None = None,
        overflow: Literal["fail", "null"] = "fail",
    ) -> None:
        self._columns = columns
        self._waiting: list[tuple[pa.Array, pa.Array | None]] = []
        self._schema = pa.schema([COMMON_SCHEMA.field(name) for name in columns])
        text = pa.scalar(str(partition), pa.string())
        name = pa.scalar(stream, pa.string())
        make: dict[str, Callable[[pa.Array, pa.Array | None, pa.Array | None], pa.Array]] = {
            "value": lambda values, _, __: values,
            "stream": lambda values, _, __: pa.repeat(name, len(values)),
            "partition": lambda values, _, __: pa.repeat(text, len(values)),
            "offset": lambda _, __, cursors: cursors,
            "key": lambda values, keys, _: keys if key_field is None else extract_text(values, key_field),
            "timestamp": lambda values, _, __: (
                _nulls(values, "timestamp")
                if timestamp_field is None
                else extract_timestamp(values, timestamp_field, overflow=overflow)
            ),
        }
        self._make = [make[column] for column in columns]

    @property
    def waiting(self) -> int:
        """How many events wait for a checkpoint."""
        return sum(len(values) for values, _ in self._waiting)

    def drop_waiting(self) -> None:
        """Forget the events that no checkpoint covers: they are asked for again."""
        self._waiting = []

    def take(self, lines: Lines) -> pa.RecordBatch | None:
        """Return the rows that a block completes, None for none.

        Raises:
            RemoteProtocolError: a timestamp that is none, or does not fit.
        """
        assert lines.values is not None
        checkpoints = len(lines.cursors)
        if not checkpoints:
            if lines.count:
                self._waiting.append((lines.values, lines.keys))
            return None
        covered = int(lines.covered[-1])
        before = self.waiting
        pieces = [*self._waiting, _part(lines, 0, covered)]
        self._waiting = [_part(lines, covered, lines.count)] if covered < lines.count else []
        values = pieces[0][0] if len(pieces) == 1 else pa.concat_arrays([piece for piece, _ in pieces])
        if not len(values):
            return None
        keys = cursors = None
        if "key" in self._columns:
            keys = pa.concat_arrays([_nulls(piece, "key") if known is None else known for piece, known in pieces])
        if "offset" in self._columns:
            ends = np.asarray(lines.covered, dtype=np.int64) + before
            cursors = lines.cursors.take(pa.array(np.searchsorted(ends, np.arange(len(values)), side="right")))
        columns = [make(values, keys, cursors) for make in self._make]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _part(lines: Lines, start: int, stop: int) -> tuple[pa.Array, pa.Array | None]:
    assert lines.values is not None
    keys = None if lines.keys is None else lines.keys.slice(start, stop - start)
    return lines.values.slice(start, stop - start), keys


def _nulls(values: pa.Array, column: str) -> pa.Array:
    return pa.nulls(len(values), COMMON_SCHEMA.field(column).type)
