"""The page fetchers of a query, one for each partition: the planner starts and awaits them, and plans their pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.spark.feed.page_fetcher import PageFetcher
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.splitting import shares

GATHER_S: Final = 0.25
"""Seconds that a micro-batch waits for fetchers that are still fetching, once there is an event."""
BULK_S: Final = 10.0
"""The same where nobody waits for new events: Spark's work for a micro-batch costs as much as some 100,000 events."""
_LOOKING: Final = 0.2
"""The share of its time in which a waiting planner looks at fetchers: there may be thousands, which fetch meanwhile."""


@dataclass
class PageFetchers:
    """The fetchers of a query.

    Args:
        options: of the stream.
        clock: returns seconds, monotonic.
        each: partition id to its fetcher.
    """

    options: FeedSourceOptions
    clock: Callable[[], float] = time.monotonic
    each: dict[int, PageFetcher] = field(default_factory=dict)

    def keep(self, reading: Collection[int], listed: Collection[int]) -> None:
        """Stop fetchers whose partition is not listed or not read any more, and forget the latter."""
        for partition in list(self.each):
            if partition not in reading or partition not in listed:
                self.each[partition].stop()
                if partition not in reading:
                    del self.each[partition]

    def waiting(self) -> dict[int, int]:
        """Return the number of events of each partition that are not planned yet."""
        return {partition: fetcher.waiting() for partition, fetcher in self.each.items()}

    def waiting_bytes(self) -> int:
        """Return the number of bytes that are not planned yet."""
        return sum(fetcher.writer.waiting_bytes for fetcher in self.each.values())

    def drained(self, partition: int) -> bool:
        """Return whether a partition's fetcher has ended, and all of its events are planned."""
        fetcher = self.each.get(partition)
        return fetcher is None or (not fetcher.is_alive() and not fetcher.waiting())

    def finished(self) -> set[int]:
        """Return the closed partitions that are planned to their end."""
        return {partition for partition, fetcher in self.each.items() if fetcher.finished and not fetcher.waiting()}

    def gather(self, limit: int | None, *, timeout_s: float | None) -> None:
        """Wait for the first events, and then ``GATHER_S`` for fetchers that are still fetching.

        Without a deadline nobody waits for new events, so this waits ``BULK_S``, or until half of the read-ahead
        bytes are there: the fetchers fetch the other half while the micro-batch runs.

        Args:
            limit: number of events that is enough; None for no limit.
            timeout_s: deadline for the first event, in seconds; None to wait while a fetcher is busy.
        """
        started = self.clock()
        while True:
            looked = time.monotonic()
            busy = [fetcher for fetcher in self.each.values() if fetcher.busy()]
            waiting = sum(self.waiting().values())
            if not busy or any(fetcher.fault for fetcher in self.each.values()):
                return
            if limit is not None and waiting >= limit:
                return
            if timeout_s is None and 2 * self.waiting_bytes() >= self.options.max_bytes_per_trigger:
                return
            waited_s = self.clock() - started
            if timeout_s is None:
                if waiting and waited_s >= BULK_S:
                    return
            elif waited_s >= timeout_s or (waiting and waited_s >= GATHER_S):
                return
            looking_s = time.monotonic() - looked
            busy[0].wait_for_change(0.05)
            time.sleep(max(0.0, looking_s / _LOOKING - (time.monotonic() - looked)))

    def plan(self, waiting: dict[int, int], limit: int | None, turn: int) -> dict[int, PlannedPages]:
        """Return the pages of each partition's share of the limit, in proportion to its waiting events.

        Each partition gets as many bytes as the partitions before it leave, and its first checkpoint even if that
        covers more than its share. A different partition is first each time.

        Args:
            waiting: number of waiting events of each partition; events that came since wait for the next micro-batch.
            limit: maximum number of events in total, unless a single checkpoint covers more; None for no limit.
            turn: number of the micro-batch.
        """
        most = waiting if limit is None else shares(limit, waiting)
        left_bytes = self.options.max_bytes_per_trigger
        left, least = limit, None  # the first partition with events gets a checkpoint, whatever that covers
        planned: dict[int, PlannedPages] = {}
        order = sorted(waiting)
        first = turn % max(1, len(order))
        for partition in (*order[first:], *order[:first]):
            if left_bytes <= 0:
                continue
            share = None if left is None else min(most[partition], left)
            pages = self.each[partition].plan(share, left_bytes, least)
            if pages is not None:
                planned[partition] = pages
                if left is not None and pages.events:
                    left = least = max(0, left - pages.events)
                left_bytes -= pages.bytes
        return planned

    def stop(self) -> None:
        """Stop all fetchers."""
        for fetcher in self.each.values():
            fetcher.stop()
