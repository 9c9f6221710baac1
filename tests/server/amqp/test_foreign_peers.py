"""Peers that share no code with us: go-amqp and Qpid's JMS client at the door, and our client at an Artemis."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.retry import Deadline
from spark_streams.endpoint import Endpoint
from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.engine.incoming_deliveries import ACCEPT
from spark_streams.wire.amqp.engine.links import Attach, Link
from spark_streams.wire.amqp.engine.termini import Terminus
from tests.server.foreign_programs import Driver, Refused, go, java

HERE = Path(__file__).parent
PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "go-amqp": lambda: go(HERE / "go"),
    "qpid-jms": lambda: java(HERE / "java", "Peers"),
}
BODIES = [f"event {number}" for number in range(50)]
LARGE = "large " * 100_000
"""A body of many frames."""
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]


@pytest.fixture
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(PROGRAMS[request.param](), tmp_path / "errors")
    yield made
    made.stop()


go_amqp = pytest.mark.parametrize("driver", ["go-amqp"], indirect=True)
qpid_jms = pytest.mark.parametrize("driver", ["qpid-jms"], indirect=True)


# --- at the door


@go_amqp
@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
def test_go_amqp_publishes_and_reads(driver: Driver, node: Any, settled: bool) -> None:
    node.create()
    driver.ask("connect", url=node.url)
    driver.ask("publish", address="orders", bodies=[*BODIES, LARGE], settled=settled)
    driver.ask("receiver", **{"as": "r", "from": "@earliest"}, address="orders", credit=100, settled=settled)
    assert driver.ask("take", of="r", count=51) == [*BODIES, LARGE]
    driver.ask("detach", of="r")
    driver.ask("close")
    assert [event.body for event in node.receive("orders")][:50] == [body.encode() for body in BODIES]


@go_amqp
def test_go_amqp_drains_detaches_and_attaches_again(driver: Driver, node: Any) -> None:
    node.create()
    driver.ask("connect", url=node.url)
    for number in range(20):
        driver.ask("receiver", **{"as": "r", "from": "@earliest"}, address="orders", credit=-1)
        driver.ask("drain", of="r")
        with pytest.raises(Refused, match=r"not-found.*there is no stream 'nowhere' here"):
            driver.ask("publish", address="nowhere", bodies=["x"])
        driver.ask("publish", address="orders", bodies=[str(number)])
        driver.ask("detach", of="r")
    driver.ask("close")
    assert len(node.receive("orders")) == 20


@qpid_jms
def test_qpid_jms_publishes_and_reads(driver: Driver, node: Any) -> None:
    node.create()
    driver.ask("connect", **{"as": "s"}, url=node.url)
    driver.ask("consumer", **{"as": "c"}, on="s", address="orders")  # it begins behind the last event
    driver.ask("publish", on="s", address="orders", bodies=[*BODIES, LARGE])
    assert driver.ask("take", of="c", count=51) == [*BODIES, LARGE]
    for _ in range(3):
        with pytest.raises(Refused, match="there is no stream 'nowhere' here"):
            driver.ask("publish", on="s", address="nowhere", bodies=["x"])
    driver.ask("close")
    assert len(node.receive("orders")) == 51


@qpid_jms
def test_qpid_jms_is_refused_a_transaction(driver: Driver, node: Any) -> None:
    with pytest.raises(Refused, match="transactions are not supported"):
        driver.ask("connect", **{"as": "s"}, url=node.url, transacted=True)


# --- our client at an Artemis


@pytest.fixture
def artemis(driver: Driver) -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = "protocols=AMQP;amqpCredits=10;amqpLowCredits=3"
    driver.ask("broker", acceptor=f"tcp://127.0.0.1:{port}?{options}")
    return Endpoint("amqp", "127.0.0.1", port)


def published(endpoint: Endpoint, bodies: list[str]) -> None:
    with AmqpClient(endpoint, timeout_ms=120_000) as client:
        publisher = client.publisher("orders")
        publisher.send(client.encode({"value": pa.array([body.encode() for body in bodies])}), str)
        publisher.flush()
        publisher.close()


@qpid_jms
def test_an_artemis_takes_what_our_client_sends(driver: Driver, artemis: Endpoint) -> None:
    published(artemis, [*BODIES, LARGE])
    driver.ask("connect", **{"as": "s"}, url=f"amqp://127.0.0.1:{artemis.port}")
    driver.ask("consumer", **{"as": "c"}, on="s", address="orders")
    assert driver.ask("take", of="c", count=51) == [*BODIES, LARGE]
    driver.ask("close")


@qpid_jms
def test_our_engine_reads_from_an_artemis(driver: Driver, artemis: Endpoint) -> None:
    published(artemis, [*BODIES, LARGE])
    connection = Connection(artemis, timeout_ms=120_000)
    deadline = Deadline(120_000)
    for again in range(2):  # what is released the first time comes again
        link: Link = connection.session().receiver(f"reader {again}", 1 << 20)
        link.incoming.owner = link
        link.attach(Attach(Terminus.source("orders"), Terminus.target("reader")))
        connection.wait(lambda link=link: link.heard is not None, deadline, "no attach")
        assert not link.refused
        link.incoming.flow(60)
        connection.wait(lambda link=link: link.incoming.received > len(LARGE), deadline, "no messages")
        taken = link.incoming.take(100, 1 << 24)
        last = taken.memory[taken.starts[-1] : taken.ends[-1]].tobytes()
        assert len(taken.ids) == 51 and last.endswith(LARGE.encode())
        if again:
            link.incoming.settle(taken.ids, ACCEPT)
        else:
            link.incoming.release()
        link.incoming.drain = True
        connection.wait(lambda link=link: link.incoming.credit == 0, deadline, "no answer to drain")
        link.detach()
        link.session.end()
        connection.wait(lambda link=link: link.session.done, deadline, "no end")
    connection.close()


@qpid_jms
def test_a_queue_of_an_artemis_is_no_log_and_loses_nothing(driver: Driver, artemis: Endpoint) -> None:
    published(artemis, BODIES)
    with (
        AmqpClient(artemis, timeout_ms=120_000) as client,
        pytest.raises(RemoteProtocolError, match="is the peer an event log"),
    ):
        client.describe("orders")
    driver.ask("connect", **{"as": "s"}, url=f"amqp://127.0.0.1:{artemis.port}")
    driver.ask("consumer", **{"as": "c"}, on="s", address="orders")
    assert driver.ask("take", of="c", count=50) == BODIES
    driver.ask("close")
