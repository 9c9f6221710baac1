"""The driver's side of a stream, on the door and a real broker: limits, streams created again, stored offsets."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_streams.sources.rabbitmq_stream import connect, connect_store

from spark_streams.client import retry
from spark_streams.errors import NotFound, PositionLost
from spark_streams.log import ReferenceLog
from spark_streams.options.rabbitmq_stream import parse_source
from spark_streams.position import Checkpoint
from spark_streams.server import RabbitConfig, ServerThread
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.spark.source.stored_offsets import StoredPositions
from spark_streams.spark.source.task import read_range
from tests.real_rabbitmq import by_hand
from tests.real_rabbitmq.conftest import URL, URL_310

SCHEMA = pa.schema([("value", pa.binary())])


class Running:
    """A stream on the broker, and a query over it whose offsets are kept as Spark keeps them."""

    def __init__(self, url: str) -> None:
        self.url, self.stream = url, f"micro-{uuid.uuid4()}"
        self.published = 0
        self.committed: dict[str, Any] | None = None
        self.create()

    def create(self) -> None:
        """Create the stream, over a connection that never heard of another one of this name."""
        self.peer = by_hand.Peer(self.url).open(versions=())
        assert self.peer.create(self.stream) == 1
        assert self.peer.declare(1, self.stream) == 1

    def publish(self, count: int) -> list[bytes]:
        """Publish messages, and return their bodies."""
        bodies = [b"m%06d" % n for n in range(self.published, self.published + count)]
        entries = [by_hand.plain(i, b"\x00\x53\x75\xa0" + bytes([len(b)]) + b) for i, b in enumerate(bodies)]
        self.peer.publish(1, entries)
        self.peer.confirmed(count)
        self.published += count
        return bodies

    def start(self, **more: str) -> None:
        """Start or restart the query."""
        given = {"url": self.url, "stream": self.stream, "startingOffsets": "earliest", "pollInterval": "0", **more}
        self.options = parse_source(given, streaming=True)
        self.source = MicroBatches(self.options, ("value",), connect)

    def batch(self, limit: int | None = None) -> list[bytes] | None:
        """Run a batch; None when there is nothing to run."""
        first = self.committed is None
        start = self.source.initial() if first else self.committed
        end = json.loads(json.dumps(self.source.next_end(start, limit)))
        if end == start and not first:
            return None
        rows: list[bytes] = []
        for planned in self.source.reads(start, end):
            for batch in read_range(self.options, planned, SCHEMA, connect):
                rows += batch.column("value").to_pylist()
        self.committed = end
        return rows

    def drain(self, limit: int | None = None) -> list[list[bytes]]:
        """Run batches until there is none to run."""
        batches: list[list[bytes]] = []
        while (rows := self.batch(limit)) is not None:
            batches.append(rows)
            assert len(batches) < 50, "batches follow each other for ever"
        return batches

    def close(self) -> None:
        """Clean up."""
        self.source.close()
        self.peer.delete(self.stream)
        self.peer.close()


@pytest.fixture(params=["door", *(pytest.param(name, marks=pytest.mark.rabbitmq) for name in (URL, URL_310))])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with contextlib.ExitStack() as stack:
        if request.param == "door":
            log = stack.enter_context(ReferenceLog(tmp_path / "log"))
            url = stack.enter_context(ServerThread(log, None, RabbitConfig(port=0))).rabbit_url
        elif request.param in os.environ:
            url = os.environ[request.param]
        else:
            pytest.skip(f"{request.param} is not set")
        query = Running(url)
        query.start()
        yield query
        query.close()


def test_batches_have_the_size_of_the_limit(running: Running) -> None:
    bodies = running.publish(25)
    batches = running.drain(10)
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert list(chain(*batches)) == bodies


@pytest.mark.parametrize("tracked", [False, True])
def test_a_stream_created_again_between_two_batches(running: Running, tracked: bool) -> None:
    running.publish(10)
    if tracked:
        store(running, 4)
    running.drain()
    assert running.committed["witnesses"].keys() == {running.stream}
    running.peer.delete(running.stream)
    running.peer.close()
    running.create()
    bodies = running.publish(30)
    with pytest.raises(PositionLost, match="deleted and created again"):
        running.batch()
    running.start(failOnDataLoss="false")
    assert running.drain() == [bodies]


def during_pauses(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> list[float]:
    """Have something done in the third pause before another try; pauses take no time, and are returned in seconds."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            do()

    monkeypatch.setattr(retry, "_pause", pause)
    return pauses


