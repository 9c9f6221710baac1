"""The doors' clients, as far as a user may see them: connections, readers, writers, and groups with stored offsets.

The doors are asked only when a page is requested, and walked in steps, so that thousands of links keep nobody waiting.
A page keeps only the rows that it shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spark_streams.log import ReferenceLog
from spark_streams.server.activity import ConnectionInfo, Item, ReaderInfo, StoredOffset, WriterInfo, behind
from spark_streams.server.http.authorization import Known
from spark_streams.server.web.site import Pages, Paging, Site

STEP_ITEMS: Final = 256
"""Items that are walked before others have their turn: a fraction of a millisecond."""
OF_A_STREAM: Final = 10
"""The most readers, writers and groups on the page of a stream; the others are on the pages of all clients."""
KINDS: Final = {"connections": ConnectionInfo, "readers": ReaderInfo, "writers": WriterInfo}
_MOST_PEERS: Final = 3


@dataclass
class Group:
    """A consumer group in one partition, or one reader there that the log keeps an offset for.

    Args:
        door: the door's name.
        name: the group's name, or the one that the offset is stored under.
        owner: the user that it belongs to; empty for a group of everybody.
        stream: the stream's name.
        partition: the partition's identifier; empty for members that wait for one.
        kind: the door's word for it.
        next_offset: its position: the stored offset if there is one, else its reader's; None where that is not known.
        epoch: its last epoch, or None.
        members: how many readers are connected.
        peers: the addresses of the first ones.
    """

    door: str
    name: str
    owner: str
    stream: str
    partition: str
    kind: str = "consumer group"
    next_offset: int | None = None
    epoch: int | None = None
    members: int = 0
    peers: list[str] = field(default_factory=list)

    def join(self, reader: ReaderInfo) -> None:
        """Add a member."""
        self.members += 1
        if len(self.peers) < _MOST_PEERS:
            self.peers.append(reader.peer)
        if reader.next_offset is not None and (self.next_offset is None or reader.next_offset < self.next_offset):
            self.next_offset = reader.next_offset
        if reader.epoch is not None:
            self.epoch = max(reader.epoch, self.epoch or 0)

    def keep(self, stored: StoredOffset) -> None:
        """Add a stored offset, which replaces the members' position; call it after all members are added."""
        if stored.next_offset is not None:
            self.next_offset = stored.next_offset
        if stored.epoch is not None:
            self.epoch = max(stored.epoch, self.epoch or 0)
        self.kind = stored.kind


Groups = dict[tuple[str, str, str, str, str], Group]


def group_of(groups: Groups, item: ReaderInfo | StoredOffset) -> Group | None:
    """Return the group of a reader or an offset, a new one if need be; None for a reader that is in no group."""
    if item.group is None:
        return None
    key = (item.door, item.group, item.owner, item.stream, item.partition)
    return groups.setdefault(key, Group(*key))


def join(groups: Groups, item: Item) -> None:
    """Add a reader to its group; other items, and readers that are in no group, change nothing."""
    if isinstance(item, ReaderInfo) and (group := group_of(groups, item)) is not None:
        group.join(item)


@dataclass(frozen=True)
class Seen:
    """A reader or a group with its present state.

    Args:
        of: the reader or the group.
        behind: how many events it has still to read; None if that is not known.
    """

    of: Any
    behind: int | None


