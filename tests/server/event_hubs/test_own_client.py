"""The project's own client at the door: what it sees by itself, both ways to sign in, and the errors that it tells.

The contract is docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData
from pyspark.sql.types import StringType, StructField, StructType
from spark_streams.sinks.amqp_events import AmqpSink
from spark_streams.sources.amqp_events import AmqpEventsDataSource, connect

from spark_streams.errors import SparkStreamsError
from spark_streams.options.amqp_events import parse_sink, parse_source
from spark_streams.spark.sink.sink import TaskName
from spark_streams.wire.amqp.dialects import EVENT_HUBS
from tests.server.event_hubs.conftest import HUB, Namespace, sas

START_MS = 1_700_000_000_000
LATE = {"startingOffsetsByTimestampStrategy": "latest"}
"""Partition 1 has no events."""


def options(namespace: Namespace, **more: str) -> dict[str, str]:
    given = {"connectionString": namespace.connection_string, "stream": HUB, "requestTimeout": "120000", **more}
    return {name: value for name, value in given.items() if value}


def rows(given: dict[str, str]) -> list[dict[str, Any]]:
    """What a batch query reads, planned and read as Spark does it: the reader, and with it each of its tasks."""
    source = AmqpEventsDataSource(given)
    reader = source.reader(source.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def values(given: dict[str, str]) -> list[str]:
    return [row["value"].decode() for row in rows(given)]


def write(given: dict[str, str], batch: int = 0, **columns: list[Any]) -> None:
    """Write rows as a task of a query does."""
    schema = StructType([StructField(name, StringType()) for name in columns])
    sink = AmqpSink(parse_sink(given))
    sink.check_schema(schema)
    sink.check()
    name = TaskName("query", str(batch), 0)
    outlet = sink.open(name, False)
    rows = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})
    outlet.send(sink.columns(rows, name, 0), lambda row: f"row {row}")
    outlet.flush()
    outlet.close()


@pytest.fixture
def clocked(namespaces: Any) -> Iterator[Namespace]:
    """A hub of two partitions; partition 0 has events e0 to e9, a second apart."""
    now = [START_MS]
    namespace = namespaces(clock=lambda: now[0])
    namespace.create(partitions=2)
    producer = namespace.producer()
    for number in range(10):
        producer.send_event(EventData(f"e{number}"), partition_id="0")
        now[0] += 1_000
    yield namespace


def test_the_dialect_is_seen_and_every_column_is_there(namespace: Namespace) -> None:
    namespace.create()
    event = EventData(b"body")
    event.properties, event.content_type = {"color": "red"}, "text/plain"
    namespace.send(event, partition_key="k1")
    host = namespace.url.removeprefix("amqp://").rstrip("/")
    given = options(namespace, connectionString="", url=f"amqp://guest:guest@{host}")
    with connect(parse_source(given, streaming=False)) as client:
        client.describe(HUB)
        assert client.dialect is EVENT_HUBS, "by the mechanism that the peer offers"
    (row,) = rows(given)
    assert (row["value"], row["key"], row["stream"], row["partition"]) == (b"body", "k1", HUB, "0")
    assert row["offset"] == f"{0:020d}" and row["application_properties"] == [("color", "red")]
    assert abs(row["timestamp"].timestamp() - time.time()) < 3_600
    assert dict(row["message_annotations"])["x-opt-partition-key"] == "k1"


@pytest.mark.parametrize(
    ("position", "first", "end"),
    [
        ({}, 0, 10),
        ({"startingOffsets": '{"0": 4, "1": -2}'}, 4, 10),
        ({"startingOffsets": f'{{"0": "{4:020d}", "1": -2}}'}, 5, 10),
        ({"startingTimestamp": str(START_MS + 6_000)}, 6, 10),
        ({"startingTimestamp": str(START_MS + 6_001), **LATE}, 7, 10),
        ({"endingOffsets": '{"0": 4, "1": -1}'}, 0, 4),
    ],
)
def test_positions(clocked: Namespace, position: dict[str, str], first: int, end: int) -> None:
    assert values(options(clocked, **position)) == [f"e{number}" for number in range(first, end)]


def test_several_readers_of_a_partition_and_one_too_many(clocked: Namespace) -> None:
    assert values(options(clocked, minPartitions="5")) == [f"e{number}" for number in range(10)]
    with pytest.raises(SparkStreamsError, match=r"minPartitions.*\b5\b"):
        rows(options(clocked, minPartitions="50"))


def test_what_is_written_is_what_the_sdk_reads(namespace: Namespace) -> None:
    namespace.create(partitions=3)
    given = options(namespace)
    write(given, 0, value=[f"k{n}" for n in range(30)], key=[f"key {n % 3}" for n in range(30)])
    write(given, 1, value=["p0", "p1"], partition=["1", "1"])
    write(given, 2, value=[f"n{n}" for n in range(9)])
    ends = namespace.ends()
    assert sum(ends.values()) == 41
    found = {name: namespace.receive(end, name) for name, end in ends.items() if end}
    assert [event.body_as_str() for event in found["1"] if event.body_as_str()[0] == "p"] == ["p0", "p1"]
    for key in range(3):
        homes = {n for n, events in found.items() for e in events if e.partition_key == f"key {key}".encode()}
        assert len(homes) == 1
        told = [e.body_as_str() for e in found[homes.pop()] if e.partition_key == f"key {key}".encode()]
        assert told == [f"k{n}" for n in range(key, 30, 3)]
    ids = [event.message_id for events in found.values() for event in events]
    wanted = {f"query/{batch}/0/{row}" for batch, count in enumerate((30, 2, 9)) for row in range(count)}
    assert set(ids) == wanted and len(ids) == 41
    assert sorted(values(given)) == sorted([*(f"k{n}" for n in range(30)), "p0", "p1", *(f"n{n}" for n in range(9))])


def test_signatures_instead_of_a_key(namespace: Namespace) -> None:
    namespace.create()
    endpoint = namespace.connection_string.partition(";")[0]
    token = sas(f"{endpoint.removeprefix('Endpoint=')}{HUB}", "guest", "guest")
    given = options(namespace, connectionString=f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true")
    write(given, value=["signed"])
    assert values(given) == ["signed"]


# --- what is wrong is told, with the option's name and no secret


def refusal(given: dict[str, str], action: Callable[[dict[str, str]], Any] = rows) -> str:
    with pytest.raises(SparkStreamsError) as caught:
        action(given)
    text = f"{type(caught.value).__name__}: {caught.value}"
    for secret in ("s3cret", "sig="):
        assert secret not in text
    return text


def test_wrong_keys_and_signatures(namespace: Namespace) -> None:
    namespace.create()
    right = namespace.connection_string
    endpoint = right.partition(";")[0]
    uri = f"{endpoint.removeprefix('Endpoint=')}{HUB}"
    for wrong, words in (
        (right.replace("SharedAccessKey=guest", "SharedAccessKey=s3cret"), "connectionString"),
        (right.replace("SharedAccessKeyName=guest", "SharedAccessKeyName=nobody"), "connectionString"),
        (f"{endpoint};SharedAccessSignature={sas(uri, 'guest', 's3cret')};UseDevelopmentEmulator=true", "signature"),
        (f"{endpoint};SharedAccessSignature={sas(uri, 'guest', 'guest', 1)};UseDevelopmentEmulator=true", "expired"),
        (f"{endpoint};SharedAccessSignature={sas(uri + 'x', 'guest', 'guest')};UseDevelopmentEmulator=true", ""),
    ):
        for action in (rows, lambda given: write(given, value=["x"])):
            text = refusal(options(namespace, connectionString=wrong), action)
            assert text.startswith("AuthenticationFailed") and words in text, text


@pytest.mark.nightly  # a reader waits 40 s for what is not there: it may come back
def test_a_group_that_is_not_there(namespaces: Any) -> None:
    namespace = namespaces(groups=frozenset())
    namespace.create()
    namespace.send("a", partition_id="0")
    assert values(options(namespace, consumerGroup="$Default")) == ["a"]
    missing = refusal(options(namespace, consumerGroup="nobodys"))
    assert missing.startswith("NotFound") and "in consumer group 'nobodys'" in missing, missing
    assert "has to exist, in 'consumerGroup'" in missing, missing


def test_what_is_not_there(namespace: Namespace) -> None:
    namespace.create()
    namespace.send("a", partition_id="0")
    for action in (rows, lambda given: write(given, value=["x"])):
        missing = refusal(options(namespace, stream="nope"), action)
        assert missing.startswith("NotFound") and "'nope'" in missing, missing
    missing = refusal(options(namespace), lambda given: write(given, value=["x"], partition=["7"]))
    assert "'7'" in missing and "partition" in missing, missing
    missing = refusal(options(namespace, startingOffsets='{"0": 0, "7": 0}'))
    assert "startingOffsets" in missing and "'7'" in missing, missing


def test_ownership(namespace: Namespace) -> None:
    namespace.create()
    namespace.send("a", partition_id="0")
    owner = namespace.receiving(owner_level=5)
    owner.take(1)
    for epoch in ({}, {"epoch": "4"}):
        text = refusal(options(namespace, **epoch))
        assert text.startswith("OwnershipLost") and "epoch" in text, text
    assert values(options(namespace, epoch="5")) == ["a"], "an equal one wins"
    assert "with higher epoch of '5' is created" in str(owner.failure())


@pytest.mark.nightly  # it tries for 40 s to get a place
def test_a_sixth_reader_is_told_who_reads(namespace: Namespace) -> None:
    namespace.create()
    namespace.send("a", partition_id="0")
    for _ in range(5):
        namespace.receiving().take(1)
    text = refusal(options(namespace, requestTimeout="3000"))
    assert "allowed receivers per partition in a consumer group which is 5" in text
    assert values(options(namespace, consumerGroup="other")) == ["a"]
