"""``/metrics``: each figure against what was done at the doors, who may ask, and the formats."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from spark_streams.log import ReferenceLog
from spark_streams.server import (
    AmqpConfig,
    EventHubsConfig,
    FeedConfig,
    Permissions,
    RabbitConfig,
    ServerThread,
    WebConfig,
)
from spark_streams.server.web import figures
from tests.certificate_authority import Authority
from tests.real_rabbitmq.by_hand import PEER_PROPERTIES, SASL_HANDSHAKE, pairs, plain
from tests.real_rabbitmq.by_hand import Peer as RabbitPeer
from tests.server.amqp.raw_peer import Ended
from tests.server.amqp.raw_peer import Peer as AmqpPeer
from tests.server.long_timeouts import LONG_TIMEOUTS
from tests.server.test_log_server import Door
from tests.server.web.conftest import Window
from tests.server.web.peers import USERS, Peers, connected, doors, hub_url

Windows = Callable[..., Window]
Opened = Callable[..., tuple[Window, Peers]]
PREFIX = "spark_streams_log_"
RABBIT = {"door": "rabbitmq-stream"}
TIMEOUT_S = 60


@pytest.fixture
def opened(windows: Windows) -> Iterator[Opened]:
    """Open a window with all doors, and clients."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[Window, Peers]:
            window = windows(*doors(), **settings)
            return window, stack.enter_context(connected(window))

        yield make


class Figures:
    """An answer: call it with a name behind the prefix, and labels, for a number."""

    def __init__(self, text: str, parse: Callable[[str], Any] = families) -> None:
        self.families = list(parse(text))
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return float(self._samples[PREFIX + name, frozenset(labels.items())])

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for known, labels in self._samples if known == PREFIX + name]

    def by_door(self, name: str) -> dict[str, float]:
        return {each["door"]: self(name, **each) for each in self.labels(name)}


def asked(window: Window, **headers: str) -> Figures:
    answer = window.get("/metrics", headers_=headers or None)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return Figures(answer.text)


def counted(window: Window, name: str, number: float, **labels: str) -> None:
    """Wait until a figure has a value: a connection's end, for one, takes the door a moment."""
    deadline = time.monotonic() + TIMEOUT_S
    while (now := asked(window)(name, **labels)) != number:
        assert time.monotonic() < deadline, f"{name} is {now}"
        time.sleep(0.02)


def test_streams_and_partitions(window: Window) -> None:
    window.create("orders", 2, segment_max_bytes=1 << 10, retention_max_bytes=4 << 10)
    window.create('a "quoted" \\ name\n'.strip())
    for _ in range(40):
        window.append([b"x" * 300], partition=1)
    window.log.enforce_retention()
    of = asked(window)
    partition = window.log.stream("orders").partitions["1"]
    assert of("info", version=importlib.metadata.version("spark-streams")) == 1
    assert of("streams") == 2
    assert of("stream_partitions", stream="orders") == 2 and of("stream_partitions", stream='a "quoted" \\ name') == 1
    assert of("partition_current_offset", stream="orders", partition="1") == 40
    assert of("partition_oldest_offset", stream="orders", partition="1") == partition.first_offset > 0
    assert of("partition_size_bytes", stream="orders", partition="1") == partition.stored_bytes > 0
    assert of("partition_size_bytes", stream="orders", partition="0") == 0
    names = {family.name for family in of.families}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "python_info"} <= names


