"""Whether the log runs, and whether it is ready: for programs that start it, watch it, and send clients to it.

``/healthz`` is answered as long as the process answers at all; a log that does not answer should be started anew.
``/readyz`` is 200 when every door listens and the log's folder can be written, else 503 with what is missing; such a
log should get no clients for now, and a restart does not help. Both are plain text, without a sign-in.
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from spark_streams.log.storage.files import OpenFile, write_all
from spark_streams.server.web.site import Pages, Site

TRIAL_S: Final = 1.0
"""For so many seconds the outcome of one trial to write is the answer to all: everybody who reaches the page may
ask."""


class Health(Pages):
    """The two answers."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._trial: asyncio.Future[bool] | None = None
        self._tried_s = 0.0

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/healthz", self._healthy), Route("/readyz", self._ready)]

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, request: Request) -> Response:
        missing = [f"the door {door.name} does not listen" for door in self._site.doors if not door.url]
        now_s = self._site.loop.time()
        if self._trial is None or (self._trial.done() and now_s - self._tried_s >= TRIAL_S):
            self._trial, self._tried_s = asyncio.ensure_future(self._site.changes.step(self._writable)), now_s
        if not await asyncio.shield(self._trial):  # a client that goes must not cancel it for the others
            missing.append("the log's folder cannot be written: is its disk full?")
        if missing:
            return PlainTextResponse("\n".join(missing) + "\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ready\n")

    def _writable(self) -> bool:
        """Return whether a byte can be written beside the log's files."""
        path = self._site.log.data_dir / "ready"
        try:
            file = OpenFile(path, os.O_WRONLY | os.O_CREAT)
            write_all(file.fd, b"\n", 0)
            os.unlink(path)
        except OSError:
            return False
        return True
