"""Requirements of the roles producer and consumer, on our client, against a scripted node."""

from __future__ import annotations

import ast
import re
import time
from pathlib import Path
from typing import Any

import proton
import pytest
from proton import Array, Data, Delivery, Message, symbol, timestamp

import spark_streams.client
from spark_streams.client import retry
from spark_streams.client.amqp.client import AmqpClient
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.links import Binding, attach_receiver
from spark_streams.client.log_client import RangeRead
from spark_streams.client.retry import Deadline
from spark_streams.endpoint import Endpoint, Secret, parse_url
from spark_streams.errors import OptionError, OwnershipLost, RemoteProtocolError
from spark_streams.position import EARLIEST, After, At
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_STREAMS
from tests.client.amqp.fake_node import FakeNode, Script, event, info, refuse
from tests.server.amqp.raw_peer import (
    CAPABILITY,
    CHANGED,
    EPOCH,
    GROUP,
    OFFSET,
    PARTITION,
    SOURCE_PARTITION,
    TARGET_PARTITION,
    TIMESTAMP,
)

OPAQUE = ["!", "a4c5", "a4c50", "a4c6 x", "b'b", "z~"]
"""Offsets that are in order as text and mean nothing otherwise."""


def client_of(fake: FakeNode, **options: Any) -> AmqpClient:
    return AmqpClient(Endpoint("amqp", "127.0.0.1", fake.port), timeout_ms=120_000, **options)


def read(start: Any = EARLIEST, end: str = OPAQUE[-1], **options: Any) -> RangeRead:
    options.setdefault("columns", ("value",))
    return RangeRead("orders", options.pop("partition", "0"), start, end, **options)


def values(client: AmqpClient, what: RangeRead) -> list[bytes]:
    return [row["value"] for batch in client.fetch(what) for row in batch.to_pylist()]


def opaque_events(offsets: list[str] = OPAQUE) -> list[bytes]:
    return [event(b"%d" % OPAQUE.index(o), o, partition="0") for o in offsets]


def test_es_011_the_client_wants_the_capability_and_uses_the_extensions() -> None:
    script = Script(events={"orders": opaque_events()}, info={"orders": info(p0=("!", "z~"))})
    with FakeNode(script) as fake, client_of(fake) as client:
        assert len(values(client, read())) == 6
        assert [list(d) for d in fake.desired] == [[str(CAPABILITY)]]
        attach = next(a for a in fake.attaches if a.address == "orders")
        assert attach.properties[PARTITION] == "0" and type(attach.properties[PARTITION]) is symbol
        assert [f.value for f in attach.filters.values()] == [{OFFSET: "@earliest"}]


def test_es_012_a_peer_without_the_capability_is_a_clear_error() -> None:
    script = Script(capability=False, events={"orders": opaque_events()}, info={"orders": info(p0=("!", "z~"))})
    with FakeNode(script) as fake:
        with client_of(fake) as client, pytest.raises(RemoteProtocolError, match="AMQP_EVENT_STREAMS_V1_0"):
            values(client, read())
        with client_of(fake, dialect=EVENT_STREAMS) as client:
            assert len(values(client, read())) == 6


def test_es_101_the_client_follows_a_redirect() -> None:
    with FakeNode(Script(events={"elsewhere": opaque_events()})) as there:
        target = {
            symbol("hostname"): "other.example",
            symbol("network-host"): "127.0.0.1",
            symbol("port"): proton.uint(there.port),
            symbol("address"): "elsewhere",
        }
        script = Script(on_attach=lambda link, _: refuse(link, "amqp:link:redirect", "moved", target))
        with FakeNode(script) as here, client_of(here) as client:
            assert values(client, read()) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert [a.properties[PARTITION] for a in there.attaches if a.address == "elsewhere"] == ["0"]


