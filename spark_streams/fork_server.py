"""Forks Spark's Python processes from one that has already imported what all of them need.

A query makes Spark start a Python process for each kind of step: looking up formats, making the source, planning,
tasks, committing. Each imports PySpark and PyArrow, which takes most of the time of a query's start. Here the first of
them forks a *server* that imports these once. Every process that Spark starts then hands its arguments, module path,
environment, folder and standard streams to the server. The server forks the process that does the work, and Spark's
process *stands in* for the forked one: it passes signals on to it, and ends when it ends, with the same status; the
forked process is killed when its stand-in is killed. Without a server, or when the server refuses, Spark's process does
the work itself, as without this module.

A server serves the children of one process (the JVM) that have the same Python, module path and environment. Once the
JVM has ended, or a file that the server has loaded has changed, it forks no more, and ends with the last process that
it has forked; after a change, the next process forks a new server. A JVM has at most ``_SERVERS``. A server answers
only the same user of the same machine.

One thing differs for the code in a forked process: PySpark, NumPy, PyArrow and the common modules of our formats are
loaded before it begins, with ``OMP_NUM_THREADS=1``, which is what Spark sets for tasks of one core. ``ps`` shows the
server's command line. docs/spark-upstream.md says how much time this saves, and ADR 45 why it is safe to fork these
libraries. Linux only.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from spark_streams.preloaded import THREADS, has_changed, preload, renew, reseed

_DAEMON: Final = "pyspark.daemon"
_TASKS: Final = ("pyspark.worker",)
_PLANNING: Final = "pyspark.sql.worker."
_STREAMING_SOURCE: Final = ("pyspark.sql.streaming.python_streaming_source_runner",)
"""The module that plans a stream's micro-batches; it runs without a daemon."""
_EACH_PROCESS: Final = (
    *("SPARK_", "PYTHON_DAEMON_", "PYTHON_FAULTHANDLER_", "PYTHON_UDF_", "PYTHON_UNIX_", "PYTHON_WORKER_"),
    *(THREADS, "PYTHONPATH"),
)
"""Prefixes of variables that Spark sets differently for each process, and that no preloaded module reads at import.

``THREADS`` is checked separately, and ``PYTHONPATH`` is compared as ``sys.path``.
"""
_READ_AT_IMPORT: Final = ("SPARK_TESTING",)
_NUMBER: Final = struct.Struct("=i")
_CREDENTIALS: Final = struct.Struct("=3i")
_SERVERS: Final = 2
"""The most servers of one JVM, of some 100 MB each; those that only wait for the end of their processes count, too."""
_REQUEST_BYTES: Final = 1 << 17
"""The most bytes of a request, as Linux takes some 200 kB. A process whose request is longer does its work itself."""
_WHOLE: Final = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
"""Sockets whose messages come whole or not at all: nobody waits for the rest of a request."""


class Program(NamedTuple):
    """A process to start: the arguments of ``python -m``, and their surroundings.

    Attributes:
        arguments: the module and its arguments.
        path: ``sys.path`` without the folder in front.
        environment: ``os.environ``.
        folder: the current folder.
    """

    arguments: list[str]
    path: list[str]
    environment: dict[str, str]
    folder: str


def forked(program: Program) -> Program:
    """Return in the process that is to run a program: the one that a server has forked, or this one without a server.

    Where a server has forked a process, this one stands in for it and does not return.

    Args:
        program: the program that this process was started with.

    Raises:
        SystemExit: with the status of the forked process, when that has ended.
    """
    # A Python that was built for old kernels has no pidfd_open.
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not _is_served(program):
        return program
    ways: list[tuple[Callable[[bytes], socket.socket | _Server | None], int]]
    ways = [(_connect, number) for number in range(_SERVERS)]
    if program.arguments[1:2] != list(_TASKS):
        # An executor has only one daemon, that of its tasks, so a server would save nothing there. After _begin,
        # _connect reaches the server of another process that was faster.
        ways += [(way, number) for number in range(_SERVERS) for way in (_begin, _connect)]
    key = _key(program)
    request = marshal.dumps((key, *program))
    if len(request) > _REQUEST_BYTES:
        return program
    for way, number in ways:
        try:
            address = _address(number)
            reached = way(address)
        except OSError:  # no pidfd, no socket, no memory for another process: none was forked
            continue
        if isinstance(reached, _Server):
            return _serve(reached, address, key)
        if reached is not None:
            with reached:
                pid = _ask(reached, request)
                if pid is not None:
                    raise SystemExit(_stand_in(reached, pid))
    return program


