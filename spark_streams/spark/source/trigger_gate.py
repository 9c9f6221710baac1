"""Options ``minOffsetsPerTrigger`` and ``maxTriggerDelay``: a micro-batch waits for more events.

It waits until all partitions together have that many events, but no longer than the delay, which counts from the plan
of the last micro-batch or from the start of the query. Where the peer does not tell the number of events, the driver
counts them by walking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from spark_streams.errors import SparkStreamsError
from spark_streams.spark.source.driver import Driver
from spark_streams.spark.source.offset_counting import Ahead
from spark_streams.spark.source.ranges import Resolved

_log = logging.getLogger(__name__)

Spans = Mapping[str, tuple[Resolved, str]]


class TriggerGate:
    """Decides whether a micro-batch waits.

    Args:
        driver: counts the events.
        clock: returns seconds, monotonic; the constructor reads it once, as the start of the query.
    """

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._since = clock()
        self._answered: Spans | None = None
        self._waits = False
        self._walks: dict[str, tuple[Resolved, Ahead, int]] = {}
        self._warned = False

    def waits(self, spans: Spans) -> bool:
        """Return whether the micro-batch waits for more events.

        Args:
            spans: partition to the start of its span and the offset of the last event there is; repeated calls with the
                same spans count once.

        Raises:
            SparkStreamsError: the request for the number of events failed.
        """
        least = self._driver.options.min_offsets_per_trigger
        if least is None or (self._clock() - self._since) * 1000 >= self._driver.options.max_trigger_delay_ms:
            return False
        if spans != self._answered:
            self._waits = not self._enough(spans, least)
            self._answered = dict(spans)
        return self._waits

    def planned(self) -> None:
        """Note that a micro-batch was planned: the delay of the next one counts from now."""
        self._since = self._clock()
        self._answered = None
        self.close()

    def close(self) -> None:
        """Release the links of the walks."""
        for _, walk, _ in self._walks.values():
            walk.close()
        self._walks.clear()

    def _enough(self, spans: Spans, least: int) -> bool:
        counts = self._driver.counting.count(spans)
        total = sum(count for count in counts.values() if count is not None)
        for partition, count in counts.items():
            if total >= least:
                break
            if count is None:
                try:
                    total += self._walked(partition, *spans[partition], least - total)
                except SparkStreamsError as fault:
                    if not self._warned:
                        self._warned = True
                        _log.warning(
                            "%s: the peer does not tell how many events there are, and they cannot be counted "
                            "(%s): micro-batches do not wait for 'minOffsetsPerTrigger'",
                            self._driver.options.label,
                            fault,
                        )
                    return True
        return total >= least

    def _walked(self, partition: str, start: Resolved, end: str, enough: int) -> int:
        """Return the number of events of a span, or any number from ``enough`` on."""
        begun, walk, count = self._walks.pop(partition, (None, None, 0))
        if walk is not None and begun != start:
            walk.close()
            walk, count = None, 0
        if walk is None:
            walk = self._driver.counting.walk(partition, start)
        try:
            if count < enough:
                count += walk.advance(enough - count, end)[0]
        except SparkStreamsError:
            walk.close()
            raise
        self._walks[partition] = (start, walk, count)
        return count
