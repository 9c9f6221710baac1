"""A server in a thread of its own, for tests and for programs without a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

from spark_streams.log import ReferenceLog
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.log_server import LogServer
from spark_streams.server.rabbitmq.config import RabbitConfig

__all__ = ["ServerThread"]

T = TypeVar("T")
START_TIMEOUT_S = 30.0


class ServerThread:
    """A ``LogServer`` that runs while the context is open.

    Args:
        log: the log; it stays open.
        amqp: settings of the AMQP door; None leaves it shut.
        rabbit: settings of the RabbitMQ streams door; None leaves it shut.
        feed: settings of the FeedAPI door; None leaves it shut.

    """

    def __init__(
        self,
        log: ReferenceLog,
        amqp: AmqpConfig | None = None,
        rabbit: RabbitConfig | None = None,
        feed: FeedConfig | None = None,
    ) -> None:
        self.log = log
        self.server = LogServer(log, amqp, rabbit, feed)
        self._amqp = amqp
        self._rabbit = rabbit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start, and return when the server listens.

        Raises:
            OSError: it cannot listen.
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

    @property
    def urls(self) -> dict[str, str]:
        """Door to where it listens, without credentials."""
        return self.server.urls

    @property
    def amqp_url(self) -> str:
        """The AMQP door's URL with the first user's credentials in it, for tests."""
        return _signed_in(self.urls["amqp"], self._amqp.users if self._amqp is not None else {})

    @property
    def rabbit_url(self) -> str:
        """The RabbitMQ streams door's URL with the first user's credentials in it, for tests."""
        return _signed_in(self.urls["rabbitmq-stream"], self._rabbit.users if self._rabbit is not None else {})

    @property
    def feed_url(self) -> str:
        """The FeedAPI door's URL; a feed's name follows behind a slash. Tokens have no place in it."""
        return self.urls["feedapi"]

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's loop and return its result."""
        assert self._loop is not None, "the server was not started"
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as fault:
                result.set_exception(fault)

        self._loop.call_soon_threadsafe(run)
        return result.result(60)

    def __enter__(self) -> ServerThread:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _signed_in(url: str, users: Mapping[str, str]) -> str:
    scheme, _, where = url.partition("://")
    for user, password in users.items():
        return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{where}"
    return url
