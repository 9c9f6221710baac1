"""Fixtures of the RabbitMQ door's conformance tests: a served log, and a broker that is a door or a real one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import DELIVER, Peer
from tests.server.foreign_programs import Driver
from tests.server.long_timeouts import LONG_TIMEOUTS
from tests.server.rabbitmq.interop import PROGRAMS, Client

VERSIONS = ((DELIVER, 1, 2),)


class Broker:
    """Something that speaks the stream protocol, connections to it, and streams that end with the test.

    Args:
        url: where it listens, with credentials.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"conformance-{uuid.uuid4().hex[:12]}"
        self._peers: list[Peer] = []
        self._streams: list[str] = []

    def peer(self, versions: Sequence[tuple[int, int, int]] = VERSIONS) -> Peer:
        """A new connection, opened."""
        peer = self.connect()
        peer.open(versions=versions)
        return peer

    def connect(self) -> Peer:
        """A new connection, without a word said."""
        peer = Peer(self.url)
        self._peers.append(peer)
        return peer

    def stream(self, name: str = "stream", **arguments: str) -> str:
        """A new stream that is deleted at the end; returns its whole name."""
        whole = f"{self.prefix}-{name}"
        peer = self.peer()
        assert peer.create(whole, **arguments) == 1
        peer.close()
        self._streams.append(whole)
        return whole

    def close(self) -> None:
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.close()
        if self._streams:
            with contextlib.closing(Peer(self.url)) as peer:
                peer.open()
                for stream in self._streams:
                    peer.delete(stream)


class Door(Broker):
    """The embedded door of a log."""

    def __init__(self, server: Any, log: Any) -> None:
        super().__init__(server.urls["rabbitmq-stream"].replace("://", "://guest:guest@"))
        self.server = server
        self.log = log

    def taken_in(self) -> None:
        """Return once the server has read what its peers have sent: the loop has turned, and turned again."""
        for _ in range(3):
            self.server.call(lambda: None)

    def partition(self, stream: str) -> Any:
        """The only partition of a stream."""
        (partition,) = self.log.stream(stream).partitions.values()
        return partition


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Callable[..., Door]]:
    """A function that starts a door with the RabbitConfig fields given; the AMQP door beside it when asked for."""
    from spark_streams.log import LogConfig, ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread
    from spark_streams.server.rabbitmq.config import RabbitConfig

    with contextlib.ExitStack() as stack:

        def start(
            *, amqp: bool = False, log_config: Any = None, clock: Any = None, folder: str = "log", **config: Any
        ) -> Door:
            extra = {} if clock is None else {"clock": clock}
            log = stack.enter_context(ReferenceLog(tmp_path / folder, log_config or LogConfig(), **extra))
            beside = AmqpConfig(port=0) if amqp else None
            server = stack.enter_context(ServerThread(log, beside, RabbitConfig(port=0, **{**LONG_TIMEOUTS, **config})))
            door = Door(server, log)
            stack.callback(door.close)
            return door

        yield start


@pytest.fixture
def door(doors: Callable[..., Door]) -> Door:
    """A door with the default configuration, and long time-outs (tests/server/long_timeouts.py)."""
    return doors()


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str], Any]]:
    """A function that has calls of a function held."""
    from tests.server.rabbitmq.beside import Held

    every: list[Held] = []

    def begin(owner: Any, name: str) -> Held:
        every.append(Held(monkeypatch, owner, name))
        return every[-1]

    yield begin
    for held in every:
        held.let_go()


@pytest.fixture(params=["embedded", pytest.param("real", marks=[pytest.mark.rabbitmq, pytest.mark.nightly])])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The embedded door, and the real broker that RABBITMQ_STREAM_URL names.

    With a real one nothing of ours runs: it shows that what the tests expect is what RabbitMQ does, which no change
    here alters. Run a test that you write or change on it: ``-m rabbitmq``.
    """
    if request.param == "embedded":
        yield request.getfixturevalue("door")
        return
    url = os.environ.get("RABBITMQ_STREAM_URL")
    if url is None:
        pytest.skip("no real RabbitMQ: RABBITMQ_STREAM_URL is not set (`make test` starts one where it can)")
    real = Broker(url)
    yield real
    real.close()


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Driver]]:
    """A function that returns the program of the client for ``java`` or ``go``, which is built and started once."""
    running: dict[str, Driver] = {}
    failed: dict[str, BaseException] = {}

    def driver(language: str) -> Driver:
        if language in failed:
            raise failed[language]
        if language not in running:
            try:
                command = PROGRAMS[language]()
            except (pytest.skip.Exception, pytest.fail.Exception) as outcome:
                failed[language] = outcome  # of the others too: they need not try for minutes each
                raise
            running[language] = Driver(command, tmp_path_factory.mktemp("interop") / f"{language}.err")
        return running[language]

    yield driver
    for each in running.values():
        each.stop()


@pytest.fixture(params=[pytest.param("java", marks=pytest.mark.jdk), pytest.param("go", marks=pytest.mark.go)])
def language(request: pytest.FixtureRequest) -> str:
    """RabbitMQ's clients that are programs of their own (interop.py)."""
    return str(request.param)


@pytest.fixture
def clients(language: str, drivers: Callable[[str], Driver]) -> Iterator[Callable[..., Client]]:
    """A function that connects the client to a broker; connections end with the test."""
    with contextlib.ExitStack() as stack:

        def connect(url: str, **tls: str) -> Client:
            client = Client(drivers(language), url, **tls)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def client(broker: Broker, clients: Callable[..., Client]) -> Client:
    """The client for Java, and the one for Go, connected to the door, and to the real broker."""
    return clients(broker.url)
