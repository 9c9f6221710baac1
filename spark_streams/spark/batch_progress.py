"""What the source's driver side counts: events of each batch, and what is left in each partition after it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from spark_streams.errors import SparkStreamsError
from spark_streams.position import EARLIEST, After, Checkpoint, Position
from spark_streams.spark.driver import Driver

__all__ = ["BatchProgress"]

_log = logging.getLogger("spark_streams.spark.progress")


class BatchProgress:
    """Counts the events of each batch and what is left after it; logs one line when a batch is done.

    Args:
        driver: asks the peer how much is left.
        clock: seconds, monotonic.
    """

    def __init__(self, driver: Driver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._clock = clock
        self._end: Checkpoint | None = None
        self._events: int | None = None
        self._planned_at = 0.0
        self._lag_of: tuple[int, Checkpoint] | None = None
        self._lag: dict[str, int | None] = {}

    @property
    def wanted(self) -> bool:
        """Whether anybody reads the lines: counting costs two questions a batch."""
        return _log.isEnabledFor(logging.INFO)

    def planned(self, end: Checkpoint, counts: Mapping[str, int | None]) -> None:
        """Note that a batch up to ``end`` was planned, with these events in each partition."""
        known = [count for count in counts.values() if count is not None]
        self._events = sum(known) if len(known) == len(counts) else None
        self._end = end
        self._planned_at = self._clock()

    def reached(self, position: Checkpoint) -> None:
        """Note that reading goes on at ``position``: the batch that ended there is done, and gets its line."""
        if self._end is None:
            self._end, self._events = position, 0  # another run's batch ended here
        if self._events == 0 or position != self._end or not self.wanted:
            return
        seconds = max(self._clock() - self._planned_at, 1e-3)
        if self._events is None:
            told = "an unknown number of events"
        else:
            told = f"{self._events} events, {self._events / seconds:.0f} events/s"
        lag = ", ".join(f"{p}: {'?' if n is None else n}" for p, n in sorted(self.lag().items()))
        _log.info("stream '%s': batch of %s in %.3f s, lag {%s}", self._driver.options.stream, told, seconds, lag)
        self._events = 0

    def lag(self) -> dict[str, int | None]:
        """Return the events that each partition has after the last planned batch; None where the peer does not tell."""
        description = self._driver.describe()
        end = self._end
        if end is None:
            return dict.fromkeys(description.partitions)
        if self._lag_of == (id(description), end):
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
                lag.update(self._driver.remaining(behind))
            except SparkStreamsError as fault:
                _log.debug("no lag: %s", fault)
                lag.update(dict.fromkeys(behind))
        self._lag_of, self._lag = (id(description), end), lag
        return lag
