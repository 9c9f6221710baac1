"""Groups of records that are stored together or not at all, however large they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_streams.log import NO_TIMESTAMP, Partition, ReferenceLog, StreamConfig
from spark_streams.log.format.batching import MAX_BATCH_BYTES
from tests.log.reading import all_values


def ends(partition: Partition) -> list[int]:
    return [batch.next_offset for batch in partition.batches(0)]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([1] * 12, [3, 6, 10, 12]),
        ([5, 5, 2], [5, 10, 12]),
        ([12], [12]),
        ([2, 2, 2, 2, 2, 2], [2, 6, 10, 12]),
        ([1, 10, 1], [1, 12]),
    ],
)
def test_batches_end_where_groups_end(tmp_path: Path, groups: list[int], expected: list[int]) -> None:
    values = [b"%02d" % n * (MAX_BATCH_BYTES // 7) for n in range(12)]
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append(values, groups=np.array(groups))
        assert all_values(partition) == values
        assert ends(partition) == expected
        assert set(ends(partition)) <= set(np.cumsum(groups).tolist())


def test_batches_without_groups_are_cut_as_ever(tmp_path: Path) -> None:
    values = [b"%02d" % n * (MAX_BATCH_BYTES // 7) for n in range(12)]
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append(values)
        assert ends(partition) == [3, 6, 10, 12]


def test_instants_and_no_timestamp_do_not_share_a_group(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        mixed = np.array([1, 2] + [NO_TIMESTAMP] * 10)
        with pytest.raises(ValueError, match="one group with and without a timestamp"):
            partition.append([b"v"] * 12, None, mixed, groups=np.array([3, 9]))
        assert partition.next_offset == 0
        partition.append([b"v"] * 12, None, mixed, groups=np.array([2, 10]))
        assert ends(partition) == [2, 12]


@pytest.mark.parametrize("timestamp_type", ["append", "create"])
@pytest.mark.parametrize(
    ("count", "groups"), [(120, [30, 80]), (120, [30, 100]), (120, [120, 0]), (2, [3]), (2, [2, 0])]
)
def test_groups_that_are_not_the_values_are_refused(
    tmp_path: Path, count: int, groups: list[int], timestamp_type: Any
) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, StreamConfig(timestamp_type=timestamp_type)).partitions["0"]
        with pytest.raises(ValueError, match=f"for {count} values"):
            partition.append([b"v"] * count, groups=np.array(groups))
        assert partition.next_offset == 0
