"""Streams that queries read and write, the same for all formats: of the run's log, or of a real RabbitMQ.

Events are numbers, so that they are JSON, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_streams.testing import LogStream
from tests.e2e.by_day import nightly_unless
from tests.e2e.feed.conftest import DIALECTS, Feed
from tests.e2e.rabbitmq.broker import Broker

HUB = "amqp-events-of-an-event-hub"
IN_LOG = {
    "amqp-events": ("amqp-events", ""),
    HUB: ("amqp-events", "event-hubs"),
    "rabbitmq-stream": ("rabbitmq-stream", ""),
    **{f"feedapi-{dialect}": ("feedapi", dialect) for dialect in DIALECTS},
}
"""The format, and the dialect if there are such, of a place in the log."""
REAL = "rabbitmq-stream-of-RabbitMQ"
REAL_AMQP = "amqp-events-of-RabbitMQ"


def places(*by_day: str, of: tuple[str, ...] = (*IN_LOG, REAL, REAL_AMQP)) -> pytest.MarkDecorator:
    """Have a test run in these places in `make test`, and at night in the others."""
    assert set(by_day) <= set(of)
    params = []
    for each in of:
        real = [pytest.mark.rabbitmq] if each in (REAL, REAL_AMQP) else []
        params.append(pytest.param(each, marks=[*nightly_unless(each in by_day), *real]))
    return pytest.mark.parametrize("create", params, indirect=True)


class Place(ABC):
    """A stream.

    Args:
        format: what queries of it are given as their format.
        name: of the stream.
        partitions: their names, as rows have them.
    """

    def __init__(self, format: str, name: str, partitions: list[str]) -> None:
        self.format, self.name, self.partitions = format, name, partitions

    @abstractmethod
    def append(self, partition: int, low: int, high: int, width: int = 0) -> None:
        """Append the numbers from ``low`` to ``high - 1``, each an event of at least ``width`` bytes."""

    @abstractmethod
    def options(self, **more: str) -> dict[str, str]:
        """What finds it."""

    def load(self, spark: SparkSession, **more: str) -> DataFrame:
        """A streaming read of partitions, offsets and values."""
        given = {"requestTimeout": "120000", **self.options(**more)}
        return spark.readStream.format(self.format).options(**given).load().select("partition", "offset", "value")

    def numbers(self, rows: list[Row]) -> dict[int, list[int]]:
        """Partition to the numbers of its events, in the order of the rows."""
        found: dict[int, list[int]] = {}
        for row in rows:
            found.setdefault(self.partitions.index(row.partition), []).append(int(bytes(row.value)))
        return found


class InLog(Place):
    """A stream of the log, through its AMQP or its RabbitMQ door."""

    def __init__(self, format: str, stream: LogStream) -> None:
        prefix = f"{stream.name}-" if format == "rabbitmq-stream" else ""
        alone = format == "rabbitmq-stream" and stream.partitions == 1
        super().__init__(
            format, stream.name, [stream.name] if alone else [f"{prefix}{n}" for n in range(stream.partitions)]
        )
        self.stream = stream

    def append(self, partition: int, low: int, high: int, width: int = 0) -> None:
        self.stream.produce({"value": f"{n:>{width}}", "partition": str(partition)} for n in range(low, high))

    def options(self, **more: str) -> dict[str, str]:
        return self.stream.options(self.format, **more)


class InHub(InLog):
    """A stream of the log, as an event hub.

    Args:
        stream: which.
        connection_string: of the log's Event Hubs door.
    """

    def __init__(self, stream: LogStream, connection_string: str) -> None:
        super().__init__("amqp-events", stream)
        self._connection_string = connection_string

    def options(self, **more: str) -> dict[str, str]:
        return {"connectionString": self._connection_string, "stream": self.name, **more}


class InFeed(InLog):
    """A stream of the log, through its feed door, read in one dialect.

    Args:
        stream: which.
        dialect: of the feed.
        spool: where queries keep what they have read ahead.
    """

    def __init__(self, stream: LogStream, dialect: str, spool: str) -> None:
        super().__init__("feedapi", stream)
        self._feed, self._spool = Feed(stream, dialect), spool

    def load(self, spark: SparkSession, **more: str) -> DataFrame:
        return super().load(spark, **self._feed.options(pageSize="10", spoolLocation=self._spool, **more))


class OnRabbitMQ(Place):
    """A super stream of a real RabbitMQ."""

    def __init__(self, broker: Broker, partitions: int) -> None:
        name = broker.create_super(partitions)
        super().__init__("rabbitmq-stream", name, [f"{name}-{n}" for n in range(partitions)])
        self._broker = broker

    def append(self, partition: int, low: int, high: int, width: int = 0) -> None:
        self._broker.publish(self.partitions[partition], [f"{n:>{width}}" for n in range(low, high)], each=50)

    def options(self, **more: str) -> dict[str, Any]:
        return {"url": self._broker.url, "superStream": self.name, **more}


class OnRabbitMQOverAmqp(OnRabbitMQ):
    """The same, over AMQP 1.0.

    Args:
        broker: with its address for streams.
        partitions: how many.
        url: its address for AMQP.
    """

    def __init__(self, broker: Broker, partitions: int, url: str) -> None:
        super().__init__(broker, partitions)
        self.format, self._url = "amqp-events", url

    def options(self, **more: str) -> dict[str, Any]:
        return {"url": self._url, "superStream": self.name, **more}
