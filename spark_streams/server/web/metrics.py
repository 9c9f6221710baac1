"""``GET /metrics``: the log's figures for Prometheus, in its text format, or in OpenMetrics where that is asked for.

Every user may ask, with the header ``Authorization`` as Prometheus sends it, and gets figures of the streams that it
may read and of the groups that it may see; the doors' figures are for all users.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
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
    """The answer."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/metrics", self._metrics)]

    async def _metrics(self, request: Request) -> Response:
        try:
            known = self._known(request)
        except HttpError as refusal:  # as text: the client is no browser here
            return refusal.answer()
        # Imported only now, in the worker's thread: most logs are asked for no figures, and start without this package.
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
            if not (isinstance(item, ReaderInfo) and item.part):  # a reader of many partitions is one
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
