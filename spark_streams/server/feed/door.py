"""The FeedAPI door: listens, and runs the application on an HTTP server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_streams.log import ReferenceLog
from spark_streams.server.admission import Sockets
from spark_streams.server.door import ListeningDoor
from spark_streams.server.feed.config import FeedConfig

if TYPE_CHECKING:
    from spark_streams.server.feed.http_server import HttpServer


class HttpDoor(ListeningDoor):
    """The FeedAPI door.

    Args:
        config: its settings.

    Attributes:
        server: the HTTP server; None while the door is not open.
    """

    config: FeedConfig

    def __init__(self, config: FeedConfig) -> None:
        super().__init__(config)
        self.server: HttpServer | None = None

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``."""
        # Imported only here: programs that do not open this door need not import uvicorn and starlette.
        from spark_streams.server.feed.application import FeedDoor
        from spark_streams.server.feed.http_server import HttpServer, bound_socket

        admission = self.admit(sockets)
        listener = bound_socket(self.config.host, self.config.port)
        application = FeedDoor(log, self.config, asyncio.get_running_loop())
        self.server = HttpServer(application, listener, admission, self.config)
        await self.server.start()
        self.announce(listener.getsockname()[1])

    async def close(self) -> None:
        """Send open responses their last line, and drop clients that do not read it."""
        self.shut_out()
        server, self.server = self.server, None
        if server is not None:
            await server.stop()
