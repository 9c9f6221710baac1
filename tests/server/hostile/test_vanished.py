"""Peers that are gone without a word: no FIN, no answer. They are found, and what they held is given to others."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from proton import symbol

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread
from tests.door_urls import plain_url
from tests.real_rabbitmq.by_hand import CONSUMER_UPDATE, HEARTBEAT
from tests.real_rabbitmq.by_hand import Peer as RabbitPeer
from tests.server.amqp.raw_peer import GROUP, PARTITION, Ended, Peer, Refused
from tests.server.hostile.doors import DEADLINE_S, established

WRITE_TIMEOUT_MS = 7_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Doors that wait only shortly for a sign of life: a test that is held up longer loses its peers, too."""
    log = ReferenceLog(tmp_path_factory.mktemp("vanished") / "log")
    log.create_stream("orders")
    log.create_stream("calm")
    common: dict[str, Any] = {"port": 0, "write_timeout_ms": WRITE_TIMEOUT_MS}
    amqp = AmqpConfig(**common, idle_timeout_ms=3_000)
    rabbit = RabbitConfig(**common, heartbeat_s=2)
    feed = FeedConfig(**common, idle_timeout_ms=3_000)
    hubs = EventHubsConfig(**common, idle_timeout_ms=3_000)
    with log, ServerThread(log, amqp, rabbit, feed, hubs) as server:
        yield server


def connections(server: ServerThread) -> dict[str, list[Any]]:
    """Each door's connections, as transports."""
    doors = server.server
    return server.call(
        lambda: {
            "amqp": [each._transport for each in doors.door("amqp").connections],
            "rabbitmq-stream": [each._transport for each in doors.door("rabbitmq-stream").connections],
            "feedapi": [each.transport for each in doors.door("feedapi").connections],
            "event-hubs": [each._transport for each in doors.door("event-hubs").connections],
        }
    )


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def free_again(server: ServerThread, door: str, where: str, holds: dict[Any, Any], wants: dict[Any, Any]) -> set[str]:
    """A receiver falls silent, and another one takes its place; return the conditions with which that was refused."""
    url = plain_url(server.urls[door])
    holder = Peer(url)
    holder.receiver(where, properties=holds)
    # From now on the holder neither reads nor writes, as one that is gone.
    refused: set[str] = set()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with closing(Peer(url)) as other:
                told = other.receiver(where, properties=wants).properties
                assert door != "amqp" or told[GROUP] == wants[GROUP]
            break
        except Refused as refusal:
            refused.add(str(refusal.condition))
        except Ended as end:
            assert end.condition == "amqp:resource-limit-exceeded", end
        assert time.monotonic() < deadline
        time.sleep(0.02)
    holder.drop()
    until(lambda: not connections(server)[door], "a connection is left")
    return refused


def test_a_partition_of_a_group_is_free_again(server: ServerThread) -> None:
    properties = {GROUP: "group", PARTITION: "0"}
    refused = free_again(server, "amqp", "orders", properties, properties)
    assert refused == {"amqp:resource-locked"}, "the holder had it at first"


def test_the_epoch_of_a_receiver_is_free_again(server: ServerThread) -> None:
    where, epoch = "orders/ConsumerGroups/$Default/Partitions/0", symbol("com.microsoft:epoch")
    refused = free_again(server, "event-hubs", where, {epoch: 7}, {epoch: 6})
    assert refused == {"amqp:link:stolen"}, "the holder had it at first"


def test_the_role_of_the_single_active_consumer_goes_on(server: ServerThread) -> None:
    url = server.urls["rabbitmq-stream"]
    group = {"single-active-consumer": "true", "name": "group"}
    holder, other = RabbitPeer(url).open(), RabbitPeer(url).open()
    assert holder.declare(1, "orders", "writer") == 1
    assert holder.subscribe(1, "orders", struct.pack(">H", 3), properties=group) == 1
    assert holder.expect(CONSUMER_UPDATE).body == b"\x01\x01"
    assert other.subscribe(2, "orders", struct.pack(">H", 3), properties=group) == 1

    def active() -> bool:
        other.send(HEARTBEAT)
        other.barrier("orders")
        return any(frame.body == b"\x02\x01" for frame in other.take(CONSUMER_UPDATE))

    assert not active(), "the holder is it at first"
    until(active, "nobody took over from a consumer that is gone")
    assert len(connections(server)["rabbitmq-stream"]) == 1, "publishers and subscriptions go with the connection"
    holder.close()
    other.close()
    until(lambda: not connections(server)["rabbitmq-stream"], "a connection is left")


def test_a_connection_between_two_requests(server: ServerThread) -> None:
    raw = established(server.urls["feedapi"])
    assert b" 200 " in raw.received
    until(lambda: raw.look() or raw.ended, "an idle connection stays open")
    raw.close()
    assert not connections(server)["feedapi"]


def test_the_system_looks_for_peers_that_are_gone(server: ServerThread) -> None:
    """Where no protocol has signs of life: a streamed response to nobody, a peer that is to send nothing."""
    for door in ("amqp", "rabbitmq-stream", "feedapi", "event-hubs"):
        raw = established(plain_url(server.urls[door]))
        (transport,) = connections(server)[door]
        end = transport.get_extra_info("socket")
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2 * WRITE_TIMEOUT_MS
        raw.close()
        until(lambda door=door: not connections(server)[door], "a connection is left")
