"""Makes the discovery document, which describes a feed's partitions, and version 2b's token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, replace
from hashlib import blake2s
from typing import Final
from weakref import WeakKeyDictionary

from starlette.responses import Response

from spark_streams.log import Partition, Stream
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.cursors import Cursors
from spark_streams.server.feed.event_filters import FILTER_FIELDS, FILTERS
from spark_streams.server.turns import Worker
from spark_streams.wire.feed.discovery import Discovery, FeedPartition, encode_discovery

FEW_PARTITIONS: Final = 64
"""The most partitions of a document that is made on the loop, in less than a few milliseconds."""


def listed(partitions: Iterable[Partition]) -> list[FeedPartition]:
    """Return the entries of partitions in the discovery document, in their order, without last cursors."""
    return [
        FeedPartition(
            int(partition.id),
            partition.closed,
            starts_after=None if (after := partition.starts_after) is None else int(after),
            cursor_from=tuple(map(int, partition.cursor_from)),
        )
        for partition in partitions
    ]


class Tokens:
    """Version 2b's tokens, which every fetch repeats; a token changes when the stream's partitions have changed."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Stream, tuple[list[tuple[Partition, bool]], str]] = WeakKeyDictionary()

    def of(self, stream: Stream) -> str:
        """Return a stream's token."""
        made_of = [(partition, partition.closed) for partition in stream.partitions.values()]
        known = self._known.get(stream)
        if known is None or known[0] != made_of:
            known = self._known[stream] = (made_of, _token(stream, listed(partition for partition, _ in made_of)))
        return known[1]


def _token(stream: Stream, partitions: list[FeedPartition]) -> str:
    facts = [stream.incarnation, *map(repr, partitions)]
    return blake2s("\n".join(facts).encode(), digest_size=12).hexdigest()


def discovery_of(stream: Stream, config: FeedConfig, *, settings: bool = True) -> Discovery:
    """Return the discovery document of a stream in the configured version 2, with its settings or without them."""
    cursors = Cursors(stream.incarnation, {})
    old = config.dialect == "v2a"
    there = stream.partitions.values()  # read once: a split may replace them meanwhile
    entries = listed(there)
    partitions = tuple(
        replace(entry, last_cursor=cursors.encode(partition, partition.next_offset)) if old or entry.closed else entry
        for entry, partition in zip(entries, there, strict=True)
    )
    told = asdict(stream.config) if settings else None
    document = Discovery(partitions, exactly_once=config.exactly_once, settings=told)
    if old:
        return replace(document, stream=True, filters=FILTERS, filter_fields=FILTER_FIELDS)
    return replace(document, token=_token(stream, entries))


class Documents:
    """The encoded discovery documents of a door.

    The worker thread makes the document of a stream with many partitions. Requests that come before the thread begins
    with it share one document, which is no older than any of them.

    Args:
        config: the door's settings.
        aside: the thread.
    """

    def __init__(self, config: FeedConfig, aside: Worker) -> None:
        self._config = config
        self._aside = aside
        self._waiting: dict[tuple[Stream, bool], asyncio.Future[bytes]] = {}

    async def response(self, stream: Stream, status: int = 200, *, settings: bool = True) -> Response:
        """Return the answer that describes a feed; its settings are for those who may read it."""
        body = await self.of(stream, settings=settings)
        return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def of(self, stream: Stream, *, settings: bool = True) -> bytes:
        """Return a stream's document, with its settings or without them, and with a newline."""
        if len(stream.partitions) <= FEW_PARTITIONS:
            return self._made(stream, settings)
        asked = stream, settings
        found = self._waiting.get(asked)
        if found is None:

            def begin() -> bytes:
                self._waiting.pop(asked, None)
                return self._made(stream, settings)

            def end(document: asyncio.Future[bytes]) -> None:
                if self._waiting.get(asked) is document:  # it could not be begun
                    del self._waiting[asked]
                if not document.cancelled():
                    document.exception()  # asyncio logs an exception that nobody reads, as when all clients have gone

            found = self._waiting[asked] = asyncio.ensure_future(self._aside.step(begin))
            found.add_done_callback(end)
        return await asyncio.shield(found)  # a client that goes must not cancel it for the others

    def _made(self, stream: Stream, settings: bool) -> bytes:
        document = discovery_of(stream, self._config, settings=settings)
        return encode_discovery(document, numbers=self._config.go_numbers) + b"\n"
