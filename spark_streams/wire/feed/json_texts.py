"""Columns of JSON texts: the value of each, without a Python object for each where all are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import binaries
from spark_streams.wire.columnar.byte_view import Positions, Words
from spark_streams.wire.columnar.gather import gather

OPEN, CLOSE, QUOTE, BACKSLASH, NULL = b'{}"\\n'
NOTHING: Final = msgspec.Raw(b"")
_TEXT: Final = msgspec.json.Decoder(str)


@dataclass
class JsonTexts:
    """The JSON of a value in each of many texts.

    Args:
        texts: the JSON, empty where there is none.
        kinds: the first byte of the JSON, 0 where there is none.
        bounds: where each JSON begins in ``content``, and where the last one ends.
        content: all of them.
        known: the values of some texts by the texts' numbers, whatever their JSON; None for null.
    """

    texts: list[msgspec.Raw]
    kinds: NDArray[np.uint8]
    bounds: Positions
    content: NDArray[np.uint8]
    known: dict[int, bytes | None]

    @classmethod
    def of(cls, texts: list[msgspec.Raw]) -> JsonTexts:
        """Return the texts with their kinds."""
        if texts.count(NOTHING) == len(texts):
            return cls(
                texts, np.zeros(len(texts), np.uint8), np.zeros(len(texts) + 1, np.int64), np.zeros(0, np.uint8), {}
            )
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        bounds, content = np.append(0, np.cumsum(sizes)), np.frombuffer(b"".join(texts), np.uint8)
        kinds = np.zeros(sizes.size, np.uint8)
        kinds[sizes > 0] = content[bounds[:-1][sizes > 0]]
        return cls(texts, kinds, bounds, content, {})

    def taken(self, rows: Positions, kind: pa.DataType) -> pa.Array:
        """Return some values, in order: a string's characters, null for null or no JSON, the JSON of all others.

        Args:
            rows: the texts' numbers, rising.
            kind: binary or string.
        """
        kinds, offsets = self.kinds[rows], np.append(self.bounds[rows], self.bounds[-1])
        if not self.known and not kinds.any():
            return pa.nulls(rows.size, kind)
        alike = not self.known and int(np.diff(self.bounds)[rows].sum()) == self.content.size
        if alike and not np.isin(kinds, (0, NULL, QUOTE)).any():
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.content)]
            return pa.Array.from_buffers(kind, rows.size, buffers)
        if alike and (kinds == QUOTE).all() and not (self.content == BACKSLASH).any():
            return gather(Words(self.content), offsets[:-1] + 1, np.diff(offsets) - 2, kind)
        told = [self._told(row, its) for row, its in zip(rows.tolist(), kinds.tolist(), strict=True)]
        return binaries(told).cast(kind)

    def _told(self, row: int, kind: int) -> bytes | msgspec.Raw | None:
        if row in self.known or kind in (0, NULL):
            return self.known.get(row)
        return _TEXT.decode(self.texts[row]).encode() if kind == QUOTE else self.texts[row]
