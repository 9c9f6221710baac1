"""Each requirement of publishers has a test that is named by its number."""

from __future__ import annotations

import re
from pathlib import Path

REQUIREMENTS = {*range(1, 13), *range(20, 41), *range(50, 53)}
"""P-01 to P-12, P-20 to P-40, P-50 to P-52."""


def test_every_requirement_has_a_test() -> None:
    files = Path(__file__).parent.glob("test_*.py")
    found = {int(number) for file in files for number in re.findall(r"^def test_p([0-9]{2})_", file.read_text(), re.M)}
    assert found == REQUIREMENTS
