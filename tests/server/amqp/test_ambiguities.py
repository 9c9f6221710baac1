"""A-1 … A-29: how the node and the client decide what the specification leaves open, where that can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import proton
import pytest
from proton import Described, Message, Terminus, byte, int32, symbol, timestamp, ubyte, uint, ulong

from spark_streams.client.amqp.client import AmqpClient
from spark_streams.client.log_client import RangeRead
from spark_streams.endpoint import Endpoint
from spark_streams.errors import RemoteProtocolError
from spark_streams.position import EARLIEST as FROM_EARLIEST
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from tests.client.amqp.fake_node import FakeNode, Script, event, info
from tests.server.amqp.raw_peer import (
    CHANGED,
    DA_CODE,
    DA_FILTER,
    EARLIEST,
    EPOCH,
    GROUP,
    OFFSET,
    PARTITION,
    SOURCE_PARTITION,
    SQL_CODE,
    SQL_FILTER,
    TIMESTAMP,
    Refused,
    annotations_filter,
    sql_filter,
)

O_, T_ = f"d.{OFFSET}", f"d.{TIMESTAMP}"


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def at_instants(nodes: Any, *instants: int, partitions: int = 1) -> Any:
    """Start a node whose log ``orders`` has one event for each instant; the body is the instant."""
    clock = SetClock()
    node = nodes(clock=clock)
    node.create(partitions=partitions)
    sender = node.peer().sender("orders")
    for instant in instants:
        clock.now_ms = instant
        sender.send(str(instant), target="0")
    return node


def bodies(node: Any, described: Any, **options: Any) -> list[Any]:
    return [e.body for e in node.receive("orders", filter=described, **options)]


def condition_of(receiver: Any) -> str | None:
    condition = receiver.wait_closed()
    assert receiver.closed and receiver.link.remote_source.type == Terminus.UNSPECIFIED
    return condition


def test_a_01_associated_partitions_changed_is_sent_and_both_names_are_read(node: Any) -> None:
    node.create(partitions=1)
    receiver = node.peer().receiver("orders")
    node.server.call(lambda: node.log.add_partitions("orders", 1))
    node.send("orders", b"x")
    ours = receiver.take(1)[0]
    assert CHANGED in ours.annotations
    other = Message(body=b"x")
    other.instructions = {symbol("event-streams-assigned-partitions-changed"): ours.annotations[CHANGED]}
    encoded = [ours.encoded, bytes(other.encode())]
    ends = np.cumsum([len(e) for e in encoded])
    block = MessageBlock(b"".join(encoded), ends - [len(e) for e in encoded], ends)
    assert decode_columns(block, {"partitions_changed"})["partitions_changed"].to_pylist() == [["0", "1"]] * 2


@pytest.mark.parametrize("kind", [int, ulong, uint, int32, byte, ubyte])
def test_a_02_an_epoch_of_any_integer_type_is_taken_and_long_is_sent(node: Any, kind: Any) -> None:
    node.create()
    receiver = node.peer().receiver("orders", properties={GROUP: "g", PARTITION: symbol("0"), EPOCH: kind(3)})
    assert receiver.properties[EPOCH] == 3 and type(receiver.properties[EPOCH]) is int  # proton's word for long


@pytest.mark.parametrize("value", [-1, int32(-7), "3", symbol("3"), 2.0, True])
def test_a_02_an_epoch_that_is_none_is_refused(node: Any, value: Any) -> None:
    node.create()
    receiver = node.peer().attach_receiver("orders", properties={GROUP: "g", PARTITION: symbol("0"), EPOCH: value})
    assert condition_of(receiver) == "amqp:invalid-field"


@pytest.mark.parametrize("name", [OFFSET, f"[{OFFSET}]"])
@pytest.mark.parametrize("section", ["d", "delivery_annotations"])
@pytest.mark.parametrize("descriptor", [SQL_FILTER, SQL_CODE])
def test_a_03_names_with_hyphens_stand_bare_or_delimited(node: Any, section: str, name: str, descriptor: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    first = node.receive("orders")[0].offset
    assert bodies(node, sql_filter(f"{section}.{name} > '{first}'", descriptor)) == [b"b"]


def test_a_04_times_are_milliseconds_whatever_their_size(nodes: Any) -> None:
    node = at_instants(nodes, 1_585_672_841, 1_585_672_841_000)
    assert bodies(node, sql_filter(f"{T_} > 1585672841")) == ["1585672841000"]
    assert bodies(node, sql_filter(f"{T_} >= 1585672841")) == ["1585672841", "1585672841000"]
    assert bodies(node, annotations_filter(timestamp=1_585_672_840)) == ["1585672841", "1585672841000"]


def test_a_05_the_information_source_has_no_backslash_in_its_address(node: Any) -> None:
    node.create("example")
    peer = node.peer()
    assert len(peer.receiver("example/$info").take(1)) == 1
    assert condition_of(peer.attach_receiver("example/\\$info")) == "amqp:not-found"


def test_a_06_the_client_takes_an_answer_with_a_group_and_no_partition(node: Any) -> None:
    node.create(partitions=2)
    assert PARTITION in node.peer().receiver("orders", properties={GROUP: "g"}).properties  # ours always binds
    script = Script(
        info={"orders": info(p0=("a", "b"))},
        events={"orders": [event(b"1", "a", partition="0"), event(b"2", "b", partition="0")]},
        properties={GROUP: "g"},
    )
    with FakeNode(script) as fake, AmqpClient(Endpoint("amqp", "127.0.0.1", fake.port), consumer_group="g") as client:
        read = RangeRead("orders", "0", FROM_EARLIEST, "b", ("value",))
        rows = [row["value"] for batch in client.fetch(read) for row in batch.to_pylist()]
    assert rows == [b"1", b"2"]


def test_a_07_the_delivery_annotations_filter_is_strict(node: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    first = node.receive("orders")[0]
    assert bodies(node, annotations_filter(offset=first.offset)) == [b"b"]
    assert b"a" not in bodies(node, annotations_filter(timestamp=first.timestamp))
    assert bodies(node, sql_filter(f"{O_} >= '{first.offset}'")) == [b"a", b"b"]


def test_a_08_latest_is_the_end_of_the_log_at_the_attach(node: Any) -> None:
    node.create()
    node.send("orders", b"old")
    peer = node.peer()
    new = peer.receiver("orders", filter=sql_filter(f"{O_} > '@latest'"))
    also_new = peer.receiver("orders", filter=annotations_filter(offset="@latest"))
    snapshot = peer.receiver("orders", filter=sql_filter(f"{O_} <= '@latest'"))
    nothing = peer.receiver("orders", filter=sql_filter(f"{O_} = '@earliest'"))
    node.send("orders", b"new")  # no credit was given yet: it is the attach that counts
    assert new.bodies() == [b"new"] and also_new.bodies() == [b"new"]
    assert snapshot.bodies() == [b"old"]
    assert nothing.bodies() == []
    node.send("orders", b"newer")
    assert new.bodies() == [b"newer"] and snapshot.bodies() == []


def test_a_09_a_filter_judges_each_event_and_an_upper_bound_ends_no_link(nodes: Any) -> None:
    node = at_instants(nodes, 100, 900, 200, 800)
    assert bodies(node, sql_filter(f"{T_} >= 800")) == ["900", "800"]
    receiver = node.peer().receiver("orders", filter=sql_filter(f"{T_} <= 200"))
    assert receiver.bodies() == ["100", "200"]
    node.send("orders", "late")  # the clock still says 800
    receiver.peer.pause(0.05)
    receiver.check()
    assert receiver.bodies() == []


def test_a_10_all_filters_of_a_link_are_anded(nodes: Any) -> None:
    node = at_instants(nodes, 100, 200, 300, 400)
    second = node.receive("orders")[1].offset
    both = [annotations_filter(offset=second), sql_filter(f"{T_} < 400")]
    assert bodies(node, both) == ["300"]
    several = [sql_filter(f"{T_} > 100"), sql_filter(f"{T_} < 400"), sql_filter(f"{T_} <> 200", SQL_CODE)]
    assert bodies(node, several) == ["300"]
    assert bodies(node, [annotations_filter(timestamp=100), annotations_filter(DA_CODE, timestamp=300)]) == ["400"]


def test_a_11_annotations_are_sent_to_plain_receivers_too(node: Any) -> None:
    node.create()
    node.send("orders", b"x")
    peer = node.peer(desired=())
    got = peer.receiver("orders", filter=EARLIEST).drain()[0]
    assert {OFFSET, TIMESTAMP} <= got.annotations.keys()


def test_a_12_and_binds_tighter_and_the_empty_text_is_refused(nodes: Any) -> None:
    node = at_instants(nodes, 1, 2, 3)
    assert bodies(node, sql_filter(f"{T_} = 1 OR {T_} = 2 AND FALSE")) == ["1"]
    assert bodies(node, sql_filter(f"FALSE AND {T_} = 2 OR {T_} = 1")) == ["1"]
    with pytest.raises(Refused) as refused:
        bodies(node, sql_filter(""))
    assert refused.value.condition == "amqp:invalid-field"


def test_a_13_instants_before_1970_can_be_written(nodes: Any) -> None:
    node = at_instants(nodes, -386_380_800_000, -1, 0, 1)
    assert bodies(node, sql_filter(f"{T_} >= -1")) == ["-1", "0", "1"]
    assert bodies(node, sql_filter(f"{T_} = -386380800000")) == ["-386380800000"]
    assert bodies(node, annotations_filter(timestamp=-2)) == ["-1", "0", "1"]
    assert bodies(node, annotations_filter(timestamp=-386_380_800_001)) == ["-386380800000", "-1", "0", "1"]


def test_a_14_a_partitioned_log_always_names_the_source_partition(node: Any) -> None:
    node.create(partitions=2)
    node.send("orders", b"x", target="1")
    for properties in (None, {PARTITION: symbol("1")}, {PARTITION: symbol("1"), GROUP: "g"}):
        assert [e.partition for e in node.receive("orders", properties=properties)] == ["1"]


def test_a_15_it_is_the_consumer_that_rejects_a_wrong_source_partition() -> None:
    def unsettled(link: Any, _: int) -> bool:
        if link.is_sender:
            link.source.copy(link.remote_source)
            link.properties = dict(link.remote_properties or {})
            link.snd_settle_mode = proton.Link.SND_UNSETTLED
            link.open()
        return bool(link.is_sender)

    script = Script(events={"orders": [event(b"1", "a", partition="7")]}, on_attach=unsettled)
    with FakeNode(script) as fake:
        with (
            AmqpClient(Endpoint("amqp", "127.0.0.1", fake.port)) as client,
            pytest.raises(RemoteProtocolError, match="'7'"),
        ):
            list(client.fetch(RangeRead("orders", "0", FROM_EARLIEST, "a", ("value",))))
        assert "amqp:not-allowed" in fake.closes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{O_} > '1'", []),  # every offset begins with 0, so all are below '1' as text
        (f"{O_} < '1'", [b"a", b"b"]),
        (f"{O_} < 'a4c5'", [b"a", b"b"]),
        (f"{O_} > '0'", [b"a", b"b"]),
        (f"{O_} > ''", [b"a", b"b"]),
        (f"{O_} < '00000000000000000001'", [b"a"]),
        (f"{O_} > '000000000000000000010'", []),  # longer than any offset, and above the last
        (f"{O_} > '000000000000000000000'", [b"b"]),
        (f"{O_} < '~'", [b"a", b"b"]),
        (f"{O_} > '/'", [b"a", b"b"]),
    ],
)
def test_a_16_symbols_and_texts_are_compared_by_code_points(node: Any, text: str, expected: list[bytes]) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    assert bodies(node, sql_filter(text)) == expected


def test_a_17_an_offset_filter_holds_for_each_partition_by_itself(node: Any) -> None:
    node.create(partitions=2)
    for partition in ("0", "1"):
        node.send("orders", *[b"%d" % n for n in range(3)], target=partition)
    events = node.receive("orders")
    first = min(e.offset for e in events)
    rest = node.receive("orders", filter=annotations_filter(offset=first))
    assert sorted((e.partition, e.body) for e in rest) == [("0", b"1"), ("0", b"2"), ("1", b"1"), ("1", b"2")]
    receiver = node.peer().receiver("orders", filter=annotations_filter(offset="@latest"))
    node.send("orders", b"new", target="1")
    assert [(e.partition, e.body) for e in receiver.drain()] == [("1", b"new")]


def test_a_18_the_latest_offset_is_that_of_the_newest_event(node: Any) -> None:
    node.create()
    assert node.info("orders")["partitions"][0]["latest-offset"] is None
    node.send("orders", b"a", b"b")
    assert node.info("orders")["partitions"][0]["latest-offset"] == node.receive("orders")[-1].offset


def test_a_18_after_all_has_expired_there_is_none(nodes: Any) -> None:
    clock = SetClock(1_000_000)
    node = nodes(clock=clock)
    node.create(retention_max_age_ms=1_000, segment_max_age_ms=10)
    node.send("orders", b"a", b"b")
    before = node.info("orders")["partitions"][0]["latest-offset"]
    clock.now_ms += 10_000_000
    node.server.call(node.log.enforce_retention)
    entry = node.info("orders")["partitions"][0]
    assert (entry["earliest-offset"], entry["latest-offset"]) == (None, None)
    assert entry["x-opt-truncated-offset"] == before
    node.send("orders", b"c")
    assert [(e.body, e.offset > before) for e in node.receive("orders")] == [(b"c", True)]


def test_a_19_each_refusal_has_its_condition(nodes: Any) -> None:
    node = nodes(groups=frozenset({"g"}))
    node.create(partitions=1)
    peer = node.peer()

    def condition(**properties: Any) -> str | None:
        keys = {"partition": PARTITION, "group": GROUP, "epoch": EPOCH}
        return condition_of(peer.attach_receiver("orders", properties={keys[k]: v for k, v in properties.items()}))

    assert condition(partition=symbol("nope")) == "amqp:not-found"
    assert condition(group="unknown") == "amqp:not-found"
    owner = peer.receiver("orders", properties={GROUP: "g", PARTITION: symbol("0")})
    assert condition(group="g", partition=symbol("0")) == "amqp:resource-locked"
    assert condition(group="g") == "amqp:link:detach-forced"
    peer.receiver("orders", properties={GROUP: "g", PARTITION: symbol("0"), EPOCH: 1})
    assert owner.wait_closed() == "amqp:link:stolen"


def test_a_20_detach_forced_has_its_full_name(nodes: Any) -> None:
    node = nodes(unassigned="reject")
    node.create(partitions=1)
    peer = node.peer()
    peer.receiver("orders", properties={GROUP: "g"})
    assert condition_of(peer.attach_receiver("orders", properties={GROUP: "g"})) == "amqp:link:detach-forced"


def test_a_21_unknown_filters_are_left_out_of_the_echo(node: Any) -> None:
    node.create()
    node.send("orders", b"x")
    unknown = {
        symbol("a"): Described(symbol("amqp:false-filter"), True),
        symbol("b"): Described(ulong(0x137), "FALSE"),
        symbol("c"): Described(symbol("rabbitmq:stream-offset-spec"), "next"),
        symbol("null"): None,
    }
    known = {symbol("start"): EARLIEST, symbol("sql"): sql_filter("TRUE", SQL_CODE)}
    receiver = node.peer().receiver("orders", filter={**unknown, **known})
    echoed = {str(k): v for k, v in receiver.echoed.items() if v is not None}
    assert echoed == {str(k): v for k, v in known.items()}
    assert receiver.bodies() == [b"x"]


def test_a_21_only_unknown_filters_are_as_good_as_none(node: Any) -> None:
    node.create()
    node.send("orders", b"old")
    receiver = node.peer().receiver("orders", filter=Described(symbol("amqp:true-filter"), True))
    assert not receiver.echoed
    node.send("orders", b"new")
    assert receiver.bodies(receiver.take(1)) == [b"new"]


@pytest.mark.parametrize("echo", [True, False])
def test_a_21_the_client_fails_when_its_start_is_not_echoed(echo: bool) -> None:
    script = Script(events={"orders": [event(b"1", "a", partition="0")]}, echo_filters=echo)
    with FakeNode(script) as fake, AmqpClient(Endpoint("amqp", "127.0.0.1", fake.port)) as client:
        read = RangeRead("orders", "0", FROM_EARLIEST, "a", ("value",))
        if echo:
            assert [b.num_rows for b in client.fetch(read)] == [1]
        else:
            with pytest.raises(RemoteProtocolError, match="filter"):
                list(client.fetch(read))


@pytest.mark.parametrize(
    "described",
    [
        Described(SQL_FILTER, symbol("TRUE")),
        Described(SQL_FILTER, 1),
        Described(SQL_FILTER, None),
        Described(SQL_CODE, {symbol("a"): "b"}),
        Described(DA_FILTER, "TRUE"),
        Described(DA_CODE, None),
        Described(DA_CODE, [symbol("a")]),
        Described(DA_FILTER, {OFFSET: 1}),
        Described(DA_FILTER, {OFFSET: None}),
        Described(DA_FILTER, {TIMESTAMP: symbol("1")}),
        Described(DA_FILTER, {TIMESTAMP: "1"}),
    ],
    ids=repr,
)
def test_a_22_a_known_filter_with_a_value_of_another_type_is_refused(node: Any, described: Any) -> None:
    """The value is a string for SQL and a map for annotations; what is known but malformed is invalid (A-21)."""
    node.create()
    assert condition_of(node.peer().attach_receiver("orders", filter=described)) == "amqp:invalid-field"


def test_a_23_an_expired_offset_starts_at_the_first_retained_event(node: Any) -> None:
    node.create(segment_max_bytes=2_000, retention_max_bytes=3_000)
    sender = node.peer().sender("orders")
    for n in range(40):
        sender.send(b"%03d" % n + b"x" * 300)
    first_of_all = "0" * 20
    node.server.call(node.log.enforce_retention)
    retained = node.receive("orders")
    assert 0 < len(retained) < 40 and retained[0].offset > first_of_all
    assert bodies(node, annotations_filter(offset=first_of_all)) == [e.body for e in retained]
    assert bodies(node, sql_filter(f"{O_} >= '{first_of_all}'")) == [e.body for e in retained]


def test_a_23_an_offset_past_the_end_waits_for_events_beyond_it(node: Any) -> None:
    node.create()
    node.send("orders", b"0", b"1")
    receiver = node.peer().receiver("orders", filter=annotations_filter(offset=f"{3:020d}"))
    assert receiver.bodies() == []
    node.send("orders", b"2", b"3", b"4", b"5")
    assert receiver.bodies() == [b"4", b"5"]


def test_a_24_offsets_are_twenty_digits(node: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    offsets = [str(e.offset) for e in node.receive("orders")]
    assert all(len(o) == 20 and o.isdigit() and o.isascii() for o in offsets)
    assert [int(o) for o in offsets] == [int(offsets[0]), int(offsets[0]) + 1]
    assert bodies(node, sql_filter(f"{O_} > '@earliest'")) == [b"a", b"b"]  # though '@' is above all digits


@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_a_25_the_main_partition_of_an_unpartitioned_log_is_0(node: Any, kind: str) -> None:
    node.create(partitions=1)
    assert [e["partition"] for e in node.info("orders")["partitions"]] == ["0"]
    assert getattr(node.peer(), kind)("orders", properties={PARTITION: symbol("0")}).properties[PARTITION] == "0"


def test_a_26_an_epoch_without_a_group_is_refused(node: Any) -> None:
    node.create()
    peer = node.peer()
    for properties in ({EPOCH: 1}, {EPOCH: 1, PARTITION: symbol("0")}):
        assert condition_of(peer.attach_receiver("orders", properties=properties)) == "amqp:invalid-field"


@pytest.mark.parametrize(("asked", "answered"), [(3, 5), (5, 5), (8, 8)])
def test_a_27_without_an_active_link_a_low_epoch_is_taken_and_the_counter_stays(
    nodes: Any, asked: int, answered: int
) -> None:
    node = nodes(reset_epoch=False)
    node.create()
    peer = node.peer()
    claim = {GROUP: "g", PARTITION: symbol("0")}
    peer.receiver("orders", properties={**claim, EPOCH: 5}).close()
    assert peer.receiver("orders", properties={**claim, EPOCH: asked}).properties[EPOCH] == answered


def test_a_28_group_and_epoch_mean_nothing_on_senders(node: Any) -> None:
    node.create(partitions=2)
    peer = node.peer()
    claim = {GROUP: "g", PARTITION: symbol("0"), EPOCH: 1}
    senders = [peer.sender("orders", properties=claim) for _ in range(2)]
    for sender in senders:
        sender.send(b"x")
    assert peer.receiver("orders", properties={GROUP: "g", PARTITION: symbol("0")}).properties[EPOCH] == 0
    peer.sender("orders", properties={EPOCH: 1}).send(b"y")
    assert len(node.receive("orders")) == 3


def test_a_29_the_information_is_the_same_for_any_link_properties(node: Any) -> None:
    node.create(partitions=3)
    node.send("orders", b"a", b"b", b"c")
    plain = node.info("orders")
    for properties in ({PARTITION: symbol("1")}, {PARTITION: symbol("nope")}, {GROUP: "g"}):
        assert node.info("orders", properties=properties) == plain


def with_creation_time(milliseconds: int | None, body: bytes = b"x") -> bytearray:
    """Encode an event whose properties hold this creation time, which proton's Message cannot say below 1 ms."""
    fields = [b"\x40"] * 9 + [
        b"\x40" if milliseconds is None else b"\x83" + milliseconds.to_bytes(8, "big", signed=True)
    ]
    items = b"".join(fields)
    properties = b"\x00\x53\x73\xc0" + bytes([len(items) + 1, len(fields)]) + items
    return bytearray(properties + b"\x00\x53\x75\xa0" + bytes([len(body)]) + body)


