"""Which link a row goes to, and what the driver checks before tasks start; against a client that only notes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import proton
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType
from spark_streams.sinks import amqp_events as module
from spark_streams.sinks.amqp_events import MAX_OPEN_LINKS, AmqpOutlet, AmqpSink

from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    DeliveryFailed,
    NotFound,
    OptionError,
    SchemaError,
    SparkStreamsError,
)
from spark_streams.options.amqp_events import parse_sink
from spark_streams.spark.sink import sink
from spark_streams.spark.sink.sink import TaskName
from spark_streams.spark.sink.writer import batch_writer, stream_writer
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_STREAMS, Dialect

OPTIONS = {"url": "amqp://localhost:1", "username": "guest", "password": "hush"}
TASK = TaskName("q", "0", 0, stable=True)


class FakePublisher:
    def __init__(self, client: type[FakeClient], stream: str) -> None:
        self.client, self.stream, self.under_way = client, stream, 0

    def send(self, payloads: pa.LargeBinaryArray, labels: Callable[[int], str]) -> None:
        for i, payload in enumerate(payloads.to_pylist()):
            message = proton.Message()
            message.decode(payload)
            body = bytes(message.body)
            self.client.keys.append((message.annotations, message.group_id))
            if body == b"bad":
                raise DeliveryFailed("rejected", "", "", labels(i), self.stream)
            self.client.sent.setdefault(self.stream, []).append(body)
        self.under_way += len(payloads)

    def flush(self) -> None:
        self.under_way = 0

    def close(self) -> None:
        assert self.under_way == 0, "a link was closed with rows under way"
        self.client.open.remove(self.stream)


class FakeClient:
    sent: dict[str, list[bytes]]
    open: list[str]
    attached: list[str]
    fault: SparkStreamsError | None
    keys: list[tuple[object, object]]

    def __init__(self, endpoint: object, *, timeout_ms: int, dialect: Dialect | None = None, **more: object) -> None:
        self.timeout_ms, self.dialect = timeout_ms, dialect or EVENT_STREAMS

    def encode(self, columns: Mapping[str, pa.Array], *, for_partition: bool = False) -> pa.LargeBinaryArray:
        places = self.dialect.places
        return encode_columns(columns, replace(places, key=None) if for_partition else places)

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def publisher(self, stream: str, *, partition: str | None = None, exchange: str | None = None) -> FakePublisher:
        if self.fault is not None:
            raise self.fault
        stream = stream if partition is None else f"{stream}/{partition}"
        FakeClient.attached.append(stream)
        FakeClient.open.append(stream)
        return FakePublisher(FakeClient, stream)

    def turn(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    FakeClient.sent, FakeClient.open, FakeClient.attached, FakeClient.fault = {}, [], [], None
    FakeClient.keys = []
    monkeypatch.setattr(module, "AmqpClient", FakeClient)
    monkeypatch.setattr(sink, "_checked", {})
    return FakeClient


@pytest.fixture
def outlet() -> Iterator[AmqpOutlet]:
    opened = AmqpSink(parse_sink(OPTIONS)).open(TASK, True)
    yield opened
    opened.close()


def rows(**columns: list[str | None]) -> dict[str, pa.Array]:
    batch = pa.record_batch([pa.array(c, pa.string()) for c in columns.values()], names=list(columns))
    return AmqpSink(parse_sink(OPTIONS)).columns(batch, TASK, 0)


def label(i: int) -> str:
    return f"row {i}"


def test_rows_go_to_the_streams_they_name_in_their_order(outlet: AmqpOutlet, client: type[FakeClient]) -> None:
    outlet.send(rows(value=["1", "2", "3", "4"], stream=["a", "b", "a", "b"]), label)
    outlet.send(rows(value=["5", "6"], stream=["b", "a"]), label)
    outlet.flush()
    assert client.sent == {"a": [b"1", b"3", b"6"], "b": [b"2", b"4", b"5"]}
    assert client.attached == ["a", "b"], "one link a stream"


def test_option_stream_wins_over_the_column(client: type[FakeClient]) -> None:
    opened = AmqpSink(parse_sink(OPTIONS | {"stream": "all"})).open(TASK, True)
    opened.send(rows(value=["1", "2"], stream=["a", None]), label)
    opened.close()
    assert client.sent == {"all": [b"1", b"2"]}


def test_event_hubs_have_partitions_in_the_address_and_then_no_key_beside_them(client: type[FakeClient]) -> None:
    opened = AmqpSink(parse_sink(OPTIONS | {"stream": "hub", "dialect": "event-hubs"})).open(TASK, True)
    opened.send(rows(value=["1", "2", "3"], partition=["7", None, "7"], key=["a", "b", None]), label)
    opened.close()
    assert client.sent == {"hub/7": [b"1", b"3"], "hub": [b"2"]}
    assert client.keys == [(None, "a"), (None, None), ({"x-opt-partition-key": "b"}, None)]


def test_a_refused_row_is_named_by_its_place_among_all_rows(outlet: AmqpOutlet) -> None:
    with pytest.raises(DeliveryFailed, match="row 3 was rejected by stream 'b'"):
        outlet.send(rows(value=["1", "2", "3", "bad"], stream=["a", "b", "a", "b"]), label)


def test_a_row_without_a_stream_is_named(outlet: AmqpOutlet, client: type[FakeClient]) -> None:
    with pytest.raises(SchemaError, match="row 1 has null in column 'stream', and option 'stream' is not given"):
        outlet.send(rows(value=["1", "2"], stream=["a", None]), label)
    assert client.sent == {}, "nothing of the slice went out"


def test_links_are_bounded_and_an_old_one_is_flushed_before_it_is_closed(
    outlet: AmqpOutlet, client: type[FakeClient]
) -> None:
    names = [f"s{i}" for i in range(MAX_OPEN_LINKS)]
    outlet.send(rows(value=names, stream=names), label)
    outlet.send(rows(value=["again"], stream=["s0"]), label)
    outlet.send(rows(value=["more"], stream=["one-more"]), label)
    outlet.flush()
    assert len(client.open) == MAX_OPEN_LINKS
    assert "s1" not in client.open, "the least recently used one was closed"
    assert client.sent["s0"] == [b"s0", b"again"]


def test_every_row_gets_an_id_from_its_place() -> None:
    batch = pa.record_batch([pa.array(["1", "2"])], names=["value"])
    columns = AmqpSink(parse_sink(OPTIONS)).columns(batch, TaskName("q", "7", 3), 10)
    assert columns["message_id"].to_pylist() == ["q/7/3/10", "q/7/3/11"]


# --- the driver


def text_column(name: str = "value") -> StructType:
    return StructType().add(name, StringType())


def sink_to(stream: str) -> AmqpSink:
    return AmqpSink(parse_sink(OPTIONS | {"stream": stream}))


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_the_driver_attaches_once_a_process_and_stream(make: Callable[..., object], client: type[FakeClient]) -> None:
    for stream in ("orders", "orders", "refunds", "orders"):
        make(sink_to(stream), text_column(), False)
    assert client.attached == ["orders", "refunds"]
    assert client.open == []


@pytest.mark.parametrize(
    "fault",
    [NotFound("amqp:not-found", "no stream 'orders'", "attach"), AuthenticationFailed("amqp:unauthorized", "", "open")],
)
def test_what_another_try_cannot_heal_fails_on_the_driver(client: type[FakeClient], fault: SparkStreamsError) -> None:
    client.fault = fault
    with pytest.raises(type(fault)):
        batch_writer(sink_to("orders"), text_column(), False)


def test_trouble_of_the_network_is_left_to_the_tasks(
    client: type[FakeClient], caplog: pytest.LogCaptureFixture
) -> None:
    client.fault = ConnectFailed("localhost:1: connection refused")
    batch_writer(sink_to("orders"), text_column(), False)
    assert "stream 'orders' could not be checked before the write: localhost:1: connection refused" in caplog.text
    client.fault = None
    batch_writer(sink_to("orders"), text_column(), False)
    assert client.attached == ["orders"], "it is checked the next time"


def test_what_the_sink_cannot_do_is_refused_before_it_connects(client: type[FakeClient]) -> None:
    given = sink_to("orders")
    with pytest.raises(OptionError, match=r"option 'mode': 'overwrite' cannot be done.*use mode 'append'"):
        batch_writer(given, text_column(), True)
    with pytest.raises(OptionError, match=r"'outputMode': 'complete' cannot be done.*withWatermark.*foreachBatch"):
        stream_writer(given, text_column(), True)
    with pytest.raises(SchemaError, match=r"unknown column 'vlaue'.*Did you mean 'value'"):
        stream_writer(given, text_column("vlaue"), False)
    with pytest.raises(SchemaError, match="nothing says where the rows go"):
        stream_writer(AmqpSink(parse_sink(OPTIONS)), text_column(), False)
    assert client.attached == []


def test_writers_are_pickled_without_a_password_in_the_clear(client: type[FakeClient]) -> None:
    for make in (batch_writer, stream_writer):
        writer = make(sink_to("orders"), text_column(), False)
        assert b"hush" not in pickle.dumps(writer)
        assert "hush" not in repr(writer) + repr(vars(writer))
