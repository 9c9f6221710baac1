"""The pages of streams: all of them, one of them with its partitions, and the forms that create and delete one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, replace
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spark_streams.errors import StreamExists, UnknownStream
from spark_streams.log import Stream
from spark_streams.server.http.authorization import Known
from spark_streams.server.http.requests import HttpError
from spark_streams.server.stream_changes import SETTINGS, create_stream
from spark_streams.server.users import ACTIONS
from spark_streams.server.web.code_lines import code_of
from spark_streams.server.web.formats import whole
from spark_streams.server.web.observation import Observation
from spark_streams.server.web.site import Pages, Paging
from spark_streams.server.web.summaries import StreamSummary, summaries_of, summary_of

_SHOWN_SETTINGS: Final = (
    "timestamp_type", "segment_max_bytes", "segment_max_age_ms", "retention_max_bytes", "retention_max_age_ms",
)  # fmt: skip
"""The settings that the form has; the others are rare, and left to the command line."""


class Streams(Pages):
    """The pages."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/", self._all),
            Route("/stream", self._one),
            Route("/create", self._new),
            Route("/create", self._create, methods=["POST"]),
            Route("/delete", self._delete, methods=["POST"]),
        ]

    async def _all(self, request: Request) -> Response:
        known = self._site.known(request)
        search = request.query_params.get("search", "")
        seen = await self._site.worker.step(partial(_seen, self._site.log.streams(), known, search.lower()))
        page = Paging(request, len(seen), self._site.config.page_rows)
        rows = await self._site.worker.run(_all_seen_by(known, page.cut(seen)))
        return self._site.page(request, "streams", known=known, rows=rows, paging=page, search=search)

    async def _one(self, request: Request) -> Response:
        stream = self._site.stream(request)
        known = self._site.known(request)
        there = list(stream.partitions.values())
        page = Paging(request, len(there), self._site.config.page_rows, stream=stream.name)
        rows = await self._site.worker.run(summaries_of(page.cut(there)))
        summary = await self._site.worker.step(lambda: _seen_by(known, stream))
        return self._site.page(
            request, "stream", known=known, stream=summary, rows=rows, paging=page, settings=asdict(stream.config),
            open_partitions=len(stream.open_partitions), code=code_of(stream, self._site.doors),
            use=await Observation(self._site).of_stream(known, stream.name),
        )  # fmt: skip

    async def _new(self, request: Request) -> Response:
        return self._form(request, {}, "")

    def _form(self, request: Request, given: dict[str, str], fault: str) -> Response:
        known = self._site.known(request)
        status = HTTPStatus.UNPROCESSABLE_ENTITY if fault else HTTPStatus.OK
        default = asdict(self._site.log.config.stream)
        return self._site.page(
            request, "create", known=known, status=status, given=given, fault=fault,
            settings={name: default[name] for name in _SHOWN_SETTINGS},
        )  # fmt: skip

    async def _create(self, request: Request) -> Response:
        known = self._site.known(request)
        form = await self._site.form(request)
        name, partitions = form.get("name", ""), form.get("partitions", "1")
        if not known.allows("configure", name):
            return self._form(request, form, f"{known.name} may not create stream '{name:.200}'")
        count = whole(partitions, 9)
        if count is None or not 1 <= count <= 10**6:
            return self._form(request, form, f"partitions is '{partitions:.40}', expected a number from 1 on")
        settings = {key: text for key, text in form.items() if key in SETTINGS and text}
        change = partial(create_stream, self._site.log, name, count, settings, known.user)
        try:
            _, created = await self._site.changes.step(change)
        except StreamExists as fault:
            return self._form(request, form, f"stream '{name:.200}' {fault}")
        except ValueError as fault:
            return self._form(request, form, str(fault))
        return self._site.go(
            "/stream" if known.allows("read", name) else "/", "created" if created else None, stream=name
        )

    async def _delete(self, request: Request) -> Response:
        self._site.known(request)  # before the form is read
        form = await self._site.form(request)
        stream = self._site.stream(request, "configure", form.get("stream", ""))
        if form.get("confirm") != stream.name:
            raise HttpError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"stream '{stream.name}' was not deleted: write its name into the field beside the button",
            )
        try:
            await self._site.changes.step(partial(self._site.log.delete_stream, stream.name))
        except UnknownStream as fault:
            raise HttpError(HTTPStatus.NOT_FOUND, "somebody else has deleted the stream") from fault
        return self._site.go("/", "deleted")


def _seen(streams: Sequence[Stream], known: Known, search: str) -> list[Stream]:
    """Return the streams with ``search`` in their names on which a user has any right."""
    found = [each for each in streams if search in each.name.lower()]
    return [each for each in found if any(known.allows(action, each.name) for action in ACTIONS)]


def _all_seen_by(known: Known, streams: Sequence[Stream]) -> Generator[object, None, list[StreamSummary]]:
    """Return the summaries of streams, in steps."""
    found = []
    for stream in streams:
        found.append(_seen_by(known, stream))
        yield None
    return found


def _seen_by(known: Known, stream: Stream) -> StreamSummary:
    """Return the summary of a stream, limited to what a user may know."""
    if known.allows("read", stream.name):
        whole = summary_of(stream)
    else:
        whole = StreamSummary(stream.name, len(stream.partitions), 0, 0)
    return replace(
        whole,
        readable=known.allows("read", stream.name),
        writable=known.allows("write", stream.name),
        configurable=known.allows("configure", stream.name),
    )
