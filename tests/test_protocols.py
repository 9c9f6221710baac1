"""A protocol is one entry: what entries name is there, a toy one needs nothing else, and the page counts the rest."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import spark_streams
from spark_streams.cli.credentials import PeerOptions
from spark_streams.cli.log.config_file import read_configuration
from spark_streams.cli.peers.peer import Peer, read_peer
from spark_streams.endpoint import Tls, parse_url, with_tls_scheme
from spark_streams.errors import OptionError
from spark_streams.log import ReferenceLog
from spark_streams.protocols import PROTOCOLS, load, protocol_of
from spark_streams.server import AmqpConfig, LogServer, ServerThread
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.exposure import DoorExposed
from spark_streams.testing import LogStream, eventually
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.cli.peers.opened import run
from tests.test_layering import ROOT, imported, shipped
from tests.toy_protocol import TOY, ToyConfig, ToyDoor


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry, and nothing else."""
    monkeypatch.setitem(PROTOCOLS, "toy", TOY)


@pytest.fixture
def served(toy: None, tmp_path: Path) -> Iterator[ServerThread]:
    """A log with three events behind the toy door and the AMQP door."""
    with ReferenceLog(tmp_path / "log") as log:
        for name in ("orders", "copies"):
            log.create_stream(name)
        values = pa.array([b"a", b"b", b"c"])
        log.stream("orders").partitions["0"].append(encode_columns({"value": values}))
        with ServerThread(log, AmqpConfig(port=0), doors=[ToyDoor(ToyConfig(port=0))]) as server:
            yield server


@pytest.mark.parametrize("name", list(PROTOCOLS))
def test_what_an_entry_names_is_there_and_in_its_layer(name: str) -> None:
    entry = PROTOCOLS[name]
    assert entry.name == name
    assert issubclass(load(entry.peer), Peer) and layer_of_class(entry.peer) == "cli"
    assert load(entry.source).name() == entry.format and layer_of_class(entry.source) == "sources"
    config = load(entry.config)
    assert issubclass(config, DoorConfig) and layer_of_class(entry.config) == "server"
    door = load(entry.door)(config())
    assert (door.name, door.config) == (name, config()) and layer_of_class(entry.door) == "server"
    assert all(protocol_of(scheme) is entry for scheme in entry.schemes)


def layer_of_class(name: str | None) -> str:
    return str(name).split(".")[1]


def test_schemes_and_ports_are_used_once() -> None:
    schemes = [scheme for entry in PROTOCOLS.values() for scheme in entry.ports]
    ports = [port for entry in PROTOCOLS.values() for port in entry.ports.values()]
    assert len(set(schemes)) == len(schemes) and len(set(ports)) == len(ports)


def test_urls_of_a_protocol_that_was_added(toy: None) -> None:
    endpoint = parse_url("toy://ann:secret@a", schemes=TOY.schemes)
    assert (endpoint.port, endpoint.username, endpoint.tls) == (7001, "ann", None)
    assert parse_url(with_tls_scheme("toy://a"), schemes=TOY.schemes).port == 7002
    assert parse_url("toys://a", schemes=TOY.schemes).tls == Tls()
    assert str(read_peer("toy://a#orders", PeerOptions())) == "toy://a:7001#orders"
    with pytest.raises(OptionError, match="has a path, query or fragment"):
        parse_url("toy://a/b", schemes=TOY.schemes)


def test_a_scheme_without_an_entry_has_no_default_port() -> None:
    assert parse_url("lines://a:1", schemes={"lines"}).port == 1
    with pytest.raises(OptionError, match="names no port"):
        parse_url("lines://a", schemes={"lines"})


def test_the_server_opens_and_closes_its_door(served: ServerThread) -> None:
    assert set(served.urls) == {"amqp", "toy"}
    url = served.urls["toy"]
    assert re.fullmatch(r"toy://127\.0\.0\.1:\d+", url)
    assert served.url("toy") == url.replace("//", "//guest:guest@")
    endpoint = parse_url(url, schemes=TOY.schemes)
    door = served.server.door("toy")
    with socket.create_connection((endpoint.host, endpoint.port)) as idle:
        eventually(lambda: served.call(lambda: len(door.connections)) == 1, "a connection")
        served.stop()
        assert idle.recv(1) == b""
    assert served.urls == {} and not door.connections
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((endpoint.host, endpoint.port))


