"""conf/spark-streams-log.service and conf/Dockerfile: valid, as narrow as they say, and the log runs as they run it.

What seccomp takes away from the service is taken away here too (``confined.py``); what namespaces do needs a systemd.
Where Docker's daemon runs, the image is built and run; everywhere, its steps are taken in a folder.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from spark_streams.protocols import load, with_doors
from spark_streams.testing import eventually
from tests.packaging.confined import settings

ROOT = Path(__file__).resolve().parents[2]
UNIT, DOCKERFILE = ROOT / "conf" / "spark-streams-log.service", ROOT / "conf" / "Dockerfile"
CONFINED = Path(__file__).with_name("confined.py")
BIN = Path(sys.executable).parent
PROGRAM = "/opt/spark-streams"
EXPOSURE = 15
"""Of systemd's 0 to 100: a service without any of these settings has 96, and above 20 is less than good."""

analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def ran(*command: Any, code: int = 0, **given: Any) -> str:
    """Run a command that ends with this code, and return all that it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, **given)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}"
    return done.stdout


@contextmanager
def serving(*command: Any, **given: Any) -> Iterator[dict[str, str]]:
    """Run a command that serves the log, and give its doors; SIGTERM ends it well."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, **given)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{command} ended with code {process.wait(120)}"
        yield json.loads(line)
        process.terminate()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


def write_and_read(doors: dict[str, str], user: str) -> None:
    """Create a stream and write an event by AMQP; read it at each of these doors."""
    command, at = BIN / "spark-streams", {door: url.replace("//", f"//{user}@") for door, url in doors.items()}
    ran(command, "log", "create", at["amqp"], "orders")
    ran(command, "log", "append", at["amqp"], "orders", "an event")
    streams = {"amqp": "#orders", "rabbitmq-stream": "#orders", "feedapi": "/orders"}
    for url in (at[door] + stream for door, stream in streams.items() if door in at):
        read = ran(command, "tail", url, "--from", "earliest", "--no-follow", "--output", "value")
        assert read == "an event\n"


# --- the unit


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the program of this environment."""
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace(f"{PROGRAM}/bin", str(BIN)))
    return here


@analyze
def test_the_unit_is_valid(unit: Path) -> None:
    assert ran("systemd-analyze", "verify", unit) == ""


@analyze
def test_the_unit_leaves_the_service_little(unit: Path) -> None:
    ran("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE}", unit)


@analyze
@pytest.mark.nightly
def test_the_log_runs_as_the_unit_runs_it(unit: Path, tmp_path: Path) -> None:
    if not Path("/proc/sys/kernel/seccomp").exists() or shutil.which("ldconfig") is None:
        pytest.skip("needs Linux with seccomp")
    secret = tmp_path / "log.toml"
    secret.touch(0o600)
    secret.write_text("[users]\nann = 'secret'\n" + "".join(f"[{door}]\nport = 0\n" for door in with_doors()))
    (line,) = settings(unit)["ExecStart"]
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path), "STATE_DIRECTORY": str(tmp_path / "state")}
    words = [re.sub(r"\$\{(\w+)\}", lambda name: given[name[1]], word) for word in shlex.split(line)]
    with serving(sys.executable, CONFINED, unit, *words, umask=0o077) as doors:
        assert doors.keys() == with_doors().keys()
        write_and_read(doors, "ann:secret")
    kept = list((tmp_path / "state").rglob("*"))
    assert kept and all(each.stat().st_mode & 0o077 == 0 for each in kept)


@analyze
@pytest.mark.nightly
def test_what_the_unit_takes_away_is_gone() -> None:
    """The test above would pass, too, with a ``confined.py`` that does nothing."""
    program = """
import mmap, os, socket
for attempt in (
    lambda: socket.socket(socket.AF_UNIX),
    lambda: os.setpriority(os.PRIO_PROCESS, 0, 5),
    lambda: os.chroot("/"),
    lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
):
    try:
        attempt()
        print("allowed")
    except PermissionError:
        print("refused")
"""
    assert ran(sys.executable, "-c", program).split() == ["allowed"] * 4 or os.getuid() != 0
    assert ran(sys.executable, CONFINED, UNIT, sys.executable, "-c", program).split() == ["refused"] * 4


# --- the image


def instructions(file: Path = DOCKERFILE) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: name and what follows it, on one line."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def only(name: str) -> str:
    """Return the one instruction of this name."""
    (found,) = (rest for each, rest in instructions() if each == name)
    return found


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage."""
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions():
        if name == "FROM":
            found.append([])
        elif found:
            found[-1].append((name, rest))
    return found


def copied(stage: list[tuple[str, str]]) -> Iterator[tuple[list[Path], str]]:
    """Return what a stage copies from the checkout, and where to."""
    for name, rest in stage:
        if name == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            yield [file for source in sources for file in sorted(ROOT.glob(source))], target


