"""Plots made of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["bar", "columns_plot", "resampled"]

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def bar(value: float, largest: float, width: int) -> str:
    """Return a horizontal bar; ``largest`` fills ``width`` characters, and what is not zero shows."""
    if largest <= 0 or value <= 0:
        return ""
    return "█" * max(1, round(width * value / largest))


def resampled(samples: Sequence[tuple[float, float]], count: int) -> list[float]:
    """Return what (time, value) samples, in time order, say at ``count`` evenly spaced times; linear in between."""
    begin, end = samples[0][0], samples[-1][0]
    values: list[float] = []
    at = 0
    for n in range(count):
        moment = begin + (end - begin) * n / max(1, count - 1)
        while at + 2 < len(samples) and samples[at + 1][0] < moment:
            at += 1
        (t0, v0), (t1, v1) = samples[at], samples[min(at + 1, len(samples) - 1)]
        share = 0.0 if t1 <= t0 else min(1.0, max(0.0, (moment - t0) / (t1 - t0)))
        values.append(v0 + (v1 - v0) * share)
    return values


def columns_plot(values: Sequence[float], height: int, unit: str) -> list[str]:
    """Return lines of a plot with one column a value, the largest value ``height`` lines high, labelled at the left."""
    top = max(values, default=0.0) or 1.0
    label = f"{top:,.0f} {unit}"
    lines = []
    for row in range(height, 0, -1):
        cells = ""
        for value in values:
            eighths = round(8 * (value / top * height - (row - 1)))
            cells += _EIGHTHS[min(8, max(0, eighths))]
        left = label if row == height else ("0" if row == 1 else "")
        lines.append(f"{left:>18} ┤{cells}")
    return lines
