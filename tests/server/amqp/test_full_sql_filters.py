"""AMQP Filter Expressions 1.0: ``amqp:sql-filter`` at the node, asked by proton."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import proton
import pytest
from proton import Described, Message, symbol, ulong

from spark_streams.server.amqp.link_filters import read_filters
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.engine.termini import FILTER, Terminus
from spark_streams.wire.amqp.performatives import SOURCE
from tests.server.amqp.raw_peer import (
    DA_CODE,
    EARLIEST,
    OFFSET,
    SQL_CODE,
    TIMESTAMP,
    Refused,
    annotations_filter,
    sql_filter,
)

FULL = symbol("amqp:sql-filter")
FULL_CODE = ulong(0x120)


def full(text: str, descriptor: Any = FULL_CODE) -> Described:
    return Described(descriptor, text)


def with_start(text: str) -> list[Described]:
    return [EARLIEST, full(text)]


@pytest.fixture
def filled(node: Any) -> Any:
    """A log whose events 0 to 99 have a number, a kind and a subject, each in its own type."""
    node.create()
    kinds = itertools.cycle(["order", "refund", "noise", None])
    messages = []
    for n, kind in zip(range(100), kinds, strict=False):
        properties: dict[str, Any] = {"number": n, "half": n / 2, "even": n % 2 == 0}
        if kind is not None:
            properties["kind"] = kind
        message = Message(body=b"%d" % n, properties=properties, subject=f"eu-{n % 10}" if n % 3 else None)
        if n % 5 == 0:
            message.annotations = {symbol("x-opt-origin"): "five"}
        messages.append(message)
    node.send("orders", *messages)
    return node


def numbers(events: list[Any]) -> list[int]:
    return [int(event.body) for event in events]


def test_the_capability_is_offered_beside_that_of_event_streams(node: Any) -> None:
    offered = [str(each) for each in node.peer().connection.remote_offered_capabilities]
    assert offered == ["AMQP_EVENT_STREAMS_V1_0", "AMQP_FILTEX_SQL_V1_0"]


@pytest.mark.parametrize("descriptor", [FULL, FULL_CODE])
def test_the_filter_is_echoed_and_in_force(filled: Any, descriptor: Any) -> None:
    sent = {symbol("start"): EARLIEST, symbol("sql-filter"): full("kind = 'order'", descriptor)}
    receiver = filled.peer().receiver("orders", filter=sent)
    assert {str(k): v for k, v in receiver.echoed.items()} == {str(k): v for k, v in sent.items()}
    assert numbers(receiver.drain()) == list(range(0, 100, 4))


CASES = [
    ("kind = 'order'", lambda n: n % 4 == 0),
    ("kind <> 'order'", lambda n: n % 4 in (1, 2)),
    ("NOT kind = 'order'", lambda n: n % 4 in (1, 2)),
    ("kind IS NULL", lambda n: n % 4 == 3),
    ("kind IS NOT NULL", lambda n: n % 4 != 3),
    ("kind IN ('order', 'noise')", lambda n: n % 4 in (0, 2)),
    ("kind NOT IN ('order', 'noise')", lambda n: n % 4 == 1),
    ("kind LIKE '%e%'", lambda n: n % 4 in (0, 1, 2)),
    ("kind LIKE 'o_d%'", lambda n: n % 4 == 0),
    ("kind NOT LIKE '%u%'", lambda n: n % 4 in (0, 2)),
    ("kind > 'noise'", lambda n: n % 4 in (0, 1)),
    ("number >= 90", lambda n: n >= 90),
    ("95.5 <= number", lambda n: n >= 96),
    ("half = 1.5", lambda n: n == 3),
    ("half = 7", lambda n: n == 14),
    ("even = TRUE", lambda n: n % 2 == 0),
    ("number = '5'", lambda n: False),
    ("number <> '5'", lambda n: True),
    ("p.subject = 'eu-7'", lambda n: n % 3 != 0 and n % 10 == 7),
    ("p.subject LIKE 'eu-%' AND (number < 5 OR number > 97)", lambda n: n % 3 != 0 and (n < 5 or n > 97)),
    ("m.[x-opt-origin] = 'five'", lambda n: n % 5 == 0),
    ("[number] = 1", lambda n: n == 1),
    ("TRUE", lambda n: True),
    ("FALSE", lambda n: False),
]


@pytest.mark.parametrize(("text", "matches"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_what_matches_is_delivered_in_log_order(filled: Any, text: str, matches: Any) -> None:
    events = filled.receive("orders", filter=with_start(text))
    assert numbers(events) == [n for n in range(100) if matches(n)]


def test_offsets_and_times_can_be_compared_beside_the_rest(filled: Any) -> None:
    offsets = [str(event.offset) for event in filled.receive("orders")]
    text = f"kind = 'order' AND d.event-streams-offset > '{offsets[40]}' AND d.[{OFFSET}] <= '{offsets[60]}'"
    assert numbers(filled.receive("orders", filter=full(text))) == [44, 48, 52, 56, 60]
    # A filter alone, without a start, speaks about what is retained.
    assert numbers(filled.receive("orders", filter=full("number < 3"))) == [0, 1, 2]
    assert numbers(filled.receive("orders", filter=full("d.event-streams-timestamp > 0 AND number = 7"))) == [7]
    assert numbers(filled.receive("orders", filter=full("NOT d.event-streams-timestamp > 0"))) == []


def test_all_filters_of_a_link_are_anded(filled: Any) -> None:
    offsets = [str(event.offset) for event in filled.receive("orders")]
    filters = [
        annotations_filter(offset=offsets[9]),
        sql_filter(f"d.{OFFSET} < '{offsets[30]}'", SQL_CODE),
        full("kind = 'order'"),
        full("number <> 20"),
    ]
    assert numbers(filled.receive("orders", filter=filters)) == [12, 16, 24, 28]


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "empty"),
        ("kind = ", 8, "expected"),
        ("UPPER(kind) = 'X'", 1, "functions are not supported"),
        ("number + 1 = 2", 8, "arithmetic is not supported"),
        ("EXISTS(kind)", 1, "EXISTS is not supported"),
        ("number BETWEEN 1 AND 2", 8, "BETWEEN"),
        ("f.x = 1", 1, "no section"),
        ("kind = 'order", 8, "not closed"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_column(node: Any, text: str, column: int, words: str) -> None:
    node.create()
    with pytest.raises(Refused, match=words) as refused:
        node.peer().receiver("orders", filter=with_start(text))
    assert refused.value.condition == "amqp:invalid-field"
    assert f"column {column}:" in refused.value.description


@pytest.mark.parametrize("value", [5, {}, symbol("TRUE"), None])
def test_a_value_that_is_no_string_is_refused(node: Any, value: Any) -> None:
    node.create()
    with pytest.raises(Refused, match="expected a string") as refused:
        node.peer().receiver("orders", filter=[EARLIEST, Described(FULL, value)])
    assert refused.value.condition == "amqp:invalid-field"


def test_new_events_are_filtered_as_they_come(filled: Any) -> None:
    receiver = filled.peer().receiver("orders", filter=with_start("number > 98"))
    assert numbers(receiver.take(1)) == [99]
    filled.send("orders", *[Message(body=b"%d" % n, properties={"number": n}) for n in (5, 200, 6, 201)])
    assert numbers(receiver.take(2)) == [200, 201]
    assert receiver.drain() == []


def test_an_upper_bound_ends_what_there_is_to_say(filled: Any) -> None:
    """Drain is answered although events go on being appended, and none of them is looked at."""
    offsets = [str(event.offset) for event in filled.receive("orders")]
    receiver = filled.peer().receiver("orders", filter=[EARLIEST, full(f"even = TRUE AND d.{OFFSET} < '{offsets[5]}'")])
    assert numbers(receiver.drain()) == [0, 2, 4]
    filled.send("orders", Message(body=b"100", properties={"even": True}))
    assert receiver.drain() == []


def test_released_events_of_a_sparse_filter_come_again(filled: Any) -> None:
    receiver = filled.peer().receiver("orders", filter=with_start("number = 33 OR number = 66"))
    first, second = receiver.take(2, settle=False)
    assert numbers([first, second]) == [33, 66]
    first.delivery.update(proton.Delivery.RELEASED)
    first.delivery.settle()
    (again,) = receiver.take(1)
    assert again.body == b"33" and again.offset == first.offset


def test_a_durable_link_goes_on_only_with_the_same_filter(filled: Any) -> None:
    def attach(text: str) -> tuple[Any, Any]:
        peer = filled.peer(container="durable")
        options = {"durability": proton.Terminus.DELIVERIES, "expiry": proton.Terminus.EXPIRE_NEVER}
        return peer, peer.receiver("orders", filter=with_start(text), name="the link", **options)

    peer, receiver = attach("kind = 'order'")
    assert numbers(receiver.take(2)) == [0, 4]
    receiver.detach()
    peer.close()
    peer, receiver = attach("kind = 'order'")
    assert numbers(receiver.take(1)) == [8]
    receiver.detach()
    peer.close()
    _, receiver = attach("kind = 'refund'")
    assert numbers(receiver.take(1)) == [1]


EQUAL_FILTERS: list[Any] = [
    {symbol("a"): annotations_filter(offset="007", timestamp=-5), symbol("b"): full("kind = 'ö'", FULL)},
    {symbol("y"): full("kind = 'ö'"), symbol("x"): annotations_filter(DA_CODE, timestamp=-5, offset="007")},
    {
        symbol("y"): full("kind = 'ö'"),
        symbol("x"): Described(DA_CODE, {TIMESTAMP: proton.timestamp(-5), OFFSET: "007"}),
    },
    {symbol("a"): annotations_filter(offset="007", timestamp=-5), "b": full("kind = 'ö'"), "c": full("?", ulong(7))},
]


def sent(filters: Any) -> Terminus:
    """The source of an attach with these filters, as proton encodes it."""
    data = proton.Data()
    data.put_object(filters)
    return Terminus(SOURCE, [None] * FILTER + [decode_value(data.encode())[0]])


@pytest.mark.parametrize("filters", EQUAL_FILTERS)
def test_what_is_kept_of_the_filters_of_a_durable_link_is_the_same_in_all_releases(filters: Any) -> None:
    kept = "13218d9af9ed9e513b8b30f174071e4075590f256e54a991c53a226df9ef04af"
    assert read_filters(sent(filters)).fingerprint == kept
    for other in (full("kind = 'o'"), sql_filter("TRUE"), annotations_filter(offset="008"), annotations_filter()):
        assert read_filters(sent({**filters, "other": other})).fingerprint != kept


@pytest.mark.parametrize("filters", [None, {}, {symbol("a"): full("?", ulong(7))}])
def test_of_a_durable_link_without_filters_the_same_is_kept_as_ever(filters: Any) -> None:
    assert read_filters(sent(filters)).fingerprint == "None"


def test_every_partition_of_an_agnostic_link_is_filtered(node: Any) -> None:
    node.create(partitions=3)
    for partition in "012":
        messages = [Message(body=b"%d" % n, properties={"n": n}) for n in range(10)]
        node.send("orders", *messages, target=partition)
    assert sorted(numbers(node.receive("orders", filter=with_start("n >= 8")))) == [8, 8, 8, 9, 9, 9]


def test_binary_uuid_and_char_compare_as_at_rabbitmq(node: Any) -> None:
    node.create()
    values = [b"ab", uuid.UUID(bytes=b"0123456789abcdef"), proton.char("a"), symbol("ab"), "ab", proton.ulong(97)]
    node.send("orders", *[Message(body=b"%d" % n, properties={"v": value}) for n, value in enumerate(values)])
    for text, found in (
        ("v = 'ab'", [0, 3, 4]),
        ("v = 0x6162", [0, 3, 4]),
        ("v = '0123456789abcdef'", [1]),
        ("v = 97", [2, 5]),
        ("v LIKE 'a%'", [0, 3, 4]),
    ):
        assert numbers(node.receive("orders", filter=with_start(text))) == found, text


def test_a_costly_filter_does_not_hold_up_other_links(filled: Any) -> None:
    """100 patterns that match nothing, on a log of many blocks; the information source answers in between."""
    body = b"x" * 2_000
    filled.send("orders", *[Message(body=body, properties={"kind": f"kind {n}"}) for n in range(1_500)])
    text = " OR ".join(f"kind LIKE '%a_{n}_b%c'" for n in range(100))
    slow = filled.peer().receiver("orders", filter=with_start(text))
    slow.link.flow(10)
    slow.peer._write()
    assert filled.info("orders")["partitions"]
    assert slow.drain() == []


def test_what_came_by_the_other_door_is_filtered_behind_its_header(node: Any) -> None:
    """RabbitMQ publishers store whole messages, header and delivery annotations included."""
    node.create()
    header = b"\x00\x53\x70\xc0\x04\x02\x41\x50\x09"  # durable, priority 9; not delivered, so not looked at
    annotations = b"\x00\x53\x71\xc1\x09\x02\xa3\x01x\xa1\x03abc"
    wanted = b"\x00\x53\x74\xc1\x09\x02\xa1\x01k\xa1\x03yes\x00\x53\x75\xa0\x01"
    other = wanted.replace(b"yes", b"not")
    partition = node.log.stream("orders").partitions["0"]
    stored = [
        head + message + b"%d" % n
        for n, head in enumerate((b"", header, annotations, header + annotations))
        for message in (wanted, other)
    ]
    node.server.call(lambda: partition.append(stored * 5))
    for text in ("k = 'yes'", "k = 'yes' AND h.priority = 4 AND d.x IS NULL", "NOT k = 'not'"):
        assert numbers(node.receive("orders", filter=with_start(text))) == [0, 1, 2, 3] * 5, text
    assert numbers(node.receive("orders", filter=with_start("k = 'yes' AND h.priority = 9"))) == []
