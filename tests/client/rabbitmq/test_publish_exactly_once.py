"""The claims of docs/adr/0010-rabbitmq-exactly-once.md, each on the log's own door and on real brokers.

An attempt is a ``TaskPublisher`` from its connection to its end, which a test may put anywhere.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_streams.client import RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.client.rabbitmq import task_publisher as module
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.publisher_pool import PublisherPool
from spark_streams.client.rabbitmq.routing import Router
from spark_streams.errors import DeliveryFailed
from tests.client.rabbitmq.brokers import Broker, latest, read
from tests.client.rabbitmq.conftest import REAL, running
from tests.client.rabbitmq.publishing import Taking, body, never, send, write
from tests.real_rabbitmq import by_hand as key

IDENTITY = TaskIdentity("spark/query/0", 5)
NEXT = TaskIdentity("spark/query/0", 6)
KINDS = [{}, {"sub_entry_size": 7}, {"sub_entry_size": 7, "compression": "gzip"}]
KIND_IDS = ["entries", "sub-entry batches", "compressed batches"]


@pytest.fixture(params=["door", pytest.param("old-door", marks=pytest.mark.nightly), *REAL])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Any broker; what an old one lacks is nothing that a publisher asks it for, so that one is asked at night."""
    with running(request.param, request, tmp_path / "log") as broker:
        yield broker


def some(count: int, prefix: str = "") -> list[bytes]:
    return [body(f"{prefix}{n}") for n in range(count)]


def texts(rows: Sequence[bytes]) -> list[bytes]:
    return [row[8:] for row in rows]


def held(broker: Broker, stream: str) -> list[bytes]:
    """The bodies in a stream, in order; read over a connection of its own."""
    with broker.client() as client:
        if client.describe(stream).partitions[stream].latest is None:
            return []
        return [bytes(value) for value in read(client, stream, latest(client, stream)).column("value").to_pylist()]


class Killed(Exception):
    """The attempt ends here, as with kill -9: nothing is said to the broker any more."""


@contextmanager
def dying_after(frames: int) -> Iterator[None]:
    """Let an attempt die when it has sent so many Publish frames, waiting for nothing."""
    original, left = Connection.send, frames

    def dying(self: Connection, sent: bytes) -> None:
        nonlocal left
        if struct.unpack_from(">H", sent, 4)[0] == key.PUBLISH:
            if not left:
                self.abandon()
                raise Killed
            left -= 1
        original(self, sent)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Connection, "send", dying)
        yield


@contextmanager
def streams(broker: Broker, count: int, name: str | None = None) -> Iterator[list[str]]:
    with ExitStack() as stack:
        names = [None if name is None else f"{name}-{number}" for number in range(count)]
        yield [stack.enter_context(broker.stream(each)) for each in names]


