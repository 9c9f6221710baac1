"""Walks over offsets, lookups by time, and $info, against a scripted peer."""

from __future__ import annotations

import proton
import pytest

from spark_streams.client import AmqpClient, Bounds
from spark_streams.client.amqp import offset_walk as walk_module
from spark_streams.client.retry import Attempts, Backoff
from spark_streams.endpoint import Endpoint
from spark_streams.errors import DeadlineExceeded, RemoteProtocolError
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.faults.proxy import TcpProxy


def client(port: int, timeout_ms: int = 120_000) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port), timeout_ms=timeout_ms)


def events(count: int, size: int = 10) -> list[tuple[str, bytes]]:
    return [(f"{n:06d}", b"x" * size) for n in range(count)]


def test_a_walk_goes_on_where_it_stopped_and_asks_for_no_more_than_it_needs() -> None:
    names = [o for o, _ in events(10_000)]
    with FakePeer(Script(events=events(10_000))) as peer, client(peer.port) as reader:
        walk = reader.offsets("orders", "0", After(names[9]), None)
        assert walk.take(5) == names[10:15]
        assert walk.take(0) == []
        assert peer._sent == 5
        assert walk.take(6_000) == names[15:6_015]
        assert peer._sent == 6_005
        assert walk.take(100_000) == names[6_015:]
        assert walk.take(3) == []
        peer.script.events.append(("010000", b""))
        assert walk.take(3) == ["010000"]
        walk.close()
    assert [a["address"] for a in peer.attached] == ["orders"]


def test_a_walk_stops_at_its_end() -> None:
    names = [o for o, _ in events(100)]
    with FakePeer(Script(events=events(100))) as peer, client(peer.port) as reader:
        walk = reader.offsets("orders", "0", At(names[9]), names[19])
        assert walk.take(4) == names[9:13]
        assert walk.take(100) == names[13:20]
        assert walk.take(100) == []
        assert reader.offsets("orders", "0", EARLIEST, "0000195").take(100) == names[:20]
    with FakePeer(Script()) as peer, client(peer.port) as reader:
        assert reader.offsets("orders", "0", EARLIEST, None).take(10) == []


def test_what_comes_in_one_piece_with_the_end_of_the_connection_need_not_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_module, "Attempts", lambda: Attempts(Backoff(3, 1, 1)))
    log = events(100)
    with FakePeer(Script(events=log, closes_behind=10)) as peer, client(peer.port) as reader:
        assert reader.offsets("orders", "0", EARLIEST, log[-1][0]).take(100) == [o for o, _ in log]


def test_bodies_of_many_frames_are_passed_over() -> None:
    log = events(40, size=200_000)
    with FakePeer(Script(events=log)) as peer, client(peer.port) as reader:
        assert reader.offsets("orders", "0", EARLIEST, log[-1][0]).take(100) == [o for o, _ in log]


def test_of_few_large_messages_at_a_time_only_the_heads_are_read() -> None:
    log = events(3, size=200_000)
    with FakePeer(Script(events=log)) as peer, client(peer.port) as reader:
        walk = reader.offsets("orders", "0", EARLIEST, None)
        assert [walk.take(1) for _ in log] == [[o] for o, _ in log]


def test_a_cut_connection_does_not_lose_or_repeat_an_offset() -> None:
    log = events(2_000, size=100)
    with FakePeer(Script(events=log)) as peer, TcpProxy(peer.port, [50_000, 2_500, 100_000]) as proxy:
        with client(proxy.port) as reader:
            walk = reader.offsets("orders", "0", EARLIEST, None)
            assert walk.take(150) + walk.take(1_000) + walk.take(5_000) == [o for o, _ in log]
        assert proxy.connections == 4


def test_connections_that_break_within_a_block_bring_a_walk_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "Attempts", lambda: Attempts(Backoff(3, 1, 1)))
    log = events(3_000)
    with (
        FakePeer(Script(events=log)) as peer,
        TcpProxy(peer.port, [40_000] * 30) as proxy,
        client(proxy.port) as reader,
    ):
        assert reader.offsets("orders", "0", EARLIEST, None).take(3_000) == [o for o, _ in log]
        assert proxy.connections > 4


