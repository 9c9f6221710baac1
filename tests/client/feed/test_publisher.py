"""A task's rows in a feed: each once, whatever becomes of its attempts, at the door and in a data directory."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.client import digested_rows as parts_module
from spark_streams.client.digested_rows import PART_SCHEMA, Parts, TaskIdentity
from spark_streams.client.feed.publisher import FeedPublisher, HttpFeed, Target
from spark_streams.client.retry import Backoff
from spark_streams.endpoint import HTTP_SCHEMES, Secret, parse_url
from spark_streams.errors import AuthenticationFailed, ConnectFailed, DeliveryFailed, NotFound, Refused
from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.server.feed import local_target
from spark_streams.server.feed.local_target import FeedFolder
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from tests.client.feed.middle import Fault, Middle

PART_ROWS = 40
IDENTITY = TaskIdentity("spark/query/3", 7)
QUICK = Backoff(attempts=4, first_ms=1, limit_ms=2)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "MAX_PART_ROWS", PART_ROWS)


def rows_of(first: int, stop: int, *, keys: int = 5, value: Callable[[int], str] = "row-{}".format) -> pa.RecordBatch:
    numbers = range(first, stop)
    columns = [
        pa.array([value(n).encode() for n in numbers], pa.large_binary()),
        pa.array([f"k{n % keys}" if n % 3 else None for n in numbers], pa.string()),
        pa.array([n * 1_000 if n % 2 else None for n in numbers], pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)


def sliced(rows: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [rows.slice(at, size) for at in range(0, rows.num_rows, size)]


# --- parts


def cut(rows: pa.RecordBatch, size: int) -> list[Any]:
    parts = Parts()
    found = [part for each in sliced(rows, size) for part in parts.add(each)]
    return [*found, *parts.finish()]


def test_parts_do_not_depend_on_the_batches_that_rows_come_in() -> None:
    rows = rows_of(0, 3 * PART_ROWS)
    whole = cut(rows, rows.num_rows)
    assert [part.rows.num_rows for part in whole] == [PART_ROWS] * 3
    assert [part.first_row for part in whole] == [0, PART_ROWS, 2 * PART_ROWS]
    for size in (1, 7, PART_ROWS, PART_ROWS + 1):
        found = cut(rows, size)
        assert [(p.number, p.first_row, p.digest) for p in found] == [(p.number, p.first_row, p.digest) for p in whole]
        assert [p.rows.to_pylist() for p in found] == [p.rows.to_pylist() for p in whole]


def test_parts_are_of_bounded_size_however_large_a_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "MAX_PART_BYTES", 1_000)
    rows = rows_of(0, 30, value=lambda n: "x" * (5_000 if n in (3, 4, 29) else 100))
    sizes = [part.rows.num_rows for part in cut(rows, 4)]
    assert sum(sizes) == 30 and max(sizes) == 8
    assert sizes[:3] == [3, 1, 1], "a row that is larger than a part is one by itself"
    assert sizes == [part.rows.num_rows for part in cut(rows, 30)]
    for part in cut(rows, 30):
        assert part.rows.num_rows == 1 or part.rows.nbytes < 1_100


def test_digests_tell_rows_apart() -> None:
    rows = rows_of(0, 10)

    def digest(batch: pa.RecordBatch) -> int:
        return int(cut(batch, 10)[-1].digest)

    def replaced(name: str, values: list[Any]) -> pa.RecordBatch:
        at = PART_SCHEMA.get_field_index(name)
        return rows.set_column(at, PART_SCHEMA.field(at), pa.array(values, PART_SCHEMA.field(at).type))

    values, keys, times = (rows.column(name).to_pylist() for name in PART_SCHEMA.names)
    others = [
        rows.slice(0, 9),
        rows_of(0, 11),
        rows.take(pa.array([1, 0, *range(2, 10)])),
        replaced("value", [*values[:-1], b"other"]),
        replaced("value", [values[0] + values[1][:1], values[1][1:], *values[2:]]),
        replaced("key", [*keys[:-2], "other", keys[-1]]),
        replaced("key", ["", *keys[1:]]),
        replaced("timestamp", [*times[:-1], None]),
        replaced("timestamp", [None, times[1] and times[3], *times[2:]]),
    ]
    digests = [digest(each) for each in others]
    assert digest(rows) == digest(pa.concat_batches(sliced(rows, 3)))
    assert len({digest(rows), *digests}) == len(others) + 1
    longer = cut(rows_of(0, 2 * PART_ROWS), 10)[0]
    alone = cut(rows_of(0, PART_ROWS), 10)[0]
    assert longer.rows.equals(alone.rows) and longer.digest != alone.digest, "the end of a task counts"


# --- publishing


class Feed:
    """A stream, and the ways to publish to it."""

    def __init__(self, folder: Path, kind: Literal["door", "folder"]) -> None:
        self.folder, self.kind = folder, kind
        self._stack = contextlib.ExitStack()
        with ReferenceLog(folder) as log:
            log.create_stream("orders", 3)
        self.start()

    def start(self) -> None:
        if self.kind == "door":
            self.log = self._stack.enter_context(ReferenceLog(self.folder))
            self.server = self._stack.enter_context(ServerThread(self.log, feed=FeedConfig(port=0)))

    def stop(self) -> None:
        self._stack.close()

    def target(self, url: str | None = None) -> Target:
        if self.kind == "folder":
            return FeedFolder(str(self.folder), "orders", 20_000)
        return HttpFeed(parse_url((url or self.server.feed_url) + "/orders", schemes=HTTP_SCHEMES), 20_000)

    def publisher(self, identity: TaskIdentity | None = IDENTITY, target: Target | None = None) -> FeedPublisher:
        return FeedPublisher(target or self.target(), "orders", identity, backoff=QUICK)

    def publish(self, rows: pa.RecordBatch, identity: TaskIdentity | None = IDENTITY, size: int = 7) -> None:
        with contextlib.closing(self.publisher(identity)) as publisher:
            at = 0
            for batch in sliced(rows, size):
                publisher.send(batch, f"row {at}+{{}}".format)
                at += batch.num_rows
            publisher.flush()

    def stored(self) -> list[list[tuple[str, str | None]]]:
        """The values and keys of each partition."""
        if self.kind == "door":
            return self._stored(self.log)
        with ReferenceLog(self.folder) as log:
            return self._stored(log)

    def _stored(self, log: ReferenceLog) -> list[list[tuple[str, str | None]]]:
        out = []
        for partition in log.stream("orders").partitions.values():
            found: list[tuple[str, str | None]] = []
            while partition.first_offset + len(found) < partition.next_offset:
                records = partition.read(partition.first_offset + len(found))
                block = MessageBlock(records.buffer, records.value_starts, records.value_ends)
                columns = decode_columns(block, ("value", "key"))
                values = [value.decode() for value in columns["value"].to_pylist()]
                found += zip(values, columns["key"].to_pylist(), strict=True)
            out.append(found)
        return out

    def values(self) -> list[str]:
        return sorted(value for each in self.stored() for value, _ in each)


@pytest.fixture(params=["door", "folder"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Feed]:
    running = Feed(tmp_path / "log", request.param)
    yield running
    running.stop()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Feed]:
    running = Feed(tmp_path / "log", "door")
    yield running
    running.stop()


def expected(first: int, stop: int) -> list[str]:
    return sorted(f"row-{n}" for n in range(first, stop))


def test_rows_are_stored_in_their_order_by_key(feed: Feed) -> None:
    feed.publish(rows_of(0, 100))
    assert feed.values() == expected(0, 100)
    homes: dict[str, int] = {}
    for place, rows in enumerate(feed.stored()):
        for key in ("k0", "k1", "k2", "k3", "k4"):
            numbers = [int(value[4:]) for value, own in rows if own == key]
            assert numbers == sorted(numbers)
            assert not numbers or homes.setdefault(key, place) == place, "a key has one partition"
    assert len(homes) == 5


def test_an_attempt_that_is_repeated_adds_nothing(feed: Feed) -> None:
    feed.publish(rows_of(0, 100), size=7)
    before = feed.stored()
    feed.publish(rows_of(0, 100), size=30)
    feed.publish(rows_of(0, 100), size=100)
    assert feed.stored() == before
    feed.publish(rows_of(100, 150), TaskIdentity(IDENTITY.reference, IDENTITY.batch + 1))
    feed.publish(rows_of(150, 160), TaskIdentity("spark/query/4", IDENTITY.batch))
    assert feed.values() == expected(0, 160)


def test_without_an_identity_rows_are_stored_each_time(feed: Feed) -> None:
    feed.publish(rows_of(0, 60), None)
    feed.publish(rows_of(0, 60), None)
    assert feed.values() == sorted(expected(0, 60) * 2)


@pytest.mark.parametrize("sent", range(5))
def test_an_attempt_that_dies_is_gone_on_with(feed: Feed, sent: int) -> None:
    """It dies between any two parts, or in one that reached some partitions only (the door's own tests have that)."""
    rows = rows_of(0, 4 * PART_ROWS + 10)
    publisher = feed.publisher()
    for batch in sliced(rows.slice(0, sent * PART_ROWS + 1 if sent else 0), 7):
        publisher.send(batch, str)
    publisher.close()
    assert len(feed.values()) == sent * PART_ROWS
    feed.stop()
    feed.start()
    feed.publish(rows)
    assert feed.values() == expected(0, rows.num_rows)


def test_attempts_at_once(feed: Feed) -> None:
    faults: list[BaseException] = []

    def attempt(size: int) -> None:
        try:
            feed.publish(rows_of(0, 300), size=size)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=attempt, args=(size,)) for size in (13, 50, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not faults
    assert feed.values() == expected(0, 300)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param(rows_of(0, 30), rows_of(0, 31), id="one more"),
        pytest.param(rows_of(0, 30), rows_of(0, 29), id="one less"),
        pytest.param(rows_of(0, 130), rows_of(0, 120), id="a part less"),
        pytest.param(rows_of(0, 130), rows_of(0, 20), id="parts less"),
        pytest.param(rows_of(0, 120), rows_of(0, 130), id="a part more"),
        pytest.param(rows_of(0, 130), rows_of(1, 131), id="others"),
        pytest.param(rows_of(0, 30), rows_of(0, 30).take(pa.array(np.arange(29, -1, -1))), id="another order"),
        pytest.param(rows_of(0, 30), rows_of(0, 30, keys=4), id="other keys"),
    ],
)
def test_other_rows_on_a_retry(feed: Feed, before: pa.RecordBatch, now: pa.RecordBatch) -> None:
    feed.publish(before)
    stored = feed.stored()
    with pytest.raises(DeliveryFailed, match=r"rows-differ: .*micro-batch 7 has written other rows.*sortWithinPart"):
        feed.publish(now)
    assert feed.stored() == stored, "nothing of them is stored"


