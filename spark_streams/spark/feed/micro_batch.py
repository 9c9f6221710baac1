"""The driver's plan of a feed's stream: where it starts, where each micro-batch ends, and what its tasks read.

A cursor is opaque, and two reads from one cursor may differ, so planning fetches: page fetchers read ahead into the
spool, and a micro-batch takes the lines that are there, up to checkpoints.

Guarantee: a micro-batch in Spark's checkpoint reads the same rows on every attempt, until it is committed, since its
manifest names the lines. If its pages are lost (a temporary spool after a restart), tasks fetch them again between the
same cursors, which gives the same events only as far as the feed repeats itself.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.feed import Discovery
from spark_streams.client.feed.client import FeedClient
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.position import LATEST, After, Matching
from spark_streams.spark.feed.fetch_pool import FetchPool
from spark_streams.spark.feed.manifests import fetched_again, read_manifest, write_manifest
from spark_streams.spark.feed.offset import FeedOffset
from spark_streams.spark.feed.page_fetcher import PageFetcher
from spark_streams.spark.feed.page_fetchers import PageFetchers
from spark_streams.spark.feed.partition_changes import PartitionChanges, trace
from spark_streams.spark.feed.planning import FeedState, next_end
from spark_streams.spark.feed.query_filter import QueryFilter, first_match
from spark_streams.spark.feed.spool import Spool
from spark_streams.spark.feed.spool_writer import SpoolWriter
from spark_streams.spark.feed.tasks import FeedTask, address_of
from spark_streams.spark.progress.batch_progress import BatchProgress
from spark_streams.spark.pushdown.spark_filters import filter_json
from spark_streams.spark.source.driver import position_in, require_all

_log = logging.getLogger(__name__)

DISCOVERY_MS: Final = 1_000
"""Maximum age of the list of partitions in milliseconds; a longer poll interval replaces it."""
IDLE_CURSORS_S: Final = 10.0
"""Minimum seconds between micro-batches without events for cursors that moved (FeedAPI, "checkpoint command")."""
MAX_LONG_POLLS: Final = 32
"""Most partitions of a feed that are read with long responses; fetchers poll a feed with more partitions."""


class FeedBatches:
    """Plans the micro-batches of one query; its methods take and return offsets as JSON objects (``FeedOffset``).

    Args:
        options: of the stream.
        clock: returns seconds, monotonic.
    """

    def __init__(self, options: FeedSourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._filter = QueryFilter(options)
        self._policy = LossPolicy(options.stream, options.fail_on_data_loss, options.label)
        self._progress = BatchProgress(self._policy, options.label, clock)
        self._client = FeedClient(address_of(options))
        self._discovered: tuple[Discovery, float] | None = None
        self._spool: Spool | None = None
        self._fetchers = PageFetchers(options, clock)
        self._pool = FetchPool(self._connect)
        self._done_files: dict[int, list[str]] = {}
        self._state = FeedState(uuid.uuid4().hex[:8], clock(), clock(), looks=options.filter is not None)

    # --- the interface to Spark

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; each call returns the same cursors.

        Raises:
            OptionError: the positions do not fit the feed's partitions.
            SparkStreamsError: a request to the feed failed.
        """
        initial = self._state.initial
        if initial is None:
            starting = self._options.starting
            discovery = self._describe(fresh=True)
            require_all(starting, [str(p.id) for p in discovery.partitions])
            self._filter.choose(self._client, discovery)
            self._fix_end()
            cursors: dict[int, str] = {}
            searching: dict[int, str] = {}
            fixed = self._state.fixed
            for partition in discovery.partitions:
                position = position_in(starting, str(partition.id))
                if position == LATEST:
                    cursors[partition.id] = last = self._client.latest(partition.id)
                    if fixed is not None:
                        # This cursor may lie after the end that was fixed before: then the query reads nothing.
                        fixed = {**fixed, partition.id: (*fixed.get(partition.id, ()), last)}
                elif isinstance(position, After):
                    cursors[partition.id] = position.offset
                elif partition.starts_after is None or not self._options.ordered:
                    cursors[partition.id] = BEGINNING
                if isinstance(position, Matching):
                    searching[partition.id] = position.text
            initial = FeedOffset(
                self._options.stream,
                cursors,
                uuid.uuid4().hex,
                filters=dict(self._options.filters),
                pushed=self._filter.pushed,
                searching=searching,
            ).to_json()
            self._state = replace(self._state, initial=initial, fixed=fixed)
        return initial

    def fix_end(self) -> None:
        """Fix the end for Trigger.AvailableNow: the query reads the events that are there now, and no later ones.

        With a filter the next call of ``initial`` or ``next_end`` fixes the end, since only the checkpoint has the
        pushed part of the filter, to which the cursors belong.
        """
        self._state = replace(self._state, fixes=True)
        if self._options.filter is None:
            self._fix_end()

    def _fix_end(self) -> None:
        if self._state.fixes:
            partitions = self._describe(fresh=True).partitions
            fixed = {p.id: self._filter.ends(self._client, p) for p in partitions}
            self._state = replace(self._state, fixed=fixed, fixes=False)

    def next_end(self, start: dict[str, Any], limit: int | None, *, may_wait: bool = True) -> dict[str, Any]:
        """Return where the micro-batch that starts at ``start`` ends; ``start`` itself when there is nothing to read.

        Args:
            start: the end of the previous micro-batch, or the initial offset.
            limit: maximum number of events, unless the first checkpoint covers more; None for no limit.
            may_wait: whether the micro-batch may wait for ``minOffsetsPerTrigger``.

        Raises:
            PositionLost: a partition left the feed, and losses fail the query.
            CheckpointError: ``start`` is not a checkpoint of this feed, or has other filters.
            SparkStreamsError: a fetcher failed, and its retries did not help.
        """
        if self._state.end is not None and self._state.start == start:
            return self._state.end.to_json()  # The pages that it took are not there for another plan.
        begin = self._offset(start)
        self._progress.reached(begin)
        begin = self._reopened(begin)
        self._fix_end()
        spool = self._opened(begin)
        changes = self._follow(begin, spool)
        state, options = self._state, self._options
        # Without new events Trigger.AvailableNow would end here, so it waits without a deadline.
        self._fetchers.gather(limit, timeout_s=None if state.fixed is not None else options.request_timeout_ms / 1_000)
        self._raise_faults(changes)
        waiting, now_s = self._fetchers.waiting(), self._clock()
        events = sum(waiting.values())
        least = options.least_events(now_s - state.planned_at) if may_wait and state.fixed is None else None
        idles = not events and now_s - state.looked_at < IDLE_CURSORS_S
        if idles and next_end(state, begin, changes, self._fetchers.finished(), {})[1] is None:
            return start
        if least is not None and 0 < events < least:
            return start
        pages = self._fetchers.plan(waiting, limit, begin.batch)
        done = [name for taken in pages.values() for name in taken.done]
        state = replace(state, looked_at=now_s)
        state, end = next_end(state, begin, changes, self._fetchers.finished(), pages)
        if end is None:
            self._state = state
            spool.remove(done)
            return start
        write_manifest(spool, end.manifest, pages, options.min_partitions)
        self._done_files[end.batch] = [end.manifest, *done]
        read = {str(p): taken for p, taken in pages.items() if taken.events}
        sizes = {p: taken.bytes for p, taken in read.items()}
        self._progress.planned(end, {p: taken.events for p, taken in read.items()}, sizes)
        self._state = replace(state, start=start)
        return end.to_json()

    def reads(self, start: dict[str, Any], end: dict[str, Any]) -> list[FeedTask]:
        """Return the tasks of the micro-batch (start, end]; each call returns tasks for the same lines.

        Raises:
            PositionLost: its pages are not in the lasting spool any more, and losses fail the query.
            CheckpointError: ``start`` or ``end`` is not a checkpoint of this feed.
        """
        begin, stop = self._offset(start), self._offset(end)
        if stop.batch == begin.batch:
            return []
        spool = self._opened(stop, wipe=False)
        self._progress.begun(stop, lambda: {"": (spool.manifest(stop.manifest) or {}).get("events")}, self._lag)
        planned = read_manifest(spool, stop.manifest, self._filter.residual)
        if planned is not None:
            looks = self._state.looks
            self._state = replace(self._state, looks=looks and not planned)
            return [replace(task, looks=looks and not number) for number, task in enumerate(planned)]
        listed = {p.id for p in self._describe().partitions}
        dialect = self._client.dialect
        assert dialect is not None
        ranges = fetched_again(begin, stop, spool, listed, self._policy)
        return [self._filter.task(dialect, fetch, stop.found.get(fetch.partition)) for fetch in ranges]

    def committed(self, end: dict[str, Any]) -> None:
        """Remove the spooled files of the micro-batches up to the one that ends at ``end``.

        Spark calls this one micro-batch late, and not at the end of a run: the next run removes the remaining files.
        """
        until = self._offset(end).batch
        spool = self._spool
        if spool is None:
            return
        for batch in [b for b in self._done_files if b <= until]:
            spool.remove(self._done_files.pop(batch))

    def newest(self) -> dict[str, Any]:
        """Return how far the feed was fetched, and the report of the last micro-batch (``BatchProgress``).

        Key ``fetched`` has the number of events of each partition that are fetched and not planned: its minimum lag.
        """
        last = self._state.end
        cursors = {p: f.cursor for p, f in self._fetchers.each.items()}
        out = FeedOffset(self._options.stream, cursors, last.spool if last else "", last.batch if last else 0).to_json()
        out["fetched"] = {str(p): f.waiting() for p, f in self._fetchers.each.items()}
        out.update(self._progress.report(self._lag()))
        if self._options.filter is not None and self._filter.pushdown is not None:
            out["pushdown"] = filter_json(self._options.filter, self._filter.pushdown)
        return out

    def _lag(self) -> dict[str, int | None]:
        """Return the number of events of each partition that are not planned yet.

        A feed does not tell how many more it has: the number is None for a partition whose end was not reached.
        """
        at_end = {p: f.idle or f.finished or f.at_stop for p, f in self._fetchers.each.items()}
        return {str(p): f.waiting() if at_end[p] else None for p, f in self._fetchers.each.items()}

    def close(self) -> None:
        """Stop fetching."""
        self._fetchers.stop()
        self._pool.stop()
        self._client.close()

    # --- internals

    def _offset(self, value: dict[str, Any]) -> FeedOffset:
        offset = FeedOffset.from_json(value, self._options.stream, dict(self._options.filters))
        self._filter.keep(self._client, offset.pushed)
        return offset

    def _describe(self, *, fresh: bool = False) -> Discovery:
        oldest_s = self._clock() - max(DISCOVERY_MS, self._options.poll_interval_ms) / 1_000
        if fresh or self._discovered is None or self._discovered[1] <= oldest_s:
            self._discovered = self._client.discover(), self._clock()
            # The feed exists. If it disappears later, it may be created again, a loss after which reading can continue.
            self._client.awaits = not self._options.fail_on_data_loss
        return self._discovered[0]

    def _opened(self, offset: FeedOffset, *, wipe: bool = True) -> Spool:
        """Return the query's spool; the first plan of a run removes the files that an earlier run left in it."""
        if self._spool is None:
            self._spool = Spool(self._options.spool_location, offset.spool)
            if not self._spool.lasting:
                _log.warning(
                    "%s: pages are spooled to a temporary folder, as option 'spoolLocation' is not set: a "
                    "micro-batch that a crash interrupts is fetched again, and may then have other rows",
                    self._options.label,
                )
        if wipe and not self._fetchers.each:
            # The micro-batch that ends at ``offset`` is done, since Spark plans the next one only then.
            self._spool.remove(self._spool.names())
            self._done_files.clear()
        return self._spool

    def _connect(self) -> FeedClient:
        """Return a client for a thread that fetches."""
        address = address_of(self._options, self._client.dialect, self._filter.arguments)
        awaits = not self._options.fail_on_data_loss
        return FeedClient(address, awaits=awaits, unknown_cursors=self._client.unknown_cursors)

    def _follow(self, begin: FeedOffset, spool: Spool) -> PartitionChanges:
        """Start and stop fetchers as the feed's partitions change."""
        discovery, fixed = self._describe(), self._state.fixed
        drained = {p for p in begin.cursors if self._fetchers.drained(p)}
        lineage = trace(begin, discovery, ordered=self._options.ordered, drained=drained)
        listed = {p.id: p for p in discovery.partitions}
        for partition in lineage.gone:
            if partition in begin.finished:
                continue
            self._policy.report(
                str(partition),
                f"after cursor '{begin.cursors[partition]}'",
                "the feed has no such partition any more, and none that its cursors are valid on",
            )
        fetchers = self._fetchers.each
        self._fetchers.keep(lineage.reading, listed)
        for partition, cursor in lineage.reading.items():
            if partition in fetchers or partition not in listed or partition in begin.finished:
                continue
            if fixed is not None and partition not in fixed:
                continue
            expression = lineage.searching.get(partition)
            fetchers[partition] = PageFetcher(
                self._options,
                self._policy,
                self._pool,
                SpoolWriter(spool, f"{self._state.run}-{partition}"),
                partition,
                cursor,
                read_ahead_bytes=max(1, self._options.max_bytes_per_trigger // max(1, len(begin.cursors))),
                stops=None if fixed is None else fixed[partition],
                begins_at=None if expression is None else first_match(self._options, partition, expression),
            )
        long_polls = discovery.stream and fixed is None and len(listed) <= MAX_LONG_POLLS
        for partition, fetcher in fetchers.items():
            if partition in listed and listed[partition].closed:
                fetcher.closed(self._filter.last_cursor(listed[partition]))
            if not fetcher.started:
                fetcher.start()
            if partition in listed and long_polls:
                fetcher.long_polls()
            elif partition in listed and discovery is not self._state.told:
                fetcher.told_end(self._filter.last_cursor(listed[partition]))
        self._state = replace(self._state, told=discovery)
        return lineage

    def _reopened(self, begin: FeedOffset) -> FeedOffset:
        """Return ``begin``, with finished partitions that are open again set to the beginning: the feed was recreated.

        A feed never opens a closed partition again (P-04), so these are other partitions, and unread.

        Raises:
            PositionLost: there is such a partition, and losses fail the query.
        """
        again = {p.id for p in self._describe().partitions if not p.closed} & begin.finished
        for partition in sorted(again):
            self._policy.report(
                str(partition),
                f"after cursor '{begin.cursors[partition]}', the end of a closed partition",
                "the partition is open: the feed was created again",
            )
            fetcher = self._fetchers.each.get(partition)
            if fetcher is not None and fetcher.finished:
                fetcher.stop()
                del self._fetchers.each[partition]
        cursors = {p: BEGINNING if p in again else cursor for p, cursor in begin.cursors.items()}
        return replace(begin, cursors=cursors, finished=begin.finished - again) if again else begin

    def _raise_faults(self, lineage: PartitionChanges) -> None:
        for partition, fetcher in list(self._fetchers.each.items()):
            fault = fetcher.fault
            if fault is None or partition in lineage.leaving:
                continue
            # The partition may have left the feed since, which is no fault (F-18).
            if partition not in {p.id for p in self._describe(fresh=True).partitions}:
                continue
            self.close()
            raise fault
