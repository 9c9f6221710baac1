"""The reference log in its own process: ``spark-streams log serve`` on free ports of the loopback interface."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spark_streams.protocols import check_packages, with_doors

SETTINGS: Final = "[log]\nretention_check_ms = 200\n"
"""Retention every 200 ms: with the default, 10 s, tests of retention would be slow."""
_SHOWN: Final = 2_000
"""Characters from the end of the process's output that an error shows."""


class LogProcess:
    """The reference log with all its doors, running while the context is open.

    Acknowledged events survive ``kill`` and ``start``: the log has the same data, on the same ports. It ends when the
    process that started it ends, in whatever way.

    Args:
        data_dir: folder of the log; None for a folder that is removed at the end.
        arguments: further arguments of ``spark-streams log serve``, such as ``["--stream", "orders:4"]``. A
            ``--config`` replaces ours, which enforces retention every 200 ms.
        timeout_s: deadline for the start, and for the stop, in seconds.

    Raises:
        PackageMissing: the log needs packages of the extra ``log`` that are not installed.
        TypeError: ``arguments`` is one string.
    """

    def __init__(self, data_dir: Path | None = None, arguments: Sequence[str] = (), *, timeout_s: float = 60.0) -> None:
        if isinstance(arguments, str):
            raise TypeError(f"arguments is one text, expected a list: {arguments.split()}")
        check_packages("the reference log")
        self._temporary = tempfile.TemporaryDirectory(prefix="spark-streams-testing-", ignore_cleanup_errors=True)
        self._data_dir = data_dir if data_dir is not None else Path(self._temporary.name) / "data"
        self._words = Path(self._temporary.name) / "log.txt"
        self._settings = Path(self._temporary.name) / "log.toml"
        self._settings.write_text(SETTINGS)
        self._arguments = tuple(arguments)
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = {name: self._held_port() for name in with_doors()}
        self.urls: dict[str, str] = {}
        """Door (``amqp``, ``rabbitmq-stream``, ``feedapi``) to its URL, without credentials; ``event-hubs`` to its
        connection string; ``web`` to the address of the page that shows the log."""

    def __repr__(self) -> str:
        # The connection string of Event Hubs has a key, and is left out.
        doors = ", ".join(url for name, url in self.urls.items() if name != "event-hubs")
        return f"<LogProcess {'not running' if self._process is None else f'{self.pid}, {doors}'}>"

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def event_hubs_connection_string(self) -> str:
        """The connection string of the log as an Event Hubs namespace; a stream's name is the event hub's.

        It has guest's key. With a ``--user`` in ``arguments`` it has none, as that would be a secret.
        """
        return self.urls["event-hubs"]

    def start(self) -> None:
        """Start the process, and return when all doors are open.

        Raises:
            RuntimeError: the process ended, or did not report its doors in time; the text has its output.
        """
        if self._process is not None:
            return
        doors = [word for door, port in self._ports.items() for word in (f"--{door}", str(port))]
        command = [sys.executable, "-m", "spark_streams.cli", "log", "serve", "--data-dir", str(self._data_dir)]
        command += ["--config", str(self._settings), "--until-stdin-closes"]
        with self._words.open("ab") as words:
            self._process = subprocess.Popen(
                [*command, *doors, *self._arguments],
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends
                stdout=subprocess.PIPE,
                stderr=words,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        try:
            self.urls = json.loads(self._first_line())
        except BaseException:
            self.kill()
            raise
        # The next start uses the same ports, so that clients find the log again.
        self._ports = {door: _port(url) for door, url in self.urls.items()}

    def stop(self) -> None:
        """Stop the process with SIGTERM, and wait until it has ended.

        Raises:
            RuntimeError: it did not end in time and was killed, or it ended with an exit code other than 0.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with process:  # which closes its pipes, and waits until it has ended
            process.terminate()
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RuntimeError(f"the log did not stop within {self._timeout_s} s{self._output()}") from None
        if code:
            raise RuntimeError(f"the log ended with code {code}{self._output()}")

    def kill(self) -> None:
        """Kill the process as ``kill -9`` does; ``start`` starts it again with every event that it acknowledged."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()

    def __enter__(self) -> LogProcess:
        self.start()
        return self

    def __exit__(self, *fault: object) -> None:
        try:
            self.stop()
        finally:
            self._temporary.cleanup()

    def _held_port(self) -> int:
        """Return a free port that nobody else gets between two starts; 0 where the system cannot keep one for us.

        On Linux, the log can listen on a port to which a socket here is bound, and the system offers it to nobody else.
        """
        if sys.platform != "linux":
            return 0
        holder = socket.socket()
        weakref.finalize(self, holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])

    def _first_line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        descriptor, line = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + self._timeout_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"the log did not start within {self._timeout_s} s{self._output()}")
            block = os.read(descriptor, 65_536)
            if not block:
                raise RuntimeError(f"the log ended with code {self._process.wait()} as it started{self._output()}")
            line += block
        return line

    def _output(self) -> str:
        words = self._words.read_text(errors="replace")[-_SHOWN:].strip() if self._words.exists() else ""
        return f"; it said:\n{words}" if words else ""


def _port(where: str) -> int:
    """Return the port of a url, or of a connection string with one in it."""
    found = re.search(r":(\d+)/?(?:;|$)", where)
    return int(found[1]) if found else 0
