"""Where a producer's events go, without a connection."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_streams.server.routing import partition_of_key, route
from spark_streams.wire.columns import NO_TIMESTAMP, Incoming


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


def test_the_hash_is_crc_32() -> None:
    # The check value of CRC-32 in its catalogue: "123456789" gives 0xCBF43926.
    for partitions in (1, 2, 7, 1000):
        assert partition_of_key(b"123456789", partitions) == 0xCBF43926 % partitions
    assert partition_of_key(b"", 5) == 0


def test_events_without_hints_go_in_turn_and_the_turn_goes_on() -> None:
    first = route(incoming([None] * 4, [None] * 4), ["0", "1", "2"], None, 0)
    assert first.partitions.tolist() == [0, 1, 2, 0] and first.turn == 4 and not first.rejections
    assert route(incoming([None] * 2, [None] * 2), ["0", "1", "2"], None, first.turn).partitions.tolist() == [1, 2]


def test_a_target_is_above_a_key_and_a_key_above_the_turn() -> None:
    names = ["0", "1", "2"]
    home = 0xCBF43926 % 3
    routed = route(incoming(["123456789", "123456789", None], ["2", None, None]), names, None, 1)
    assert routed.partitions.tolist() == [2, home, 1]


def test_a_bound_link_stays_with_its_partition() -> None:
    names = ["0", "1"]
    routed = route(incoming(["a", "b", None, "c"], [None, "1", "0", "9"]), names, "1", 0)
    assert routed.partitions.tolist() == [1, 1, -1, -1]
    assert {row: r.name for row, r in routed.rejections.items()} == {2: "amqp:not-allowed", 3: "amqp:not-found"}
    assert "'0'" in routed.rejections[2].description and "'9'" in routed.rejections[3].description


def test_what_is_malformed_is_rejected_whatever_else_it_says() -> None:
    routed = route(incoming([None, "k", None], [None, None, "1"], [1]), ["0", "1"], None, 0)
    assert routed.partitions.tolist() == [0, -1, 1]
    assert routed.rejections[1].name == "amqp:decode-error"
    bound = route(incoming([None, None], [None, None], [0]), ["0", "1"], "1", 0)
    assert bound.partitions.tolist() == [-1, 1]
