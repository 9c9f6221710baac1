"""Ending at a cursor: cursors are compared for equality only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.wire.feed.lines import Lines

__all__ = ["first_of", "until"]


def first_of(lines: Lines, stops: Collection[str]) -> int | None:
    """Return the index of the first checkpoint whose cursor is one of ``stops``, None when none is."""
    if not stops or not len(lines.cursors):
        return None
    index = int(pc.index(pc.is_in(lines.cursors, pa.array(list(stops), pa.string())), True).as_py())
    return None if index < 0 else index


def until(lines: Lines, index: int) -> Lines:
    """Return what comes before checkpoint ``index``, and that checkpoint."""
    count = int(lines.covered[index])
    return replace(
        lines,
        values=None if lines.values is None else lines.values.slice(0, count),
        keys=None if lines.keys is None else lines.keys.slice(0, count),
        count=count,
        cursors=lines.cursors.slice(0, index + 1),
        covered=lines.covered[: index + 1],
        ends=lines.ends[: index + 1],
    )
