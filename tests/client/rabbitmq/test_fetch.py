"""Ranges of streams, read from every broker: each record once, and an end whatever lies there."""

from __future__ import annotations

import datetime
import gzip
import random
import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.client import Consumer, FilterValues, RabbitClient, RangeRead
from spark_streams.errors import NotFound, PositionLost
from spark_streams.offsets import offset_column
from spark_streams.position import EARLIEST, After, At
from tests.client.rabbitmq.brokers import Broker, amqp, latest, read, text
from tests.faults.proxy import TcpProxy
from tests.real_rabbitmq.by_hand import METADATA_UPDATE, NEXT, STORE_OFFSET, sub_batch
from tests.real_rabbitmq.by_hand import text as string
from tests.server.rabbitmq.consuming import wait_until_stored

COUNT = 5_000


def store_offset(broker: Broker, stream: str, offset: int) -> None:
    """Have a real broker write a tracking chunk, and return once it has: the request has no answer."""
    with broker.peer() as peer:
        peer.send(STORE_OFFSET, string("reader") + string(stream) + struct.pack(">Q", offset))
        wait_until_stored(peer, "reader", stream, offset)


def test_all_ranges_of_a_stream_hold_what_was_published(broker: Broker) -> None:
    bodies = [b"%d" % i + b"." * (i % 50) for i in range(COUNT)]
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [amqp(body) for body in bodies], each=137)
        end = latest(client, stream)
        assert end == text(COUNT - 1)
        assert client.describe(stream).partitions[stream].earliest == text(0)
        whole = read(client, stream, end, columns=("offset", "value", "partition", "stream", "timestamp"))
        assert whole["value"].to_pylist() == bodies
        assert whole["offset"].to_pylist() == [text(i) for i in range(COUNT)]
        assert set(whole["partition"].to_pylist()) == set(whole["stream"].to_pylist()) == {stream}
        age = datetime.datetime.now(datetime.timezone.utc) - whole["timestamp"][0].as_py()
        assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=5)
        chance = random.Random(3)
        for _ in range(40):
            first, last = chance.randrange(COUNT), chance.randrange(COUNT)
            start = chance.choice([At(text(first)), After(text(first - 1))]) if first else EARLIEST
            assert read(client, stream, last, start)["value"].to_pylist() == bodies[first : last + 1]


def test_batches_keep_their_size(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [amqp(b"x" * 90)] * COUNT)
        whole = read(client, stream, COUNT - 1, max_rows=300)
        assert max(len(chunk) for chunk in whole["value"].chunks) == 300
        whole = read(client, stream, COUNT - 1, max_bytes=10_000)
        assert 80 < max(len(chunk) for chunk in whole["value"].chunks) <= 100
        assert whole.num_rows == COUNT


def test_a_message_larger_than_a_batch_may_be(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [amqp(bytes([i]) * 900_000) for i in range(4)], each=1)
        whole = read(client, stream, 3, max_bytes=1_000)
        assert [value[:1] for value in whole["value"].to_pylist()] == [bytes([i]) for i in range(4)]


def test_messages_that_are_not_amqp_are_values(broker: Broker) -> None:
    bodies = [b"plain text", b"", b"\0", b"\0\x01\x02", bytes(5_000), b"\xff" * 40, b"\0Su\xa0\0", b"\0S\x79\xa0\0"]
    expected = [bodies[0], None, *bodies[2:6], b"", bodies[7]]
    columns = ("message", "value", "key", "properties", "application_properties", "message_annotations", "offset")
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [*bodies, amqp(b"last", "red")])
        table = read(client, stream, len(bodies), columns=columns)
    assert table["value"].to_pylist() == [*expected, b"last"]
    assert table["message"].to_pylist() == [*bodies, amqp(b"last", "red")]
    assert table["application_properties"].to_pylist() == [None] * len(bodies) + [[("color", "red")]]
    for name in ("key", "properties", "message_annotations"):
        assert table[name].null_count == table.num_rows, name


def test_an_unset_time_is_no_time(broker: Broker) -> None:
    # Properties (0x73) with a message id only: the list ends long before creation-time.
    message = b"\0Ss\xc0\x04\x01\xa1\x01m" + amqp(b"body")
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [message])
        properties = read(client, stream, 0, columns=("properties",))["properties"].to_pylist()[0]
    assert properties["message_id"] == "m"
    assert properties["creation_time"] is None
    assert properties["absolute_expiry_time"] is None


def test_records_of_sub_batches(broker: Broker) -> None:
    bodies = [b"record %d" % i for i in range(100)]
    inner = b"".join(struct.pack(">I", len(amqp(body))) + amqp(body) for body in bodies)
    with broker.stream() as stream, broker.client() as client:
        with broker.peer() as peer:
            peer.declare(1, stream)
            peer.publish(1, [sub_batch(1, 0, 100, len(inner), inner)])
            peer.publish(1, [sub_batch(2, 1, 100, len(inner), gzip.compress(inner))])
            peer.confirmed(2)
        broker.publish(stream, [amqp(b"tail")])
        assert latest(client, stream) == text(200)
        assert read(client, stream, 200)["value"].to_pylist() == [*bodies, *bodies, b"tail"]
        assert read(client, stream, 150, After(text(49)))["value"].to_pylist() == [*bodies[50:], *bodies[:51]]


