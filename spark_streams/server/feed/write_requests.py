"""Handles requests that change the log: publish, create, delete, split; extensions of the door, in no specification.

::

    POST /NAME                                      Idempotency-Key and Idempotency-Sequence, or neither;
                                                    beside them Idempotency-Digest or not
    PUT  /NAME?partitions=4                         and any setting of StreamConfig, such as timestamp_type=create
    DELETE /NAME
    POST /NAME/partitions/ID/split?into=2&history=false

No other server has these calls, so the door refuses unknown arguments, and arguments that are given twice.
"""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from spark_streams.errors import NameTaken, StreamExists, UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.activity import WriterInfo
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.discovery import Documents
from spark_streams.server.feed.publishing import Publishing
from spark_streams.server.feed.request_bodies import read_body, read_within
from spark_streams.server.http.authorization import Authorization
from spark_streams.server.http.config import LITTLE_BYTES
from spark_streams.server.http.receive_budget import BodyBudget
from spark_streams.server.http.requests import HttpError, known_arguments
from spark_streams.server.stream_changes import SETTINGS, create_stream, read_partitions
from spark_streams.server.turns import Places, Worker
from spark_streams.wire.amqp.decode import finished
from spark_streams.wire.feed.fetch_arguments import nearest

MAX_REFERENCE_BYTES: Final = 255
MIDDLE_BYTES: Final = 256 << 10
"""The most bytes of a body, unpacked, that does not wait for larger ones."""
MIDDLE_BODIES: Final = 8
"""How many bodies of this size are read and stored at a time."""
_SPLIT: Final = re.compile(r"(.+)/partitions/([0-9]{1,5})/split", re.DOTALL)
_BOOLEANS: Final = {"true": True, "false": False}
_IDEMPOTENCY: Final = ("idempotency-key", "idempotency-sequence", "idempotency-digest")


