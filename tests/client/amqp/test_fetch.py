"""AmqpClient.fetch against a scripted peer: rows, starts, ends, and the faults of peers."""

from __future__ import annotations

import logging
import time

import proton
import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import range_reader as reader_module
from spark_streams.client.retry import Backoff
from spark_streams.endpoint import Endpoint
from spark_streams.errors import (
    DeadlineExceeded,
    LocalProtocolError,
    NotFound,
    OwnershipLost,
    PositionLost,
    Refused,
    RemoteProtocolError,
)
from spark_streams.filters.text import parse
from spark_streams.position import EARLIEST, LATEST, After, At
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.wire.amqp.dialects import EVENT_STREAMS
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.faults.proxy import Break, TcpProxy


def events(count: int, first: int = 0, size: int = 0) -> list[tuple[str, bytes]]:
    return [(f"{n:020d}", b"event %d" % n + b"x" * size) for n in range(first, first + count)]


def client(port: int, timeout_ms: int = 120_000, **more: object) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", port), timeout_ms=timeout_ms, **more)


def read(start: object, end: str, *columns: str, **more: object) -> RangeRead:
    return RangeRead("orders", "0", start, end, columns or ("offset", "value"), **more)


def fetched(reader: AmqpClient, what: RangeRead, **more: int) -> list[tuple[str, bytes]]:
    rows: list[tuple[str, bytes]] = []
    for batch in reader.fetch(what, **more):
        assert batch.num_rows
        rows += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return rows


@pytest.mark.parametrize("max_rows", [1, 7, 65_536])
def test_rows_of_a_range_come_once_and_stop_at_the_end(max_rows: int) -> None:
    log = events(1_000)
    with FakePeer(Script(events=log)) as peer, client(peer.port) as reader:
        end = log[499][0]
        assert fetched(reader, read(EARLIEST, end), max_rows=max_rows) == log[:500]
        assert fetched(reader, read(After(log[9][0]), end), max_rows=max_rows) == log[10:500]
        assert fetched(reader, read(At(log[9][0]), end), max_rows=max_rows) == log[9:500]
        assert fetched(reader, read(After(end), end)) == []
        assert fetched(reader, read(At(end), end)) == [log[499]]
    assert peer.desired == [["AMQP_EVENT_STREAMS_V1_0"]]  # ES-011: one connection for all of it


def test_offsets_are_compared_as_text_and_quotes_are_doubled() -> None:
    log = [("a'1", b"1"), ("a'10", b"2"), ("a'2", b"3"), ("b", b"4")]
    with FakePeer(Script(events=log)) as peer, client(peer.port) as reader:
        assert fetched(reader, read(At("a'10"), "a'2")) == log[1:3]
        assert fetched(reader, read(After("a'1"), "a'9")) == log[1:3]  # the end need not be an event's offset
        assert fetched(reader, read(EARLIEST, "b")) == log


def test_columns_come_in_the_order_asked_for_with_the_types_of_rows() -> None:
    names = tuple(reversed(FULL_MESSAGE_SCHEMA.names))
    with FakePeer(Script(events=events(3))) as peer, client(peer.port) as reader:
        (batch,) = reader.fetch(read(EARLIEST, events(3)[-1][0], *names))
        assert batch.schema == pa.schema([FULL_MESSAGE_SCHEMA.field(n) for n in names])
        assert batch.column("stream").to_pylist() == ["orders"] * 3
        assert batch.column("partition").to_pylist() == ["0"] * 3
        (empty,) = reader.fetch(RangeRead("orders", "0", EARLIEST, events(3)[-1][0], ()))
        assert (empty.num_rows, empty.num_columns) == (3, 0)


def test_delivery_annotations_are_stripped_from_rows_es_120() -> None:
    with FakePeer(Script(events=events(5))) as peer, client(peer.port) as reader:
        (batch,) = reader.fetch(read(EARLIEST, events(5)[-1][0], "message_annotations", "message"))
    for row in batch.to_pylist():
        assert b"event-streams" not in row["message"]
        assert not row["message_annotations"]


