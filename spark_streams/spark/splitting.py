"""Pure functions that share a limit among partitions and split the ranges of a micro-batch into tasks.

Offsets are opaque, so nothing here computes with offsets: planning works on counts of events, and the caller walks the
log to find the offset that belongs to a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace
from typing import TypeVar

_Key = TypeVar("_Key", str, int)
"""A partition's identifier."""


def shares(limit: int, left: Mapping[_Key, int], waited: Mapping[_Key, int] | None = None) -> dict[_Key, int]:
    """Share ``limit`` events among partitions in proportion to what each has left (largest remainder).

    Each partition that has events gets at least one if the limit allows it.

    Args:
        limit: total number of events, at least 1.
        left: events that each partition has left; 0 is allowed and gets 0.
        waited: how many times in a row a partition got nothing although it had events. When the limit is too low for
            one event each, the partitions that waited longest go first, so that none starves.

    Returns:
        Events for each partition of ``left``: never more than it has left, and ``min(limit, sum(left))`` in total.
    """
    total = sum(left.values())
    if total <= limit:
        return dict(left)
    waiting = {name: count for name, count in left.items() if count > 0}
    given = dict.fromkeys(left, 0)
    if limit < len(waiting):
        turns = waited or {}
        for name in sorted(waiting, key=lambda n: (-turns.get(n, 0), -waiting[n], n))[:limit]:
            given[name] = 1
        return given
    # Integers only, so that every count up to int64 is exact.
    for name in waiting:
        given[name] = limit * waiting[name] // total
    over = limit - sum(given.values())
    for name in sorted(waiting, key=lambda n: (-(limit * waiting[n] % total), n))[:over]:
        given[name] += 1
    largest = [(-count, place, name) for place, (name, count) in enumerate(given.items())]
    heapify(largest)
    for name in waiting:
        if given[name] == 0:
            count, place, giver = largest[0]
            heapreplace(largest, (count + 1, place, giver))
            given[giver] -= 1
            given[name] = 1
    return given


def split_evenly(sizes: Mapping[_Key, int], at_least: int) -> dict[_Key, int]:
    """Return the number of tasks of each range, so that there are ``at_least`` in total if the events allow it.

    Args:
        sizes: events in each range, at least 1 each (a lower estimate counts as 1).
        at_least: total number of tasks wanted.

    Returns:
        Tasks for each range: at least 1, at most one per event, and in proportion to its events (largest remainder).
    """
    sizes = {name: max(1, size) for name, size in sizes.items()}
    if at_least <= len(sizes):
        return dict.fromkeys(sizes, 1)
    return shares(at_least, sizes)


def block_sizes(events: int, count: int) -> list[int]:
    """Divide ``events`` into ``count`` sizes that differ by at most one, larger ones first; ``count`` is at least 1."""
    each, over = divmod(events, count)
    return [each + 1] * over + [each] * (count - over)
