"""The bar of commands that move events: how many, how fast, how long it still takes; on a terminal's stderr only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

_WINDOW_S: Final = 10.0
"""The rate is that of the last seconds."""
_SHOWN_STEPS: Final = 20
"""Number of steps of the total at which the bar is always drawn; else it is drawn ten times a second."""
_STEP_EVENTS: Final = 5_000
"""A step where no total is known."""


class Pace:
    """The rate of the last seconds, and the time that the rest takes at it.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int, float]] = deque([(clock(), 0, 0.0)])

    def note(self, events: int, done: float) -> None:
        """Note how many events there are by now, and how much of the whole is done."""
        now = self._clock()
        self._seen.append((now, events, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_S:
            self._seen.popleft()

    @property
    def events_per_s(self) -> float | None:
        """Events a second; None before there is a time between two notes."""
        seconds = self._seen[-1][0] - self._seen[0][0]
        return (self._seen[-1][1] - self._seen[0][1]) / seconds if seconds > 0 else None

    def left_s(self, total: float | None) -> float | None:
        """Return the seconds until all is done; None where it is not known how much that is, or nothing moves."""
        seconds, done = self._seen[-1][0] - self._seen[0][0], self._seen[-1][2] - self._seen[0][2]
        if total is None or seconds <= 0 or done <= 0:
            return None
        return max(0.0, total - self._seen[-1][2]) * seconds / done


class EventBar:
    """A bar while the context is open; nothing where stderr is no terminal.

    Args:
        what: what moves where.
        total: how much there is to do; None for an unknown end.
        in_events: whether ``total`` counts events; else the bar moves by something else, such as bytes.
        hidden: whether there is no bar in any case.
    """

    def __init__(self, what: str, total: int | None, *, in_events: bool = True, hidden: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]} events"),
            TextColumn("{task.fields[rate]}"),
            _Times(),
        )
        self._progress = Progress(*columns, console=console, disable=hidden or not console.is_terminal)
        self._in_events = in_events
        self._total = total
        self._pace = Pace()
        self._task = self._progress.add_task(what, total=total, **self._texts(0))
        self._steps = 0

    def __enter__(self) -> EventBar:
        self._progress.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._progress.stop()

    def show(self, events: int, done: int | None = None) -> None:
        """Show how many events have moved, and how much is done, where that is not their number."""
        at = events if done is None else done
        if self._total is not None:
            self._total = max(self._total, at)  # other producers may append meanwhile
        self._pace.note(events, at)
        step = _STEP_EVENTS if self._total is None else max(1, self._total // _SHOWN_STEPS)
        moved, self._steps = at // step > self._steps, at // step
        self._progress.update(self._task, completed=at, total=self._total, refresh=moved, **self._texts(events))

    def _texts(self, events: int) -> dict[str, Any]:
        rate = self._pace.events_per_s
        return {
            "count": f"{events}/{self._total}" if self._in_events and self._total is not None else f"{events}",
            "rate": "" if rate is None else f"{rate:,.0f}/s",
            "left_s": self._pace.left_s(self._total),
        }


class _Times(ProgressColumn):  # type: ignore[misc]
    """The time since the beginning, with its name, and the time that the rest takes while there is a rest."""

    def render(self, task: Task) -> Text:
        elapsed, left_s = _clock_text(task.elapsed or 0.0), task.fields["left_s"]
        if left_s == 0:
            return Text(f"in {elapsed}")
        return Text(f"{elapsed} so far" if left_s is None else f"{elapsed} so far, {_clock_text(left_s)} left")


def _clock_text(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
