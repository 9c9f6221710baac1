"""Where the demo happens: a temporary folder and a process session of its own, both gone when it ends.

Spark is a JVM with Python workers, and the log is a process too; whatever way the demo ends, by itself, by Ctrl-C or by
SIGTERM, every process of the session is ended and the folder is removed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click

from spark_streams.errors import OptionError

_GRACE_S: Final = 8.0
"""How long the demo's processes may take to end by themselves once it is over."""


def conf_folder() -> Path:
    """Return the folder ``conf``: in the installed package, or in the checkout that the package is run from.

    Raises:
        OptionError: it is in neither.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "spark-defaults.conf").is_file():
            return folder
    raise OptionError("demo", f"there is no folder conf beside {package}: install spark-streams again")


def run_demo(events: int, seconds: float, partitions: int) -> None:
    """Run the demo; returns when it has ended well and nothing of it is left.

    Args:
        events: how many orders are produced.
        seconds: the time they are spread over.
        partitions: partitions of both streams.

    Raises:
        OptionError: pyspark is not installed.
        SystemExit: the demo failed; its process has said why on stderr.
        KeyboardInterrupt: Ctrl-C. Nothing of it is left then either.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise OptionError("demo", "pyspark is not installed: pip install 'spark-streams[spark]'") from None
    conf = conf_folder()
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="spark-streams-demo-", ignore_cleanup_errors=True) as folder:
            environment = {
                **os.environ,
                "TMPDIR": folder,
                "SPARK_LOCAL_DIRS": folder,
                "SPARK_CONF_DIR": str(conf),
                "PYSPARK_PYTHON": sys.executable,
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
                # The screen first: the process puts the cursor back when it is interrupted.
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


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _end_session(leader: subprocess.Popen[bytes]) -> None:
    """End every process of the session, gently first, and wait until they have gone."""
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
    """Return the processes of a session that are no zombies."""
    return [pid for pid, (own, state) in _processes().items() if own == session and not state.startswith("Z")]


def _processes() -> dict[int, tuple[int, str]]:
    """Return process id to (session id, state), from /proc, or where there is none (macOS) from ``ps``."""
    found: dict[int, tuple[int, str]] = {}
    if Path("/proc/self/stat").exists():
        for file in Path("/proc").glob("[0-9]*/stat"):
            # A process may end between the listing and the reading. Its name may hold blanks and brackets.
            with contextlib.suppress(OSError):
                state, _parent, _group, own = file.read_text(errors="replace").rpartition(")")[2].split()[:4]
                found[int(file.parent.name)] = (int(own), state)
        return found
    listing = subprocess.run(["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=False)
    for row in (line.split() for line in listing.stdout.splitlines()):
        if len(row) == 3 and row[1].isdigit():
            found[int(row[0])] = (int(row[1]), row[2])
    return found


def _signal(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