def test_rows_of_one_stream_by_filter_value(broker: Broker) -> None:
    """What a broker lets through by mistake, or because it cannot filter, is dropped."""
    colors = ["red", "green", None, "blue"]
    filters = FilterValues(("red", "blue"), False, "application_properties.color")
    with broker.stream() as stream:
        for round_ in range(6):
            mixed = [(colors[i % 4], amqp(b"%d" % i, colors[i % 4])) for i in range(round_ * 20, round_ * 20 + 20)]
            only_green = [("green", amqp(b"%d" % i, "green")) for i in range(1_000, 1_100)]
            for batch in (mixed, only_green):
                if broker.is_old:
                    broker.publish(stream, [message for _, message in batch])
                else:
                    broker.publish_filtered(stream, batch)
        with broker.client(filters=filters) as client:
            end = latest(client, stream)
            assert end == text(719)
            table = read(client, stream, end)
            assert table["value"].to_pylist() == [b"%d" % i for i in range(120) if colors[i % 4] in ("red", "blue")]
            assert table.column_names == ["value", "offset"]
            # A range of chunks that the filter skips all: it still ends.
            assert read(client, stream, 119, At(text(20))).num_rows == 0
        unfiltered = FilterValues(("red",), True, "application_properties.color")
        with broker.client(filters=unfiltered) as client:
            table = read(client, stream, end)
            assert table["value"].to_pylist() == [b"%d" % i for i in range(120) if colors[i % 4] in ("red", None)]


def test_a_filter_that_nothing_matches_ends_at_the_end(broker: Broker) -> None:
    with broker.stream() as stream, broker.client(filters=FilterValues(("x",), False, "key")) as client:
        broker.publish(stream, [amqp(b"a")] * 500, each=10)
        assert read(client, stream, 499).num_rows == 0


@pytest.mark.rabbitmq
@pytest.mark.parametrize("broker", ["rabbitmq", "rabbitmq-3.10"], indirect=True)
def test_a_range_ends_at_and_before_tracking_chunks(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [amqp(b"%d" % i) for i in range(10)])  # 0 to 9
        store_offset(broker, stream, 5)  # 10
        broker.publish(stream, [amqp(b"%d" % i) for i in range(10, 20)])  # 11 to 20
        store_offset(broker, stream, 6)  # 21
        bodies = [b"%d" % i for i in range(20)]
        for end in (9, 10):
            assert read(client, stream, end)["value"].to_pylist() == bodies[:10]
        for end in (20, 21):
            table = read(client, stream, end)
            assert table["value"].to_pylist() == bodies
            assert table["offset"].to_pylist() == [text(i) for i in range(21) if i != 10]
        assert read(client, stream, 21, At(text(21))).num_rows == 0
        assert read(client, stream, 10, At(text(10))).num_rows == 0
        assert read(client, stream, 11, At(text(10)))["value"].to_pylist() == [b"10"]
        # The newest version says the offset that the tracking chunk uses up, 3.10 only user chunks.
        assert latest(client, stream) == (text(20) if broker.is_old else text(21))
        found = {n: client.log_identity(stream, {stream: text(n)})[stream] for n in (0, 9, 10, 11, 21, 22)}
        assert len({found[n] for n in (9, 10, 11, 21)}) == 4
        assert [n for n, told in found.items() if told is None] == [22]


