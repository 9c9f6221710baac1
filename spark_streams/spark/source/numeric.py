"""Offsets that are numbers, written as decimal digits of a fixed width: counts and limits by arithmetic.

Nothing here asks the peer. An offset is taken for an event: some hold none (a broker's own records), so a count may be
too high by those, and never too low.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_streams.client.log_client import Bounds
from spark_streams.position import After, At, Position

__all__ = ["NumericWalk", "events_between", "is_next"]


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
