"""Readers without a Spark session: schemas, batch plans, and what a task yields."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from spark_streams.client.log_client import RangeRead
from spark_streams.errors import OptionError, PositionLost, SchemaError
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.position import EARLIEST
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.schemas import arrow_schema, as_schema, chosen_columns, source_schema, spark_schema
from spark_streams.spark.source import reader
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.ranges import PlannedRead
from spark_streams.spark.source.task import read_range
from tests.spark.fake_client import FakeLog, digits, name

COLUMNS = pa.schema([("value", pa.binary()), ("offset", pa.string())])


def options(streaming: bool = False, **more: str):
    return parse_source({"url": "amqp://h", "stream": "orders", **more}, streaming=streaming)


def rows(log: FakeLog, columns: tuple[str, ...] = ("offset",), **more: str) -> dict[str, list[str]]:
    """What a batch query reads, by partition."""
    parsed = options(**more)
    out: dict[str, list[str]] = {}
    schema = pa.schema([FULL_MESSAGE_SCHEMA.field(c) for c in columns])
    for planned in plan_batch(parsed, columns, log.connect):
        planned = pickle.loads(pickle.dumps(planned))
        read = out.setdefault(planned.read.partition, [])
        for batch in read_range(parsed, planned, schema, log.connect):
            assert batch.schema == schema
            read += [v if isinstance(v, str) else v.decode() for v in batch.column(0).to_pylist()]
    return out


def test_the_default_schema_is_the_designs() -> None:
    assert spark_schema(MESSAGE_SCHEMA).simpleString() == (
        "struct<value:binary,key:string,stream:string,partition:string,offset:string,timestamp:timestamp,"
        "properties:struct<message_id:string,user_id:binary,to:string,subject:string,reply_to:string,"
        "correlation_id:string,content_type:string,content_encoding:string,absolute_expiry_time:timestamp,"
        "creation_time:timestamp,group_id:string,group_sequence:bigint,reply_to_group_id:string>,"
        "application_properties:map<string,string>,message_annotations:map<string,string>>"
    )


def test_what_spark_wants_is_what_the_rows_are() -> None:
    assert arrow_schema(spark_schema(FULL_MESSAGE_SCHEMA)).equals(FULL_MESSAGE_SCHEMA)


def test_a_users_schema_picks_columns_in_its_order() -> None:
    schema = t.StructType().add("offset", "string", False).add("message", "binary").add("value", "binary")
    assert chosen_columns(schema, FULL_MESSAGE_SCHEMA, "amqp-events") == ("offset", "message", "value")


def test_a_users_schema_may_have_value_as_string_with_its_bytes_as_they_are() -> None:
    wanted = t.StructType().add("offset", "string").add("value", "string")
    assert chosen_columns(wanted, FULL_MESSAGE_SCHEMA, "amqp-events") == ("offset", "value")
    schema = arrow_schema(wanted)
    own = source_schema(schema)
    assert own.types == [pa.string(), pa.binary()]
    values = [b"skipped", "ä".encode(), None, b"\xff\x00"]
    batch = pa.RecordBatch.from_arrays([pa.array(["0", "1", "2", "3"]), pa.array(values, pa.binary())], schema=own)
    found = as_schema(batch.slice(1), schema)
    assert found.schema.equals(schema)
    assert found.column("offset").to_pylist() == ["1", "2", "3"]
    assert found.column("value").view(pa.binary()).to_pylist() == values[1:]
    assert source_schema(own) == own and as_schema(batch, own) is batch


def test_a_users_schema_may_say_that_no_part_of_a_column_is_null() -> None:
    parts = spark_schema(FULL_MESSAGE_SCHEMA)["properties"].dataType
    certain = t.StructType([t.StructField(f.name, f.dataType, False, {"of": "users"}) for f in parts.fields])
    texts = t.MapType(t.StringType(), t.StringType(), valueContainsNull=False)
    schema = t.StructType().add("properties", certain, False).add("application_properties", texts, False)
    assert chosen_columns(schema, FULL_MESSAGE_SCHEMA, "amqp-events") == ("properties", "application_properties")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            t.StructType().add("valu", "binary"),
            r"has no column 'valu', did you mean 'value'\? It has value binary, key",
        ),
        (t.StructType().add("zzz", "binary"), "has no column 'zzz'. It has"),
        (
            t.StructType().add("message", "string"),
            "column 'message' of amqp-events has type binary, the schema says string",
        ),
        (t.StructType().add("properties", t.StructType().add("to", "string")), "column 'properties'"),
        (t.StructType().add("key", "string").add("key", "string"), "names column 'key' twice"),
        (t.StructType(), "names no column"),
    ],
)
def test_bad_schemas_name_the_column(schema: t.StructType, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        chosen_columns(schema, FULL_MESSAGE_SCHEMA, "amqp-events")


def filled(count: int = 10, *partitions: str) -> FakeLog:
    log = FakeLog(*(partitions or ("0",)))
    for held in log.partitions.values():
        for n in range(count):
            held.append(1, timestamp=n - 5)
    return log


def span(low: int, high: int) -> list[str]:
    return [name(n) for n in range(low, high)]


def test_batch_reads_all_by_default() -> None:
    assert rows(filled(10, "0", "1")) == {"0": span(0, 10), "1": span(0, 10)}


@pytest.mark.parametrize(
    ("more", "low", "high"),
    [
        ({"startingOffsets": {"0": name(3)}}, 4, 10),
        ({"startingOffsets": {"0": {"at": name(3)}}}, 3, 10),
        ({"startingTimestamp": "-2"}, 3, 10),
        ({"startingOffsetsByTimestamp": {"0": 0}}, 5, 10),
        ({"endingOffsets": {"0": name(3)}}, 0, 4),
        ({"endingOffsets": {"0": {"at": name(3)}}}, 0, 3),
        ({"endingOffsets": {"0": "latest"}}, 0, 10),
        ({"endingOffsets": {"0": "zzz"}}, 0, 10),
        ({"endingTimestamp": "-2"}, 0, 3),
        ({"endingTimestamp": "99"}, 0, 10),
        ({"endingOffsetsByTimestamp": {"0": -1}}, 0, 4),
        ({"startingTimestamp": "-2", "endingTimestamp": "2"}, 3, 7),
        ({"startingOffsets": {"0": {"at": name(3)}}, "endingOffsets": {"0": name(3)}}, 3, 4),
    ],
)
@pytest.mark.parametrize("columns", [("offset",), ("value",)])
def test_batch_positions(more: dict, low: int, high: int, columns: tuple[str, ...]) -> None:
    more = {k: v if isinstance(v, str) else json.dumps(v) for k, v in more.items()}
    assert rows(filled(), columns, **more) == {"0": span(low, high)}
    split = rows(filled(), columns, minPartitions="3", **more)
    assert split == {"0": span(low, high)}


def test_a_super_stream_is_planned_from_the_options_of_its_own_format() -> None:
    log = FakeLog("orders-0", "orders-1", numeric=True)
    for held in log.partitions.values():
        held.append(10)
    starts = json.dumps({"orders-0": 3, "orders-1": -2})
    given = {"url": "rabbitmq-stream://h", "superStream": "orders", "startingOffsets": starts}
    parsed = parse_rabbit_source(given, streaming=False)
    planned = [p.read for p in plan_batch(parsed, ("offset",), log.connect)]
    assert [(r.stream, r.partition, log.partitions[r.partition].offsets(r.start, r.end)) for r in planned] == [
        ("orders", "orders-0", [digits(n) for n in range(3, 10)]),
        ("orders", "orders-1", [digits(n) for n in range(10)]),
    ]


def test_batch_of_nothing() -> None:
    assert rows(FakeLog("0")) == {}
    assert rows(filled(), startingOffsets=json.dumps({"0": name(9)})) == {}
    assert rows(filled(), startingOffsets=json.dumps({"0": name(5)}), endingOffsets=json.dumps({"0": name(2)})) == {}
    assert rows(filled(), endingTimestamp="-5") == {}


def test_batch_of_a_start_that_is_gone() -> None:
    log = filled()
    log.partitions["0"].truncate(5)
    with pytest.raises(PositionLost):
        rows(log, startingOffsets=json.dumps({"0": name(1)}))
    assert rows(log, startingOffsets=json.dumps({"0": name(1)}), failOnDataLoss="false") == {"0": span(5, 10)}


def test_min_partitions_makes_that_many_tasks() -> None:
    log = filled(10, "0", "1")
    assert len(plan_batch(options(minPartitions="5"), ("offset",), log.connect)) == 5


def test_tasks_know_the_nodes_that_the_driver_was_told_of() -> None:
    log = filled(4, "0", "1")
    log.advertised = (("b", 1), ("c", 2))
    assert rows(log) == {"0": span(0, 4), "1": span(0, 4)}
    assert log.reached_by == [(), log.advertised, log.advertised]


def test_a_log_created_again_while_it_is_read() -> None:
    log = filled()
    planned = PlannedRead(RangeRead("orders", "0", EARLIEST, name(3), ("offset",)), None, "zero")
    schema = pa.schema([("offset", pa.string())])
    with pytest.raises(PositionLost, match="deleted and created again"):
        list(read_range(options(), planned, schema, log.connect))
    assert list(read_range(options(), PlannedRead(planned.read, None, "one"), schema, log.connect))


@pytest.mark.parametrize("numeric", [False, True])
def test_rows_of_a_log_created_again_are_the_next_batchs(numeric: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Where losses are no error the query goes on at its beginning, so they must not come here too."""
    log = FakeLog(numeric=numeric)
    log.partitions["0"].append(2_500)
    spell = log.partitions["0"].spell
    wanted = RangeRead("orders", "0", EARLIEST, spell(2_499), ("offset",), fail_on_data_loss=False)
    planned = PlannedRead(wanted, None, None if numeric else "one", (spell(2_499), "one") if numeric else None)
    schema = pa.schema([("offset", pa.string())])
    rows = read_range(options(), planned, schema, log.connect)
    some = next(rows).num_rows
    log.incarnation = log.partitions["0"].created = "two"
    assert some < 2_500 and list(rows) == []
    for events in (2_500, 5):  # where it does not reach so far there is no identity
        log.partitions["0"].next = events
        assert list(read_range(options(), planned, schema, log.connect)) == []
    assert caplog.text.count("going on with what is left") == 3
    log.incarnation = log.partitions["0"].created = "one"
    log.partitions["0"].next = 2_600
    assert sum(b.num_rows for b in read_range(options(), planned, schema, log.connect)) == 2_500
    log.partitions["0"].truncate(2_550)
    assert list(read_range(options(), planned, schema, log.connect)) == []
    assert caplog.text.count("going on with what is left") == 3, "what was removed is the same log's"


