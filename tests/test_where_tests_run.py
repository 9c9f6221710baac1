"""No test is in neither of `make test` and `make test-all`, and CONTRIBUTING.md says of each folder what is where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from _pytest.mark.expression import Expression

from tests.conftest import MARKS

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests"
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> str:
    """Return the line of a target that runs pytest."""
    (line,) = re.findall(rf"^{re.escape(target)}:.*\n(?:\t.*\n)*?\t(.*\$\(PYTEST\).*)$", MAKEFILE, re.MULTILINE)
    return str(line)


def chosen_by(target: str) -> Expression:
    (marks,) = re.findall(r'-m "([^"]+)"', recipe(target))
    return Expression.compile(marks)


def folders_with_tests() -> set[str]:
    files = [file.relative_to(HERE) for file in HERE.rglob("test_*.py")]
    return {file.parent.as_posix() for file in files} - {"."}


def test_each_test_is_in_one_of_the_two(request: pytest.FixtureRequest) -> None:
    collected = request.config.stash[MARKS]
    assert request.node.nodeid in collected
    everyday, rest = chosen_by("unit"), chosen_by("nightly")
    for test, (_, marks) in collected.items():
        where = [expression.evaluate(marks.__contains__) for expression in (everyday, rest)]
        assert where.count(True) == 1, f"{test}: {where}"


@pytest.mark.parametrize("target", ["unit", "nightly"])
def test_pytest_is_given_all_folders(target: str) -> None:
    assert "tests/" not in recipe(target).partition("$(PYTEST)")[2]


def test_each_file_of_tests_is_collected() -> None:
    for file in HERE.rglob("*.py"):
        if re.search(r"^def test_", file.read_text(), re.M):
            assert file.name.startswith("test_"), f"{file}: pytest looks into test_*.py only"


def test_contributing_says_of_each_folder_what_is_where() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## What runs where")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    named = {folder for row in rows for folder in re.findall(r"`([^`]+)`", row[0])}
    assert named >= {folder.split("/")[0] for folder in folders_with_tests()}
    assert {folder for folder in named if not (HERE / folder).is_dir()} == set()


def test_the_page_of_tests_describes_each_folder() -> None:
    rows = [line.split("|")[1] for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = set()
    for name in (name for row in rows for name in re.findall(r"`([^`]+)`", row)):
        stem, _, inner = name.rstrip("}").partition("{")
        named |= {stem.rstrip("/"), *(f"{stem}{each}" for each in inner.split(",") if inner)}
    assert {folder for folder in folders_with_tests() if folder not in named} == set()
    assert {folder for folder in named if "/" in folder and not folder.endswith(".py")} <= {
        each.relative_to(HERE).as_posix() for each in HERE.rglob("*") if each.is_dir()
    }


@pytest.mark.parametrize("target", ["test-all", "today"])
def test_every_night_all_parts_run(target: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    job = workflow["jobs"][target]
    parts = job["strategy"]["matrix"]["part"]
    assert parts == [f"{number}/{len(parts)}" for number in range(1, len(parts) + 1)]
    assert job["steps"][-1]["run"] == f"make {target} PART=${{{{ matrix.part }}}}"


def test_today_runs_all_tests() -> None:
    assert recipe("all-tests").endswith("$(PYTEST) --part $(PART)")


@pytest.mark.parametrize("target", ["nightly", "test-spark-%"])
def test_each_target_of_the_rest_takes_its_part(target: str) -> None:
    assert "--part $(PART)" in recipe(target)


def test_parts_share_all_modules(pytester: pytest.Pytester) -> None:
    """Three parts of four modules, one of which is left out by ``-m``."""
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_collection_modifyitems, MARKS")
    for name in "abcd":
        mark = "@pytest.mark.x\n" if name == "b" else ""
        pytester.makepyfile(**{f"test_{name}": f"import pytest\n{mark}def test_it(): pass\ndef test_more(): pass"})
    pytester.makeini(f"[pytest]\nmarkers = x\npythonpath = {ROOT}")
    seen: list[str] = []
    for number in (1, 2, 3):
        result = pytester.runpytest_inprocess("-m", "not x", "--part", f"{number}/3", "-q", "--collect-only")
        seen += [line for line in result.outlines if "::" in line]
    assert len(seen) == len(set(seen)) == 7
