"""Feeds in the dialects that doors speak: of the run's log, and of one like it whose door speaks version 2b."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_streams.testing import KeptQuery, LogProcess, LogStream, StreamFactory
from tests.e2e.by_day import by_day

WAIT_S = 120
DIALECTS = ("v1", "v2a", "v2b")
in_dialects = functools.partial(by_day, "feeds", of=DIALECTS)
"""These by day, the others at night."""


class Feed:
    """A feed of the log, read in one dialect.

    Args:
        stream: the feed's stream.
        dialect: ``v1``, ``v2a`` or ``v2b``; the log's door speaks it.
    """

    def __init__(self, stream: LogStream, dialect: str) -> None:
        self.stream, self.dialect = stream, dialect

    def options(self, **more: str) -> dict[str, str]:
        """What a reader needs, and more."""
        given = {"requestTimeout": "120000", "pollInterval": "50"}
        if self.dialect == "v1":
            given |= {"dialect": "v1", "partitions": str(self.stream.partitions)}
        return self.stream.options("feedapi", **(given | more))


class Feeds:
    """Makes feeds that are read in one dialect.

    Args:
        streams: of a log whose door speaks it.
        dialect: which.
    """

    def __init__(self, streams: StreamFactory, dialect: str) -> None:
        self.streams, self.dialect = streams, dialect

    def create(self, partitions: int) -> Feed:
        """Return a new feed."""
        return Feed(self.streams.create("orders", partitions), self.dialect)


@pytest.fixture(params=DIALECTS)
def feeds(request: pytest.FixtureRequest, reference_log_process: LogProcess) -> Feeds:
    """Feeds in each dialect in turn; doors speak version 1 beside either version 2."""
    process = request.getfixturevalue("log_process_v2b") if request.param == "v2b" else reference_log_process
    return Feeds(StreamFactory(process), request.param)


@pytest.fixture
def query(tmp_path: Path, streams_of_feeds: None) -> Iterator[KeptQuery]:
    """A query that ends with the test."""
    with KeptQuery(tmp_path, timeout_s=WAIT_S) as made:
        yield made


def load(spark: Any, options: dict[str, str]) -> Any:
    """A streaming read of partitions and values."""
    return spark.readStream.format("feedapi").options(**options).load().select("partition", "value")