@dataclass(eq=False)
class WriteRequests:
    """The requests that change the log.

    Args:
        log: the log.
        config: the door's settings.
        authorization: checks who may change which feed.
        documents: the discovery documents, which answer a change.
        publishing: stores events.
        aside: the worker that reads large bodies.
    """

    log: ReferenceLog
    config: FeedConfig
    authorization: Authorization
    documents: Documents
    publishing: Publishing
    aside: Worker

    def __post_init__(self) -> None:
        # A thread of its own: the log makes one change at a time, and computations need not wait for its disk.
        self._thread = Worker("spark-streams-changes")
        self._receiving = BodyBudget(self.config)
        # A body that was read takes many times its size in memory; and a line of megabytes is one step, which occupies
        # one of the worker's two threads.
        self._middle, self._large = Places(MIDDLE_BODIES), Places(1)

    async def post(self, request: Request) -> Response:
        """Publish, or split."""
        path = request.path_params["path"]
        split = _SPLIT.fullmatch(path)
        return await (self._publish(request, path) if split is None else self._split(request, *split.groups()))

    async def _publish(self, request: Request, name: str) -> Response:
        stream = self.authorization.stream(request, name, "write")
        known_arguments(request, ())
        reference, sequence, digest = _idempotency(request)
        config = self.config
        coding = request.headers.get("content-encoding", "").strip().lower()
        content_type = request.headers.get("content-type", "")
        user = self.authorization.known(request).user
        async with self._receiving.received(request) as body, AsyncExitStack() as place:
            given = (body, coding, content_type, config.max_body_bytes, config.max_body_events)
            rows = finished(read_within(LITTLE_BYTES, *given))
            if rows is None:
                await place.enter_async_context(self._middle.one())
                rows = await self.aside.run(read_within(MIDDLE_BYTES, *given))
            if rows is None:
                await place.aclose()
                await place.enter_async_context(self._large.one())
                rows = await self.aside.run(read_body(*given))
            published = await self.publishing.publish(stream, rows, reference, sequence, digest, user)
        connection = request.scope["state"]["connection"]
        connection.writing = WriterInfo(config.protocol, connection.address, user, stream.name, "")
        answer = {"appended": published.appended, "repeated": published.repeated}
        return JSONResponse(answer if published.last is None else {**answer, "last": published.last})

    async def put(self, request: Request) -> Response:
        """Create a feed; an existing feed is no error if it has the partitions and settings of the request."""
        name = request.path_params["path"]
        self.authorization.check(request, "configure", name)
        _without_body(request)
        given = known_arguments(request, ("partitions", *sorted(SETTINGS)))
        count = given.pop("partitions", None)
        try:
            partitions = None if count is None else read_partitions(count, self.config.max_partitions)
            # In a thread: each partition waits for the disk.
            change = partial(create_stream, self.log, name, partitions, given, self.authorization.known(request).user)
            stream, created = await self._thread.step(change)
        except NameTaken as fault:
            raise HttpError(409, str(fault)) from fault
        except StreamExists as fault:
            raise HttpError(409, f"feed '{name}' {fault}") from None
        except ValueError as fault:
            raise HttpError(400, str(fault)) from fault
        return await self._described(request, stream, 201 if created else 200)

    async def delete(self, request: Request) -> Response:
        """Delete a feed with all its events."""
        name = request.path_params["path"]
        self.authorization.stream(request, name, "configure")
        known_arguments(request, ())
        try:
            await self._thread.step(lambda: self.log.delete_stream(name))
        except UnknownStream:  # another request has deleted it
            raise HttpError(404, f"there is no feed '{name:.200}'") from None
        return Response(status_code=204)

    async def _split(self, request: Request, name: str, partition: str) -> Response:
        stream = self.authorization.stream(request, name, "configure")
        _without_body(request)
        given = known_arguments(request, ("into", "history"))
        history = _BOOLEANS.get(given.get("history", "false"))
        if history is None:
            raise HttpError(400, f"history is '{given['history']:.40}', expected true or false")
        found = stream.partitions.get(partition)
        if found is None:
            raise HttpError(404, f"feed '{name:.200}' has no partition {partition}")
        if found.closed:
            raise HttpError(409, f"partition {partition} is closed: it was split into {', '.join(found.successors)}")
        try:
            into = read_partitions(given.get("into", "2"), self.config.max_partitions, "into")
            # In a thread: a split with history takes as long as reading and writing the history.
            split = await self._thread.step(lambda: self.log.split_partition(name, partition, into, history=history))
        except NameTaken as fault:
            raise HttpError(409, str(fault)) from fault
        except ValueError as fault:
            raise HttpError(400, str(fault)) from fault
        return await self._described(request, split)

    async def _described(self, request: Request, stream: Stream, status: int = 200) -> Response:
        """Return the answer to a change; a user who may configure a feed may lack the right to read it."""
        may_read = self.authorization.known(request).allows("read", stream.name)
        return await self.documents.response(stream, status, settings=may_read)

    def close(self) -> None:
        """Wait for the change under way."""
        self._thread.close()


def _without_body(request: Request) -> None:
    """Raise HttpError for a body: nothing would read settings in it, such as those of a form."""
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        raise HttpError(400, f"{request.method} has a body, expected none: settings are arguments, as in ?partitions=2")


def _idempotency(request: Request) -> tuple[str | None, int, int]:
    """Return reference, number and digest; 0 when there is no digest."""
    for name in request.headers:
        if name.startswith("idempoten") and name not in _IDEMPOTENCY:
            meant = nearest(name, _IDEMPOTENCY) or _IDEMPOTENCY[0]
            raise HttpError(400, f"there is no header {name:.40}: did you mean {meant.title()}?")
    reference = request.headers.get("idempotency-key")
    number = request.headers.get("idempotency-sequence")
    digest = request.headers.get("idempotency-digest")
    if (reference is None) != (number is None):
        raise HttpError(400, "Idempotency-Key and Idempotency-Sequence are needed together")
    if reference is None or number is None:
        if digest is not None:
            raise HttpError(400, "Idempotency-Digest needs Idempotency-Key and Idempotency-Sequence beside it")
        return None, 0, 0
    if not reference or len(reference.encode()) > MAX_REFERENCE_BYTES:
        raise HttpError(400, f"Idempotency-Key has {len(reference)} characters, expected 1 to {MAX_REFERENCE_BYTES}")
    if not re.fullmatch("[0-9]{1,19}", number) or int(number) >= 2**63:
        raise HttpError(400, f"Idempotency-Sequence is '{number:.40}', expected a whole number from 0 to 2^63 - 1")
    if digest is not None and not re.fullmatch("[0-9a-fA-F]{8}", digest):
        raise HttpError(400, f"Idempotency-Digest is '{digest:.40}', expected 8 hexadecimal digits")
    return reference, int(number), int(digest or "0", 16)
