"""Columns of opaque offsets: compared as text, never parsed (ES-301), always growing (ES-302)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import RemoteProtocolError
from spark_streams.position import After, At, Earliest

__all__ = ["check_offsets", "rows_before", "rows_until"]


def check_offsets(offsets: pa.StringArray, start: Earliest | At | After, what: str) -> None:
    """Check that a column of offsets is complete, begins where the filter said, and grows.

    Args:
        offsets: of consecutive deliveries.
        start: where they may begin at the earliest.
        what: for the message, such as ``stream 'orders' partition '0'``.

    Raises:
        RemoteProtocolError: the peer broke one of the rules.
    """
    if offsets.null_count:
        raise RemoteProtocolError(f"{what}: a delivery has no event-streams-offset annotation (ES-300)")
    if not len(offsets):
        return
    first = offsets[0].as_py()
    if (isinstance(start, After) and first <= start.offset) or (isinstance(start, At) and first < start.offset):
        raise RemoteProtocolError(f"{what}: reading was to start {start}, but the peer began at '{first}' (A-21)")
    behind = pc.index(pc.less(offsets.slice(0, len(offsets) - 1), offsets.slice(1)), False).as_py()
    if behind >= 0:
        raise RemoteProtocolError(
            f"{what}: offset '{offsets[behind + 1].as_py()}' follows '{offsets[behind].as_py()}': offsets must grow "
            "(ES-302)"
        )


def rows_before(offsets: pa.StringArray, first: str) -> int:
    """Return how many of the first rows lie before offset ``first``."""
    behind = pc.index(pc.greater_equal(offsets, first), True).as_py()
    return len(offsets) if behind < 0 else int(behind)


def rows_until(offsets: pa.StringArray, end: str) -> tuple[int, bool]:
    """Return how many of the first rows are up to ``end`` (inclusive), and whether it was reached or passed."""
    beyond = pc.index(pc.greater_equal(offsets, end), True).as_py()
    if beyond < 0:
        return len(offsets), False
    return (beyond + 1 if offsets[beyond].as_py() == end else beyond), True