def test_what_was_done_at_each_door(opened: Opened) -> None:
    window, peers = opened()
    window.create("orders", 2)
    peers.send_by_amqp(20)
    peers.read_by_amqp(7)
    peers.leave_durable(4)
    peers.send_to_hub(3)
    peers.read_hub(6)
    peers.publish_by_rabbit(5)
    peers.read_by_rabbit(8)
    feed, url = peers.feed("bob"), f"{window.server.urls['feedapi']}/orders"
    peers.publish_by_feed(feed, 10)
    fetched = feed.get(url, params={"partition": "0", "cursor": "_first", "pageSizeHint": "3"}, timeout=TIMEOUT_S)
    assert feed.get(f"{url}/none", timeout=TIMEOUT_S).status_code == 404
    counted(window, "connections_closed_total", 1, door="amqp")
    counted(window, "consumergroup_current_offset", 9, **of_group("rabbitmq-stream", "mail", ""))
    counted(window, "messages_delivered_total", window.log.stream("orders").partitions["0"].next_offset, **RABBIT)
    of = asked(window)
    at_doors = {"amqp": 3, "event-hubs": 2, "rabbitmq-stream": 2, "feedapi": 1, "web": 1}
    assert of.by_door("connections_opened_total") == at_doors
    assert of.by_door("connections") == {**at_doors, "amqp": 2}
    one = {"amqp": 1, "event-hubs": 1, "rabbitmq-stream": 1, "feedapi": 1, "web": 0}
    assert of.by_door("consumers") == of.by_door("publishers") == one
    received = {"amqp": 20, "event-hubs": 3, "rabbitmq-stream": 5, "feedapi": 10, "web": 0}
    assert of.by_door("messages_received_total") == received
    appends = of.by_door("append_duration_seconds_count")
    assert 1 <= appends.pop("amqp") <= 20, "one of each turn"
    assert appends == {"event-hubs": 3, "rabbitmq-stream": 1, "feedapi": 2, "web": 0}, "of feeds one of each partition"
    stored = window.log.stream("orders").partitions["0"]
    records = stored.read(0, 1 << 20)
    assert records is not None
    assert of("received_bytes_total", door="amqp") == int((records.value_ends - records.value_starts)[:20].sum())
    delivered = {"amqp": 11, "event-hubs": 6, "rabbitmq-stream": stored.next_offset, "feedapi": 3, "web": 0}
    assert of.by_door("messages_delivered_total") == delivered, "the subscription gets what comes later, too"
    lines = fetched.content.splitlines(keepends=True)
    assert of("delivered_bytes_total", door="feedapi") == sum(map(len, lines[:3]))
    assert of("delivered_bytes_total", door="amqp") > 11 * 10
    assert of("delivered_bytes_total", door="rabbitmq-stream") > 28 * 10
    assert of("http_request_duration_seconds_count", door="feedapi", method="POST", status="2xx") == 1
    assert of("http_request_duration_seconds_count", door="feedapi", method="GET", status="2xx") == 1
    assert of("http_request_duration_seconds_count", door="feedapi", method="GET", status="4xx") == 1
    assert of("http_request_duration_seconds_bucket", door="feedapi", method="GET", status="2xx", le="+Inf") == 1
    groups = {
        ("amqp", "billing", "ann"): 7,
        ("amqp", "archive/year", "ann"): 4,
        ("event-hubs", "$default", ""): 6,
        ("rabbitmq-stream", "mail", ""): 9,
    }
    labels = of.labels("consumergroup_lag")
    assert {(each["door"], each["consumergroup"], each["user"]) for each in labels} == set(groups)
    for group, at in groups.items():
        assert of("consumergroup_current_offset", **of_group(*group)) == at
        assert of("consumergroup_lag", **of_group(*group)) == stored.next_offset - at
    assert set(of.by_door("auth_attempts_failed_total").values()) == {0}
    assert {of("messages_refused_total", **each) for each in of.labels("messages_refused_total")} == {0}
    assert {of("connections_refused_total", **each) for each in of.labels("connections_refused_total")} == {0}


def of_group(door: str, group: str, user: str) -> dict[str, str]:
    return {"door": door, "consumergroup": group, "user": user, "stream": "orders", "partition": "0"}


def test_credentials_that_are_not_accepted(opened: Opened) -> None:
    window, _ = opened(users=USERS)
    urls = window.server.urls
    with pytest.raises(Ended):
        AmqpPeer(urls["amqp"], username="ann", password="wrong")
    with pytest.raises(Ended):
        AmqpPeer(hub_url(window), username="ann", password="wrong")
    rabbit = RabbitPeer(urls["rabbitmq-stream"].replace("rabbitmq-stream://", "rabbitmq-stream://ann:wrong@"))
    with contextlib.closing(rabbit):
        rabbit.ask(PEER_PROPERTIES, pairs({}))
        rabbit.ask(SASL_HANDSHAKE)
        assert rabbit.authenticate().code != 1
    assert requests.get(urls["feedapi"], auth=("ann", "wrong"), timeout=TIMEOUT_S).status_code == 401
    assert requests.get(urls["feedapi"], headers={"Authorization": "Basic !"}, timeout=TIMEOUT_S).status_code == 401
    assert requests.get(urls["feedapi"], timeout=TIMEOUT_S).status_code == 401, "none were given: no attempt"
    assert window.post("/sign-in", user="ann", password="wrong").status_code == 401
    window.sign_in("ann", USERS["ann"])
    failed = asked(window).by_door("auth_attempts_failed_total")
    assert failed == {"amqp": 1, "event-hubs": 1, "rabbitmq-stream": 1, "feedapi": 2, "web": 1}


