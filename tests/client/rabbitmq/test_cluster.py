"""Clusters of scripted brokers: nodes that are remembered from metadata, and members that cannot be reached."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from spark_streams.sinks import rabbitmq_stream as sink_module
from spark_streams.sinks.rabbitmq_stream import RabbitSink

from spark_streams.client import RabbitClient
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed, Refused
from spark_streams.options import parse_rabbit_sink
from tests.client.rabbitmq.brokers import text
from tests.client.rabbitmq.scripted import S, Scripted, Wire, answers, stats
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import array

HERE = "127.0.0.1"
ALL = stats(first_chunk_id=0, last_chunk_id=0, committed_chunk_id=0, committed_offset=9)
HELD = answers(key.STREAM_STATS, (1, ALL))
ELSEWHERE = answers(key.STREAM_STATS, (6, array([])))
"""The answer of a node that has no member of the stream."""


def members(*nodes: tuple[str, int]) -> Callable[[Wire, int, bytes], None]:
    """Answer Metadata: the stream has these members, and the first one leads."""
    named = [struct.pack(">H", n) + key.text(host) + struct.pack(">I", port) for n, (host, port) in enumerate(nodes)]
    replicas = array([struct.pack(">H", n) for n in range(1, len(nodes))])
    said = array(named) + array([key.text(S) + struct.pack(">HH", 1, 0) + replicas])

    def handle(wire: Wire, number: int, _: bytes) -> None:
        wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + said)

    return handle


def latest(client: RabbitClient, **how: Any) -> str | None:
    return client.describe(S, **how).partitions[S].latest


def test_a_node_that_metadata_named_is_asked_when_that_of_the_url_is_gone() -> None:
    with Scripted({key.STREAM_STATS: HELD}) as other:
        with Scripted({key.STREAM_STATS: HELD, key.METADATA: members((HERE, other.port))}) as broker:
            client = broker.client()
            assert client.told == ()
            client.check(S)
            assert client.told == ((HERE, other.port),)
            assert other.connections == 0
        with client:
            assert latest(client) == text(9)
            assert other.connections == 1


def test_what_one_client_was_told_another_begins_with() -> None:
    with Scripted() as gone:
        url = gone.endpoint
    with Scripted({key.STREAM_STATS: HELD}) as other:
        with RabbitClient(url.with_told([(HERE, other.port)]), timeout_ms=120_000) as client:
            assert latest(client) == text(9)
        with pytest.raises(ConnectFailed), RabbitClient(url, timeout_ms=120_000) as client:
            latest(client)


def test_a_sinks_tasks_know_the_nodes_that_the_driver_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_checked", {})
    with Scripted({key.METADATA: members((HERE, 7), (HERE, 8))}) as broker:
        url = f"rabbitmq-stream://guest:guest@{HERE}:{broker.port}"
        sink = RabbitSink(parse_rabbit_sink({"url": url, "stream": S}))
        assert sink.check().options.endpoint.told == ((HERE, 7), (HERE, 8))
        assert sink.check().options.endpoint.told == ((HERE, 7), (HERE, 8))
        assert broker.connections == 1


@pytest.mark.usefixtures("hasty")
def test_a_member_that_cannot_be_reached_is_named_as_the_broker_advertises_it() -> None:
    """Not as option 'url', in which nothing is wrong."""
    script = {key.STREAM_STATS: ELSEWHERE, key.METADATA: members(("rabbit-1.invalid", 5552), (HERE, 1))}
    with Scripted(script) as broker, broker.client() as client, pytest.raises(Refused) as caught:
        latest(client)
    said = str(caught.value)
    assert "it has no leader or member that can be reached now; asked elsewhere: none of 2 hosts can be reached" in said
    assert "rabbit-1.invalid:5552: the host name 'rabbit-1.invalid' is not known: so the broker advertises" in said
    assert f"{HERE}:1: connection refused" in said
    assert "stream.advertised_host" in said and "check the host in option 'url'" not in said
    assert caught.value.retriable, "the other one may come back"


def test_a_member_of_an_unknown_name_is_told_at_once_where_there_is_no_other() -> None:
    script = {key.STREAM_STATS: ELSEWHERE, key.METADATA: members(("rabbit-1.invalid", 5552))}
    with Scripted(script) as broker, broker.client() as client, pytest.raises(Refused, match=r"rabbit-1\.invalid:5552"):
        latest(client)
    assert [kind for kind, _ in broker.seen].count(key.STREAM_STATS) == 1


def test_a_member_of_an_unknown_name_does_not_hide_another_one() -> None:
    with Scripted({key.STREAM_STATS: HELD}) as member:
        script = {
            key.STREAM_STATS: ELSEWHERE,
            key.METADATA: members(("rabbit-1.invalid", 5552), (HERE, member.port)),
        }
        with Scripted(script) as broker, broker.client() as client:
            assert latest(client) == text(9)


def test_the_node_of_the_url_is_known_by_the_name_that_it_advertises() -> None:
    """Nothing else is connected to, or needs to be reachable, to ask it what it leads."""
    script = {
        key.STREAM_STATS: HELD,
        key.METADATA: members(("rabbit-1.invalid", 5552), ("rabbit-2.invalid", 5552)),
        key.OPEN: answers(key.OPEN, (1, key.pairs({"advertised_host": "rabbit-1.invalid", "advertised_port": "5552"}))),
    }
    with Scripted(script) as broker, broker.client() as client:
        assert latest(client, certain=[S]) == text(9)
        assert broker.connections == 1


@pytest.mark.parametrize("port", ["", "many"])
def test_a_node_that_advertises_nothing_that_can_be_read(port: str) -> None:
    told = {"advertised_host": "rabbit-1", "advertised_port": port}
    script = {key.STREAM_STATS: HELD, key.OPEN: answers(key.OPEN, (1, key.pairs(told)))}
    with Scripted(script) as broker, broker.client() as client:
        assert latest(client) == text(9)


def test_an_endpoint_is_the_same_however_much_was_told() -> None:
    """What is remembered under it, such as that a stream was checked, must not depend on it."""
    endpoint = Endpoint("rabbitmq-stream", "a", 1, others=(("b", 2),))
    assert endpoint.with_told([("c", 3)]).url == endpoint.url == "rabbitmq-stream://a:1,b:2"
