"""Accidents that other connectors had with streams, one test each: none of them may happen here.

Some need more than a served log does: they ask for ``own_log``, or for a scripted broker.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from pathlib import Path

import proton
import pytest
from rstream import AMQPMessage
from rstream._pyamqp.message import Properties
from spark_streams.sources.rabbitmq_stream import connect

from spark_streams.client import RangeRead, retry
from spark_streams.client.retry import Backoff
from spark_streams.errors import AuthenticationFailed, DeadlineExceeded, NotFound, PositionLost, Refused
from spark_streams.options.rabbitmq_stream import parse_source
from spark_streams.position import EARLIEST
from spark_streams.spark.source.micro_batch import MicroBatches
from tests.client.rabbitmq.scripted import OK, Scripted, Wire, metadata, stats
from tests.e2e.rabbitmq.broker import SMALL, Broker, body, numbers, offset, on_both, on_embedded
from tests.e2e.rabbitmq.conftest import Embedded
from tests.e2e.rabbitmq.queries import Queries, read_here
from tests.faults.proxy import TcpProxy
from tests.real_rabbitmq import by_hand

pytestmark = pytest.mark.spark

FROM_EARLIEST = {"startingOffsets": "earliest"}


def test_data_lost_when_the_position_lies_below_retention(queries: Queries, broker: Broker) -> None:
    orders = broker.create(**SMALL)
    broker.publish(orders, numbers(0, 5))
    queries.drain(orders, **FROM_EARLIEST)
    left = broker.truncate(orders, beyond=20)
    message = queries.start(orders, trigger={"availableNow": True}, **FROM_EARLIEST).failure()
    assert "PositionLost" in message
    assert f"partition '{orders}': reading was to go on after '{offset(4)}'" in message
    assert "'failOnDataLoss' to 'false'" in message
    query = queries.drain(orders, failOnDataLoss="false", **FROM_EARLIEST)
    first, second = (rows for rows in query.batches.values() if rows)
    assert [row.offset for row in first] == [offset(n) for n in range(5)]
    assert int(second[0].offset) >= left
    assert [bytes(row.value) for row in second] == [b"x" * 1_000] * len(second)


@pytest.mark.nightly  # in this process: tests/real_rabbitmq/test_micro_batch.py
def test_available_now_with_a_limit_spinning_on_empty_batches(
    queries: Queries, broker: Broker, rate_limits: bool
) -> None:
    if not rate_limits:
        pytest.skip("this Spark tells no limits")
    orders = broker.create()
    broker.publish(orders, numbers(0, 25))
    for n in range(3):
        broker.store(orders, "someone", n)  # a tracking chunk each, at the tail: offsets 25 to 27
    more = {"maxOffsetsPerTrigger": "10", **FROM_EARLIEST}
    query = queries.drain(orders, **more)
    assert query.bodies() == {orders: numbers(0, 25)}
    assert query.sizes == [10, 10, 5]
    assert queries.drain(orders, **more).sizes == [10, 10, 5], "there is nothing new"
    for n in range(3, 6):
        broker.store(orders, "someone", n)
    assert len(queries.drain(orders, **more).sizes) <= 4, "three offsets, none of which has a message"
    broker.publish(orders, numbers(25, 26))
    assert queries.drain(orders, **more).bodies() == {orders: numbers(0, 26)}


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_a_timestamp_probe_that_times_out_taken_for_nothing_there(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONG_BACKOFF", Backoff(2, 1, 1))

    def held(wire: Wire, correlation: int, _: bytes) -> None:
        known = stats(first_chunk_id=0, committed_chunk_id=0, last_chunk_id=0, committed_offset=9)
        wire.answer(by_hand.STREAM_STATS, correlation, OK, known)

    def is_there(wire: Wire, correlation: int, _: bytes) -> None:
        wire.send(by_hand.METADATA | by_hand.RESPONSE, struct.pack(">I", correlation) + metadata("orders"))

    silent: Callable[[Wire, int, bytes], None] = lambda *_: None  # noqa: E731
    handlers = {
        by_hand.STREAM_STATS: held,
        by_hand.METADATA: is_there,
        by_hand.RESOLVE_OFFSET: silent,
        by_hand.SUBSCRIBE: silent,
    }
    with Scripted(handlers) as peer, pytest.raises(DeadlineExceeded):
        read_here(
            f"rabbitmq-stream://guest:guest@127.0.0.1:{peer.port}",
            stream="orders",
            requestTimeout="300",
            startingOffsetsByTimestampStrategy="latest",
            **{option: "1000"},
        )
    assert any(key in (by_hand.RESOLVE_OFFSET, by_hand.SUBSCRIBE) for key, _ in peer.seen), "it was asked"


@on_both
@pytest.mark.parametrize("strict", [True, False])
def test_a_silent_reconnect_hiding_a_truncated_range(broker: Broker, strict: bool) -> None:
    orders = broker.create(**SMALL)
    broker.publish(orders, ["y" * 1_000] * 150, each=5)
    with TcpProxy(broker.address) as line:
        given = {"url": line.url(broker.url), "stream": orders, "requestTimeout": "120000"}
        with connect(parse_source(given, streaming=False)) as client:
            read = RangeRead(orders, orders, EARLIEST, offset(149), ("offset",), fail_on_data_loss=strict)
            batches = client.fetch(read, max_rows=5)
            offsets = next(batches).column("offset").to_pylist()
            assert line.cut() == 1
            left = broker.truncate(orders, beyond=100)
            if strict:
                with pytest.raises(PositionLost, match=r"the next offset there is|there is nothing"):
                    list(batches)
                return
            offsets += [each for batch in batches for each in batch.column("offset").to_pylist()]
    expected = [n for n in range(150) if n >= left]
    assert [int(each) for each in offsets if int(each) >= left] == expected
    assert offsets == sorted(set(offsets)), "none twice"


@pytest.mark.nightly  # in this process: the next one
@pytest.mark.usefixtures("own_log")
def test_a_partition_that_is_missing_for_a_moment_dropped_and_then_read_twice(
    queries: Queries, broker: Broker, rate_limits: bool
) -> None:
    orders = broker.create_super(2)
    here, away = f"{orders}-0", f"{orders}-1"
    more = {"superStream": orders, **FROM_EARLIEST}
    broker.publish(here, numbers(0, 5))
    broker.publish(away, numbers(0, 5))
    queries.drain(**more)
    with broker.hidden(orders, away):
        broker.publish(here, numbers(5, 8))
        message = queries.start(trigger={"availableNow": True}, **more).failure()
        assert "PositionLost" in message
        assert away in message
        if rate_limits:  # before 4.2 Spark does not tell a source where a batch starts: all is read anew (docs)
            assert queries.drain(failOnDataLoss="false", **more).bodies()[here] == numbers(0, 8)
    broker.publish(away, numbers(5, 7))
    assert queries.drain(**more).bodies() == {here: numbers(0, 8), away: numbers(0, 7)}


@pytest.mark.parametrize("strict", [True, False])
def test_a_partition_that_is_missing_in_between(tmp_path: Path, strict: bool) -> None:
    broker = Embedded(tmp_path / "log")
    with contextlib.closing(broker):
        orders = broker.create_super(2)
        here, away = f"{orders}-0", f"{orders}-1"
        for name in (here, away):
            broker.publish(name, numbers(0, 5))
        more = {"superStream": orders, "failOnDataLoss": str(strict).lower(), "pollInterval": "0", **FROM_EARLIEST}
        options = parse_source({"url": broker.url, **more}, streaming=True)
        with contextlib.closing(MicroBatches(options, ("offset",), connect)) as running:
            first = running.next_end(running.initial(), None)
            broker.publish(here, numbers(5, 8))
            with broker.hidden(orders, away):
                if strict:
                    with pytest.raises(PositionLost, match=rf"partition '{away}'"):
                        running.next_end(first, None)
                    second = first
                else:
                    second = running.next_end(first, None)
                    assert second["partitions"] == {here: {"after": offset(7)}, away: {"after": offset(4)}}
            broker.publish(away, numbers(5, 7))
            third = running.next_end(second, None)
            assert third["partitions"] == {here: {"after": offset(7)}, away: {"after": offset(6)}}


@pytest.mark.parametrize("strict", [True, False])
def test_a_partition_that_is_named_and_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """On the embedded log only: a RabbitMQ forgets the binding of a stream that it deletes."""
    monkeypatch.setattr(retry, "LONG_BACKOFF", Backoff(3, 1, 1))
    broker = Embedded(tmp_path / "log")
    with contextlib.closing(broker):
        orders = broker.create_super(2)
        here, away = f"{orders}-0", f"{orders}-1"
        for name in (here, away):
            broker.publish(name, numbers(0, 5))
        more = {"superStream": orders, "failOnDataLoss": str(strict).lower(), **FROM_EARLIEST}
        options = parse_source({"url": broker.url, **more}, streaming=True)
        running = MicroBatches(options, ("offset",), connect)
        with contextlib.closing(running):
            begin = running.initial()
            first = running.next_end(begin, None)
            broker.publish(here, numbers(5, 8))
            with broker.gone(away):
                time.sleep(options.poll_interval_ms / 1_000)
                if strict:
                    with pytest.raises(NotFound, match=rf"partition '{away}' that is not there: stream-does-not-exist"):
                        read_here(broker.url, **more)
                    with pytest.raises(PositionLost, match=rf"partition '{away}'.*not there: stream-does-not-exist"):
                        running.next_end(first, None)
                    return
                assert read_here(broker.url, **more) == {here: numbers(0, 8)}
                second = running.next_end(first, None)
                assert second["partitions"] == {here: {"after": offset(7)}, away: {"after": offset(4)}}
            broker.publish(away, numbers(5, 7))
            time.sleep(options.poll_interval_ms / 1_000)
            assert running.next_end(second, None)["partitions"][away] == {"after": offset(6)}


def test_an_unset_amqp_timestamp_decoded_as_1970(queries: Queries, broker: Broker) -> None:
    orders = broker.create()
    at_1970 = b"\x00\x53\x73\xc0\x13\x0a" + b"\x40" * 9 + b"\x83" + bytes(8) + body("1970")
    messages = [
        proton.Message(id="by proton", body=b"", inferred=True).encode(),
        bytes(AMQPMessage(properties=Properties(subject="by rstream"), body=b"")),
        body("no properties at all"),
        at_1970,
    ]
    broker.publish(orders, messages)
    frame = queries.batch(orders).orderBy("offset")
    rows = frame.selectExpr(
        "properties.creation_time IS NULL AND properties.absolute_expiry_time IS NULL AS unset",
        "unix_millis(properties.creation_time) AS created",
        "timestamp > timestamp'2020-01-01' AS stored",
    ).collect()
    assert [row.unset for row in rows] == [True, True, True, False]
    assert rows[3].created == 0
    assert all(row.stored for row in rows)


@pytest.mark.usefixtures("own_log")
def test_does_not_exist_hiding_an_error_of_authentication(broker: Broker) -> None:
    orders = broker.create()
    broker.publish(orders, numbers(0, 1))
    nobody = broker.url.replace("guest:guest@", "")
    for stream in (orders, broker.name("no-such")):
        with pytest.raises(AuthenticationFailed) as failed:
            read_here(nobody, stream=stream, username="guest", password="wrong-guess")
        assert "wrong-guess" not in str(failed.value)
    with pytest.raises(NotFound, match=broker.name("no-such")):
        read_here(broker.url, stream=broker.name("no-such"))
    with broker.outsider() as url, pytest.raises(Refused) as refused:
        read_here(url, stream=orders)
    assert "ACCESS_REFUSED" in str(refused.value).upper().replace("-", "_")


@pytest.mark.nightly  # in this process: tests/real_rabbitmq/test_micro_batch.py
def test_a_super_stream_deleted_and_created_again_between_two_batches(queries: Queries, broker: Broker) -> None:
    orders = broker.create_super(2)
    names = [f"{orders}-{n}" for n in range(2)]
    more = {"superStream": orders, **FROM_EARLIEST}
    for name in names:
        broker.publish(name, numbers(0, 10, "old"))
    queries.drain(**more)
    broker.delete_super(orders)
    broker.create_super(2, orders)
    for name in names:
        broker.publish(name, numbers(0, 30, "new"))  # more than before: offsets alone tell nothing
    message = queries.start(trigger={"availableNow": True}, **more).failure()
    assert "PositionLost" in message
    assert "deleted and created again" in message
    query = queries.drain(failOnDataLoss="false", **more)
    (again,) = [rows for batch, rows in sorted(query.batches.items()) if rows and batch > 0]
    for name in names:
        assert [bytes(row.value).decode() for row in again if row.partition == name] == numbers(0, 30, "new")


@on_both
def test_an_empty_body(broker: Broker) -> None:
    """Spark's part of it: test_sink.py::test_rows_read_back_equal_the_rows_written."""
    orders = broker.create()
    string = b"\x00\x53\x77\xa1\x00"  # rstream writes no body where it is empty: that is NULL
    broker.publish(orders, [body(""), b"\x00\x53\x75\xa0\x00", string, "last"])
    assert read_here(broker.url, stream=orders) == {orders: ["", "", "", "last"]}


@on_embedded
@pytest.mark.parametrize("ranges", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_a_broker_restart_in_mid_batch(broker: Broker, ranges: str) -> None:
    orders = broker.create()
    broker.publish(orders, numbers(0, 150_000), each=5_000)
    given = {"stream": orders, "minPartitions": ranges}
    read = 0

    def restart_once(rows: int) -> None:
        nonlocal read
        if read == 0:
            assert rows < 150_000 / int(ranges), "the range is not over yet"
            broker.restart()
        read += rows

    assert read_here(broker.url, on_batch=restart_once, **given) == {orders: numbers(0, 150_000)}
