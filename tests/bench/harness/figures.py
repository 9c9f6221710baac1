"""Figures: what a measure saw of each subject in each round; as JSON, as a table, and those of two revisions."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Figure:
    """One number of one subject, such as rows a second of a format, as each round saw it."""

    measure: str
    subject: str
    name: str
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def least(self) -> float:
        return min(self.rounds)

    @property
    def spread(self) -> float:
        """Half of what lies between the least and the greatest, as a share of the median; 0 for a median of 0."""
        return (max(self.rounds) - min(self.rounds)) / 2 / abs(self.median) if self.median else 0.0


class Figures:
    """The figures of a run in the order in which they were seen first."""

    def __init__(self, figures: Iterable[Figure] = (), about: dict[str, Any] | None = None) -> None:
        self._figures = {(figure.measure, figure.subject, figure.name): figure for figure in figures}
        self.about = about or {}
        """What the run was: its date, revision, machine, versions."""

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._figures.values())

    def add(self, measure: str, subject: str, seen: dict[str, float]) -> None:
        """Take one round's numbers, by their names."""
        for name, value in seen.items():
            self._figures.setdefault((measure, subject, name), Figure(measure, subject, name)).rounds.append(value)

    def take(self, others: Figures) -> None:
        """Take the figures of other measures."""
        self._figures |= others._figures

    def get(self, measure: str, subject: str, name: str) -> Figure | None:
        return self._figures.get((measure, subject, name))

    def to_json(self) -> str:
        return json.dumps({"about": self.about, "figures": [asdict(figure) for figure in self]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Figures:
        said = json.loads(text)
        return cls((Figure(**figure) for figure in said["figures"]), said["about"])


def read_all(folder: Path) -> Figures:
    """Return the figures of all JSON files of a folder as those of one run; what it was is the newest file's."""
    runs = [Figures.from_json(file.read_text()) for file in sorted(folder.glob("*.json"))]
    about = max((run.about for run in runs), key=lambda about: str(about.get("date", "")), default={})
    return Figures((figure for run in runs for figure in run), about)


def number(value: float) -> str:
    """Three digits that count, and all of those before the point."""
    magnitude = abs(value)
    return f"{value:,.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"


def table(figures: Figures, subjects: Sequence[str]) -> str:
    """Return a Markdown table: a line for each figure, a column for each subject, medians with their spreads."""
    names = dict.fromkeys((figure.measure, figure.name) for figure in figures)
    lines = ["| | " + " | ".join(f"`{subject}`" for subject in subjects) + " |", "|---|" + "---|" * len(subjects)]
    for measure, name in names:
        cells = []
        for subject in subjects:
            figure = figures.get(measure, subject, name)
            cells.append("-" if figure is None else f"{number(figure.median)} ± {figure.spread:.0%}")
        lines.append(f"| {measure}: {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compare(old: Figures, new: Figures) -> str:
    """Return a Markdown table of two revisions: least and median of each figure, and the new divided by the old."""
    lines = ["| | least, old | new | ratio | median, old | new | ratio |", "|---|---|---|---|---|---|---|"]
    for after in new:
        before = old.get(after.measure, after.subject, after.name)
        if before is None:
            continue
        cells = []
        for one, other in ((before.least, after.least), (before.median, after.median)):
            cells += [number(one), number(other), f"{other / one:.2f}" if one else "-"]
        lines.append(f"| {after.measure}, `{after.subject}`: {after.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
