"""Spark reads a log: rows, positions, streams, restarts, losses. The message with every section is encoded by proton.

Three tests have a log in this process: no producer can give an event a time that differs from its message's own, no
door adds partitions without a split, and a quarter of a million events are appended at once.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import proton
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from spark_streams.sources.amqp_events import AmqpEventsDataSource

from spark_streams.errors import OwnershipLost, SparkStreamsError
from spark_streams.log import NO_TIMESTAMP, StreamConfig
from spark_streams.testing import KeptQuery, LogStream, StreamFactory, eventually
from tests.e2e.amqp.conftest import failure

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SPUTNIK_MS = -386310686000
CREATE_TIME = StreamConfig(timestamp_type="create")


def stored_form(message: proton.Message) -> bytes:
    """What a log keeps of a message: everything but the header, which proton's encoder puts first."""
    encoded = message.encode()
    assert encoded[:3] == b"\x00\x53\x70"
    assert encoded[3] == 0xC0 or encoded[3] == 0x45 or encoded[3] == 0xD0
    size = {0x45: 0, 0xC0: 1 + encoded[4], 0xD0: 4 + int.from_bytes(encoded[4:8], "big")}[encoded[3]]
    return encoded[4 + size :]


def body(text: str) -> bytes:
    """One data section (AMQP 1.0 part 3 §3.2.6), written by hand: described by 0x75, vbin8."""
    raw = text.encode()
    return b"\x00\x53\x75\xa0" + bytes([len(raw)]) + raw


def append(orders: LogStream, partition: str, texts: list[str], timestamps: Iterable[int] | None = None) -> None:
    """Append events, each with a time or none with any."""
    rows: list[dict[str, Any]] = [{"value": text, "partition": partition} for text in texts]
    for row, ms in zip(rows, timestamps or (), strict=timestamps is not None):
        row["timestamp"] = EPOCH + timedelta(milliseconds=ms)
    orders.produce(rows)


def numbers(low: int, high: int, prefix: str = "e") -> list[str]:
    return [f"{prefix}{n}" for n in range(low, high)]


def options(orders: LogStream, **more: str) -> dict[str, str]:
    return orders.options("amqp-events", **{"requestTimeout": "120000", **more})


def in_process(server: Any, **more: str) -> dict[str, str]:
    """Options for stream ``orders`` of a log in this process."""
    given = {"url": server.urls["amqp"].replace("//", "//guest:guest@"), "stream": "orders", "requestTimeout": "120000"}
    return given | more


def batch(spark: SparkSession, orders: LogStream, schema: str | None = None, **more: str) -> DataFrame:
    reader = spark.read.format("amqp-events").options(**options(orders, **more))
    return (reader.schema(schema) if schema else reader).load()