@contextmanager
def super_stream(names: Sequence[str]) -> Iterator[None]:
    """Let these streams be what a broker says that super stream `super` consists of, on brokers of any age."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "open_router", lambda *_: Router("super", tuple(names)))
        yield


# --- the same rows again


@pytest.mark.parametrize("how", KINDS, ids=KIND_IDS)
def test_the_same_rows_again_add_nothing(broker: Broker, how: dict[str, Any]) -> None:
    rows = some(2_500)
    with broker.stream() as stream:
        for each in (700, 100, 2_500):
            write(broker.endpoint, rows, stream, IDENTITY, each=each, **how)
        assert held(broker, stream) == texts(rows)
        for _ in range(2):
            write(broker.endpoint, some(30, "next "), stream, NEXT, **how)
        assert held(broker, stream) == texts(rows + some(30, "next "))


@pytest.mark.parametrize("how", KINDS, ids=KIND_IDS)
def test_whatever_frame_was_the_last_one_of_an_attempt(broker: Broker, how: dict[str, Any]) -> None:
    """One frame an entry, and an attempt that dies before each; then one that dies again and again."""
    rows = some(14 * int(how.get("sub_entry_size", 1)) - 3 % int(how.get("sub_entry_size", 1)))
    small = {"max_in_flight": how.get("sub_entry_size", 1), **how}
    for frames in range(14):
        with broker.stream() as stream:
            with pytest.raises(Killed), dying_after(frames):
                write(broker.endpoint, rows, stream, IDENTITY, **small)
            write(broker.endpoint, rows, stream, IDENTITY, **small)
            assert held(broker, stream) == texts(rows)
    with broker.stream() as stream:
        for _ in range(6):
            with pytest.raises(Killed), dying_after(3):
                write(broker.endpoint, rows, stream, IDENTITY, **small)
        write(broker.endpoint, rows, stream, IDENTITY, **how)
        assert held(broker, stream) == texts(rows)


@pytest.mark.parametrize("how", KINDS, ids=KIND_IDS)
def test_attempts_at_random_points_with_much_under_way(broker: Broker, how: dict[str, Any]) -> None:
    chance, rows = random.Random(7), some(6_000)
    with broker.stream() as stream:
        for _ in range(5):
            with pytest.raises(Killed), dying_after(chance.randrange(5)):
                write(broker.endpoint, rows, stream, IDENTITY, **how)
        write(broker.endpoint, rows, stream, IDENTITY, **how)
        assert held(broker, stream) == texts(rows)


@pytest.mark.parametrize("how", KINDS, ids=KIND_IDS)
def test_attempts_at_a_super_stream(broker: Broker, how: dict[str, Any]) -> None:
    rows, keys = some(5_000), [f"key {n % 91}" for n in range(5_000)]
    with streams(broker, 3) as names, super_stream(names):
        for frames in (1, 4, 7, 2):
            with pytest.raises(Killed), dying_after(frames):
                write(broker.endpoint, rows, keys, IDENTITY, super_stream="super", **how)
        write(broker.endpoint, rows, keys, IDENTITY, super_stream="super", **how)
        write(broker.endpoint, rows, keys, IDENTITY, super_stream="super", **how)
        routed = Router("super", tuple(names)).route(_column(keys), str)
        assert {name: held(broker, name) for name in names} == {
            name: texts([rows[n] for n in routed[name]]) for name in names
        }


def _column(keys: list[str]) -> Any:
    import pyarrow as pa

    return pa.array(keys, pa.string())


def test_partitions_that_fell_behind_are_caught_up(broker: Broker) -> None:
    """One partition has everything and the other nothing: its rows wait until the rows are known to be the same."""
    rows = some(9_000)
    with streams(broker, 2) as names:
        places = [names[n % 2] for n in range(len(rows))]
        with only_to(names[0]):
            write(broker.endpoint, rows, places, IDENTITY)
        assert [len(held(broker, name)) for name in names] == [4_500, 0]
        write(broker.endpoint, rows, places, IDENTITY)
        assert [held(broker, name) for name in names] == [texts(rows[0::2]), texts(rows[1::2])]


@contextmanager
def only_to(stream: str) -> Iterator[None]:
    """Let an attempt die with everything for other streams still on its way."""
    original = PublisherPool.publish

    def publish(self: PublisherPool, to: str, *rest: Any) -> None:
        if to == stream:
            original(self, to, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PublisherPool, "publish", publish)
        yield


# --- filter values


@pytest.mark.parametrize(
    "filters", [[None] * 1_500, ["a", None, "b"] * 500, ["x"] * 1_500], ids=["none", "some", "all"]
)
def test_filter_values_change_nothing(broker: Broker, filters: list[str | None]) -> None:
    if broker.is_old:
        pytest.skip("filter values came with RabbitMQ 3.13")
    rows = some(1_500)
    with broker.stream() as stream:
        with pytest.raises(Killed), dying_after(1):
            write(broker.endpoint, rows, stream, IDENTITY, filters=filters)
        for _ in range(2):
            write(broker.endpoint, rows, stream, IDENTITY, filters=filters)
        assert held(broker, stream) == texts(rows)


# --- other rows
#
# One change in 1,024 has the digest of the rows as they were (ADR 10). It is made of the streams' names too, so these
# tests name theirs: the changes that they try are noticed on every run, or on none.


def other_rows() -> dict[str, Callable[[list[bytes]], list[bytes]]]:
    return {
        "fewer": lambda rows: rows[:2_000],
        "one fewer": lambda rows: rows[:-1],
        "none but one": lambda rows: rows[:1],
        "one more": lambda rows: [*rows, body("more")],
        "another first": lambda rows: [body("other"), *rows[1:]],
        "another last": lambda rows: [*rows[:-1], body("other")],
        "two swapped": lambda rows: [*rows[:1_500], rows[1_501], rows[1_500], *rows[1_502:]],
    }


@pytest.mark.parametrize("change", other_rows())
def test_other_rows_are_noticed_and_nothing_is_added(broker: Broker, change: str) -> None:
    rows = some(3_000)
    with broker.stream(f"other-rows-{change.replace(' ', '-')}") as stream:
        write(broker.endpoint, rows, stream, IDENTITY)
        with pytest.raises(DeliveryFailed, match=rf"row 2999 .*'{stream}': rows-differ: .*sortWithinPartitions"):
            write(broker.endpoint, other_rows()[change](rows), stream, IDENTITY)
        assert held(broker, stream) == texts(rows)


def test_more_rows_than_an_attempt_came_to_are_just_written(broker: Broker) -> None:
    rows = some(3_000)
    with broker.stream() as stream:
        with pytest.raises(Killed), dying_after(2):
            write(broker.endpoint, rows[:2_500], stream, IDENTITY)
        write(broker.endpoint, rows, stream, IDENTITY)
        assert held(broker, stream) == texts(rows)


@pytest.mark.parametrize("change", ["another first", "two swapped", "one more"])
def test_other_rows_are_noticed_before_a_stream_that_fell_behind_gets_any(broker: Broker, change: str) -> None:
    rows, keys = some(3_000), [f"key {n}" for n in range(3_001)]
    with streams(broker, 2, f"behind-{change.replace(' ', '-')}") as names, super_stream(names):
        with only_to(names[0]):
            write(broker.endpoint, rows, keys[:3_000], IDENTITY, super_stream="super")
        before = held(broker, names[0])
        changed = other_rows()[change](rows)
        with pytest.raises(DeliveryFailed, match="rows-differ"):
            write(broker.endpoint, changed, keys[: len(changed)], IDENTITY, super_stream="super")
        assert [held(broker, name) for name in names] == [before, []]
        write(broker.endpoint, rows, keys[:3_000], IDENTITY, super_stream="super")
        assert sorted(held(broker, names[0]) + held(broker, names[1])) == sorted(texts(rows))


def test_a_partition_added_between_attempts_is_noticed_and_gets_nothing(broker: Broker) -> None:
    rows, keys = some(3_000), [f"key {n}" for n in range(3_000)]
    with streams(broker, 3, "added-between") as names:
        with super_stream(names[:2]), pytest.raises(Killed), dying_after(3):
            write(broker.endpoint, rows, keys, IDENTITY, super_stream="super")
        for _ in range(2):
            with super_stream(names), pytest.raises(DeliveryFailed, match=r"rows-differ: .*of the super stream's too"):
                write(broker.endpoint, rows, keys, IDENTITY, super_stream="super")
        assert held(broker, names[2]) == []
        with super_stream(names[:2]):
            write(broker.endpoint, rows, keys, IDENTITY, super_stream="super")
        assert sorted(held(broker, names[0]) + held(broker, names[1])) == sorted(texts(rows))
        with super_stream(names):  # the next micro-batch may use it
            write(broker.endpoint, rows, keys, NEXT, super_stream="super")
        assert sum(len(held(broker, name)) for name in names) == 2 * len(rows)
        assert held(broker, names[2])


def test_rows_that_name_another_stream_are_noticed(broker: Broker) -> None:
    rows = some(2_000)
    with streams(broker, 3, "elsewhere") as (a, b, c):
        places = [a, b] * 1_000
        write(broker.endpoint, rows, places, IDENTITY)
        for changed in ([c, *places[1:]], [b, *places[1:]], [*places[:-1], c], [a] * 1_999 + [c]):
            with pytest.raises(DeliveryFailed, match="rows-differ"):
                write(broker.endpoint, rows, changed, IDENTITY)
        assert [held(broker, name) for name in (a, b, c)] == [texts(rows[0::2]), texts(rows[1::2]), []]


@pytest.mark.parametrize("size", [1, 14, 8])
def test_sub_entry_batches_of_another_size_are_noticed(broker: Broker, size: int) -> None:
    rows = some(100)
    with broker.stream(f"batches-of-{size}") as stream:
        with pytest.raises(Killed), dying_after(5):
            write(broker.endpoint, rows, stream, IDENTITY, sub_entry_size=7, max_in_flight=7)
        before = held(broker, stream)
        assert len(before) in range(29, 36)
        with pytest.raises(DeliveryFailed, match=r"rows-differ: .*option 'subEntrySize'"):
            write(broker.endpoint, rows, stream, IDENTITY, sub_entry_size=size)
        assert held(broker, stream) == before
        write(broker.endpoint, rows, stream, IDENTITY, sub_entry_size=7)
        assert held(broker, stream) == texts(rows)


def test_no_more_is_held_back_than_can_have_been_under_way(door: Broker) -> None:
    rows, keys = some(9_000), [f"key {n}" for n in range(9_000)]
    with streams(door, 2, "far-behind") as names, super_stream(names):
        with only_to(names[0]):
            write(door.endpoint, rows, keys, IDENTITY, super_stream="super")
        with pytest.raises(DeliveryFailed, match=r"row \d .*rows-differ: .* more than 2024 rows before that"):
            write(door.endpoint, rows, keys, IDENTITY, super_stream="super", max_in_flight=100)
        assert held(door, names[1]) == []


# --- attempts beside each other


@pytest.mark.parametrize("how", KINDS, ids=KIND_IDS)
def test_two_attempts_at_once(broker: Broker, how: dict[str, Any]) -> None:
    """Speculative execution: the broker gets the frames of three attempts in whatever order."""
    rows, faults = some(4_000), []
    with broker.stream() as stream:

        def attempt(in_flight: int) -> None:
            try:
                write(broker.endpoint, rows, stream, IDENTITY, max_in_flight=in_flight, each=300, **how)
            except Exception as fault:
                faults.append(fault)

        threads = [threading.Thread(target=attempt, args=(n,)) for n in (50, 200, 10_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert faults == []
        assert held(broker, stream) == texts(rows)


def test_an_attempt_that_wakes_up_after_the_next_micro_batch(broker: Broker) -> None:
    rows, later = some(1_500), some(10, "later ")
    with broker.stream() as stream:
        late = TaskPublisher(broker.endpoint, RabbitPublishing(request_timeout_ms=120_000), IDENTITY)
        send(late, rows[:1_100], stream)  # the stream is asked, and the first window goes out
        write(broker.endpoint, rows, stream, IDENTITY)
        write(broker.endpoint, later, stream, NEXT)
        send(late, rows[1_100:], stream)
        late.flush()
        late.close()
        assert held(broker, stream) == texts(rows + later)


def test_a_checkpoint_older_than_the_stream_is_refused(broker: Broker) -> None:
    with broker.stream() as stream:
        write(broker.endpoint, some(10), stream, NEXT)
        with pytest.raises(DeliveryFailed, match=r"micro-batch 5 .* micro-batch 6 of this query already"):
            write(broker.endpoint, some(10, "new "), stream, IDENTITY)
        assert held(broker, stream) == texts(some(10))


def test_other_queries_and_other_partitions_do_not_concern_each_other(broker: Broker) -> None:
    with broker.stream() as stream:
        for reference in ("spark/query/0", "spark/query/1", "spark/other/0"):
            for _ in range(2):
                write(broker.endpoint, some(5, reference), stream, TaskIdentity(reference, 0))
        assert len(held(broker, stream)) == 15


# --- what a broker tells is there, and does not have for sure


def test_rows_that_are_there_count_only_once_the_broker_confirms_them() -> None:
    """Brokers tell an id that their leader has written and the replicas have not: a repeated row's confirm waits."""
    rows = some(1_100)
    first = Taking()
    with first.serve() as broker:
        write(broker.endpoint, rows, "orders", IDENTITY)
    last = max(number for _, number in first.ids)
    again = Taking(sequence=last)
    with again.serve() as broker:
        write(broker.endpoint, rows, "orders", IDENTITY)
    assert again.ids == [(0, last)]
    silent = Taking(never, sequence=last)
    with silent.serve() as broker, pytest.raises(DeliveryFailed, match=r"row 1099 was not confirmed .*no-confirm"):
        write(broker.endpoint, rows, "orders", IDENTITY, request_timeout_ms=5_000)


def test_an_attempt_ends_with_its_connection(door: Broker) -> None:
    """The helper that kills attempts does kill them: the broker got the first frames, and not the rest."""
    with door.stream() as stream:
        with pytest.raises(Killed), dying_after(2):
            write(door.endpoint, some(3_000), stream, IDENTITY)
        assert len(held(door, stream)) in (0, 1_024, 2_048)
