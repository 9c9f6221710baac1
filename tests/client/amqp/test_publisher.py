"""Publisher against a scripted peer: outcomes, credit, sizes, lost connections."""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import proton
import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient
from spark_streams.client.amqp import connection as connection_module
from spark_streams.client.amqp import publisher
from spark_streams.client.retry import Backoff
from spark_streams.endpoint import Endpoint
from spark_streams.errors import (
    ConnectFailed,
    DeadlineExceeded,
    DeliveryFailed,
    LocalProtocolError,
    Refused,
)
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.faults.proxy import TcpProxy


def client(port: int, timeout_ms: int = 120_000) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port), timeout_ms=timeout_ms)


def payloads(first: int, count: int, size: int = 0) -> pa.LargeBinaryArray:
    bodies = (b"%d:" % n + b"x" * size for n in range(first, first + count))
    return pa.array([proton.Message(body=b, inferred=True).encode() for b in bodies], pa.large_binary())


def label(row: int) -> str:
    return f"row {row} (key 'k{row}')"


def test_everything_arrives_in_order_and_is_accepted() -> None:
    with FakePeer(Script()) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        for first in range(0, 3_000, 1_000):
            link.send(payloads(first, 1_000), label)
        link.send(payloads(0, 0), label)
        link.flush()
        assert link.accepted == 3_000
        link.close()
    assert peer.received == [b"%d:" % n for n in range(3_000)]


def test_a_slice_of_payloads_and_messages_of_many_frames() -> None:
    with FakePeer(Script(sender_credit=2)) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        link.send(payloads(0, 10, 300_000).slice(3, 4), label)
        link.flush()
    assert [b.split(b":")[0] for b in peer.received] == [b"3", b"4", b"5", b"6"]
    assert all(len(b) == 300_002 for b in peer.received)


def test_more_messages_than_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_IN_FLIGHT", 16)
    with FakePeer(Script(sender_credit=1_000)) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        link.send(payloads(0, 500), label)
        link.flush()
    assert peer.received == [b"%d:" % n for n in range(500)]


@pytest.mark.parametrize(
    ("verdict", "outcome", "words"),
    [
        (
            proton.Condition("amqp:not-allowed", "partition '9' does not exist"),
            "rejected",
            "amqp:not-allowed: partition",
        ),
        (proton.Delivery.RELEASED, "released", "no reason given"),
        (proton.Delivery.MODIFIED, "modified", "no reason given"),
    ],
)
def test_a_row_that_is_not_accepted_fails_by_its_label(verdict: Any, outcome: str, words: str) -> None:
    with FakePeer(Script(deny_outcome=lambda n: verdict if n == 1_234 else None)) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        with pytest.raises(
            DeliveryFailed, match=f"row 234 \\(key 'k234'\\) was {outcome} by stream 'orders'"
        ) as failed:
            link.send(payloads(0, 1_000), label)
            link.send(payloads(1_000, 1_000), label)
            link.flush()
        assert (failed.value.outcome, failed.value.stream) == (outcome, "orders")
        assert words in str(failed.value)
        link.close()


def test_a_message_larger_than_the_peer_takes() -> None:
    with FakePeer(Script(max_message_size=1_000)) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        batch = pa.concat_arrays([payloads(0, 3), payloads(3, 1, 2_000)])
        with pytest.raises(DeliveryFailed, match=r"row 3 .*message-size-exceeded: 20\d\d bytes.* at most 1000"):
            link.send(batch, label)


def test_no_credit_ends_in_a_deadline_that_names_stream_and_time() -> None:
    with FakePeer(Script(sender_credit=0)) as peer, client(peer.port) as sender:
        sender._timeout_ms = 2_000
        link = sender.publisher("orders")
        with pytest.raises(DeadlineExceeded, match=r"stream 'orders' at 127.0.0.1:\d+: .*no credit.* within 2000 ms"):
            link.send(payloads(0, 1), label)


