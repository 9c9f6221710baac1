"""The bar of commands that move events: their number, their rate, the time left; on a terminal's stderr only."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SPEED_PERIOD_S: Final = 10.0
"""The rate is that of the last seconds."""
_SHOWN_STEPS: Final = 20
"""Number of steps of the total at which the bar is always drawn; else it is drawn ten times a second."""
_STEP_EVENTS: Final = 5_000
"""A step where no total is known."""


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
        self._progress = Progress(
            *(TextColumn("{task.description}", markup=False), BarColumn()),
            *(TextColumn("{task.fields[count]} events"), TextColumn("{task.fields[rate]}")),
            *(TimeElapsedColumn(), TextColumn("so far")),
            *(() if total is None else (TimeRemainingColumn(), TextColumn("left"))),
            console=console,
            disable=hidden or not console.is_terminal,
            speed_estimate_period=_SPEED_PERIOD_S,
        )
        self._in_events = in_events
        self._total = total
        self._task = self._progress.add_task(what, total=total, count=self._count(0), rate="")
        self._steps = 0

    def __enter__(self) -> EventBar:
        self._progress.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._progress.stop()

    def show(self, events: int, done: int | None = None) -> None:
        """Show the number of events that have moved, and how much is done, where that is not their number."""
        at = events if done is None else done
        if self._total is not None:
            self._total = max(self._total, at)  # other producers may append meanwhile
        speed = self._progress.tasks[0].speed
        rate = f"{speed * events / at:,.0f}/s" if speed and at else ""
        step = _STEP_EVENTS if self._total is None else max(1, self._total // _SHOWN_STEPS)
        moved, self._steps = at // step > self._steps, at // step
        self._progress.update(
            self._task, completed=at, total=self._total, refresh=moved, count=self._count(events), rate=rate
        )

    def _count(self, events: int) -> str:
        """Return how many events have moved, and of how many where that is known."""
        return f"{events}/{self._total}" if self._in_events and self._total is not None else f"{events}"
