"""What the log's figures are made of, at one moment, for somebody who may see some of it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.activity import Item, ReaderInfo, WriterInfo
from spark_streams.server.counters import DoorCounters
from spark_streams.server.http.authorization import Known
from spark_streams.server.web.observation import Group, Groups, Observation, group_of
from spark_streams.server.web.site import Site


@dataclass(frozen=True)
class DoorFigures:
    """What one door says of itself, at one moment.

    Args:
        name: its name.
        counters: what it has done.
        readers: how many readers it has.
        writers: how many writers it has.
    """

    name: str
    counters: DoorCounters
    readers: int
    writers: int


@dataclass(frozen=True)
class Snapshot:
    """What the figures are made of.

    Args:
        log: the log.
        streams: those that whoever asks may read.
        groups: those that whoever asks may see.
        doors: what the doors say.
    """

    log: ReferenceLog
    streams: Sequence[Stream]
    groups: Sequence[Group]
    doors: Sequence[DoorFigures]


async def snapshot_of(site: Site, observation: Observation, known: Known) -> Snapshot:
    """Return what there is now; the doors' counters are of all clients, the rest is what somebody may see.

    Args:
        site: the log and its doors.
        observation: what the doors tell.
        known: who asks.
    """
    groups: Groups = {}
    counts: dict[tuple[str, type[Item]], int] = {}
    async for item in observation.everything():
        if not (isinstance(item, ReaderInfo) and item.part):  # a reader of many partitions is one
            counts[item.door, type(item)] = counts.get((item.door, type(item)), 0) + 1
        if isinstance(item, ReaderInfo) and observation.shows(known, item):
            group = group_of(groups, item)
            if group is not None:
                group.join(item)
    await observation.add_stored(groups, known)
    doors = [
        DoorFigures(
            door.name,
            _copied(door.counters),
            counts.get((door.name, ReaderInfo), 0),
            counts.get((door.name, WriterInfo), 0),
        )
        for door in site.doors
        if hasattr(door, "counters")  # a door of somebody's own need not count
    ]
    streams = [stream for stream in site.log.streams() if known.allows("read", stream.name)]
    return Snapshot(site.log, streams, list(groups.values()), doors)


def _copied(counters: DoorCounters) -> DoorCounters:
    """Return the counters as they are now: the loop, where this is called, changes them while others read."""
    return replace(
        counters,
        refused=copy(counters.refused),
        refused_events=copy(counters.refused_events),
        requests=copy(counters.requests),
    )