def test_a_walk_with_a_silent_peer_ends_in_a_deadline() -> None:
    with FakePeer(Script(events=events(3), answers_drain=False)) as peer, client(peer.port, 3_000) as reader:
        walk = reader.offsets("orders", "0", EARLIEST, None)
        assert walk.take(3) == [o for o, _ in events(3)]
        with pytest.raises(DeadlineExceeded, match="no answer to drain"):
            walk.take(1)


def test_the_first_event_at_a_time_is_the_peers_answer() -> None:
    with FakePeer(Script(events=events(5))) as peer, client(peer.port) as reader:  # all have timestamp 1000
        assert reader.first_at_time("orders", "0", 1_000) == "000000"
        assert reader.first_at_time("orders", "0", -(2**63)) == "000000"
        assert reader.first_at_time("orders", "0", -386_380_800_000) == "000000"
        assert reader.first_at_time("orders", "0", 1_001) is None
        peer.script.answers_drain = False
        reader_in_a_hurry = client(peer.port, 300)
        with reader_in_a_hurry, pytest.raises(DeadlineExceeded):
            reader_in_a_hurry.first_at_time("orders", "0", 1_001)


# --- $info


def test_a_plain_answer_has_no_extensions_and_unknown_keys_are_ignored_es_406() -> None:
    script = Script(events=events(5), info_extra={"x": [1]}, partition_extra={"y": {"z": None}})
    with FakePeer(script) as peer, client(peer.port) as reader:
        description = reader.describe("orders")
        assert description.incarnation is None
        assert description.partitions == {"0": Bounds("000000", "000004")}
        assert reader.remaining("orders", {"0": EARLIEST, "1": EARLIEST}) == {"0": None, "1": None}
    assert {a["address"] for a in peer.attached} == {"orders/$info"}


def test_the_extensions_are_read() -> None:
    script = Script(
        info_extra={"x-opt-incarnation": "abc"},
        partition_extra={"x-opt-truncated-offset": proton.symbol("000009"), "x-opt-remaining": proton.ulong(41)},
    )
    with FakePeer(script) as peer, client(peer.port) as reader:
        description = reader.describe("orders")
        assert description.incarnation == "abc"
        assert description.partitions == {"0": Bounds(None, None, "000009", True)}
        positions = {"0": After("000003")}
        assert reader.remaining("orders", positions) == {"0": 41}
        assert reader.remaining("orders", {"0": At("000003")}) == {"0": 42}
        assert reader.remaining("orders", {"0": LATEST}) == {"0": 0}
        assert reader.remaining("orders", {"0": AtTime(0)}) == {"0": None}
    asked = [a["properties"] for a in peer.attached]
    assert asked[1] == {"x-opt-positions": {"0": "000003"}}
    (key,), (value,) = zip(*asked[1]["x-opt-positions"].items(), strict=True)
    assert type(key) is type(value) is proton.symbol


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"partitions": "no list"}, "ES-404"),
        ({"partitions": []}, "ES-404"),
        ({"partitions": [{"earliest-offset": None}]}, "without 'partition'"),
        ({"partitions": [{"partition": "0", "earliest-offset": 7}]}, "'earliest-offset' is no symbol"),
    ],
)
def test_answers_that_break_the_rules(extra: dict, words: str) -> None:
    with (
        FakePeer(Script(info_extra=extra)) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match=words),
    ):
        reader.describe("orders")


def test_no_answer_ends_in_a_deadline() -> None:
    with (
        FakePeer(Script(answers_info=False)) as peer,
        client(peer.port, 3_000) as reader,
        pytest.raises(DeadlineExceeded, match=r"127.0.0.1:\d+: no answer from 'orders/\$info' within 3000 ms"),
    ):
        reader.describe("orders")
