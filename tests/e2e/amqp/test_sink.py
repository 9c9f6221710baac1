"""Spark writes to a log; what that then holds is read by hand and decoded by proton, not by our own code."""

from __future__ import annotations

import collections
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import proton
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.log import NO_TIMESTAMP
from spark_streams.testing import LogStream, StreamFactory, eventually
from tests.e2e.stored import stored

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DDL = """
    value BINARY, key STRING, stream STRING, partition STRING, offset STRING, timestamp TIMESTAMP,
    properties STRUCT<message_id: STRING, user_id: BINARY, to: STRING, subject: STRING, reply_to: STRING,
        correlation_id: STRING, content_type: STRING, content_encoding: STRING, absolute_expiry_time: TIMESTAMP,
        creation_time: TIMESTAMP, group_id: STRING, group_sequence: BIGINT, reply_to_group_id: STRING>,
    application_properties MAP<STRING, STRING>, message_annotations MAP<STRING, STRING>
"""


def options(orders: LogStream, stream: str | None = None, **more: str) -> dict[str, str]:
    """Options for a stream, or for the log's streams that rows name; the password is one of them."""
    given = {"url": orders.process.urls["amqp"], "username": "guest", "password": "guest", "requestTimeout": "120000"}
    return given | ({"stream": stream or orders.name} if stream != "" else {}) | more


def write(frame: DataFrame, given: dict[str, str]) -> None:
    frame.write.format("amqp-events").options(**given).mode("append").save()


@pytest.fixture
def orders(reference_log: StreamFactory) -> LogStream:
    """A stream of three partitions."""
    return reference_log.create("orders", 3)


@pytest.fixture
def history(reference_log: StreamFactory) -> LogStream:
    """A stream whose events keep their own time."""
    return reference_log.create("history", timestamp_type="create")


