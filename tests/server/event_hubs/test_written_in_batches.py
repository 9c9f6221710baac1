"""What this project's client writes to the door goes in batches, and Microsoft's SDK reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spark_streams.sinks.amqp_events import AmqpSink

from spark_streams.client import AmqpClient
from spark_streams.errors import DeliveryFailed
from spark_streams.options.amqp_events import parse_sink
from spark_streams.rows import PROPERTIES_TYPE
from spark_streams.server.event_hubs import links
from spark_streams.spark.sink.sink import TaskName
from spark_streams.wire.amqp.event_batches import Batch
from tests.server.event_hubs.conftest import HUB, Namespace

TASK = TaskName("query", "7", 3, stable=True)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Batch, int]]:
    """The batches that came to the door, with their sizes."""
    came: list[tuple[Batch, int]] = []
    split = links.split_batch

    def noted(raw: bytes) -> Batch:
        came.append((split(raw), len(raw)))
        return came[-1][0]

    monkeypatch.setattr(links, "split_batch", noted)
    return came


def write(namespace: Namespace, *tables: dict[str, Any], **options: str) -> None:
    """Write rows as a task does."""
    given = {"connectionString": namespace.connection_string, "stream": HUB, "requestTimeout": "120000", **options}
    sink = AmqpSink(parse_sink(given))
    outlet = sink.open(TASK, True)
    try:
        first = 0
        for table in tables:
            rows = pa.RecordBatch.from_pydict(table)
            columns = sink.columns(rows, TASK, first)
            outlet.send(columns, lambda row, first=first: f"row {first + row}")  # type: ignore[misc]
            first += rows.num_rows
        outlet.flush()
    finally:
        outlet.close()


def received(namespace: Namespace) -> dict[str, list[Any]]:
    return {name: namespace.receive(end, name) if end else [] for name, end in namespace.ends().items()}


def numbers(events: list[Any]) -> list[int]:
    return [int(event.body_as_str()) for event in events]


def texts(numbers: Any) -> pa.Array:
    return pa.array([str(number).encode() for number in numbers], pa.binary())


def test_events_for_partitions_stay_in_order(namespace: Namespace, batches: list[tuple[Batch, int]]) -> None:
    namespace.create(partitions=2)
    tables = [
        {"value": texts(range(at, at + 2_000)), "partition": [str(n % 2) for n in range(2_000)]}
        for at in (0, 2_000, 4_000)
    ]
    write(namespace, *tables)
    got = received(namespace)
    assert numbers(got["0"]) == list(range(0, 6_000, 2))
    assert numbers(got["1"]) == list(range(1, 6_000, 2))
    assert got["0"][1].message_id == "query/7/3/2"
    assert len(batches) == 6 and all(batch.key is None for batch, _ in batches)


def test_events_of_a_key_stay_in_order_and_have_their_key(
    namespace: Namespace, batches: list[tuple[Batch, int]]
) -> None:
    namespace.create(partitions=3)
    tables = [
        {"value": texts(range(at, at + 1_000)), "key": [f"customer-{n % 7}" for n in range(1_000)]} for at in (0, 1_000)
    ]
    write(namespace, *tables)
    assert {batch.key for batch, _ in batches} == {f"customer-{n}" for n in range(7)} and len(batches) == 14
    homes: dict[bytes, set[str]] = {}
    ordered: dict[bytes, list[int]] = {}
    for partition, events in received(namespace).items():
        for event in events:
            assert event.system_properties[b"x-opt-partition-key"] == event.partition_key
            assert event.message_id == f"query/7/3/{event.body_as_str()}"
            homes.setdefault(event.partition_key, set()).add(partition)
            ordered.setdefault(event.partition_key, []).append(int(event.body_as_str()))
    assert all(len(where) == 1 for where in homes.values())
    # 1,000 is 6 more than a multiple of 7: the keys of the second rows are others.
    expected: dict[bytes, list[int]] = {}
    for number in range(2_000):
        expected.setdefault(b"customer-%d" % (number % 1_000 % 7), []).append(number)
    assert ordered == expected


def test_keys_that_are_alone_and_rows_without_a_key(namespace: Namespace, batches: list[tuple[Batch, int]]) -> None:
    namespace.create(partitions=2)
    keys = [None if n % 3 == 0 else "both" if n % 3 == 1 else f"alone-{n}" for n in range(300)]
    write(namespace, {"value": texts(range(300)), "key": pa.array(keys, pa.string())})
    assert sorted((batch.key or "", len(batch.starts)) for batch, _ in batches) == [("", 100), ("both", 100)]
    got = received(namespace)
    events = [event for partition in got.values() for event in partition]
    found = {int(event.body_as_str()): event.partition_key for event in events}
    assert found == {n: None if key is None else key.encode() for n, key in enumerate(keys)}
    (unkeyed,) = {name for name, each in got.items() for event in each if event.partition_key is None}
    assert [n for n in numbers(got[unkeyed]) if n % 3 == 0] == list(range(0, 300, 3))


def test_what_a_row_has_comes_back(namespace: Namespace) -> None:
    namespace.create()
    maps = pa.map_(pa.string(), pa.string())
    properties = pa.StructArray.from_arrays(
        [pa.array(["mine", None]), pa.array(["c-1", "c-2"])],
        fields=[PROPERTIES_TYPE.field("message_id"), PROPERTIES_TYPE.field("correlation_id")],
    )
    columns = {
        "value": texts([1, 2]),
        "key": ["k", "k"],
        "properties": properties,
        "application_properties": pa.array([[("color", "red")], []], maps),
        "message_annotations": pa.array([[("x-own", "kept")], None], maps),
    }
    write(namespace, columns)
    first, second = namespace.receive(2)
    assert (first.message_id, second.message_id) == ("mine", "query/7/3/1")
    assert (first.correlation_id, second.correlation_id) == ("c-1", "c-2")
    assert first.properties == {b"color": b"red"}
    assert first.system_properties[b"x-own"] == b"kept" and first.partition_key == b"k"


@pytest.mark.parametrize("key", [None, "customer-7"])
def test_batches_are_no_larger_than_the_link_takes(
    namespaces: Callable[..., Namespace], batches: list[tuple[Batch, int]], key: str | None
) -> None:
    namespace = namespaces(max_message_bytes=4_000)
    namespace.create()
    values = pa.array([b"%05d" % n + b"x" * (n % 900) for n in range(2_000)], pa.binary())
    write(namespace, {"value": values, "key": pa.array([key] * 2_000, pa.string())})
    got = namespace.receive(2_000)
    assert [int(event.body_as_str()[:5]) for event in got] == list(range(2_000))
    assert all(size <= 4_000 for _, size in batches)
    assert len(batches) < 2 * sum(len(event.body_as_str()) for event in got) / 4_000


def test_an_event_that_is_too_large_alone_fails_by_its_name(namespaces: Callable[..., Namespace]) -> None:
    namespace = namespaces(max_message_bytes=4_000)
    namespace.create()
    values = pa.array([b"x" * (5_000 if n == 20 else 100) for n in range(40)], pa.binary())
    with pytest.raises(DeliveryFailed, match=r"row 20 was rejected .*message-size-exceeded: 5\d\d\d bytes"):
        write(namespace, {"value": values})


def test_a_large_event_among_small_ones_goes_alone_in_its_place(
    namespaces: Callable[..., Namespace], batches: list[tuple[Batch, int]]
) -> None:
    namespace = namespaces()
    namespace.create()
    values = pa.array([b"%05d" % n + b"x" * (700_000 if n == 20 else 100) for n in range(40)], pa.binary())
    write(namespace, {"value": values, "partition": ["0"] * 40})
    assert [int(event.body_as_str()[:5]) for event in namespace.receive(40)] == list(range(40))
    assert [len(batch.starts) for batch, _ in batches] == [20, 19]


def test_a_batch_that_is_refused_is_named_by_its_first_row(namespace: Namespace) -> None:
    """A key in a whole message does not suit the address of a partition: the door refuses the batch."""
    namespace.create()
    options = parse_sink({"connectionString": namespace.connection_string, "stream": HUB})
    with AmqpClient(options.endpoint, timeout_ms=120_000) as client:
        payloads = client.encode({"value": texts(range(13)), "key": pa.array([None] * 4 + ["k"] * 9, pa.string())})
        publisher = client.publisher(HUB, partition="0")
        with pytest.raises(DeliveryFailed, match=r"row 4, in a batch of 9, was rejected .*amqp:not-allowed"):
            publisher.send(payloads, "row {}".format)
            publisher.flush()
        assert publisher.accepted == 4
    assert namespace.ends() == {"0": 4}


def test_more_than_is_joined_at_a_time(
    namespace: Namespace, batches: list[tuple[Batch, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.client.amqp import outgoing_events, publisher

    monkeypatch.setattr(outgoing_events, "JOINED_BYTES", 10_000)
    monkeypatch.setattr(publisher, "_MAX_KEPT_BYTES", 20_000)
    namespace.create()
    options = parse_sink({"connectionString": namespace.connection_string, "stream": HUB})
    with AmqpClient(options.endpoint, timeout_ms=120_000) as client:
        link = client.publisher(HUB, partition="0")
        link.send(client.encode({"value": texts(range(20_000))}, for_partition=True), str)
        link.flush()
        assert link.accepted == 20_000
    assert numbers(namespace.receive(20_000)) == list(range(20_000))
    assert all(size < 20_000 for _, size in batches)
