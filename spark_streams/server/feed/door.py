"""The FeedAPI door: an HTTP door with the application of the feeds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_streams.log import ReferenceLog
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.http.door import HttpDoor

if TYPE_CHECKING:
    from spark_streams.server.feed.application import FeedApplication


class FeedDoor(HttpDoor):
    """The FeedAPI door.

    Args:
        config: its settings.
    """

    config: FeedConfig

    def make(self, log: ReferenceLog) -> FeedApplication:
        """Return the application for a log."""
        from spark_streams.server.feed.application import FeedApplication

        return FeedApplication(log, self.config, asyncio.get_running_loop(), self.counters)
