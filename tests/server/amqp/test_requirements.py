"""Every numbered requirement of docs/specifications.md has a test that is named by its number, and that really runs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.docs.pages import tables

PAGE = "docs/specifications.md"
HERE = Path(__file__).parent
CLIENT = HERE.parents[1] / "client" / "amqp" / "test_conformance.py"
CLAUSES = {
    *("1", "3.1", "3.2", "4", "4.1", "4.2", "4.3", "4.4", "4.5", "4.5.1", "4.5.2"),
    *(f"4.6.{number}" for number in range(1, 8)),
    *("5", "5.1", "5.1.1", "5.1.2", "5.2", "5.2.1", "5.2.2", "6", "8"),
}
"""The clauses of Event Stream Extensions 1.0 csd01 that require or define something, from its table of contents."""
NUMBERS = {"0": 12, "1": 22, "2": 14, "3": 14, "4": 8}
"""How many there are, by the first digit of their number: in general, of partitions, groups, offsets, ``$info``."""


def listed() -> list[tuple[str, str, str, str]]:
    """Return (id, role, level, clauses) of each requirement of the page."""
    (rows,) = tables(PAGE, "Numbered requirements")
    return [(number, role, level, clause) for number, clause, role, level, _ in rows]


def decided() -> set[str]:
    """Return the codes of the ambiguities that the page decides."""
    (rows,) = tables(PAGE, "Decided ambiguities")
    return {row[0] for row in rows}


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
    missing = decided() - named_tests().keys()
    assert not missing, f"no test is named by {sorted(missing)}"


def test_no_test_is_named_by_a_number_that_is_not_listed() -> None:
    assert named_tests().keys() == {row[0] for row in listed()} | decided()


def test_no_requirement_is_skipped_and_each_is_checked() -> None:
    for number, functions in named_tests().items():
        for function in functions:
            marks = " ".join(ast.unparse(d) for d in function.decorator_list)
            assert "skip" not in marks and "xfail" not in marks, f"{number}: {function.name} is marked {marks}"
            checks = any(isinstance(n, ast.Assert) for n in ast.walk(function)) or any(
                "raises" in ast.unparse(n) for n in ast.walk(function) if isinstance(n, ast.With)
            )
            assert checks, f"{number}: {function.name} checks nothing"


def test_the_list_is_whole_and_well_formed() -> None:
    rows = listed()
    assert max(Counter(row[0] for row in rows).values()) == 1
    assert Counter(row[0][3] for row in rows) == NUMBERS and [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {row[1] for row in rows} <= {"N", "P", "C", "P,C"}
    assert all(set(row[2].split("/")) <= {"M", "MN", "S", "SN", "O", "D"} for row in rows)
    assert decided() == {f"A-{number}" for number in range(1, 30)}


def test_the_list_matches_the_specification() -> None:
    """Each clause that a requirement names is there, and each clause that requires something has a requirement."""
    assert {clause for row in listed() for clause in row[3].split(", ")} == CLAUSES
