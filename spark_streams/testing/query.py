"""Streaming queries in tests: wait for one without a guessed sleep, and keep one's rows over several starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from spark_streams.position import progress_offset
from spark_streams.testing.stream import LogStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming import StreamingQuery

_PAUSE_S: Final = 0.05
_OFFSET_DIGITS: Final = 16
"""The hexadecimal digits at the end of a cursor of the log's feeds: the number of the next event."""


def eventually(
    condition: Callable[[], object],
    what: str = "the condition",
    timeout_s: float = 60.0,
    *,
    query: StreamingQuery | None = None,
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: is asked again and again; an AssertionError of it counts as no.
        what: names it in the error.
        timeout_s: how long it may take, in seconds.
        query: whose doing the condition is.

    Raises:
        StreamingQueryException: the query failed before the condition held.
        AssertionError: it did not hold in time; or the condition's own one.
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
    """Return when a query has processed every event that streams held when this was called.

    Args:
        query: a query that reads the streams, in any format.
        streams: which.
        timeout_s: how long it may take, in seconds.

    Raises:
        StreamingQueryException: the query failed.
        AssertionError: it ended before it came so far, it does not read a stream, or time ran out; says how far it is.
    """
    wanted = {stream.name: {p: int(last) for p, last in stream.ends().items()} for stream in streams}
    deadline = time.monotonic() + timeout_s
    while True:
        # Asked before the progress is: what a query did before it ended is in it.
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
    """Return stream to partition to the last offset that is done."""
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
    """Return the log's own name of a partition: RabbitMQ's is that of its stream."""
    return "0" if partition == stream else partition.removeprefix(f"{stream}-")


def _offset(position: Mapping[str, str], *, feed: bool) -> int:
    text = position["after"]
    return int(text[-_OFFSET_DIGITS:], 16) - 1 if feed else int(text)


def _is_past(reached: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    return all(reached.get(partition, -1) >= last for partition, last in ends.items())


_TIMEOUT_S: Final = 120.0


class KeptQuery:
    """A streaming query with one checkpoint, which keeps the rows of each of its micro-batches in this process.

    It may be started again and again, as a query is after a stop or a crash. A micro-batch that Spark runs again has to
    have the rows that it had, in their order: the query fails otherwise. Leaving the context stops it.

    It needs a classic session: Spark Connect would keep the rows in its server.

    Args:
        folder: where its checkpoint lives.
        name: of the query, as Spark shows it.
        timeout_s: how long each wait may take, in seconds.
    """

    def __init__(self, folder: Path, name: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[Row]] = {}
        """Number to rows of each micro-batch."""
        self._name = name
        self._timeout_s = timeout_s
        self._query: StreamingQuery | None = None

    @property
    def running(self) -> StreamingQuery:
        """The query that was started last.

        Raises:
            RuntimeError: none was.
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
        """How many rows each micro-batch had."""
        return [len(batch) for _, batch in sorted(self.batches.items())]

    def committed(self) -> set[int]:
        """Return the numbers of the micro-batches that Spark will not run again."""
        return {int(each.name) for each in (self.checkpoint / "commits").glob("[0-9]*")}

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        """Start it, or start it again where it was.

        Args:
            frame: what it computes.
            trigger: of ``DataStreamWriter.trigger``; one micro-batch after the other when there is none.
        """
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        if self._name is not None:
            writer = writer.queryName(self._name)
        self._query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        return self._query

    def drain(self, frame: DataFrame) -> list[int]:
        """Run it until it has processed what there is now; returns the sizes of its new micro-batches.

        Raises:
            StreamingQueryException: it failed.
            AssertionError: time ran out.
        """
        before = set(self.batches)
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(self._timeout_s), f"the query did not end in time: {query.lastProgress}"
        return [len(batch) for number, batch in sorted(self.batches.items()) if number not in before]

    def wait_for_rows(self, count: int) -> None:
        """Return when so many rows have come in micro-batches that are committed.

        Raises:
            StreamingQueryException: the query failed.
            AssertionError: time ran out.
        """

        def are_there() -> bool:
            return sum(len(self.batches.get(number, ())) for number in self.committed()) >= count

        eventually(are_there, f"{count} rows", self._timeout_s, query=self.running)

    def wait_for_batch(self, number: int = 0) -> None:
        """Return when a micro-batch is committed; the first one tells that the query knows where it starts.

        Raises:
            StreamingQueryException: the query failed.
            AssertionError: time ran out.
        """
        eventually(lambda: number in self.committed(), f"micro-batch {number}", self._timeout_s, query=self.running)

    def stop(self) -> None:
        """Stop it, if it runs; ``start`` goes on where it was."""
        if self._query is not None:
            self._query.stop()

    def __enter__(self) -> KeptQuery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _keep(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        had = self.batches.setdefault(number, rows)
        assert had == rows, f"micro-batch {number} was run again and has other rows: {rows} instead of {had}"