def _is_served(program: Program) -> bool:
    """Whether this program needs the preloaded modules, and would load them in the same way."""
    if program.environment.get(THREADS, "1") != "1":
        return False
    module, *rest = program.arguments
    if module == _DAEMON:
        return bool(rest) and (rest[0] in _TASKS or rest[0].startswith(_PLANNING))
    return module in _STREAMING_SOURCE


def _address(number: int) -> bytes:
    """Return the abstract address of one of the servers of this process's parent."""
    parent = os.getppid()
    with open(f"/proc/{parent}/stat", "rb") as stat:
        started = stat.read().rpartition(b")")[2].split()[19]  # proc(5): field 22, the start time, as pids are reused
    return b"\0spark-streams-python/%d/%s/%d" % (parent, started, number)


def _key(program: Program) -> bytes:
    """Return a key that is equal for all programs that would import the same modules in the same way."""
    import hashlib

    shared = sorted(
        (name, value)
        for name, value in program.environment.items()
        if name in _READ_AT_IMPORT or not name.startswith(_EACH_PROCESS)
    )
    what = marshal.dumps((sys.executable, sys.version, list(dict.fromkeys(program.path)), shared))
    return hashlib.sha256(what).digest()


def _is_trusted(connection: socket.socket) -> bool:
    """Whether the process at the other end is the same user's, and on this machine, or in the same container."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(pid) and user == os.getuid()


def _connect(address: bytes) -> socket.socket | None:
    connection = socket.socket(*_WHOLE)
    with contextlib.suppress(ConnectionRefusedError):
        connection.connect(address)
        if _is_trusted(connection):
            return connection
    connection.close()
    return None


def _begin(_address: bytes) -> socket.socket | _Server:
    """Fork a server, and return the connection to it; in the forked process, return the server's state."""
    parent = os.pidfd_open(os.getppid())
    asks, asked = socket.socketpair(*_WHOLE)
    if os.fork() == 0:
        asks.close()
        return _Server(parent, asked)
    os.close(parent)
    asked.close()
    return asks


def _ask(connection: socket.socket, request: bytes) -> int | None:
    """Ask the server for a process and return its id; None, without a process, where the server refused or ended."""
    try:
        socket.send_fds(connection, [request], [0, 1, 2])
        return _number(connection)
    except (struct.error, OSError):
        return None


def _number(connection: socket.socket) -> int:
    """Return the next number that the server sends.

    Raises:
        struct.error: the server has ended, or sends no more.
    """
    return int(_NUMBER.unpack(connection.recv(_NUMBER.size))[0])


