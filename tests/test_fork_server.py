"""Processes of PySpark that are forked from one server: each is what it would be by itself, and they end together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_streams import fork_server
from spark_streams.fork_server import Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server is for Linux")

GUARD_S = 120.0
WORKER = "pyspark.sql.worker.{}"

# What stands for Spark's daemon: it says what it is, and does as it is told.
DAEMON = """
import json, os, sys
sys.stdout.write(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv[1:], "folder": os.getcwd(), "first": sys.path[0],
    "secret": os.environ.get("PYTHON_WORKER_FACTORY_SECRET"), "threads": os.environ.get("OMP_NUM_THREADS"),
    "mine": os.environ.get("MINE"), "name": __name__, "group": os.getpgid(0) == os.getpid(), "random": PRELOADED.number,
}) + "\\n")
sys.stdout.flush()

def drawn():
    return sys.modules["numpy.random"].bytes(8).hex() if "numpy.random" in sys.modules else None

for line in sys.stdin:
    if line.startswith("draw"):
        print(json.dumps(drawn()), flush=True)
        continue
    if line.startswith("fork"):
        read, write = os.pipe()
        if not os.fork():
            # As Spark's daemon: what a worker needs is imported after the fork.
            import pyspark.worker as anew, spark_streams.position as ours
            modules = [each for each in sys.modules if "spark_streams." in each]
            said = anew.number, getattr(ours, "UPGRADED", False), len(modules)
            if not os.fork():
                same = sys.modules["spark_streams.position"] is ours
                os.write(write, json.dumps([*said, same, drawn()]).encode())
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
        print(os.read(read, 1000).decode(), flush=True)
        continue
    if line.startswith("exit"):
        print("leaving", file=sys.stderr)
        sys.exit(int(line.split()[1]))
    if line.startswith("raise"):
        raise ValueError("as told")
    print(json.dumps(line.strip()), flush=True)
