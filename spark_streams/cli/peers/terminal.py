"""What commands show: tables whose cells can be copied, and the bar of commands that move events.

An offset, a cursor or a name is never broken over two lines. A table that is too wide for the terminal is printed in
the other direction, a line for each cell. An output that is no terminal has no width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_NUMBERS: Final = ("events", "bytes", "segments")
"""Columns of numbers."""
_UNBOUNDED: Final = 1_000_000
_AROUND: Final = 7
"""The characters of a table of two columns beside its cells: its edges, and a space around each cell."""


def plain_console() -> Console:
    """Return a console for stdout that takes names as they are, and has a width only if it is a terminal."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def print_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a row for each mapping, and a column for each of their keys; None becomes an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["partition"]
    cells = [["" if row.get(name) is None else str(row[name]) for name in names] for row in rows]
    table = Table()
    for name in names:
        table.add_column(Text(name), justify="right" if name in _NUMBERS else "left", no_wrap=True, overflow="ignore")
    for row in cells:
        table.add_row(*map(Text, row))
    if _print_whole(console, table):
        return
    widest = max(map(len, names))
    for row in cells:
        console.print()
        for name, cell in zip(names, row, strict=True):
            if cell:
                console.print(f"{name:<{widest}}  {cell}", soft_wrap=True)


def print_facts(console: Console, facts: Mapping[str, Any]) -> None:
    """Print names and values; a list in as many lines as it needs, broken between its items only."""
    widest = max(map(len, facts))
    room = max(console.width - widest - _AROUND, 1)
    lines = {name: _lines(value, room) if isinstance(value, list) else [str(value)] for name, value in facts.items()}
    table = Table(show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True, overflow="ignore")
    for name, texts in lines.items():
        table.add_row(Text(name), Text("\n".join(texts)))
    if _print_whole(console, table):
        return
    for name, texts in lines.items():
        for number, text in enumerate(texts):
            console.print(f"{'' if number else name:<{widest}}  {text}", soft_wrap=True)


def _print_whole(console: Console, table: Table) -> bool:
    """Print a table if it has room, and return whether it had."""
    needed = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
    if needed > console.width:
        return False
    console.print(table)
    return True


def _lines(items: Iterable[object], room: int) -> list[str]:
    """Return items with commas between them in lines of at most ``room`` characters, unless one item has more."""
    lines = [""]
    for item in map(str, items):
        if lines[-1] and len(lines[-1]) + len(item) + 3 > room:
            lines[-1] += ","
            lines.append(item)
        else:
            lines[-1] += f", {item}" if lines[-1] else item
    return lines


_SPEED_PERIOD_S: Final = 10.0
"""The rate is measured over so many last seconds."""
_SHOWN_STEPS: Final = 20
"""Number of steps of the total at which the bar is always drawn; else it is drawn ten times a second."""
_STEP_EVENTS: Final = 5_000
"""The length of a step, in events, where no total is known."""


class EventBar:
    """A bar while the context is open: how many events, how fast, how long it still takes; on a terminal's stderr only.

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
        """Show how many events have moved, and how much of ``total`` is done, if it does not count events."""
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
        """Return how many events have moved, and out of how many, if that is known."""
        return f"{events}/{self._total}" if self._in_events and self._total is not None else f"{events}"