def test_a_stream_that_is_missing_for_a_moment_under_a_running_query(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.start(failOnDataLoss="false")
    running.publish(10)
    running.drain()
    running.peer.delete(running.stream)
    running.peer.close()
    bodies: list[bytes] = []

    def create_again() -> None:
        running.create()
        bodies.extend(running.publish(30))

    during_pauses(monkeypatch, create_again)
    assert list(chain(*running.drain())) == bodies != []


@pytest.mark.parametrize("events", [5, 30])
def test_a_stream_created_again_between_planning_and_reading(
    running: Running, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.start(failOnDataLoss="false", requestTimeout="2000")
    running.publish(10)
    running.drain()
    running.publish(10)
    start = running.committed
    end = json.loads(json.dumps(running.source.next_end(start, None)))
    (planned,) = running.source.reads(start, end)
    running.peer.delete(running.stream)
    running.peer.close()
    during_pauses(monkeypatch, running.create)
    read = [row for batch in read_range(running.options, planned, SCHEMA, connect) for row in batch.column(0)]
    assert read == [], "the new one has nothing yet"
    running.committed = end
    bodies = running.publish(events)
    assert list(chain(*running.drain())) == bodies


@pytest.mark.parametrize("events", [5, 15, 30])
@pytest.mark.parametrize("read_before", [0, 10])
def test_what_a_stream_created_again_has_is_read_once(
    running: Running, events: int, read_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has events at the offsets of the range that is being read; the next batch begins at its beginning."""
    running.start(failOnDataLoss="false", requestTimeout="2000")
    running.publish(read_before)
    running.drain()
    running.publish(10)
    start = running.committed or running.source.initial()
    end = json.loads(json.dumps(running.source.next_end(start, None)))
    (planned,) = running.source.reads(start, end)
    running.peer.delete(running.stream)
    running.peer.close()
    bodies: list[bytes] = []

    def create_again() -> None:
        running.create()
        bodies.extend(running.publish(events))

    during_pauses(monkeypatch, create_again)
    rows = [row for batch in read_range(running.options, planned, SCHEMA, connect) for row in batch.column(0)]
    running.committed = end
    assert [*rows, *chain(*running.drain())] == bodies != []


@pytest.mark.parametrize("strict", [True, False])
def test_a_stream_that_stays_away(running: Running, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    running.start(failOnDataLoss=str(strict).lower())
    running.publish(10)
    end = running.source.next_end(running.source.initial(), None)
    (planned,) = running.source.reads(running.source.initial(), end)
    running.peer.delete(running.stream)
    pauses = during_pauses(monkeypatch, lambda: None)
    with pytest.raises(NotFound, match="does-not-exist"):
        running.source.next_end(end, None)
    assert 35 < sum(pauses) < 45
    pauses.clear()
    rows = read_range(running.options, planned, SCHEMA, connect)
    with pytest.raises(NotFound, match="does-not-exist") if strict else contextlib.nullcontext():
        assert list(rows) == []
    assert 35 < sum(pauses) < 45
    running.peer.create(running.stream)


def test_a_query_does_not_wait_for_a_stream_that_it_has_never_seen(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.peer.delete(running.stream)
    pauses = during_pauses(monkeypatch, lambda: None)
    with pytest.raises(NotFound, match="does-not-exist"):
        running.source.initial()
    assert pauses == []
    running.peer.create(running.stream)


def test_a_stream_that_only_grew_is_the_same(running: Running) -> None:
    for count in (1, 300, 2):
        bodies = running.publish(count)
        running.start()
        assert running.drain(100000) == [bodies]


def store(running: Running, offset: int) -> None:
    """Store an offset by hand, and wait until the broker has written it."""
    body = by_hand.text("someone") + by_hand.text(running.stream) + offset.to_bytes(8, "big")
    running.peer.send(by_hand.STORE_OFFSET, body)
    asked = by_hand.text("someone") + by_hand.text(running.stream)
    while running.peer.ask(by_hand.QUERY_OFFSET, asked).code != 1:
        pass


def test_a_limit_ends_over_tracking_chunks(running: Running) -> None:
    bodies = running.publish(3)
    for offset in range(3):
        store(running, offset)
    running.publish(0)
    running.source.fix_end()
    batches = running.drain(2)
    assert list(chain(*batches)) == bodies
    running.start()
    running.source.fix_end()
    assert list(chain(*running.drain(2))) == []


def test_stored_positions_do_not_make_batches_for_ever(running: Running) -> None:
    running.start(storeOffsets="true", consumerName="lag-tool")
    stored, before, rows = StoredPositions(running.options, connect_store), None, []
    for _ in range(3):
        bodies = running.publish(2)
        for _ in range(20):
            batch = running.batch()
            if batch is None:
                break
            rows += batch
            if before is not None:
                stored.store(Checkpoint.from_json(before, "rabbitmq-stream"))
            before = running.committed
        else:
            raise AssertionError("batches follow each other for ever")
        assert rows[-2:] == bodies
    stored.close()
    asked = running.peer.ask(by_hand.QUERY_OFFSET, by_hand.text("lag-tool") + by_hand.text(running.stream))
    assert asked.code == 1
    assert int.from_bytes(asked.body[2:10], "big") >= 3, "the first two publications are surely committed"