def milliseconds(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def test_every_column_arrives_as_the_amqp_section_it_stands_for(spark: SparkSession, orders: LogStream) -> None:
    properties = (
        "m-1", b"user", "to", "subject", "reply", "corr", "text/plain", "utf-8",
        milliseconds(4_000_000_000_000), milliseconds(-386_380_800_000), "group", 4_294_967_295, "reply-group",
    )  # fmt: skip
    row = (
        b"\x00\xffbody",
        "k",
        "elsewhere",
        "2",
        "00000000000000000099",
        None,
        properties,
        {"a": "1"},
        {"x-opt-b": "ü"},
    )
    write(spark.createDataFrame([row], DDL), options(orders))

    (event,) = stored(orders)
    message = event.message
    assert event.partition == "2"
    assert event.body == b"\x00\xffbody"
    assert message.annotations == {"event-streams-group-key": "k", "x-opt-b": "ü"}
    assert type(message.annotations["event-streams-group-key"]) is str, "the key is an AMQP string, not a symbol"
    assert message.properties == {"a": "1"}
    assert (message.id, message.user_id, message.address, message.subject) == ("m-1", b"user", "to", "subject")
    assert (message.reply_to, message.correlation_id) == ("reply", "corr")
    assert (message.content_type, message.content_encoding) == ("text/plain", "utf-8")
    assert (message.group_id, message.group_sequence, message.reply_to_group_id) == (
        "group",
        4_294_967_295,
        "reply-group",
    )
    # proton reads times through unsigned seconds; the source test below and N-05 read them as they are
    assert message.expiry_time == 4_000_000_000


def test_a_string_and_a_binary_value_have_the_same_bytes_at_the_reader(spark: SparkSession, orders: LogStream) -> None:
    write(spark.createDataFrame([("grün",)], "value STRING"), options(orders))
    write(spark.createDataFrame([("grün".encode(),)], "value BINARY"), options(orders))
    rows = spark.read.format("amqp-events").options(**options(orders)).schema("value BINARY").load().collect()
    assert [bytes(row.value) for row in rows] == ["grün".encode()] * 2


def test_rows_read_back_equal_the_rows_written(spark: SparkSession, orders: LogStream) -> None:
    properties = (
        None, b"\x00\xff", "tö", "subject", "reply", "corr", "text/plain", "utf-8",
        milliseconds(253_402_300_799_999), milliseconds(-1), "group", 0, "reply-group",
    )  # fmt: skip
    written = [
        (b"\x00\xff\xfe", "ключ", None, "0", None, None, properties, {"a": "1", "б": ""}, {"x-opt-c": "ß"}),
        (json.dumps({"n": [1, 2.5, None, "ü"]}).encode(), None, None, "1", None, None, None, {}, None),
        (b"", "", None, "2", None, None, None, None, None),
        (b"x" * 100_000, "large", None, "2", None, None, None, {"k": "v" * 70_000}, None),
    ]
    write(spark.createDataFrame(written, DDL), options(orders))
    read = spark.read.format("amqp-events").options(**options(orders)).load().orderBy("partition", "offset").collect()

    assert [bytes(r.value) for r in read] == [w[0] for w in written]
    assert [r.key for r in read] == ["ключ", None, "", "large"]
    assert [r.stream for r in read] == [orders.name] * 4
    assert [r.partition for r in read] == ["0", "1", "2", "2"]
    assert read[0].application_properties == {"a": "1", "б": ""}
    assert read[0].message_annotations == {"x-opt-c": "ß", "event-streams-group-key": "ключ"}
    assert read[3].application_properties == {"k": "v" * 70_000}
    assert len({r.properties.message_id for r in read}) == 4
    kept = read[0].properties.asDict()
    assert kept.pop("message_id").endswith("/0")
    given = dict(zip(list(kept), [v for v in properties if v is not None], strict=True))
    for name in ("absolute_expiry_time", "creation_time"):
        # collect() gives naive datetimes in the local zone
        kept[name] = kept[name].astimezone(timezone.utc)
    kept["user_id"] = bytes(kept["user_id"])
    assert kept == given


TIMES = [  # microseconds of rows, and the milliseconds that they are for AMQP
    (-386_380_800_000_000, -386_380_800_000),  # 1957-10-04T00:00Z
    (-1_000, -1),
    (-1, -1),
    (-999, -1),
    (-1_001, -2),
    (0, 0),
    (999, 0),
    (1_700_000_000_123_456, 1_700_000_000_123),
    (-62_135_596_800_000_000, -62_135_596_800_000),  # 0001-01-01T00:00Z
]


def test_n05_n07_timestamps_reach_a_create_time_stream(spark: SparkSession, history: LogStream) -> None:
    frame = spark.createDataFrame(TIMES, "micros LONG, ms LONG").coalesce(1)
    write(frame.selectExpr("'x' AS value", "timestamp_micros(micros) AS timestamp"), options(history))
    assert [e.timestamp_ms for e in stored(history)] == [ms for _, ms in TIMES]
    source = spark.read.format("amqp-events").options(**options(history)).load().orderBy("offset")
    rows = source.selectExpr(
        "unix_micros(timestamp) AS added", "unix_micros(properties.creation_time) AS created"
    ).collect()
    assert [(row.added, row.created) for row in rows] == [(ms * 1_000, ms * 1_000) for _, ms in TIMES]


def test_n05_no_timestamp_is_none_and_reads_back_as_null(spark: SparkSession, history: LogStream) -> None:
    frame = spark.createDataFrame([("x", None)], "value STRING, timestamp TIMESTAMP")
    write(frame, options(history))
    assert [e.timestamp_ms for e in stored(history)] == [NO_TIMESTAMP]
    (row,) = spark.read.format("amqp-events").options(**options(history)).load().collect()
    assert row.timestamp is None
    assert row.properties.creation_time is None


def test_a_creation_time_of_the_row_wins_over_its_timestamp(spark: SparkSession, history: LogStream) -> None:
    frame = spark.sql(
        "SELECT 'x' AS value, timestamp_millis(5) AS timestamp, "
        "named_struct('creation_time', timestamp_millis(-7)) AS properties"
    )
    write(frame, options(history))
    assert [e.timestamp_ms for e in stored(history)] == [-7]


def test_rows_go_to_the_partition_they_name(spark: SparkSession, orders: LogStream) -> None:
    frame = spark.range(300).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 3 AS STRING) AS partition")
    write(frame, options(orders))
    events = stored(orders)
    assert len(events) == 300
    assert all(int(event.body) % 3 == int(event.partition) for event in events)
    assert not any(event.message.instructions for event in events), "target-partition is for the log only"


def test_a_key_sticks_to_a_partition_and_keeps_its_order(spark: SparkSession, orders: LogStream) -> None:
    frame = spark.range(0, 900, 1, 1).selectExpr("CAST(id AS STRING) AS value", "concat('k', id % 40) AS key")
    write(frame, options(orders))
    places, orders_of = collections.defaultdict(set), collections.defaultdict(list)
    for event in stored(orders):
        key = event.message.annotations["event-streams-group-key"]
        places[key].add(event.partition)
        orders_of[key].append(int(event.body))
    assert len(places) == 40
    assert all(len(place) == 1 for place in places.values())
    assert len(set().union(*places.values())) == 3, "40 keys use all three partitions"
    assert all(numbers == sorted(numbers) for numbers in orders_of.values())


