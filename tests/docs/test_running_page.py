"""docs/running-the-log.md: its commands name what the unit and the Dockerfile do, and its settings are read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from spark_streams.cli.log.config_file import read_configuration
from tests.docs.pages import ROOT, blocks
from tests.packaging.confined import settings
from tests.packaging.test_service_files import PROGRAM, UNIT, only

PAGE = "docs/running-the-log.md"


def commands(number: int) -> list[list[str]]:
    return [shlex.split(line) for line in blocks(PAGE, "bash")[number].splitlines()]


def test_the_commands_for_systemd() -> None:
    make, install, put_settings, put_unit, load, start = commands(0)
    unit = settings(UNIT)
    (credential,), (run,) = unit["LoadCredential"], unit["ExecStart"]
    assert make == ["sudo", "python3", "-m", "venv", PROGRAM]
    assert install == ["sudo", f"{PROGRAM}/bin/pip", "install", ".[log]"] and run.startswith(f"{PROGRAM}/bin/")
    assert put_settings == ["sudo", "install", "-D", "-m", "600", *credential.split(":")]
    assert put_unit[:4] == ["sudo", "install", "-m", "644"]
    assert (ROOT / put_unit[4]) == UNIT and put_unit[5] == f"/etc/systemd/system/{UNIT.name}"
    assert load == ["sudo", "systemctl", "daemon-reload"]
    assert start == ["sudo", "systemctl", "enable", "--now", UNIT.stem]


def test_the_settings(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "toml")
    (tmp_path / "log.toml").write_text(block)
    (tmp_path / "log.toml").chmod(0o600)
    read = read_configuration(tmp_path / "log.toml")
    assert read.named == {"amqp", "rabbitmq-stream", "web"}
    assert read.doors["amqp"].users.keys() == {"writer", "reader"} and read.doors["amqp"].host == "0.0.0.0"
    assert read.doors["rabbitmq-stream"].advertised_host == "log.example.com"
    assert read.doors["web"].host == "127.0.0.1" and not read.doors["web"].permissions["reader"].allow("write", "x")


def test_the_files_that_settings_name() -> None:
    (block,) = blocks(PAGE, "ini")
    section, *lines = block.splitlines()
    assert section == "[Service]"
    for line in lines:
        name, _, file = line.removeprefix("LoadCredential=").partition(":")
        assert file == f"/etc/spark-streams/{name}" and f'= "{name}"`' in (ROOT / PAGE).read_text()


def test_the_commands_for_docker() -> None:
    build, run, logs, stop = commands(1)
    assert build[:3] == ["docker", "build", "-f"] and (ROOT / build[3]).is_file() and build[4] == "-t"
    assert run[:5] == ["docker", "run", "-d", "--name", "log"]
    assert [logs, stop] == [["docker", "logs", "log"], ["docker", "stop", "log"]]
    image = run.index(build[5])
    pairs = list(zip(run[5:image:2], run[6:image:2], strict=True))
    words = json.loads(only("ENTRYPOINT"))
    places = [place.split(":")[1] for option, place in pairs if option == "-v"]
    assert places == [only("VOLUME"), words[words.index("--user-file") + 1]]
    ports = [place.split(":")[-1] for option, place in pairs if option == "-p"]
    assert set(ports) < set(only("EXPOSE").split()) and len(ports) * 2 + len(places) * 2 == image - 5
    assert run[image + 1 :] == ["--stream", "orders:4"]
