"""A url that lists several hosts: any will do, those that are gone are passed over, and what all would say is told."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient, RabbitClient, RabbitPublishing, TaskPublisher, encode_columns
from spark_streams.client.hosts import MAX_ADVERTISED, Hosts
from spark_streams.endpoint import AMQP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, Secret, Tls, parse_url
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    Refused,
    RemoteProtocolError,
    SparkStreamsError,
)
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from tests.certificate_authority import Authority

DOORS = ("amqp", "rabbitmq-stream")
GIVEN = parse_url("amqp://a:1,b:2,c:3")

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start one more log with a stream ``orders`` behind a door; answers the door's port."""
    with ExitStack() as stack:

        def start(door: str, **settings: object) -> str:
            log = stack.enter_context(ReferenceLog(tmp_path / f"log-{random.random()}"))
            log.create_stream("orders", 2)
            amqp, rabbit = AmqpConfig(port=0, **settings), RabbitConfig(port=0, **settings)  # type: ignore[arg-type]
            server = stack.enter_context(ServerThread(log, amqp, rabbit=replace(rabbit, authentication_delay_ms=0)))
            return server.urls[door].rpartition(":")[2]

        yield start


@pytest.fixture
def free() -> Iterator[str]:
    """A port where nobody listens, and that nobody else is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield str(held.getsockname()[1])


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_streams.client.hosts.random.sample", lambda hosts, _: list(hosts))


def at(url: str) -> Endpoint:
    return replace(parse_url(url, schemes=AMQP_SCHEMES | RABBITMQ_SCHEMES), username="guest", password=Secret("guest"))


def client_of(endpoint: Endpoint) -> AmqpClient | RabbitClient:
    if endpoint.scheme in RABBITMQ_SCHEMES:
        return RabbitClient(endpoint, super_stream=True, timeout_ms=120_000)
    return AmqpClient(endpoint, timeout_ms=120_000)


def described(endpoint: Endpoint) -> int:
    """How many partitions ``orders`` has there."""
    with client_of(endpoint) as client:
        return len(client.describe("orders").partitions)


# --- over doors


@pytest.mark.parametrize("door", DOORS)
def test_a_host_that_is_gone_is_passed_over(
    door: str, serve: Serve, free: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_this_order(monkeypatch)
    assert described(at(f"{door}://127.0.0.1:{free},no-such-host.invalid,127.0.0.1:{serve(door)}")) == 2
    assert f"127.0.0.1:{free}: connection refused" in caplog.text
    assert "the host name 'no-such-host.invalid' is not known" in caplog.text


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("door", DOORS)
def test_hosts_of_ipv6(door: str, serve: Serve, free: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_order(monkeypatch)
    port = serve(door, host="::1")
    assert described(at(f"{door}://[::1]:{free},127.0.0.1:{free},[::1]:{port}")) == 2
    with pytest.raises(ConnectFailed, match=re.escape(f"; [::1]:{free}: connection refused")):
        described(at(f"{door}://127.0.0.1:{free},[::1]:{free}"))


@pytest.mark.parametrize("door", DOORS)
def test_where_none_answers_all_are_named(door: str, free: str) -> None:
    with pytest.raises(ConnectFailed, match="none of 2 hosts can be reached") as caught:
        described(at(f"{door}://127.0.0.1:{free},no-such-host.invalid:7"))
    assert f"127.0.0.1:{free}: connection refused" in str(caught.value)
    assert "no-such-host.invalid:7: the host name" in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
def test_credentials_that_are_refused_are_not_tried_on_the_next_host(
    door: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be those of a guesser: each host may count them, and lock the user out."""
    in_this_order(monkeypatch)
    first, second = serve(door, users={"guest": "another"}), serve(door)
    with pytest.raises(AuthenticationFailed, match=f"127.0.0.1:{first}"):
        described(at(f"{door}://127.0.0.1:{first},127.0.0.1:{second}"))


