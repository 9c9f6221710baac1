"""The ASGI application of the log's window: its pages, its figures, and its errors.

::

    GET  /                    the streams                          streams.py
    GET  /stream?stream=      one stream                           streams.py
    POST /create  /delete     create and delete a stream           streams.py
    GET  /events?stream=      the events of a partition            events.py
    GET  /event?stream=       one event; /event/body: its body     events.py
    GET  /publish?stream=     and POST; publish an event           publish.py
    GET  /connections         connections, readers and writers     observation.py
    GET  /groups              consumer groups, stored offsets      observation.py
    GET  /metrics             figures for Prometheus               metrics.py
    GET  /live?stream=        figures, as server-sent events       live_figures.py
    GET  /sign-in             and POST; POST /sign-out             sign_in.py
    GET  /healthz  /readyz    whether the log runs, and is ready   metrics.py
    GET  /static/NAME         style and script

The headers of every answer are those of ``WebConfig.answer_headers``.
"""

from __future__ import annotations

import contextlib
import mimetypes
import os
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spark_streams.errors import LogError
from spark_streams.log.storage.files import is_full
from spark_streams.redaction import one_line
from spark_streams.server.counters import logger
from spark_streams.server.http.authorization import Known
from spark_streams.server.http.guard import SAFE
from spark_streams.server.http.requests import HttpError
from spark_streams.server.web.events import Events
from spark_streams.server.web.live_figures import LiveFigures
from spark_streams.server.web.metrics import Health, Metrics
from spark_streams.server.web.observation import Clients
from spark_streams.server.web.publish import Publish
from spark_streams.server.web.sign_in import SignIn
from spark_streams.server.web.site import FOLDER, SIGN_IN, Pages, SignInNeeded, Site
from spark_streams.server.web.streams import Streams

PAGES: Final[tuple[type[Pages], ...]] = (Streams, Events, Publish, Clients, Metrics, SignIn, Health)


class WebApplication:
    """The window of one log.

    Args:
        site: what its pages share.

    Attributes:
        application: the ASGI application.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._live = LiveFigures(site)
        pages = (*(kind(site) for kind in PAGES), self._live)
        self.application = Starlette(
            routes=[
                *(route for each in pages for route in each.routes()),
                *(_file(path) for path in (FOLDER / "static").iterdir()),
            ],
            exception_handlers={
                SignInNeeded: self._sign_in,
                HttpError: self._refused,
                HTTPStatus.NOT_FOUND: self._unknown,
                LogError: self._failed,
                OSError: self._failed,
            },
        )

    async def _sign_in(self, request: Request, fault: Exception) -> Response:
        """Redirect to the sign-in page, which leads back."""
        where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return self._site.go(SIGN_IN, to=where if request.method in SAFE else "/")

    async def _refused(self, request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HttpError)
        answer = self._page(request, fault.status_code, fault.text)
        answer.headers.update(fault.headers or {})
        return answer

    async def _unknown(self, request: Request, fault: Exception) -> Response:
        return self._page(request, HTTPStatus.NOT_FOUND, f"there is no page {one_line(request.url.path):.200}")

    async def _failed(self, request: Request, fault: Exception) -> Response:
        full = fault.errno if isinstance(fault, OSError) and is_full(fault) else None
        path = one_line(request.url.path)
        logger.error("%s %s failed: %s", request.method, path, fault, exc_info=fault if full is None else None)
        if full is not None:
            text = f"the log cannot be written: {os.strerror(full)}: make room on the disk of the log"
            return self._page(request, HTTPStatus.INSUFFICIENT_STORAGE, text)
        return self._page(request, HTTPStatus.INTERNAL_SERVER_ERROR, "the log cannot do this: its output says why")

    def _page(self, request: Request, status: int, text: str) -> Response:
        known: Known | None = None
        with contextlib.suppress(SignInNeeded, HttpError):
            known = self._site.known(request)
        title = HTTPStatus(status).phrase
        return self._site.page(request, "fault", known=known, status=status, title=title, text=text)

    def shut_down(self) -> None:
        """Make the open responses end; call it once."""
        self._live.shut_down()

    def close(self) -> None:
        """Release everything; call it after all connections have ended."""
        self._site.close()


def _file(path: Path) -> Route:
    """Return the route of a file, which is read once and answered whole: no request makes the loop read or compute."""
    content, kind = path.read_bytes(), mimetypes.guess_type(path.name)[0]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(f"/static/{path.name}", answer)
