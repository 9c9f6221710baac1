"""What a batch read makes of messages: of proton's, of rstream's, of bytes that are no AMQP, compressed or filtered."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import proton
import pytest
from rstream import AMQPMessage
from rstream._pyamqp.message import Header, Properties
from rstream.amqp import amqp_decoder

from tests.e2e.rabbitmq.broker import COMPRESSIONS, Broker, body, coloured, numbers, offset, on_both
from tests.e2e.rabbitmq.queries import Queries, read_here, values
from tests.real_rabbitmq.by_hand import PUBLISH

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COLUMNS = [
    "value", "key", "stream", "partition", "offset", "timestamp",
    "properties", "application_properties", "message_annotations",
]  # fmt: skip


def local(seconds: float) -> datetime:
    """A time as collect() gives it: in the local zone, without saying so."""
    return (EPOCH + timedelta(seconds=seconds)).astimezone().replace(tzinfo=None)


def test_every_column_of_protons_message(queries: Queries, broker: Broker) -> None:
    message = proton.Message(
        body=b"hello",
        inferred=True,
        durable=True,
        id="m-1",
        user_id=b"me",
        address="there",
        subject="greeting",
        reply_to="here",
        correlation_id=proton.ulong(7),
        content_type="text/plain",
        content_encoding="gzip",
        expiry_time=86400.5,
        creation_time=1.5,
        group_id="g",
        group_sequence=4_294_967_295,
        reply_to_group_id="r",
        properties={"colour": "red", "n": proton.int32(5)},
        annotations={proton.symbol("event-streams-group-key"): "k-1", proton.symbol("x-opt-a"): True},
    )
    orders = broker.create()
    broker.publish(orders, [message.encode(), "plain"])
    frame = queries.batch(orders)
    assert frame.columns == COLUMNS
    first, second = frame.orderBy("offset").collect()
    assert bytes(first.value) == b"hello"
    assert (first.key, first.stream, first.partition, first.offset) == ("k-1", orders, orders, offset(0))
    assert first.properties.asDict() == {
        "message_id": "m-1",
        "user_id": bytearray(b"me"),
        "to": "there",
        "subject": "greeting",
        "reply_to": "here",
        "correlation_id": "7",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "absolute_expiry_time": local(86400.5),
        "creation_time": local(1.5),
        "group_id": "g",
        "group_sequence": 4_294_967_295,
        "reply_to_group_id": "r",
    }
    assert first.application_properties == {"colour": "red", "n": "5"}
    assert first.message_annotations == {"event-streams-group-key": "k-1", "x-opt-a": "true"}
    assert (bytes(second.value), second.key, second.offset) == (b"plain", None, offset(1))
    times = [row[0] for row in frame.orderBy("offset").selectExpr("unix_millis(timestamp)").collect()]
    assert times == [stored.timestamp_ms for stored in broker.read(orders)], "the chunk's time"


def test_rstreams_messages(queries: Queries, broker: Broker) -> None:
    message_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    messages = [
        AMQPMessage(
            header=Header(durable=True),
            message_annotations={"x-opt-c": "ß"},
            properties=Properties(message_id=message_id, subject=b"sub", group_id=b"g", creation_time=-1),
            application_properties={"n": 7, "s": "ü"},
            body=b"bytes",
        ),
        AMQPMessage(value="grün"),
        AMQPMessage(value={"a": [1, None, True]}),
    ]
    orders = broker.create()
    broker.publish(orders, [*(bytes(message) for message in messages), body("two ") + body("sections")])
    first, second, third, fourth = queries.batch(orders).orderBy("offset").collect()
    assert [bytes(row.value) for row in (first, second)] == [b"bytes", "grün".encode()]
    assert bytes(third.value) == b'{"a":[1,null,true]}'
    assert (first.key, first.properties.group_id, first.properties.subject) == ("g", "g", "sub")
    assert first.properties.message_id == str(message_id)
    assert first.properties.creation_time == local(-0.001)
    assert first.application_properties == {"n": "7", "s": "ü"}
    assert first.message_annotations == {"x-opt-c": "ß"}
    assert second.properties is None
    assert bytes(fourth.value) == b"two sections"


def test_a_user_schema_and_the_whole_message(queries: Queries, broker: Broker) -> None:
    orders = broker.create()
    encoded = proton.Message(body=[1, "two"], id=proton.ulong(7), properties={"n": proton.int32(5)}).encode()
    broker.publish(orders, [encoded, b"no AMQP"])
    frame = queries.batch(orders, "message BINARY, offset STRING").orderBy("offset")
    assert frame.columns == ["message", "offset"]
    whole, raw = frame.collect()
    assert encoded.endswith(bytes(whole.message))
    assert encoded.removesuffix(bytes(whole.message)) == b"\x00\x53\x70\x45", "the header, which is for one hop"
    decoded = amqp_decoder(bytes(whole.message))
    assert decoded.application_properties == {b"n": 5}
    assert (bytes(raw.message), raw.offset) == (b"no AMQP", offset(1))


def test_bytes_that_are_no_amqp_are_the_value(queries: Queries, broker: Broker) -> None:
    orders = broker.create()
    messages = [b"plain text", b"\x00\x53\x79", b"\x00", bytes(range(256)), b"\xff" * 70_000]
    broker.publish(orders, [*messages, "amqp"])
    rows = queries.batch(orders).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [*messages, b"amqp"]
    assert [(row.key, row.properties, row.message_annotations) for row in rows] == [(None, None, None)] * 6


@on_both
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_sub_entry_batches(broker: Broker, compression: str) -> None:
    """In this process; Spark reads those that it writes in test_sink.py."""
    orders = broker.create()
    batches = [[body(f"{n}-{i}" + "x" * 50) for i in range(n)] for n in (1, 3, 200)]
    broker.publish(orders, ["before"])
    broker.publish_together(orders, batches, compression)
    broker.publish(orders, ["after"])
    expected = ["before", *(f"{n}-{i}" + "x" * 50 for n in (1, 3, 200) for i in range(n)), "after"]
    assert read_here(broker.url, stream=orders) == {orders: expected}
    middle = {"startingOffsets": f'{{"{orders}": 100}}', "endingOffsets": f'{{"{orders}": 150}}'}
    assert read_here(broker.url, stream=orders, **middle) == {orders: expected[100:150]}, "a range that cuts a batch"


# --- filters


@pytest.fixture
def painted(broker: Broker) -> str:
    """A stream of chunks of one colour each, and of chunks that mix colours with messages without one."""
    broker.needs(PUBLISH, version=2)
    paints = broker.create(stream_filter_size_bytes="32") if broker.kind == "embedded" else broker.create()
    for color in ("red", "green", None, "blue"):
        broker.publish_filtered(paints, [(color, coloured(f"{color}{n}", color)) for n in range(20)])
        time.sleep(0.005)
    mixed = ["red", None, "green", "blue"] * 5
    broker.publish_filtered(paints, [(color, coloured(f"mixed-{color}{n}", color)) for n, color in enumerate(mixed)])
    return paints


@on_both
@pytest.mark.parametrize(
    ("wanted", "unfiltered"), [("red", False), ("red, blue", False), ("green", True), ('["purple"]', False)]
)
def test_a_filter_returns_exactly_the_rows_that_match(
    broker: Broker, painted: str, wanted: str, unfiltered: bool
) -> None:
    given: dict[str, str] = {"filterValues": wanted, "filterValueFrom": "application_properties.color"}
    if unfiltered:
        given["matchUnfiltered"] = "true"
    colors: set[str | None] = {each.strip() for each in wanted.strip('[]"').split(",")}
    if unfiltered:
        colors.add(None)
    expected = [
        stored.body.decode()
        for stored in broker.read(painted)
        if (stored.body.decode().removeprefix("mixed-").rstrip("0123456789").replace("None", "") or None) in colors
    ]
    assert len(expected) == {"red": 25, "red, blue": 50, "green": 50, '["purple"]': 0}[wanted]
    assert read_here(broker.url, stream=painted, **given) == ({painted: expected} if expected else {})


@on_both
def test_publishers_may_set_no_filter_value_and_no_row_is_missing(broker: Broker) -> None:
    broker.needs(PUBLISH, version=2)
    paints = broker.create()
    colors = ["red", "green"] * 17
    broker.publish(paints, [coloured(f"plain-{color}{n}", color) for n, color in enumerate(colors)])
    given = {"stream": paints, "filterValueFrom": "application_properties.color"}
    plain = [f"plain-red{n}" for n in range(0, 34, 2)]
    asked = {"filter": "color = 'red'"}
    assert read_here(broker.url, **given, **asked) == read_here(broker.url, stream=paints, **asked) == {paints: plain}
    assert read_here(broker.url, **given, **asked, matchUnfiltered="false") == {}
    broker.publish_filtered(paints, [("blue", coloured("blue", "blue"))])
    broker.publish_filtered(paints, [("red", coloured("red", "red"))])
    assert read_here(broker.url, **given, **asked) == {paints: [*plain, "red"]}
    assert read_here(broker.url, **given, **asked, matchUnfiltered="false") == {paints: ["red"]}
    broker.publish_filtered(paints, [("blue", coloured("blue", "blue")), (None, coloured("beside", "red"))])
    assert read_here(broker.url, **given, **asked) == {paints: [*plain, "red", "beside"]}
    since = read_here(broker.url, **given, startingExpression="color = 'green'")
    assert since[paints][0] == "plain-green1"


@pytest.mark.nightly  # in every run: the stream at the end of the next test
def test_a_filtered_stream_ends_where_nothing_matches_any_more(queries: Queries, broker: Broker, painted: str) -> None:
    given = {"filterValues": "green", "filterValueFrom": "application_properties.color", "startingOffsets": "earliest"}
    query = queries.drain(painted, **given)
    assert len(query.bodies()[painted]) == 25
    broker.publish_filtered(painted, [("red", coloured("r", "red"))] * 30)
    assert len(queries.drain(painted, **given).bodies()[painted]) == 25
    broker.publish_filtered(painted, [("green", coloured("late", "green"))])
    assert queries.drain(painted, **given).bodies()[painted][25:] == ["late"]


@pytest.mark.parametrize(
    "place",
    [pytest.param("", marks=pytest.mark.nightly), "application_properties.color"],
    ids=["not-known", "known"],
)
def test_an_expression_returns_exactly_the_rows_that_match(
    queries: Queries, broker: Broker, painted: str, place: str
) -> None:
    """Whether or not the broker is asked for filter values; the first chunk of green is at offset 20."""
    stored = [each.body.decode() for each in broker.read(painted)]
    given = {"filterValueFrom": place} if place else {}
    condition = "(color = 'green' AND offset < 30) OR (color IN ('red', 'blue') AND body_size > 9)"
    expected = [
        body
        for offset, body in enumerate(stored)
        if ("green" in body and offset < 30)
        or (body.startswith(("mixed-red", "mixed-blue", "red", "blue")) and len(body) > 9)
    ]
    assert len(expected) == 20
    assert values(queries.batch(painted, filter=condition, **given)) == {painted: expected}
    assert values(queries.batch(painted, filter="color = 'purple'", **given)) == {}
    late = stored.index("mixed-green2")
    since = queries.batch(painted, startingExpression="color = 'green' AND offset >= 45", **given)
    assert values(since) == {painted: stored[late:]}
    query = queries.drain(painted, filter="color = 'green'", startingOffsets="earliest", **given)
    assert query.bodies()[painted] == [body for body in stored if "green" in body]


# --- super streams


def test_a_super_stream_has_the_rows_of_its_partitions(queries: Queries, broker: Broker) -> None:
    orders = broker.create_super(3)
    for n in range(2):
        broker.publish(f"{orders}-{n}", numbers(0, 5 + n, f"p{n}-"))
    frame = queries.batch(superStream=orders)
    assert values(frame) == {f"{orders}-{n}": numbers(0, 5 + n, f"p{n}-") for n in range(2)}
    assert {row.stream for row in frame.collect()} == {orders}
    assert frame.rdd.getNumPartitions() == 2
    assert values(queries.batch(f"{orders}-1")) == {f"{orders}-1": numbers(0, 6, "p1-")}


def test_streams_without_messages(queries: Queries, broker: Broker) -> None:
    assert queries.batch(broker.create()).collect() == []
    assert queries.batch(superStream=broker.create_super(2, "others")).collect() == []


def test_a_stream_of_many_batches(queries: Queries, broker: Broker, spark: Any) -> None:
    orders = broker.create()
    expected = numbers(0, 30_000)
    broker.publish(orders, expected)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7000")
    try:
        assert values(queries.batch(orders)) == {orders: expected}
        frame = queries.batch(orders, minPartitions="4")
        assert frame.rdd.getNumPartitions() == 4
        assert values(frame) == {orders: expected}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
