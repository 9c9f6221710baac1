"""What a run is judged by: a figure, or a ratio of two of one run, beside what it is to be."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from tests.bench.harness.figures import Figure, Figures, number

Where = tuple[str, str, str]
"""Measure, subject and name of a figure."""


@dataclass(frozen=True)
class Target:
    """A line under a table; without a bound it says what was seen only."""

    text: str
    over: Where
    under: Where | None = None
    """What ``over`` is divided by; None: by nothing."""
    at_most: float | None = None
    at_least: float | None = None

    def line(self, figures: Figures) -> str | None:
        """Return what was seen, the bound and whether it was met; None where a figure is missing."""
        over = figures.get(*self.over)
        under = figures.get(*self.under) if self.under else None
        if over is None or (self.under and under is None):
            return None
        seen = over.median if under is None else _ratio(over, under)
        for bound, sign, met in (
            (self.at_most, "≤", self.at_most is not None and seen <= self.at_most),
            (self.at_least, "≥", self.at_least is not None and seen >= self.at_least),
        ):
            if bound is not None:
                return f"- {'met' if met else 'MISSED'}: {self.text}: {number(seen)}, target {sign} {number(bound)}"
        return f"- {self.text}: {number(seen)}"


def _ratio(over: Figure, under: Figure) -> float:
    """The median of the rounds' ratios: what else the machine does weighs on both figures of a round alike."""
    if len(over.rounds) != len(under.rounds):
        return over.median / under.median if under.median else float("nan")
    ratios = [one / other if other else float("nan") for one, other in zip(over.rounds, under.rounds, strict=True)]
    return statistics.median(ratios)


def figure(
    measure: str, subject: str, name: str, *, at_most: float | None = None, at_least: float | None = None
) -> Target:
    """A figure of a subject."""
    return Target(f"`{subject}`, {name}", (measure, subject, name), None, at_most, at_least)


def ratio(
    measure: str, over: str, under: str, name: str, *, at_most: float | None = None, at_least: float | None = None
) -> Target:
    """The same figure of two subjects, the first divided by the second."""
    text = f"`{over}` : `{under}`, {name}"
    return Target(text, (measure, over, name), (measure, under, name), at_most, at_least)


def parts(measure: str, subject: str, over: str, under: str, *, at_most: float | None = None) -> Target:
    """Two figures of a subject, the first divided by the second."""
    return Target(f"`{subject}`, {over} : {under}", (measure, subject, over), (measure, subject, under), at_most)


def lines(targets: Iterable[Target], figures: Figures) -> str:
    """Return the lines of those targets whose figures were seen, as a Markdown list that a table may stand above."""
    return "".join(f"\n{line}" for target in targets if (line := target.line(figures)) is not None)
