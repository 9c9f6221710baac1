"""Which points of a matrix `make test` has; the others are for the night."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi")


def by_day(fixture: str, *chosen: str, of: Sequence[str] = FORMATS) -> pytest.MarkDecorator:
    """Have a test run with the chosen parameters of a fixture by day, and with the others at night."""
    assert set(chosen) <= set(of)
    params = [pytest.param(each, marks=nightly_unless(each in chosen)) for each in of]
    return pytest.mark.parametrize(fixture, params, indirect=True)


def in_turn(cases: Iterable[str], formats: Callable[[str], Sequence[str]] = lambda case: FORMATS) -> list[Any]:
    """Parameters (format, case): each case in one format by day, another one for each case, and in all at night."""
    return [
        pytest.param(name, case, id=f"{name}-{case}", marks=nightly_unless(number % len(formats(case)) == at))
        for number, case in enumerate(cases)
        for at, name in enumerate(formats(case))
    ]


def nightly_unless(chosen: bool) -> list[pytest.MarkDecorator]:
    """The mark of what is not for the day."""
    return [] if chosen else [pytest.mark.nightly]