def test_an_attempt_that_died_and_other_rows(feed: Feed) -> None:
    publisher = feed.publisher()
    publisher.send(rows_of(0, 2 * PART_ROWS + 1), str)
    publisher.close()
    with pytest.raises(DeliveryFailed, match="rows-differ"):
        feed.publish(rows_of(5, 2 * PART_ROWS + 6))
    assert feed.values() == expected(0, 2 * PART_ROWS)


def test_an_older_checkpoint(feed: Feed) -> None:
    feed.publish(rows_of(0, 10), TaskIdentity("spark/query/3", 8))
    with pytest.raises(DeliveryFailed, match="micro-batch 8 of this query already, and this is 7: the checkpoint"):
        feed.publish(rows_of(10, 20), TaskIdentity("spark/query/3", 7))
    assert feed.values() == expected(0, 10)


@pytest.mark.parametrize("history", [False, True])
def test_a_partition_that_is_split_before_the_retry(feed: Feed, history: bool) -> None:
    rows = rows_of(0, 3 * PART_ROWS)
    publisher = feed.publisher()
    publisher.send(rows.slice(0, 2 * PART_ROWS + 1), str)
    publisher.close()
    feed.stop()
    with ReferenceLog(feed.folder) as log:
        for partition in ("0", "1"):
            log.split_partition("orders", partition, history=history)
    feed.start()
    assert feed.values() == expected(0, 2 * PART_ROWS)
    feed.publish(rows)
    assert feed.values() == expected(0, 3 * PART_ROWS)
    before = feed.stored()
    feed.publish(rows)
    assert feed.stored() == before


