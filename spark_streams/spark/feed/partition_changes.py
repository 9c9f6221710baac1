"""Changes of a feed's partitions: the partitions that a query reads now, and the cursors where new ones start; pure.

A feed changes its partitions in two ways (FeedAPI, "partitions"). It closes a partition and opens others that start
after it. Or it distributes the whole history of a partition over others and removes it; its cursors are valid on them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from spark_streams.client.feed import Discovery
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.spark.feed.offset import FeedOffset


@dataclass(frozen=True)
class PartitionChanges:
    """The partitions of a query, after a comparison with the feed's list.

    Args:
        reading: partitions that the query reads, to the cursor after which planning continues.
        begins: the new partitions among them, to the cursor after which they start.
        leaving: partitions that others replaced; the others start at the cursors up to which these are planned.
        gone: partitions that left the feed, and that no other partition replaced.
        ancestors: partitions that left earlier, to their cursors, oldest first.
        searching: partitions without a first matching event so far, as in ``FeedOffset``; a new partition is among them
            if its parent is.
    """

    reading: dict[int, str]
    begins: dict[int, str]
    leaving: frozenset[int]
    gone: frozenset[int]
    ancestors: dict[int, str]
    searching: dict[int, str] = field(default_factory=dict)


def trace(begin: FeedOffset, discovery: Discovery, *, ordered: bool, drained: Collection[int]) -> PartitionChanges:
    """Compare the partitions that the query has read with those that the feed lists.

    Args:
        begin: the end of the previous micro-batch.
        discovery: the feed's partitions now.
        ordered: whether a partition that starts after another waits until an earlier micro-batch finished the other.
        drained: partitions whose fetched events are all planned; others can take over only the cursors of these.
    """
    unlisted = frozenset(begin.cursors) - {p.id for p in discovery.partitions}
    children = {p: [c.id for c in discovery.partitions if p in c.cursor_from] for p in unlisted}
    leaving = frozenset(p for p in unlisted if children[p])
    ancestors = dict(begin.ancestors)
    reading = dict(begin.cursors)
    begins: dict[int, str] = {}
    searching = dict(begin.searching)
    for partition in discovery.partitions:
        if partition.id in begin.cursors:
            continue
        parent = partition.starts_after
        parents = [p for p in partition.cursor_from if p in unlisted]
        if parents:
            if not all(p in drained for p in parents):
                continue
            # The nearest parent is the last one in the cursors: a partition is added after its own parent.
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
    return PartitionChanges({**reading, **begins}, begins, leaving, unlisted - leaving, ancestors, searching)
