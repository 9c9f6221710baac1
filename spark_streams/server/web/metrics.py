"""Answers machines that watch the log: its figures, whether it runs, and whether it is ready.

``/metrics`` is for Prometheus, in its text format, or in OpenMetrics if the request asks for that. Every user may ask,
with the header ``Authorization`` as Prometheus sends it, and gets figures of the streams that it may read and of the
groups that it may see; the doors' figures are for all users.

``/healthz`` is answered as long as the process answers at all; a log that does not answer should be restarted.
``/readyz`` is 200 when every door listens and the log's folder can be written, else 503 with the reason; such a log
should get no clients for now, and a restart does not help. Both are plain text, and need no sign-in.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from spark_streams.log import Stream
from spark_streams.server.activity import Item, ReaderInfo, WriterInfo
from spark_streams.server.http.authorization import Known
from spark_streams.server.http.requests import HttpError, takes_gzip
from spark_streams.server.web.observation import Groups, Observation, join
from spark_streams.server.web.site import Pages, SignInNeeded

if TYPE_CHECKING:
    from spark_streams.server.web.figures import Snapshot


class Metrics(Pages):
    """The page ``/metrics``."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/metrics", self._metrics)]

    async def _metrics(self, request: Request) -> Response:
        try:
            known = self._known(request)
        except HttpError as refusal:  # as text: the client is no browser here
            return refusal.answer()
        # Imported only now, in the worker's thread: most logs never serve figures, and start without this package.
        await self._site.worker.step(partial(import_module, "spark_streams.server.web.exposition"))
        from spark_streams.server.web.exposition import Exposition

        snapshot = await self._snapshot(known)
        exposition = Exposition(snapshot, request.headers.get("accept", ""), gzip=takes_gzip(request))
        headers = {"Vary": "Accept, Accept-Encoding", **exposition.headers}
        return StreamingResponse(exposition.pieces(self._site.worker), headers=headers)

    def _known(self, request: Request) -> Known:
        """Return who asks.

        Raises:
            HttpError: 401, with the ways to authenticate.
        """
        try:
            return self._site.known(request)
        except SignInNeeded:
            return self._site.authorization.known(request)

    async def _snapshot(self, known: Known) -> Snapshot:
        """Return the present state; the doors' counters are of all clients, all else is what the user may see."""
        from spark_streams.server.web.figures import DoorFigures, Snapshot

        observation = Observation(self._site)
        groups: Groups = {}
        counts: dict[tuple[str, type[Item]], int] = {}
        async for item in observation.everything():
            if not (isinstance(item, ReaderInfo) and item.part):  # a reader of many partitions counts once
                counts[item.door, type(item)] = counts.get((item.door, type(item)), 0) + 1
            if observation.shows(known, item):
                join(groups, item)
        await observation.add_stored(groups, known)
        doors = [
            DoorFigures(
                door.name,
                deepcopy(door.counters),  # the loop, where this is called, changes them while others read
                counts.get((door.name, ReaderInfo), 0),
                counts.get((door.name, WriterInfo), 0),
            )
            for door in self._site.doors
            if hasattr(door, "counters")  # a door of another package need not count
        ]
        streams = await self._site.worker.step(partial(_readable, self._site.log.streams(), known))
        return Snapshot(self._site.log, streams, list(groups.values()), doors)


def _readable(streams: list[Stream], known: Known) -> list[Stream]:
    return [stream for stream in streams if known.allows("read", stream.name)]


TRIAL_S: Final = 1.0
"""Seconds for which the outcome of one trial to write holds for all who ask, as all who reach the page may ask."""


class Health(Pages):
    """The pages ``/healthz`` and ``/readyz``."""

    _trial: asyncio.Future[bool] | None = None
    _tried_s = 0.0

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
        if not await asyncio.shield(self._trial):  # a client that leaves must not cancel it for the others
            missing.append("the log's folder cannot be written: is its disk full?")
        if missing:
            return PlainTextResponse("\n".join(missing) + "\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ready\n")

    def _writable(self) -> bool:
        """Return whether a byte can be written beside the log's files."""
        path = self._site.log.data_dir / "ready"
        try:
            path.write_bytes(b"\n")
            path.unlink()
        except OSError:
            return False
        return True