class Observation:
    """The clients of all doors.

    Args:
        site: what all pages share.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    async def everything(self) -> AsyncIterator[Item]:
        """Yield everything that is connected, without checking rights."""
        for door in self._site.doors:
            if not hasattr(door, "activity"):
                continue  # a door of another package
            for number, item in enumerate(door.activity(), 1):
                if number % STEP_ITEMS == 0:
                    await asyncio.sleep(0)
                yield item

    async def connected(self, known: Known, stream: str | None = None) -> AsyncIterator[Item]:
        """Yield what is connected and the user may see.

        Args:
            known: who asks.
            stream: yield readers and writers of this stream alone; None: of all streams, and connections.
        """
        async for item in self.everything():
            if stream is not None and (isinstance(item, ConnectionInfo) or item.stream != stream):
                continue
            if self.shows(known, item):
                yield item

    def shows(self, known: Known, item: Item) -> bool:
        """Return whether a user may see an item: the user's own, or, for a monitor, one of a stream it may read."""
        if not self._site.sees_all(known):
            return item.user == known.user and not known.by_token
        return isinstance(item, ConnectionInfo) or known.allows("read", item.stream)

    async def groups(self, known: Known, stream: str | None = None) -> Groups:
        """Return the groups that a user may see.

        Args:
            known: who asks.
            stream: those of this stream alone; None: those of all streams.
        """
        groups: Groups = {}
        async for item in self.connected(known, stream):
            join(groups, item)
        await self.add_stored(groups, known, stream)
        return groups

    async def add_stored(self, groups: Groups, known: Known, stream: str | None = None) -> None:
        """Add the stored offsets to the groups of readers; see ``groups``."""
        await self._site.worker.run(self._stored(groups, known, stream))

    def _stored(self, groups: Groups, known: Known, stream: str | None) -> Generator[None, None, None]:
        for door in self._site.doors:
            if not hasattr(door, "stored"):
                continue
            for number, item in enumerate(door.stored(), 1):
                if number % STEP_ITEMS == 0:
                    yield
                if stream in (None, item.stream) and self.shows(known, item):
                    group = group_of(groups, item)
                    assert group is not None
                    group.keep(item)

    # --- rows of pages

    async def rows(
        self, known: Known, stream: str | None, kind: str, first: int, end: int
    ) -> tuple[dict[str, int], list[Any]]:
        """Return how many there are of each of ``KINDS``, and some of one kind.

        Args:
            known: who asks.
            stream: count readers and writers of this stream alone; None: of all streams, and connections.
            kind: the kind to return.
            first: the first one to return, counted from 0.
            end: the end, exclusive.
        """
        counts = dict.fromkeys(KINDS, 0)
        found: list[Any] = []
        async for item in self.connected(known, stream):
            of = next(name for name, each in KINDS.items() if isinstance(item, each))
            if of == kind and first <= counts[of] < end:
                found.append(item)
            counts[of] += 1
        return counts, [_seen(self._site.log, each) for each in found] if kind == "readers" else found

    async def group_rows(self, groups: Groups, first: int, end: int) -> list[Seen]:
        """Return some groups, by stream, door, name and partition, from ``first`` to ``end``, exclusive."""

        def rows() -> list[Seen]:
            return [_seen(self._site.log, each) for each in sorted(groups.values(), key=_place)[first:end]]

        return await self._site.worker.step(rows)

    async def of_stream(self, known: Known, stream: str) -> dict[str, Any]:
        """Return the clients that the page of a stream shows.

        Args:
            known: who asks.
            stream: the stream's name; the user may read it.
        """
        counts, readers = await self.rows(known, stream, "readers", 0, OF_A_STREAM)
        _, writers = await self.rows(known, stream, "writers", 0, OF_A_STREAM)
        groups = await self.groups(known, stream)
        return {
            "readers": readers,
            "writers": writers,
            "groups": await self.group_rows(groups, 0, OF_A_STREAM),
            "counts": {**counts, "groups": len(groups)},
            "all_seen": self._site.sees_all(known),
        }


def _place(group: Group) -> tuple[Any, ...]:
    number = int(group.partition) if group.partition.isascii() and group.partition.isdecimal() else -1
    return group.stream, group.door, group.name, group.owner, number, group.partition


def _seen(log: ReferenceLog, item: Any) -> Seen:
    """Return a reader or a group with how far it is behind."""
    return Seen(item, behind(log, item.stream, item.partition, item.next_offset))


_ALL: Final = 1 << 62


class Clients(Pages):
    """The pages."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/connections", self._connected), Route("/groups", self._groups)]

    async def _connected(self, request: Request) -> Response:
        """Show the connections, or the readers or writers, those of one stream if one is named."""
        known = self._site.known(request)
        stream = request.query_params.get("stream") or None
        show = request.query_params.get("show", "")
        if show not in KINDS or (stream is not None and show == "connections"):
            show = "connections" if stream is None else "readers"
        size, observation = self._site.config.page_rows, Observation(self._site)
        wanted = Paging(request, _ALL, size)
        counts, rows = await observation.rows(known, stream, show, wanted.first, wanted.end)
        paging = Paging(request, counts[show], size)
        if paging.page != wanted.page:  # the table has fewer pages
            counts, rows = await observation.rows(known, stream, show, paging.first, paging.end)
        return self._site.page(
            request, "connections", known=known, rows=rows, paging=paging, show=show, counts=counts, stream=stream,
            all_seen=self._site.sees_all(known),
        )  # fmt: skip

    async def _groups(self, request: Request) -> Response:
        """Show the consumer groups with their stored offsets, those of one stream if one is named."""
        known = self._site.known(request)
        stream = request.query_params.get("stream") or None
        observation = Observation(self._site)
        groups = await observation.groups(known, stream)
        paging = Paging(request, len(groups), self._site.config.page_rows)
        rows = await observation.group_rows(groups, paging.first, paging.end)
        return self._site.page(
            request, "groups", known=known, rows=rows, paging=paging, stream=stream,
            all_seen=self._site.sees_all(known),
        )  # fmt: skip