def test_the_dockerfile_is_linted() -> None:
    assert ran(BIN / "hadolint", DOCKERFILE) == ""


def test_the_image_opens_every_door_where_people_look_for_it() -> None:
    ports = {name: load(door.config).port for name, door in with_doors().items()}
    words = json.loads(only("ENTRYPOINT"))
    at = {name: words[words.index(f"--{name}") + 1] for name in ports}
    assert at == {name: f"0.0.0.0:{port}" for name, port in ports.items()}
    assert [int(port) for port in only("EXPOSE").split()] == list(ports.values())
    assert only("USER") == "10001"
    assert words[words.index("--data-dir") + 1] == only("VOLUME")


def test_nothing_but_what_is_copied_is_given_to_the_builder() -> None:
    everything, *lines = (
        line for line in (ROOT / "conf" / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] != "#"
    )
    given = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert everything == "*"
    builder, _ = stages()
    names = {file.name for files, _ in copied(builder) for file in files}
    assert {name for name in os.listdir(ROOT) if any(fnmatch.fnmatch(name, each) for each in given)} == names
    assert names >= {"pyproject.toml", "spark_streams", "sources", "sinks", "conf"}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_steps_of_the_image_in_a_folder(tmp_path: Path) -> None:
    """All but Debian's packages, which this machine has: pip's steps, the command, the look whether it is well."""
    places = {PROGRAM: tmp_path / "opt", "/var/lib/spark-streams": tmp_path / "data", "/run/secrets": tmp_path}

    def here(text: str) -> str:
        for place, folder in places.items():
            text = text.replace(place, str(folder))
        return text

    source = tmp_path / "src"
    source.mkdir()
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    builder, _ = stages()
    sources = copied(builder)
    for name, rest in builder:
        if name == "COPY":
            files, target = next(sources)
            for file in files:
                ignored = shutil.ignore_patterns("__pycache__")
                copy = shutil.copy if file.is_file() else lambda a, b: shutil.copytree(a, b, ignore=ignored)  # noqa: B023
                copy(file, source / target if len(files) == 1 else source / file.name)
        elif name == "RUN" and not rest.startswith("apt-get"):
            ran("sh", "-ec", here(rest), cwd=source, env=environment)
    shutil.rmtree(source)  # nothing of it is in the image that is run
    words = [here(word) for word in json.loads(only("ENTRYPOINT"))]
    free = [word for door in with_doors() for word in (f"--{door}", "127.0.0.1:0")]
    assert "/users cannot be read" in ran(*words, *free, code=2, cwd="/")
    (tmp_path / "users").write_text("ann:secret\n")
    with serving(*words, *free, cwd="/") as doors:
        assert doors.keys() == with_doors().keys()
        write_and_read(doors, "ann:secret")
        check = only("HEALTHCHECK").partition(" CMD ")[2].replace("http://127.0.0.1:8090", doors["web"].rstrip("/"))
        ran(*json.loads(here(check)))
        page, style = (
            requests.get(doors["web"].rstrip("/") + path, timeout=120) for path in ("/", "/static/window.css")
        )
        assert "<h1>Sign in</h1>" in page.text and style.headers["Content-Type"].startswith("text/css")
    ran(*json.loads(here(check)), code=1)


@contextmanager
def container(*words: str) -> Iterator[str]:
    """Run the image, give the container's id, and remove it."""
    name = ran("docker", "run", "--detach", *words).strip()
    try:
        yield name
    finally:
        ran("docker", "rm", "--force", "--volumes", name)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_image_runs(tmp_path: Path) -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no daemon of Docker runs here")
    image = "spark-streams-log:test"
    ran("docker", "build", "--file", DOCKERFILE, "--tag", image, ROOT)
    assert "/run/secrets/users cannot be read" in ran("docker", "run", "--rm", image, code=2)
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    users.chmod(0o444)
    doors = [word for door in ("5672", "5552", "8080") for word in ("--publish", f"127.0.0.1::{door}")]
    with container(*doors, "--volume", f"{users}:/run/secrets/users:ro", image) as name:
        health = ("docker", "inspect", "--format", "{{.State.Health.Status}}", name)
        eventually(lambda: ran(*health) == "healthy\n", "the container is well", timeout_s=300)
        at = {port: ran("docker", "port", name, port).splitlines()[0] for port in ("5672", "5552", "8080")}
        served = {"amqp": f"amqp://{at['5672']}", "feedapi": f"http://{at['8080']}"}
        write_and_read(served, "ann:secret")
        assert ran("docker", "exec", name, "id", "-u").strip() == "10001"
        ran("docker", "stop", name)
        assert ran("docker", "inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"
    ran("docker", "rmi", image)
