"""Spark writes streams and super streams; what they then hold is read without the project's codec."""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import proton
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rstream import AMQPMessage, Consumer, ConsumerOffsetSpecification, OffsetType, amqp_decoder

from tests.e2e.rabbitmq.broker import COMPRESSIONS, Broker, Stored, numbers, on_both, records
from tests.e2e.rabbitmq.queries import Queries, values
from tests.real_rabbitmq.by_hand import PUBLISH, chunk

pytestmark = pytest.mark.spark

DDL = """
    value BINARY, key STRING, stream STRING, partition STRING, offset STRING, timestamp TIMESTAMP,
    properties STRUCT<message_id: STRING, user_id: BINARY, to: STRING, subject: STRING, reply_to: STRING,
        correlation_id: STRING, content_type: STRING, content_encoding: STRING, absolute_expiry_time: TIMESTAMP,
        creation_time: TIMESTAMP, group_id: STRING, group_sequence: BIGINT, reply_to_group_id: STRING>,
    application_properties MAP<STRING, STRING>, message_annotations MAP<STRING, STRING>
"""
GUARD_S = 120
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
CUSTOMERS = {"customer-42": 2, "hello": 1321743225 % 3, "": 3329588566 % 3, "é": 2922484690 % 3, "1": 2446297838 % 3}
"""Partitions, of three, as RabbitMQ's Java client chooses them: murmur3 of the key, computed by another library."""


def milliseconds(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def decoded(stored: Stored) -> proton.Message:
    message = proton.Message()
    message.decode(stored.message)
    return message


def text(stored: Stored) -> str:
    """The body of a message; proton lends its memory for as long as the message lives."""
    message = decoded(stored)
    return bytes(message.body).decode()


def read_with_rstream(url: str, stream: str, count: int) -> list[Any]:
    """Read messages with rstream's consumer and its own AMQP decoder."""
    parts = urlsplit(url)
    found: list[AMQPMessage] = []

    async def consume() -> None:
        consumer = Consumer(host=parts.hostname, port=parts.port, username="guest", password="guest")
        await consumer.start()
        complete = asyncio.Event()

        def take(message: AMQPMessage, _: Any) -> None:
            found.append(message)
            if len(found) == count:
                complete.set()

        await consumer.subscribe(
            stream, take, decoder=amqp_decoder, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST)
        )
        try:
            await asyncio.wait_for(complete.wait(), GUARD_S)
        finally:
            await consumer.close()

    asyncio.run(consume())
    return found


def at_night(*given: Any) -> Any:
    """A case that tests/options, tests/spark or tests/client has too."""
    return pytest.param(*given, marks=pytest.mark.nightly)


# --- rows and messages


def test_every_column_arrives_as_the_section_it_stands_for(
    queries: Queries, broker: Broker, spark: SparkSession
) -> None:
    properties = (
        "m-1", b"user", "to", "subject", "reply", "corr", "text/plain", "utf-8",
        milliseconds(4_000_000_000_000), milliseconds(1_500), "group", 4_294_967_295, "reply-group",
    )  # fmt: skip
    row = (b"\x00\xffbody", "k", "elsewhere", "9", "99", None, properties, {"a": "1"}, {"x-opt-b": "ü"})
    orders = broker.create()
    queries.write(spark.createDataFrame([row], DDL), orders)
    (stored,) = broker.read(orders)
    message = decoded(stored)
    assert bytes(message.body) == b"\x00\xffbody"
    assert message.annotations == {"event-streams-group-key": "k", "x-opt-b": "ü"}
    assert message.properties == {"a": "1"}
    assert (message.id, message.user_id, message.address, message.subject) == ("m-1", b"user", "to", "subject")
    assert (message.reply_to, message.correlation_id) == ("reply", "corr")
    assert (message.content_type, message.content_encoding) == ("text/plain", "utf-8")
    assert (message.group_id, message.group_sequence, message.reply_to_group_id) == ("group", 2**32 - 1, "reply-group")
    assert (message.expiry_time, message.creation_time) == (4_000_000_000, 1.5)