def load(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    """A streaming read."""
    return spark.readStream.format("amqp-events").options(**given).load().select("partition", "offset", "value")


def without_spark(given: dict[str, str]) -> list[dict[str, Any]]:
    """What a batch query reads, planned and read as Spark does it: the reader, and with it each of its tasks."""
    source = AmqpEventsDataSource(given)
    reader = source.reader(source.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [row for batch in batches for row in batch.to_pylist()]


def values(found: DataFrame | list[Row]) -> dict[str, list[str]]:
    """Partition to values, in the order of offsets."""
    rows = found if isinstance(found, list) else found.select("partition", "offset", "value").collect()
    out: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda each: (each.partition, each.offset)):
        out.setdefault(row.partition, []).append(bytes(row.value).decode())
    return out


def offset(number: int) -> str:
    return f"{number:020d}"


@pytest.fixture
def orders(reference_log: StreamFactory) -> LogStream:
    """A stream of two partitions, e0…e9 in each; e0 has timestamp -5, and so on."""
    stream = reference_log.create("orders", 2, timestamp_type="create")
    for partition in ("0", "1"):
        append(stream, partition, numbers(0, 10), range(-5, 5))
    return stream


# --- batch


def test_every_column_of_a_message(spark: SparkSession, log_server: Any) -> None:
    log_server.log.create_stream("orders", 1, CREATE_TIME)
    message = proton.Message(
        body=b"hello",
        inferred=True,
        id="m-1",
        user_id=b"me",
        address="there",
        subject="greeting",
        reply_to="here",
        correlation_id="c-1",
        content_type="text/plain",
        content_encoding="gzip",
        expiry_time=86400.5,
        creation_time=1.5,
        group_id="g",
        group_sequence=7,
        reply_to_group_id="r",
        properties={"colour": "red", "n": proton.int32(5)},
        annotations={proton.symbol("event-streams-group-key"): "k-1", proton.symbol("x-opt-a"): True},
    )
    encoded = stored_form(message)
    held = log_server.log.stream("orders").partitions["0"]
    held.append([encoded], timestamps=[SPUTNIK_MS])
    held.append([body("plain")], timestamps=[NO_TIMESTAMP])
    reader = spark.read.format("amqp-events").options(**in_process(log_server))
    frame = reader.load()
    first, second = frame.orderBy("offset").collect()
    assert bytes(first.value) == b"hello"
    assert (first.key, first.stream, first.partition, first.offset) == ("k-1", "orders", "0", offset(0))
    assert frame.selectExpr("unix_millis(timestamp)").orderBy("offset").first()[0] == SPUTNIK_MS
    assert first.properties.asDict() == {
        "message_id": "m-1",
        "user_id": bytearray(b"me"),
        "to": "there",
        "subject": "greeting",
        "reply_to": "here",
        "correlation_id": "c-1",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "absolute_expiry_time": (EPOCH + timedelta(seconds=86400.5)).astimezone().replace(tzinfo=None),
        "creation_time": (EPOCH + timedelta(seconds=1.5)).astimezone().replace(tzinfo=None),
        "group_id": "g",
        "group_sequence": 7,
        "reply_to_group_id": "r",
    }
    assert first.application_properties == {"colour": "red", "n": "5"}
    assert first.message_annotations == {"event-streams-group-key": "k-1", "x-opt-a": "true"}
    assert (bytes(second.value), second.key, second.offset) == (b"plain", None, offset(1))
    whole = reader.schema("message BINARY, offset STRING").load().orderBy("offset").first()
    decoded = proton.Message()
    decoded.decode(bytes(whole.message))
    assert (decoded.id, decoded.subject, decoded.properties["n"]) == ("m-1", "greeting", 5)


def test_a_batch_reads_every_partition(spark: SparkSession, orders: LogStream) -> None:
    frame = batch(spark, orders)
    assert values(frame) == {"0": numbers(0, 10), "1": numbers(0, 10)}
    assert frame.rdd.getNumPartitions() == 2
    assert frame.count() == 20


@pytest.mark.parametrize(
    ("more", "low", "high"),
    [
        ({"startingOffsets": {"0": offset(3), "1": {"after": offset(3)}}}, 4, 10),
        ({"startingOffsets": {"0": {"at": offset(3)}, "1": {"timestamp": -2}}}, 3, 10),
        ({"startingTimestamp": "-2"}, 3, 10),
        ({"startingExpression": "d.event-streams-timestamp > -3 AND d.event-streams-timestamp <> 0"}, 3, 10),
        ({"startingOffsets": {"0": {"expression": "d.event-streams-timestamp = 0"}, "1": {"timestamp": 0}}}, 5, 10),
        ({"startingTimestamp": "1970-01-01T00:00:00Z"}, 5, 10),
        ({"startingOffsetsByTimestamp": {"0": -1, "1": -1}}, 4, 10),
        ({"endingOffsets": {"0": offset(3), "1": {"at": offset(4)}}}, 0, 4),
        ({"endingTimestamp": "-1"}, 0, 4),
        ({"startingTimestamp": "-4", "endingOffsetsByTimestamp": {"0": 0, "1": 0}}, 1, 5),
        ({"startingTimestamp": "-4", "endingTimestamp": "0", "minPartitions": "4"}, 1, 5),
    ],
)
def test_batch_positions(orders: LogStream, more: dict[str, Any], low: int, high: int) -> None:
    """As Spark plans and reads them, without a session: what is given and what comes passes through it all the same."""
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in more.items()}
    found: dict[str, list[str]] = {}
    for row in sorted(without_spark(options(orders, **given)), key=lambda each: (each["partition"], each["offset"])):
        found.setdefault(row["partition"], []).append(row["value"].decode())
    assert found == {"0": numbers(low, high), "1": numbers(low, high)}


