"""Every numbered requirement has a test that is named by its number, and that really runs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "client" / "amqp" / "test_conformance.py"
NOTES = HERE.parents[3] / "shared" / "specs" / "amqp-event-streams.md"
DECIDED = {f"A-{n}" for n in range(1, 30)}


def listed() -> list[tuple[str, str, str, str]]:
    """Return (id, role, level, clause) of each requirement in our copy of the list."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    rows = [line.split(" ", 3) for line in lines if not line.startswith("#")]
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def named_tests() -> dict[str, list[ast.FunctionDef]]:
    """Return the tests by the number in their name: test_es_111_… and test_a_07_…"""
    found: dict[str, list[ast.FunctionDef]] = {}
    for file in sorted([*HERE.glob("test_*.py"), CLIENT]):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            named = re.match(r"test_(es|a)_(\d+)_\w", function.name)
            if named:
                number = f"ES-{named[2]}" if named[1] == "es" else f"A-{int(named[2])}"
                found.setdefault(number, []).append(function)
    return found


def test_each_requirement_has_a_test() -> None:
    missing = {row[0] for row in listed()} - named_tests().keys()
    assert not missing, f"no test is named by {sorted(missing)}"


def test_each_decided_ambiguity_has_a_test() -> None:
    missing = DECIDED - named_tests().keys()
    assert not missing, f"no test is named by {sorted(missing)}"


def test_no_test_is_named_by_a_number_that_is_not_listed() -> None:
    assert {n for n in named_tests() if n.startswith("ES-")} == {row[0] for row in listed()}


def test_no_requirement_is_skipped_and_each_is_checked() -> None:
    for number, functions in named_tests().items():
        for function in functions:
            marks = " ".join(ast.unparse(d) for d in function.decorator_list)
            assert "skip" not in marks and "xfail" not in marks, f"{number}: {function.name} is marked {marks}"
            checks = any(isinstance(n, ast.Assert) for n in ast.walk(function)) or any(
                "raises" in ast.unparse(n) for n in ast.walk(function) if isinstance(n, ast.With)
            )
            assert checks, f"{number}: {function.name} checks nothing"


def test_our_copy_is_well_formed() -> None:
    rows = listed()
    assert max(Counter(row[0] for row in rows).values()) == 1
    assert {row[1] for row in rows} <= {"N", "P", "C", "P,C"}
    assert all(set(row[2].split("/")) <= {"M", "MN", "S", "SN", "O", "D"} for row in rows)
    assert rows[0][0] == "ES-001" and rows[-1][0] == "ES-407" and len(rows) == 70


@pytest.mark.skipif(not NOTES.exists(), reason="the specification notes are not beside this repository")
def test_our_copy_matches_the_notes() -> None:
    pattern = re.compile(r"\| (ES-\d+) \| ([NPC,]+) \| ([^|]+) \| ([^|]+) \|")
    rows = [found for line in NOTES.read_text().splitlines() if (found := pattern.match(line))]
    assert [(r[1], r[2], r[4].strip(), r[3].strip()) for r in rows] == listed()