def test_connections_that_are_not_served(windows: Windows, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path, "authority").issue("server")
    tls = {"tls_cert": certificate, "tls_key": key}
    window = windows(
        AmqpConfig(port=0, **{**LONG_TIMEOUTS, "max_connections": 1}),
        RabbitConfig(port=0, **{**LONG_TIMEOUTS, "max_handshakes": 1}),
        FeedConfig(port=0, handshake_timeout_ms=50),
        EventHubsConfig(port=0, users={"ann": "x"}, **LONG_TIMEOUTS, **tls),
    )
    with contextlib.closing(AmqpPeer(window.server.urls["amqp"])), pytest.raises(Ended):
        AmqpPeer(window.server.urls["amqp"])
    with socket_to(window.server.urls["rabbitmq-stream"]) as first, socket_to(window.server.urls["rabbitmq-stream"]):
        assert first.recv(1) == b"", "the second one takes its place"
    with socket_to(window.server.urls["feedapi"]) as silent:
        assert b"408" in silent.recv(100)
    where = window.server.urls["event-hubs"].partition("Endpoint=")[2].partition(";")[0]
    with socket_to(where) as plain:
        plain.sendall(b"AMQP\0\1\0\0")
        while plain.recv(100):
            pass
    for door, reason in {"amqp": "full", "rabbitmq-stream": "slow", "feedapi": "late", "event-hubs": "tls"}.items():
        counted(window, "connections_refused_total", 1, door=door, reason=reason)
    of = asked(window)
    refused = [each for each in of.labels("connections_refused_total") if of("connections_refused_total", **each)]
    assert len(refused) == 4, refused


def socket_to(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)


def test_events_that_are_not_stored(opened: Opened) -> None:
    window, peers = opened()
    window.create("orders", 1)
    peer = peers.publish_by_rabbit(1, "orders")
    window.log.split_partition("orders", "0")
    peer.publish(1, [plain(2, b"x"), plain(3, b"x")])
    counted(window, "messages_refused_total", 2, **RABBIT, reason="split")
    assert asked(window)("messages_received_total", **RABBIT) == 1


def test_who_may_ask(windows: Windows) -> None:
    permissions = {"ann": Permissions(configure="", write="", read="orders"), "bob": Permissions()}
    window = windows(*doors(), users=USERS, permissions=permissions, monitors=frozenset({"bob"}))
    window.create("orders")
    window.create("secrets")
    answer = window.get("/metrics")
    assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic realm=")
    assert answer.headers["content-type"].startswith("text/plain") and "<" not in answer.text.replace("<base64", "")
    with connected(window) as peers:
        peers.send_by_amqp(9)
        peers.read_by_amqp(2, user="bob")
        window.session.auth = "ann", USERS["ann"]
        of = asked(window)
        assert of("streams") == 1 and of.labels("partition_current_offset") == [{"stream": "orders", "partition": "0"}]
        assert of.labels("consumergroup_lag") == [] and of("consumers", door="amqp") == 1
        window.session.auth = "bob", USERS["bob"]
        assert asked(window)("consumergroup_lag", **of_group("amqp", "billing", "bob")) == 7
        window.session.auth = None
        window.sign_in("ann", USERS["ann"])
        assert asked(window)("streams") == 1, "whoever signed in to the pages may ask too"
        window.session.auth = "ann", "wrong"
        assert window.get("/metrics").status_code == 401


def test_openmetrics_gzip_and_pieces(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    window.create("orders", 5)
    monkeypatch.setattr(figures, "PIECE", 2)
    plain = window.get("/metrics", headers_={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.headers["vary"] == "Accept, Accept-Encoding"
    assert plain.text.count(f"# HELP {PREFIX}partition_size_bytes") == 1
    assert plain.text.count(f"\n{PREFIX}partition_size_bytes{{") == 5
    assert "# EOF" not in plain.text
    packed = window.get("/metrics", headers_={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and f"{PREFIX}streams 1.0" in packed.text
    other = window.get("/metrics", headers_={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.text.endswith("# EOF\n") and other.text.count("# EOF") == 1
    of = Figures(other.text, openmetrics)
    assert len(of.labels("partition_size_bytes")) == 5 and of("connections_opened_total", door="web") >= 1
    assert window.get("/metrics", headers_={"Accept": "x" * 100}).status_code == 200


def test_a_method_of_a_peers_own_is_no_label(windows: Windows) -> None:
    window = windows(FeedConfig(port=0))
    for method in ("BREW", "WHEN"):
        assert requests.request(method, window.server.urls["feedapi"], timeout=TIMEOUT_S).status_code == 405
    of = asked(window)
    assert of("http_request_duration_seconds_count", door="feedapi", method="other", status="4xx") == 2


def test_the_page_has_each_figure() -> None:
    page = Path("docs/log-window.md").read_text()
    rows = re.findall(r"^\| `(spark_streams_log_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    assert rows == [
        (each.name, each.kind, ", ".join(f"`{label}`" for label in each.labels) or "–") for each in figures.FIGURES
    ]
    for reason in (*figures.CONNECTION_REASONS, *figures.EVENT_REASONS):
        assert f"`{reason}`" in page


def test_a_door_of_ones_own_need_not_tell_anything(tmp_path: Path) -> None:
    with (
        ReferenceLog(tmp_path) as log,
        ServerThread(log, WebConfig(port=0), doors=[Door("toys", None)]) as server,
    ):
        window = Window(server, log)
        window.create("orders")
        assert "Connections 1 Readers 0 Writers 0" in window.text("/connections")
        assert "no offset is stored" in window.text("/groups")
        assert asked(window).by_door("connections") == {"web": 1}
