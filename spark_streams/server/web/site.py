"""The common part of all pages of the log's window: the log, the user, the stream of a page, forms, and templates.

Pages are plain HTML, made here: they work without scripts, and a script only keeps figures up to date. Templates escape
all values, so that an event or a name is never more than text.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from spark_streams.log import Partition, ReferenceLog, Stream
from spark_streams.server.counters import DoorCounters
from spark_streams.server.http.authorization import Authorization, Known, host_of
from spark_streams.server.http.receive_budget import BodyBudget
from spark_streams.server.http.requests import HttpError
from spark_streams.server.turns import Worker
from spark_streams.server.web.config import WebConfig
from spark_streams.server.web.formats import FILTERS, whole
from spark_streams.server.web.sessions import Sessions
from spark_streams.wire.amqp.decode import finished

if TYPE_CHECKING:
    import jinja2

FOLDER: Final = Path(__file__).parent
SIGN_IN: Final = "/sign-in"
_MOST_FIELDS: Final = 64
_STEP_CHARACTERS: Final = 8 << 10
LITTLE_BYTES: Final = 16 << 10
"""A longer form is read in the thread."""
_NOTICE: Final = "notice"
_KEPT_ARGUMENTS: Final = ("search", "show", "stream")
"""The arguments of a page's address that the addresses of the table's further pages keep."""


class SignInNeeded(Exception):
    """A client that has not signed in requested a page."""


@dataclass(eq=False)
class Site:
    """The common part of all pages.

    Args:
        log: the log.
        config: the window's settings.
        doors: the doors of the server.
        loop: the server's.
        counters: those of the window's door.

    Attributes:
        worker: a thread for long work, one piece at a time.
        changes: a thread for work that waits for the disk.
        bodies: the memory of long forms, and of events' bodies that are sent as files.
    """

    log: ReferenceLog
    config: WebConfig
    doors: Sequence[Any]
    loop: asyncio.AbstractEventLoop
    counters: DoorCounters

    def __post_init__(self) -> None:
        config = self.config
        self.worker = Worker("spark-streams-web")
        self.changes = Worker("spark-streams-web-changes")
        self.bodies = BodyBudget(config)
        self.authorization = Authorization(self.log, config, "stream")
        self.sessions = Sessions(config.session_ms, config.max_sessions, time.monotonic)

    # --- who asks

    def session_token(self, request: Request) -> str:
        """Return the session token in the cookie of a request; empty without one."""
        return request.cookies.get(self.cookie_name(request), "")

    def cookie_name(self, request: Request) -> str:
        """Return the cookie's name: browsers keep the cookies of all ports of a machine together."""
        prefix = "__Host-" if self.config.tls_cert is not None else ""
        return f"{prefix}spark-streams-{request.url.port or ''}"

    def known(self, request: Request) -> Known:
        """Return the user: the one who signed in, or whom the header ``Authorization`` names.

        Raises:
            SignInNeeded: the request belongs to no sign-in of a user that is let in.
            HttpError: 401, the header names no known user.
        """
        if not self.config.signs_in or "authorization" in request.headers:
            return self.authorization.known(request)
        known = self.sessions.find(self.session_token(request))
        if known is None or not self.config.admits(known.user, host_of(request)):
            raise SignInNeeded
        request.scope["state"]["connection"].belongs_to(known.user)
        return known

    def sees_all(self, known: Known) -> bool:
        """Return whether a user sees the clients and stored offsets of others."""
        return not known.limited or (known.user in self.config.monitors and not known.by_token)

    # --- what a request is about

    def stream(self, request: Request, action: str = "read", name: str | None = None) -> Stream:
        """Return the stream that a request is about.

        Args:
            request: the request; its argument ``stream`` is the name, unless it is given.
            action: ``read``, ``write`` or ``configure``, which the user must be allowed to do.
            name: the stream's name.

        Raises:
            SignInNeeded: see ``known``.
            HttpError: 403, the user may not do this; 404, there is no such stream.
        """
        name = request.query_params.get("stream", "") if name is None else name
        return self.authorization.stream(request, name, action, self.known(request))

    def partition(self, request: Request, stream: Stream) -> Partition:
        """Return the partition that a request names with ``partition``; without it, the first one.

        Raises:
            HttpError: 404, the stream has no such partition.
        """
        there = stream.partitions
        name = request.query_params.get("partition", next(iter(there)))
        if name not in there:
            raise HttpError(HTTPStatus.NOT_FOUND, f"stream '{stream.name:.200}' has no partition '{name:.40}'")
        return there[name]

    async def form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that strangers can send, too, and that must be short; see ``long_form``."""
        async with self.long_form(request, LITTLE_BYTES) as fields:
            return fields

    @asynccontextmanager
    async def long_form(self, request: Request, most: int | None = None) -> AsyncIterator[dict[str, str]]:
        """Return the fields of a form that one of our pages sent; it counts among ``bodies`` until the context ends.

        Args:
            request: the request.
            most: the most bytes that it may have; None: ``max_body_bytes``.

        Raises:
            HttpError: 403 when it lacks our CSRF token; 413 when it is too long; 503 when there are too many; 400 when
                it is no form.
        """
        async with self.bodies.received(request, most) as parts:
            steps = _fields(b"".join(parts))
            try:
                fields = finished(steps) if sum(map(len, parts)) <= LITTLE_BYTES else await self.worker.run(steps)
            except ValueError as fault:
                raise HttpError(HTTPStatus.BAD_REQUEST, f"the form cannot be read: {fault}") from fault
            if not self.sessions.has_csrf_token(self.session_token(request), fields.pop("csrf_token", "")):
                raise HttpError(
                    HTTPStatus.FORBIDDEN,
                    "this form is not one of a page that you have open, or you signed in or out since, or the log was "
                    "started anew: load the page again, and repeat it",
                )
            yield fields

    # --- what is answered

    def page(
        self, request: Request, template: str, *, known: Known | None, status: int = HTTPStatus.OK, **values: Any
    ) -> Response:
        """Return a page.

        Args:
            request: the request.
            template: the name of its template, without suffix.
            known: the user; None for one who has not signed in.
            status: the HTTP status.
            values: what the template shows.
        """
        notice = request.query_params.get(_NOTICE, "")
        text = (
            _templates()
            .get_template(f"{template}.html")
            .render(
                here=request.url.path,
                known=known,
                signs_in=self.config.signs_in,
                csrf_token=self.sessions.csrf_token(self.session_token(request)),
                notice=NOTICES.get(notice, ""),
                **values,
            )
        )
        return HTMLResponse(text, status)

    def go(self, path: str, notice: str | None = None, **arguments: str) -> Response:
        """Return an answer that leads to a page, after a form has done its work.

        Args:
            path: the page.
            notice: which of ``NOTICES`` it shows.
            arguments: of the page.
        """
        return RedirectResponse(link(path, **arguments, **{_NOTICE: notice}), HTTPStatus.SEE_OTHER)

    def close(self) -> None:
        """Wait for the work under way in the threads."""
        self.worker.close()
        self.changes.close()


class Pages(ABC):
    """Some pages.

    Args:
        site: what all pages share.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    @abstractmethod
    def routes(self) -> list[BaseRoute]:
        """Return the routes."""


