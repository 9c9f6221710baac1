"""Helpers for streaming queries in tests: they wait without a guessed sleep, and keep rows over several starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_streams.position import progress_offset
from spark_streams.testing.stream import LogStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming import StreamingQuery

_PAUSE_S: Final = 0.05
_OFFSET_DIGITS: Final = 16
"""Hexadecimal digits at the end of a cursor of the log's feeds; they are the number of the next event."""


def eventually(
    condition: Callable[[], object],
    what: str = "the condition",
    timeout_s: float = 60.0,
    *,
    query: StreamingQuery | None = None,
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: is called repeatedly; an AssertionError that it raises counts as false.
        what: names the condition in the error.
        timeout_s: deadline in seconds.
        query: the query that makes the condition true; its failure ends the wait.

    Raises:
        StreamingQueryException: the query failed before the condition held.
        AssertionError: the condition did not hold in time; or the condition's own AssertionError.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() > deadline
        try:
            if condition():
                return
        except AssertionError:
            if late:
                raise
        fault = query.exception() if query is not None else None
        if fault is not None:
            raise fault
        if late:
            far = f"; the query has come to {query.lastProgress}" if query is not None else ""
            raise AssertionError(f"{what} did not hold within {timeout_s} s{far}")
        time.sleep(_PAUSE_S)


def wait_until_caught_up(query: StreamingQuery, *streams: LogStream, timeout_s: float = 120.0) -> None:
    """Return when a query has processed every event that the streams held at the time of this call.

    Args:
        query: a query that reads the streams, in any format.
        streams: the streams to wait for.
        timeout_s: deadline in seconds.

    Raises:
        StreamingQueryException: the query failed.
        AssertionError: the query ended too early, does not read a stream, or missed the deadline; the text says which
            offsets it reached.
    """
    wanted = {stream.name: {p: int(last) for p, last in stream.ends().items()} for stream in streams}
    deadline = time.monotonic() + timeout_s
    while True:
        # isActive comes before lastProgress, so that the progress has all that an ended query did.
        active = query.isActive
        progress = query.lastProgress
        reached = _reached(progress) if progress else {}
        behind = {name: ends for name, ends in wanted.items() if not _is_past(reached.get(name, {}), ends)}
        if not behind:
            break
        fault = query.exception()
        if fault is not None:
            raise fault
        if not active or time.monotonic() > deadline:
            why = f"within {timeout_s} s" if active else "before it ended"
            raise AssertionError(f"the query did not catch up {why}: expected {behind}, it has come to {reached}")
        time.sleep(_PAUSE_S)


def _reached(progress: Any) -> dict[str, dict[str, int]]:
    """Return the last processed offset, by stream and partition."""
    found: dict[str, dict[str, int]] = {}
    for source in progress["sources"]:
        end = progress_offset(source["endOffset"])
        if end is not None:
            name = str(end["stream"])
            found[name] = {
                _number(name, partition): _offset(position, feed="spool" in end)
                for partition, position in end["partitions"].items()
                if isinstance(position, Mapping) and "after" in position
            }
    return found


def _number(stream: str, partition: str) -> str:
    """Return the log's own identifier of a partition, which RabbitMQ names after its stream."""
    return "0" if partition == stream else partition.removeprefix(f"{stream}-")


def _offset(position: Mapping[str, str], *, feed: bool) -> int:
    text = position["after"]
    return int(text[-_OFFSET_DIGITS:], 16) - 1 if feed else int(text)


def _is_past(reached: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    return all(reached.get(partition, -1) >= last for partition, last in ends.items())


_TIMEOUT_S: Final = 120.0


class KeptQuery:
    """A streaming query with one checkpoint that keeps the rows of each of its micro-batches in this process.

    Tests may start it repeatedly, as a query starts again after a stop or a crash. A micro-batch that Spark runs again
    must have the same rows in the same order: the query fails otherwise. Leaving the context stops the query.

    It needs a classic session: Spark Connect would keep the rows in its server.

    Args:
        folder: folder that holds the checkpoint.
        name: the query's name, as Spark shows it.
        timeout_s: deadline of each wait, in seconds.
    """

    def __init__(self, folder: Path, name: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[Row]] = {}
        """Number of each micro-batch to its rows."""
        self._name = name
        self._timeout_s = timeout_s
        self._query: StreamingQuery | None = None

    def __repr__(self) -> str:
        named = "" if self._name is None else f" '{self._name}'"
        return f"<KeptQuery{named}, {len(self.rows)} rows in {len(self.batches)} micro-batches, {self.checkpoint}>"

    @property
    def running(self) -> StreamingQuery:
        """The query that was started last.

        Raises:
            RuntimeError: the query was never started.
        """
        if self._query is None:
            raise RuntimeError("the query was not started")
        return self._query

    @property
    def rows(self) -> list[Row]:
        """The rows of all micro-batches, in their order."""
        return [row for _, batch in sorted(self.batches.items()) for row in batch]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each micro-batch."""
        return [len(batch) for _, batch in sorted(self.batches.items())]

    def committed(self) -> set[int]:
        """Return the numbers of the micro-batches that Spark will not run again."""
        return {int(each.name) for each in (self.checkpoint / "commits").glob("[0-9]*")}

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        """Start the query, or start it again from its checkpoint.

        Args:
            frame: the streaming DataFrame that the query computes.
            trigger: arguments of ``DataStreamWriter.trigger``; without any, micro-batches follow each other at once.
        """
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        if self._name is not None:
            writer = writer.queryName(self._name)
        self._query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        return self._query

    def drain(self, frame: DataFrame) -> list[int]:
        """Run the query until it has processed all events there are now, and return the sizes of new micro-batches.

        Raises:
            StreamingQueryException: the query failed.
            AssertionError: the query did not end in time.
        """
        before = set(self.batches)
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(self._timeout_s), f"the query did not end in time: {query.lastProgress}"
        return [len(batch) for number, batch in sorted(self.batches.items()) if number not in before]

    def wait_for_rows(self, count: int) -> None:
        """Return when committed micro-batches have ``count`` rows or more.

        Raises:
            StreamingQueryException: the query failed.
            AssertionError: the rows did not come in time.
        """

        def are_there() -> bool:
            return sum(len(self.batches.get(number, ())) for number in self.committed()) >= count

        eventually(are_there, f"{count} rows", self._timeout_s, query=self.running)

    def wait_for_batch(self, number: int = 0) -> None:
        """Return when a micro-batch is committed; after the first one the checkpoint has the query's start.

        Raises:
            StreamingQueryException: the query failed.
            AssertionError: the micro-batch was not committed in time.
        """
        eventually(lambda: number in self.committed(), f"micro-batch {number}", self._timeout_s, query=self.running)

    def stop(self) -> None:
        """Stop the query if it runs; ``start`` continues from its checkpoint."""
        if self._query is not None:
            self._query.stop()

    def __enter__(self) -> KeptQuery:
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()

    def _keep(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        had = self.batches.setdefault(number, rows)
        assert had == rows, f"micro-batch {number} was run again and has other rows: {rows} instead of {had}"
