"""A permission that is missing: who lacks which one, and for what; at the log's doors, and at a real RabbitMQ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from proton import Message

from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.client.feed.http import FeedSession
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.client.rabbitmq.stream_publisher import query_sequences
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, Secret, parse_url
from spark_streams.errors import ConnectFailed, PeerError
from spark_streams.log import ReferenceLog
from spark_streams.server import (
    AmqpConfig,
    EventHubsConfig,
    FeedConfig,
    Permissions,
    RabbitConfig,
    ServerThread,
)
from spark_streams.wire.rabbitmq.publish_decode import DeclarePublisher, DeclarePublisherAnswer
from spark_streams.wire.rabbitmq.stream_commands import Create, CreateAnswer
from tests.door_urls import plain_url
from tests.real_rabbitmq.by_hand import Peer
from tests.real_rabbitmq.conftest import Own, shared
from tests.real_rabbitmq.conftest import rabbitmq_amqp_url as rabbitmq_amqp_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

SCHEMES = AMQP_SCHEMES | RABBITMQ_SCHEMES | HTTP_SCHEMES
READER, WRITER, NOBODY = "reader", "writer", "nobody"
USERS = {READER: ("", "", ".*"), WRITER: ("", ".*", ""), NOBODY: ("", "", "")}
"""User to what it may configure, write and read."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    permissions = {
        user: Permissions(configure=configure, write=write, read=read)
        for user, (configure, write, read) in USERS.items()
    }
    common: dict[str, Any] = {"port": 0, "users": dict.fromkeys(USERS, "secret"), "permissions": permissions}
    with ReferenceLog(tmp_path_factory.mktemp("permissions") / "log") as log:
        log.create_stream("orders", 1)
        with ServerThread(
            log,
            AmqpConfig(**common),
            rabbit=RabbitConfig(**common, authentication_delay_ms=0),
            feed=FeedConfig(**common),
            event_hubs=EventHubsConfig(**common),
        ) as server:
            yield {name: plain_url(url) for name, url in server.urls.items()}


def at(url: str, user: str) -> Endpoint:
    return parse_url(url, schemes=SCHEMES).with_credentials(user, Secret("secret"))


def read(where: Endpoint, stream: str = "orders") -> object:
    if where.scheme in HTTP_SCHEMES:
        with FeedClient(FeedAddress(where, stream, None, None, {}, None, 60_000, 1 << 20)) as feed:
            return feed.discover()
    if where.scheme in RABBITMQ_SCHEMES:
        with RabbitClient(where, timeout_ms=60_000) as broker:
            return broker.describe(stream)
    with AmqpClient(where, timeout_ms=60_000) as client:
        return client.describe(stream)


def write(where: Endpoint, stream: str = "orders") -> object:
    if where.scheme in HTTP_SCHEMES:
        with contextlib.closing(FeedSession(where, 60_000)) as session:
            return session.send("POST", body=b'{"event":"x"}\n', headers={"Content-Type": "application/x-ndjson"})
    if where.scheme in RABBITMQ_SCHEMES:
        with open_connection(where, timeout_ms=60_000) as broker:
            return declared(broker, stream)
    with AmqpClient(where, timeout_ms=60_000) as client:
        link = client.publisher(stream)
        link.send(pa.array([Message(body=b"x").encode()], pa.large_binary()), str)
        return link.flush()


def declared(broker: Connection, stream: str) -> object:
    return broker.request(DeclarePublisher(0, "", stream), DeclarePublisherAnswer, f"stream '{stream}': declare")


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ("amqp", "user '{}' may not {} stream 'orders'"),
        ("event-hubs", "user '{}' may not {} stream 'orders'"),
        ("rabbitmq-stream", "stream 'orders': .*user '{}' needs permission '{}' for it"),
        ("feedapi", "user '{}' may not {} feed 'orders'"),
    ],
)
def test_which_permission_is_missing(door: str, said: str, urls: Mapping[str, str]) -> None:
    url = f"{urls[door]}/orders" if door == "feedapi" else urls[door]
    for user, action in ((NOBODY, "read"), (NOBODY, "write"), (WRITER, "read"), (READER, "write")):
        with pytest.raises(PeerError, match=said.format(user, action)):
            (read if action == "read" else write)(at(url, user))
    assert read(at(url, READER)) is not None
    write(at(url, WRITER))


def test_which_one_a_command_of_rabbitmq_needs(urls: Mapping[str, str]) -> None:
    commands(urls["rabbitmq-stream"], "orders", NOBODY, WRITER)


def commands(url: str, stream: str, nobody: str, writer: str) -> None:
    """Check what is said of commands that need another permission than reading and writing do."""
    with open_connection(at(url, writer), timeout_ms=60_000) as broker:
        declared(broker, stream)
        said = f"stream '{stream}': .*user '{writer}' needs permission 'read' for it beside 'write', to write no row"
        with pytest.raises(PeerError, match=said):
            query_sequences(broker, [stream], "reference")
        with pytest.raises(PeerError, match=f"user '{writer}' needs permission 'configure' for it"):
            broker.request(Create(f"{stream}-too"), CreateAnswer, f"stream '{stream}-too': create")
    with RabbitClient(at(url, nobody), timeout_ms=60_000) as client:
        any_would_do = f"user '{nobody}' has no permission for it: 'read' is for reading, 'write' for writing"
        with pytest.raises(PeerError, match=any_would_do):
            client.check(stream)


@pytest.fixture
def broker(rabbitmq_url: str) -> Iterator[tuple[Own, str]]:
    """A real broker, and the prefix of users with permissions, of one without any, and of a stream."""
    own, prefix = shared(), "permissions-"
    with contextlib.closing(Peer(rabbitmq_url)) as peer:
        peer.open()
        assert peer.create(f"{prefix}orders") == 1
        for user, allowed in (*USERS.items(), ("stranger", None)):
            own.control("add_user", prefix + user, "secret")
            if allowed is not None:
                own.control("set_permissions", "-p", "/", prefix + user, *(each or "^$" for each in allowed))
        yield own, prefix
        for user in (*USERS, "stranger"):
            own.control("delete_user", prefix + user)
        peer.delete(f"{prefix}orders")


@pytest.mark.nightly  # a program in Erlang is started for each of its users
@pytest.mark.rabbitmq
def test_a_real_broker(broker: tuple[Own, str], rabbitmq_url: str, rabbitmq_amqp_url: str) -> None:
    _, prefix = broker
    stream, nobody, reader, writer = (prefix + each for each in ("orders", NOBODY, READER, WRITER))
    for user, action in ((nobody, "read"), (nobody, "write"), (writer, "read"), (reader, "write")):
        do = read if action == "read" else write
        with pytest.raises(PeerError, match=f"stream '{stream}': .*user '{user}' needs permission '{action}' for it"):
            do(at(rabbitmq_url, user), stream)
        with pytest.raises(PeerError, match=f"{action} access to .* refused for user '{user}'"):
            do(at(rabbitmq_amqp_url, user), stream)
    commands(rabbitmq_url, stream, nobody, writer)
    stranger = f"{prefix}stranger"
    with pytest.raises(ConnectFailed, match=f"without a permission of user '{stranger}' for virtual host '/'"):
        read(at(rabbitmq_amqp_url, stranger), stream)
    with pytest.raises(PeerError, match="virtual-host-access-failure"):
        read(at(rabbitmq_url, stranger), stream)