def test_its_door_fails_closed_as_all_do(toy: None, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        with pytest.raises(DoorExposed, match=r"the door toy would listen on 0\.0\.0\.0"):
            ServerThread(log, doors=[ToyDoor(ToyConfig(host="0.0.0.0", port=0))]).start()
        with pytest.raises(ValueError, match="max_events is 0, expected at least 1"):
            ToyConfig(max_events=0)
        with pytest.raises(ValueError, match="2 doors have the name 'toy'"):
            LogServer(log, ToyConfig(), doors=[ToyDoor(ToyConfig())])
        with pytest.raises(
            TypeError, match="there is no argument 'ampq': expected one of amqp, rabbit, feed, event_hubs, web, doors"
        ):
            LogServer(log, ampq=AmqpConfig())  # type: ignore[call-arg]


def test_the_commands_read_it(served: ServerThread) -> None:
    url = served.urls["toy"]
    shown_by_tail = run("tail", f"{url}#orders", "--from", "earliest", "--no-follow", "--output", "value")
    assert (shown_by_tail.exit_code, shown_by_tail.stdout, shown_by_tail.stderr) == (0, "a\nb\nc\n", "")
    shown = [json.loads(line) for line in run("inspect", url, "--json").output.splitlines()]
    assert [each["stream"] for each in shown] == [None, "copies", "orders"]
    assert shown[2]["partitions"] == [{"partition": "0", "events": 3}]
    copied = run("copy", f"{url}#orders", f"{served.amqp_url}#copies")
    assert copied.exit_code == 0 and copied.stdout.startswith("3 events copied from toy://")
    refused = run("copy", f"{served.amqp_url}#orders", f"{url}#copies")
    assert (refused.exit_code, "the toy protocol writes nothing" in refused.stderr) == (1, True)


def test_log_serve_has_an_option_and_a_table_for_it(toy: None, tmp_path: Path) -> None:
    file = tmp_path / "log.toml"
    file.write_text("[toy]\nmax_events = 0\n")
    with pytest.raises(OptionError, match=r"\[toy\] max_events is 0"):
        read_configuration(file)
    file.write_text("[toy]\nmax_events = 2\nport = 1\n")
    assert read_configuration(file).doors["toy"] == ToyConfig(max_events=2, port=1)
    command = [sys.executable, "-m", "tests.toy_protocol", "log", "serve", "--config", str(file)]
    words = ["--toy", "0", "--stream", "orders", "--until-stdin-closes"]
    with subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdin is not None
        urls = json.loads(process.stdout.readline())
        shown = run("inspect", urls["toy"], "--json").output.splitlines()
        process.stdin.close()
        assert process.wait(120) == 0
    assert set(urls) == {"toy", "temporary"} and json.loads(shown[1])["stream"] == "orders"


def test_what_else_goes_over_the_entries(toy: None) -> None:
    process: Any = SimpleNamespace(urls={"toy": "toy://a:1"})
    assert LogStream(process, "orders", 1).options("toy-lines") == {"url": "toy://guest:guest@a:1", "stream": "orders"}
    registered: list[Any] = []
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=registered.append))
    spark_streams.register(spark)
    assert registered == [load(entry.source) for entry in PROTOCOLS.values()] and len(registered) == 4


ROOMS = re.compile(r"amqp|rabbitmq|feed|event_hubs")
"""What the paths of a protocol's own files have in them."""
ROOM = re.compile(r"\.(amqp|rabbitmq|feed|event_hubs)(_events|_stream|api)?(\.|$)")
"""The same of what is imported."""
NAMES = {name for entry in PROTOCOLS.values() for name in (entry.name, entry.format, *entry.schemes)}
OLDER = {
    "spark_streams/cli/credentials.py": "http and https are written in one url",
    "spark_streams/cli/demo.py": "the demonstration is of one format",
    "spark_streams/client/__init__.py": "public names",
    "spark_streams/client/proxy.py": "http is how a proxy is asked, whatever goes through it",
    "spark_streams/client/what_answers.py": "what is recognised at a wrong port, without which nothing is said of one",
    "spark_streams/client/tcp.py": "shared code that lies in a room",
    "spark_streams/endpoint.py": "public names",
    "spark_streams/options/__init__.py": "public names",
    "spark_streams/server/__init__.py": "public names",
    "spark_streams/server/appender.py": "shared code that lies in a room",
    "spark_streams/server/doors.py": "public arguments and urls",
    "spark_streams/server/web/event_parts.py": "shared code that lies in a room",
    "spark_streams/server/web/pushed_filters.py": "the page shows what these three push; it may show another one's",
    "spark_streams/spark/progress/opentelemetry.py": "OpenTelemetry has a name of its own for one of the systems",
    "spark_streams/testing/notebook.py": "the notebooks are of these three",
    "spark_streams/testing/stream.py": "it makes and reads streams through two of the doors",
}
"""Files that name a protocol of today and need not name the next one, with the reason."""
CODECS = "spark_streams.wire."
"""What is stored is AMQP messages, so everybody may import codecs."""


def names_a_protocol(file: Path) -> bool:
    tree = ast.parse(file.read_text())
    rooms = [name for name in imported(tree) if ROOM.search(name) and not name.startswith(CODECS)]
    return bool(rooms) or any(isinstance(node, ast.Constant) and node.value in NAMES for node in ast.walk(tree))


def test_a_new_protocol_touches_the_files_that_the_page_counts() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    section = page.partition("## The existing files that a protocol touches")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    numbers = {"four": 4, "five": 5, "six": 6}
    (said,) = (numbers[word] for word in re.findall(r"\b(four|five|six) existing files\b", section))
    assert len(listed) == len(set(listed)) == said <= 6
    assert all((ROOT / file).is_file() for file in listed)
    named = {file.relative_to(ROOT).as_posix() for file in shipped()}
    named = {name for name in named if not ROOMS.search(name) and names_a_protocol(ROOT / name)}
    assert named - OLDER.keys() - set(listed) == set()
    assert {"spark_streams/protocols.py", "spark_streams/cli/filter.py"} <= named
    for name in listed:
        assert ROOMS.search((ROOT / name).read_text().lower()), f"{name} says nothing of any protocol"


def test_the_check_finds_a_file_that_names_a_protocol(tmp_path: Path) -> None:
    file = tmp_path / "new.py"
    for line in ('DOOR = "feedapi"', "from spark_streams.server.feed.config import FeedConfig"):
        file.write_text(line)
        assert names_a_protocol(file)
    file.write_text("from spark_streams.wire.amqp.columns import decode_columns")
    assert not names_a_protocol(file)
