"""Lines of a feed, each read by itself: what reading many of them together has to give."""

from __future__ import annotations

import numpy as np

from spark_streams.wire.columnar.arrays import binaries, strings
from spark_streams.wire.feed.line import Dialect, read_line
from spark_streams.wire.feed.lines import Lines


def parse_singly(block: bytes, dialect: Dialect, partition: int | None = None) -> Lines:
    """Do what ``parse_lines`` does line by line."""
    events: list[bytes | None] = []
    keys: list[str | None] = []
    cursors: list[str] = []
    covered: list[int] = []
    ends: list[int] = []
    end = 0
    for number, line in enumerate(block.split(b"\n"), 1):
        end = min(end + len(line) + 1, len(block))
        read = read_line(line.removesuffix(b"\r"), number, dialect, partition)
        if read is None:
            continue
        if read.is_event:
            events.append(read.event)
            keys.append(read.key)
        if read.cursor is not None:
            cursors.append(read.cursor)
            covered.append(len(events))
            ends.append(end)
    return Lines(
        binaries(events), strings(cursors), np.array(covered, np.int64), np.array(ends, np.int64), strings(keys)
    )