class Paging:
    """The rows of a table that one page has.

    Args:
        request: its argument ``page`` counts from 1.
        rows: how many rows there are.
        size: how many a page has.
        arguments: further arguments of the page's address.
    """

    def __init__(self, request: Request, rows: int, size: int, **arguments: str) -> None:
        asked = whole(request.query_params.get("page", ""), 9)
        self.pages = max(1, -(-rows // size))
        self.page = min(max(asked or 1, 1), self.pages)
        self.first = (self.page - 1) * size
        self.end = min(self.first + size, rows)
        self.path = request.url.path
        self.arguments = {key: each for key, each in request.query_params.items() if key in _KEPT_ARGUMENTS}
        self.arguments.update(arguments)

    def cut(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of this page."""
        return rows[self.first : self.end]


NOTICES: Final[Mapping[str, str]] = {
    "created": "The stream was created.",
    "deleted": "The stream was deleted, with all its events.",
    "published": "The event was published.",
    "signed-out": "You signed out.",
}
"""The notices that a page shows once a form has done its work, by their names in the address: no address makes a page
show anything else."""


def _fields(body: bytes) -> Generator[None, None, dict[str, str]]:
    """Return a form's fields, in steps."""
    pairs = body.decode("ascii").split("&", _MOST_FIELDS)
    if len(pairs) > _MOST_FIELDS:
        raise ValueError(f"it has more than {_MOST_FIELDS} fields")
    fields = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        fields[(yield from _unquoted(name))] = yield from _unquoted(text)
    return fields


def _unquoted(text: str) -> Generator[None, None, str]:
    parts, at = [], 0
    while at < len(text):
        end = at + _STEP_CHARACTERS
        end = max(0, text.rfind("%", end - 2, end)) or end  # an escape that would be cut goes to the next step
        parts.append(unquote_to_bytes(text[at:end].replace("+", " ")))
        at = end
        yield
    return b"".join(parts).decode()


@cache
def _templates() -> jinja2.Environment:
    import jinja2  # only for the first page: it takes a while

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals["link"] = link
    return made


def link(path: str, /, **arguments: object) -> str:
    """Return the address of a page with arguments; those that are None or empty are left out."""
    given = [(name.rstrip("_"), str(each)) for name, each in arguments.items() if each not in (None, "")]
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path