def _stand_in(connection: socket.socket, pid: int) -> int:
    """Wait for the end of a forked process, pass this process's signals on to it, and return its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: _send(pid, got))
    # Servers that this process forked too late have ended, or will end at once; none may stay as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    _leave(0, 1)
    try:
        status = _number(connection)
    except (struct.error, ConnectionError):  # the server was killed, so nobody would report the process's end
        _send(pid, signal.SIGKILL)
        print(f"spark-streams-python: the server that forked process {pid} has ended; so must that", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


def _leave(*streams: int) -> None:
    """Redirect standard streams to nowhere: a copy of a pipe's end would hide that the other process closed its own."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class _Server:
    """The state of a server.

    Attributes:
        parent: a descriptor of the process whose children it serves.
        asking: connections whose request has not come yet.
        forked: each forked process's id to the connection of its stand-in.
        ending: whether the server forks no more, and ends with the last forked process.
    """

    def __init__(self, parent: int, asked: socket.socket) -> None:
        self.listener = socket.socket(*_WHOLE)
        self.parent = parent
        self.asking = {asked}
        self.forked: dict[int, socket.socket] = {}
        self.ending = False
        self.ended, self.wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Close, in a process that the server has forked, all that belongs to the server alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self.listener, *self.asking, *self.forked.values()):
            connection.close()
        for descriptor in (self.parent, self.ended, self.wakes):
            os.close(descriptor)

    def end(self) -> None:
        """Fork no more; keep the address while there are forked processes, as the server counts (``_SERVERS``)."""
        self.ending = True
        if not self.forked:
            self.listener.close()

    def reap(self) -> None:
        """Report the processes that have ended to their stand-ins."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.ended, 4096)
        while self.forked:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self.forked.pop(pid)
            with contextlib.suppress(OSError):  # a stand-in that was killed does not listen
                connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
            connection.close()

    def events(self) -> list[object]:
        """Wait, and return what is ready: the listener, a request, the parent's or a child's end, a killed stand-in."""
        import selectors

        selector = selectors.PollSelector()
        parent = () if self.ending else (self.parent,)
        for each in (self.ended, self.listener, *parent, *self.asking, *self.forked.values()):
            selector.register(each, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select()]


def _serve(server: _Server, address: bytes, key: bytes) -> Program:
    """Serve requests, and end this process after the last; return only in each forked process, with its program."""
    try:
        program = _next_program(server, address, key)
    except BaseException:  # after any error, this process must not go on as the one that it was forked from
        import traceback

        traceback.print_exc()
        os._exit(1)
    if program is None:
        os._exit(0)
    return program


def _next_program(server: _Server, address: bytes, key: bytes) -> Program | None:
    """Return the program in each forked process; None in the server, when all have ended."""
    os.setpgid(0, 0)  # a Ctrl-C in the terminal is for the driver
    try:
        server.listener.bind(address)
        server.listener.listen(128)
    except OSError:  # another process was faster
        return None
    _leave(0, 1)
    loaded = preload()
    if not loaded:
        return None
    _leave(2)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(server.wakes, warn_on_full_buffer=False)
    while server.forked or not server.ending:
        for event in server.events():
            if event == server.parent:
                server.end()
            elif event == server.ended:
                server.reap()
            elif event is server.listener:
                connection, _ = server.listener.accept()
                if _is_trusted(connection):
                    server.asking.add(connection)
                else:
                    connection.close()
            elif isinstance(event, socket.socket) and event in server.asking:
                if (program := _answer(server, event, key, loaded)) is not None:
                    return program
            else:
                for pid in [pid for pid, connection in server.forked.items() if connection is event]:
                    os.kill(pid, signal.SIGKILL)
    return None


def _answer(server: _Server, connection: socket.socket, key: bytes, loaded: dict[str, int]) -> Program | None:
    """Take a request and fork; return the program in the forked process, None in the server."""
    server.asking.discard(connection)
    streams: list[int] = []
    try:
        content, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if server.ending or has_changed(loaded):
            server.end()
            raise EOFError
        # No request of another version gets here: its files are not those that were loaded.
        asked, *what = marshal.loads(content)
        if asked != key:
            raise EOFError
        program = Program(*what)
        pid = os.fork()
        if pid == 0:
            try:
                connection.close()
                server.close()
                _become(program, streams)
            except OSError as error:  # not one of the server's own errors, which are handled below
                raise RuntimeError(f"cannot run {program.arguments} in {program.folder}") from error
            reseed()
            if program.arguments[0] == _DAEMON:
                os.register_at_fork(after_in_child=partial(renew, loaded))
            return program
        server.forked[pid] = connection
        connection.sendall(_NUMBER.pack(pid))
    except (EOFError, OSError):  # refused, the client is gone, or there is no room: the client does its work itself
        if connection not in server.forked.values():
            connection.close()
    finally:
        for descriptor in streams:
            os.close(descriptor)
    return None


def _become(program: Program, streams: list[int]) -> None:
    """Give this process the environment, folder, arguments and module path of the program."""
    os.setpgid(0, 0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
