"""Sinks wait and go on in mid-task, as readers do: a node that is down, passwords that expire.

What is counted is what the log has in the end: every row once where rows have ids (RabbitMQ with a reference, feeds),
every row at least once where they have none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient, RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.client.feed.publisher import FeedPublisher, HttpFeed
from spark_streams.client.retry import retries
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, RABBITMQ_SCHEMES, Secret, parse_url
from spark_streams.log import ReferenceLog
from spark_streams.secrets import FileSecret
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_STREAMS
from tests.client.rabbitmq.brokers import Broker, latest, read
from tests.faults.proxy import TcpProxy

ROWS = 6_000
IDENTITY = TaskIdentity("spark/query/0", 5)


class Task:
    """A task that writes numbers, 500 at a time, to one partition through a door."""

    def __init__(self, door: str, url: str, identity: TaskIdentity | None, secret: Secret | None = None) -> None:
        self.door = door
        schemes = {"amqp": AMQP_SCHEMES, "rabbitmq": RABBITMQ_SCHEMES, "feedapi": HTTP_SCHEMES}[door]
        endpoint = parse_url(url, schemes=schemes)
        if door != "feedapi":
            endpoint = endpoint.with_credentials("guest", secret or Secret("guest"))
        self._stack = contextlib.ExitStack()
        self.publisher: Any
        if door == "rabbitmq":
            self.publisher = TaskPublisher(
                endpoint, RabbitPublishing(request_timeout_ms=120_000, max_in_flight=300), identity
            )
        elif door == "amqp":
            client = self._stack.enter_context(AmqpClient(endpoint, timeout_ms=120_000))
            self.publisher = client.publisher("orders")
        else:
            self.publisher = FeedPublisher(HttpFeed(endpoint, 120_000), "orders", identity)

    def run(self, between: Callable[[int], None]) -> None:
        """Write all rows; ``between`` is told how many were handed over."""
        for first in range(0, ROWS, 500):
            bodies = pa.array([b"%d" % n for n in range(first, first + 500)], pa.large_binary())
            if self.door == "feedapi":
                columns = {"value": bodies, "key": pa.nulls(500, pa.string())}
                columns["timestamp"] = pa.nulls(500, pa.timestamp("us", tz="UTC"))
                self.publisher.send(columns, str)
            else:
                payloads = encode_columns({"value": bodies}, EVENT_STREAMS.places)
                if self.door == "amqp":
                    self.publisher.send(payloads, str)
                else:
                    self.publisher.send(payloads, "orders", None, str)
            between(first + 500)
        self.publisher.flush()
        self.publisher.close()
        self._stack.close()


def written(server: ServerThread) -> Counter[int]:
    """How often each number is in the stream."""
    broker = Broker(server.rabbit_url, "door")
    with broker.client() as client:
        values = read(client, "orders", latest(client, "orders")).column("value").to_pylist()
    return Counter(int(value) for value in values)


def check(found: Counter[int], *, once: bool) -> None:
    assert sorted(found) == list(range(ROWS)), "each row is there"
    if once:
        assert found.total() == ROWS, "no row is there twice"
    else:
        assert found.total() >= ROWS


WAYS = [("rabbitmq", IDENTITY), ("rabbitmq", None), ("amqp", None), ("feedapi", IDENTITY)]
ways = pytest.mark.parametrize(("door", "identity"), WAYS, ids=["exactly once", "at least once", "amqp", "feedapi"])


@contextlib.contextmanager
def serving(log: ReferenceLog, ports: dict[str, int], users: dict[str, str]) -> Iterator[ServerThread]:
    """Serve a log on some ports; with port 0 each is free, and is noted."""
    amqp = AmqpConfig(port=ports["amqp"], users=users)
    rabbit = RabbitConfig(port=ports["rabbitmq"], users=users, authentication_delay_ms=0)
    with ServerThread(log, amqp, rabbit, feed=FeedConfig(port=ports["feedapi"])) as server:
        urls = {"amqp": server.urls["amqp"], "rabbitmq": server.rabbit_url, "feedapi": server.feed_url}
        ports.update({name: int(url.rpartition(":")[2].strip("/")) for name, url in urls.items()})
        yield server


@ways
def test_a_node_that_is_down_for_a_while_is_waited_for(
    door: str, identity: TaskIdentity | None, tmp_path: Path
) -> None:
    ports, users = {"amqp": 0, "rabbitmq": 0, "feedapi": 0}, {"guest": "guest"}
    with ReferenceLog(tmp_path / "log") as log, contextlib.ExitStack() as stack:
        log.create_stream("orders")
        server = stack.enter_context(serving(log, ports, users))
        url = {"amqp": server.urls["amqp"], "rabbitmq": server.rabbit_url, "feedapi": f"{server.feed_url}/orders"}[door]
        started: list[ServerThread] = []
        restarting = threading.Thread(target=lambda: None)

        def restart(before: int) -> None:
            while retries() < before + 3:  # the sink has found nobody, three times
                time.sleep(0.01)
            started.append(stack.enter_context(serving(log, ports, users)))

        def between(rows: int) -> None:
            nonlocal restarting
            if rows == 2_000:
                stack.pop_all().close()
                restarting = threading.Thread(target=restart, args=(retries(),))
                restarting.start()

        Task(door, url, identity).run(between)
        restarting.join()
        check(written(started[0]), once=identity is not None)


@pytest.mark.parametrize(("door", "identity"), WAYS[:3], ids=["exactly once", "at least once", "amqp"])
def test_a_password_in_a_file_is_read_again_when_the_old_one_has_expired(
    door: str, identity: TaskIdentity | None, tmp_path: Path
) -> None:
    """As of tokens: the peer ends the connections of one that has expired, and takes the new one only."""
    ports, users, file = {"amqp": 0, "rabbitmq": 0, "feedapi": 0}, {"guest": "first"}, tmp_path / "password"
    file.write_text("first")
    with ReferenceLog(tmp_path / "log") as log, serving(log, ports, users) as server, TcpProxy(ports[door]) as proxy:
        log.create_stream("orders")
        url = proxy.url({"amqp": server.urls["amqp"], "rabbitmq": server.rabbit_url}[door])

        def expire(rows: int) -> None:
            if rows % 1_000 == 0:
                users["guest"] = f"after {rows}"
                file.write_text(users["guest"])
                assert proxy.cut() == 1

        Task(door, url, identity, FileSecret(str(file), "passwordFile")).run(expire)
        assert proxy.connections >= 6
        users["guest"] = "guest"
        check(written(server), once=identity is not None)
