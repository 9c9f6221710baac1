"""Publishing ids: where the bits are, what does not fit, and what they tell a retry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_streams.client.rabbitmq.publishing_ids import Resumed, id_parts, publishing_ids
from spark_streams.errors import DeliveryFailed, LocalProtocolError

LAST_BATCH, LAST_ROW = 2**28 - 1, 2**26 - 2


def one(batch: int, row: int, digest: int) -> int:
    (found,) = publishing_ids(batch, np.array([row]), digest)
    return int(found)


def block(first_row: int, rows: int, digest: int) -> Any:
    return SimpleNamespace(first_row=first_row, rows=rows, digest=digest)


def test_the_bits_lie_as_the_decision_says() -> None:
    assert one(0, 0, 0) == 1 << 10
    assert one(1, 0, 0) == 1 << 36 | 1 << 10
    assert one(5, 6, 0x3FF) == 5 << 36 | 7 << 10 | 0x3FF
    assert one(LAST_BATCH, LAST_ROW, 0x3FF) == 2**64 - 1
    assert publishing_ids(2, np.array([0, 1, 1000]), 3).dtype == np.uint64


def test_ids_are_never_0_and_rise_with_batch_and_row_whatever_the_digest() -> None:
    places = [(0, 0), (0, 1), (0, LAST_ROW), (1, 0), (1, 1), (LAST_BATCH, 0), (LAST_BATCH, LAST_ROW)]
    lowest, highest = ([one(*place, digest) for place in places] for digest in (0, 0x3FF))
    assert lowest[0] > 0
    assert all(before < after for before, after in zip(highest, lowest[1:], strict=False))


@pytest.mark.parametrize("place", [(0, 0, 0), (3, 17, 5), (LAST_BATCH, LAST_ROW, 0x3FF)])
def test_an_id_is_taken_apart(place: tuple[int, int, int]) -> None:
    assert id_parts(one(*place)) == place


def test_0_means_that_there_is_none() -> None:
    assert id_parts(0) == (0, -1, 0)


@pytest.mark.parametrize("batch", [-1, LAST_BATCH + 1])
def test_a_micro_batch_without_room_is_refused(batch: int) -> None:
    with pytest.raises(
        LocalProtocolError, match=rf"micro-batch {batch}: .* up to {LAST_BATCH}; go on with a new query"
    ):
        one(batch, 0, 0)


def test_a_row_without_room_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=rf"row {LAST_ROW + 1} .* room for {2**26 - 1} rows; .*repartition"):
        publishing_ids(0, np.array([LAST_ROW, LAST_ROW + 1]), 0)


# --- a retry


def test_a_stream_that_has_nothing_of_the_task_has_nothing_to_compare() -> None:
    for sequence in (0, one(6, 900, 1)):
        resumed = Resumed("s", 7, sequence)
        assert (resumed.last_row, resumed.compared) == (-1, True)
        resumed.check(block(0, 10, 99))
        resumed.check_end(0)


def test_the_window_of_the_last_row_is_compared_and_no_other() -> None:
    resumed = Resumed("s", 7, one(7, 1500, 42))
    assert (resumed.last_row, resumed.compared) == (1500, False)
    resumed.check(block(0, 1024, 1))
    assert not resumed.compared
    resumed.check(block(1024, 1024, 42))
    assert resumed.compared
    resumed.check(block(2048, 1024, 1))
    resumed.check_end(1501)


@pytest.mark.parametrize("row", [1024, 2047])
def test_another_digest_fails_and_says_how_far_the_rows_differ(row: int) -> None:
    resumed = Resumed("orders", 7, one(7, row, 42))
    resumed.check(block(0, 1024, 1))
    with pytest.raises(DeliveryFailed, match=rf"row {row} .*stream 'orders': rows-differ: .*sortWithinPartitions"):
        resumed.check(block(1024, 1024, 43))


def test_a_stream_that_is_met_only_after_its_last_row_is_another_destination() -> None:
    resumed = Resumed("orders", 7, one(7, 5, 42))
    with pytest.raises(DeliveryFailed, match=r"row 5 .*rows-differ: .* now it goes elsewhere"):
        resumed.check(block(1024, 1024, 42))


def test_fewer_rows_than_there_are() -> None:
    with pytest.raises(DeliveryFailed, match=r"row 5 .*rows-differ: .* now the task has 5 rows"):
        Resumed("orders", 7, one(7, 5, 42)).check_end(5)


def test_a_checkpoint_older_than_the_stream() -> None:
    with pytest.raises(DeliveryFailed, match=r"micro-batch 7 .* has micro-batch 8 .* checkpoint is older"):
        Resumed("orders", 7, one(8, 0, 0))
