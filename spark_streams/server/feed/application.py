"""The ASGI application of the FeedAPI door: its routes, fetches, and errors.

::

    GET  /                                     names of the feeds that the client may read (an extension)
    GET  /NAME                                 discovery
    GET  /NAME?partition=&cursor=              fetch, version 2a
    GET  /NAME/events?token=&partition=&cursor=  fetch, version 2b (in place of the line above)
    GET  /NAME?n=&cursor0=                     fetch, version 1
    POST /NAME                                 publish (an extension, as are the calls below)
    PUT  /NAME?partitions=                     create
    DELETE /NAME                               delete
    POST /NAME/partitions/ID/split?into=&history=   split a partition

Spec: docs/specifications.md, P-01 to P-12, P-20 to P-40, P-50 to P-52, F-29.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from spark_streams.errors import LogError, RemoteProtocolError, UnknownStream
from spark_streams.log import Partition, ReferenceLog, Stream
from spark_streams.log.storage.files import is_full
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.redaction import one_line
from spark_streams.server.activity import ReaderInfo
from spark_streams.server.counters import DoorCounters, logger
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.cursors import OLDER, Cursors
from spark_streams.server.feed.discovery import Documents, Tokens
from spark_streams.server.feed.event_filters import served
from spark_streams.server.feed.pages import Pages, events_lost
from spark_streams.server.feed.publishing import Publishing
from spark_streams.server.feed.rendered_events import EventCache
from spark_streams.server.feed.responses import PageResponse, StreamResponse, page_type
from spark_streams.server.feed.write_requests import WriteRequests
from spark_streams.server.http.authorization import Authorization
from spark_streams.server.http.connection import HttpConnection
from spark_streams.server.http.requests import HttpError, arguments, takes_gzip
from spark_streams.server.partition_readers import PartitionReader, PartitionReaders
from spark_streams.server.turns import Worker
from spark_streams.wire.feed.fetch_arguments import ENDLESS, FILTER_PREFIX, FIRST, LAST, Fetch, decode_fetch
from spark_streams.wire.feed.line import Dialect

EVENTS: Final = "/events"


class FeedApplication:
    """The FeedAPI door of one log.

    Args:
        log: the log.
        config: the door's settings.
        loop: the server's loop.
        counters: the door's.

    Attributes:
        application: the ASGI application; the state of its requests has the ``HttpConnection``.
        changes: the requests that change the log.
    """

    def __init__(
        self, log: ReferenceLog, config: FeedConfig, loop: asyncio.AbstractEventLoop, counters: DoorCounters
    ) -> None:
        self._log = log
        self._config = config
        self._stopping: asyncio.Future[None] = loop.create_future()
        self._aside = Worker("spark-streams-feed", 2)
        self._authorization = Authorization(log, config)
        self._cache = EventCache(config.cache_bytes)
        self._documents = Documents(config, self._aside)
        self._tokens = Tokens()
        self._readers = PartitionReaders(loop, PartitionReader)
        self._publishing = Publishing(log, config.max_publishers, loop, self._aside, counters)
        self.changes = WriteRequests(log, config, self._authorization, self._documents, self._publishing, self._aside)
        handlers = {"GET": self._get, "POST": self.changes.post, "PUT": self.changes.put, "DELETE": self.changes.delete}
        self.application = Starlette(
            routes=[Route("/{path:path}", each, methods=[name]) for name, each in handlers.items()],
            exception_handlers={
                HttpError: _refused,
                PartitionClosed: _gone,
                UnknownStream: _gone,
                LogError: _failed,
                OSError: _failed,
            },
        )

    # --- requests

    async def _get(self, request: Request) -> ASGIApp:
        path = request.path_params["path"]
        query = arguments(request)
        if not path and not query:
            return self._listing(request)
        v2b = self._config.dialect == "v2b"
        names = {name for name, _ in query}
        above = path[: -len(EVENTS)]
        # A feed's own name may end so: then only a call with a partition is a fetch of the feed above it.
        if (
            v2b
            and path.endswith(EVENTS)
            and (self._log.find(path) is None or ("partition" in names and self._log.find(above) is not None))
        ):
            return self._fetch(request, self._authorization.stream(request, above), query, Dialect.V2B)
        stream = self._authorization.stream(request, path)
        if not names:
            return await self._documents.response(stream)
        if "partition" in names and not v2b:
            return self._fetch(request, stream, query, Dialect.V2A)
        if "n" in names or any(name.startswith("cursor") for name in names):
            return self._fetch(request, stream, query, Dialect.V1)
        raise HttpError(
            400,
            "the arguments are none of a fetch: expected "
            + (f"{EVENTS} behind the feed's path" if v2b else "partition and cursor")
            + ", n and cursor<partition> for version 1, or no arguments for the discovery",
        )

    def _listing(self, request: Request) -> Response:
        known = self._authorization.known(request)
        allowed = [stream.name for stream in self._log.streams() if known.allows("read", stream.name)]
        return JSONResponse({"feeds": allowed}, headers={"Cache-Control": "no-store"})

    # --- fetching

    def _fetch(self, request: Request, stream: Stream, query: list[tuple[str, str]], dialect: Dialect) -> ASGIApp:
        try:
            fetch = decode_fetch(query, dialect, offered=served(name.removeprefix(FILTER_PREFIX) for name, _ in query))
        except RemoteProtocolError as fault:
            raise HttpError(400, str(fault)) from fault
        if dialect is Dialect.V2B and fetch.token != self._tokens.of(stream):
            raise HttpError(409, "illegal token, please fetch new from discovery endpoint")
        partition = self._partition(stream, fetch)
        # In version 2b a client may change its filters: nothing there binds a cursor to them.
        cursors = Cursors(stream.incarnation, fetch.filters if dialect is Dialect.V2A else {})
        position = self._position(stream, partition, fetch, cursors)
        connection: HttpConnection = request.scope["state"]["connection"]
        connection.reading = ReaderInfo(
            self._config.protocol, connection.address, connection.user, stream.name, partition.id, position
        )
        pages = Pages(self._cache, partition, fetch, cursors, position, self._config)
        aside = self._aside if fetch.filters or fetch.headers else None
        if fetch.stream_ms is not None:
            duration_ms = self._duration(fetch.stream_ms)
            return StreamResponse(pages, aside, self._config, self._readers, duration_ms, self._stopping)
        events = min(fetch.page_size or self._config.page_size, self._config.max_page_size)
        kind, gzip = page_type(request, dialect), takes_gzip(request)
        return PageResponse(pages, aside, self._config, events, kind, gzip)

    def _partition(self, stream: Stream, fetch: Fetch) -> Partition:
        partitions = stream.partitions
        if fetch.dialect is Dialect.V1:
            if fetch.count != len(partitions):
                raise HttpError(
                    400, f"partition count mismatch: n is {fetch.count}, and the feed has {len(partitions)} partitions"
                )
            return list(partitions.values())[fetch.partition]
        found = partitions.get(str(fetch.partition))
        if found is None:
            raise HttpError(400, f"partition doesn't exist: {fetch.partition}; ask the discovery endpoint")
        return found

    def _position(self, stream: Stream, partition: Partition, fetch: Fetch, cursors: Cursors) -> int:
        """Return the offset of a fetch's cursor."""
        if fetch.cursor == FIRST:
            return partition.first_offset
        if fetch.cursor == LAST:
            return partition.next_offset
        place = cursors.decode(fetch.cursor)
        offset, origin = place.offset, str(place.partition)
        if origin == partition.id:
            cursors.check(place, partition)
        elif origin in partition.cursor_from:
            offset = stream.translate(partition.id, origin, offset)
        else:
            raise HttpError(400, f"the cursor is one of partition {origin}, which is of no use on {partition.id}")
        if offset > partition.next_offset:
            raise HttpError(400, f"the cursor lies beyond the end of the feed: {OLDER}")
        if offset < partition.first_offset:
            raise events_lost(partition)
        return offset

    def _duration(self, requested_ms: int) -> int | None:
        """Return how long a streaming response lasts, in ms; None: as long as the client stays."""
        most = self._config.max_stream_ms
        if requested_ms == ENDLESS:
            return most or None
        return min(requested_ms, most) if most else requested_ms

    # --- ending

    def shut_down(self) -> None:
        """Make the open streaming responses end; call it once."""
        self._stopping.set_result(None)

    def close(self) -> None:
        """Release everything; call it after all connections have ended."""
        self._cache.clear()
        self._aside.close()
        self.changes.close()
        self._publishing.close()


async def _refused(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HttpError)
    return fault.answer()


async def _gone(request: Request, fault: Exception) -> Response:
    return PlainTextResponse("the feed or the partition is gone: ask the discovery endpoint\n", 404)


async def _failed(request: Request, fault: Exception) -> Response:
    path = one_line(request.url.path)
    if is_full(fault):
        logger.error("%s %s failed: %s", request.method, path, fault)
        text = f"the log cannot be written: {one_line(str(fault))}. Send the request again when there is room\n"
        return PlainTextResponse(text, 507)
    logger.error("%s %s failed: %s", request.method, path, fault, exc_info=fault)
    return PlainTextResponse("Internal server error\n", 500)
