"""Tokens are renewed before they run out, while a connection reads, writes or waits; what happens when that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from proton import Condition, Link

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.links import Binding, attach_receiver, attach_sender
from spark_streams.client.amqp.publisher import Publisher
from spark_streams.client.amqp.receive_buffer import ReceiveBuffer
from spark_streams.client.amqp.token_grants import AGAIN_S, UNKNOWN_S
from spark_streams.client.kept_connections import KeptConnections
from spark_streams.endpoint import Endpoint, Secret
from spark_streams.errors import AuthenticationFailed, DeadlineExceeded, OptionError, Refused, SparkStreamsError
from spark_streams.secrets import CalledSecret, FileSecret
from tests.client.amqp.fake_namespace import KEY, RULE, FakeNamespace, Namespace, Put
from tests.client.amqp.fake_node import event
from tests.wire.amqp.test_cbs import jwt

WITHOUT_PLAIN = ("MSSBCBS", "ANONYMOUS")
NOW_S = time.time()
SOURCE = "orders/ConsumerGroups/$Default/Partitions/0"
issued: list[str] = []


def issue() -> str:
    """Return the token of the moment, as a vault would; fail without one."""
    return issued[-1]


class Clock:
    """The seconds since the epoch, as a test has them."""

    def __init__(self, connection: Connection) -> None:
        self.now_s = NOW_S
        assert connection.grants is not None
        connection.grants._source.clock = lambda: self.now_s


def connected(
    server: FakeNamespace, secret: Secret | None = None, timeout_ms: int = 60_000
) -> tuple[Connection, Clock]:
    endpoint = Endpoint("amqp", "127.0.0.1", server.port, RULE, Secret(KEY))
    if secret is not None:
        endpoint = Endpoint("amqp", "127.0.0.1", server.port, token=secret)
    connection = Connection(endpoint, timeout_ms=timeout_ms)
    return connection, Clock(connection)


def turned(connection: Connection, done: Callable[[], bool]) -> None:
    """Turn until ``done()``."""
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "a guard against hanging"
        connection.turn(0.01)


def renewal_fault(connection: Connection) -> SparkStreamsError:
    """Return the error that a turn ends with."""
    with pytest.raises(SparkStreamsError) as caught:
        turned(connection, lambda: False)
    assert connection.broken and "geheim" not in f"{caught.value} {caught.value!r}"
    return caught.value


def test_a_signature_is_renewed_at_a_tenth_of_its_time() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN)) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        clock.now_s += 0.89 * 3_600
        connection.turn(0.05)
        assert len(server.put) == 1
        clock.now_s += 0.02 * 3_600
        turned(connection, lambda: len(server.put) == 2)
        assert [put.expires_ms for put in server.put] == [
            (int(NOW_S) + 3_600) * 1_000,
            (int(clock.now_s) + 3_600) * 1_000,
        ]
        connection.close()


def test_a_long_read_goes_on_while_tokens_are_renewed() -> None:
    """Five renewals between the events of one link on one connection."""
    events = [event(b"x" * 100, f"{n:05d}") for n in range(1_000)]
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, events={SOURCE: events})) as server:
        connection, clock = connected(server)
        link = attach_receiver(connection, SOURCE, Binding("orders"))
        buffer, renewals = ReceiveBuffer(1_000, 1 << 20), 0
        link.deliveries.flow(200)
        end = time.monotonic() + 60
        while buffer.rows < 1_000 and time.monotonic() < end:
            link.check()
            connection.turn(0.05)
            took = buffer.take(link.deliveries)
            if buffer.rows >= 200 * (renewals + 1):
                renewals += 1
                clock.now_s += 3_300
                turned(connection, lambda: len(server.put) == renewals + 1)  # noqa: B023
                link.deliveries.flow(200)
            assert took >= 0
        assert buffer.rows == 1_000 and renewals == 5 and server.connections == 1
        link.close()
        connection.close()


def test_a_long_write_goes_on_while_tokens_are_renewed() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN)) as server:
        connection, clock = connected(server)
        attach = partial(attach_sender, connection, "orders", Binding("orders"))
        publisher = Publisher(attach(), "orders", 60_000, attach)
        for number in range(5):
            publisher.send(pa.array([b"\x00\x53\x75\xa0\x01x"] * 50, pa.large_binary()), str)
            publisher.flush()
            clock.now_s += 3_300
            turned(connection, lambda: len(server.put) == number + 2)  # noqa: B023
        publisher.close()
        connection.close()
        assert len(server.transfers) == 250 and server.connections == 1


def test_an_idle_connection_that_is_kept_renews_its_token() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN)) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        kept = KeptConnections[Connection](kept_s=60.0)
        kept.give_back("key", connection)
        clock.now_s += 3_300
        server.await_tokens(2)
        assert kept.take("key") is connection
        connection.close()


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    tokens = [jwt(exp=int(NOW_S) + hours * 3_600, n=hours) for hours in (1, 2)]
    file = tmp_path / "token"
    file.write_text(tokens[0])
    with FakeNamespace() as server:
        connection, clock = connected(server, FileSecret(str(file), "tokenFile"))
        connection.grant("orders")
        file.write_text(tokens[1])
        clock.now_s += 3_300
        turned(connection, lambda: len(server.put) == 2)
        assert [put.token for put in server.put] == tokens
        connection.close()


def test_a_token_that_does_not_say_its_expiry_is_renewed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.issued", ["geheim-opaque"])
    with FakeNamespace() as server:
        connection, clock = connected(server, CalledSecret(f"{__name__}:issue", "tokenProvider"))
        connection.grant("orders")
        for number in range(3):
            clock.now_s += UNKNOWN_S
            turned(connection, lambda: len(server.put) == number + 2)  # noqa: B023
        connection.close()


def test_each_hubs_token_is_renewed() -> None:
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN)) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        clock.now_s += 1_800
        connection.grant("returns")
        clock.now_s += 1_500
        turned(connection, lambda: len(server.put) == 3)
        clock.now_s += 1_800
        turned(connection, lambda: len(server.put) == 4)
        assert [put.name.rpartition("/")[2] for put in server.put] == ["orders", "returns", "orders", "returns"]
        connection.close()


def test_a_renewal_that_the_peer_refuses_ends_the_read() -> None:
    def answer(put: Put) -> tuple[int, str]:
        return (202, "") if put.expires_ms == (int(NOW_S) + 3_600) * 1_000 else (401, f"no: {put.token}")

    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, answer=answer)) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        clock.now_s += 3_300
        fault = renewal_fault(connection)
        assert isinstance(fault, AuthenticationFailed) and "status 401" in str(fault)
        assert "check options 'username' and 'password'" in str(fault)


def test_a_renewal_is_tried_again_while_the_former_token_holds() -> None:
    answers = [(202, ""), (503, "busy"), (503, "busy"), (202, "")]
    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, answer=lambda put: answers[len(server.put)])) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        clock.now_s += 3_300
        for count in (2, 3, 4):
            turned(connection, lambda: len(server.put) == count and _is_idle(connection))  # noqa: B023
            clock.now_s += AGAIN_S
        assert not connection.broken
        connection.close()


def test_a_renewal_that_stays_without_success_ends_with_the_former_token() -> None:
    answers = [(202, "")]
    with FakeNamespace(
        Namespace(mechanisms=WITHOUT_PLAIN, answer=lambda put: answers.pop() if answers else (503, "busy"))
    ) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        clock.now_s += 3_601
        fault = renewal_fault(connection)
        assert isinstance(fault, Refused) and fault.retriable and "busy" in str(fault)


def test_a_function_that_fails_is_called_again_while_the_former_token_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.issued", [jwt(exp=int(NOW_S) + 3_600)])
    with FakeNamespace() as server:
        connection, clock = connected(server, CalledSecret(f"{__name__}:issue", "tokenProvider"))
        connection.grant("orders")
        clock.now_s += 3_300
        issued.clear()
        connection.turn()
        assert not connection.broken
        issued.append(jwt(exp=int(clock.now_s) + 3_600))
        clock.now_s += AGAIN_S
        turned(connection, lambda: len(server.put) == 2 and _is_idle(connection))
        issued.clear()
        clock.now_s += 3_601
        fault = renewal_fault(connection)
        assert isinstance(fault, OptionError) and fault.option == "tokenProvider"


def test_a_token_that_nobody_replaces_ends_the_read_when_it_runs_out() -> None:
    with FakeNamespace() as server:
        connection, clock = connected(server, Secret("geheim." + jwt(exp=int(NOW_S) + 3_600).partition(".")[2]))
        connection.grant("orders")
        clock.now_s += 3_590
        connection.turn()
        assert not connection.broken and len(server.put) == 1, "the same token again would change nothing"
        clock.now_s += 10
        fault = renewal_fault(connection)
        assert isinstance(fault, AuthenticationFailed)
        assert "the token has expired: check option 'token'" in str(fault)


def test_a_renewal_that_is_not_answered() -> None:
    with FakeNamespace(
        Namespace(mechanisms=WITHOUT_PLAIN, answer=lambda put: None if server.put else (202, ""))
    ) as server:
        connection, clock = connected(server, timeout_ms=1_500)
        connection.grant("orders")
        clock.now_s += 3_300
        assert isinstance(renewal_fault(connection), DeadlineExceeded)


def test_links_that_the_peer_has_closed_meanwhile_are_attached_again() -> None:
    idle: list[Link] = []

    def answer(put: Put) -> tuple[int, str]:
        idle[:] = server.cbs_links[-2:]
        return 202, ""

    with FakeNamespace(Namespace(mechanisms=WITHOUT_PLAIN, answer=answer)) as server:
        connection, clock = connected(server)
        connection.grant("orders")
        server.close_links(idle, Condition("amqp:link:detach-forced", "idle for too long"))
        turned(connection, lambda: all(link.ended for link in _cbs_links(connection)))
        assert not connection.broken
        clock.now_s += 3_300
        turned(connection, lambda: len(server.put) == 2 and _is_idle(connection))
        assert len(server.cbs_links) == 4
        connection.close()


def test_links_that_the_peer_closes_in_place_of_an_answer() -> None:
    def answer(put: Put) -> None:
        server.close_links(server.cbs_links, Condition("amqp:unauthorized-access", "not here"))

    with FakeNamespace(Namespace(answer=answer)) as server:
        connection, _ = connected(server, Secret(jwt()))
        with pytest.raises(AuthenticationFailed, match=r"takes no tokens over '\$cbs'.*not here"):
            connection.grant("orders")
        assert connection.broken


def _is_idle(connection: Connection) -> bool:
    return connection.grants is not None and not connection.grants._is_busy


def _cbs_links(connection: Connection) -> list[Any]:
    assert connection.grants is not None and connection.grants._links is not None
    return [connection.grants._links.sender, connection.grants._links.receiver]
