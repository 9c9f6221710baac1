"""Options ``maxOffsetsPerTrigger`` and ``minOffsetsPerTrigger``: how many events of each partition a micro-batch reads.

Opaque offsets allow no arithmetic: the driver walks ahead over the annotations, on links that stay open from trigger to
trigger, and stops each walk at the end of the partition's share. For offsets that are numbers a walk is an addition.
Where the peer does not tell whether there are enough events, the driver counts them by walking, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_streams.errors import SparkStreamsError
from spark_streams.position import After
from spark_streams.spark.source.driver import Driver
from spark_streams.spark.source.offset_counting import Ahead
from spark_streams.spark.source.planning import Taken
from spark_streams.spark.source.ranges import Resolved, Spans
from spark_streams.spark.splitting import block_sizes, shares

_log = logging.getLogger(__name__)


class RateLimit:
    """Finds what a micro-batch reads, and keeps the walks for it.

    Args:
        driver: asks the peer.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._walks: dict[str, Ahead] = {}
        self._counted: dict[tuple[str, Resolved], tuple[Resolved, int]] = {}
        self._warned = False

    def taken(self, spans: Spans, limit: int | None, waited: Mapping[str, int], least: int | None) -> Taken | None:
        """Return what the micro-batch reads of each span; None if there are fewer than ``least`` events.

        Args:
            spans: what is unread.
            limit: total number of events, at least 1; None for no limit.
            waited: how many times in a row a partition got nothing, as in ``PlanState``.
            least: minimum number of events; None if there is none.

        Raises:
            SparkStreamsError: the request for the number of events, or a walk for the limit, failed.
        """
        counts = self._driver.counting.count(spans)
        if least is not None and not self._enough(spans, counts, least):
            return None
        self._counted.clear()
        if limit is None:
            self.close()
            return {p: (counts[p], end) for p, (_, end) in spans.items()}
        known = {p: count for p, count in counts.items() if count is not None}
        if len(known) == len(spans):
            return self._by_size(spans, known, shares(limit, known, waited))
        return self._in_rounds(spans, limit, waited)

    def close(self) -> None:
        """Release the links of the walks."""
        for partition in list(self._walks):
            self._drop(partition)

    def _by_size(self, spans: Spans, counts: Mapping[str, int], given: Mapping[str, int]) -> Taken:
        taken: dict[str, tuple[int | None, str | None]] = {}
        for partition, share in given.items():
            start, end = spans[partition]
            all_of_it = share >= counts[partition]
            taken[partition] = (share, end) if all_of_it else self._advance(partition, start, share, end)
        return taken

    def _in_rounds(self, spans: Spans, limit: int, waited: Mapping[str, int]) -> Taken:
        """Share the limit equally; drop the partitions that ended earlier, and share the rest in another round."""
        taken: dict[str, tuple[int, str | None]] = dict.fromkeys(spans, (0, None))
        waiting = sorted(spans, key=lambda p: (-waited.get(p, 0), p))
        left = limit
        while left > 0 and waiting:
            for partition, share in zip(waiting, block_sizes(left, len(waiting)), strict=True):
                before, last = taken[partition]
                start, end = spans[partition]
                count, offset = self._advance(partition, start if last is None else After(last), share, end)
                taken[partition] = (before + count, offset or last)
                left -= count
                if count < share or offset == end:
                    waiting = [p for p in waiting if p != partition]
        return taken

    def _advance(self, partition: str, start: Resolved, events: int, bound: str) -> tuple[int, str | None]:
        if events == 0:
            return 0, None
        walk = self._walks.get(partition)
        if walk is None or walk.position != start:
            self._drop(partition)
            walk = self._walks[partition] = self._driver.counting.walk(partition, start)
        return walk.advance(events, bound)

    def _drop(self, partition: str) -> None:
        walk = self._walks.pop(partition, None)
        if walk is not None:
            walk.close()

    def _enough(self, spans: Spans, counts: Mapping[str, int | None], least: int) -> bool:
        total = sum(count for count in counts.values() if count is not None)
        for partition in (p for p, count in counts.items() if count is None):
            try:
                total += self._walked(partition, *spans[partition], least - total)
            except SparkStreamsError as fault:
                self._drop(partition)
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "%s: the peer does not tell how many events there are, and they cannot be counted (%s): "
                        "micro-batches do not wait for 'minOffsetsPerTrigger'",
                        self._driver.options.label,
                        fault,
                    )
                return True
        return total >= least

    def _walked(self, partition: str, start: Resolved, end: str, enough: int) -> int:
        """Return the number of events of a span, or any number from ``enough`` on; a walk goes no further."""
        reached, count = self._counted.get((partition, start), (start, 0))
        if count < enough:
            more, last = self._advance(partition, reached, enough - count, end)
            count += more
            self._counted[partition, start] = (reached if last is None else After(last), count)
        return count
