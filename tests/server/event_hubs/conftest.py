"""Fixtures of the conformance tests: a log with an Event Hubs door, and its other doors beside it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from spark_streams.testing import eventually
from tests.door_urls import plain_url
from tests.server.long_timeouts import LONG_TIMEOUTS

WAIT_S = 120
HUB = "orders"


def sas(uri: str, rule: str, key: str, expires_s: float | None = None) -> str:
    """Return a shared access signature, made as Microsoft's documentation makes them."""
    encoded, until = quote_plus(uri), str(int(time.time() + 3_600 if expires_s is None else expires_s))
    signature = base64.b64encode(hmac.new(key.encode(), f"{encoded}\n{until}".encode(), hashlib.sha256).digest())
    return f"SharedAccessSignature sr={encoded}&sig={quote_plus(signature)}&se={until}&skn={rule}"


class Namespace:
    """A served log, its hubs, and clients of Microsoft's for Python that end with the test."""

    def __init__(self, server: Any, log: Any, stack: contextlib.ExitStack) -> None:
        self.server = server
        self.log = log
        self._stack = stack

    @property
    def connection_string(self) -> str:
        return str(self.server.event_hubs_connection_string)

    @property
    def url(self) -> str:
        """The door for peers that know nothing of connection strings."""
        return plain_url(self.connection_string)

    def peer(self, **options: Any) -> Any:
        """A client that speaks AMQP and nothing of Event Hubs by itself."""
        from tests.server.amqp.raw_peer import Peer

        peer = Peer(self.url, **options)
        self._stack.callback(peer.close)
        return peer

    def create(self, partitions: int = 1, hub: str = HUB, **config: Any) -> str:
        from spark_streams.log import StreamConfig

        self.server.call(lambda: self.log.create_stream(hub, partitions, StreamConfig(**config) if config else None))
        return hub

    def ends(self, hub: str = HUB) -> dict[str, int]:
        """Return how many events each partition has had."""
        return {name: partition.next_offset for name, partition in self.log.stream(hub).partitions.items()}

    def producer(self, hub: str = HUB, connection_string: str | None = None) -> Any:
        from azure.eventhub import EventHubProducerClient

        made = EventHubProducerClient.from_connection_string(
            connection_string or self.connection_string, eventhub_name=hub, retry_total=0
        )
        return self._stack.enter_context(made)

    def consumer(self, hub: str = HUB, group: str = "$Default", **options: Any) -> Any:
        from azure.eventhub import EventHubConsumerClient

        given = options.pop("connection_string", self.connection_string)
        made = EventHubConsumerClient.from_connection_string(
            given, group, eventhub_name=hub, **{"retry_total": 0, **options}
        )
        return self._stack.enter_context(made)

    def send(self, *bodies: Any, hub: str = HUB, **where: str) -> None:
        """Send events in one batch."""
        from azure.eventhub import EventData

        producer = self.producer(hub)
        batch = producer.create_batch(**where)
        for body in bodies:
            batch.add(body if isinstance(body, EventData) else EventData(body))
        producer.send_batch(batch)

    def receive(self, count: int, partition: str = "0", **options: Any) -> list[Any]:
        """Return so many events of a partition; raise what the client was told instead."""
        receiving = self.receiving(partition, **options)
        try:
            return receiving.take(count)
        finally:
            receiving.stop()

    def receiving(self, partition: str | None = "0", *, start: Any = "-1", **options: Any) -> Receiving:
        wanted = {name: options.pop(name) for name in ("hub", "group", "connection_string") if name in options}
        started = Receiving(self.consumer(**wanted), partition, start, options)
        self._stack.callback(started.stop)
        return started

    @property
    def receivers(self) -> list[str]:
        """The partitions that receivers are attached to."""
        there = self.server.server.door("event-hubs").node.receivers._there
        found: list[str] = self.server.call(lambda: [place.partition for place, each in there.items() for _ in each])
        return found


class Receiving:
    """A client that receives in a thread of its own."""

    def __init__(self, client: Any, partition: str | None, start: Any, options: dict[str, Any]) -> None:
        self.events: list[tuple[str, Any]] = []
        self.contexts: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.owned: set[str] = set()
        self._client = client
        which = {} if partition is None else {"partition_id": partition}
        self._arguments = {
            "on_event_batch": self._came,
            "on_error": self._failed,
            "on_partition_initialize": lambda context: self.owned.add(context.partition_id),
            "on_partition_close": lambda context, reason: self.owned.discard(context.partition_id),
            "starting_position": start,
            **which,
            **options,
        }
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            self._client.receive_batch(**self._arguments)
        except BaseException as fault:
            self.error = self.error or fault

    def _came(self, context: Any, events: list[Any]) -> None:
        self.contexts[context.partition_id] = context
        self.events += [(context.partition_id, event) for event in events]

    def _failed(self, context: Any, error: BaseException) -> None:
        self.error = self.error or error

    def take(self, count: int) -> list[Any]:
        eventually(lambda: len(self.events) >= count or self.error is not None, f"{count} events", WAIT_S)
        if self.error is not None:
            raise self.error
        return [event for _, event in self.events]

    def failure(self) -> BaseException:
        eventually(lambda: self.error is not None, "an error", WAIT_S)
        assert self.error is not None
        return self.error

    def stop(self) -> None:
        self._client.close()
        self._thread.join(WAIT_S)


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Callable[..., Namespace]]:
    """A function that starts a log with an Event Hubs door of these settings, and its other doors."""
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread

    with contextlib.ExitStack() as stack:

        def start(*, clock: Any = None, folder: str = "log", **config: Any) -> Namespace:
            extra = {} if clock is None else {"clock": clock}
            log = stack.enter_context(ReferenceLog(tmp_path / folder, **extra))
            beside = [kind(port=0) for kind in (AmqpConfig, RabbitConfig, FeedConfig)]
            door = EventHubsConfig(port=0, **{**LONG_TIMEOUTS, **config})
            server = stack.enter_context(ServerThread(log, door, *beside))
            return Namespace(server, log, stack)

        yield start


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Any]]:
    """A function that connects to a door with proton; the connections end with the test."""
    from tests.server.amqp.raw_peer import Peer

    with contextlib.ExitStack() as stack:

        def make(url: str, **options: Any) -> Peer:
            peer = Peer(url, **options)
            stack.callback(peer.close)
            return peer

        yield make


@pytest.fixture
def namespace(namespaces: Callable[..., Namespace]) -> Namespace:
    return namespaces()


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The program that has Microsoft's SDK for JavaScript; all tests of a process use it."""
    from tests.server.event_hubs.javascript_sdk import start_program

    driver = start_program(tmp_path_factory.mktemp("javascript"))
    yield driver
    driver.stop()


@pytest.fixture
def sdk_of(javascript: Any) -> Iterator[Callable[[Namespace], Any]]:
    """A function that returns the SDK for a namespace; what is made with it ends with the test."""
    from tests.server.event_hubs.javascript_sdk import Sdk

    with contextlib.ExitStack() as stack:

        def make(namespace: Namespace) -> Sdk:
            sdk = Sdk(javascript, namespace)
            stack.callback(sdk.close)
            return sdk

        yield make


@pytest.fixture
def sdk(sdk_of: Callable[[Namespace], Any], namespace: Namespace) -> Any:
    """Microsoft's SDK for JavaScript, for a namespace with default settings."""
    return sdk_of(namespace)