def test_no_outcome_ends_in_a_deadline() -> None:
    with FakePeer(Script(deny_outcome=lambda n: "hold")) as peer, client(peer.port) as sender:
        sender._timeout_ms = 2_000
        link = sender.publisher("orders")
        link.send(payloads(0, 7), label)
        with pytest.raises(DeadlineExceeded, match="7 messages without an outcome within 2000 ms"):
            link.flush()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that stay away are given up soon."""
    monkeypatch.setattr(publisher, "LONG_BACKOFF", Backoff(4, 1, 1))


def test_what_is_not_accepted_goes_again_when_the_connection_is_lost() -> None:
    """Three connections are cut: each row is there, in order, and those come again that had no outcome yet."""
    with FakePeer(Script(sender_credit=50)) as peer, TcpProxy(peer.port, [1_500] * 3) as proxy:
        with client(proxy.port) as sender:
            link = sender.publisher("orders")
            link.send(payloads(0, 5_000), label)
            link.flush()
            assert link.accepted == 5_000
        assert proxy.connections == 4
    assert list(dict.fromkeys(peer.received)) == [b"%d:" % n for n in range(5_000)]
    assert 5_000 <= len(peer.received) <= 5_000 + 3 * 50, "no more than had credit"


@pytest.mark.usefixtures("hasty")
def test_a_connection_that_stays_away_fails() -> None:
    with (
        FakePeer(Script(sender_credit=50)) as peer,
        TcpProxy(peer.port, [1_500]) as proxy,
        client(proxy.port) as sender,
    ):
        link = sender.publisher("orders")
        link.send(payloads(0, 1), label)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ConnectFailed, match=r"127.0.0.1:\d+"):
            link.send(payloads(1, 5_000), label)
            link.flush()


def test_a_token_that_expires_ends_a_connection_and_no_task() -> None:
    """The condition and the words are those of RabbitMQ 4.3.6; the next connection signs in with the present token."""
    expired = ("amqp:unauthorized-access", "credential expired")
    script = Script(closes_after=10, closes_with=expired, sender_credit=50)  # so not all rows get there before
    with FakePeer(script) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        link.send(payloads(0, 500), label)
        link.flush()
        assert link.accepted == 500
    assert list(dict.fromkeys(peer.received)) == [b"%d:" % n for n in range(500)]


def test_a_refused_sender_says_why() -> None:
    with (
        FakePeer(Script(refuse=("amqp:unauthorized-access", "read only", {}))) as peer,
        client(peer.port) as sender,
        pytest.raises(Refused, match=r"attach to 'orders' partition '3' at .*unauthorized-access: read only"),
    ):
        sender.publisher("orders", partition="3")


def test_a_bound_sender_asks_for_its_partition() -> None:
    with FakePeer(Script(partition="3")) as peer, client(peer.port) as sender:
        sender.publisher("orders", partition="3").close()
    assert peer.attached[0]["properties"] == {"event-streams-partition": "3"}


def test_nulls_are_a_defect_of_the_caller() -> None:
    with FakePeer(Script()) as peer, client(peer.port) as sender, pytest.raises(LocalProtocolError, match="nulls"):
        sender.publisher("orders").send(pa.array([b"", None], pa.large_binary()), label)


def test_a_closed_publisher_says_so() -> None:
    with FakePeer(Script()) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        link.close()
        link.close()
        with pytest.raises(LocalProtocolError, match="publisher of stream 'orders' is closed"):
            link.send(payloads(0, 1), label)
        with pytest.raises(LocalProtocolError, match="closed"):
            link.flush()
    with pytest.raises(LocalProtocolError, match=r"client of 127.0.0.1:\d+ is closed"):
        sender.publisher("orders")


class Moved:
    """A connection whose time is the test's: waiting takes none, and each write is noted with its time in seconds."""

    def __init__(self, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.wrote = time.monotonic(), []
        self._socket = connection._socket
        monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(connection, "_poll", self.wait)
        monkeypatch.setattr(connection, "_socket", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def wait(self, wait_s: float, *, write: bool) -> bool:
        self.now += wait_s + 0.001  # the real one rounds up: proton counts whole milliseconds, and may just miss one
        return False

    def send(self, data: Any) -> int:
        self.wrote.append(self.now)
        return int(self._socket.send(data))

    def longest_silence_s(self) -> float:
        return max(after - before for before, after in pairwise([*self.wrote, self.now]))


def test_turning_keeps_an_idle_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakePeer(Script(idle_timeout_ms=8_000)) as peer, client(peer.port) as sender:
        connection = sender.publisher("orders")._link.connection
        assert connection._engine._outgoing.idle_s == 4, "proton tells peers the half"
        with monkeypatch.context() as patched:
            moved = Moved(connection, patched)
            for _ in range(100):
                moved.now += 0.2
                sender.turn()
        assert moved.longest_silence_s() < 2.5


def test_a_connection_that_nobody_turns_is_closed_by_its_peer() -> None:
    with FakePeer(Script(idle_timeout_ms=300)) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        connection, deadline = link._link.connection, time.monotonic() + 240
        while link._link.connection is connection and time.monotonic() < deadline:
            time.sleep(0.6)
            link.send(payloads(0, 10), label)
            link.flush()
        assert connection.broken and not link._link.connection.broken, "another one has taken its place"


@pytest.mark.parametrize("since_s", [1, 3], ids=["before one is due", "after one was due"])
def test_heartbeats_come_in_half_the_time_that_the_peer_names(monkeypatch: pytest.MonkeyPatch, since_s: int) -> None:
    """While an outcome is waited for, and after what was sent: a peer may close at the very time-out that it names."""
    script = Script(idle_timeout_ms=8_000, deny_outcome=lambda n: "hold")
    with FakePeer(script) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        connection = link._link.connection
        with monkeypatch.context() as patched:
            moved = Moved(connection, patched)
            moved.now += since_s
            patched.setattr(connection, "turn", lambda wait_s: False)  # what is sent goes out in the turn that waits
            link.send(payloads(0, 1), label)
            assert not connection._await(20)
        assert len(moved.wrote) >= 8
        assert moved.longest_silence_s() < 3.5


def stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that the peer says to the first ten messages come together."""
    push = publisher.Publisher._push

    def slowly(self: publisher.Publisher, *arguments: Any) -> None:
        push(self, *arguments)
        if not self._link.connection.broken:
            self._link.connection._flush()
        time.sleep(0.5)

    monkeypatch.setattr(publisher.Publisher, "_push", slowly)


@pytest.mark.parametrize("stalls", [False, True])
def test_a_peer_that_accepts_everything_and_closes_at_once_has_accepted_it(
    stalls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last outcomes and its close come together: with ``flush``, or with ``send`` already."""
    if stalls:
        stalled(monkeypatch)
    with FakePeer(Script(closes_after=10)) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        link.send(payloads(0, 10), label)
        link.flush()
        assert (link.accepted, len(peer.received)) == (10, 10)
        link.send(payloads(10, 1), label)
        link.flush()
        assert (link.accepted, len(peer.received)) == (11, 11)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("last", ["hold", proton.Condition("amqp:not-allowed", "no")], ids=["held", "rejected"])
def test_a_peer_that_closes_before_it_has_accepted_everything_has_not(
    last: Any, stalls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stalls:
        stalled(monkeypatch)
    script = Script(closes_after=10, deny_outcome=lambda n: last if n == 9 else None)
    with FakePeer(script) as peer, client(peer.port) as sender:
        link = sender.publisher("orders")
        link.send(payloads(0, 9), label)
        with contextlib.nullcontext() if last == "hold" else pytest.raises(DeliveryFailed):
            link.send(payloads(9, 1), label)
            link.flush()
        assert link.accepted == (10 if last == "hold" else 9)
    assert peer.received[9:] == [b"9:"] * (2 if last == "hold" else 1), "the one without an outcome came again"