def test_a_read_that_cannot_start_is_an_error_at_once() -> None:
    with client(1) as reader, pytest.raises(LocalProtocolError, match="latest"):
        reader.fetch(RangeRead("orders", "0", LATEST, "1", ()))  # type: ignore[arg-type]
    with client(1) as reader, pytest.raises(LocalProtocolError, match="nope"):
        reader.fetch(read(EARLIEST, "1", "nope"))


@pytest.mark.parametrize("settled", [True, False])
def test_messages_of_several_frames_and_larger_than_the_buffer(settled: bool) -> None:
    log = events(12, size=700_000)
    with FakePeer(Script(events=log, settled=settled)) as peer, client(peer.port) as reader:
        assert fetched(reader, read(EARLIEST, log[-1][0]), max_bytes=100_000) == log
    assert [o for o, _ in peer.outcomes] == ([] if settled else ["accepted"] * 12)


def test_a_message_above_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_streams.client.amqp.links.MAX_MESSAGE_BYTES", 1_000_000)
    log = events(1, size=4_000_000)
    with (
        FakePeer(Script(events=log)) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match="more than 1000000 bytes"),
    ):
        fetched(reader, read(EARLIEST, log[0][0]), max_bytes=100_000)


# --- what the peer must have taken


@pytest.mark.parametrize("start", [EARLIEST, After("0"), At("0")])
def test_a_filter_that_is_not_echoed_is_an_error(start: object) -> None:
    with (
        FakePeer(Script(events=events(5), echo=False)) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match="did not take the filter"),
    ):
        fetched(reader, read(start, events(5)[-1][0]))


def test_another_filter_echoed_is_an_error() -> None:
    with (
        FakePeer(Script(events=events(5), echo_changed=True)) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match="did not take the filter"),
    ):
        fetched(reader, read(EARLIEST, events(5)[-1][0]))


def test_a_filter_echoed_and_ignored_is_an_error() -> None:
    log = events(5)
    with (
        FakePeer(Script(events=log, ignore_filter=True)) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match=r"the peer began at '0{20}'"),
    ):
        fetched(reader, read(After(log[2][0]), log[-1][0]))


def test_offsets_that_do_not_grow_are_an_error() -> None:
    log = [("1", b""), ("3", b""), ("2", b""), ("4", b"")]
    with (
        FakePeer(Script(events=log)) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match="'2' follows '3'"),
    ):
        fetched(reader, read(EARLIEST, "4"))


@pytest.mark.parametrize(("script", "words"), [(Script(partition="7"), "bound '7'"), (Script(bind=False), "unbound")])
def test_another_binding_than_asked_for_is_an_error(script: Script, words: str) -> None:
    script.events = events(2)
    with (
        FakePeer(script) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match=words),
    ):
        fetched(reader, read(EARLIEST, events(2)[-1][0]))


def test_a_group_answered_without_partition_is_tolerated_a_6() -> None:
    log = events(3)
    with FakePeer(Script(events=log, bind=False)) as peer, client(peer.port, consumer_group="g", epoch=3) as reader:
        assert fetched(reader, read(EARLIEST, log[-1][0])) == log
    attach = next(a for a in peer.attached if a["address"] == "orders")
    assert attach["properties"] == {
        "event-streams-partition": "0",
        "event-streams-consumer-group": "g",
        "event-streams-epoch": 3,
    }
    assert type(attach["properties"]["event-streams-partition"]) is proton.symbol
    assert type(attach["properties"]["event-streams-consumer-group"]) is str
    assert type(attach["properties"]["event-streams-epoch"]) is int  # AMQP long in proton


