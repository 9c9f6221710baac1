"""A disk that is full and confirms that stay away: the task fails with the code, the stream and the first row.

The log whose disk is full is in this process.
"""

from __future__ import annotations

import contextlib
import errno
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.e2e.rabbitmq.broker import Broker
from tests.e2e.rabbitmq.conftest import Embedded
from tests.e2e.rabbitmq.queries import Queries
from tests.faults.proxy import TcpProxy
from tests.real_rabbitmq.by_hand import PUBLISH_CONFIRM

pytestmark = pytest.mark.spark

FEW = {"maxInFlight": "200"}


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """More than is ever under way, in one task."""
    return spark.range(0, 5_000, 1, 1).selectExpr("CAST(id AS STRING) AS value")


@pytest.mark.parametrize("room", [pytest.param(0, marks=pytest.mark.nightly), 3])
def test_a_full_disk(tmp_path: Path, spark: SparkSession, rows: DataFrame, room: int) -> None:
    broker = Embedded(tmp_path / "log")
    with contextlib.closing(broker), pytest.MonkeyPatch.context() as patch:
        orders = broker.create()
        (partition,) = broker.log.stream(orders).partitions.values()
        append = partition.append
        taken = 0

        def until_full(*given: Any, **more: Any) -> Any:
            nonlocal taken
            if taken == room:
                raise OSError(errno.ENOSPC, "no space left")
            taken += 1
            return append(*given, **more)

        patch.setattr(partition, "append", until_full)
        message = Queries(spark, broker, tmp_path).not_written(rows, orders, **FEW)
        stored = len(broker.bodies(orders))
        assert stored > 0 if room else stored == 0
        assert "DeliveryFailed" in message
        assert f"row {stored} of Spark partition 0" in message
        assert f"by stream '{orders}': internal-error (0x0f)" in message


class Mute:
    """Lets ``frames`` PublishConfirm frames through, and none after them.

    Args:
        frames: of all connections together.
    """

    def __init__(self, frames: int) -> None:
        self._left = frames
        self._lock = threading.Lock()
        self.confirmed = set[int]()
        self.swallowed = 0

    def __call__(self) -> Callable[[bytes], bytes]:
        """Return what does so for one more connection."""
        held = b""

        def rewrite(piece: bytes) -> bytes:
            nonlocal held
            held += piece
            passed = b""
            while len(held) >= 4 and len(held) >= (end := 4 + struct.unpack_from(">I", held)[0]):
                frame, held = held[:end], held[end:]
                passed += frame if self._passes(frame) else b""
            return passed

        return rewrite

    def _passes(self, frame: bytes) -> bool:
        if struct.unpack_from(">H", frame, 4)[0] != PUBLISH_CONFIRM:
            return True
        with self._lock:
            if self._left == 0:
                self.swallowed += 1
                return False
            self._left -= 1
            (count,) = struct.unpack_from(">I", frame, 9)
            self.confirmed.update(struct.unpack_from(f">{count}Q", frame, 13))
            return True


@pytest.mark.parametrize("frames", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_confirms_that_stay_away(queries: Queries, broker: Broker, rows: DataFrame, frames: int) -> None:
    orders = broker.create()
    line = Mute(frames)
    with TcpProxy(broker.address, rewrite=line) as proxy:
        message = queries.not_written(rows, orders, **FEW, url=proxy.url(broker.url), requestTimeout="6000")
    assert line.swallowed > 0, "the broker did confirm"
    # Without an identity publishing ids are the rows' numbers, from 1.
    first = next(row for row in range(5_000) if row + 1 not in line.confirmed)
    assert first > 0 if frames else first == 0
    assert "DeliveryFailed" in message
    assert f"row {first} of Spark partition 0 was not confirmed by stream '{orders}': no-confirm" in message
    assert "within 6000 ms" in message
