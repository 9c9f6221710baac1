"""Where a producer's events go, without a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.amqp.routing import Routed, route
from spark_streams.wire.amqp.columns.from_producers import Incoming
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP


def incoming(keys: list[str | None], targets: list[str | None], malformed: list[int] = ()) -> Incoming:  # type: ignore[assignment]
    count = len(keys)
    broken = np.zeros(count, np.bool_)
    broken[list(malformed)] = True
    return Incoming(
        np.zeros(count, np.int64),
        pa.array(keys, pa.string()),
        pa.array(targets, pa.string()),
        np.full(count, NO_TIMESTAMP, np.int64),
        broken,
    )


@pytest.fixture
def log() -> Iterator[ReferenceLog]:
    with ReferenceLog() as opened:
        yield opened


Routing = Callable[..., Routed]


@pytest.fixture
def routing(log: ReferenceLog) -> Routing:
    """Route to the partitions of a new stream."""

    def routed(said: Incoming, names: list[str], bound: str | None, turn: int) -> Routed:
        stream = log.create_stream(f"of-{len(names)}", len(names), exist_ok=True)
        return route(said, stream, names, bound, turn)

    return routed


def open_route(stream: Stream, said: Incoming, bound: str | None = None) -> Routed:
    return route(said, stream, stream.open_partitions, bound, 0)


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_the_hash_is_crc_32(log: ReferenceLog, count: int) -> None:
    # The check value of CRC-32 in its catalogue: "123456789" gives 0xCBF43926.
    stream = log.create_stream("s", count)
    places = open_route(stream, incoming(["123456789", ""], [None, None])).partitions
    assert places.tolist() == [0xCBF43926 % count, 0]


def test_nothing_goes_to_a_partition_that_was_split(log: ReferenceLog) -> None:
    stream = log.create_stream("s", 1)
    log.split_partition("s", "0")
    routed = open_route(stream, incoming([None] * 4 + ["k"], [None] * 3 + ["0", "2"]))
    assert routed.partitions.tolist() == [0, 1, 0, -1, 1]
    assert routed.rejections[3].name == "amqp:not-allowed"
    assert "partition '0' takes no more events: it was split into partitions 1, 2" in routed.rejections[3].description
    stuck = open_route(stream, incoming([None, "k", None], [None, None, "1"], [0]), bound="0")
    assert stuck.partitions.tolist() == [-1] * 3
    assert [stuck.rejections[row].name for row in range(3)] == [
        "amqp:decode-error", "amqp:not-allowed", "amqp:not-allowed",
    ]  # fmt: skip


def test_events_without_hints_go_in_turn_and_the_turn_goes_on(routing: Routing) -> None:
    first = routing(incoming([None] * 4, [None] * 4), ["0", "1", "2"], None, 0)
    assert first.partitions.tolist() == [0, 1, 2, 0] and first.turn == 4 and not first.rejections
    assert routing(incoming([None] * 2, [None] * 2), ["0", "1", "2"], None, first.turn).partitions.tolist() == [1, 2]


def test_a_target_is_above_a_key_and_a_key_above_the_turn(routing: Routing) -> None:
    names = ["0", "1", "2"]
    home = 0xCBF43926 % 3
    routed = routing(incoming(["123456789", "123456789", None], ["2", None, None]), names, None, 1)
    assert routed.partitions.tolist() == [2, home, 1]


def test_a_bound_link_stays_with_its_partition(routing: Routing) -> None:
    names = ["0", "1"]
    routed = routing(incoming(["a", "b", None, "c"], [None, "1", "0", "9"]), names, "1", 0)
    assert routed.partitions.tolist() == [1, 1, -1, -1]
    assert {row: r.name for row, r in routed.rejections.items()} == {2: "amqp:not-allowed", 3: "amqp:not-found"}
    assert "'0'" in routed.rejections[2].description and "'9'" in routed.rejections[3].description


def test_what_is_malformed_is_rejected_whatever_else_it_says(routing: Routing) -> None:
    routed = routing(incoming([None, "k", None], [None, None, "1"], [1]), ["0", "1"], None, 0)
    assert routed.partitions.tolist() == [0, -1, 1]
    assert routed.rejections[1].name == "amqp:decode-error"
    bound = routing(incoming([None, None], [None, None], [0]), ["0", "1"], "1", 0)
    assert bound.partitions.tolist() == [-1, 1]