@pytest.mark.rabbitmq
@pytest.mark.parametrize("broker", ["rabbitmq", "rabbitmq-3.10"], indirect=True)
def test_a_stream_of_nothing_but_tracking(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        store_offset(broker, stream, 1)
        found = client.describe(stream).partitions[stream]
        if not broker.is_old:
            assert (found.earliest, found.latest) == (text(0), text(0))
            assert read(client, stream, 0).num_rows == 0
            assert read(client, stream, 0, At(text(0))).num_rows == 0
        broker.publish(stream, [amqp(b"first")])
        assert latest(client, stream) == text(1)
        assert read(client, stream, 1, At(text(0)))["value"].to_pylist() == [b"first"]


def test_connections_that_break_lose_and_repeat_nothing(broker: Broker) -> None:
    bodies = [b"%06d" % i for i in range(COUNT)]
    chance = random.Random(5)
    cuts = [chance.randrange(300, 12_000) for _ in range(12)]
    port = broker.endpoint.port
    with broker.stream() as stream:
        broker.publish(stream, [amqp(body) for body in bodies], each=100)
        with TcpProxy(port, cuts) as proxy, broker.client(proxy.port) as client:
            assert read(client, stream, COUNT - 1, max_rows=500)["value"].to_pylist() == bodies
            assert proxy.connections > 3


def test_what_is_not_there_in_time_is_a_loss_and_no_end(broker: Broker) -> None:
    with broker.stream() as stream, broker.client(timeout_ms=2_000) as client:
        broker.publish(stream, [amqp(b"0"), amqp(b"1")])
        with pytest.raises(PositionLost, match=r"its last offset is '0{19}1'"):
            read(client, stream, 50)
        assert read(client, stream, 50, loss=False)["value"].to_pylist() == [b"0", b"1"]


def test_a_stream_that_is_deleted_or_made_anew_in_mid_range(broker: Broker) -> None:
    """Brokers may go on from a file that they have open; a reader gets the old records or an error, never others."""
    old, new = ([amqp(each * 1_000)] * 20_000 for each in (b"o", b"n"))  # more than the window holds
    for again, fault, words in ((False, NotFound, "stream-does-not-exist"), (True, PositionLost, "created again")):
        with broker.stream() as stream, broker.client() as client, broker.peer() as watcher:
            broker.publish(stream, old, each=50)
            assert watcher.subscribe(0, stream, NEXT) == 1
            rows = _open(client, stream, len(old) - 1)
            seen = [next(rows)]
            assert watcher.delete(stream) == 1
            watcher.expect(METADATA_UPDATE)
            if again:
                assert watcher.create(stream) == 1
                broker.publish(stream, new)
            try:
                seen += rows
            except fault as raised:
                assert words in str(raised)
            else:
                assert sum(batch.num_rows for batch in seen) == len(old)
            assert {value[:1] for batch in seen for value in batch["value"].to_pylist()} == {b"o"}


def test_identities_differ_after_a_stream_was_created_again(broker: Broker) -> None:
    with broker.stream() as stream, broker.client() as client:
        broker.publish(stream, [amqp(b"x")] * 30, each=10)
        before = client.log_identity(stream, {stream: text(29)})
        assert before == client.log_identity(stream, {stream: text(29)})
        assert before[stream] is not None
        with broker.peer() as peer:
            assert peer.delete(stream) == 1
            assert peer.create(stream) == 1
        assert client.log_identity(stream, {stream: text(29)}) == {stream: None}
        broker.publish(stream, [amqp(b"x")] * 30, each=10)
        assert client.log_identity(stream, {stream: text(29)}) not in ({stream: None}, before)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("broker", ["rabbitmq", "rabbitmq-3.10"], indirect=True)
def test_retention_that_overtakes_a_reader(broker: Broker) -> None:
    """Seen on brokers: the reader's segment ends, and they go on with the first one that is left, without a word."""
    arguments = {"max_length_bytes": "300000", "stream_max_segment_size_bytes": "100000"}
    with broker.stream(**arguments) as stream, broker.client() as client, broker.client() as patient:
        broker.publish(stream, [amqp(b"x" * 1_000)] * 60, each=1)
        strict, lenient = (_open(c, stream, 2_000, loss, 10) for c, loss in ((client, True), (patient, False)))
        before = [next(strict).num_rows, next(lenient).num_rows]
        broker.publish(stream, [amqp(b"y" * 1_000)] * 2_100, each=1)
        with pytest.raises(PositionLost, match="the next offset there is"):
            for batch in strict:
                before[0] += batch.num_rows
        offsets = [int(o) for batch in lenient for o in batch["offset"].to_pylist()]
        earliest = client.describe(stream).partitions[stream].earliest
        assert earliest is not None
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == 2_000
        # Nothing that is left is skipped: from the first retained record on, they are all there.
        kept = [o for o in offsets if o >= int(earliest)]
        assert len(kept) >= 2_000 - int(earliest) - 3  # but for tracking chunks that begin segments
        with pytest.raises(PositionLost, match=r"at offset '0{20}', but the next offset there is"):
            read(client, stream, 2_000, At(text(0)))
        assert read(client, stream, 5, At(text(0)), loss=False).num_rows == 0


@pytest.mark.rabbitmq
def test_one_active_consumer_at_a_time(real: Broker) -> None:
    consumer = Consumer("group", single_active=True)
    with real.stream() as stream, real.client(consumer=consumer) as one, real.client(consumer=consumer) as two:
        real.publish(stream, [amqp(b"x" * 1_000)] * 5_000)
        first = _open(one, stream, 4_999)
        count = next(first).num_rows
        second = _open(two, stream, 4_999)
        count += sum(batch.num_rows for batch in first)
        assert count == 5_000
        assert sum(batch.num_rows for batch in second) == 5_000


def test_offsets_as_columns() -> None:
    numbers = [0, 1, 9_999, 10_000, 123_456_789_012, 2**63 - 1]
    assert offset_column(np.array(numbers, np.int64)).to_pylist() == [text(n) for n in numbers]
    assert offset_column(np.array([], np.int64)).to_pylist() == []
    for first in (0, 9_998, 99_989_999, 123_456_789_012, 2**63 - 20_050):
        for run in (first + np.arange(20_050), np.array([first, first + 2, first + 1, first + 3])):
            assert offset_column(run).to_pylist() == [text(n) for n in run.tolist()]


def _open(
    client: RabbitClient, stream: str, end: int, loss: bool = True, max_rows: int = 100
) -> Iterator[pa.RecordBatch]:
    asked = RangeRead(stream, stream, EARLIEST, text(end), ("value", "offset"), fail_on_data_loss=loss)
    return client.fetch(asked, max_rows=max_rows)
