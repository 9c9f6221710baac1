"""Converts Publish frames to their stored form, in the worker thread and in parts.

A part with sub-batches is finished before another connection's is inflated, so that memory holds one of all connections
at a time, however much it inflates. A part that inflates nothing waits for no other part.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple

from spark_streams.errors import RemoteProtocolError
from spark_streams.log.format.batching import LARGE_ROWS
from spark_streams.server.rabbitmq.filter_values import values_of
from spark_streams.server.rabbitmq.stored_form import Stored, stored_steps
from spark_streams.server.turns import Turn
from spark_streams.wire.rabbitmq.frames import Frame
from spark_streams.wire.rabbitmq.publish_decode import Published, publish_parts


class PublishPart(NamedTuple):
    """Consecutive entries of a Publish frame, and the stored form of the good ones.

    Args:
        published: the entries.
        stored: the stored form of the good entries.
        inflated: whether the entries were inflated, so that they use other memory than the frame.
    """

    published: Published
    stored: Stored
    inflated: bool


class SomeParts(NamedTuple):
    """The parts of one turn.

    Args:
        parts: the parts; at least one, unless this is the last turn.
        over: whether no more parts follow.
        fault: the error of the malformed frame that follows the parts, or None.
        inflates: whether the part that follows is to be inflated, which needs to be allowed.
    """

    parts: list[PublishPart]
    over: bool
    fault: RemoteProtocolError | None = None
    inflates: bool = False


def stored_of(published: Published) -> Generator[None, None, Stored]:
    """Return the stored form of the good entries; see ``stored_steps``."""
    stored = yield from stored_steps(published.buffer, published.starts, published.ends)
    return stored._replace(filters=values_of(published))


INFLATES: Final = object()


def parts_of(frames: Sequence[Frame], max_sub_batch_bytes: int) -> Iterator[object]:
    """Read Publish frames in parts.

    Args:
        frames: frames of one command and version.
        max_sub_batch_bytes: the most bytes that one sub-entry batch may inflate to.

    Yields:
        Their parts, in their order; None after a step of a part that is not finished yet; ``INFLATES`` before one is
        inflated.

    Raises:
        RemoteProtocolError: a frame is malformed; the parts before it were yielded.
    """
    for frame in frames:
        for published in publish_parts(
            frame.buffer, frame.start, frame.end, frame.version, max_uncompressed_bytes=max_sub_batch_bytes
        ):
            if published is None:
                yield INFLATES
                continue
            stored = yield from stored_of(published)
            yield PublishPart(published, stored, published.buffer is not frame.buffer)


def some_of(parts: Iterator[object], may_inflate: bool) -> Generator[None, None, SomeParts]:
    """Return the next parts to append together, at most a turn's; yield when a turn ends in the middle of a part."""
    some: list[PublishPart] = []
    records, turn = 0, Turn()
    try:
        for part in parts:
            if isinstance(part, PublishPart):
                some.append(part)
                records += len(part.published.starts)
                if records >= LARGE_ROWS or part.inflated or turn.over:
                    return SomeParts(some, over=False)
            elif part is INFLATES:
                if not may_inflate:
                    return SomeParts(some, over=False, inflates=True)
            else:
                yield
    except RemoteProtocolError as fault:
        return SomeParts(some, over=True, fault=fault)
    return SomeParts(some, over=True)