CREATED = [None, -1, 0, -386_380_800_000, -(2**63) + 1, 2**63 - 1, 1]
"""Up to the edges of int64 milliseconds: what does not fit a reader's microseconds is the reader's business (N-06)."""


def test_n_04_and_n_05_each_creation_time_is_kept_and_none_is_none(node: Any) -> None:
    """In a log of create time the producer's instant counts; -1 ms is one, and a missing one is missing."""
    node.create(timestamp_type="create")
    node.peer().sender("orders").send_all([with_creation_time(ms) for ms in CREATED])
    events = node.receive("orders")
    assert [None if e.timestamp is None else int(e.timestamp) for e in events] == CREATED
    assert all(TIMESTAMP not in e.annotations for e in events if e.timestamp is None)
    assert all(type(e.timestamp) is timestamp for e in events if e.timestamp is not None)


def test_n_03_times_before_1970_are_looked_up_and_none_never_matches(node: Any) -> None:
    node.create(timestamp_type="create")
    node.peer().sender("orders").send_all([with_creation_time(ms) for ms in CREATED])
    found = {}
    for after in (-(2**63), -(2**63) + 1, -386_380_800_001, -2, -1, 0, 1):
        events = node.receive("orders", filter=annotations_filter(timestamp=after))
        found[after] = [int(e.timestamp) for e in events]
    assert found == {after: [ms for ms in CREATED if ms is not None and ms > after] for after in found}
    assert [int(e.timestamp) for e in node.receive("orders", filter=sql_filter(f"{T_} < 0"))] == [
        -1,
        -386_380_800_000,
        -(2**63) + 1,
    ]


