"""The pages of the doors' clients: connections with readers and writers, and consumer groups with stored offsets."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spark_streams.server.web.observation import KINDS, Observation
from spark_streams.server.web.site import Pages
from spark_streams.server.web.streams import Paging

_ALL: Final = 1 << 62


class Clients(Pages):
    """The pages."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/connections", self._connected), Route("/groups", self._groups)]

    async def _connected(self, request: Request) -> Response:
        """Show the connections, or the readers or writers, those of one stream if one is named."""
        known = self._site.known(request)
        stream = request.query_params.get("stream") or None
        show = request.query_params.get("show", "")
        if show not in KINDS or (stream is not None and show == "connections"):
            show = "connections" if stream is None else "readers"
        size, observation = self._site.config.page_rows, Observation(self._site)
        wanted = Paging(request, _ALL, size)
        counts, rows = await observation.rows(known, stream, show, wanted.first, wanted.end)
        paging = Paging(request, counts[show], size)
        if paging.page != wanted.page:  # it has fewer pages
            counts, rows = await observation.rows(known, stream, show, paging.first, paging.end)
        return self._site.page(
            request, "connections", known=known, rows=rows, paging=paging, show=show, counts=counts, stream=stream,
            all_seen=self._site.sees_all(known),
        )  # fmt: skip

    async def _groups(self, request: Request) -> Response:
        """Show the consumer groups with their stored offsets, those of one stream if one is named."""
        known = self._site.known(request)
        stream = request.query_params.get("stream") or None
        observation = Observation(self._site)
        groups = await observation.groups(known, stream)
        paging = Paging(request, len(groups), self._site.config.page_rows)
        rows = await observation.group_rows(groups, paging.first, paging.end)
        return self._site.page(
            request, "groups", known=known, rows=rows, paging=paging, stream=stream,
            all_seen=self._site.sees_all(known),
        )  # fmt: skip