def test_min_partitions_positions_and_sparks_arrow_limit(spark: SparkSession, orders: LogStream) -> None:
    append(orders, "0", numbers(10, 3010), range(5, 3005))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    try:
        frame = batch(
            spark,
            orders,
            minPartitions="5",
            startingTimestamp="-4",
            endingOffsets=json.dumps({"0": offset(2_999), "1": "latest"}),
        )
        assert frame.rdd.getNumPartitions() == 5
        assert values(frame) == {"0": numbers(1, 3000), "1": numbers(1, 10)}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_users_schema(spark: SparkSession, orders: LogStream) -> None:
    frame = batch(spark, orders, "offset STRING NOT NULL, partition STRING, value BINARY")
    assert frame.columns == ["offset", "partition", "value"]
    assert values(frame)["1"] == numbers(0, 10)


# --- streams


def test_a_group_reads_batch_after_batch(
    spark: SparkSession, orders: LogStream, query: KeptQuery, rate_limits: bool
) -> None:
    group = {"consumerGroup": "billing", "epoch": "2"}
    limit, sizes = ({"maxOffsetsPerTrigger": "10"}, [10, 10]) if rate_limits else ({}, [20])
    assert query.drain(load(spark, options(orders, startingOffsets="earliest", **limit, **group))) == sizes
    assert values(query.rows) == {"0": numbers(0, 10), "1": numbers(0, 10)}
    assert values(batch(spark, orders, **group)) == values(query.rows)


def test_new_partitions_are_read_from_their_beginning(spark: SparkSession, log_server: Any, query: KeptQuery) -> None:
    log_server.log.create_stream("orders", 2)
    log_server.log.stream("orders").partitions["0"].append([body("before")])
    query.start(load(spark, in_process(log_server)))
    query.wait_for_batch(0)
    log_server.log.add_partitions("orders", 1)
    log_server.log.stream("orders").partitions["2"].append([body(text) for text in numbers(0, 3)])
    query.wait_for_rows(3)
    assert values(query.rows) == {"2": numbers(0, 3)}


# --- losses


def overflow(stream: LogStream, low: int, high: int) -> int:
    """Append until retention has removed what was there; return the first offset that is left."""
    for n in range(low, high, 5):
        append(stream, "0", [f"e{m}" + "x" * 400 for m in range(n, n + 5)])

    eventually(lambda: int(stream.begins()["0"]) > low, "retention")
    return int(stream.begins()["0"])


def test_retention_past_the_position(spark: SparkSession, reference_log: StreamFactory, query: KeptQuery) -> None:
    """Of a stream whose retention keeps about one segment of a few events."""
    small = reference_log.create("small", segment_max_bytes=2_000, retention_max_bytes=2_000)
    append(small, "0", numbers(0, 5))
    frame = load(spark, options(small, startingOffsets="earliest"))
    query.drain(frame)
    left = overflow(small, 5, 60)
    query.start(frame, availableNow=True)
    message = failure(query)
    assert f"stream '{small.name}' partition '0': reading was to go on after '{offset(4)}'" in message
    assert "'failOnDataLoss' to 'false'" in message
    query.drain(load(spark, options(small, startingOffsets="earliest", failOnDataLoss="false")))
    read = [v.rstrip("x") for v in values(query.rows)["0"]]
    first = 60 - (len(read) - 5)
    assert first >= left, "retention may go on"
    assert read == numbers(0, 5) + numbers(first, 60)
    assert first <= int(small.begins()["0"])


@pytest.mark.nightly
def test_a_log_deleted_and_created_again(spark: SparkSession, orders: LogStream, query: KeptQuery) -> None:
    frame = load(spark, options(orders, startingOffsets="earliest"))
    query.drain(frame)
    orders.delete()
    orders.create()
    append(orders, "0", numbers(0, 30, "new"))
    query.start(frame, availableNow=True)
    assert "it was deleted and created again" in failure(query)
    query.drain(load(spark, options(orders, startingOffsets="earliest", failOnDataLoss="false")))
    assert [v for v in values(query.rows)["0"] if v.startswith("new")] == numbers(0, 30, "new")


