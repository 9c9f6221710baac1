"""What a feed says about itself: its partitions, and version 2b's token."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2s

from spark_streams.log import Stream
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.cursors import Cursors
from spark_streams.server.feed.shape import FILTERS
from spark_streams.wire.feed.discovery import Discovery, FeedPartition

__all__ = ["discovery_of", "listed", "token_of"]


def listed(stream: Stream) -> list[FeedPartition]:
    """Return the partitions that are on the list, without their last cursors, in the order of their numbers."""
    return [
        FeedPartition(
            int(number),
            partition.closed,
            starts_after=None if partition.starts_after is None else int(partition.starts_after),
            cursor_from=tuple(int(ancestor) for ancestor in partition.cursor_from),
        )
        for number, partition in stream.partitions.items()
    ]


def token_of(stream: Stream) -> str:
    """Return version 2b's token, which changes whenever the partitions do."""
    facts = [stream.incarnation, *(repr(partition) for partition in listed(stream))]
    return blake2s("\n".join(facts).encode(), digest_size=12).hexdigest()


def discovery_of(stream: Stream, config: FeedConfig) -> Discovery:
    """Return the discovery document of a stream in the configured version 2."""
    cursors = Cursors(stream.incarnation, {})
    old = config.dialect == "v2a"
    partitions = tuple(
        replace(each, last_cursor=cursors.encode(each.id, stream.partitions[str(each.id)].next_offset))
        if old or each.closed
        else each
        for each in listed(stream)
    )
    if not old:
        return Discovery(partitions, token_of(stream), exactly_once=config.exactly_once)
    return Discovery(partitions, stream=True, exactly_once=config.exactly_once, filters=FILTERS)