"""
PRELOADED = """
import os
number = os.urandom(8).hex()
"""
# What stands for the JVM: it starts processes as it is told, and ends when its standard input does.
PARENT = """
import json, os, subprocess, sys
for line in sys.stdin:
    what = json.loads(line)
    done = subprocess.Popen(what["command"], env=what["env"], cwd=what["cwd"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    sys.stdout.write(done.stdout.readline())
    sys.stdout.flush()
os._exit(0)
"""
COMMAND = "import sys; from spark_streams.worker_python import main; sys.argv[0] = 'spark-streams-python'; main()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package ``pyspark`` that has a daemon of ours, and a worker module whose number differs in each import."""
    package = tmp_path / "pyspark"
    (package / "sql" / "worker").mkdir(parents=True)
    for each in (package, package / "sql", package / "sql" / "worker"):
        (each / "__init__.py").write_text("")
    (package / "worker.py").write_text(PRELOADED)
    (package / "daemon.py").write_text("import pyspark.worker as PRELOADED\n" + DAEMON)
    return tmp_path


class Started:
    """A process that was started as Spark starts its daemons, by this one."""

    def __init__(self, folder: Path, module: str = "create_data_source", cwd: Path | None = None, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "-m", "pyspark.daemon", WORKER.format(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd or folder,
            env={**os.environ, "PYTHONPATH": str(folder), **env},
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.what: dict[str, Any] = json.loads(said) if said else {}
        self.running = psutil.Process(self.what["pid"])

    @property
    def stands_in(self) -> bool:
        return self.process.pid != self.what["pid"]

    def tell(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self) -> tuple[int, str]:
        """Return the status and what was said as an error."""
        _, said = self.process.communicate(timeout=GUARD_S)
        return self.process.returncode, said

    def wait(self) -> None:
        """Wait for the end of the process that does the work."""
        self.running.wait(GUARD_S)


@pytest.fixture
def start(folder: Path) -> Iterator[Any]:
    """Starts processes; at the end there is none left, nor a server."""
    started: list[Started] = []

    def one(module: str = "create_data_source", **more: Any) -> Started:
        started.append(Started(folder, module, **more))
        return started[-1]

    yield one
    servers = {each.what["parent"] for each in started if each.stands_in}
    for each in started:
        if each.process.poll() is None:
            each.end()
    for server in servers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def test_processes_of_one_parent_share_what_is_imported(start: Any) -> None:
    first, second = start("create_data_source"), start("plan_data_source_read")
    assert first.stands_in and second.stands_in
    assert first.what["parent"] == second.what["parent"] != os.getpid()
    assert first.what["random"] == second.what["random"], "imported once"
    assert first.what["pid"] != second.what["pid"]


def test_each_is_what_it_would_be_by_itself(start: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    start(PYTHON_WORKER_FACTORY_SECRET="first", OMP_NUM_THREADS="1")
    one = start("lookup_data_sources", PYTHON_WORKER_FACTORY_SECRET="second", cwd=tmp_path / "elsewhere")
    assert one.stands_in
    assert one.what | {"pid": 0, "parent": 0, "random": 0} == {
        "pid": 0,
        "parent": 0,
        "random": 0,
        "argv": ["pyspark.sql.worker.lookup_data_sources"],
        "folder": str(tmp_path / "elsewhere"),
        "first": str(tmp_path / "elsewhere"),
        "secret": "second",
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "mine": None,
        "name": "__main__",
        "group": True,
    }
    assert one.tell("hello") == '"hello"\n'
    assert one.end() == (0, "")


def test_its_status_and_its_errors_are_the_commands(start: Any) -> None:
    leaves, fails = start(), start()
    leaves.tell("exit 7")
    assert leaves.end() == (7, "leaving\n")
    fails.tell("raise")
    status, said = fails.end()
    assert status == 1
    assert said.endswith("ValueError: as told\n")


def test_it_ends_when_its_input_does(start: Any) -> None:
    one = start()
    assert one.end() == (0, "")
    assert not one.running.is_running()


def test_a_signal_is_passed_on(start: Any) -> None:
    one = start()
    # It lets go of its output once it passes on what it gets.
    deadline = time.monotonic() + GUARD_S
    while os.readlink(f"/proc/{one.process.pid}/fd/1") != os.devnull and time.monotonic() < deadline:
        time.sleep(0.01)
    one.process.terminate()
    assert one.end()[0] == 128 + signal.SIGTERM
    assert not one.running.is_running()


def test_one_that_is_killed_ends_the_other(start: Any) -> None:
    stand_in, forked = start(), start()
    stand_in.process.kill()
    stand_in.wait()
    forked.running.kill()
    assert forked.end()[0] == 128 + signal.SIGKILL
    again = start()
    assert again.what["parent"] == forked.what["parent"], "the server goes on"


def test_a_server_that_is_killed_takes_its_processes_along_and_another_begins(start: Any) -> None:
    one = start()
    assert one.stands_in, "else the parent is this process"
    os.kill(one.what["parent"], signal.SIGKILL)
    assert one.end()[0] == 1
    one.wait()
    again = start()
    assert again.stands_in
    assert again.what["parent"] != one.what["parent"]


def test_files_that_are_loaded_and_change_get_another_server_and_the_first_ends_with_its_last(
    start: Any, folder: Path
) -> None:
    one, two = start(), start()
    (folder / "pyspark" / "worker.py").write_text(PRELOADED + "\nupgraded = True\n")
    again, more = start(), start("plan_data_source_read")
    assert one.what["parent"] == two.what["parent"]
    assert again.stands_in and more.stands_in
    assert again.what["parent"] == more.what["parent"] != one.what["parent"]
    assert again.what["random"] == more.what["random"] != one.what["random"]
    assert one.tell("goes on") == '"goes on"\n'
    server = psutil.Process(one.what["parent"])
    assert one.end() == (0, "")
    assert server.is_running(), "it tells the other one's stand-in of its end"
    assert two.end() == (0, "")
    psutil.wait_procs([server], GUARD_S)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_a_server_without_processes_makes_room_for_the_next_when_files_change(start: Any, folder: Path) -> None:
    other = start(MINE="x")
    numbers = []
    for text in ("a = 1\n", "a = 2\n", None):
        one = start()
        assert one.stands_in and one.what["parent"] != other.what["parent"]
        numbers.append(one.what["random"])
        one.end()
        module = folder / "pyspark" / "sql" / "worker" / "__init__.py"
        module.write_text(text) if text else module.unlink()
    last = start()
    assert last.stands_in, "deleted, as an upgrade does first"
    assert len({*numbers, last.what["random"]}) == 4, "imported anew after each"


def test_files_that_change_while_they_are_loaded_are_not_shared(start: Any, folder: Path) -> None:
    # As an upgrade that is under way: of two modules that fit each other one was the old one.
    (folder / "pyspark" / "worker.py").write_text(PRELOADED + "os.utime(__file__)\n")
    assert not start().stands_in


def test_a_worker_of_a_daemon_that_was_forked_before_files_changed_imports_them_anew(start: Any, folder: Path) -> None:
    ours = folder / "spark_streams"
    shutil.copytree(Path(fork_server.__file__).parent, ours, ignore=shutil.ignore_patterns("__pycache__"))
    daemon = start()
    number, upgraded, modules, same, _ = json.loads(daemon.tell("fork"))
    assert (number, upgraded, same) == (daemon.what["random"], False, True)
    assert modules > 20
    with (ours / "position.py").open("a") as file:
        file.write("\nUPGRADED = True\n")
    number, upgraded, left, same, _ = json.loads(daemon.tell("fork"))
    assert (upgraded, same) == (True, True), "in what the worker forks the module is the worker's"
    assert number != daemon.what["random"]
    assert left < modules


def test_an_asker_that_stops_midway_keeps_nobody_waiting(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = start()
    monkeypatch.setattr(os, "getppid", os.getpid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stopped:
        stopped.connect(fork_server._address(0))
        assert start().what["parent"] == one.what["parent"]
        with pytest.raises(BlockingIOError):
            stopped.recv(1, socket.MSG_DONTWAIT)


def test_a_parent_has_two_servers_at_most(start: Any, folder: Path) -> None:
    one, two, three = start(), start(MINE="x"), start(MINE="y")
    assert one.stands_in and two.stands_in and not three.stands_in
    (folder / "pyspark" / "worker.py").write_text(PRELOADED + "\nupgraded = True\n")
    assert not start().stands_in, "both have processes of theirs to wait for"
    server = psutil.Process(one.what["parent"])
    assert one.end() == (0, "")
    psutil.wait_procs([server], GUARD_S)
    assert start().stands_in


def test_an_environment_that_is_no_message_runs_by_itself(start: Any) -> None:
    large = start(**{name: "x" * 100_000 for name in "ABC"})
    assert not large.stands_in
    assert not psutil.Process(large.what["pid"]).children(), "nor does it begin a server"


@pytest.mark.parametrize("other", [{"MINE": "x"}, {"SPARK_TESTING": "1"}])
def test_another_environment_has_another_server(start: Any, other: dict[str, str]) -> None:
    one, two = start(), start(**other)
    assert one.stands_in and two.stands_in
    assert one.what["parent"] != two.what["parent"]
    assert two.what["mine"] == other.get("MINE")
    ended = [each for each in psutil.Process(two.process.pid).children() if each.pid != two.what["parent"]]
    assert not psutil.wait_procs(ended, GUARD_S)[1], "the one that found the first server's address taken"


def test_a_module_path_that_is_said_twice_is_the_same(start: Any, folder: Path) -> None:
    one, two = start(), start(PYTHONPATH=f"{folder}{os.pathsep}{folder}")
    assert one.what["parent"] == two.what["parent"]


def test_tasks_of_several_cores_run_by_themselves(start: Any) -> None:
    start()
    assert not start(OMP_NUM_THREADS="4").stands_in


def test_tasks_join_a_server_and_begin_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(["pyspark.daemon", "pyspark.worker"], [str(folder)], {"MINE": "tasks"}, str(folder))
    asked: list[bytes] = []

    def connect(address: bytes) -> None:
        asked.append(address)

    monkeypatch.setattr(fork_server, "_connect", connect)
    assert fork_server.forked(program) is program
    assert len(asked) == 2, "all that there may be"


@pytest.mark.parametrize("arguments", [["pyspark.daemon"], ["pyspark.daemon", "their.module"], ["pyspark.shell"]])
def test_what_is_not_ours_runs_by_itself(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: bytes) -> None:
        raise AssertionError(address)

    monkeypatch.setattr(fork_server, "_connect", connect)
    program = Program(arguments, [], {}, "/")
    assert fork_server.forked(program) is program


def test_a_server_ends_with_the_parent(folder: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None and parent.stdout is not None
    told = {
        "command": [sys.executable, "-c", COMMAND, "-m", "pyspark.daemon", WORKER.format("create_data_source")],
        "env": {**os.environ, "PYTHONPATH": str(folder)},
        "cwd": str(folder),
    }
    parent.stdin.write(json.dumps(told) + "\n")
    parent.stdin.flush()
    what = json.loads(parent.stdout.readline())
    server, forked = psutil.Process(what["parent"]), psutil.Process(what["pid"])
    assert server.pid != parent.pid
    parent.stdin.close()
    parent.wait(GUARD_S)
    psutil.wait_procs([server, forked], GUARD_S)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert not forked.is_running() or forked.status() == psutil.STATUS_ZOMBIE


def test_a_server_that_answers_nothing_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(["pyspark.daemon", WORKER.format("x")], [str(folder)], {"MINE": "nothing"}, str(folder))
    listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    with listeners[0], listeners[1]:
        for number, listener in enumerate(listeners):
            listener.bind(fork_server._address(number))
            listener.listen()
        asker = subprocess.Popen(
            [sys.executable, "-c", f"import os, json; os.getppid = lambda: {os.getppid()}\n"
             "from spark_streams.fork_server import Program, forked\n"
             f"program = Program(*{tuple(program)!r}); print(forked(program) is program)"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        for listener in (*listeners, *listeners):  # before and after it tries to begin one
            listener.accept()[0].close()
        assert asker.communicate(timeout=GUARD_S)[0] == "True\n"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can be another user")
def test_another_user_gets_no_answer_and_is_asked_nothing() -> None:
    address = fork_server._address(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        # Hers answers on our address, and asks us.
        hers = os.fork()
        if hers == 0:
            os.setuid(65534)
            asked = fork_server._connect(address)
            os._exit(0 if asked is None else 1)
        accepted, _ = listener.accept()
        with accepted:
            assert not fork_server._is_trusted(accepted)
        assert os.waitstatus_to_exitcode(os.waitpid(hers, 0)[1]) == 0


def test_what_is_preloaded_bears_a_fork() -> None:
    # numpy.random would give all processes the same numbers; pandas and a protocol's modules are not for all of them.
    program = (
        "import sys, json, os; from spark_streams import preloaded; preloaded.preload()\n"
        "print(json.dumps([sorted(sys.modules), os.listdir('/proc/self/task')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules, threads = json.loads(done.stdout)
    assert "spark_streams.spark.source.reader" in modules
    assert not [each for each in modules if re.match(r"spark_streams\.(client|wire)\.(amqp\.client|rabbitmq)", each)]
    assert {"pyarrow", "numpy", "pyspark.worker"} <= set(modules)
    assert not {"pandas", "numpy.random", "proton", "requests", "starlette", "google.protobuf"} & set(modules)
    assert [each for each in modules if each.startswith("pyspark.sql.worker.")] == [
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.sql.worker.utils",
    ]
    assert len(threads) <= 2, "the one of PyArrow's allocator beside Python's"


def test_random_numbers_differ_in_forks_that_numpy_1_would_share_them_with(start: Any, folder: Path) -> None:
    (folder / "pyspark" / "worker.py").write_text(PRELOADED + "import numpy.random\nnumpy.random.seed(1)\n")
    drawn = []
    for daemon in (start(), start()):
        drawn += [json.loads(daemon.tell("draw")), *(json.loads(daemon.tell("fork"))[-1] for _ in range(2))]
    assert len(set(drawn)) == 6
