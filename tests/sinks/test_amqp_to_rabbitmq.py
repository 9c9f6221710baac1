"""The AMQP sink at a real RabbitMQ: every kind of queue, exchanges, super streams; what it sends is read by proton."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from proton import Message
from proton.utils import BlockingConnection
from spark_streams.sinks.amqp_events import AmqpSink

from spark_streams.client import AmqpClient, RabbitClient, RangeRead
from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
from spark_streams.errors import DeliveryFailed, NotFound, Refused, SchemaError
from spark_streams.options.amqp_events import dialect_named, parse_sink
from spark_streams.position import EARLIEST
from spark_streams.rows import PROPERTIES_TYPE
from spark_streams.spark.sink.sink import TaskName
from spark_streams.testing import StreamFactory
from tests.cli.peers.opened import run, url
from tests.e2e.rabbitmq.conftest import Real
from tests.real_rabbitmq.conftest import rabbitmq_amqp_url as rabbitmq_amqp_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

pytestmark = pytest.mark.rabbitmq


class Broker(Real):
    """The real broker, and queues and exchanges on it, which ``made`` makes, as each command takes a second or two."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._erlang: list[str] = []

    def made(self) -> None:
        """Make what was declared."""
        assert self.control("eval", ", ".join([*self._erlang, "made."])).strip() == "made"
        self._erlang.clear()

    def declare(self, name: str, kind: str, **arguments: tuple[str, str]) -> str:
        """Declare a queue of a kind; arguments are Erlang's type and value."""
        whole = self.name(name)
        given = {"x-queue-type": ("longstr", f'<<"{kind}">>'), **arguments}
        listed = ", ".join(f'{{<<"{key}">>, {each}, {value}}}' for key, (each, value) in given.items())
        self._erlang.append(
            f'{{new, _}} = rabbit_amqqueue:declare({queue(whole)}, true, false, [{listed}], none, <<"guest">>)'
        )
        return whole

    def exchange(self, name: str, kind: str, bindings: dict[str, str]) -> str:
        """Declare an exchange, with bindings: routing key to queue."""
        whole = self.name(name)
        made = f'rabbit_misc:r(<<"/">>, exchange, <<"{whole}">>)'
        self._erlang.append(f'{{ok, _}} = rabbit_exchange:declare({made}, {kind}, true, false, false, [], <<"guest">>)')
        for key, target in bindings.items():
            binding = f'{{binding, {made}, <<"{key}">>, {queue(target)}, []}}'
            self._erlang.append(f'ok = rabbit_binding:add({binding}, <<"guest">>)')
        return whole


def queue(name: str) -> str:
    return f'rabbit_misc:r(<<"/">>, queue, <<"{name}">>)'


@pytest.fixture
def broker(rabbitmq_url: str) -> Iterator[Broker]:
    with contextlib.closing(Broker(rabbitmq_url)) as running:
        yield running


def table(**columns: Any) -> pa.RecordBatch:
    """Return rows; a list of texts for each column, but for those that are arrays already."""
    arrays = {name: each if isinstance(each, pa.Array) else pa.array(each) for name, each in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def write(broker_url: str, rows: pa.RecordBatch, **options: str) -> None:
    """Write rows as one task does, with the checks of the driver before it."""
    sink = AmqpSink(parse_sink({"url": broker_url, "requestTimeout": "120000", **options})).check()
    name = TaskName(f"job-{secrets.token_hex(4)}", None, 0)
    outlet = sink.open(name, streaming=False)
    with contextlib.closing(outlet):
        outlet.send(sink.columns(rows, name, 0), lambda row: f"row {row}")
        outlet.flush()


def received(broker_url: str, queue_name: str, count: int) -> list[Message]:
    """Return the messages of a queue, as proton reads them."""
    connection = BlockingConnection(broker_url.replace("guest:guest@", ""), timeout=120, user="guest", password="guest")
    try:
        receiver = connection.create_receiver(f"/queues/{queue_name}", credit=count)
        found = []
        for _ in range(count):
            found.append(receiver.receive(timeout=120))
            receiver.accept()
        return found
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queues_of_each_kind_get_every_row_with_its_key(broker: Broker, rabbitmq_amqp_url: str, kind: str) -> None:
    name = broker.declare(kind, kind)
    broker.made()
    annotations = pa.array([[("x-note", "n")], None], pa.map_(pa.string(), pa.string()))
    rows = table(value=["a", "b"], key=["k", None], partition=["7", "8"], message_annotations=annotations)
    write(rabbitmq_amqp_url, rows, stream=name)
    one, two = received(rabbitmq_amqp_url, name, 2)
    assert [bytes(each.body) for each in (one, two)] == [b"a", b"b"]
    assert (one.group_id, two.group_id, one.annotations["x-note"]) == ("k", None, "n")
    assert str(one.id).endswith("/0") and str(two.id).endswith("/1"), "message-ids are deterministic"


def test_streams_are_read_back_by_both_formats(broker: Broker, rabbitmq_amqp_url: str, rabbitmq_url: str) -> None:
    stream = broker.create()
    rows = table(value=[f"e{n}" for n in range(500)], key=[f"k{n % 7}" for n in range(500)])
    write(rabbitmq_amqp_url, rows, stream=stream, keyAnnotation="x-key")
    keyed = dialect_named("rabbitmq", "x-key")
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000, dialect=keyed) as over_amqp:
        end = over_amqp.describe(stream).partitions[stream].latest
        read = RangeRead(stream, stream, EARLIEST, str(end), ("value", "key"))
        found = [row for batch in over_amqp.fetch(read) for row in batch.to_pylist()]
    assert found == [{"value": f"e{n}".encode(), "key": f"k{n % 7}"} for n in range(500)]
    with RabbitClient(parse_url(rabbitmq_url, schemes=RABBITMQ_SCHEMES), timeout_ms=120_000) as over_streams:
        rows_there = [row for batch in over_streams.fetch(read) for row in batch.to_pylist()]
    assert [row["value"] for row in rows_there] == [row["value"] for row in found]


