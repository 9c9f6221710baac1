"""ES-300 … ES-315: delivery annotations and filters, at the node."""

from __future__ import annotations

import time
from typing import Any

import pytest
from proton import Described, Message, symbol, timestamp, ulong

from tests.server.amqp.raw_peer import (
    DA_CODE,
    DA_FILTER,
    EARLIEST,
    EPOCH,
    GROUP,
    OFFSET,
    PARTITION,
    SQL_CODE,
    SQL_FILTER,
    TIMESTAMP,
    Refused,
    annotations_filter,
    sql_filter,
)


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def append_at(node: Any, clock: SetClock, *instants: int, stream: str = "orders") -> None:
    """Append one event at each instant; its body is the instant."""
    sender = node.peer().sender(stream)
    for instant in instants:
        clock.now_ms = instant
        sender.send(str(instant))


@pytest.mark.parametrize(
    "properties", [None, {PARTITION: symbol("0")}, {GROUP: "g", PARTITION: symbol("0"), EPOCH: 1}], ids=str
)
@pytest.mark.parametrize("desired", [(), ("AMQP_EVENT_STREAMS_V1_0",)])
def test_es_300_every_delivery_has_offset_and_timestamp(node: Any, properties: Any, desired: Any) -> None:
    node.create(partitions=2)
    node.send("orders", *[b"%d" % n for n in range(10)], target="0")
    node.send("orders", Message(body=[1, 2]), Message(body=None), target="0")
    receiver = node.peer(desired=desired).receiver("orders", filter=EARLIEST, properties=properties)
    events = receiver.drain()
    assert len(events) == 12
    for event in events:
        assert type(event.annotations[OFFSET]) is symbol
        assert type(event.annotations[TIMESTAMP]) is timestamp


def test_es_302_later_offsets_are_greater_as_text(node: Any) -> None:
    from spark_streams.log import format_offset

    node.create()
    node.send("orders", *[b""] * 1_010)  # past 9 to 10, 99 to 100 and 999 to 1000
    offsets = [str(e.offset) for e in node.receive("orders")]
    assert len(offsets) == 1_010
    assert offsets == sorted(set(offsets))
    million = [format_offset(n) for n in range(1_000_000)]
    assert million == sorted(million) and len(set(million)) == len(million)
    for power in range(1, 19):
        below, above = format_offset(10**power - 1), format_offset(10**power)
        assert below < above


def test_es_302_later_offsets_are_greater_after_a_restart(nodes: Any, tmp_path: Any) -> None:
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread
    from tests.server.amqp.raw_peer import Peer

    offsets: list[str] = []
    for _ in range(3):
        with ReferenceLog(tmp_path / "again") as log, ServerThread(log, AmqpConfig(port=0)) as server:
            log.create_stream("orders", 1, exist_ok=True)
            peer = Peer(server.urls["amqp"])
            peer.sender("orders").send_all([b"x"] * 7)
            offsets = [str(e.offset) for e in peer.receiver("orders", filter=EARLIEST).drain()]
            peer.close()
    assert len(offsets) == 21 and offsets == sorted(set(offsets))


