"""Sends responses with events: a page, or a streaming response that stays open and sends events as they come.

A response makes a piece when its client has read the one before: a client that does not read costs the door only the
transport's buffer. The connection drops a client that reads nothing for ``write_timeout_ms``.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from spark_streams.errors import LogError
from spark_streams.server.counters import logger
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.pages import Pages
from spark_streams.server.http.requests import HttpError, weights
from spark_streams.server.partition_readers import PartitionReader, PartitionReaders
from spark_streams.server.turns import Worker
from spark_streams.wire.feed.line import NDJSON, ZEH, ZEH_V1, Dialect

if TYPE_CHECKING:
    from spark_streams.server.http.connection import HttpConnection

GZIP_LEVEL: Final = 1
_ANY: Final = ("application/*", "*/*")
LATE_BYTES: Final = 64 << 10
PART_BYTES: Final = 1 << 20
"""Bytes of a streaming response that may wait in memory for a client that does not read."""


@dataclass(eq=False)
class _Response(ABC):
    """A response that is sent in parts.

    Args:
        pages: the client's pages.
        aside: the worker thread that makes their pieces, for fetches that search more than they send; None: they are
            made on the loop, where other tasks run after each.
        config: the door's settings.
    """

    pages: Pages
    aside: Worker | None
    config: FeedConfig

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response.

        An error before the first byte is raised, and answered with a status. Later the connection is cut: the client
        sees an incomplete response, and continues from its last checkpoint.
        """
        self._connection: HttpConnection = scope["state"]["connection"]
        self._transmit = send
        self._started = False
        try:
            await self._respond(receive)
        except (HttpError, LogError, OSError) as fault:
            if not self._started:
                raise
            logger.warning("a response to %s is cut short: %s", scope.get("client"), fault)
            self._connection.drop()
            await asyncio.sleep(0)

    @abstractmethod
    async def _respond(self, receive: Receive) -> None:
        """Send the whole response."""

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        await self._transmit({"type": "http.response.start", "status": 200, "headers": headers})
        self._started = True

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        await self._transmit({"type": "http.response.body", "body": body, "more_body": more})

    async def _joined(self, pieces: Iterator[bytes], enough: int) -> tuple[bytes, bool]:
        """Return the next pieces joined, about ``enough`` bytes, and whether they are the last.

        No more pieces are made for a client that is gone.

        Args:
            pieces: the pieces to send; some are empty.
            enough: how many bytes to join.
        """
        parts: list[bytes] = []
        size = 0
        ended = False
        while size < enough and not self._connection.gone:
            piece = await self._next(pieces)
            ended = piece is None
            if piece is None:
                break
            if piece:
                parts.append(piece)
                size += len(piece)
        self._count()
        return parts[0] if len(parts) == 1 else b"".join(parts), ended

    def _count(self) -> None:
        """Count what is about to be sent, and note how far the client has read."""
        connection, (events, size) = self._connection, self.pages.made()
        connection.counters.delivered += events
        connection.counters.delivered_bytes += size
        if connection.reading is not None:
            connection.reading = replace(connection.reading, next_offset=self.pages.position)

    async def _next(self, pieces: Iterator[bytes]) -> bytes | None:
        if self.aside is not None:
            return await self.aside.step(lambda: next(pieces, None))
        piece = next(pieces, None)
        await asyncio.sleep(0)
        return piece


@dataclass(eq=False)
class PageResponse(_Response):
    """One page.

    Args:
        pages, aside, config: as for ``_Response``.
        events: how many events it has at most.
        media_type: its media type.
        gzip: whether the client takes gzip.
    """

    events: int
    media_type: str
    gzip: bool

    async def _respond(self, receive: Receive) -> None:
        pieces = self.pages.page(self.events)
        enough = max(LATE_BYTES, self.config.gzip_min_bytes)
        first, ended = await self._joined(pieces, enough)
        headers = [
            (b"content-type", self.media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"vary", b"accept, accept-encoding"),
        ]
        compress = self.gzip and 0 < self.config.gzip_min_bytes <= len(first)
        if ended and not compress:
            await self._start([*headers, (b"content-length", b"%d" % len(first))])
            await self._write(first, more=False)
            return
        packer = zlib.compressobj(GZIP_LEVEL, wbits=31) if compress else None
        await self._start([*headers, (b"content-encoding", b"gzip")] if compress else headers)
        piece = first
        while True:
            if packer is not None:
                # In a thread: compressing would block the loop longer than reading did.
                piece = await asyncio.to_thread(packer.compress, piece)
                piece = piece + packer.flush() if ended else piece
            if piece or ended:
                await self._write(piece, more=not ended)
            if ended or self._connection.gone:
                return
            piece, ended = await self._joined(pieces, enough)