def test_no_rows_are_nothing(feed: Feed) -> None:
    publisher = feed.publisher()
    publisher.flush()
    publisher.close()
    assert feed.values() == []


# --- faults of the way to a door


FAULTS = [
    pytest.param(Fault(503), id="503"),
    pytest.param(Fault(502, passed=True), id="502, stored"),
    pytest.param(Fault(429, headers={"Retry-After": "0"}), id="429"),
    pytest.param(Fault(None), id="cut"),
    pytest.param(Fault(None, passed=True), id="cut, stored"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_tried_again_with_the_same_number(door: Feed, fault: Fault) -> None:
    with (
        Middle(door.server.feed_url, lambda n: fault if n % 3 < 2 else None) as middle,
        contextlib.closing(door.publisher(target=door.target(middle.url))) as publisher,
    ):
        publisher.send(rows_of(0, 100), str)
        publisher.flush()
    assert door.values() == expected(0, 100)
    numbers = [int(each["idempotency-sequence"]) for each in middle.posts]
    assert numbers == [7 << 24 | part for part in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    assert {each["idempotency-key"] for each in middle.posts} == {"spark/query/3"}


def test_an_answer_that_never_comes_names_status_feed_and_row(door: Feed) -> None:
    with (
        Middle(door.server.feed_url, lambda n: Fault(503) if n else None) as middle,
        contextlib.closing(door.publisher(target=door.target(middle.url))) as publisher,
    ):
        publisher.send(rows_of(0, 50), "row {} of Spark partition 3".format)
        with pytest.raises(DeliveryFailed) as caught:
            publisher.send(rows_of(50, 100), "later row {}".format)
    message = str(caught.value)
    assert "row 40 of Spark partition 3 was not confirmed by stream 'orders': status 503: the server is busy" in message
    assert f"POST {middle.url}/orders" in message and "the first of 40 rows" in message and "and more" not in message
    assert len(middle.posts) == 1 + QUICK.attempts
    assert door.values() == expected(0, 40)


@pytest.mark.parametrize("status", [400, 401, 403, 413, 507])
def test_what_does_not_pass_is_told_at_once(door: Feed, status: int) -> None:
    with (
        Middle(door.server.feed_url, lambda n: Fault(status)) as middle,
        contextlib.closing(door.publisher(target=door.target(middle.url))) as publisher,
    ):
        publisher.send(rows_of(0, 10), str)
        with pytest.raises(DeliveryFailed, match=f"status {status}: the server is busy"):
            publisher.flush()
    assert len(middle.posts) == (QUICK.attempts if status >= 500 else 1)


def test_an_answer_that_is_none(door: Feed) -> None:
    with (
        Middle(door.server.feed_url, lambda n: Fault(200, body=b"<html>hello")) as middle,
        contextlib.closing(door.publisher(target=door.target(middle.url))) as publisher,
    ):
        publisher.send(rows_of(0, 10), str)
        with pytest.raises(DeliveryFailed, match=r"does not say what was stored; it begins with '<html>hello'"):
            publisher.flush()


# --- what is told before


def http(url: str, token: str | None = None) -> HttpFeed:
    endpoint = parse_url(url, schemes=HTTP_SCHEMES)
    return HttpFeed(endpoint.with_token(None if token is None else Secret(token)), 5_000)


def test_checks_of_a_door(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log, ServerThread(log, feed=FeedConfig(port=0, tokens=("secret",))) as server:
        log.create_stream("orders", 1)
        http(f"{server.feed_url}/orders", "secret").check()
        with pytest.raises(
            NotFound, match=r"status 404.*there is no feed 'no-such'.*create it with spark-streams log create"
        ):
            http(f"{server.feed_url}/no-such", "secret").check()
        for token in (None, "wrong-guess"):
            with pytest.raises(AuthenticationFailed, match="status 401") as caught:
                http(f"{server.feed_url}/orders", token).check()
            assert "wrong-guess" not in str(caught.value)
        assert log.stream("orders").partitions["0"].next_offset == 0
    words = r"status 405: Method Not Allowed\. This feed cannot be published to"
    with (
        Middle("", lambda n: Fault(405, body=b"Method Not Allowed")) as middle,
        pytest.raises(Refused, match=words),
    ):
        http(f"{middle.url}/orders").check()
    with pytest.raises(ConnectFailed, match=r"POST http://127\.0\.0\.1:9/orders"):
        http("http://127.0.0.1:9/orders").check()


def test_checks_of_a_data_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no log: there is none in .*nowhere.*http"):
        FeedFolder(str(tmp_path / "nowhere"), "orders", 1_000).check()
    assert not (tmp_path / "nowhere").exists(), "none is made"
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("Größe/1", 1)
        FeedFolder(str(tmp_path / "log"), "Größe/1", 1_000).check()
        for name in ("orders", "", "\x00", "."):
            with pytest.raises(NotFound, match=r"no such stream.*spark-streams log create"):
                FeedFolder(str(tmp_path / "log"), name, 1_000).check()


def test_a_data_directory_that_a_server_has(door: Feed) -> None:
    target = FeedFolder(str(door.folder), "orders", 50)
    with contextlib.closing(door.publisher(target=target)) as publisher:
        publisher.send(rows_of(0, 10), "row {}".format)
        with pytest.raises(DeliveryFailed, match=r"row 0 was not confirmed.*LogLocked.*give the feed's http address"):
            publisher.flush()
    assert door.values() == []


def test_a_data_directory_is_let_go_of_between_rows(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "log", "folder")
    with contextlib.closing(feed.publisher()) as publisher:
        publisher.send(rows_of(0, 50), str)
        assert feed.values() == expected(0, 40), "others may open it meanwhile"
        publisher.send(rows_of(50, 60), str)
        publisher.flush()
    assert feed.values() == expected(0, 60)


def test_a_log_that_was_let_go_of_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(tmp_path / "log", "folder")
    opened: list[weakref.ref[ReferenceLog]] = []

    def open_log(folder: str) -> ReferenceLog:
        log = ReferenceLog(folder)
        opened.append(weakref.ref(log))
        return log

    monkeypatch.setattr(local_target, "ReferenceLog", open_log)
    with contextlib.closing(feed.publisher()) as publisher:
        publisher.send(rows_of(0, 50), str)
        gc.collect()
        assert [log() for log in opened] == [None]


def test_a_door_knows_what_was_written_to_its_directory(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "log", "folder")
    feed.publish(rows_of(0, 100))
    feed.kind = "door"
    feed.start()
    feed.publish(rows_of(0, 100))
    assert feed.values() == expected(0, 100)
    feed.stop()
