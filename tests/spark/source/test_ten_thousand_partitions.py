"""A stream of ten thousand partitions, planned as Spark plans it.

Every partition is read, an idle trigger finds nothing, and of one new event the next micro-batch has exactly that one.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from spark_streams.server.feed.config import FeedConfig

PARTITIONS = 10_000
FILES = 14_000
"""One file a partition, 2,048 others of the log, and what else the process has open."""
EVENT = b'\x00\x53\x75\xa0\x09{"id": 1}'
"""An AMQP message with one data section."""
WAIT_S = 1_500.0
GUARD_MS = "1200000"

SOURCES = {
    "rabbitmq-stream": ("rabbitmq_stream", "RabbitStreamDataSource"),
    "amqp-events": ("amqp_events", "AmqpEventsDataSource"),
    "feedapi": ("feedapi", "FeedDataSource"),
}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(WAIT_S + 120)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReferenceLog, ServerThread]]:
    """A log with one event in each partition, and its doors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"the system allows {hard} open files, and {FILES} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    config = LogConfig(fsync="never", max_partitions=PARTITIONS)
    with ReferenceLog(tmp_path_factory.mktemp("log"), config) as log:
        for partition in log.create_stream("orders", PARTITIONS).partitions.values():
            partition.append([EVENT])
        with ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0)) as server:
            yield log, server
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def reader_of(format: str, server: ServerThread) -> Any:
    module, name = SOURCES[format]
    url = server.url({"amqp-events": "amqp"}.get(format, format))
    where = {
        "rabbitmq-stream": {"url": url, "superStream": "orders"},
        "amqp-events": {"url": url, "stream": "orders"},
        "feedapi": {"url": f"{url}/orders"},
    }[format]
    options = {**where, "startingOffsets": "earliest", "requestTimeout": GUARD_MS}
    source = getattr(import_module(f"spark_streams.sources.{module}"), name)(options)
    return source.streamReader(source.schema())


def through_json(offset: Any) -> Any:
    """What Spark does with an offset between its calls."""
    return json.loads(json.dumps(offset))


@pytest.mark.parametrize("format", SOURCES)
def test_all_of_them_are_planned(format: str, served: tuple[ReferenceLog, ServerThread]) -> None:
    log, server = served
    reader = reader_of(format, server)
    deadline = time.monotonic() + WAIT_S

    def step(at: Any) -> tuple[Any, list[Any]]:
        end = through_json(reader.latestOffset(through_json(at), reader.getDefaultReadLimit()))
        tasks = reader.partitions(through_json(at), through_json(end)) if end != at else []
        assert time.monotonic() < deadline
        return end, list(tasks)

    try:
        at, planned = through_json(reader.initialOffset()), 0
        while planned < PARTITIONS:  # a feed's micro-batch has what is there when it is planned
            at, tasks = step(at)
            planned += len(tasks)
        assert planned == PARTITIONS == len(at["partitions"])
        again, tasks = step(at)
        assert (again["partitions"], tasks) == (at["partitions"], [])
        at = again
        log.stream("orders").partitions[str(PARTITIONS - 1)].append([EVENT])
        tasks = []
        while not tasks:
            before, (at, tasks) = at, step(at)
        assert len(tasks) == 1
        name = f"orders-{PARTITIONS - 1}" if format == "rabbitmq-stream" else str(PARTITIONS - 1)
        moved = [p for p, position in at["partitions"].items() if position != before["partitions"][p]]
        assert moved == [name]
    finally:
        reader.stop()
