"""Forks Spark's Python processes from one that has already imported what all of them need.

A query makes Spark start a Python process for each kind of step: looking up formats, making the source, planning,
tasks, committing. Each imports PySpark and PyArrow, which is most of what the start of a query costs. Here the first of
them forks a *server* that imports these once. Each of them then hands its arguments, module path, environment, folder
and standard streams to the server, which forks the process that does the work, and *stands in* for it: it passes
signals on, ends when that one ends, with its status, and that one ends when it is killed. Without a server, or when
one does not answer, the process does the work itself, as ever.

A server serves the children of one process (the JVM), with one Python, one module path and one environment, and ends
with it. Nobody but the same user of the same machine gets an answer.

What differs for the code in such a process: PySpark, NumPy, PyArrow and what our formats share are there before it
begins, loaded with ``OMP_NUM_THREADS=1``, as Spark gives tasks of one core. ``ps`` shows the server's command line.
docs/spark-upstream.md says what it saves, ADR 40 why it is safe to fork these libraries. Linux only.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

PRELOADED: Final = (
    *("pyarrow.compute", "ssl", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read"),
    *("spark_streams.spark.formats", "spark_streams.spark.source.reader", "spark_streams.spark.sink.writer"),
    *("spark_streams.filters.row_columns", "spark_streams.wire.amqp.columns.decode", "spark_streams.client.tcp"),
    "encodings.idna",  # of hosts' names
)
"""What the server imports: nearly all that the other modules that Spark runs import, and what all formats share.

None may start threads that do not bear a fork. The modules that Spark runs are left out themselves, as some code looks
for one of them to learn which step it is in (``spark/pushdown/spark_filters.py`` does).
"""
_DAEMON: Final = "pyspark.daemon"
_TASKS: Final = ("pyspark.worker",)
_PLANNING: Final = "pyspark.sql.worker."
_STREAMING_SOURCE: Final = ("pyspark.sql.streaming.python_streaming_source_runner",)
"""What plans a stream's micro-batches; it runs without a daemon."""
_THREADS: Final = "OMP_NUM_THREADS"
_EACH_PROCESS: Final = (
    *("SPARK_", "PYTHON_DAEMON_", "PYTHON_FAULTHANDLER_", "PYTHON_UDF_", "PYTHON_UNIX_", "PYTHON_WORKER_"),
    *(_THREADS, "PYTHONPATH"),
)
"""Variables that Spark sets otherwise for each process, and that nothing preloaded reads when it is imported.

Those of threads are compared by themselves, and the module path as Python has it.
"""
_READ_AT_IMPORT: Final = ("SPARK_TESTING",)
_SIZE: Final = struct.Struct("=q")
_NUMBER: Final = struct.Struct("=i")
_CREDENTIALS: Final = struct.Struct("=3i")
_REQUEST_S: Final = 60.0
"""Seconds for a request to come whole: it is written at once, so whoever takes longer was stopped midway."""


class Program(NamedTuple):
    """A process to be: what ``python -m`` was told, and where.

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
    """Return in the process that is to run a program: one that a server has forked, or this one where there is none.

    Where a server has forked one, this process stands in for it and does not return.

    Args:
        program: what this process was told to run.

    Raises:
        SystemExit: with the status of the forked process, when that has ended.
    """
    # A Python that was built for old kernels has no pidfd_open.
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not _is_served(program):
        return program
    try:
        address = _address(program)
        connection = _connect(address)
        if connection is None and program.arguments[1:2] != list(_TASKS):
            # An executor has one daemon only, that of its tasks: a server would save nothing there.
            parent = os.pidfd_open(os.getppid())
            listener = _listen(address)
            if listener is not None and os.fork() == 0:
                return _serve(listener, parent)
            os.close(parent)
            if listener is not None:
                listener.close()
            connection = _connect(address)
        if connection is None:
            return program
    except OSError:  # no pidfd, no socket, no memory for another process: nothing was begun
        return program
    with connection:
        pid = _ask(connection, program)
        if pid is None:
            return program
        raise SystemExit(_stand_in(connection, pid))


def _is_served(program: Program) -> bool:
    """Whether a program is one of those that what is preloaded is for, and would load it in the same way."""
    if program.environment.get(_THREADS, "1") != "1":
        return False
    module, *rest = program.arguments
    if module == _DAEMON:
        return bool(rest) and (rest[0] in _TASKS or rest[0].startswith(_PLANNING))
    return module in _STREAMING_SOURCE


def _address(program: Program) -> bytes:
    """Return the abstract address of the server: one for all that would import the same modules in the same way."""
    import hashlib

    parent = os.getppid()
    with open(f"/proc/{parent}/stat", "rb") as stat:
        started = stat.read().rpartition(b")")[2].split()[19]  # proc(5): field 22; a pid is used again, with another
    shared = sorted(
        (name, value)
        for name, value in program.environment.items()
        if name in _READ_AT_IMPORT or not name.startswith(_EACH_PROCESS)
    )
    what = marshal.dumps((sys.executable, sys.version, list(dict.fromkeys(program.path)), shared))
    return b"\0spark-streams-python/%d/%s/%s" % (parent, started, hashlib.sha256(what).hexdigest().encode())


def _is_trusted(connection: socket.socket) -> bool:
    """Whether the other end is the same user's, on this machine (in a container: in the same one)."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(pid) and user == os.getuid()


def _connect(address: bytes) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(ConnectionRefusedError):
        connection.connect(address)
        if _is_trusted(connection):
            return connection
    connection.close()
    return None


def _listen(address: bytes) -> socket.socket | None:
    """Return a listening socket; None where another process was faster."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        return None
    return listener


def _read(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes.

    Raises:
        EOFError: there are fewer.
    """
    content = b""
    while len(content) < size:
        more = connection.recv(size - len(content))
        if not more:
            raise EOFError
        content += more
    return content


