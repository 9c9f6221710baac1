"""What a source's driver knows of each micro-batch, its lag too: for a log line, and for the progress of the query.

Spark gives a Python source one way to say something in a query's progress: ``reportLatestOffset`` (Spark 4.2), which it
asks right after it has planned a batch. It is an offset for showing only, which Spark neither stores nor hands back, so
beside the newest offsets it carries what ``BatchProgress.report`` returns (docs/adr/0024-what-spark-lets-us-tell.md).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.log_client import StreamDescription
from spark_streams.errors import SparkStreamsError
from spark_streams.position import EARLIEST, After, Checkpoint, Position
from spark_streams.spark.source.driver import Driver

_log = logging.getLogger("spark_streams.spark.progress")

MAX_SHOWN: Final = 10
"""Partitions whose lag a line shows, those furthest behind; at DEBUG another line has them all."""

_Lag = Mapping[str, int | None]


class BatchProgress:
    """Counts the events of each batch and what is left after it; logs one line when a batch is done.

    Args:
        policy: knows the losses.
        stream: the log's name.
        clock: seconds, monotonic.
    """

    def __init__(self, policy: LossPolicy, stream: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._stream = stream
        self._clock = clock
        self._end: object = None
        self._events: dict[str, int | None] = {}
        self._bytes: dict[str, int] = {}
        self._told_losses = 0
        self._planned_at = 0.0
        self._due = False

    def planned(self, end: object, events: Mapping[str, int | None], sizes: Mapping[str, int] | None = None) -> None:
        """Note that a batch was planned.

        Args:
            end: where it ends.
            events: of each partition that it reads; None where the peer does not tell.
            sizes: bytes of each, where they are known before they are read.
        """
        self._end = end
        self._events = dict(events)
        self._bytes = dict(sizes or {})
        self._told_losses = len(self._policy.losses)
        self._planned_at = self._clock()
        self._due = any(count != 0 for count in events.values())

    def reached(self, position: object, lag: Callable[[], _Lag]) -> None:
        """Note that reading goes on at ``position``: the batch that ended there is done, and gets its line.

        Args:
            position: as ``end`` of ``planned``.
            lag: is asked for the events of each partition after it, when there is a line.
        """
        if self._end is None or position != self._end:
            return  # another run's batch ended here, or it is asked about the same one again
        # The losses that were known when it was planned are in its progress.
        del self._policy.losses[: self._told_losses]
        self._told_losses = 0
        if not self._due or not _log.isEnabledFor(logging.INFO):
            return
        self._due = False
        seconds = max(self._clock() - self._planned_at, 1e-3)
        told = lag()
        _log.info("stream '%s': batch of %s in %.3f s, lag %s", self._stream, self._told(seconds), seconds, shown(told))
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("stream '%s': %s", self._stream, json.dumps(self.report(told)))

    def report(self, lag: _Lag) -> dict[str, Any]:
        """Return what goes into the progress of the batch that was planned last.

        Args:
            lag: events of each partition after it; None where the peer does not tell.

        Returns:
            ``{"lag": {partition: n | null}, "planned": {"events": {partition: n | null}, "bytes": {partition: n}},
            "metrics": {…}, "losses": [{"partition": …, "asked": …, "available": …}, …]}``; ``metrics`` as
            ``behind_latest``.
        """
        return {
            "lag": dict(lag),
            "planned": {"events": self._events, "bytes": self._bytes},
            "metrics": behind_latest(lag),
            "losses": [asdict(loss) for loss in tuple(self._policy.losses)],
        }

    def _told(self, seconds: float) -> str:
        counts = [count for count in self._events.values() if count is not None]
        if len(counts) < len(self._events):
            return "an unknown number of events"
        events, size = sum(counts), sum(self._bytes.values())
        told = f"{events} events, {events / seconds:.0f} events/s"
        return told + (f", {size} bytes, {size / seconds:.0f} bytes/s" if self._bytes else "")


def behind_latest(lag: _Lag) -> dict[str, str]:
    """Return what Spark's Kafka source has as metrics, by its names; nothing where a partition's lag is unknown."""
    counts = [count for count in lag.values() if count is not None]
    if not counts or len(counts) < len(lag):
        return {}
    return {
        "minOffsetsBehindLatest": str(min(counts)),
        "maxOffsetsBehindLatest": str(max(counts)),
        "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
    }


def shown(lag: _Lag) -> str:
    """Return the lag of partitions in words: all, or the sum and those that are furthest behind."""
    most = sorted(lag, key=lambda p: (-(lag[p] if lag[p] is not None else 2**63), p))[:MAX_SHOWN]  # type: ignore[operator]
    told = ", ".join(f"{p}: {'?' if lag[p] is None else lag[p]}" for p in sorted(most))
    if len(most) == len(lag):
        return f"{{{told}}}"
    return f"{sum(count or 0 for count in lag.values())} in {len(lag)} partitions, most of it {{{told}}}"


class Lag:
    """Asks the peer how much is left, once for each answer about the log's bounds.

    Args:
        driver: of the query.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._of: tuple[StreamDescription, Checkpoint] | None = None
        self._lag: dict[str, int | None] = {}

    def after(self, end: Checkpoint | None) -> dict[str, int | None]:
        """Return how many events each partition has after ``end``; None where the peer does not tell.

        Args:
            end: of the last planned batch; None when there was none, and nothing is known.
        """
        description = self._driver.describe()
        if end is None:
            return dict.fromkeys(description.partitions)
        if self._of is not None and self._of[0] is description and self._of[1] == end:
            return self._lag
        lag: dict[str, int | None] = {}
        behind: dict[str, Position] = {}
        for partition, bounds in description.partitions.items():
            position = end.partitions.get(partition, EARLIEST)
            if bounds.latest is None or (isinstance(position, After) and position.offset >= bounds.latest):
                lag[partition] = 0
            else:
                behind[partition] = position
        if behind:
            try:
                lag.update(self._driver.counting.remaining(behind))
            except SparkStreamsError as fault:
                _log.debug("no lag: %s", fault)
                lag.update(dict.fromkeys(behind))
        self._of, self._lag = (description, end), lag
        return lag
