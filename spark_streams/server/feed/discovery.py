"""What a feed says about itself: its partitions, and version 2b's token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2s
from weakref import WeakKeyDictionary

from spark_streams.log import Partition, Stream
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.cursors import Cursors
from spark_streams.server.feed.wanted import FILTER_FIELDS, FILTERS
from spark_streams.wire.feed.discovery import Discovery, FeedPartition

__all__ = ["Tokens", "discovery_of", "listed"]


def listed(partitions: Mapping[str, Partition]) -> list[FeedPartition]:
    """Return what the list says of a stream's partitions, without their last cursors, in their order."""
    return [
        FeedPartition(
            int(number),
            partition.closed,
            starts_after=None if partition.starts_after is None else int(partition.starts_after),
            cursor_from=tuple(int(ancestor) for ancestor in partition.cursor_from),
        )
        for number, partition in partitions.items()
    ]


class Tokens:
    """Version 2b's tokens, which every fetch shows; made anew when the partitions have changed, and only then."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Stream, tuple[list[tuple[Partition, bool]], str]] = WeakKeyDictionary()

    def of(self, stream: Stream) -> str:
        """Return a stream's token."""
        there = stream.partitions
        made_of = [(partition, partition.closed) for partition in there.values()]
        known = self._known.get(stream)
        if known is None or known[0] != made_of:
            known = self._known[stream] = (made_of, _token(stream, listed(there)))
        return known[1]


def _token(stream: Stream, partitions: list[FeedPartition]) -> str:
    facts = [stream.incarnation, *map(repr, partitions)]
    return blake2s("\n".join(facts).encode(), digest_size=12).hexdigest()


def discovery_of(stream: Stream, config: FeedConfig) -> Discovery:
    """Return the discovery document of a stream in the configured version 2."""
    cursors = Cursors(stream.incarnation, {})
    old = config.dialect == "v2a"
    there = stream.partitions  # asked for once: a split may replace them meanwhile
    found = listed(there)
    partitions = tuple(
        replace(each, last_cursor=cursors.encode(there[str(each.id)], there[str(each.id)].next_offset))
        if old or each.closed
        else each
        for each in found
    )
    if not old:
        return Discovery(partitions, _token(stream, found), exactly_once=config.exactly_once)
    return Discovery(
        partitions, stream=True, exactly_once=config.exactly_once, filters=FILTERS, filter_fields=FILTER_FIELDS
    )
