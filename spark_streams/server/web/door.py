"""The door of the log's window: an HTTP door, with the pages as its application."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_streams.log import ReferenceLog
from spark_streams.server.http.door import HttpDoor
from spark_streams.server.web.config import WebConfig

if TYPE_CHECKING:
    from spark_streams.server.web.application import WebApplication


class WebDoor(HttpDoor):
    """The log's window.

    Args:
        config: its settings.
    """

    config: WebConfig

    def __init__(self, config: WebConfig) -> None:
        super().__init__(config)
        self._doors: Sequence[Any] = ()

    def observe(self, doors: Sequence[Any]) -> None:
        """Take the doors of the server, which the pages show; the server calls it before it opens them."""
        self._doors = doors

    def make(self, log: ReferenceLog) -> WebApplication:
        """Return the application for a log."""
        from spark_streams.server.web.application import WebApplication

        return WebApplication(log, self.config, self._doors, asyncio.get_running_loop(), self.counters)
