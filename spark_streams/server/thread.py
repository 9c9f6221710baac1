"""Runs a server in a thread of its own, for tests and for programs without a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from spark_streams.log import ReferenceLog
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.doors import DoorArguments, DoorUrls
from spark_streams.server.log_server import LogServer

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
START_TIMEOUT_S = 30.0


class ServerThread(DoorUrls):
    """A ``LogServer`` that runs while the context is open.

    Args:
        log: the log; it stays open.
        configs: settings of doors, as for ``LogServer``.
        doors: further settings and doors, as for ``LogServer``.
    """

    def __init__(self, log: ReferenceLog, *configs: DoorConfig | None, **doors: Unpack[DoorArguments]) -> None:
        self.log = log
        self.server: LogServer = LogServer(log, *configs, **doors)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start, and return when the server listens.

        Raises:
            OSError: the server cannot listen.
            ValueError: a door would listen beyond loopback and let in strangers.
        """
        listening: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(listening)), name="spark-streams-server", daemon=True
        )
        self._thread.start()
        listening.result(START_TIMEOUT_S)

    async def _run(self, listening: concurrent.futures.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await self.server.start()
        except BaseException as fault:
            listening.set_exception(fault)
            return
        listening.set_result(None)
        await self._stop.wait()
        await self.server.stop()

    def stop(self) -> None:
        """Stop, and return when nothing listens any more."""
        if self._thread is not None and self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._thread = None

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's loop and return its result."""
        assert self._loop is not None, "the server was not started"

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def __enter__(self) -> ServerThread:
        self.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()