def test_sparks_placeholder_for_a_query_without_partitions_gives_no_rows() -> None:
    from pyspark.sql.datasource import InputPartition

    schema = spark_schema(COLUMNS)
    batch_reader = reader.batch_reader(options(), schema, FULL_MESSAGE_SCHEMA, reader.LogSource(FakeLog("0").connect))
    assert batch_reader.partitions() == []
    assert list(batch_reader.read(InputPartition(None))) == []


def test_partitions_show_no_secret() -> None:
    log = filled()
    parsed = parse_source({"url": "amqp://me:hunter2@h", "stream": "orders"}, streaming=False)
    batch_reader = reader.batch_reader(
        parsed, spark_schema(COLUMNS), FULL_MESSAGE_SCHEMA, reader.LogSource(log.connect)
    )
    partitions = batch_reader.partitions()
    assert "hunter2" not in repr(partitions)
    assert b"hunter2" not in pickle.dumps(partitions)
    assert "hunter2" not in repr(vars(batch_reader))


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_spark_before_4_2_has_no_rate_limit(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HAS_ADMISSION_CONTROL", False)
    with pytest.raises(OptionError, match=rf"'{option}': needs Spark 4\.2 or later, this is"):
        reader.StreamReader(
            options(True, **{option: "5"}),
            spark_schema(COLUMNS),
            FULL_MESSAGE_SCHEMA,
            reader.LogSource(FakeLog("0").connect),
        )


def test_the_read_limit_of_the_option_and_of_the_trigger() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    log = filled()
    stream = reader.StreamReader(
        options(True, maxOffsetsPerTrigger="4", startingOffsets="earliest"),
        spark_schema(COLUMNS),
        FULL_MESSAGE_SCHEMA,
        reader.LogSource(log.connect),
    )
    assert stream.getDefaultReadLimit() == ReadMaxRows(4)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadMaxRows(4))["partitions"] == {"0": {"after": name(3)}}
    assert stream.latestOffset(start, ReadAllAvailable())["partitions"] == {"0": {"after": name(9)}}
    assert stream.reportLatestOffset()["lag"] == {"0": 0}
    planned = stream.partitions(start, stream.latestOffset(start, ReadMaxRows(4)))
    assert [p.value.read.end for p in planned] == [name(3)]
    stream.stop()


def test_the_read_limit_says_that_a_batch_may_wait() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

    log = filled(3)
    schema, least = spark_schema(COLUMNS), {"minOffsetsPerTrigger": "4", "startingOffsets": "earliest"}

    def stream(**more: str) -> reader.StreamReader:
        return reader.StreamReader(
            options(True, **least, **more), schema, FULL_MESSAGE_SCHEMA, reader.LogSource(log.connect)
        )

    assert stream(maxOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMaxRows(9)
    waiting = stream(pollInterval="0")
    limit = waiting.getDefaultReadLimit()
    assert limit == ReadMinRows(4)
    start = waiting.initialOffset()
    assert waiting.latestOffset(start, limit) == start
    assert waiting.latestOffset(start, ReadAllAvailable())["partitions"] == {"0": {"after": name(2)}}, "Trigger.Once"
    log.partitions["0"].append(1)
    assert waiting.latestOffset(start, limit)["partitions"] == {"0": {"after": name(3)}}
    waiting.stop()