@pytest.mark.nightly
def test_a_partition_that_vanished(spark: SparkSession, orders: LogStream, query: KeptQuery) -> None:
    frame = load(spark, options(orders, startingOffsets="earliest"))
    query.drain(frame)
    path = max((query.checkpoint / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    text = path.read_text()
    checksum = path.with_name(f".{path.name}.crc")
    checksum.unlink(missing_ok=True)
    path.write_text(text.replace('"1": {', '"7": {'))  # as if the log had had a partition 7
    query.start(frame, availableNow=True)
    message = failure(query)
    assert "partition '7'" in message
    assert "no longer there" in message


def test_a_stolen_partition_names_the_new_owners_epoch(log_server: Any) -> None:
    import pyarrow as pa
    from spark_streams.sources.amqp_events import connect

    from spark_streams.client import AmqpClient, RangeRead
    from spark_streams.endpoint import Secret, parse_url
    from spark_streams.options.amqp_events import parse_source
    from spark_streams.position import EARLIEST
    from spark_streams.spark.source.ranges import PlannedRead, range_read
    from spark_streams.spark.source.task import read_range

    log_server.log.create_stream("orders", 1)
    held = log_server.log.stream("orders").partitions["0"]
    for _ in range(4):
        held.append([body("x" * 200)] * 65_536)
    given = parse_source(in_process(log_server, consumerGroup="g", epoch="3"), streaming=True)
    planned = PlannedRead(range_read(given, ("offset",), "0", EARLIEST, offset(4 * 65_536 - 1)))
    reading = read_range(given, planned, pa.schema([("offset", pa.string())]), connect)
    assert next(reading).num_rows > 0
    endpoint = parse_url(log_server.urls["amqp"]).with_credentials("guest", Secret("guest"))
    thief = RangeRead("orders", "0", EARLIEST, offset(9), ("offset",))
    with AmqpClient(endpoint, consumer_group="g", epoch=8) as client:
        assert sum(b.num_rows for b in client.fetch(thief)) == 10
        with pytest.raises(OwnershipLost) as caught:
            list(reading)
    assert caught.value.epoch == 8
    assert "8" in str(caught.value)


# --- what people get wrong


def refused(given: dict[str, str]) -> str:
    with pytest.raises(SparkStreamsError) as caught:
        without_spark(given)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_wrong_host(orders: LogStream) -> None:
    message = refused(options(orders, url="amqp://no-such-host.invalid:5672"))
    assert "no-such-host.invalid" in message
    assert "ConnectFailed" in message


@pytest.mark.nightly
def test_wrong_port(orders: LogStream) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, nor can anybody
        port = held.getsockname()[1]
        message = refused(options(orders, url=f"amqp://127.0.0.1:{port}", requestTimeout="3000"))
    assert f"127.0.0.1:{port}" in message
    assert "refused" in message.lower()


def test_wrong_password(orders: LogStream) -> None:
    given = options(orders, url=orders.process.urls["amqp"], username="guest", password="hunter2")
    message = refused(given)
    assert "AuthenticationFailed" in message
    assert "guest" in message and "hunter2" not in message


def test_unknown_stream(orders: LogStream) -> None:
    message = refused(options(orders, stream="carts"))
    assert "NotFound" in message
    assert "carts" in message


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"startingOffsets": '{"0": "a" "1"}'}, "option 'startingOffsets': bad JSON at line 1 column 11"),
        ({"startingOffsets": '{"0": 5, "1": 5}'}, "offsets of AMQP event streams are opaque strings"),
        (
            {"startingOffsets": '{"0": "earliest"}'},
            "says nothing of partition '1': the stream has '0', '1', and each of them needs a position",
        ),
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"startingTimestamp": "99"}, "'startingOffsetsByTimestampStrategy' to 'latest'"),
        ({"filter": "a = "}, "option 'filter': filter, column 4"),
    ],
)
def test_bad_options(orders: LogStream, more: dict[str, str], message: str) -> None:
    assert message in refused(options(orders, **more))


def test_what_users_get_wrong_is_told_by_spark(spark: SparkSession, orders: LogStream) -> None:
    """Of a batch, of a stream when it is loaded, and of a schema."""
    reader = spark.read.format("amqp-events").options(**options(orders, stream="carts"))
    with pytest.raises(PySparkException, match=r"NotFound.*carts"):
        reader.load().collect()
    stream = spark.readStream.format("amqp-events").options(**options(orders, startingOffsets="{"))
    with pytest.raises(PySparkException, match="bad JSON"):
        stream.load()
    with pytest.raises(PySparkException, match=r"no column 'valu', did you mean 'value'\?"):
        batch(spark, orders, "valu BINARY").collect()
