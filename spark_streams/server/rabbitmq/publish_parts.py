"""Converts Publish frames to their stored form, in the worker thread and in parts.

A part is finished before another connection's part is begun, so that memory holds one part of all connections at a
time, however much it inflates.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.log.format.batching import LARGE_ROWS
from spark_streams.server.rabbitmq.filter_values import ValueColumn, values_of
from spark_streams.server.rabbitmq.stored_form import Stored, kept_rows, stored_form, stored_steps
from spark_streams.server.turns import Turn
from spark_streams.wire.rabbitmq.frames import Frame
from spark_streams.wire.rabbitmq.publish_decode import Published, publish_parts

Mask = NDArray[np.bool_]


class Made(NamedTuple):
    """The stored form of entries: their records, None for none, and their filter values."""

    stored: Stored | None
    values: ValueColumn | None

    def only(self, kept: Mask, counts: NDArray[np.int64]) -> Made:
        """Return the stored form of the entries that are kept."""
        rows = np.repeat(kept, counts)
        stored = kept_rows(self.stored, rows) if self.stored is not None and rows.any() else None
        return Made(stored, None if self.values is None else self.values.only(kept))


NOTHING: Final = Made(None, None)


class PublishPart(NamedTuple):
    """Consecutive entries of a Publish frame, and the stored form of the good ones.

    Args:
        published: the entries.
        made: the stored form of the good entries.
        inflated: whether the entries were inflated, so that they use other memory than the frame.
    """

    published: Published
    made: Made
    inflated: bool


class SomeParts(NamedTuple):
    """The parts of one turn.

    Args:
        parts: the parts; at least one, unless this is the last turn.
        over: whether no more parts follow.
        fault: the error of the malformed frame that follows the parts, or None.
    """

    parts: list[PublishPart]
    over: bool
    fault: RemoteProtocolError | None


def made_of(published: Published) -> Made:
    """Return the stored form of the good entries, at once."""
    if not len(published.starts):
        return NOTHING
    return Made(stored_form(published.buffer, published.starts, published.ends), values_of(published))


def parts_of(frames: Sequence[Frame], max_sub_batch_bytes: int) -> Iterator[PublishPart | None]:
    """Read Publish frames in parts.

    Args:
        frames: frames of one command and version.
        max_sub_batch_bytes: the most bytes that one sub-entry batch may inflate to.

    Yields:
        Their parts, in their order; None after a step of a part that is not finished yet.

    Raises:
        RemoteProtocolError: a frame is malformed; the parts before it were yielded.
    """
    for frame in frames:
        for published in publish_parts(
            frame.buffer, frame.start, frame.end, frame.version, max_uncompressed_bytes=max_sub_batch_bytes
        ):
            made = NOTHING
            if len(published.starts):
                stored = yield from stored_steps(published.buffer, published.starts, published.ends)
                made = Made(stored, values_of(published))
            yield PublishPart(published, made, published.buffer is not frame.buffer)


def some_of(parts: Iterator[PublishPart | None]) -> Generator[None, None, SomeParts]:
    """Return the next parts to append together, at most a turn's; yield when a turn ends in the middle of a part."""
    some: list[PublishPart] = []
    records, turn = 0, Turn()
    try:
        for part in parts:
            if part is not None:
                some.append(part)
                records += len(part.published.starts)
                if records >= LARGE_ROWS or part.inflated or turn.over:
                    return SomeParts(some, over=False, fault=None)
            elif turn.over:
                yield
                turn = Turn()
    except RemoteProtocolError as fault:
        return SomeParts(some, over=True, fault=fault)
    return SomeParts(some, over=True, fault=None)
