"""A fixed number of cases for each door; `make fuzz` plays as many as there is time for.

A failure names door, seed and case, and how to play that case alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import DOORS, Campaign, case

SEED = 20_261_121
CASES = 96


@pytest.mark.parametrize("door", DOORS)
def test_a_door_survives_what_is_no_protocol(door: str, tmp_path: Path) -> None:
    assert Campaign(door, SEED, tmp_path).run(0, CASES) == CASES


@pytest.mark.parametrize("door", DOORS)
def test_a_case_is_the_same_whenever_it_is_made(door: str) -> None:
    every = [case(door, SEED, number) for number in range(40)]
    assert every == [case(door, SEED, number) for number in range(40)]
    assert len({b"".join(pieces) for pieces in every}) > 30
    assert every[0] != case(door, SEED + 1, 0)
