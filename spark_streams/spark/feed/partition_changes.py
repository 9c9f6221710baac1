"""Which partitions of a feed a query reads now, and behind which cursor the new ones start. Pure.

A feed changes its partitions in two ways (FeedAPI, "partitions"): it closes a partition and opens others that start
after it, or it distributes the whole history of a partition, which leaves, over others, on which its cursors are valid.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from spark_streams.client.feed import Discovery
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.spark.feed.offset import FeedOffset


@dataclass(frozen=True)
class PartitionChanges:
    """What there is to read.

    Args:
        reading: partitions that are read, to the cursor that planning goes on behind.
        begins: those of them that are new, to the cursor that they start behind.
        leaving: partitions that have been replaced by others, which start where these are planned to.
        gone: partitions that have left the feed, and that nothing has come from.
        ancestors: partitions that have left earlier, to their cursors, oldest first.
        searching: partitions whose first matching event has not come, as ``FeedOffset`` has it; of the new ones, those
            whose parent has not found it, either.
    """

    reading: dict[int, str]
    begins: dict[int, str]
    leaving: frozenset[int]
    gone: frozenset[int]
    ancestors: dict[int, str]
    searching: dict[int, str] = field(default_factory=dict)


def trace(begin: FeedOffset, discovery: Discovery, *, ordered: bool, drained: Collection[int]) -> PartitionChanges:
    """Compare what was read with what the feed lists.

    Args:
        begin: where the micro-batch before ended.
        discovery: the feed's partitions now.
        ordered: whether a partition that starts after another one waits until that is finished, in an earlier
            micro-batch.
        drained: partitions that nothing is left of that was fetched and is not planned; only of these can others take
            the cursor.
    """
    listed = {p.id: p for p in discovery.partitions}
    known = {p: cursor for p, cursor in begin.cursors.items() if p not in listed}
    children = {p: [c.id for c in discovery.partitions if p in c.cursor_from] for p in known}
    leaving = {p for p in known if children[p]}
    gone = frozenset(p for p in known if not children[p])
    ancestors = dict(begin.ancestors)
    reading = {p: cursor for p, cursor in begin.cursors.items() if p in listed or p in leaving or p in gone}
    begins: dict[int, str] = {}
    searching = dict(begin.searching)
    for partition in discovery.partitions:
        if partition.id in begin.cursors:
            continue
        parent = partition.starts_after
        parents = [p for p in partition.cursor_from if p in known]
        if parents:
            if not all(p in drained for p in parents):
                continue
            # The nearest is the one that came last: what descends from it took its cursor later.
            nearest = max(parents, key=list(begin.cursors).index)
            begins[partition.id] = begin.cursors[nearest]
            parent = nearest
        elif held := [p for p in begin.ancestors if p in partition.cursor_from]:
            begins[partition.id] = begin.ancestors[held[-1]]
            parent = held[-1]
        elif partition.starts_after is not None and ordered and partition.starts_after not in begin.finished:
            continue
        else:
            begins[partition.id] = BEGINNING
        if parent is not None and parent in begin.searching:
            searching.setdefault(partition.id, begin.searching[parent])
    for p in sorted(leaving):
        if p in drained and all(c in begin.cursors or c in begins for c in children[p]):
            ancestors[p] = reading.pop(p)
    return PartitionChanges({**reading, **begins}, begins, frozenset(leaving), gone, ancestors, searching)