def test_exchanges_route_by_a_column(broker: Broker, rabbitmq_amqp_url: str) -> None:
    north, rest = broker.declare("north", "classic"), broker.declare("rest", "quorum")
    topics = broker.exchange("a/topic b", "topic", {"eu.*": north, "#": rest})
    fan = broker.exchange("fan", "fanout", {"": north})
    broker.made()
    rows = table(value=["one", "two", "three"], place=["eu.se", "us/ny é", None])
    write(rabbitmq_amqp_url, rows, exchange=topics, routingKeyColumn="place")
    (only,) = received(rabbitmq_amqp_url, north, 1)
    assert bytes(only.body) == b"one" and only.annotations["x-routing-key"] == "eu.se"
    all_of_them = received(rabbitmq_amqp_url, rest, 3)
    assert [(bytes(each.body), each.annotations["x-routing-key"]) for each in all_of_them] == [
        (b"one", "eu.se"), (b"two", "us/ny é"), (b"three", ""),
    ]  # fmt: skip
    write(rabbitmq_amqp_url, table(value=["four"]), exchange=fan)
    assert [bytes(each.body) for each in received(rabbitmq_amqp_url, north, 1)] == [b"four"]


def test_a_row_that_leads_nowhere_is_named(broker: Broker, rabbitmq_amqp_url: str) -> None:
    there = broker.declare("there", "classic")
    direct = broker.exchange("direct", "direct", {"a": there})
    limit = {"x-max-length": ("long", "1"), "x-overflow": ("longstr", '<<"reject-publish">>')}
    full = broker.declare("full", "classic", **limit)
    broker.made()
    with pytest.raises(DeliveryFailed, match="row 1") as caught:
        write(rabbitmq_amqp_url, table(value=["1", "2"], way=["a", "b"]), exchange=direct, routingKeyColumn="way")
    assert caught.value.outcome == "released"
    with pytest.raises(DeliveryFailed) as caught:
        write(rabbitmq_amqp_url, table(value=[str(n) for n in range(50)]), stream=full)
    assert (caught.value.outcome, caught.value.condition) == ("rejected", "amqp:resource-limit-exceeded")


