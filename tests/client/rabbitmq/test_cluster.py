"""Clusters of scripted brokers: nodes that are remembered from metadata, and members that cannot be reached."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from spark_streams.sinks.rabbitmq_stream import RabbitSink

from spark_streams.client import RabbitClient
from spark_streams.client.rabbitmq import cluster as cluster_module
from spark_streams.endpoint import Endpoint, Secret
from spark_streams.errors import ConnectFailed, Refused
from spark_streams.options.rabbitmq_stream import parse_sink
from spark_streams.spark.sink import sink as sink_module
from tests.client.rabbitmq.brokers import text
from tests.client.rabbitmq.scripted import S, Scripted, Wire, answers, stats
from tests.faults.proxy import Balancer
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
            assert client.advertised == ()
            client.check(S)
            assert client.advertised == ((HERE, other.port),)
            assert other.connections == 0
        with client:
            assert latest(client) == text(9)
            assert other.connections == 1


def test_what_one_client_was_told_another_begins_with() -> None:
    with Scripted() as gone:
        url = gone.endpoint
    with Scripted({key.STREAM_STATS: HELD}) as other:
        with RabbitClient(url.with_advertised([(HERE, other.port)]), timeout_ms=120_000) as client:
            assert latest(client) == text(9)
        with pytest.raises(ConnectFailed), RabbitClient(url, timeout_ms=120_000) as client:
            latest(client)


def test_a_sinks_tasks_know_the_nodes_that_the_driver_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_checked", {})
    with Scripted({key.METADATA: members((HERE, 7), (HERE, 8))}) as broker:
        url = f"rabbitmq-stream://guest:guest@{HERE}:{broker.port}"
        sink = RabbitSink(parse_sink({"url": url, "stream": S}))
        assert sink.check().options.endpoint.advertised == ((HERE, 7), (HERE, 8))
        assert sink.check().options.endpoint.advertised == ((HERE, 7), (HERE, 8))
        assert broker.connections == 1


@pytest.mark.usefixtures("hasty")
def test_a_member_that_cannot_be_reached_is_named_as_the_broker_advertises_it() -> None:
    """Not as option 'url', in which nothing is wrong."""
    script = {key.STREAM_STATS: ELSEWHERE, key.METADATA: members(("rabbit-1.invalid", 5552), (HERE, 1))}
    with Scripted(script) as broker, broker.client() as client, pytest.raises(Refused) as caught:
        latest(client)
    said = str(caught.value)
    assert "it has no leader or member that can be reached now; asked elsewhere: none of 2 hosts can be reached" in said
    assert (
        "rabbit-1.invalid:5552: the host name 'rabbit-1.invalid' is not known: it has to be reachable from here: so"
        in said
    )
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


@pytest.mark.parametrize("port", ["", "many", "9" * 5_000])
def test_a_node_that_advertises_nothing_that_can_be_read(port: str) -> None:
    told = {"advertised_host": "rabbit-1", "advertised_port": port}
    script = {key.STREAM_STATS: HELD, key.OPEN: answers(key.OPEN, (1, key.pairs(told)))}
    with Scripted(script) as broker, broker.client() as client:
        assert latest(client) == text(9)


def test_an_endpoint_is_the_same_however_much_was_told() -> None:
    """What is remembered under it, such as that a stream was checked, must not depend on it."""
    endpoint = Endpoint("rabbitmq-stream", "a", 1, others=(("b", 2),))
    assert endpoint.with_advertised([("c", 3)]).url == endpoint.url == "rabbitmq-stream://a:1,b:2"


# --- load balancers


class Behind(NamedTuple):
    """Three nodes behind a load balancer; what they advertise nobody can reach."""

    nodes: list[Scripted]
    balancer: Balancer

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("rabbitmq-stream", HERE, self.balancer.port, "guest", Secret("guest"), load_balancer=True)

    def client(self, timeout_ms: int = 120_000) -> RabbitClient:
        return RabbitClient(self.endpoint, timeout_ms=timeout_ms)


@contextlib.contextmanager
def behind(*with_stream: int, advertised: bool = True) -> Iterator[Behind]:
    """Nodes 0 to 2, of which some have the stream; the first of these leads it."""
    placed = members(*((f"rabbit-{n}.invalid", 5552) for n in with_stream))
    with contextlib.ExitStack() as stack:
        nodes = []
        for n in range(3):
            told = {"advertised_host": f"rabbit-{n}.invalid", "advertised_port": "5552"} if advertised else {}
            script = {
                key.OPEN: answers(key.OPEN, (1, key.pairs(told))),
                key.STREAM_STATS: HELD if n in with_stream else ELSEWHERE,
                key.METADATA: placed,
            }
            nodes.append(stack.enter_context(Scripted(script)))
        yield Behind(nodes, stack.enter_context(Balancer(*(node.port for node in nodes))))


def asked(nodes: list[Scripted]) -> list[int]:
    """How often each node was asked what the stream holds."""
    return [[kind for kind, _ in node.seen].count(key.STREAM_STATS) for node in nodes]


def test_a_load_balancer_is_asked_until_a_node_with_the_stream_answers() -> None:
    with behind(2) as there, there.client() as client:
        assert latest(client) == text(9)
        assert asked(there.nodes) == [1, 0, 1]
        assert latest(client) == text(9)
        assert asked(there.nodes) == [1, 0, 2], "it is kept"
        assert there.balancer.connections == 3
        assert client.advertised == (), "no node is to be reached by its own name"


def test_any_node_with_the_stream_is_right_and_only_the_leader_where_it_counts() -> None:
    with behind(2, 1) as there, there.client() as client:
        assert latest(client) == text(9)
        assert asked(there.nodes) == [1, 1, 0]
        assert latest(client, certain=[S]) == text(9)
        assert asked(there.nodes) == [1, 1, 1]


def test_connections_that_led_elsewhere_are_closed() -> None:
    with behind(2) as there:
        with there.client() as client:
            assert latest(client) == text(9)
            assert [kind for kind, _ in there.nodes[1].seen].count(key.CLOSE) == 1
            assert latest(client) == text(9)
        assert all([kind for kind, _ in node.seen].count(key.CLOSE) == 1 for node in there.nodes)


def test_a_load_balancer_that_leads_to_a_node_that_is_down_is_asked_again() -> None:
    with behind(2) as there:
        there.nodes[1].__exit__()
        with there.client() as client:
            assert latest(client) == text(9)


def test_a_password_that_is_a_part_of_the_nodes_names_does_not_hide_them_from_the_client() -> None:
    with behind(2) as there:
        endpoint = replace(there.endpoint, username="ann", password=Secret("rabbit-2.invalid"))
        with RabbitClient(endpoint, timeout_ms=120_000) as client:
            assert latest(client) == text(9)


@pytest.fixture
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "LOAD_BALANCED_TRIES", 6)


@pytest.mark.usefixtures("hasty", "few_tries")
def test_a_load_balancer_that_does_not_lead_there_is_told() -> None:
    with behind(7, 8) as there, there.client() as client:
        with pytest.raises(Refused) as caught:
            latest(client)
        said = str(caught.value)
        assert "the load balancer does not lead to rabbit-8.invalid:5552 or rabbit-7.invalid:5552, but to " in said
        assert "rabbit-1.invalid:5552 (2 times)" in said
        assert "check that it serves all nodes of the cluster" in said and f"{HERE}:{there.balancer.port}" in said
        with pytest.raises(ConnectFailed, match="does not lead to rabbit-7"):
            client._cluster.at_leader(S, lambda *_: None)


def test_the_time_to_ask_a_load_balancer_is_requestTimeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 1))
    monkeypatch.setattr(cluster_module, "time", clock)
    with behind(7) as there:
        cluster = cluster_module.Cluster(there.endpoint, 5_000)
        with pytest.raises(ConnectFailed) as caught:
            cluster._by_load_balancer([("rabbit-7.invalid", 5552)])
        cluster.close()
        assert caught.value.costly and now == [5.0] and there.balancer.connections == 6


def test_a_broker_that_does_not_say_who_it_is_cannot_be_found_behind_a_load_balancer() -> None:
    with (
        behind(2, advertised=False) as there,
        there.client() as client,
        pytest.raises(Refused, match=r"does not say which node it is .*leave out option 'loadBalancer'") as caught,
    ):
        latest(client)
    assert not caught.value.retriable


def test_without_the_option_a_message_names_it() -> None:
    with (
        behind(2) as there,
        RabbitClient(replace(there.endpoint, load_balancer=False), timeout_ms=120_000) as client,
        pytest.raises(Refused, match=r"rabbit-2\.invalid:5552: .*set option 'loadBalancer' to 'true'"),
    ):
        latest(client)


def test_a_sink_behind_a_load_balancer_knows_no_node_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks publish at any node that they are led to."""
    monkeypatch.setattr(sink_module, "_checked", {})
    with behind(2) as there:
        options = {"url": f"rabbitmq-stream://guest:guest@{HERE}:{there.balancer.port}", "stream": S}
        sink = RabbitSink(parse_sink({**options, "loadBalancer": "true"}))
        assert sink.check().options.endpoint.advertised == ()
        monkeypatch.setattr(sink_module, "_checked", {})
        assert RabbitSink(parse_sink(options)).check().options.endpoint.advertised == (("rabbit-2.invalid", 5552),)
        assert RabbitSink(parse_sink({**options, "loadBalancer": "true"})).check().options.endpoint.advertised == ()