def test_rows_go_to_the_stream_they_name_unless_the_option_says_so(
    spark: SparkSession, reference_log: StreamFactory, orders: LogStream
) -> None:
    refunds = reference_log.create("refunds")
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", f"if(id % 5 = 0, '{refunds.name}', '{orders.name}') AS stream"
    )
    write(frame, options(orders, ""))
    assert sorted(int(e.body) for e in stored(refunds)) == list(range(0, 100, 5))
    assert len(stored(orders)) == 80
    write(frame, options(orders, refunds.name))
    assert len(stored(refunds)) == 120


def test_a_whole_message_is_stored_byte_for_byte(spark: SparkSession, orders: LogStream) -> None:
    message = proton.Message(body=[1, "two", {"three": 3.0}], id=proton.ulong(7), properties={"n": proton.int32(-5)})
    encoded = message.encode()
    # proton writes an empty header section; a stored message begins after it
    bare = encoded[encoded.index(b"\x00Ss") :]
    write(spark.createDataFrame([(bytearray(bare), "1")], "message BINARY, partition STRING"), options(orders))
    (event,) = stored(orders)
    assert (event.partition, event.raw) == ("1", bare)


def test_an_unknown_partition_is_an_error_that_names_the_row(spark: SparkSession, orders: LogStream) -> None:
    frame = spark.createDataFrame(
        [("a", "k1", "0"), ("b", "customer-4", "9")], "value STRING, key STRING, partition STRING"
    )
    with pytest.raises(PySparkException) as caught:
        write(frame.coalesce(1), options(orders))
    text = str(caught.value)
    assert "DeliveryFailed" in text
    assert "row 1 of Spark partition 0 (key 'customer-4', message-id '" in text
    assert f"was rejected by stream '{orders.name}': amqp:" in text
    assert "'9'" in text.partition("was rejected")[2]


@pytest.mark.parametrize(
    ("given", "frame", "words"),
    [
        ({"password": "wrong-guess"}, "SELECT 'a' AS value", ["AuthenticationFailed"]),
        pytest.param(
            {"requestTimout": "1"},
            "SELECT 'a' AS value",
            ["OptionError", "requesttimout", "requestTimeout"],
            marks=pytest.mark.nightly,
        ),
        pytest.param({}, "SELECT 'a' AS key", ["SchemaError", "there is no column 'value'"], marks=pytest.mark.nightly),
    ],
)
def test_faults_are_told_before_any_task_starts(
    spark: SparkSession, orders: LogStream, given: dict[str, str], frame: str, words: list[str]
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(frame), options(orders) | given)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "Failed to initialize Python data source writer" in text, "it failed on the driver"
    assert "wrong-guess" not in text
    assert stored(orders) == []


def test_a_row_without_a_stream_is_named(spark: SparkSession, orders: LogStream) -> None:
    frame = spark.createDataFrame(
        [("a", orders.name, "k"), ("b", None, "l")], "value STRING, stream STRING, key STRING"
    )
    with pytest.raises(PySparkException, match=r"row 1 of Spark partition 0 \(key 'l'.* has null in column 'stream'"):
        write(frame.coalesce(1), options(orders, ""))


# --- streams


def numbers(spark: SparkSession, folder: Path, counts: list[int], width: int = 1) -> DataFrame:
    """A stream of the numbers from 0, one text file a micro-batch, ``counts`` of them in each."""
    source = folder / "numbers"
    if not source.exists():
        source.mkdir()
        start = 0
        for i, count in enumerate(counts):
            path = source / f"{i:03}.txt"
            path.write_text("".join(f"{n:0{width}}\n" for n in range(start, start + count)))
            os.utime(path, (1_000_000_000 + i, 1_000_000_000 + i))
            start += count
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))