def test_what_cannot_be_sent_is_said_before_it_is(broker: Broker, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    for exchange in (True, False):
        name = {"exchange": broker.name("none")} if exchange else {"stream": broker.name("none")}
        with pytest.raises(NotFound, match="no exchange" if exchange else "no queue"):
            write(rabbitmq_amqp_url, table(value=["1"]), **name)
    reserved = pa.array([[("x-a", "1")], [("note", "2")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(SchemaError, match="row 1: key 'note' does not begin with 'x-'"):
        write(rabbitmq_amqp_url, table(value=["1", "2"], message_annotations=reserved), stream=stream)
    raw = Message(body=b"x", inferred=True, annotations={"event-streams-group-key": "k"}).encode()
    with pytest.raises(Refused, match="reserved_annotation_key"):
        write(rabbitmq_amqp_url, table(value=["1"], message=[raw]), stream=stream)
    topics = broker.exchange("topics", "topic", {"#": stream})
    broker.made()
    named = pa.array([{"to": "/queues/x"}], pa.struct([PROPERTIES_TYPE.field("to")]))
    with pytest.raises(SchemaError, match=r"row 0 has a value in 'properties.to'"):
        write(rabbitmq_amqp_url, table(value=["1"], properties=named, k=["a"]), exchange=topics, routingKeyColumn="k")


def test_what_the_broker_sets_is_not_sent_back(broker: Broker, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    old = [("x-stream-offset", "17"), ("x-exchange", "old"), ("x-routing-key", "old"), ("x-own", "1")]
    rows = table(value=["1"], message_annotations=pa.array([old], pa.map_(pa.string(), pa.string())))
    write(rabbitmq_amqp_url, rows, stream=stream)
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000) as client:
        read = RangeRead(stream, stream, EARLIEST, f"{0:020d}", ("message_annotations",))
        (row,) = [row for batch in client.fetch(read) for row in batch.to_pylist()]
    expected = [("x-stream-offset", "0"), ("x-routing-key", stream), ("x-exchange", ""), ("x-own", "1")]
    assert row["message_annotations"] == expected


@pytest.mark.parametrize("routing", ["hash", "rstream"])
def test_super_streams_have_keys_where_other_clients_put_them(
    broker: Broker, rabbitmq_amqp_url: str, rabbitmq_url: str, routing: str
) -> None:
    from spark_streams.client import RabbitPublishing, TaskPublisher, encode_columns

    amqp, other = broker.create_super(3, "amqp"), broker.create_super(3, "other")
    keys = [f"customer-{n}" for n in range(60)]
    write(rabbitmq_amqp_url, table(value=keys, key=keys), superStream=amqp, routing=routing)
    how = RabbitPublishing(super_stream=other, routing=routing, request_timeout_ms=120_000)  # type: ignore[arg-type]
    publisher = TaskPublisher(parse_url(rabbitmq_url, schemes=RABBITMQ_SCHEMES), how, None)
    with contextlib.closing(publisher):
        publisher.send(encode_columns({"value": pa.array(keys)}), pa.array(keys), None, str)
        publisher.flush()
    for n in range(3):
        assert broker.bodies(f"{amqp}-{n}") == broker.bodies(f"{other}-{n}") != []
    with pytest.raises(NotFound):
        write(rabbitmq_amqp_url, table(value=["1"], key=["k"]), superStream=broker.name("none"))


def test_filter_values_are_those_of_a_column(broker: Broker, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    rows = table(value=["1", "2", "3"], color=["red", "blue", None])
    write(rabbitmq_amqp_url, rows, stream=stream, filterValueColumn="color")
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000) as client:
        read = RangeRead(stream, stream, EARLIEST, f"{2:020d}", ("message_annotations",))
        found = [dict(row["message_annotations"]) for batch in client.fetch(read) for row in batch.to_pylist()]
    assert [row.get("x-stream-filter-value") for row in found] == ["red", "blue", None]


def test_more_links_than_a_connection_takes_go_on_another(broker: Broker, rabbitmq_amqp_url: str) -> None:
    stream = broker.create()
    with AmqpClient(parse_url(rabbitmq_amqp_url), timeout_ms=120_000) as client:
        publishers = [client.publisher(stream) for _ in range(70)]
        assert len(client._connections._open) == 2
        for publisher in publishers:
            publisher.send(client.encode({"value": pa.array(["x"])}), str)
            publisher.flush()
        for publisher in publishers[:10]:
            publisher.close()
        more = [client.publisher(stream) for _ in range(10)]
        assert len(client._connections._open) == 2, "sessions that ended are free again"
        for publisher in (*publishers[10:], *more):
            publisher.close()
        assert client.describe(stream).partitions[stream].latest == f"{69:020d}"


def test_the_command_line_writes_what_rabbitmq_takes(
    broker: Broker, rabbitmq_amqp_url: str, reference_log: StreamFactory
) -> None:
    """Keyed events of the log: their key is an annotation there that would end the link."""
    orders = reference_log.create("orders", 1)
    orders.produce({"value": f"e{n}", "key": f"k{n}"} for n in range(5))
    target = broker.declare("copied", "classic")
    broker.made()
    done = run("copy", url(orders, "amqp"), f"{rabbitmq_amqp_url}#{target}")
    assert done.exit_code == 0, done.output
    assert [(bytes(each.body), each.group_id) for each in received(rabbitmq_amqp_url, target, 5)] == [
        (f"e{n}".encode(), f"k{n}") for n in range(5)
    ]
