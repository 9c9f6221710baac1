"""The demo, in short: it ends well, shows what it should, and leaves no file and no process, Ctrl-C included."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from spark_streams.cli.demo.report import bar, columns_plot, resampled
from tests.cli.conftest import COMMAND

MARK = "SPARK_STREAMS_DEMO_TEST"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary folder under ``folder``, and its processes marked."""
    environment = {**os.environ, "TMPDIR": str(folder), MARK: str(folder)}
    return subprocess.Popen(
        [*COMMAND, "demo", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Undo what a shell does to the commands that it starts in the background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked(folder: Path) -> list[int]:
    """Return the living processes that a demo started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.nightly  # `.ci/run` runs the demo itself
@pytest.mark.spark
def test_the_demo_shows_what_happened_and_leaves_nothing(tmp_path: Path) -> None:
    demo = start(tmp_path, "--events", "2000", "--seconds", "1")
    out, err = demo.communicate(timeout=240)
    assert demo.returncode == 0, out + err
    assert "✓ each of 2,000 orders came out exactly once" in out
    assert out.count("✓") == 8 and "✗" not in out
    for words in ("customer-000", "events per second", "Behind, events", "before 1970", "█"):
        assert words in out
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    assert marked(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_either(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path, "--events", "100000", "--seconds", "100")
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("producer"):
            break
    while len(marked(tmp_path)) < 3:  # the log, and what starts Spark: the worst moment
        assert demo.poll() is None
        time.sleep(0.05)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=240)
    assert demo.returncode == 128 + number, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    assert marked(tmp_path) == []


def test_bars_and_columns_say_what_they_should() -> None:
    assert [bar(value, 10, 20) for value in (10, 5, 0.01, 0)] == ["█" * 20, "█" * 10, "█", ""]
    assert columns_plot([0, 4, 8], 2, "/s") == [f"{'8 /s':>18} ┤  █", f"{'0':>18} ┤ ██"]
    assert columns_plot([0, 0], 1, "/s")[0].endswith("┤  ")


def test_samples_are_spread_evenly() -> None:
    assert resampled([(0, 0), (1, 10), (4, 40)], 5) == [0, 10, 20, 30, 40]
    assert resampled([(0, 7)], 3) == [7, 7, 7]