def drain(frame: DataFrame, stream: LogStream, folder: Path, output_mode: str = "append") -> Any:
    query = (
        frame.writeStream.format("amqp-events")
        .options(**options(stream), checkpointLocation=str(folder / "checkpoint"))
        .outputMode(output_mode)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(240)
        assert not query.isActive
    finally:
        query.stop()
    return query


def test_a_stream_is_written_batch_by_batch_with_ids_that_say_where_from(
    spark: SparkSession, orders: LogStream, tmp_path: Path
) -> None:
    query = drain(numbers(spark, tmp_path, [10, 20, 5]), orders, tmp_path)
    events = stored(orders)
    assert sorted(int(e.body) for e in events) == list(range(35))
    ids = {int(e.body): e.message.id for e in events}
    assert ids[0] == f"{query.id}/0/0/0"
    assert ids[10] == f"{query.id}/1/0/0"
    assert ids[29] == f"{query.id}/1/0/19"
    assert ids[34] == f"{query.id}/2/0/4"
    # a restart has nothing to do, and keeps the query's id for what comes later
    late = tmp_path / "numbers" / "zzz.txt"
    late.write_text("35\n")
    drain(numbers(spark, tmp_path, []), orders, tmp_path)
    assert {e.message.id for e in stored(orders)} - set(ids.values()) == {f"{query.id}/3/0/0"}


def test_a_stream_of_the_log_is_written_to_the_log(
    spark: SparkSession, reference_log: StreamFactory, orders: LogStream, tmp_path: Path
) -> None:
    copies = reference_log.create("copies", 3)
    write(spark.range(500).selectExpr("CAST(id AS STRING) AS value", "concat('k', id % 7) AS key"), options(orders))
    copied = spark.readStream.format("amqp-events").options(**options(orders), startingOffsets="earliest").load()
    drain(copied, copies, tmp_path)
    assert [(e.partition, e.offset, e.body, e.message.id) for e in stored(copies)] == [
        (e.partition, e.offset, e.body, e.message.id) for e in stored(orders)
    ], "rows of the source keep their partition, order and message-id"


@pytest.mark.usefixtures("small_batches")
def test_a_micro_batch_that_fails_is_repeated_under_the_same_ids(
    spark: SparkSession, orders: LogStream, tmp_path: Path
) -> None:
    arrived, marker = tmp_path / "arrived", tmp_path / "failed-once"

    @F.udf("string")
    def fragile(value):  # no hints: Spark would read them as a wish for pandas
        if int(value) == 1_500 and not marker.exists():
            while not arrived.exists():
                time.sleep(0.05)
            marker.write_text("")
            raise RuntimeError("the first attempt fails in the middle")
        return value

    def look() -> None:
        eventually(lambda: orders.ends() != {}, "a part of the rows has arrived", 240)
        arrived.write_text("")

    # a kilobyte a row: more than the buffers between Spark and the sink hold back
    frame = numbers(spark, tmp_path, [2_000], width=1_000).select(fragile("value").alias("value"))
    looking = threading.Thread(target=look)
    looking.start()
    with pytest.raises(PySparkException, match="the first attempt fails in the middle"):
        drain(frame, orders, tmp_path)
    looking.join()
    partial = len(stored(orders))
    assert 0 < partial < 2_000, "the test means something only if the first attempt delivered a part"
    drain(frame, orders, tmp_path)

    events = stored(orders)
    assert len(events) == 2_000 + partial
    by_id = collections.defaultdict(set)
    for event in events:
        by_id[event.message.id].add(event.body)
    assert len(by_id) == 2_000
    assert all(len(bodies) == 1 for bodies in by_id.values()), "one id never names two rows"
    # as docs/amqp-events-sink.md tells readers to do
    distinct = (
        spark.readStream.format("amqp-events")
        .options(**options(orders), startingOffsets="earliest")
        .load()
        .withColumn("id", F.col("properties.message_id"))
        .withWatermark("timestamp", "1 hour")
        .dropDuplicatesWithinWatermark(["id"])
        .selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
    )
    query = distinct.writeStream.format("memory").queryName("distinct").trigger(availableNow=True).start()
    query.awaitTermination(240)
    assert sorted(row.n for row in spark.table("distinct").collect()) == list(range(2_000))


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Small Arrow batches: a task sends many times, and what it has sent when it fails is not nothing."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("small_batches")
def test_ids_count_on_over_arrow_batches(spark: SparkSession, orders: LogStream) -> None:
    write(spark.range(0, 1_050, 1, 1).selectExpr("CAST(id AS STRING) AS value"), options(orders))
    ids = {int(e.body): e.message.id for e in stored(orders)}
    assert [ids[n].rsplit("/", 1)[1] for n in range(1_050)] == [str(n) for n in range(1_050)]
    assert len({i.rsplit("/", 1)[0] for i in ids.values()}) == 1
