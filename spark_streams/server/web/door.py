"""The door of the log's window: an HTTP door, with the pages as its application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spark_streams.log import ReferenceLog
from spark_streams.server.http.door import HttpDoor
from spark_streams.server.web.config import WebConfig

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from spark_streams.server.web.application import WebApplication

_APPLICATION: Final = "spark_streams.server.web.application"


class WebDoor(HttpDoor):
    """The log's window.

    Args:
        config: its settings.
    """

    config: WebConfig
    _doors: Sequence[Any] = ()

    def observe(self, doors: Sequence[Any]) -> None:
        """Take the doors of the server, which the pages show; the server calls it before it opens them."""
        self._doors = doors

    def make(self, log: ReferenceLog) -> MadeWhenAsked:
        """Return the application for a log, which is made at its first request."""
        loop = asyncio.get_running_loop()

        def make() -> WebApplication:
            from spark_streams.server.web.application import WebApplication
            from spark_streams.server.web.site import Site

            return WebApplication(Site(log, self.config, self._doors, loop, self.counters))

        return MadeWhenAsked(make)


class MadeWhenAsked:
    """The application of a log's window, imported and made at the first request: most logs never get a request.

    Args:
        make: makes it, on the server's loop.

    Attributes:
        application: the ASGI application.
    """

    def __init__(self, make: Callable[[], WebApplication]) -> None:
        self._make = make
        self._made: WebApplication | None = None
        self._stopping = False
        self.application = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._made is None:
            await asyncio.to_thread(import_module, _APPLICATION)  # not on the loop: it takes some ten milliseconds
        if self._made is None:  # another request may have come first
            self._made = self._make()
            if self._stopping:
                self._made.shut_down()
        await self._made.application(scope, receive, send)

    def shut_down(self) -> None:
        """Make the open responses end."""
        self._stopping = True
        if self._made is not None:
            self._made.shut_down()

    def close(self) -> None:
        """Release everything; call it after all connections have ended."""
        if self._made is not None:
            self._made.close()