@pytest.mark.parametrize("door", DOORS)
def test_each_host_has_to_have_its_own_name_in_its_certificate(
    door: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_order(monkeypatch)
    authority = Authority(tmp_path, "authority")

    def served(name: str) -> str:
        certificate, key = authority.issue(name, hosts=(name,))
        return serve(door, tls_cert=certificate, tls_key=key)

    own, others = served("localhost"), served("log.example.com")
    scheme = {"amqp": "amqps", "rabbitmq-stream": "rabbitmq-stream+tls"}[door]
    trusted = Tls(str(authority.file))
    assert described(at(f"{scheme}://localhost:{others},localhost:{own}").with_tls(trusted)) == 2
    with pytest.raises(ConnectFailed, match=f"localhost:{others}: its certificate does not verify"):
        described(at(f"{scheme}://localhost:{others}").with_tls(trusted))


@pytest.mark.parametrize("door", DOORS)
def test_a_connection_that_breaks_is_made_anew_to_another_host(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ways to one log, of which one goes away under a client."""
    in_this_order(monkeypatch)
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 2)
        configs = (AmqpConfig(port=0), RabbitConfig(port=0))
        with ServerThread(log, configs[0], rabbit=configs[1]) as second:
            urls = [second.urls[door]]
            with ServerThread(log, configs[0], rabbit=configs[1]) as first:
                urls.insert(0, first.urls[door])
                hosts = ",".join(url.partition("//")[2] for url in urls)
                client = client_of(at(f"{door}://{hosts}"))
                assert len(client.describe("orders").partitions) == 2
            with client:
                assert len(client.describe("orders").partitions) == 2


@pytest.mark.parametrize("door", DOORS)
def test_a_task_publishes_by_any_host(door: str, serve: Serve, free: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_order(monkeypatch)
    endpoint = at(f"{door}://127.0.0.1:{free},127.0.0.1:{serve(door)}")
    row = encode_columns({"value": pa.array([b"x"])})
    if door == "rabbitmq-stream":
        publisher = TaskPublisher(endpoint, RabbitPublishing(request_timeout_ms=120_000), None)
        publisher.send(row, "orders-0", None, lambda n: f"row {n}")
        publisher.flush()
        publisher.close()
    with client_of(endpoint) as client:
        if isinstance(client, AmqpClient):
            link = client.publisher("orders", partition="0")
            link.send(row, lambda n: f"row {n}")
            link.flush()
            link.close()
        assert sum(bounds.latest is not None for bounds in client.describe("orders").partitions.values()) == 1


# --- the order, the time, and what is learned


def tried(hosts: Hosts, faults: dict[str, SparkStreamsError]) -> list[str]:
    """The addresses that are tried one after the other, where these have faults."""
    seen: list[str] = []

    def connect(host: Endpoint, connect_ms: int) -> str:
        seen.append(host.address)
        if host.address in faults:
            raise faults[host.address]
        return host.address

    hosts.connect(connect)
    return seen


def test_hosts_are_tried_in_random_order() -> None:
    hosts = Hosts(GIVEN, 1_000)
    assert {tried(hosts, {})[0] for _ in range(200)} == {"a:1", "b:2", "c:3"}


def test_a_host_that_failed_is_tried_last() -> None:
    hosts = Hosts(GIVEN, 1_000)
    while tried(hosts, {"a:1": ConnectionLost("gone")})[0] != "a:1":
        """Until it was its turn."""
    assert {tried(hosts, {})[0] for _ in range(50)} == {"b:2", "c:3"}


def test_the_time_is_shared() -> None:
    """A machine that is switched off must not take all of it."""
    given: list[int] = []

    def connect(host: Endpoint, connect_ms: int) -> None:
        given.append(connect_ms)
        raise ConnectFailed("no answer")

    with pytest.raises(ConnectFailed):
        Hosts(GIVEN, 30_000).connect(connect)
    assert given == [10_000] * 3


def test_nodes_that_the_peer_named_come_behind_those_of_the_url() -> None:
    hosts = Hosts(GIVEN, 1_000)
    hosts.learn([("d", 4), ("a", 1), ("d", 4)])
    assert hosts.advertised == (("d", 4),)
    gone = {address: ConnectFailed("gone") for address in ("a:1", "b:2", "c:3")}
    for fault in gone.values():
        fault.retriable = False
    assert tried(hosts, gone)[3] == "d:4"
    assert Hosts(GIVEN.with_advertised(hosts.advertised), 1_000).advertised == (("d", 4),)


def test_no_peer_names_more_nodes_than_are_tried() -> None:
    hosts = Hosts(GIVEN, 1_000)
    hosts.learn((f"node-{n}", 1) for n in range(100_000))
    assert len(hosts.advertised) == MAX_ADVERTISED


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("host", "port"), [("x" * 64 + ".example", 1), ("a..b", 1), ("127.0.0.1", 70_000)])
def test_addresses_that_cannot_be_are_passed_over(door: str, host: str, port: int, serve: Serve) -> None:
    """No url has such a port, but a peer may name it."""
    endpoint = at(f"{door}://127.0.0.1:{serve(door)}")
    assert described(replace(endpoint, host=host, port=port, others=((endpoint.host, endpoint.port),))) == 2
    with pytest.raises(ConnectFailed, match=f"^{host}:{port}: "):
        described(replace(endpoint, host=host, port=port))


def test_a_node_that_cannot_be_reached_from_here_is_forgotten() -> None:
    """It would cost its time again whenever the others restart, and make them be given up early."""
    hosts = Hosts(parse_url("amqp://a:1"), 1_000)
    hosts.learn([("d", 4), ("e", 5), ("f", 6)])
    faults = {f"{name}": ConnectFailed(f"{name}: gone") for name in ("a:1", "d:4", "e:5", "f:6")}
    faults["d:4"].costly, faults["e:5"].retriable = True, False
    with pytest.raises(ConnectFailed, match="none of 4 hosts") as caught:
        tried(hosts, faults)  # type: ignore[arg-type]
    assert caught.value.retriable and not caught.value.costly
    assert hosts.advertised == (("f", 6),)


@pytest.mark.parametrize("kinds", [(RemoteProtocolError, True), (Refused, False)])
def test_what_every_host_would_say_is_told_at_once(kinds: tuple[type[SparkStreamsError], bool]) -> None:
    kind, passed_over = kinds
    words = ("amqp:not-allowed", "no such virtual host", "open") if kind is Refused else ("no AMQP",)
    seen: list[str] = []

    def connect(host: Endpoint, _: int) -> None:
        seen.append(host.address)
        raise kind(*words)

    with pytest.raises(SparkStreamsError) as caught:
        Hosts(GIVEN, 1_000).connect(connect)
    assert len(seen) == (3 if passed_over else 1)
    assert not caught.value.retriable
