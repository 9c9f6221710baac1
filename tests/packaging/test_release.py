"""What a release is made with: CI and hooks call the Makefile and nothing else, and the changelog has the version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.release import ROOT, faults_of_the_changelog

TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
CI, NIGHTLY = (ROOT / ".github" / "workflows" / f"{name}.yml" for name in ("ci", "nightly"))
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def filled_in(line: str, matrix: dict[str, Any]) -> list[str]:
    """Return a line for each value of the job's matrix."""
    (name,) = re.findall(r"\$\{\{ matrix\.(\w+) \}\}", line) or [None]
    if name is None:
        return [line]
    values = matrix.get(name) or [each[name] for each in matrix["include"]]
    return [line.replace(f"${{{{ matrix.{name} }}}}", str(value)) for value in values]


def steps(job: dict[str, Any]) -> list[str]:
    """Return the commands that a job runs."""
    matrix = job.get("strategy", {}).get("matrix", {})
    return [line for step in job["steps"] if "run" in step for line in filled_in(step["run"], matrix)]


def test_ci_calls_the_makefile_and_nothing_else() -> None:
    jobs = {**yaml.safe_load(CI.read_text())["jobs"], **yaml.safe_load(NIGHTLY.read_text())["jobs"]}
    lines = [line for job in jobs.values() for line in steps(job)]
    assert all(re.fullmatch(r"make [a-z-]+( [A-Z]+=\S+)*", line) for line in lines), lines
    called = [line.split()[1] for line in lines]
    assert set(called) <= TARGETS
    assert {"demo", "test", "test-all", "today", "release-check", "fuzz", "soak"} <= set(called)
    for job in jobs.values():
        assert set(re.findall(r"matrix\.(\w+)", str(job))) <= {"python", "part", "target"}
        assert all(step.get("uses", "actions/").startswith("actions/") for step in job["steps"])


def test_ci_tests_every_python_that_is_supported() -> None:
    matrix = yaml.safe_load(CI.read_text())["jobs"]["test"]["strategy"]["matrix"]
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == supported


def test_the_hooks_call_the_makefile() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    entries = [hook["entry"].split() for hook in repos[0]["hooks"]]
    assert [words[0] for words in entries] == ["make"] * len(entries)
    assert {words[1] for words in entries} == {"lint", "typecheck"} <= TARGETS


@pytest.mark.parametrize("name", ["bug", "wish"])
def test_a_template_of_issues_has_what_github_asks_for(name: str) -> None:
    _, head, body = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head).keys() == {"name", "about", "labels"}
    assert body.strip()


def test_what_pages_for_contributors_link_to_is_there() -> None:
    for page in (ROOT / "SECURITY.md", ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def dry_run(*arguments: str) -> str:
    """Return what make would run, as it stands in the Makefile."""
    command = ["make", "--no-print-directory", "--dry-run", *arguments]
    # What the make that runs these tests was told is not for this one.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES")}
    told = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_release_check_does_what_the_makefile_says() -> None:
    told = dry_run("release-check", "TAG=v9.9.9")
    # A tag's name is not for the shell to read.
    assert told.rstrip().endswith('tests/packaging/release.py --tag "$TAG"')


def test_setup_tells_what_takes_long() -> None:
    told = dry_run("--always-make", "setup")
    steps = re.findall(r'^(?:(echo "setup: )|\s*(?:\w+=\S+ )?\S+ -m (pip) .*(?:wheel|install) )', told, re.MULTILINE)
    assert ["said" if said else pip for said, pip in steps] == [
        *("said", "pip"),  # what the demo runs
        *("said", "pip", "pip", "said"),
    ]


def test_a_release_of_another_version_than_the_tag_is_refused_before_anything_is_built() -> None:
    program = Path(__file__).with_name("release.py")
    ran = subprocess.run([sys.executable, program, "--tag", "v9.9.9"], capture_output=True, text=True, timeout=120)
    assert VERSION is not None and ran.returncode == 1
    assert f"the tag is v9.9.9, and pyproject.toml has version {VERSION[1]}: expected v{VERSION[1]}" in ran.stderr


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_sdist_and_wheel_can_be_released(tmp_path: Path) -> None:
    """With tools of their own: `make release-check` installs them beside the package, under the other tests' feet."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    tools = ["-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", "build", "twine"]
    subprocess.run([python, *tools], check=True, timeout=600)
    command = [python, Path(__file__).with_name("release.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    version = VERSION and VERSION[1]
    assert ran.stdout.splitlines()[-1] == (
        f"release-check: version {version} can be released: spark_streams-{version}-py3-none-any.whl, "
        f"spark_streams-{version}.tar.gz"
    )


def test_the_changelog_has_the_version() -> None:
    assert VERSION is not None
    assert faults_of_the_changelog((ROOT / "CHANGELOG.md").read_text(), VERSION[1], None) == []


@pytest.mark.parametrize(
    ("heading", "tag", "fault"),
    [
        ("## [1.2.0] - 2026-11-28", "v1.2.0", None),
        ("## [1.2.0] - unreleased", None, None),
        ("## [1.2.0] - unreleased", "v1.2.0", "expected the day of the release, as YYYY-MM-DD"),
        ("## [1.2.0]", "v1.2.0", "expected the day of the release, as YYYY-MM-DD"),
        ("## [1x2.0] - 2026-11-28", None, "no heading '## [1.2.0] - YYYY-MM-DD'"),
        ("## [1.2.0] - 2026-11-28", "1.2.0", "the tag is 1.2.0, and pyproject.toml has version 1.2.0: expected v1.2.0"),
    ],
)
def test_what_the_changelog_needs(heading: str, tag: str | None, fault: str | None) -> None:
    found = faults_of_the_changelog(f"# Changelog\n\n{heading}\n\n### Added\n", "1.2.0", tag)
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]
