"""Manifests of a feed's micro-batches: the events of the spool that its tasks read, or the cursors to fetch again.

The manifest::

    {"version": 2, "events": 1000,
     "tasks": [{"partition": 0, "pages": [["<file>", first event, event after the last one], …]}, …]}
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.feed.range_reader import BEGINNING, FeedRange
from spark_streams.filters.tree import Expression
from spark_streams.spark.feed.offset import FeedOffset
from spark_streams.spark.feed.page_file import PageRange
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.feed.spool import Spool
from spark_streams.spark.feed.tasks import FeedTask
from spark_streams.spark.splitting import split_evenly

_log = logging.getLogger(__name__)


def write_manifest(spool: Spool, name: str, planned: Mapping[int, PlannedPages], min_partitions: int | None) -> None:
    """Write the manifest of a micro-batch, whole or not at all.

    Args:
        spool: the spool to write to.
        name: the manifest's name.
        planned: partition id to the pages that the micro-batch reads of it.
        min_partitions: minimum number of tasks, if there are as many checkpoints; None for one task per partition.

    Raises:
        SpoolLost: the manifest cannot be written.
    """
    sizes = {p: pages.bytes for p, pages in sorted(planned.items()) if pages.events}
    parts = split_evenly(sizes, min_partitions or 0)
    tasks = [{"partition": p, "pages": pages} for p, count in parts.items() for pages in planned[p].split(count)]
    events = sum(pages.events for pages in planned.values())
    spool.write_manifest(name, {"events": events, "tasks": tasks})


def read_manifest(spool: Spool, name: str, residual: Expression | None) -> list[FeedTask] | None:
    """Return the tasks of a planned micro-batch, None when its manifest is not there.

    Args:
        spool: the spool with the manifest.
        name: the manifest's name.
        residual: the part of the query's filter that tasks check on the rows; None for nothing.

    Raises:
        SpoolLost: the manifest is there and cannot be read.
    """
    manifest = spool.manifest(name)
    if manifest is None:
        return None
    return [
        FeedTask(task["partition"], tuple(PageRange(*page) for page in task["pages"]), spool.uri, residual=residual)
        for task in manifest["tasks"]
    ]


def fetched_again(
    begin: FeedOffset, stop: FeedOffset, spool: Spool, listed: Collection[int], policy: LossPolicy
) -> list[FeedRange]:
    """Return the ranges to fetch a micro-batch with lost pages again, between the same cursors.

    Args:
        begin: where the micro-batch starts.
        stop: where it ends.
        spool: the spool, which lacks the manifest.
        listed: ids of the feed's partitions now.
        policy: raises or warns about losses.

    Raises:
        PositionLost: the spool is lasting, or a partition has left the feed; and losses fail the query.
    """
    if spool.lasting:
        now = f"its manifest is not in the spool {'/'.join(spool.uri)}: has another query a copy of this checkpoint?"
        policy.report(None, f"with micro-batch {stop.batch}", now)
    _log.warning(
        "feed '%s': the pages of micro-batch %d are lost, they are fetched again: if an earlier attempt has written "
        "rows, these may be others",
        stop.stream,
        stop.batch,
    )
    ranges = []
    for p, cursor in sorted(stop.cursors.items()):
        start = stop.begins.get(p, begin.cursors.get(p, BEGINNING))
        if cursor == start or p in stop.searching:
            continue
        if p in listed:
            ranges.append(FeedRange(p, start, (cursor,), required=True))
        else:
            policy.report(str(p), f"after cursor '{start}'", "the feed has no such partition any more")
    return ranges
