"""Sends the figures of streams to the pages that show them, each second, as server-sent events.

Nothing is counted while no page is open. The numbers come from memory; the browser computes each rate from two of them,
and its drawing is the only history. Counting takes at most a twentieth of the time: with very many partitions the
figures come less often.

Spec: HTML §9.2, server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Generator, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from spark_streams.log import Stream
from spark_streams.server.http.requests import HttpError
from spark_streams.server.users import displaced
from spark_streams.server.web.site import Pages, SignInNeeded, Site
from spark_streams.server.web.summaries import counted

INTERVAL_S: Final = 1.0
SHARE: Final = 1 / 20
"""The largest share of the time that counting may take."""


class LiveFigures(Pages):
    """The figures of all pages that are open."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._stopping: asyncio.Future[None] = site.loop.create_future()
        self._watching: dict[Any, str] = {}
        """The connection of each page to its user, the oldest first."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/live", self._live)]

    async def _live(self, request: Request) -> Response:
        """Answer with the figures of the streams that arguments ``stream`` name, until the page is closed."""
        try:
            known = self._site.known(request)
        except SignInNeeded:
            return Response(status_code=HTTPStatus.NO_CONTENT)  # with this status a browser does not try again
        asked = dict.fromkeys(request.query_params.getlist("stream"))  # each stream once, even if it is named twice
        names = [name for name in list(asked)[: self._site.config.page_rows] if known.allows("read", name)]
        if not names:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        headers = {"X-Accel-Buffering": "no"}
        told = self._figures(request, known.user, names)
        return StreamingResponse(told, media_type="text/event-stream", headers=headers)

    async def _figures(self, request: Request, user: str, names: Sequence[str]) -> AsyncIterator[str]:
        connection, watching = request.scope["state"]["connection"], self._watching
        if len(watching) >= self._site.config.max_watchers:
            del watching[displaced(watching, user)]
        watching[connection] = user
        try:
            while not self._stopping.done() and not connection.gone and self._may_watch(request):
                if connection not in watching:
                    yield "retry: 60000\n\n"  # the browser asks again after so many ms (HTML §9.2.6)
                    return
                streams = [found for name in names if (found := self._site.log.find(name)) is not None]
                figures, took_s = await self._site.worker.run(_figures_of(streams))
                yield f"data: {json.dumps({'now': self._site.loop.time(), 'streams': figures})}\n\n"
                await asyncio.wait([self._stopping], timeout=max(INTERVAL_S, took_s / SHARE))
        finally:
            watching.pop(connection, None)

    def _may_watch(self, request: Request) -> bool:
        """Return whether the user who asked is still signed in."""
        try:
            self._site.known(request)
        except (SignInNeeded, HttpError):
            return False
        return True

    def shut_down(self) -> None:
        """End the open responses."""
        if not self._stopping.done():
            self._stopping.set_result(None)


def _figures_of(streams: Sequence[Stream]) -> Generator[object, None, tuple[list[dict[str, Any]], float]]:
    """Return the figures of streams, a stream a step, and how many seconds of the processor that took."""
    found, took_s = [], 0.0
    for stream in streams:
        begun = time.thread_time()
        events, ever, size = counted(stream)
        found.append({"name": stream.name, "events": events, "ever": ever, "bytes": size})
        took_s += time.thread_time() - begun
        yield None
    return found, took_s
