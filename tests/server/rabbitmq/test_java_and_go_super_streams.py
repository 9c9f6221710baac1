"""Super streams by RabbitMQ's clients for Java and Go, on the door and on a real broker: routing, groups, deletion."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.wire.rabbitmq.hashes import murmur3_32
from tests.real_rabbitmq.by_hand import DELETE_SUPER_STREAM, text
from tests.server.foreign_programs import Refused
from tests.server.rabbitmq.consuming import wait_until_stored
from tests.server.rabbitmq.interop import Client, Made

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]  # the first one of a machine downloads and compiles

KEYS = [f"customer-{n}" for n in range(80)] + ["", "é", "ñandú", "日本", "🌞 sun", *(str(n) for n in range(12))]
NO_ROUTE_FOUND = 10_005
"""CODE_NO_ROUTE_FOUND of the Java client, which no broker sends."""


@pytest.fixture
def super_stream(broker: Any, client: Client) -> Iterator[str]:
    """A name; what the client makes of it ends with the test."""
    name = f"{broker.prefix}-super"
    yield name
    client.close_made()
    broker.peer().ask(DELETE_SUPER_STREAM, text(name))


def partitions_of(taken: list[list[Any]]) -> dict[str, str]:
    """Body to stream."""
    return {body: stream for stream, _, body in taken}


@pytest.mark.parametrize("partitions", [3, 7])
def test_keys_go_where_the_sink_sends_them(client: Client, super_stream: str, partitions: int) -> None:
    client.ask("create_super_stream", super_stream=super_stream, partitions=partitions)
    messages = [{"body": key, "key": key} for key in KEYS]
    client.publish(messages, super_stream=super_stream, routing="hash")
    taken = client.consumer(super_stream=super_stream).take(len(KEYS))
    numbers = (murmur3_32(pa.array(KEYS)) % partitions).tolist()
    assert len(taken) == len(KEYS)
    assert partitions_of(taken) == {key: f"{super_stream}-{n}" for key, n in zip(KEYS, numbers, strict=True)}


def test_keys_go_to_their_binding(client: Client, super_stream: str, language: str) -> None:
    regions = ["emea", "apac", "amer"]
    client.ask("create_super_stream", super_stream=super_stream, keys=regions)
    producer = client.producer(super_stream=super_stream, routing="key")
    messages = [{"body": str(n), "key": regions[n % 3]} for n in range(30)]
    assert producer("send", messages=messages) == {"confirmed": 30, "codes": []}
    astray = [{"body": "x", "key": "mars"}]
    if language == "java":
        assert producer("send", messages=astray) == {"confirmed": 0, "codes": [NO_ROUTE_FOUND]}
    else:
        with pytest.raises(Refused, match="Message Route not found"):
            producer("send", messages=astray)
    taken = client.consumer(super_stream=super_stream).take(30)
    assert partitions_of(taken) == {str(n): f"{super_stream}-{regions[n % 3]}" for n in range(30)}
    assert sorted(offset for _, offset, _ in taken) == sorted([*range(10)] * 3)


def test_a_super_stream_is_deleted(broker: Any, client: Client, super_stream: str) -> None:
    client.ask("create_super_stream", super_stream=super_stream, partitions=2)
    assert client.ask("exists", stream=f"{super_stream}-1") is True
    client.ask("delete_super_stream", super_stream=super_stream)
    assert client.ask("exists", stream=f"{super_stream}-1") is False
    client.ask("create_super_stream", super_stream=super_stream, partitions=2)
    assert broker.peer().stats(f"{super_stream}-1")[0] == 1


def test_members_share_the_partitions_and_one_takes_over(broker: Any, client: Client, super_stream: str) -> None:
    client.ask("create_super_stream", super_stream=super_stream, partitions=3)
    streams = [f"{super_stream}-{n}" for n in range(3)]
    peer = broker.peer()

    def publish(first: int) -> list[str]:
        bodies = [str(n) for n in range(first, first + 90)]
        client.publish([{"body": n, "key": n} for n in bodies], super_stream=super_stream, routing="hash")
        return bodies

    def member() -> Made:
        return client.consumer(super_stream=super_stream, name="group", single_active=True)

    def store(taken: list[list[Any]]) -> None:
        reached = {stream: offset for stream, offset, _ in taken}
        for stream, offset in reached.items():
            ask = functools.partial(client.ask, "store", name="group", stream=stream, offset=offset)
            ask()
            wait_until_stored(peer, "group", stream, offset, ask)

    first = member()
    assert sorted(first("told", count=3)) == [[stream, True] for stream in streams]
    published = publish(0)
    taken = first.take(90)
    assert sorted(body for _, _, body in taken) == sorted(published)
    store(taken)

    second = member()
    assert second("told", count=1) == [[streams[1], True]]
    assert first("told", count=4)[3:] == [[streams[1], False]]
    published = publish(90)
    moved = [body for body in published if int(murmur3_32(pa.array([body]))[0]) % 3 == 1]
    assert [[stream, body] for stream, _, body in second.take(len(moved))] == [[streams[1], body] for body in moved]
    taken = first.take(180 - len(moved))[90:]
    assert sorted(body for _, _, body in taken) == sorted(set(published) - set(moved))
    store(taken)

    first.close()
    told = second("told", count=3)
    assert sorted(told) == [[stream, True] for stream in streams]
    published = publish(180)
    behind = second.take(len(moved) + 90)[len(moved) :]
    assert sorted(body for _, _, body in behind) == sorted(published)
