"""Timestamps as record batches store them: KIP-228's two rules, with the bit ``isTimestampExtended`` and without.

A batch whose ``isTimestampExtended`` bit is set says "no timestamp" with Long.MIN_VALUE, and every other value is an
instant, -1 among them; a batch without the bit says it with -1. Inside this package "no timestamp" is always
``NO_TIMESTAMP``. The rows W1..W9 and R1..R7 are in docs/specifications.md.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

NO_TIMESTAMP = -(2**63)
"""Long.MIN_VALUE: no timestamp in extended batches, and everywhere in this package's own API."""
LEGACY_NO_TIMESTAMP = -1
"""No timestamp in batches without the bit."""

OnNegative = Literal["error", "degrade"]


class TimestampRefused(ValueError):
    """A record batch cannot store a timestamp under its rule."""


def from_stored(timestamps: npt.NDArray[np.int64], extended: npt.NDArray[np.bool_] | bool) -> npt.NDArray[np.int64]:
    """Return the instants that stored timestamps mean to a reader that knows KIP-228.

    Rows R1 (-1 without the bit is none), R2 (-1 with it is an instant), R3 and R6 (MIN is none), R4, R5 and R7 (every
    other value stays: a reader survives negatives that other clients stored).

    Args:
        timestamps: int64[n], as stored, in ms.
        extended: whether the batch carries the bit; bool[n] when the records are of several batches.

    Returns:
        int64[n], instants in ms since the epoch; ``NO_TIMESTAMP`` for none.
    """
    none = ~np.asarray(extended) & (timestamps == LEGACY_NO_TIMESTAMP)
    return np.where(none, np.int64(NO_TIMESTAMP), timestamps)


def to_stored(
    timestamps: npt.NDArray[np.int64], extended: bool, on_negative: OnNegative = "error"
) -> npt.NDArray[np.int64]:
    """Return the values to store for instants in ms (``NO_TIMESTAMP`` for none).

    Args:
        timestamps: instants, or ``NO_TIMESTAMP``.
        extended: whether the batch carries the bit (rows W4, W6, W8); without it (W1, W3, W5, W9) only instants from
            1970 on can be held.
        on_negative: without the bit, ``error`` refuses an instant before 1970, ``degrade`` stores it as none.

    Raises:
        TimestampRefused: an instant before 1970 in a batch without the bit, under ``error``.
    """
    if extended:
        return timestamps
    real_negative = (timestamps < 0) & (timestamps != NO_TIMESTAMP)
    if on_negative == "error" and real_negative.any():
        first = int(timestamps[int(np.argmax(real_negative))])
        raise TimestampRefused(
            f"timestamp {first} ms lies before 1970, and this stream stores batches without KIP-228's bit: create the "
            "stream with timestamp_format 'extended', or with legacy_negative 'degrade' to store it without a timestamp"
        )
    return np.where(timestamps < 0, np.int64(LEGACY_NO_TIMESTAMP), timestamps)