def test_es_108_after_a_graceful_close_the_client_tries_a_new_link(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(retry, "_pause", pauses.append)

    def close_the_first(link: Any, number: int) -> bool:
        if number > 2:
            return False
        link.source.copy(link.remote_source)
        link.properties = dict(link.remote_properties or {})
        link.open()
        if number == 2:
            link.condition = proton.Condition("amqp:link:detach-forced", "renegotiating")
        link.close()
        return True

    script = Script(
        events={"orders": opaque_events()}, on_attach=close_the_first, info={"orders": info(p0=("!", "z~"))}
    )
    with FakeNode(script) as fake, client_of(fake, consumer_group="g", epoch=3) as client:
        assert len(values(client, read())) == 6
        links = [a for a in fake.attaches if a.address == "orders"]
    assert [a.properties[GROUP] for a in links] == ["g", "g", "g"]
    assert len(pauses) == 2 and 0 < pauses[0] < pauses[1], "it backs off"


@pytest.mark.parametrize("name", ["west/1 a", "0x10", "007", "@", "p" * 200])
def test_es_109_partition_names_mean_nothing_to_the_client(name: str) -> None:
    answer = {
        "partitions": [{"partition": symbol(name), "earliest-offset": symbol("!"), "latest-offset": symbol("z~")}]
    }
    offered = [event(b"x", "z~", partition=name)]
    with FakeNode(Script(info={"orders": answer}, events={"orders": offered})) as fake, client_of(fake) as client:
        assert list(client.describe("orders").partitions) == [name]
        assert values(client, read(partition=name)) == [b"x"]
        assert fake.attaches[1].properties[PARTITION] == name
        publisher = client.publisher("orders", partition=name)
        publisher.close()
        assert fake.attaches[-1].properties[PARTITION] == name and not fake.attaches[-1].receives


def test_es_110_our_producer_gives_hints_for_single_events() -> None:
    import pyarrow as pa

    columns = {"value": pa.array([b"a", b"b"]), "partition": pa.array(["7", None]), "key": pa.array([None, "k"])}
    with FakeNode(Script()) as fake, client_of(fake) as client:
        publisher = client.publisher("orders")
        publisher.send(encode_columns(columns), lambda row: f"row {row}")
        publisher.flush()
        publisher.close()
        sent = [decoded(t) for t in fake.transfers]
    assert [dict(m.instructions or {}) for m in sent] == [{TARGET_PARTITION: "7"}, {}]
    assert [(m.annotations or {}).get("event-streams-group-key") for m in sent] == [None, "k"]
    assert type(sent[0].instructions[TARGET_PARTITION]) is symbol


def decoded(encoded: bytes) -> Message:
    message = Message()
    message.decode(encoded)
    return message


@pytest.mark.parametrize("settled", [False, True])
def test_es_118_a_transfer_of_another_partition_is_rejected(settled: bool) -> None:
    def choose(link: Any, _: int) -> bool:
        link.source.copy(link.remote_source)
        link.properties = dict(link.remote_properties or {})
        link.snd_settle_mode = proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED
        link.open()
        return True

    offered = [event(b"right", "a", partition="0"), event(b"wrong", "b", partition="1")]
    script = Script(events={"orders": offered}, settled=settled, on_attach=choose)
    with FakeNode(script) as fake, client_of(fake) as client:
        with pytest.raises(RemoteProtocolError, match="partition '1'"):
            values(client, read(end="b"))
        for _ in range(100):
            if fake.closes:
                break
            time.sleep(0.01)
        assert fake.closes[0] == "amqp:not-allowed"  # a settled transfer can be told no outcome: the link is
        if not settled:
            assert [c for state, c in fake.outcomes if state == Delivery.REJECTED] == ["amqp:not-allowed"]


def test_es_118_without_the_annotation_the_link_property_counts() -> None:
    with FakeNode(Script(events={"orders": [event(b"x", "a")]})) as fake, client_of(fake) as client:
        rows = [r for b in client.fetch(read(end="a", columns=("value", "partition"))) for r in b.to_pylist()]
    assert rows == [{"value": b"x", "partition": "0"}]


def test_es_120_forwarding_strips_where_an_event_came_from() -> None:
    message = Message(body=b"x", inferred=True)
    message.instructions = {
        OFFSET: symbol("a"),
        TIMESTAMP: timestamp(5),
        SOURCE_PARTITION: symbol("0"),
        CHANGED: Array(proton.UNDESCRIBED, Data.SYMBOL, symbol("0"), symbol("1")),
    }
    message.annotations = {symbol("event-streams-group-key"): "k"}
    script = Script(events={"orders": [bytes(message.encode())]})
    for columns in (("message",), ("value", "key", "properties", "application_properties", "message_annotations")):
        with FakeNode(script) as fake, client_of(fake) as client:
            batch = next(iter(client.fetch(read(end="a", columns=columns))))
            publisher = client.publisher("copies")
            publisher.send(encode_columns({name: batch.column(name) for name in columns}), str)
            publisher.flush()
            publisher.close()
            forwarded = decoded(fake.transfers[0])
        assert bytes(forwarded.body) == b"x" and forwarded.annotations["event-streams-group-key"] == "k"
        assert not forwarded.instructions
        for name in (SOURCE_PARTITION, CHANGED, OFFSET, TIMESTAMP):
            assert name.encode() not in fake.transfers[0]


def test_es_200_our_consumer_joins_with_group_and_epoch() -> None:
    script = Script(events={"orders": opaque_events()})
    with FakeNode(script) as fake, client_of(fake, consumer_group="billing", epoch=4) as client:
        values(client, read())
        asked = fake.attaches[0].properties
    assert asked == {PARTITION: "0", GROUP: "billing", EPOCH: 4}
    assert type(asked[GROUP]) is str and type(asked[EPOCH]) is int  # a string, and a long


def test_es_213_a_displaced_consumer_stops_and_says_who_took_over() -> None:
    def steal(link: Any, _: int) -> bool:
        link.source.copy(link.remote_source)
        link.properties = dict(link.remote_properties or {})
        link.open()
        link.condition = proton.Condition("amqp:link:stolen", "taken over by a consumer with epoch 5")
        link.close()
        return True

    with FakeNode(Script(on_attach=steal)) as fake, client_of(fake, consumer_group="g", epoch=4) as client:
        with pytest.raises(OwnershipLost) as lost:
            values(client, read())
        assert lost.value.epoch == 5 and not lost.value.retriable
        assert len(fake.attaches) == 1  # it does not fight for it


def test_es_213_the_node_tells_the_new_owners_epoch(node: Any) -> None:
    node.create()
    port = int(node.url.rsplit(":", 1)[1])
    endpoint = Endpoint("amqp", "127.0.0.1", port, "guest", Secret("guest"))
    connection = Connection(endpoint, timeout_ms=120_000)
    link = attach_receiver(connection, "orders", Binding("orders", "0", consumer_group="g", epoch=4))
    node.peer().receiver("orders", properties={GROUP: "g", PARTITION: symbol("0"), EPOCH: 17})
    deadline = Deadline(5_000)
    with pytest.raises(OwnershipLost) as lost:
        while True:
            link.check()
            connection.turn(deadline.left_s("no detach"))
    assert lost.value.epoch == 17
    connection.close()


def test_es_301_offsets_are_compared_and_sent_back_but_never_built() -> None:
    script = Script(events={"orders": opaque_events(OPAQUE[2:5])}, info={"orders": info(p0=("!", "z~"))})
    with FakeNode(script) as fake, client_of(fake) as client:
        assert values(client, read(After("a4c5"), "b'b")) == [b"2", b"3", b"4"]
        assert client.offsets("orders", "0", After("a4c5"), "a4c6 x").take(10) == ["a4c50", "a4c6 x"]
        assert values(client, read(At("a4c50"), "a4c50")) == [b"2"]
        asked = [next(iter(a.filters.values())).value for a in fake.attaches if a.filters]
    assert asked == [{OFFSET: "a4c5"}, {OFFSET: "a4c5"}, "d.event-streams-offset >= 'a4c50'"]


def test_es_301_no_code_of_the_client_computes_with_offsets() -> None:
    """Whatever is called an offset there is neither made a number nor added to."""
    for file in sorted(Path(spark_streams.client.__file__).parent.glob("*.py")):
        for at in ast.walk(ast.parse(file.read_text())):
            if isinstance(at, ast.Call) and isinstance(at.func, ast.Name) and at.func.id in ("int", "float"):
                assert "offset" not in ast.unparse(at).lower(), f"{file.name}:{at.lineno}: {ast.unparse(at)}"
            if isinstance(at, ast.BinOp) and isinstance(at.op, (ast.Add, ast.Sub)):
                for side in (at.left, at.right):
                    name = side.id if isinstance(side, ast.Name) else ""
                    assert "offset" not in name, f"{file.name}:{at.lineno}: {ast.unparse(at)}"


def test_es_303_each_offset_that_is_sent_was_learnt_from_the_node() -> None:
    script = Script(info={"orders": info(p0=("!", "z~"))}, events={"orders": opaque_events()})
    with FakeNode(script) as fake, client_of(fake) as client:
        bounds = client.describe("orders").partitions["0"]
        walk = client.offsets("orders", "0", EARLIEST, bounds.latest)
        learnt = walk.take(6)
        walk.close()
        values(client, read(After(learnt[2]), learnt[3]))
        values(client, read(At(bounds.earliest or ""), learnt[4]))
        client.first_at_time("orders", "0", -5)
        sent = [next(iter(a.filters.values())).value for a in fake.attaches if a.filters]
    assert learnt == OPAQUE
    assert sent == [{OFFSET: "@earliest"}, {OFFSET: "a4c50"}, "d.event-streams-offset >= '!'", {TIMESTAMP: -6}]


def test_es_307_rows_stay_in_the_order_of_the_log_whatever_their_timestamps() -> None:
    instants = [500, 100, 900, -5, 900, 0]
    offered = [event(b"%d" % t, o, t, "0") for t, o in zip(instants, OPAQUE, strict=True)]
    with FakeNode(Script(events={"orders": offered})) as fake, client_of(fake) as client:
        batches = list(client.fetch(read(columns=("value", "offset"))))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [int(r["value"]) for r in rows] == instants
    assert [r["offset"] for r in rows] == OPAQUE


def test_es_401_the_client_asks_the_information_source_for_one_message() -> None:
    credits = []

    def note(link: Any, _: int) -> bool:
        credits.append(link)
        return False

    with FakeNode(Script(info={"orders": info(p0=(None, None))}, on_attach=note)) as fake, client_of(fake) as client:
        assert client.describe("orders").partitions["0"].latest is None
        assert [a.address for a in fake.attaches] == ["orders/$info"]
        assert fake.attaches[0].filters == {}


def test_es_406_unknown_keys_of_the_information_are_ignored() -> None:
    answer = info(p0=("a", "b"))
    answer["partitions"][0] |= {"size": 5, "x-opt-nested": {"a": [1, 2]}, symbol("color"): symbol("red")}
    answer |= {"created": timestamp(5), "partitions-count": 9}
    with FakeNode(Script(info={"orders": answer})) as fake, client_of(fake) as client:
        bounds = client.describe("orders").partitions["0"]
    assert (bounds.earliest, bounds.latest, bounds.truncated) == ("a", "b", None)


def test_a_virtual_host_is_for_rabbitmq() -> None:
    with (
        FakeNode(Script()) as node,
        AmqpClient(parse_url(f"{node.url}/shop"), timeout_ms=120_000) as client,
        pytest.raises(OptionError, match=r"'url': it names the virtual host 'shop', and the peer at .* is no RabbitMQ"),
    ):
        client.describe("orders")


def test_a_peer_without_a_dialect_can_be_sent_to_and_not_read() -> None:
    with FakeNode(Script(capability=False)) as node, AmqpClient(parse_url(node.url), timeout_ms=120_000) as client:
        assert client.capabilities()["dialect"] == "none that is known"
        client.publisher("orders").close()
        words = "'rabbitmq' (RabbitMQ 4) by the product RabbitMQ"
        with pytest.raises(RemoteProtocolError, match=re.escape(words)):
            client.describe("orders")
