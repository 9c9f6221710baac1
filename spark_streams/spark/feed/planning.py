"""What changes between the micro-batches of a feed, and the decision where the next one ends; pure.

The caller (``FeedBatches``) runs the fetchers, reads the clock and keeps the state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_streams.client.feed import Discovery
from spark_streams.spark.feed.offset import FeedOffset
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.feed.partition_changes import PartitionChanges


@dataclass(frozen=True)
class FeedState:
    """What a planner keeps between micro-batches.

    Args:
        run: id of this run of the query.
        planned_at: seconds, monotonic: when the last micro-batch was planned, or the query started.
        looked_at: when pages were last taken from the fetchers, even if no micro-batch came of it.
        looks: whether a task is yet to look for the names in the filter.
        initial: the JSON of where a new query starts; None until it is resolved.
        start: the JSON of where the last planned micro-batch starts; None before the first one.
        end: where the last planned micro-batch ends.
        fixed: partition id to the cursors at which Trigger.AvailableNow stops; None for other triggers.
        fixes: whether the next call determines ``fixed``, as the filters that the feed checks are known by then.
        told: the list of partitions whose ends the fetchers were told.
    """

    run: str
    planned_at: float
    looked_at: float
    looks: bool = False
    initial: dict[str, Any] | None = None
    start: dict[str, Any] | None = None
    end: FeedOffset | None = None
    fixed: Mapping[int, tuple[str, ...]] | None = None
    fixes: bool = False
    told: Discovery | None = None


def next_end(
    state: FeedState,
    begin: FeedOffset,
    changes: PartitionChanges,
    finished: Collection[int],
    pages: Mapping[int, PlannedPages],
) -> tuple[FeedState, FeedOffset | None]:
    """Decide where the next micro-batch ends.

    Args:
        state: after the last micro-batch.
        begin: where the micro-batch begins.
        changes: the partitions that are read now.
        finished: closed partitions of which nothing is left to fetch or to plan.
        pages: partition id to what the limits take of it.

    Returns:
        The state after this micro-batch, and its end; None if there is nothing to read or to remember.
    """
    matched = {p for p, taken in pages.items() if taken.events}  # fetchers drop the lines before the first match
    end = replace(
        begin,
        cursors={p: pages[p].cursor if p in pages else cursor for p, cursor in changes.reading.items()},
        batch=begin.batch + 1,
        finished=begin.finished.union(finished),
        ancestors=changes.ancestors,
        begins=changes.begins,
        searching={p: text for p, text in changes.searching.items() if p not in matched},
        found={p: text for p, text in changes.searching.items() if p in matched},
        run=state.run,
    )
    same = (end.cursors, end.finished, end.ancestors) == (begin.cursors, begin.finished, begin.ancestors)
    if same and begin.batch and not matched:
        return state, None
    return replace(state, planned_at=state.looked_at, end=end), end