def _ask(connection: socket.socket, program: Program) -> int | None:
    """Ask the server for a process and return its id; None where the server ended, and no process was made."""
    content = marshal.dumps(tuple(program))
    try:
        socket.send_fds(connection, [_SIZE.pack(len(content))], [0, 1, 2])
        connection.sendall(content)
        return int(_NUMBER.unpack(_read(connection, _NUMBER.size))[0])
    except (EOFError, OSError):
        return None


def _stand_in(connection: socket.socket, pid: int) -> int:
    """Wait for the end of a forked process, pass on the signals that this one gets, and return its status."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: _send(pid, got))
    _leave(0, 1)
    try:
        status = int(_NUMBER.unpack(_read(connection, _NUMBER.size))[0])
    except (EOFError, ConnectionError):  # the server was killed, so nobody would tell of the process's end
        _send(pid, signal.SIGKILL)
        print(f"spark-streams-python: the server that forked process {pid} has ended; so must that", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


def _leave(*streams: int) -> None:
    """Let go of standard streams: a copy of a pipe's end would hide that whoever uses it has closed his."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class _Server:
    """What a server holds: ``forked`` is each process's id and the connection of its stand-in."""

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self.listener: socket.socket | None = listener
        self.parent = parent
        self.forked: dict[int, socket.socket] = {}
        self.ended, self.wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Close all that belongs to the server alone, in a process that it has forked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self.listener, *self.forked.values()):
            if connection is not None:
                connection.close()
        for descriptor in (self.parent, self.ended, self.wakes):
            os.close(descriptor)

    def stop_listening(self) -> None:
        """Take no more requests: the parent is gone. Those who are here end by themselves."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def reap(self) -> None:
        """Tell the stand-ins of the processes that have ended."""
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

    def events(self) -> Iterator[int | socket.socket]:
        """Yield what is ready: the listener, the parent's or a child's end, a stand-in that was killed."""
        import select

        poll = select.poll()
        watched: dict[int, int | socket.socket] = {self.ended: self.ended}
        if self.listener is not None:
            watched |= {self.parent: self.parent, self.listener.fileno(): self.listener}
        watched |= {connection.fileno(): connection for connection in self.forked.values()}
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll():
            yield watched[descriptor]


def _serve(listener: socket.socket, parent: int) -> Program:
    """Serve requests until the parent has ended; return in each forked process, with its program."""
    try:
        program = _next_program(listener, parent)
    except BaseException:  # whatever it is, this process must not go on as the one that it was forked from
        import traceback

        traceback.print_exc()
        os._exit(1)
    if program is None:
        os._exit(0)
    return program


def _next_program(listener: socket.socket, parent: int) -> Program | None:
    """Return the program in each forked process; None in the server, when all have ended."""
    os.setpgid(0, 0)  # a Ctrl-C in the terminal is for the driver
    _leave(0, 1)
    _preload()
    _leave(2)
    server = _Server(listener, parent)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(server.wakes, warn_on_full_buffer=False)
    while server.listener is not None or server.forked:
        for event in server.events():
            if event == server.parent:
                server.stop_listening()
            elif event == server.ended:
                server.reap()
            elif event is not server.listener:
                for pid in [pid for pid, connection in server.forked.items() if connection is event]:
                    os.kill(pid, signal.SIGKILL)
            elif (program := _answer(server)) is not None:
                return program
    return None


def _preload() -> None:
    """Import what all processes need, and leave it out of their searches for garbage."""
    import gc
    import importlib
    import warnings

    gc.disable()  # modules are no garbage: a fifth of the time would go to searching them for some
    # PyArrow's allocator has a thread, which it starts again after a fork; Python cannot know that it does.
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    os.environ[_THREADS] = "1"
    for module in PRELOADED:
        with contextlib.suppress(ImportError):  # a process that needs it says what is missing
            importlib.import_module(module)
    if random := sys.modules.get("numpy.random"):  # NumPy 1 loads it by itself; Python's own random does this itself
        os.register_at_fork(after_in_child=_Reseed(random.seed))
    gc.freeze()
    gc.enable()


class _Reseed:
    """Gives each process numbers of its own: the forked one, and the workers that it forks if it is a daemon."""

    def __init__(self, seed: Callable[[], None]) -> None:
        self.seed, self.depth = seed, 0

    def __call__(self) -> None:
        self.depth += 1
        if self.depth <= 2:
            self.seed()


def _answer(server: _Server) -> Program | None:
    """Take a request and fork; return the program in the forked process, None in the server."""
    assert server.listener is not None
    connection, _ = server.listener.accept()
    if not _is_trusted(connection):
        connection.close()
        return None
    connection.settimeout(_REQUEST_S)
    streams: list[int] = []
    try:
        head, streams, _, _ = socket.recv_fds(connection, _SIZE.size, 3)
        head += _read(connection, _SIZE.size - len(head))
        program = Program(*marshal.loads(_read(connection, *_SIZE.unpack(head))))
        pid = os.fork()
        if pid == 0:
            try:
                connection.close()
                server.close()
                _become(program, streams)
            except OSError as error:  # not the server's to deal with, as those below are
                raise RuntimeError(f"cannot run {program.arguments} in {program.folder}") from error
            return program
        server.forked[pid] = connection
        connection.sendall(_NUMBER.pack(pid))
    except (EOFError, OSError):  # whoever asked is gone, or there is no room for another process: it runs by itself
        if connection not in server.forked.values():
            connection.close()
    finally:
        for descriptor in streams:
            os.close(descriptor)
    return None


def _become(program: Program, streams: list[int]) -> None:
    """Make this process what the program's own would be."""
    os.setpgid(0, 0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
