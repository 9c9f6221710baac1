"""Publishing ids that a retry derives again from the same rows, and that tell when the rows are not the same.

::

    id (u64) = batch(28 bits) | row + 1 (26 bits) | digest(10 bits)

``batch`` is Spark's number of the micro-batch, ``row`` the number of the row within the task, so ids rise with both, as
deduplication needs them to. ``digest`` says what the rows were: rows are cut into windows of a fixed number, and each
window's digest covers its rows and all rows of the task before it. The last window's covers the end of the task too.
So the last id that a broker has stored tells a retry whether its rows are those of the attempt before: other rows,
another order or another number of them give another digest, but for one case in 1,024.

docs/adr/0010-rabbitmq-exactly-once.md has the argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import DeliveryFailed, LocalProtocolError

__all__ = ["WINDOW_ROWS", "LastId", "Resumed", "Window", "Windows", "publishing_ids"]

WINDOW_ROWS: Final = 1_024
"""Rows of a window, unless a sub-entry batch holds more: one checksum covers so many rows."""

_BATCH_BITS: Final = 28
_ROW_BITS: Final = 26
_DIGEST_BITS: Final = 10
MAX_BATCH: Final = (1 << _BATCH_BITS) - 1
"""A query with one micro-batch a second comes here in 8 years."""
MAX_ROWS: Final = (1 << _ROW_BITS) - 1
"""Rows of one task of one micro-batch."""
_END: Final = b"end of the task"


@dataclass(frozen=True)
class Window:
    """Consecutive rows of a task with one digest.

    Args:
        first_row: number of the first one within the task, from 0.
        rows: how many.
        digest: of these and all rows before them.
    """

    first_row: int
    rows: int
    digest: int


@dataclass(frozen=True)
class LastId:
    """The last id of a reference that a broker has, taken apart; all 0 when it has none.

    Args:
        batch: number of the micro-batch.
        row: number of the row within its task, -1 when there is none.
        digest: of its window.
    """

    batch: int
    row: int
    digest: int

    @classmethod
    def of(cls, sequence: int) -> LastId:
        """Take an id apart; 0, which is no id of ours, means that there is none."""
        row = (sequence >> _DIGEST_BITS) & MAX_ROWS
        return cls(sequence >> (_ROW_BITS + _DIGEST_BITS), row - 1, sequence & ((1 << _DIGEST_BITS) - 1))


def publishing_ids(batch: int, rows: NDArray[np.int64], digest: int) -> NDArray[np.uint64]:
    """Return the ids of rows of one window.

    Args:
        batch: number of the micro-batch.
        rows: their numbers within the task, from 0.
        digest: of the window.

    Raises:
        LocalProtocolError: a number that has no room in an id.
    """
    if not 0 <= batch <= MAX_BATCH:
        raise LocalProtocolError(f"micro-batch {batch}: publishing ids have room for {MAX_BATCH}")
    if len(rows) and int(rows[-1]) >= MAX_ROWS:
        raise LocalProtocolError(
            f"row {int(rows[-1])} of one task: publishing ids have room for {MAX_ROWS}; repartition the DataFrame into "
            "more partitions before it is written"
        )
    high = np.uint64(batch) << np.uint64(_ROW_BITS + _DIGEST_BITS)
    ids: NDArray[np.uint64] = ((rows + 1).astype(np.uint64) << np.uint64(_DIGEST_BITS)) | high | np.uint64(digest)
    return ids


class Windows:
    """Cuts the rows of a task into windows and digests them; the last window is held back until the end is known.

    Args:
        window_rows: rows of a window.
    """

    def __init__(self, window_rows: int = WINDOW_ROWS) -> None:
        self.window_rows = window_rows
        self._held: pa.Table | None = None
        self._row = 0
        self._crc = 0

    @property
    def rows(self) -> int:
        """How many rows have come out in windows."""
        return self._row

    def add(self, rows: pa.Table) -> list[tuple[Window, pa.Table]]:
        """Take rows; return the windows that are certainly not the last one.

        Args:
            rows: the next rows; the digest covers column ``payload`` (large_binary), the others come along.
        """
        held = rows if self._held is None else pa.concat_tables([self._held, rows])
        windows = []
        at = 0
        while held.num_rows - at > self.window_rows:
            windows.append(self._window(held.slice(at, self.window_rows), b""))
            at += self.window_rows
        self._held = held.slice(at)
        return windows

    def finish(self) -> list[tuple[Window, pa.Table]]:
        """Return the last window; none when there was no row."""
        held, self._held = self._held, None
        return [] if held is None or not held.num_rows else [self._window(held, _END)]

    def _window(self, rows: pa.Table, end: bytes) -> tuple[Window, pa.Table]:
        payload = rows.column("payload").combine_chunks()
        _, offsets, content = payload.buffers()
        bounds = np.frombuffer(offsets, np.int64)[payload.offset : payload.offset + len(payload) + 1]
        self._crc = google_crc32c.extend(self._crc, np.diff(bounds).astype("<i8").tobytes())
        if content is not None:
            self._crc = google_crc32c.extend(self._crc, content.slice(bounds[0], bounds[-1] - bounds[0]).to_pybytes())
        if end:
            self._crc = google_crc32c.extend(self._crc, end)
        window = Window(self._row, rows.num_rows, self._crc >> (32 - _DIGEST_BITS))
        self._row += rows.num_rows
        return window, rows


class Resumed:
    """Compares what a broker has of this task already with what the task has now, one destination stream.

    Args:
        stream: the destination.
        batch: number of this micro-batch.
        sequence: the last publishing id that the broker has of the task's reference.

    Raises:
        DeliveryFailed: the broker has a later micro-batch: the checkpoint is older than the stream.
    """

    def __init__(self, stream: str, batch: int, sequence: int) -> None:
        self._stream = stream
        self._last = LastId.of(sequence)
        if self._last.batch > batch:
            raise self._differs(
                f"micro-batch {batch}",
                f"the stream has micro-batch {self._last.batch} of this query already: the checkpoint is older than "
                "the stream, so a batch would be dropped as a duplicate. Go on with the newest checkpoint, or start "
                "anew with another one",
            )
        self._row = self._last.row if self._last.batch == batch else -1

    @property
    def stored_rows(self) -> int:
        """Rows of the task up to here, not counted, are in the stream already if they go there."""
        return self._row + 1

    def check_first(self, window: Window) -> None:
        """Check the first window that has a row for the stream, where the stream was not asked before.

        Raises:
            DeliveryFailed: an earlier attempt has written earlier rows there.
        """
        if 0 <= self._row < window.first_row:
            raise self._differs(
                f"row {self._row}",
                "an earlier attempt at this micro-batch has written it there, and now it goes elsewhere. Exactly once "
                "needs the rows of a Spark partition to be the same on every attempt",
            )

    def check(self, window: Window) -> None:
        """Compare a window's digest.

        Raises:
            DeliveryFailed: the rows are others than those that an earlier attempt has written.
        """
        if window.first_row <= self._row < window.first_row + window.rows and window.digest != self._last.digest:
            raise self._differs(
                f"row {self._row}",
                "an earlier attempt at this micro-batch has written other rows, or the same ones in another order, up "
                "to there. Exactly once needs the rows of a Spark partition to be the same on every attempt: sort them "
                "before the write (sortWithinPartitions), and keep the number of partitions",
            )

    def check_end(self, rows: int) -> None:
        """Compare the number of rows, at the end of the task.

        Raises:
            DeliveryFailed: an earlier attempt has written more.
        """
        if self._row >= rows:
            raise self._differs(
                f"row {self._row}",
                f"an earlier attempt at this micro-batch has written it, and now the task has {rows} rows. Exactly "
                "once needs the rows of a Spark partition to be the same on every attempt",
            )

    def _differs(self, row: str, why: str) -> DeliveryFailed:
        return DeliveryFailed("not written", "rows-differ", why, row, self._stream)
