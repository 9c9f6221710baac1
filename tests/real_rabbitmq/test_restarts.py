"""A real broker that is killed with kill -9 and comes back: what it keeps, and how reading and writing go on.

The broker is this module's own. After a restart streams come up one by one, and connections to them are cut.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from spark_streams.client import RabbitPublishing, RangeRead, TaskIdentity, TaskPublisher
from spark_streams.errors import SparkStreamsError
from spark_streams.position import EARLIEST
from tests.client.rabbitmq.brokers import Broker, amqp, latest, text
from tests.client.rabbitmq.publishing import body, send, write
from tests.client.rabbitmq.test_publish_exactly_once import held
from tests.e2e.rabbitmq.queries import read_here
from tests.real_rabbitmq.by_hand import FIRST, Peer, chunk, plain
from tests.real_rabbitmq.conftest import Own

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(600)]

Answer = TypeVar("Answer")
COUNT = 60_000


@pytest.fixture
def own(own_rabbitmq: Own) -> Broker:
    """The broker of this module as the client's tests use one."""
    return Broker(own_rabbitmq.url, "rabbitmq")


def retried(attempt: Callable[[], Answer]) -> Answer:
    """Try until it succeeds, for minutes."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return attempt()
        except (SparkStreamsError, AssertionError, EOFError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def wait_for_the_end(peer: Peer) -> None:
    """Return when the broker's end of a connection is gone."""
    peer.socket.settimeout(120)
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            peer.read()


def test_what_was_confirmed_outlives_a_crash_and_a_range_goes_on_after_it(
    own: Broker, own_rabbitmq: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spark_streams")
    filler = b"." * 990
    confirmed = f"outlives-{secrets.token_hex(4)}"
    writer = Peer(own.url).open(versions=())
    assert writer.create(confirmed) == writer.declare(1, confirmed, "writer") == 1
    for number in range(1, 4):
        writer.publish(1, [plain(number, b"kept")])
        writer.confirmed(1)

    def write_again() -> int:
        """Publish an id that is there and one that is not; return how many records there are then."""
        peer = Peer(own.url).open(versions=())
        assert peer.declare(1, confirmed, "writer") == 1
        peer.publish(1, [plain(3, b"again"), plain(4, b"new")])
        peer.confirmed(2)
        assert peer.subscribe(1, confirmed, FIRST) == 1
        return sum(chunk(frame).records for frame in peer.barrier(confirmed))

    with own.stream() as stream, own.client(timeout_ms=120_000) as client, own.client(timeout_ms=120_000) as other:
        own.publish(stream, [amqp(b"%07d" % i + filler) for i in range(COUNT)])
        end = latest(client, stream)
        before = other.describe(stream)
        asked = RangeRead(stream, stream, EARLIEST, end, ("value", "offset"))
        rows = client.fetch(asked, max_rows=500)
        batches = [next(rows)]
        restarting = threading.Thread(target=own_rabbitmq.restart)
        restarting.start()
        try:
            wait_for_the_end(writer)  # it is down now, or coming back
            batches += rows
            assert other.describe(stream) == before
        finally:
            restarting.join()
        assert "trying again" in caplog.text
        assert retried(write_again) == 4
        values = [value[:7] for batch in batches for value in batch["value"].to_pylist()]
        assert values == [b"%07d" % i for i in range(COUNT)]
        assert batches[-1]["offset"][-1].as_py() == text(COUNT - 1)
        assert other.describe(stream) == before


@pytest.mark.nightly  # the planner's part of it is in tests/e2e/rabbitmq, on a broker that costs less to restart
def test_a_batch_of_two_ranges_goes_on_after_a_restart_in_the_first(own: Broker, own_rabbitmq: Own) -> None:
    expected = [str(n) for n in range(150_000)]
    read = 0

    def restart_once(rows: int) -> None:
        nonlocal read
        if read == 0:
            assert rows < len(expected) / 2, "the range is not over yet"
            own_rabbitmq.restart()
        read += rows

    with own.stream() as stream:
        own.publish(stream, [amqp(value.encode()) for value in expected], each=5_000)
        found = read_here(own.url, on_batch=restart_once, stream=stream, minPartitions="2")
        assert found == {stream: expected}


WAYS: tuple[dict[str, Any], ...] = ({}, {"sub_entry_size": 50, "compression": "gzip"})


@pytest.mark.nightly
def test_a_broker_that_crashes_under_an_attempt(own: Broker, own_rabbitmq: Own) -> None:
    """With rows on their way, in entries as in sub-entry batches: an attempt ends there, and the next one goes on."""
    identity, rows = TaskIdentity("spark/query/0", 1), [body(f"{n}") for n in range(30_000)]
    with own.stream() as single, own.stream() as together:
        streams = (single, together)
        for come_to, goes_on in ((9_000, False), (20_000, True)):
            publishers = [
                TaskPublisher(own.endpoint, RabbitPublishing(request_timeout_ms=120_000, **how), identity)
                for how in WAYS
            ]
            for publisher, stream in zip(publishers, streams, strict=True):
                send(publisher, rows[:come_to], stream)
                assert publisher.unconfirmed
            own_rabbitmq.restart()
            for publisher, stream in zip(publishers, streams, strict=True):
                if goes_on:
                    send(publisher, rows[come_to:], stream)
                    publisher.flush()
                publisher.close()
                retried(lambda stream=stream: held(own, stream))
        for how, stream in zip(WAYS, streams, strict=True):
            assert held(own, stream) == [row[8:] for row in rows]
            write(own.endpoint, rows, stream, identity, **how)
            assert held(own, stream) == [row[8:] for row in rows]