@pytest.mark.parametrize(
    "as_filter", [lambda o: annotations_filter(offset=o), lambda o: sql_filter(f"d.{OFFSET} > '{o}'")]
)
def test_es_304_the_reserved_offsets_are_below_and_above_all(node: Any, as_filter: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    peer = node.peer()
    earliest = peer.receiver("orders", filter=as_filter("@earliest"))
    latest = peer.receiver("orders", filter=as_filter("@latest"))
    assert earliest.bodies() == [b"a", b"b"] and latest.bodies() == []
    node.send("orders", b"c")
    assert earliest.bodies(earliest.take(1)) == [b"c"] and latest.bodies(latest.take(1)) == [b"c"]


def test_es_305_the_timestamp_is_when_the_event_was_added(node: Any) -> None:
    node.create()
    before = int(time.time() * 1000)
    node.send("orders", Message(body="x", creation_time=1_000_000.0), Message(body="y"))
    after = int(time.time() * 1000) + 1
    for event in node.receive("orders"):
        assert before <= event.timestamp <= after


def test_es_306_equal_and_backward_timestamps_occur(nodes: Any) -> None:
    clock = SetClock(5_000)
    node = nodes(clock=clock)
    node.create()
    append_at(node, clock, 5_000, 5_000, 4_000, 6_000, 1)
    events = node.receive("orders")
    assert [int(e.timestamp) for e in events] == [5_000, 5_000, 4_000, 6_000, 1]
    assert [e.offset for e in events] == sorted(e.offset for e in events)


def test_es_310_a_filter_that_the_node_does_not_know_is_not_in_force(node: Any) -> None:
    node.create()
    node.send("orders", b"x")
    selector = Described(symbol("apache.org:selector-filter:string"), "FALSE")
    receiver = node.peer().receiver("orders", filter={symbol("theirs"): selector, symbol("ours"): EARLIEST})
    assert set(receiver.echoed) == {"ours"}
    assert receiver.bodies() == [b"x"]


def test_es_311_the_filter_sees_what_is_retained_then_the_tail(node: Any) -> None:
    node.create()
    node.send("orders", *[b"%d" % n for n in range(30)])
    receiver = node.peer().receiver("orders", filter=sql_filter(f"d.{OFFSET} > '@earliest'"))
    bodies = receiver.bodies(receiver.take(30))
    node.send("orders", *[b"%d" % n for n in range(30, 40)])
    assert bodies + receiver.bodies(receiver.take(10)) == [b"%d" % n for n in range(40)]


@pytest.mark.parametrize("descriptor", [DA_FILTER, DA_CODE])
def test_es_312_each_listed_annotation_must_be_greater(nodes: Any, descriptor: Any) -> None:
    clock = SetClock(0)
    node = nodes(clock=clock)
    node.create()
    append_at(node, clock, 100, 300, 200, 300, 400)
    offsets = [e.offset for e in node.receive("orders")]
    cases = [
        ({"offset": offsets[1]}, [200, 300, 400]),
        ({"timestamp": 200}, [300, 300, 400]),
        ({"offset": offsets[1], "timestamp": 299}, [300, 400]),
        ({"offset": offsets[4]}, []),
        ({"timestamp": 400}, []),
    ]
    for values, expected in cases:
        events = node.receive("orders", filter=annotations_filter(descriptor, **values))
        assert [int(e.body) for e in events] == expected


@pytest.mark.parametrize("descriptor", [DA_FILTER, DA_CODE])
@pytest.mark.parametrize("key", ["event-streams-source-partition", "x-opt-offset", "offset", ""])
def test_es_313_other_annotations_are_refused(node: Any, descriptor: Any, key: str) -> None:
    node.create()
    with pytest.raises(Refused) as refused:
        node.receive("orders", filter=Described(descriptor, {symbol(key): symbol("x")}))
    assert refused.value.condition == "amqp:invalid-field"
    assert "event-streams-offset" in refused.value.description


O_, T_ = f"d.{OFFSET}", f"d.{TIMESTAMP}"
TIMES = [100, 300, 200, 300, 400]
GRAMMAR = [
    ("TRUE", [0, 1, 2, 3, 4]),
    ("FALSE", []),
    ("TRUE AND FALSE OR TRUE", [0, 1, 2, 3, 4]),
    (f"{O_} = '{{2}}'", [2]),
    (f"{O_} <> '{{2}}'", [0, 1, 3, 4]),
    (f"{O_} != '{{2}}'", [0, 1, 3, 4]),
    (f"{O_} > '{{2}}'", [3, 4]),
    (f"{O_} >= '{{2}}'", [2, 3, 4]),
    (f"{O_} < '{{2}}'", [0, 1]),
    (f"{O_} <= '{{2}}'", [0, 1, 2]),
    (f"'{{2}}' >= {O_}", [0, 1, 2]),
    (f"{T_} = 300", [1, 3]),
    (f"{T_} <> 300", [0, 2, 4]),
    (f"{T_} > 300", [4]),
    (f"{T_} >= 300", [1, 3, 4]),
    (f"{T_} < 300", [0, 2]),
    (f"{T_} <= 200", [0, 2]),
    (f"300 < {T_}", [4]),
    (f"{T_} = 300 AND {O_} > '{{2}}'", [3]),
    (f"{T_} = 400 OR {T_} = 100", [0, 4]),
    (f"{T_} = 400 OR {T_} = 300 AND {O_} < '{{2}}' OR {T_} = 200", [1, 2, 4]),
    (f"delivery_annotations.{OFFSET} > '{{3}}'", [4]),
    (f"{T_} > '300'", []),  # a timestamp and a text: unknown
    (f"{T_} <> '300'", []),
    ("d.other = 1 OR d.other <> 1", []),  # no event has it: unknown
    ("1 < 2", [0, 1, 2, 3, 4]),
    ("'it''s' = 'it''s'", [0, 1, 2, 3, 4]),
    (f"{O_} > '@earliest' AND {O_} <= '@latest'", [0, 1, 2, 3, 4]),
]


@pytest.fixture
def five(nodes: Any) -> Any:
    """A node whose log ``orders`` has events 0 … 4 at the instants of ``TIMES``."""
    clock = SetClock(0)
    node = nodes(clock=clock)
    node.create()
    append_at(node, clock, *TIMES)
    return node


@pytest.mark.parametrize("descriptor", [SQL_FILTER, SQL_CODE])
def test_es_314_the_sql_subset(five: Any, descriptor: Any) -> None:
    offsets = [e.offset for e in five.receive("orders")]
    peer = five.peer()
    for text, expected in GRAMMAR:
        receiver = peer.receiver("orders", filter=sql_filter(text.format(*offsets), descriptor))
        numbers = [offsets.index(e.offset) for e in receiver.drain()]
        assert numbers == expected, text
        receiver.close()


OUTSIDE = [
    *("", " ", "(TRUE)", "NOT TRUE", f"{O_} IN ('a')", f"{O_} LIKE 'a%'", f"{O_} IS NULL", f"{T_} > 1.5"),
    *(f"{T_} > 1 + 1", f"{T_} > UTC()", f"{O_} >", f"{O_} > 'a", "p.subject = 'x'", f"{OFFSET} > 'a'"),
]


@pytest.mark.parametrize("text", OUTSIDE)
def test_es_314_what_is_outside_the_subset_is_refused_with_its_column(node: Any, text: str) -> None:
    node.create()
    with pytest.raises(Refused) as refused:
        node.receive("orders", filter=sql_filter(text))
    assert refused.value.condition == "amqp:invalid-field"
    assert "column" in refused.value.description


def test_es_315_both_filters_are_in_force_when_given(node: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b", b"c")
    first = node.receive("orders")[0].offset
    for descriptors in ((DA_FILTER, SQL_FILTER), (DA_CODE, SQL_CODE), (ulong(512), ulong(513))):
        filters = {
            symbol("one"): annotations_filter(descriptors[0], offset=first),
            symbol("two"): sql_filter(f"{O_} > '{first}'", descriptors[1]),
        }
        receiver = node.peer().receiver("orders", filter=filters)
        assert {str(k): v for k, v in receiver.echoed.items()} == {str(k): v for k, v in filters.items()}
        assert receiver.bodies() == [b"b", b"c"]
