"""Fixtures of the conformance tests: a node to talk to, and as many raw connections to it as a test wants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.long_timeouts import LONG_TIMEOUTS


class Node:
    """A served log, and connections to it that end with the test."""

    def __init__(self, server: Any, log: Any) -> None:
        self.server = server
        self.log = log
        self.peers: list[Any] = []

    @property
    def url(self) -> str:
        urls = self.server.urls
        return str(urls.get("amqp") or urls["amqps"])

    def create(self, stream: str = "orders", partitions: int = 1, **config: Any) -> str:
        from spark_streams.log import StreamConfig

        self.server.call(lambda: self.log.create_stream(stream, partitions, StreamConfig(**config) if config else None))
        return stream

    def peer(self, **options: Any) -> Any:
        from tests.server.amqp.raw_peer import Peer

        peer = Peer(self.url, **options)
        self.peers.append(peer)
        return peer

    def send(self, stream: str, *messages: Any, **sections: Any) -> None:
        """Append over AMQP, each event accepted before this returns."""
        properties = sections.pop("properties", None)
        peer = self.peer()
        peer.sender(stream, properties=properties).send_all(messages, **sections)
        peer.close()

    def receive(self, stream: str, count: int | None = None, **options: Any) -> list[Any]:
        """Read ``count`` events, or all there are now, on a link of its own; from the earliest without a filter."""
        from tests.server.amqp.raw_peer import EARLIEST

        options.setdefault("filter", EARLIEST)
        peer = self.peer()
        receiver = peer.receiver(stream, **options)
        events = receiver.drain() if count is None else receiver.take(count)
        peer.close()
        return events

    def info(self, stream: str, **options: Any) -> Any:
        """Return the map that the node's information source gives."""
        return self.receive(stream + "/$info", 1, filter=None, **options)[0].body

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a node with the AmqpConfig fields given, and LogConfig or a clock for its log."""
    from spark_streams.log import LogConfig, ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread

    with contextlib.ExitStack() as stack:

        def start(*, clock: Any = None, folder: str = "log", log_config: Any = None, **config: Any) -> Node:
            extra = {} if clock is None else {"clock": clock}
            log = stack.enter_context(ReferenceLog(tmp_path / folder, log_config or LogConfig(), **extra))
            server = stack.enter_context(ServerThread(log, AmqpConfig(port=0, **{**LONG_TIMEOUTS, **config})))
            node = Node(server, log)
            stack.callback(node.close)
            return node

        yield start


@pytest.fixture
def node(nodes: Any) -> Node:
    """A node with the default configuration, and long time-outs (tests/server/long_timeouts.py)."""
    started: Node = nodes()
    return started
