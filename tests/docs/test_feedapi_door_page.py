"""What docs/feedapi-door.md shows is run as it stands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_streams.cli.log.config_file import read_configuration
from tests.cli.conftest import Served, serving
from tests.docs.pages import ROOT, blocks, tables, told

PAGE = "docs/feedapi-door.md"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with serving(tmp_path) as start:
        yield start


def test_the_commands(serve: Callable[..., Served]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    start, *requests = blocks(PAGE, "bash")
    words = start.split()
    assert words[:3] == ["spark-streams", "log", "serve"]
    served = serve(*["0" if word == "8080" else word for word in words[3:]])
    said = []
    for block in requests:
        for command in re.split(r"\n(?=curl)", block.strip()):
            done = subprocess.run(
                ["bash", "-c", command.replace("curl -s ", "curl -sS --fail-with-body ")],
                env={**os.environ, "URL": served.doors["feedapi"]},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            said.append(done.stdout)
    discovery, page, published, created, deleted, closed, redistributed = said
    assert len(json.loads(discovery)["partitions"]) == 4
    assert list(json.loads(page)) == ["cursor"]
    assert f"The answer, `{published}`, comes" in (ROOT / PAGE).read_text()
    assert len(json.loads(created)["partitions"]) == 2
    assert deleted == ""
    assert [each.get("startsAfterPartition") for each in json.loads(closed)["partitions"][4:]] == ["0", "0"]
    assert sum("cursorFromPartitions" in each for each in json.loads(redistributed)["partitions"]) == 2


def test_the_settings(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "toml")
    (tmp_path / "log.toml").write_text(block)
    read = read_configuration(tmp_path / "log.toml").doors["feedapi"]
    assert read.dialect == "v2b" and [token.token for token in read.bearers] == ["secret", "another-secret"]
    assert not read.bearers[0].allow("write", "orders") and read.bearers[1].allow("configure", "orders")


def test_every_status_is_listed() -> None:
    ((*rows,),) = tables(PAGE, "Errors")
    listed = {status for row in rows for status in re.findall("[0-9]{3}", row[0])}
    rooms = [ROOT / "spark_streams/server" / room for room in ("feed", "http")]
    code = "\n".join(file.read_text() for room in rooms for file in sorted(room.glob("*.py")))
    answered = set(re.findall(r"HttpError\(\s*([0-9]{3})", code))
    assert answered <= listed
    assert listed - answered <= {"405", "431", "500", "503"}, "which starlette, uvicorn and the connection answer"
    assert "_first" in told("spark_streams/server/feed")
