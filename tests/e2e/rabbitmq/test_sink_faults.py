"""A disk that is full and confirms that stay away: the task fails with the code, the stream and the first row."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.e2e.rabbitmq.broker import Broker, Line
from tests.e2e.rabbitmq.conftest import Embedded
from tests.e2e.rabbitmq.queries import Queries
from tests.rabbitmq.by_hand import PUBLISH_CONFIRM

pytestmark = pytest.mark.spark

FEW = {"maxInFlight": "200", "requestTimeout": "3000"}


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """More than is ever under way, in one task."""
    return spark.range(0, 5_000, 1, 1).selectExpr("CAST(id AS STRING) AS value")


@pytest.mark.parametrize("room", [0, 3])
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


class Mute(Line):
    """A line that lets ``frames`` PublishConfirm frames through, and none after them."""

    def __init__(self, url: str, frames: int) -> None:
        super().__init__(url)
        self._left = frames
        self.confirmed = set[int]()
        self.swallowed = 0

    def _pass_on(self, a: socket.socket, b: socket.socket) -> None:  # type: ignore[override]
        if a.getpeername() != self._to:
            Line._pass_on(a, b)
            return
        with contextlib.suppress(OSError, struct.error), a.makefile("rb") as stream:
            while True:
                frame = stream.read(4)
                frame += stream.read(*struct.unpack(">I", frame))
                if struct.unpack_from(">H", frame, 4)[0] == PUBLISH_CONFIRM:
                    if self._left == 0:
                        self.swallowed += 1
                        continue
                    self._left -= 1
                    (count,) = struct.unpack_from(">I", frame, 9)
                    self.confirmed.update(struct.unpack_from(f">{count}Q", frame, 13))
                b.sendall(frame)
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("frames", [0, 2])
def test_confirms_that_stay_away(queries: Queries, broker: Broker, rows: DataFrame, frames: int) -> None:
    orders = broker.create()
    with Mute(broker.url, frames) as line:
        message = queries.not_written(rows, orders, **FEW | {"url": line.url})
    assert line.swallowed > 0, "the broker did confirm"
    # Without an identity publishing ids are the rows' numbers, from 1.
    first = next(row for row in range(5_000) if row + 1 not in line.confirmed)
    assert first > 0 if frames else first == 0
    assert "DeliveryFailed" in message
    assert f"row {first} of Spark partition 0 was not confirmed by stream '{orders}': no-confirm" in message
    assert "within 3000 ms" in message