@dataclass(eq=False)
class StreamResponse(_Response):
    """A streaming response, which stays open.

    Args:
        pages, aside, config: as for ``_Response``.
        readers: the partitions that streaming responses read.
        duration_ms: how long it lasts; None: as long as the client stays.
        stopping: is done when the door shuts.
    """

    readers: PartitionReaders[PartitionReader]
    duration_ms: int | None
    stopping: asyncio.Future[None]

    async def _respond(self, receive: Receive) -> None:
        """Send events as they come; end with a checkpoint after the duration, or when the door shuts."""
        reader = self.readers.use(self.pages.partition)
        loop = asyncio.get_running_loop()
        end = None if self.duration_ms is None else loop.time() + self.duration_ms / 1000
        wake = asyncio.Event()
        gone = asyncio.ensure_future(_disconnected(receive))

        def ended(_: asyncio.Future[None]) -> None:
            wake.set()

        gone.add_done_callback(ended)
        self.stopping.add_done_callback(ended)
        try:
            # The first part before the first byte: an error of the request is answered with a status.
            first = await self._some()
            await self._start([(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")])
            await self._write(first)
            while not self._connection.gone and not self.stopping.done() and (end is None or loop.time() < end):
                if self.pages.ended:
                    break  # the client has to look for the partitions after this one
                wake.clear()
                reader.add_waiter(wake.set)
                try:
                    if not self.pages.behind and not self.stopping.done() and not self._connection.gone:
                        await self._pause(wake, end)
                finally:
                    reader.remove_waiter(wake.set)
                await self._write(await self._some())
        except (HttpError, LogError) as fault:
            if not self._started:
                raise
            # The stream is gone, or retention was faster: every event sent has its checkpoint, and the next request
            # gets the reason.
            logger.info("a response that was to stay open ends: %s", fault)
        finally:
            self.stopping.remove_done_callback(ended)
            gone.cancel()
            self.readers.release(reader)
        await self._write(b"", more=False)

    async def _pause(self, wake: asyncio.Event, end: float | None) -> None:
        """Wait for an append, for the time of the next checkpoint, or the end."""
        seconds = self.config.checkpoint_interval_ms / 1000
        if end is not None:
            seconds = min(seconds, max(0.0, end - asyncio.get_running_loop().time()))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(wake.wait(), seconds)

    async def _some(self) -> bytes:
        """Return the events stored so far, at most about ``PART_BYTES``, with a checkpoint after them."""
        pieces = self.pages.page(self.config.checkpoint_events, PART_BYTES)
        body, _ = await self._joined(pieces, 1 << 62)
        return body


async def _disconnected(receive: Receive) -> None:
    while True:
        if (await receive())["type"] == "http.disconnect":
            return


def page_type(request: Request, dialect: Dialect) -> str:
    """Return the media type of a page: version 1's own where the client prefers it, else NDJSON.

    Args:
        request: its header ``Accept`` counts, for version 1 only.
        dialect: the dialect of the fetch.

    Raises:
        HttpError: 406, the fetch is of version 1, and the client accepts other versions only.

    Spec: zeroeventhub SPEC.md, "Content type and version selection" (691d843).
    """
    if dialect is not Dialect.V1:
        return NDJSON
    taken_at = weights(request, "accept")
    version_1 = taken_at.get(ZEH_V1, 0.0)
    if version_1 > 0 and version_1 >= taken_at.get(NDJSON, 0.0):
        return ZEH_V1
    taken = {name for name, weight in taken_at.items() if weight > 0}
    if any(name.startswith(ZEH) for name in taken) and not taken & {ZEH_V1, NDJSON, *_ANY}:
        raise HttpError(406, f"the feed speaks version 1 of ZeroEventHub: expected {ZEH_V1} or {NDJSON} in Accept")
    return NDJSON
