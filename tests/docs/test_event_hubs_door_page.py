"""What docs/event-hubs-door.md shows is run as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from azure.eventhub import EventHubProducerClient

from spark_streams.cli.log.config_file import read_configuration
from tests.cli.conftest import serving
from tests.docs.pages import ROOT, blocks

PAGE = "docs/event-hubs-door.md"
DOOR = "event-hubs"


def test_the_command_and_what_it_prints(tmp_path: Path) -> None:
    (command,), (line,) = blocks(PAGE, "bash"), blocks(PAGE, "json")
    words = command.replace("--event-hubs 5673", "--event-hubs 0").split()
    assert words[:3] == ["spark-streams", "log", "serve"]
    with serving(tmp_path) as start:
        served = start(*words[3:])
        printed = {DOOR: re.sub(r":\d+/", ":5673/", served.doors[DOOR]), "temporary": served.temporary}
        assert json.loads(line) == printed
        with EventHubProducerClient.from_connection_string(served.doors[DOOR], eventhub_name="orders") as client:
            assert client.get_partition_ids() == ["0", "1", "2", "3"]


def test_the_program() -> None:
    (program,) = blocks(PAGE, "python")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(\d) 0 b'customer-7' first\n\1 1 b'customer-7' second\n", done.stdout)


def test_the_settings(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "toml")
    (tmp_path / "log.toml").write_text(block)
    read = read_configuration(tmp_path / "log.toml")
    assert read.doors[DOOR].groups == {"billing", "audit"}
    assert read.doors[DOOR].users == {"RootManageSharedAccessKey": "SAS_KEY_VALUE"}
    (stream,) = read.streams
    assert (stream.name, stream.partitions) == ("orders", 4)
