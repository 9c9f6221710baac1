"""Streaming queries that read or write through a proxy, and what must have come of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_streams.testing import wait_until_caught_up
from tests.faults.doors import Doors
from tests.faults.proxy import TcpProxy

__all__ = ["NOT_STARTED", "PARTITIONS", "Reading", "Writing"]

PARTITIONS = 2
NOT_STARTED = "Python worker failed to connect back"
"""What Spark says when a Python process needs more than ten seconds to start, as on a machine that is busy."""
GUARD_S = 180.0
"""Far more than any scenario takes, on a loaded machine too."""


class _Query:
    """A streaming query, a stream that it takes events from, and what was appended there.

    Args:
        doors: of the log.
        format: that the query is about.
        name: of its streams.
        before: is done to the proxy before anything else.
    """

    query: Any

    def __init__(self, doors: Doors, format: str, name: str, before: Callable[[TcpProxy], object] | None) -> None:
        self.doors = doors
        self.format = format
        self.name = name
        self.proxy = doors.proxy(format)
        if before is not None:
            before(self.proxy)
        self.appended: dict[str, list[str]] = {str(p): [] for p in range(PARTITIONS)}
        self._next = 0
        doors.create(name, PARTITIONS)

    def append(self, count: int) -> None:
        """Append so many events to each partition, all at once."""
        more = {}
        for partition in self.appended:
            numbers = range(self._next, self._next + count)
            more[partition] = [f'{{"from":"{partition}","n":{n},"pad":"{"x" * 200}"}}' for n in numbers]
        self._next += count
        self.doors.append(self.name, more)
        for partition, values in more.items():
            self.appended[partition] += values

    @property
    def count(self) -> int:
        """How many events were appended."""
        return sum(map(len, self.appended.values()))

    def ends(self) -> dict[str, str]:
        """Return the offset of the last event of each partition, as ``wait_until_caught_up`` asks for it."""
        return {partition: str(len(values) - 1) for partition, values in self.appended.items() if values}

    def wait(self) -> None:
        """Return when the query is done with all that was appended."""
        wait_until_caught_up(self.query, self, timeout_s=GUARD_S)  # type: ignore[arg-type]

    def starts(self) -> bool:
        """Return whether the query has begun, and not failed for want of a Python process."""
        while self.query.lastProgress is None and (fault := self.query.exception()) is None:
            time.sleep(0.05)
        return self.query.lastProgress is not None or NOT_STARTED not in str(fault)

    def failure(self, within_s: float) -> str:
        """Wait until the query fails; return what it says. It is a failure of the test when that takes longer."""
        deadline = time.monotonic() + within_s
        while True:
            active = self.query.isActive
            if (fault := self.query.exception()) is not None:
                break
            assert active, "it ended without an error"
            assert time.monotonic() < deadline, f"{self.name}: it goes on after {within_s:g} s"
            time.sleep(0.05)
        return str(fault)

    def check(self) -> None:
        """Compare what has come with what was appended."""
        raise NotImplementedError

    def values(self) -> list[str]:
        """Return all that has come, in the order in which it came."""
        raise NotImplementedError

    def differences(self) -> tuple[list[str], list[str]]:
        """Return what was appended and has not come, and what has come and was not appended."""
        appended, came = Counter(v for values in self.appended.values() for v in values), Counter(self.values())
        return list((appended - came).elements()), list((came - appended).elements())

    def stop(self) -> None:
        """Stop the query, and whatever is done to it."""
        self.proxy.heal()
        self.query.stop()


class Reading(_Query):
    """Reads through the proxy; the rows are kept here.

    Args:
        spark: the session.
        doors: of the log.
        format: to read in.
        name: of the stream.
        folder: for the checkpoint and the spool.
        timeout_ms: option ``requestTimeout``.
        before: is done to the proxy before the query starts.
    """

    def __init__(
        self,
        spark: SparkSession,
        doors: Doors,
        format: str,
        name: str,
        folder: Path,
        timeout_ms: int = 8_000,
        before: Callable[[TcpProxy], object] | None = None,
    ) -> None:
        super().__init__(doors, format, name, before)
        self._batches: dict[int, list[Any]] = {}
        more = {"startingOffsets": "earliest", "pollInterval": "50", "requestTimeout": str(timeout_ms)}
        if format == "feedapi":
            more["spoolLocation"] = str(folder / name / "spool")
        reader = spark.readStream.format(format).options(**doors.options(format, name, self.proxy), **more)
        rows = reader.load().selectExpr("partition", "offset", "string(value) AS value")
        writer = rows.writeStream.foreachBatch(self._take)
        self.query = writer.option("checkpointLocation", str(folder / name / "checkpoint")).start()

    def _take(self, frame: DataFrame, batch: int) -> None:
        self._batches[batch] = frame.collect()

    def values(self) -> list[str]:
        return [row.value for batch in sorted(self._batches) for row in self._batches[batch]]

    def check(self) -> None:
        """Every event is a row once, in the order of its partition, and nothing else is."""
        found: dict[str, list[Any]] = {partition: [] for partition in self.appended}
        for row in (row for batch in sorted(self._batches) for row in self._batches[batch]):
            found[row.partition.rpartition("-")[2]].append(row)
        assert {p: [row.value for row in rows] for p, rows in found.items()} == self.appended
        if self.format != "feedapi":  # a cursor is that of a page
            for rows in found.values():
                assert [int(row.offset) for row in rows] == list(range(len(rows)))


class Writing(_Query):
    """Writes through the proxy what it reads straight from the log.

    Args:
        spark: the session.
        doors: of the log.
        format: to write in.
        name: of the stream that is read; what is written goes to ``<name>-out``.
        folder: for the checkpoint.
        timeout_ms: option ``requestTimeout``.
        before: is done to the proxy before the query starts.
        reading: the format to read in.
        through: a proxy to read through.
    """

    def __init__(
        self,
        spark: SparkSession,
        doors: Doors,
        format: str,
        name: str,
        folder: Path,
        timeout_ms: int = 8_000,
        before: Callable[[TcpProxy], object] | None = None,
        *,
        reading: str = "amqp-events",
        through: TcpProxy | None = None,
    ) -> None:
        super().__init__(doors, format, name, before)
        self.output = f"{name}-out"
        doors.create(self.output, 1)
        timeout = {"requestTimeout": str(timeout_ms)}
        more = {"startingOffsets": "earliest", "pollInterval": "50", **(timeout if through is not None else {})}
        if reading == "feedapi":
            more["spoolLocation"] = str(folder / name / "spool")
        reader = spark.readStream.format(reading).options(**doors.options(reading, name, through), **more)
        writer = reader.load().selectExpr("string(value) AS value").writeStream.format(format)
        writer = writer.options(**doors.options(format, self.output, self.proxy), **timeout)
        self.query = writer.option("checkpointLocation", str(folder / name / "checkpoint")).start()

    def values(self) -> list[str]:
        """What is there; of AMQP, what has the same message-id is one."""
        (events,) = self.doors.events(self.output).values()
        if self.format != "amqp-events":
            return [event.value for event in events]
        first: dict[str | None, str] = {}
        for event in events:
            assert event.message_id is not None
            assert first.setdefault(event.message_id, event.value) == event.value
        return list(first.values())

    def check(self) -> None:
        """Every event is there, in its order: once, or, of AMQP, under one message-id however often."""
        found: dict[str, list[str]] = {partition: [] for partition in self.appended}
        for value in self.values():
            found[value[9 : value.index('"', 9)]].append(value)
        assert found == self.appended
