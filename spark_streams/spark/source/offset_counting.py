"""Walking ahead over offsets: how a count of events becomes an offset when offsets are opaque.

Offsets that are numbers, written as decimal digits of a fixed width: counts and limits by arithmetic.

Nothing here asks the peer. An offset is taken for an event: some hold none (a broker's own records), so a count may be
too high by those, and never too low.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from spark_streams.client.log_client import Bounds, OffsetWalk
from spark_streams.position import After, At, Position

__all__ = ["Ahead", "CountedWalk", "NumericWalk", "events_between", "is_next", "sample", "split_points"]

WALK_BLOCK: Final = 4096
"""Offsets taken from a client at once: what a walk holds in memory."""
MAX_SAMPLES: Final = 4096
"""Offsets remembered of a range whose number of events the peer does not tell."""


class Ahead(Protocol):
    """What limits and splits need of a walk, whatever offsets are (``CountedWalk``, ``numeric.NumericWalk``)."""

    position: Position

    def advance(self, events: int, bound: str) -> tuple[int, str | None]:
        """Go on by ``events``, but not past offset ``bound`` (inclusive); say how many there were, and the last one."""

    def close(self) -> None:
        """Give back what it holds."""


class CountedWalk:
    """A walk over one partition, kept open over triggers; what was taken too far is kept for the next time.

    Args:
        links: opens a walk of the client that begins at a position.
        position: where to begin.
    """

    def __init__(self, links: Callable[[Position], OffsetWalk], position: Position) -> None:
        self._link = links(position)
        self._ahead: deque[str] = deque()
        self.position = position
        """Where the next event is looked for."""

    def advance(self, events: int, bound: str) -> tuple[int, str | None]:
        """Go on by ``events``, but not past offset ``bound`` (inclusive).

        Returns:
            How many there were and the offset of the last one, None when there was none. Fewer than asked means that
            the bound, or the end of what is there now, was reached.
        """
        walked, last = 0, None
        while walked < events:
            if not self._ahead:
                self._ahead.extend(self._link.take(min(WALK_BLOCK, events - walked)))
                if not self._ahead:
                    break
            if self._ahead[0] > bound:
                break
            last = self._ahead.popleft()
            walked += 1
        if last is not None:
            self.position = After(last)
        return walked, last

    def close(self) -> None:
        """Give the link back."""
        self._link.close()


def split_points(walk: Ahead, bound: str, sizes: Sequence[int]) -> list[str]:
    """Return the offset of the last event of each piece but the last one.

    Args:
        walk: at the start of the range.
        bound: offset of the range's last event.
        sizes: events of each piece.
    """
    points = []
    for size in sizes[:-1]:
        walked, last = walk.advance(size, bound)
        if last is None or last == bound:
            break
        points.append(last)
        if walked < size:
            break
    return points


def sample(walk: Ahead, bound: str) -> tuple[int, list[str]]:
    """Walk a whole range of unknown size and remember offsets at equal distances.

    Returns:
        The number of events, and at most ``MAX_SAMPLES`` of their offsets, in order, each as far from the one before.
    """
    count, step, samples = 0, 1, list[str]()
    while True:
        walked, last = walk.advance(step, bound)
        count += walked
        if walked < step or last is None:
            return count, samples
        samples.append(last)
        if len(samples) >= MAX_SAMPLES:
            samples, step = samples[1::2], step * 2


def events_between(start: Position, end: str, earliest: str | None) -> int:
    """Return how many offsets a range still has.

    Args:
        start: where it begins: ``EARLIEST``, ``At`` (inclusive) or ``After`` (exclusive).
        end: its last offset, inclusive.
        earliest: the oldest offset that is retained, None when there is none; what lies below is not counted.
    """
    first = _first(start, earliest)
    return 0 if first is None else max(0, int(end) - first + 1)


def is_next(position: Position, bounds: Bounds) -> bool:
    """Return whether a position is ``At`` the offset that the next event of a partition will get."""
    newest = bounds.latest if bounds.latest is not None else bounds.truncated
    return isinstance(position, At) and int(position.offset) == (0 if newest is None else int(newest) + 1)


class NumericWalk:
    """A walk that needs no link: the interface of ``walks.Walk`` over offsets that are numbers.

    Args:
        position: where to begin.
        earliest: returns the oldest offset that is retained now, None when there is none; a walk that begins below
            begins there.
    """

    def __init__(self, position: Position, earliest: Callable[[], str | None]) -> None:
        self._earliest = earliest
        self.position = position
        """Where the next event is looked for."""

    def advance(self, events: int, bound: str) -> tuple[int, str | None]:
        """Go on by ``events`` offsets, but not past offset ``bound`` (inclusive).

        Returns:
            How many there were and the last of them, None when there was none.
        """
        first = _first(self.position, self._earliest())
        if first is None:
            return 0, None
        last = min(first + events - 1, int(bound))
        if last < first:
            return 0, None
        offset = str(last).zfill(len(bound))
        self.position = After(offset)
        return last - first + 1, offset

    def close(self) -> None:
        """Do nothing: there is no link."""


def _first(start: Position, earliest: str | None) -> int | None:
    if earliest is None:
        return None
    wanted = int(start.offset) + isinstance(start, After) if isinstance(start, (At, After)) else 0
    return max(wanted, int(earliest))
