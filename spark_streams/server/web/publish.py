"""The page that publishes one event: the meaning of its form, the partition that it goes to, and the outcome.

The event is stored as the doors store theirs: encoded as a sink encodes a row, in the partition of its key, and as
durably as the log's ``fsync`` says. A fault is shown beside the form, which keeps what was typed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import numpy as np
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spark_streams.errors import SchemaError
from spark_streams.instants import read_instant
from spark_streams.log import NO_TIMESTAMP, Appended, Partition, Stream
from spark_streams.server.appender import AppendRefused, RefusalReason, append_whole, count_append
from spark_streams.server.http.requests import HttpError
from spark_streams.server.web.events import FEW_PARTITIONS
from spark_streams.server.web.shown_text import one_visible_line
from spark_streams.server.web.site import Pages
from spark_streams.wire.amqp.columns.canonical import TIMESTAMP_TYPE
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.columns.properties import PROPERTIES_TYPE
from spark_streams.wire.feed.strict_json import check_json

_MOST_SPLITS: Final = 5
"""How many times, at most, an event is routed again because its partition was split."""
_MOST_TYPED: Final = 256 << 10
"""The most characters of a form that the page repeats with a fault."""
_MOST_PROPERTIES: Final = 64 << 10
"""The most characters of application properties; no page shows the fields of a longer section."""
_GO_BACK: Final = "Go back in the browser: it still has what was typed."
_PROPERTIES: Final = pa.struct([PROPERTIES_TYPE.field(name) for name in ("subject", "content_type")])
_TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
_US: Final = 1_000


class Publish(Pages):
    """The page."""

    _turn = 0

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/publish", self._empty), Route("/publish", self._publish, methods=["POST"])]

    async def _empty(self, request: Request) -> Response:
        stream = self._site.stream(request, "write")
        return self._form(request, stream, {}, "")

    def _form(self, request: Request, stream: Stream, given: Mapping[str, str], fault: str) -> Response:
        known = self._site.known(request)
        arguments = request.query_params
        partition, offset = arguments.get("partition", ""), arguments.get("offset", "")
        stored = partition in stream.partitions and offset.isascii() and offset.isdecimal() and not fault
        names = stream.open_partitions
        return self._site.page(
            request, "publish", known=known, status=HTTPStatus.UNPROCESSABLE_ENTITY if fault else HTTPStatus.OK,
            stream=stream.name, given=given, fault=fault, readable=known.allows("read", stream.name),
            names=list(names) if len(names) <= FEW_PARTITIONS else [],
            timed=stream.config.timestamp_type == "create", stored=(partition, offset[:19]) if stored else None,
        )  # fmt: skip

    async def _publish(self, request: Request) -> Response:
        stream = self._site.stream(request, "write")
        form: Mapping[str, str] = {}
        try:
            async with self._site.long_form(request) as form:
                event = await self._site.worker.step(partial(_event_of, form))
                found = await self._store(stream, event, form.get("partition", ""))
        except ValueError as fault:
            return self._again(request, stream, form, str(fault))
        except HttpError as fault:
            if fault.status_code != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise
            text = f"its form has more than {self._site.config.max_body_bytes} bytes, the most that is taken"
            return self._form(request, stream, {}, f"The event was not stored: {text}. {_GO_BACK}")
        if isinstance(found, AppendRefused):
            return self._again(request, stream, form, f"The event was not stored: {found.description}")
        where, appended = found
        return self._site.go(
            "/publish", "published", stream=stream.name, partition=where.id, offset=str(appended.first_offset)
        )

    def _again(self, request: Request, stream: Stream, given: Mapping[str, str], fault: str) -> Response:
        """Return the form with what was typed, unless that is so long that a page with it would delay all others."""
        if sum(map(len, given.values())) <= _MOST_TYPED:
            return self._form(request, stream, given, fault)
        return self._form(request, stream, {}, f"{fault}\n{_GO_BACK}")

    async def _store(self, stream: Stream, event: Event, chosen: str) -> tuple[Partition, Appended] | AppendRefused:
        """Append an event; where its partition is split meanwhile, to the one that then has its key."""
        outcome: Appended | AppendRefused | None = None
        begun_s = time.perf_counter()
        for _ in range(_MOST_SPLITS):
            partition = self._partition(stream, event.key, chosen)
            outcome = await self._site.changes.step(
                partial(append_whole, partition, event.values, event.keys, event.timestamps)
            )
            if isinstance(outcome, Appended) or chosen or outcome.reason is not RefusalReason.SPLIT:
                break
        assert outcome is not None
        refused = outcome if isinstance(outcome, AppendRefused) else None
        count_append(self._site.counters, event.values, [refused], time.perf_counter() - begun_s)
        return (partition, outcome) if isinstance(outcome, Appended) else outcome

    def _partition(self, stream: Stream, key: str | None, chosen: str) -> Partition:
        """Return the partition of an event: the chosen one, that of its key, or the next one in turn.

        Raises:
            ValueError: there is no such partition, or it was split.
        """
        there = stream.partitions
        names = stream.open_partitions
        if not chosen and key is None:
            self._turn += 1
        name = chosen or (names[self._turn % len(names)] if key is None else stream.home(key.encode()))
        partition = there.get(name)
        if partition is None:
            raise ValueError(f"There is no partition '{one_visible_line(name, 40)}': choose one that there is.")
        if partition.closed:
            raise ValueError(
                f"Partition {name} takes no more events: it was split into {', '.join(partition.successors)}. Choose "
                "one of these, or leave it to the key."
            )
        return partition


class Event:
    """An event as a form describes it, encoded.

    Args:
        form: its fields: ``key``, ``value``, ``content_type``, ``subject``, ``properties``, ``created``.

    Attributes:
        key: its key; None for none.
        values, keys, timestamps: what the log stores of it, one row.

    Raises:
        ValueError: a field cannot be used; the text says which, and what was expected.
    """

    def __init__(self, form: Mapping[str, str]) -> None:
        value = form.get("value", "").replace("\r\n", "\n")  # a form sends every newline as CRLF (HTML, 4.10.21)
        content_type, subject = form.get("content_type", "").strip(), form.get("subject", "")
        self.key = form.get("key") or None
        columns: dict[str, Any] = {"value": pa.array([value.encode()], pa.binary())}
        if self.key is not None:
            columns["key"] = pa.array([self.key], pa.string())
        if subject or content_type:
            fields = {"subject": subject or None, "content_type": content_type or None}
            columns["properties"] = pa.array([fields], _PROPERTIES)
        properties = read_properties(form.get("properties", ""))
        if properties:
            columns["application_properties"] = pa.array([properties], _TEXT_MAP)
        ms = NO_TIMESTAMP
        if form.get("created", "").strip():
            ms = _creation_ms(form["created"])
            columns["timestamp"] = pa.array([ms * _US], TIMESTAMP_TYPE)
        try:
            self.values = encode_columns(columns)
        except SchemaError as fault:
            raise ValueError(f"The event cannot be encoded: {fault}") from fault
        self.keys = pa.array([None if self.key is None else self.key.encode()], pa.binary())
        self.timestamps = np.array([ms], np.int64)


def _event_of(form: Mapping[str, str]) -> Event:
    """Return the event that a form describes; JSON, by its content type, is checked."""
    if form.get("content_type", "").partition(";")[0].strip().lower().endswith(("/json", "+json")):
        try:
            check_json(form.get("value", ""))
        except (ValueError, RecursionError) as fault:
            raise ValueError(
                f"The value is no JSON, which its content type says: {fault}. Mend it, or give another content type."
            ) from fault
    return Event(form)


def read_properties(text: str) -> list[tuple[str, str]]:
    """Return application properties from lines ``name=value``; blank lines do not count.

    Raises:
        ValueError: they are too long, or a line is no property or repeats a name; the message names the line.
    """
    if len(text) > _MOST_PROPERTIES:
        raise ValueError(
            f"Application properties have {len(text)} characters, expected at most {_MOST_PROPERTIES}: put long values "
            "into the event's value."
        )
    found: dict[str, str] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        name, sign, value = line.partition("=")
        name = name.strip()
        if not line.strip():
            continue
        shown = one_visible_line(line, 60)
        if not sign or not name:
            raise ValueError(f"Application properties, line {number}: '{shown}', expected name=value.")
        if name in found:
            raise ValueError(f"Application properties, line {number}: '{shown}' repeats a name: give it once.")
        found[name] = value
    return list(found.items())


def _creation_ms(text: str) -> int:
    ms = read_instant(text)
    if not -(2**63) <= ms * _US < 2**63:
        raise ValueError(f"Creation time {one_visible_line(text, 40)} lies outside the years -290000 to 290000.")
    return ms