@pytest.mark.parametrize("beyond", [9_223_372_036_854_776, -9_223_372_036_854_776, 2**63 - 1, -(2**63) + 1])
def test_n_06_an_instant_beyond_microseconds_is_never_another_one(node: Any, beyond: int) -> None:
    """The node stores it as it is; it does not wrap, and does not refuse it for what a reader may make of it."""
    node.create(timestamp_type="create")
    sender = node.peer().sender("orders")
    delivery = sender.put(with_creation_time(beyond))
    sender.peer.pump(lambda: delivery.settled)
    assert delivery.remote_state == proton.Delivery.ACCEPTED
    sender.send(with_creation_time(7))
    assert [int(e.timestamp) for e in node.receive("orders")] == [beyond, 7]


def test_n_04_the_reserved_instant_is_refused(node: Any) -> None:
    """Long.MIN_VALUE means "none" inside the log, so no event can be created then."""
    node.create(timestamp_type="create")
    sender = node.peer().sender("orders")
    with pytest.raises(Refused) as refused:
        sender.send(with_creation_time(-(2**63)))
    assert refused.value.condition in ("amqp:invalid-field", "amqp:decode-error")
    sender.send(with_creation_time(-1))
    assert [int(e.timestamp) for e in node.receive("orders")] == [-1]


def test_n_05_in_a_log_of_append_time_the_creation_time_only_travels(node: Any) -> None:
    node.create()
    node.peer().sender("orders").send(with_creation_time(-1))
    got = node.receive("orders")[0]
    assert got.timestamp > 0
    assert bytes(with_creation_time(-1)) in got.encoded  # the bare message is not touched
    assert SOURCE_PARTITION not in got.annotations or got.partition == "0"
