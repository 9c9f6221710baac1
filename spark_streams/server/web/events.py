"""The pages of events: those of one partition with a filter, one event in full, and its body as a file."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from spark_streams.errors import CorruptLog, FilterError
from spark_streams.filters import read_filter
from spark_streams.filters.row_columns import columns_needed
from spark_streams.filters.tree import Expression
from spark_streams.log import Partition, Records
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.counters import logger
from spark_streams.server.http.requests import HttpError
from spark_streams.server.web.event_page import EventPage, page_of, rows_of, start_of
from spark_streams.server.web.event_parts import body_bytes, message_of
from spark_streams.server.web.formats import hexadecimal, whole
from spark_streams.server.web.pushed_filters import Pushed, pushed_filters
from spark_streams.server.web.shown_text import CUT, one_visible_line
from spark_streams.server.web.site import Pages

FEW_PARTITIONS: Final = 200
"""The most partitions of a stream that a list offers; with more, the user types the name."""
_AROUND: Final = 60
"""Characters of a filter that are shown on either side of a fault."""


class Events(Pages):
    """The pages."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/events", self._page), Route("/event", self._one), Route("/event/body", self._body)]

    async def _page(self, request: Request) -> Response:
        """Answer with a page of events, which arguments ``partition``, ``from``, ``at`` and ``filter`` select."""
        stream = self._site.stream(request)
        known = self._site.known(request)
        partition = self._site.partition(request, stream)
        kind, place = request.query_params.get("from", "latest"), request.query_params.get("at", "")
        text = request.query_params.get("filter", "")
        page, fault, filter_fault, pushed = EventPage(), "", None, list[Pushed]()
        try:
            expression, pushed = await self._site.worker.step(partial(_read, text))
            steps = page_of(partition, expression, start_of(kind, place), self._site.config.page_rows)
            with _reading(partition):
                page = await self._site.worker.run(_while_there(request, steps))
        except FilterError as wrong:
            filter_fault = FilterFault(wrong, text)
        except ValueError as wrong:
            fault = str(wrong)
        return self._site.page(
            request, "events", known=known, status=HTTPStatus.UNPROCESSABLE_ENTITY if fault or filter_fault else
            HTTPStatus.OK, stream=stream.name, partition=partition, names=_offered(stream.partitions), kind=kind,
            place=place, filter=text, page=page, fault=fault, filter_fault=filter_fault,
            pushed=pushed, writable=known.allows("write", stream.name),
        )  # fmt: skip

    async def _one(self, request: Request) -> Response:
        """Answer with the event that arguments ``partition`` and ``offset`` name."""
        stream = self._site.stream(request)
        partition = self._site.partition(request, stream)
        offset = _offset(request)
        most = self._site.config.shown_bytes

        def read() -> dict[str, Any]:
            records = _record(partition, offset)
            raw = records.value(0)
            message = message_of(raw, most)
            dump = "" if message.body is None else hexadecimal(message.body.content)
            return {"message": message, "size": len(raw), "row": rows_of(records)[0], "dump": dump}

        with _reading(partition):
            values = await self._site.worker.step(read)
        return self._site.page(
            request, "event", known=self._site.known(request), stream=stream.name, partition=partition, offset=offset,
            created=partition.config.timestamp_type == "create", **values,
        )  # fmt: skip

    async def _body(self, request: Request) -> Response:
        """Answer with an event's body as a file; with ``whole``, its message as it is stored."""
        stream = self._site.stream(request)
        partition = self._site.partition(request, stream)
        offset = _offset(request)
        whole = "whole" in request.query_params

        def read() -> bytes:
            raw = _record(partition, offset).value(0)
            return raw if whole else body_bytes(raw)

        with _reading(partition):
            content = await self._site.worker.step(read)
        name = f"event-{partition.id}-{offset}" + (".amqp" if whole else ".bin")
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": f"{len(content)}"}
        sent = self._site.bodies.sent(request.scope["state"]["connection"].user, content)
        return StreamingResponse(sent, media_type="application/octet-stream", headers=headers)


class FilterFault:
    """A fault of a filter, and its place.

    Args:
        fault: the fault.
        text: the filter as it was written.

    Attributes:
        reason: what was wrong, and what was expected.
        column: the column of the fault, counted from 1; None where it has none.
        shown: the text around it, fit to be shown.
        pointer: the line below it, with a caret at the column; empty without one.
    """

    def __init__(self, fault: FilterError, text: str) -> None:
        self.reason = fault.reason
        self.column = fault.column if fault.text == text else None
        at = 0 if self.column is None else min(self.column - 1, len(text))
        first, end = max(0, at - _AROUND), at + _AROUND
        before = (CUT if first else "") + one_visible_line(text[first:at])
        self.shown = before + one_visible_line(text[at:end]) + (CUT if end < len(text) else "")
        self.pointer = "" if self.column is None else " " * len(before) + "^"


def _while_there(request: Request, steps: Generator[object, None, EventPage]) -> Generator[object, None, EventPage]:
    """Take the steps of a search only while its client waits: else the searches of abandoned requests would pile up."""
    connection = request.scope["state"]["connection"]
    while not connection.gone:
        try:
            yield next(steps)
        except StopIteration as end:
            page: EventPage = end.value
            return page
    raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "nobody waits for these events any more")


def _read(text: str) -> tuple[Expression | None, list[Pushed]]:
    """Return a filter, None for none, and the parts that are pushed."""
    expression = read_filter(text) if text.strip() else None
    if expression is None:
        return None, []
    columns_needed(expression)
    return expression, pushed_filters(expression)


def _offered(partitions: Any) -> list[str]:
    """Return the partitions that a list offers; none when there are too many."""
    return list(partitions) if len(partitions) <= FEW_PARTITIONS else []


def _offset(request: Request) -> int:
    text = request.query_params.get("offset", "")
    offset = whole(text)
    if offset is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"offset is '{text:.40}', expected a number from 0 on")
    return offset


def _record(partition: Partition, offset: int) -> Records:
    """Return one record.

    Raises:
        HttpError: 404, there is none.
        CorruptLog: a check failed.
        PartitionClosed: the log was closed, or the stream deleted.
    """
    if partition.first_offset <= offset < partition.next_offset:
        records = partition.read(offset, 1)
        if records is not None and len(records) and int(records.offsets[0]) == offset:
            return records
    there = f"it has {partition.first_offset} to {partition.next_offset - 1}"
    if partition.first_offset == partition.next_offset:
        there = "it has none"
    raise HttpError(HTTPStatus.NOT_FOUND, f"partition {partition.id} has no event at offset {offset}: {there}")


@contextlib.contextmanager
def _reading(partition: Partition) -> Iterator[None]:
    """Answer 404 where the stream is deleted meanwhile, and 500 where it is damaged; only our log names the file."""
    try:
        yield
    except PartitionClosed as fault:
        raise HttpError(HTTPStatus.NOT_FOUND, f"the events are gone: {fault}") from fault
    except CorruptLog as fault:
        logger.error("stream %r partition %s: %s", partition.stream, partition.id, fault)
        raise HttpError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "stored events are damaged, and this cannot be read. The server's log names the file",
        ) from fault
