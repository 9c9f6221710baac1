"""The manifest of a micro-batch: which lines of the spool each of its tasks reads.

::

    {"version": 1, "dialect": "v2a", "events": 1000,
     "tasks": [{"partition": 0, "pages": [["<file>", first byte, byte after the last one], …]}, …]}
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.client.feed import Dialect
from spark_streams.filters.tree import Expression
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.feed.spool import PageRange, Spool
from spark_streams.spark.feed.tasks import FeedTask
from spark_streams.spark.splitting import split_evenly

__all__ = ["read_manifest", "write_manifest"]


def write_manifest(
    spool: Spool, batch: int, cuts: Mapping[int, PlannedPages], dialect: Dialect, min_partitions: int | None
) -> None:
    """Write the manifest of a micro-batch, whole or not at all.

    Args:
        spool: where to.
        batch: its number.
        cuts: partition id to what is read of it.
        dialect: of the lines.
        min_partitions: so many tasks at least, where there are as many checkpoints; None for one a partition.

    Raises:
        SpoolLost: it cannot be written.
    """
    sizes = {str(p): sum(r.stop - r.start for r in cut.ranges) for p, cut in cuts.items() if cut.events}
    parts = split_evenly(sizes, min_partitions or 0) if sizes else {}
    tasks = [
        {"partition": partition, "pages": piece}
        for partition, cut in sorted(cuts.items())
        if cut.events
        for piece in cut.split(parts[str(partition)])
    ]
    events = sum(cut.events for cut in cuts.values())
    spool.write_manifest(batch, {"dialect": dialect.value, "events": events, "tasks": tasks})


def read_manifest(spool: Spool, batch: int, residual: Expression | None) -> list[FeedTask] | None:
    """Return the tasks of a planned micro-batch, None when its manifest is not there.

    Args:
        spool: where it was written.
        batch: its number.
        residual: what of the query's filter tasks check on the rows.

    Raises:
        SpoolLost: it is there and cannot be read.
    """
    manifest = spool.manifest(batch)
    if manifest is None:
        return None
    dialect = Dialect(manifest["dialect"])
    return [
        FeedTask(
            task["partition"],
            dialect,
            tuple(PageRange(*page) for page in task["pages"]),
            spool.uri(),
            residual=residual,
        )
        for task in manifest["tasks"]
    ]
