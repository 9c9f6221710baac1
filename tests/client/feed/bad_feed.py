"""What a badly behaved feed holds: partitions of events, cursors that mean nothing to anybody else, splits.

The feed is the truth that tests compare with: ``feed.events`` is every event there ever was, ``feed.partitions`` the
partitions as they are. Every event has a number that rises over the whole feed, so a cursor is a position between two
numbers, and stays one on the children of a partition.
"""

from __future__ import annotations

import random
import threading
import zlib
from dataclasses import dataclass, field
from typing import Any

Filters = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Event:
    """An event: ``number`` rises over the whole feed, ``key`` says whose it is, ``body`` is what is sent of it."""

    number: int
    key: str
    body: dict[str, Any]


@dataclass
class BadPartition:
    """A partition: its events by rising number, and where it comes from."""

    id: int
    events: list[Event] = field(default_factory=list)
    closed: bool = False
    gone: bool = False
    starts_after: int | None = None
    cursor_from: tuple[int, ...] = ()
    last_cursor: str | None = None

    @property
    def end(self) -> int:
        """The number of the last event; 0 for none."""
        return self.events[-1].number if self.events else 0


class UnknownCursor(Exception):
    """A cursor that this feed did not give out, or not for this partition, or under other filters."""


class BadFeed:
    """Partitions of events, whose number changes.

    Args:
        partitions: how many there are at first.
        seed: of everything that is random.
        subjects: what ``subject`` of events may be.
    """

    def __init__(self, partitions: int = 1, *, seed: int = 0, subjects: tuple[str, ...] = ("a", "b")) -> None:
        self.random = random.Random(seed)
        self.partitions = {number: BadPartition(number) for number in range(partitions)}
        self.events: list[Event] = []
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._subjects = subjects
        self._cursors: dict[str, tuple[int, int, Filters]] = {}

    def append(self, count: int, *, keys: int = 20, text: str = "") -> list[Event]:
        """Add events, each to the open partition of its key; return them."""
        added = []
        with self.changed:
            for _ in range(count):
                number = len(self.events) + 1
                key = f"k{self.random.randrange(keys)}"
                body = {
                    "id": f"e{number}",
                    "key": key,
                    "subject": self.random.choice(self._subjects),
                    "n": number,
                    "text": text or 'é\u2028\u0085"\\\n€😀'[: number % 9],
                }
                event = Event(number, key, body)
                self.partition_of(key).events.append(event)
                self.events.append(event)
                added.append(event)
            self.changed.notify_all()
        return added

    def partition_of(self, key: str) -> BadPartition:
        """Return the open partition that events of a key go to."""
        roots = [p for p in self.partitions.values() if p.starts_after is None and not p.cursor_from]
        found = roots[_hash(key, 0) % len(roots)]
        level = 1
        while found.closed or found.gone:
            children = [
                p for p in self.partitions.values() if p.starts_after == found.id or p.cursor_from[:1] == (found.id,)
            ]
            found = children[_hash(key, level) % len(children)]
            level += 1
        return found

    def split(self, number: int, into: int = 2, *, history: bool = False) -> tuple[int, ...]:
        """Split an open partition; return its children's ids.

        Args:
            number: the partition.
            into: how many children.
            history: False closes the parent, which stays (method 1); True gives all its events to the children, and
                it is gone (method 2).
        """
        with self.changed:
            parent = self.partitions[number]
            assert not parent.closed and not parent.gone
            children = tuple(max(self.partitions) + 1 + child for child in range(into))
            for child in children:
                self.partitions[child] = BadPartition(
                    child,
                    starts_after=None if history else number,
                    cursor_from=(number, *parent.cursor_from) if history else (),
                )
            parent.gone, parent.closed = history, not history
            if history:
                for event in parent.events:
                    self.partition_of(event.key).events.append(event)
            else:
                parent.last_cursor = self.cursor(parent, parent.end, ())
            self.changed.notify_all()
        return children

    def listed(self) -> list[BadPartition]:
        """Return the partitions that discovery tells of."""
        return [partition for partition in self.partitions.values() if not partition.gone]

    def cursor(self, partition: BadPartition, number: int, filters: Filters) -> str:
        """Return a new cursor after an event: no order, characters that have to be encoded, never the same twice.

        At the end of a closed partition it is its last cursor always.
        """
        if partition.closed and not filters and partition.last_cursor is not None and number >= partition.end:
            return partition.last_cursor
        text = "".join(self.random.choices("abz019+/=;&% ?#é~", k=6)) + f"{self.random.getrandbits(40):x}"
        self._cursors[text] = (partition.id, number, filters)
        return text

    def position(self, partition: BadPartition, cursor: str, filters: Filters) -> int:
        """Return the number of the event after which a cursor goes on.

        Raises:
            UnknownCursor: it is not one of this partition and these filters.
        """
        if cursor == "_first":
            return 0
        if cursor == "_last":
            return partition.end
        owner, number, under = self._cursors.get(cursor, (-1, 0, ()))
        if owner not in (partition.id, *partition.cursor_from) or under != filters:
            raise UnknownCursor(cursor)
        return number


def _hash(key: str, level: int) -> int:
    return zlib.crc32(f"{level}:{key}".encode())
