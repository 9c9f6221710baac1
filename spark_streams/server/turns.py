"""Turns on the loop: how long one connection may keep the others waiting."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["TURN_S", "Turn"]

TURN_S: Final = 0.004
"""Whoever has more to do than this goes on when the others have had their turn: a request of theirs, which takes two or
three turns of the loop, then waits some ten milliseconds. It is the processor's time: on a busy machine, too, a few
small frames are one turn."""


class Turn:
    """A turn that has begun."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = time.thread_time() + TURN_S

    @property
    def over(self) -> bool:
        """Whether others should have theirs now; at least one thing has to be done in each."""
        return time.thread_time() >= self._end