@pytest.mark.parametrize("settled", [True, False])
def test_a_delivery_of_another_partition_is_rejected_es_118(settled: bool) -> None:
    script = Script(events=events(3), source_partition="1", settled=settled)
    with FakePeer(script) as peer, client(peer.port) as reader:
        with pytest.raises(RemoteProtocolError, match="from partition '1'"):
            fetched(reader, read(EARLIEST, events(3)[-1][0]))
        deadline = time.monotonic() + 240
        while not peer.detached and time.monotonic() < deadline:
            time.sleep(0.01)
    conditions = [c for c in peer.detached if c is not None]
    assert [c.name for c in conditions] == ["amqp:not-allowed"]
    if not settled:
        assert [(o, c.name) for o, c in peer.outcomes] == [("rejected", "amqp:not-allowed")]


def test_a_missing_source_partition_is_fine_on_a_bound_link() -> None:
    log = events(3)
    with FakePeer(Script(events=log, source_partition=None)) as peer, client(peer.port) as reader:
        assert fetched(reader, read(EARLIEST, log[-1][0])) == log


def test_a_peer_without_the_capability_es_012() -> None:
    log = events(3)
    with FakePeer(Script(events=log, capability=False)) as peer:
        with client(peer.port) as reader, pytest.raises(RemoteProtocolError, match="AMQP_EVENT_STREAMS_V1_0"):
            fetched(reader, read(EARLIEST, log[-1][0]))
        with client(peer.port, dialect=EVENT_STREAMS) as reader:
            assert fetched(reader, read(EARLIEST, log[-1][0])) == log


# --- events that are gone


