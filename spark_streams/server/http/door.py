"""A door that speaks HTTP: listens, and runs an ASGI application on its connections."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any

from spark_streams.log import ReferenceLog
from spark_streams.protocols import check_packages
from spark_streams.server.admission import Sockets
from spark_streams.server.door import STOP_TIMEOUT_S, TcpDoor
from spark_streams.server.http.config import HttpConfig


class HttpDoor(TcpDoor):
    """A door whose connections share an application.

    Args:
        config: its settings.

    Attributes:
        application: has the ASGI ``application``, ``shut_down``, which makes the open responses end, and ``close``,
            called after all connections have ended; None while the door is not open.
    """

    config: HttpConfig
    application: Any = None

    @abstractmethod
    def make(self, log: ReferenceLog) -> Any:
        """Return the ``application`` for a log; it is called on the server's loop."""

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``.

        Raises:
            OSError: it cannot listen.
            PackageMissing: packages of the extra ``log`` are not installed.
        """
        check_packages(f"the door --{self.name}")
        # Imported only here: programs that do not open this door need not import uvicorn and starlette.
        from uvicorn.server import ServerState

        from spark_streams.server.http.connection import HttpConnection, uvicorn_config

        application = self.application = self.make(log)
        state = self.node = ServerState()
        settings = uvicorn_config(application.application, self.config)
        await self.listen(sockets, lambda admission: HttpConnection(admission, self.config, settings, state))

    async def close(self) -> None:
        """Make open responses end, drop clients that do not read their end, and wait for requests under way."""
        application, self.application = self.application, None
        if application is not None:
            application.shut_down()
        await self.end_connections()
        if self.node is not None and (requests := set(self.node.tasks)):
            _, late = await asyncio.wait(requests, timeout=STOP_TIMEOUT_S)
            for request in late:
                request.cancel()
            await asyncio.sleep(0)  # cancelled ones end before what they use
        if application is not None:
            application.close()