def test_rows_read_back_equal_the_rows_written(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    properties = (
        "m", b"\x00\xff", "tö", "subject", "reply", "corr", "text/plain", "utf-8",
        milliseconds(253_402_300_799_999), milliseconds(-1), "group", 0, "reply-group",
    )  # fmt: skip
    written = [
        (b"\x00\xff\xfe", "ключ", None, None, None, None, properties, {"a": "1", "б": ""}, {"x-opt-c": "ß"}),
        (b"x" * 100_000, "large", None, None, None, None, None, {"k": "v" * 70_000}, None),
        (b"", None, None, None, None, None, None, {}, None),
    ]
    orders = broker.create()
    queries.write(spark.createDataFrame(written, DDL).coalesce(1), orders)
    read = queries.batch(orders).orderBy("offset").collect()
    assert [bytes(r.value) for r in read] == [w[0] for w in written]
    assert [r.key for r in read] == ["ключ", "large", None]
    assert [(r.stream, r.partition) for r in read] == [(orders, orders)] * 3
    assert read[0].application_properties == {"a": "1", "б": ""}
    assert read[0].message_annotations == {"x-opt-c": "ß", "event-streams-group-key": "ключ"}
    assert read[1].application_properties == {"k": "v" * 70_000}
    kept = list(read[0].properties.asDict().values())
    assert [k.astimezone(timezone.utc) if isinstance(k, datetime) else k for k in kept] == [*properties]


def test_a_stream_is_copied(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    orders, copies, again = broker.create(), broker.create("copies"), broker.create("again")
    frame = spark.range(0, 500, 1, 1).selectExpr("CAST(id AS STRING) AS value", "concat('k', id % 7) AS key")
    queries.write(frame, orders)
    queries.copy(queries.load(orders, startingOffsets="earliest"), copies)
    broker.publish(orders, numbers(0, 10))
    queries.copy(queries.load(orders, startingOffsets="earliest"), copies)
    originals = [stored.message for stored in broker.read(orders)]
    assert len(originals) == 510
    copied = broker.read(copies)
    assert [text(stored) for stored in copied] == [str(n) for n in range(500)] + numbers(0, 10)
    added = [decoded(stored).creation_time for stored in copied]
    assert all(time.time() - 600 < at <= time.time() for at in added), "column timestamp becomes the creation time"
    frame = queries.load(copies, startingOffsets="earliest").drop("timestamp", "properties")
    queries.copy(frame, again, name="again")
    assert [s.message for s in broker.read(again)][:500] == originals[:500]


# A real broker hands them out as they are; the log takes them apart.
@pytest.mark.parametrize(
    ("broker", "compression"),
    [
        *(pytest.param("rabbitmq", each, marks=pytest.mark.rabbitmq) for each in COMPRESSIONS),
        *(pytest.param("embedded", each, marks=[] if each == "gzip" else pytest.mark.nightly) for each in COMPRESSIONS),
    ],
    indirect=["broker"],
)
def test_sub_entry_batches(queries: Queries, broker: Broker, spark: SparkSession, compression: str) -> None:
    orders = broker.create()
    frame = spark.range(0, 1_000, 1, 2).selectExpr("concat(repeat('z', 100), id) AS value", "'k' AS key")
    queries.write(frame, orders, subEntrySize="64", compression=compression)
    if broker.keeps_sub_entries:
        chunks = broker.chunks(orders)
        kinds = {each.rest[0] >> 4 & 7 for each in chunks}
        assert kinds == {COMPRESSIONS.index(compression)}
        assert sum(each.entries for each in chunks) == 16, "eight batches of each task"
    expected = sorted("z" * 100 + str(n) for n in range(1_000))
    assert sorted(text(stored) for stored in broker.read(orders)) == expected
    if compression == "gzip":
        found = read_with_rstream(broker.url, orders, 1_000)
        assert sorted(message.body.decode() for message in found) == expected
    assert sorted(values(queries.batch(orders))[orders]) == expected


def test_rstream_reads_what_is_written(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    orders = broker.create()
    frame = spark.range(0, 2_000, 1, 1).selectExpr(
        "CAST(id AS STRING) AS value", "concat('k', id % 3) AS key", "map('n', CAST(id AS STRING)) AS "
        "application_properties",
    )  # fmt: skip
    queries.write(frame, orders)
    found = read_with_rstream(broker.url, orders, 2_000)
    assert [message.body for message in found] == [str(n).encode() for n in range(2_000)]
    assert [message.application_properties[b"n"] for message in found] == [str(n).encode() for n in range(2_000)]


def test_rows_go_to_the_streams_they_name(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    orders, refunds = broker.create(), broker.create("refunds")
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", f"if(id % 5 = 0, '{refunds}', '{orders}') AS stream"
    )
    queries.write(frame)
    assert sorted(int(body) for body in broker.bodies(refunds)) == list(range(0, 100, 5))
    assert len(broker.bodies(orders)) == 80
    queries.write(frame, refunds)
    assert len(broker.bodies(refunds)) == 120
    message = queries.not_written(spark.sql(f"SELECT 'a' AS value, if(rand() < 2, null, '{orders}') AS stream"))
    assert "row 0 of Spark partition 0 has null in column 'stream'" in message


# --- super streams


def test_keys_are_hashed_as_rabbitmqs_clients_do(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    orders = broker.create_super(3)
    more = [f"customer-{n}" for n in range(60)]
    rows = [(f"{key}/{n}", key) for n in range(4) for key in [*CUSTOMERS, *more]]
    queries.write(spark.createDataFrame(rows, "value STRING, key STRING").coalesce(1), superStream=orders)
    places = collections.defaultdict(set)
    in_order = collections.defaultdict(list)
    for n in range(3):
        for text in broker.bodies(f"{orders}-{n}"):
            key, _, number = text.rpartition("/")
            places[key].add(n)
            in_order[key].append(int(number))
    assert {key: places[key] for key in CUSTOMERS} == {key: {place} for key, place in CUSTOMERS.items()}
    assert all(numbers == ([0, 1, 2, 3] if key not in CUSTOMERS or key not in more else numbers)
               for key, numbers in in_order.items() if key != "customer-42")  # fmt: skip
    assert sum(map(len, in_order.values())) == len(rows)
    assert set().union(*places.values()) == {0, 1, 2}
    assert sum(map(len, values(queries.batch(superStream=orders)).values())) == len(rows)


def test_binding_keys_say_which_partition(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    orders = broker.create_super(2, keys=["amer", "emea"])
    rows = [(f"{key}{n}", key) for n in range(10) for key in ("emea", "amer")]
    frame = spark.createDataFrame(rows, "value STRING, key STRING").coalesce(1)
    queries.write(frame, superStream=orders, routing="key")
    assert broker.bodies(f"{orders}-0") == numbers(0, 10, "amer")
    assert broker.bodies(f"{orders}-1") == numbers(0, 10, "emea")


@pytest.mark.parametrize(
    ("key", "routing", "words"),
    [
        ("'nowhere'", "key", ["DeliveryFailed", "unroutable", "key 'nowhere'", "row 1 of Spark partition 0"]),
        at_night("null", "key", ["DeliveryFailed", "unroutable", "its key is null", "row 1 of Spark partition 0"]),
        ("null", "hash", ["DeliveryFailed", "unroutable", "its key is null", "row 1 of Spark partition 0"]),
    ],
)
def test_keys_that_lead_nowhere(
    queries: Queries, broker: Broker, spark: SparkSession, key: str, routing: str, words: list[str]
) -> None:
    orders = broker.create_super(2)
    frame = spark.range(0, 2, 1, 1).selectExpr("'a' AS value", f"if(id = 1, {key}, '0') AS key")
    message = queries.not_written(frame, superStream=orders, routing=routing)
    assert all(word in message for word in [*words, orders]), message


# --- filter values


@on_both
def test_filter_values_are_for_the_brokers_filter(queries: Queries, broker: Broker, spark: SparkSession) -> None:
    broker.needs(PUBLISH, version=2)
    orders = broker.create()
    for color in ("red", "blue"):
        frame = spark.range(0, 200, 1, 1).selectExpr(
            f"concat('{color}', id) AS value",
            f"'{color}' AS color",
            f"map('color', '{color}') AS application_properties",
        )
        queries.write(frame, orders, filterValueColumn="color")
    with broker.peer() as peer:
        assert peer.subscribe(1, orders, b"\x00\x01", 100, {"filter.0": "red"}) == 1
        let_through = [message for frame in peer.barrier(orders) for message in records(chunk(frame))]
    assert len(let_through) == 200, "the broker leaves the chunks of the other colour out"
    assert all(b"red" in message for message in let_through)
    given = {"filterValues": "blue", "filterValueFrom": "application_properties.color"}
    assert values(queries.batch(orders, **given)) == {orders: numbers(0, 200, "blue")}


# --- faults


def test_a_stream_deleted_in_mid_write(queries: Queries, broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    orders, deleted = broker.create(), tmp_path / "deleted"
    rows = spark.range(0, 6_000, 1, 1).selectExpr("repeat('x', 1000) AS value")
    frame = rows.mapInArrow(half_until(str(deleted)), "value STRING")
    seen: list[int] = []

    def delete() -> None:
        deadline = time.monotonic() + GUARD_S
        while not seen and time.monotonic() < deadline:
            seen.extend(len(records(each)) for each in broker.chunks(orders))
            time.sleep(0.05)
        broker.delete(orders)
        deleted.touch()

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    deleting = threading.Thread(target=delete)
    deleting.start()
    try:
        message = queries.not_written(frame, orders, requestTimeout="60000", maxInFlight="100")
    finally:
        deleting.join(2 * GUARD_S)
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert seen, "it was deleted in mid-write"
    assert "DeliveryFailed" in message
    assert f"stream '{orders}'" in message
    assert "of Spark partition 0" in message
    assert "stream-not-available" in message or "publisher-does-not-exist" in message, message


def half_until(file: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Hold the other half of 60 batches back until there is such a file."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            deadline = time.monotonic() + GUARD_S
            while number >= 30 and not Path(file).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield batch

    return rows


@pytest.mark.parametrize(
    ("given", "frame", "words"),
    [
        at_night({"superStream": "no-such"}, "SELECT 'a' AS value, 'k' AS key", ["NotFound", "no-such"]),
        at_night({"superStream": "no-such"}, "SELECT 'a' AS value", ["SchemaError", "no column 'key'"]),
        ({"stream": "x", "password": "wrong-guess"}, "SELECT 'a' AS value", ["AuthenticationFailed"]),
        at_night({"stream": "x", "compression": "gzip"}, "SELECT 'a' AS value", ["OptionError", "subEntrySize"]),
    ],
)
def test_faults_are_told_before_any_task_starts(
    queries: Queries, broker: Broker, spark: SparkSession, given: dict[str, str], frame: str, words: list[str]
) -> None:
    url = broker.url.replace("guest:guest@", "")
    message = queries.not_written(spark.sql(frame), **({"url": url, "username": "guest", "password": "guest"} | given))
    assert all(word in message for word in words), message
    assert "Failed to initialize Python data source writer" in message, "it failed on the driver"
    assert "wrong-guess" not in message
