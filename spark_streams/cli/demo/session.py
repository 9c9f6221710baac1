"""The temporary folder and the process session of the demo, both of which are removed when it ends.

Spark is a JVM with Python workers, and the log is a process too. However the demo ends, by itself, by Ctrl-C or by
SIGTERM, this module ends every process of the session and removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from spark_streams import worker_python
from spark_streams.cli.errors import exit_on_signal
from spark_streams.errors import OptionError

_GRACE_S: Final = 8.0
"""Seconds that the demo's processes have to end by themselves once it is over."""


def conf_folder() -> Path:
    """Return the folder ``conf`` of the installed package, or of the checkout from which the package runs.

    Raises:
        OptionError: neither has the folder.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "spark-defaults.conf").is_file():
            return folder
    raise OptionError("demo", f"there is no folder conf beside {package}: install spark-streams again")


def run_demo(events: int, seconds: float, partitions: int) -> None:
    """Run the demo, and return when it has succeeded and nothing of it is left.

    Args:
        events: number of orders to produce.
        seconds: the time over which they are spread.
        partitions: number of partitions of both streams.

    Raises:
        OptionError: pyspark is not installed, or there is no folder ``conf``.
        click.exceptions.Exit: the demo failed; its process has printed the reason to stderr.
        SystemExit: SIGTERM stopped the demo; nothing of it is left then either.
        KeyboardInterrupt: Ctrl-C stopped the demo; nothing of it is left then either.
    """
    if find_spec("pyspark") is None:
        raise OptionError("demo", "pyspark is not installed: pip install 'spark-streams[spark]'")
    conf = conf_folder()
    before = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        with tempfile.TemporaryDirectory(prefix="spark-streams-demo-", ignore_cleanup_errors=True) as folder:
            environment = {
                **os.environ,
                "TMPDIR": folder,
                "SPARK_LOCAL_DIRS": folder,
                "SPARK_CONF_DIR": str(conf),
                "PYSPARK_PYTHON": worker_python.executable(),
                "PYTHONIOENCODING": "utf-8",
                "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "spark_streams.cli.demo.report", str(events), str(seconds), str(partitions)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait()
            except BaseException:
                # Interrupt this process first, so that it restores the terminal.
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=2)
                raise
            finally:
                _end_session(process)
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        raise click.exceptions.Exit(1)


def _end_session(leader: subprocess.Popen[bytes]) -> None:
    """End every process of the session, with SIGTERM before SIGKILL, and wait until they have ended."""
    deadline = time.monotonic() + _GRACE_S
    if leader.poll() is None:
        leader.terminate()
    while (alive := _members(leader.pid)) and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            leader.wait(timeout=0.1)
        time.sleep(0.05)
        if time.monotonic() > deadline - _GRACE_S / 2:
            _signal(alive, signal.SIGTERM)
    _signal(alive, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        leader.wait(timeout=_GRACE_S)


def _members(session: int) -> list[int]:
    """Return the ids of a session's processes that are not zombies, from /proc, or without it (macOS) from ``ps``."""
    found: list[tuple[str, str, str]] = []  # process id, session id and state
    if Path("/proc/self/stat").exists():
        for file in Path("/proc").glob("[0-9]*/stat"):
            # A process may end between the listing and the reading. Its name may have blanks and brackets.
            with contextlib.suppress(OSError):
                state, _parent, _group, own = file.read_text(errors="replace").rpartition(")")[2].split()[:4]
                found.append((file.parent.name, own, state))
    else:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=False)
        rows = (line.split() for line in listing.stdout.splitlines())
        found += ((pid, own, state) for pid, own, state in (row for row in rows if len(row) == 3))
    return [int(pid) for pid, own, state in found if own == str(session) and not state.startswith("Z")]


def _signal(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
