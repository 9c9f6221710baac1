"""A worker that Spark reuses: what is done to it once, in a process of its own, as it changes the whole process."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_streams.sources.rabbitmq_stream import RabbitStreamDataSource

from spark_streams.spark.reused_worker import acknowledge_at_once
from spark_streams.spark.sink.writer import BatchWriter, StreamWriter

PROGRAM = """
import gc, importlib, json, os, sys, zipfile, zipimport

archive = sys.argv[1]
sys.path.insert(0, archive)
import first
from spark_streams.spark.reused_worker import ease_reuse

reads = []
def counted(path, _read=zipimport._read_directory):
    reads.append(path)
    return _read(path)
zipimport._read_directory = counted

class Cycle:
    def __del__(self):
        collected.append(self.name)
    def __init__(self, name):
        self.name, self.me = name, self

def importable(name):
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name).VALUE
    except ImportError:
        return None

def added(name, value):
    with zipfile.ZipFile(archive, "a") as files:
        files.writestr(name + ".py", f"VALUE = {value}\\n")

said, collected = {}, []
gc.disable()
Cycle("before")
ease_reuse()
said["frozen"] = gc.get_freeze_count()
ease_reuse()
said["frozen again"] = gc.get_freeze_count()
Cycle("after")
gc.collect()
said["collected"] = collected

reads.clear()
for _ in range(3):
    importlib.invalidate_caches()
said["reads of an unchanged archive"] = reads.count(archive)
said["unknown"] = importable("second")
added("second", 2)
said["second"] = importable("second")

# Another archive with the same size and the same time of change.
before = os.stat(archive)
other = archive + ".new"
with zipfile.ZipFile(archive) as old, zipfile.ZipFile(other, "w") as new:
    for name in old.namelist():
        new.writestr(name.replace("second", "sacond"), old.read(name))
os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
said["same size"] = os.stat(other).st_size == before.st_size
os.replace(other, archive)
said["replaced"] = importable("sacond")
os.unlink(archive)
said["without it"] = importable("third")
added("third", 3)
said["there again"] = importable("third")
print(json.dumps(said))
"""


def facts(archive: Path, **environment: str) -> dict[str, Any]:
    """Run the program with an archive that has module ``first``, and return what it found."""
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("first.py", "VALUE = 1\n")
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive)],
        env={**inherited, **environment},
        cwd=archive.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def reused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts(tmp_path_factory.mktemp("reused") / "modules.zip", SPARK_REUSE_WORKER="1")


def test_what_is_loaded_is_no_longer_searched_for_garbage(reused: dict[str, Any]) -> None:
    assert reused["frozen"] > 10_000
    assert reused["frozen again"] == reused["frozen"]


def test_garbage_is_collected_before_and_after(reused: dict[str, Any]) -> None:
    assert reused["collected"] == ["before", "after"]


def test_an_unchanged_archive_is_not_read_again(reused: dict[str, Any]) -> None:
    assert reused["reads of an unchanged archive"] == 0


def test_a_changed_archive_is_read_again(reused: dict[str, Any]) -> None:
    assert (reused["unknown"], reused["second"]) == (None, 2)


def test_an_archive_is_another_one_even_with_the_same_size_and_time(reused: dict[str, Any]) -> None:
    assert reused["same size"]
    assert reused["replaced"] == 2


def test_an_archive_may_go_and_come_back(reused: dict[str, Any]) -> None:
    assert (reused["without it"], reused["there again"]) == (None, 3)


def test_no_other_process_is_changed(tmp_path: Path) -> None:
    found = facts(tmp_path / "modules.zip")
    assert found["frozen"] == 0
    assert found["collected"] == ["before", "after"]


def is_prompt(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def is_late(connection: socket.socket) -> bool:
    """Make the kernel delay acknowledgements, as it does once both sides have spoken."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    return not is_prompt(connection)


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """The worker's end of a connection to the JVM."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        worker, _ = server.accept()
        with worker:
            yield worker


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it does nothing")
class TestAcknowledgements:
    def test_are_sent_at_once(self, connection: socket.socket) -> None:
        assert is_late(connection)
        acknowledge_at_once()
        assert is_prompt(connection)

    def test_nothing_else_is_touched(self, connection: socket.socket, tmp_path: Path) -> None:
        one, other = socket.socketpair()
        with one, other, (tmp_path / "file").open("wb") as file, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            before = sorted(os.listdir("/proc/self/fd"))
            acknowledge_at_once()
            assert sorted(os.listdir("/proc/self/fd")) == before
            one.sendall(b"x")
            assert other.recv(1) == b"x"
            assert file.write(b"x") == 1
            assert datagrams.fileno() >= 0

    def test_readers_and_writers_ask_for_it_in_each_task(self, connection: socket.socket) -> None:
        made = RabbitStreamDataSource({"url": "rabbitmq-stream://localhost", "stream": "s"})
        writers = BatchWriter(made.sink()), StreamWriter(made.sink())
        for each in (made.reader(made.schema()), made.streamReader(made.schema()), *writers):
            pickled = pickle.dumps(each)
            assert is_late(connection)
            pickle.loads(pickled)
            assert is_prompt(connection)
