"""Waiting for a streaming query, without sleeping for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_streams.progress_offset import progress_offset
from spark_streams.testing.stream import LogStream

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["eventually", "wait_until_caught_up"]

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
