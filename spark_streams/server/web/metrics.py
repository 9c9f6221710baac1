"""``GET /metrics``: the log's figures for Prometheus, in its text format, or in OpenMetrics where that is asked for.

Whoever may sign in may ask, with the header ``Authorization`` as Prometheus sends it, and gets figures of the streams
that it may read and of the groups that it may see; the doors' figures are for all who may ask.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from spark_streams.server.http.authorization import Known
from spark_streams.server.http.requests import HttpError, takes_gzip
from spark_streams.server.web.observation import Observation
from spark_streams.server.web.site import SignInNeeded, Site
from spark_streams.server.web.snapshot import snapshot_of

_HEADERS: Final = {"Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}


class Metrics:
    """The answer.

    Args:
        site: what all pages share.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._observation = Observation(site)

    def routes(self) -> list[BaseRoute]:
        """Return its route."""
        return [Route("/metrics", self._metrics, methods=["GET"])]

    async def _metrics(self, request: Request) -> Response:
        # Imported only here: most logs are never asked for figures, and start without prometheus_client.
        from spark_streams.server.web.exposition import Exposition

        try:
            known = self._known(request)
        except HttpError as refusal:  # as text: whoever asks here is no browser
            return PlainTextResponse(refusal.detail, refusal.status_code, refusal.headers)
        snapshot = await snapshot_of(self._site, self._observation, known)
        exposition = Exposition(snapshot, request.headers.get("accept", ""), gzip=takes_gzip(request))
        headers = {**_HEADERS, **exposition.headers}
        return StreamingResponse(exposition.pieces(self._site.worker), headers=headers)

    def _known(self, request: Request) -> Known:
        """Return who asks.

        Raises:
            HttpError: 401, with the ways to say who it is.
        """
        try:
            return self._site.known(request)
        except SignInNeeded:
            return self._site.authorization.known(request)
