"""The rows of a task, cut into windows, each with a digest of all rows up to its end and of where they go.

Windows have a fixed number of rows, whatever batches the rows came in, so every attempt at a task cuts its rows alike.
A window's digest covers its rows and their destinations, all rows of the task before it, and the last window's the end
of the task too: other rows, another order, another number of them or other destinations give another digest, but for
one case in 1,024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["DIGEST_BITS", "WINDOW_ROWS", "Destinations", "Window", "Windows"]

WINDOW_ROWS: Final = 1_024
"""Rows of a window, unless a sub-entry batch holds more: one checksum covers so many rows."""
DIGEST_BITS: Final = 10
_END: Final = b"end of the task"

Destinations = Mapping[str, NDArray[np.int64]]
"""Stream to the numbers, within the window and rising, of the rows that go there."""


@dataclass(frozen=True)
class Window:
    """Consecutive rows of a task with one digest.

    Args:
        first_row: number of the first one within the task, from 0.
        rows: how many.
        digest: of these and all rows before them; 0 when none was asked for.
        places: where they go.
    """

    first_row: int
    rows: int
    digest: int
    places: Destinations


class Windows:
    """Cuts the rows of a task into windows and digests them; the last window is held back until the end is known.

    Args:
        place: says where the rows of a window go, given the number of its first row and its rows; called once for each
            window, in their order.
        window_rows: rows of a window.
        begin: what the digest begins with: whatever else has to be the same on every attempt.
        digested: whether digests are needed.
    """

    def __init__(
        self,
        place: Callable[[int, pa.Table], Destinations],
        window_rows: int = WINDOW_ROWS,
        begin: bytes = b"",
        digested: bool = True,
    ) -> None:
        self.window_rows = window_rows
        self._place = place
        self._digested = digested
        self._held: pa.Table | None = None
        self._row = 0
        self._crc = google_crc32c.value(begin)

    @property
    def rows(self) -> int:
        """How many rows have come out in windows."""
        return self._row

    def add(self, rows: pa.Table) -> list[tuple[Window, pa.Table]]:
        """Take rows; return the windows that are certainly not the last one.

        Args:
            rows: the next rows; the digest covers column ``payload`` (large_binary), the others come along.

        Raises:
            DeliveryFailed: what ``place`` raises.
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
        """Return the last window; none when there was no row.

        Raises:
            DeliveryFailed: what ``place`` raises.
        """
        held, self._held = self._held, None
        return [] if held is None or not held.num_rows else [self._window(held, _END)]

    def _window(self, rows: pa.Table, end: bytes) -> tuple[Window, pa.Table]:
        places = self._place(self._row, rows)
        digest = self._digest(rows, places, end) if self._digested else 0
        window = Window(self._row, rows.num_rows, digest, places)
        self._row += rows.num_rows
        return window, rows

    def _digest(self, rows: pa.Table, places: Destinations, end: bytes) -> int:
        payload = rows.column("payload").combine_chunks()
        _, offsets, content = payload.buffers()
        bounds = np.frombuffer(offsets, np.int64)[payload.offset : payload.offset + len(payload) + 1]
        self._add(np.diff(bounds).astype("<i8").tobytes())
        if content is not None:
            self._add(content.slice(bounds[0], bounds[-1] - bounds[0]).to_pybytes())
        for stream in sorted(places):
            chosen = places[stream]
            # Most tasks have one stream: all rows, which its name alone says.
            self._add(b"%d %b" % (len(chosen), stream.encode()))
            if len(chosen) < rows.num_rows:
                self._add(chosen.astype("<u4").tobytes())
        self._add(end)
        return int(self._crc >> (32 - DIGEST_BITS))

    def _add(self, content: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, content)