def test_a_start_below_what_is_retained_is_lost_where_the_peer_tells_no_more_a_23(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = events(5, first=10)
    asked = After(f"{3:020d}")
    with FakePeer(Script(events=log)) as peer, client(peer.port) as reader:
        with pytest.raises(PositionLost, match="failOnDataLoss") as lost:
            fetched(reader, read(asked, log[-1][0]))
        assert (lost.value.partition, lost.value.asked) == ("0", str(asked))
        with caplog.at_level(logging.WARNING):
            assert fetched(reader, read(asked, log[-1][0], fail_on_data_loss=False)) == log
        assert "Events may have been lost" in caplog.text


@pytest.mark.parametrize(
    ("start", "lost"), [(After("08"), True), (After("09"), False), (At("09"), True), (At("10"), False)]
)
def test_the_newest_removed_offset_tells_loss_exactly(start: object, lost: bool) -> None:
    log = [(f"{n:02d}", b"") for n in range(10, 15)]
    script = Script(events=log, partition_extra={"x-opt-truncated-offset": proton.symbol("09")})
    with FakePeer(script) as peer, client(peer.port) as reader:
        if lost:
            with pytest.raises(PositionLost, match="'09' and older were removed"):
                fetched(reader, read(start, "14"))
        else:
            assert fetched(reader, read(start, "14")) == log


@pytest.mark.parametrize(("first", "end"), [(9, 19), (9, 9), (19, 19)])
@pytest.mark.parametrize("full_sql", [False, True], ids=["all", "narrowed"])
def test_an_inclusive_start_that_does_not_come_is_a_loss(
    first: int, end: int, full_sql: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer whose ``>=`` excludes: what was planned to be the first event has to come."""
    log = events(20)
    start, last = At(log[first][0]), log[end][0]
    pushed = parse("kind IS NULL") if full_sql else None  # true of all, so that the rows are the same
    with FakePeer(Script(events=log, full_sql=full_sql, excludes_start=True)) as peer, client(peer.port) as reader:
        with pytest.raises(PositionLost, match=f"at '{start.offset}'") as lost:
            fetched(reader, read(start, last, filter=pushed))
        assert lost.value.asked.startswith(str(start))
        with caplog.at_level(logging.WARNING):
            kept = read(start, last, filter=pushed, fail_on_data_loss=False)
            assert fetched(reader, kept, max_rows=4) == log[first + 1 : end + 1]
        assert len([r for r in caplog.records if "failOnDataLoss is false" in r.message]) == 1
        peer.script.excludes_start = False
        assert fetched(reader, read(start, last, filter=pushed)) == log[first : end + 1]


def test_an_inclusive_start_that_was_never_there_is_a_loss() -> None:
    log = [("a1", b"1"), ("a3", b"3")]
    with (
        FakePeer(Script(events=log)) as peer,
        client(peer.port) as reader,
        pytest.raises(PositionLost, match="at 'a2', but the first event there has offset 'a3'"),
    ):
        fetched(reader, read(At("a2"), "a3"))


def test_retention_that_overtakes_a_read_is_noticed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else a block ends, smaller, where a slow machine has the peer pause for a quarter of a second.
    monkeypatch.setattr("spark_streams.client.amqp.credit.DRAIN_AFTER_S", 600.0)
    log = events(1_000)
    script = Script(events=log, partition_extra={"x-opt-truncated-offset": proton.symbol(log[99][0])})
    with FakePeer(script) as peer, client(peer.port) as reader:
        batches = reader.fetch(read(After(log[99][0]), log[-1][0]), max_rows=100)
        assert [next(batches).num_rows for _ in range(3)] == [100] * 3
        script.partition_extra = {"x-opt-truncated-offset": proton.symbol(log[399][0])}
        assert next(batches).num_rows == 100  # what was handed out before may be removed
        script.partition_extra = {"x-opt-truncated-offset": proton.symbol(log[699][0])}
        with pytest.raises(PositionLost, match=f"after '{log[499][0]}'.*'{log[699][0]}' and older were removed"):
            next(batches)


def test_a_peer_that_tells_less_than_what_has_come_is_behind() -> None:
    log = events(20)
    script = Script(events=log, latest=log[2][0], partition_extra={"x-opt-truncated-offset": None})
    with FakePeer(script) as peer, client(peer.port) as reader:
        assert fetched(reader, read(After(log[9][0]), log[-1][0])) == log[10:]


def test_events_removed_after_they_were_read_are_no_loss() -> None:
    log = events(300)
    script = Script(events=log)
    with FakePeer(script) as peer, client(peer.port) as reader:
        batches = reader.fetch(read(EARLIEST, log[-1][0]), max_rows=100)
        first = next(batches).num_rows
        script.earliest = log[250][0]  # a peer that does not tell more
        assert first + sum(b.num_rows for b in batches) == 300


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(earliest="30", latest="40"), "from '30' to '40'"),
        (Script(earliest="01", latest="02"), "from '01' to '02'"),
        (Script(), "no events"),
    ],
)
def test_the_end_of_the_range_is_gone(script: Script, words: str, caplog: pytest.LogCaptureFixture) -> None:
    if "no events" not in words:
        script.events = [("01", b"one")]
    with FakePeer(script) as peer, client(peer.port) as reader:
        with pytest.raises(PositionLost, match=words):
            fetched(reader, read(EARLIEST, "20"))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            rows = fetched(reader, read(EARLIEST, "20", fail_on_data_loss=False))
        assert rows == script.events
        assert "going on with what is left" in caplog.text
    assert peer.drains >= 2


def test_other_peers_are_not_asked_for_identities() -> None:
    with FakePeer(Script(events=events(3))) as peer, client(peer.port) as reader:
        assert reader.log_identity("orders", {"0": "01"}) == {}
        assert peer.attached == []


def test_a_peer_that_keeps_events_back_is_at_fault() -> None:
    with (
        FakePeer(Script(events=[("01", b"")], latest="20")) as peer,
        client(peer.port) as reader,
        pytest.raises(RemoteProtocolError, match="no more events"),
    ):
        fetched(reader, read(EARLIEST, "20"))


# --- silence, closes and cuts


def test_a_peer_that_does_not_answer_drain_ends_in_a_deadline() -> None:
    with (
        FakePeer(Script(events=[("01", b"")], answers_drain=False)) as peer,
        client(peer.port, timeout_ms=3_000) as reader,
        pytest.raises(DeadlineExceeded, match=r"'orders' partition '0' at 127.0.0.1:\d+: no events.* within 3000 ms"),
    ):
        fetched(reader, read(EARLIEST, "20"))


def test_a_server_that_stops_answering_ends_in_a_deadline() -> None:
    log = events(20_000)
    with (
        FakePeer(Script(events=log)) as peer,
        TcpProxy(peer.port) as proxy,
        client(proxy.port, timeout_ms=2_000) as reader,
    ):
        batches = reader.fetch(read(EARLIEST, log[-1][0]), max_rows=1_000)
        assert next(batches).num_rows
        proxy.stall()
        with pytest.raises(DeadlineExceeded):
            list(batches)
        assert proxy.connections > 1, "another connection was tried"


def test_a_cut_connection_resumes_with_exactly_the_same_rows() -> None:
    log = events(3_000)
    with FakePeer(Script(events=log)) as peer, TcpProxy(peer.port, [100_000, 3_000, 150_000, 10]) as proxy:
        with client(proxy.port) as reader:
            assert fetched(reader, read(EARLIEST, log[-1][0]), max_rows=100) == log
        assert proxy.connections == 5


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("start", [EARLIEST, At(f"{0:020d}"), After(f"{0:020d}")], ids=str)
def test_connections_that_break_within_a_block_bring_the_read_forward(
    settled: bool, start: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each brought whole is handed on, and then the patience begins anew."""
    monkeypatch.setattr(reader_module, "LONG_BACKOFF", Backoff(3, 1, 1))
    log = events(3_000)
    with FakePeer(Script(events=log, settled=settled)) as peer, TcpProxy(peer.port, [40_000] * 30) as proxy:
        with client(proxy.port) as reader:
            assert fetched(reader, read(start, log[-1][0])) == log[isinstance(start, After) :]
        assert proxy.connections > 4


@pytest.mark.parametrize("start", [EARLIEST, At(f"{0:020d}")], ids=str)
def test_what_comes_in_one_piece_with_the_end_of_the_connection_brings_the_read_forward(
    start: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "LONG_BACKOFF", Backoff(3, 1, 1))
    log = events(100)
    with FakePeer(Script(events=log, closes_behind=10)) as peer, client(peer.port) as reader:
        assert fetched(reader, read(start, log[-1][0])) == log


def test_what_came_before_the_peer_fell_silent_is_handed_on() -> None:
    log = events(3_000)
    with FakePeer(Script(events=log)) as peer, TcpProxy(peer.port) as proxy, client(proxy.port, 5_000) as reader:
        proxy.order(Break("stall", after=60_000))
        assert fetched(reader, read(After(log[0][0]), log[-1][0])) == log[1:]
        sent = [a["filters"]["start"] for a in peer.attached if a["address"] == "orders"]
    assert [s[proton.symbol("event-streams-offset")] > log[100][0] for s in sent] == [False, True]


def test_a_reader_that_takes_its_time_goes_on_with_a_new_connection() -> None:
    """Between batches nobody sends heartbeats: Spark may take longer for a batch than the peer's idle time-out."""
    log = events(10_000)
    with FakePeer(Script(events=log, idle_timeout_ms=300)) as peer, client(peer.port) as reader:
        seen = []
        for number, batch in enumerate(reader.fetch(read(EARLIEST, log[-1][0]), max_rows=4_000)):
            seen += batch.column("offset").to_pylist()
            time.sleep(0.8 if number == 0 else 0)
        assert seen == [o for o, _ in log]
        assert len(peer.desired) >= 2


def test_a_connection_that_always_breaks_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LONG_BACKOFF", Backoff(6, 1, 1))
    log = events(3_000)
    with FakePeer(Script(events=log)) as peer, TcpProxy(peer.port, [300] * 50) as proxy:  # before an event
        with client(proxy.port) as reader, pytest.raises(Exception, match=r"127.0.0.1:\d+: the connection was lost"):
            fetched(reader, read(EARLIEST, log[-1][0]))
        assert proxy.connections <= 10


@pytest.mark.parametrize("closed", [True, False])
def test_a_gracefully_closed_link_is_attached_anew_es_108(closed: bool) -> None:
    log = events(500)
    script = Script(events=log, detach_after=(120, None), detach_closed=closed)
    with FakePeer(script) as peer, client(peer.port, consumer_group="g") as reader:
        assert fetched(reader, read(EARLIEST, log[-1][0]), max_rows=50) == log
    assert [a["address"] for a in peer.attached].count("orders") == 2


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("description", "info", "epoch"),
    [("taken", {"x-opt-epoch": 7}, 7), ("displaced by a consumer with epoch 12", {}, 12), ("taken", {}, None)],
)
def test_a_stolen_link_names_the_new_owner_es_213(
    closed: bool, description: str, info: dict, epoch: int | None
) -> None:
    script = Script(events=events(500), detach_after=(0, ("amqp:link:stolen", description, info)), detach_closed=closed)
    with (
        FakePeer(script) as peer,
        client(peer.port, consumer_group="g", epoch=1) as reader,
        pytest.raises(OwnershipLost, match="amqp:link:stolen") as stolen,
    ):
        fetched(reader, read(EARLIEST, events(500)[-1][0]))
    assert stolen.value.epoch == epoch


@pytest.mark.parametrize(
    ("condition", "kind"), [("amqp:not-found", NotFound), ("amqp:not-allowed", Refused), ("x:odd", Refused)]
)
def test_a_refused_link_says_why(condition: str, kind: type[Exception]) -> None:
    with (
        FakePeer(Script(refuse=(condition, "because", {}))) as peer,
        client(peer.port) as reader,
        pytest.raises(kind, match=f"attach to 'orders' partition '0' at 127.0.0.1:{peer.port}: {condition}: because"),
    ):
        fetched(reader, read(EARLIEST, "1"))


def test_a_passing_refusal_is_tried_again() -> None:
    log = events(3)
    script = Script(events=log, refuse=("amqp:resource-locked", "still held", {}), refuse_once=True)
    with FakePeer(script) as peer, client(peer.port) as reader:
        assert fetched(reader, read(EARLIEST, log[-1][0])) == log


# --- redirects


def test_a_redirect_is_followed_es_101() -> None:
    log = events(20)
    with FakePeer(Script(events=log)) as there:
        info = {"hostname": "elsewhere", "network-host": "127.0.0.1", "port": there.port, "address": "moved"}
        moved = Script(events=log, refuse=("amqp:link:redirect", "moved", info))
        with FakePeer(moved) as here, client(here.port) as reader:
            assert fetched(reader, read(EARLIEST, log[-1][0])) == log
        assert "moved" in [a["address"] for a in there.attached]


def test_redirects_in_a_circle_end() -> None:
    script = Script()
    with FakePeer(script) as peer, client(peer.port) as reader:
        script.refuse = ("amqp:link:redirect", "round", {"network-host": "127.0.0.1", "port": peer.port})
        with pytest.raises(Refused, match="5 redirects"):
            fetched(reader, read(EARLIEST, "1"))


def test_a_redirect_without_an_address_is_a_refusal() -> None:
    with (
        FakePeer(Script(refuse=("amqp:link:redirect", "somewhere", {"port": 1}))) as peer,
        client(peer.port) as reader,
        pytest.raises(Refused, match="amqp:link:redirect: somewhere"),
    ):
        fetched(reader, read(EARLIEST, "1"))


def test_a_read_that_is_left_early_detaches_and_the_client_goes_on() -> None:
    log = events(20_000)
    with FakePeer(Script(events=log)) as peer, client(peer.port) as reader:
        batches = reader.fetch(read(EARLIEST, log[-1][0]), max_rows=100)
        assert next(batches).num_rows
        batches.close()
        assert fetched(reader, read(EARLIEST, log[49][0])) == log[:50]
    assert len(peer.desired) == 1  # one connection


def test_a_read_of_a_closed_client_ends_with_an_error() -> None:
    log = events(5_000)
    with FakePeer(Script(events=log)) as peer:
        with client(peer.port) as reader:
            batches = reader.fetch(read(EARLIEST, log[-1][0]), max_rows=100)
            assert next(batches).num_rows
        with pytest.raises(LocalProtocolError, match="closed"):
            list(batches)
