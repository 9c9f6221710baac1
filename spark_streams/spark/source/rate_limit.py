"""Option ``maxOffsetsPerTrigger``: the end of a limited micro-batch in each partition.

Opaque offsets allow no arithmetic: the driver walks ahead over the annotations, on links that stay open from trigger to
trigger, and stops each walk at the end of the partition's share. For offsets that are numbers a walk is an addition.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.position import After
from spark_streams.spark.source.driver import Driver
from spark_streams.spark.source.offset_counting import Ahead
from spark_streams.spark.source.ranges import Resolved
from spark_streams.spark.splitting import block_sizes, shares


class Limiter:
    """Shares a limit among partitions, and remembers its walks and how often a partition got nothing.

    Args:
        driver: asks the peer.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._walks: dict[str, Ahead] = {}
        self._waited: dict[str, int] = {}

    def limited(
        self, spans: Mapping[str, tuple[Resolved, str]], counts: Mapping[str, int | None], limit: int
    ) -> dict[str, tuple[int, str | None]]:
        """Return the number of events and the end of each partition.

        Args:
            spans: partition to the start of its span and the offset of the last event there is.
            counts: number of events in each span, None where the peer does not tell.
            limit: total number of events, at least 1.

        Returns:
            The number of events and the offset of the last one (None: no event) for each partition.
        """
        known = {p: count for p, count in counts.items() if count is not None}
        taken = self._by_size(spans, known, limit) if len(known) == len(spans) else self._in_rounds(spans, limit)
        self._waited = {p: self._waited.get(p, 0) + 1 for p, (count, _) in taken.items() if count == 0}
        return taken

    def close(self) -> None:
        """Release the links of the walks."""
        for partition in list(self._walks):
            self._drop(partition)

    def _by_size(
        self, spans: Mapping[str, tuple[Resolved, str]], counts: Mapping[str, int], limit: int
    ) -> dict[str, tuple[int, str | None]]:
        taken: dict[str, tuple[int, str | None]] = {}
        for partition, share in shares(limit, counts, self._waited).items():
            start, end = spans[partition]
            if share >= counts[partition]:
                taken[partition] = (share, end)
            elif share == 0:
                taken[partition] = (0, None)
            else:
                taken[partition] = self._advance(partition, start, share, end)
        return taken

    def _in_rounds(self, spans: Mapping[str, tuple[Resolved, str]], limit: int) -> dict[str, tuple[int, str | None]]:
        """Share the limit equally; drop the partitions that ended earlier, and share the rest in another round."""
        taken: dict[str, tuple[int, str | None]] = dict.fromkeys(spans, (0, None))
        waiting = sorted(spans, key=lambda p: (-self._waited.get(p, 0), p))
        left = limit
        while left > 0 and waiting:
            for partition, share in zip(waiting, block_sizes(left, len(waiting)), strict=True):
                if share == 0:
                    continue
                before, last = taken[partition]
                start, end = spans[partition]
                count, offset = self._advance(partition, start if last is None else After(last), share, end)
                taken[partition] = (before + count, offset or last)
                left -= count
                if count < share or offset == end:
                    waiting = [p for p in waiting if p != partition]
        return taken

    def _advance(self, partition: str, start: Resolved, events: int, bound: str) -> tuple[int, str | None]:
        walk = self._walks.get(partition)
        if walk is None or walk.position != start:
            self._drop(partition)
            walk = self._walks[partition] = self._driver.counting.walk(partition, start)
        return walk.advance(events, bound)

    def _drop(self, partition: str) -> None:
        walk = self._walks.pop(partition, None)
        if walk is not None:
            walk.close()
