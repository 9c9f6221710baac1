"""The demo, in short: it ends well, shows what it should, and leaves no file and no process, Ctrl-C included."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from spark_streams.cli.demo import order, priced, read_back
from spark_streams.client import Bounds, RangeRead
from spark_streams.rows import MESSAGE_SCHEMA
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
    assert out.count("✓") == 4 and "✗" not in out
    assert re.search(r"^look +http://127\.0\.0\.1:\d+, while this runs$", out, re.MULTILINE)
    assert "before 1970" in out and re.search(r"^sent +2,000  written +2,000$", out, re.MULTILINE)
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


class Output:
    """The output of the demo's query, as its client reads it: a batch for each order, half of them in each partition.

    Attributes:
        most_held: the most batches that the reader held when it asked for the next one.
    """

    def __init__(self, numbers: range, **wrong: Any) -> None:
        self.wrong = wrong
        self.numbers = {"0": [n for n in numbers if self.first(n)], "1": [n for n in numbers if not self.first(n)]}
        self.most_held = 0

    def first(self, n: int) -> bool:
        return int(order(n)["key"][-3:]) % 2 == 0

    def describe(self, stream: str) -> SimpleNamespace:
        return SimpleNamespace(
            partitions={p: Bounds("0", "9") if ns else Bounds(None, None) for p, ns in self.numbers.items()}
        )

    def fetch(self, read: RangeRead) -> Iterator[pa.RecordBatch]:
        given: list[weakref.ref[pa.RecordBatch]] = []
        for n in self.numbers[read.partition]:
            self.most_held = max(self.most_held, sum(each() is not None for each in given))
            batch = self.batch(n, read.columns)
            given.append(weakref.ref(batch))
            yield batch

    def batch(self, n: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        sent = order(n)
        in_value = {name: each for name, each in self.wrong.items() if name not in sent}
        row = {**sent, **self.wrong, "value": json.dumps({**priced(sent["value"]), **in_value}).encode()}
        schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
        return pa.RecordBatch.from_arrays([pa.array([row[f.name]], f.type) for f in schema], schema=schema)


ONCE = "each of 300 orders came out exactly once"
IN_ORDER = "each customer's orders are in the order in which they were sent"
PRICED = "each order has its price and its VAT"
KEPT = "each event kept its key, and its time to the millisecond; 10 of them lie before 1970, the first on 1957-10-04"


def test_the_output_is_checked_batch_by_batch() -> None:
    output = Output(range(300))
    assert read_back(output, 300) == dict.fromkeys((ONCE, IN_ORDER, PRICED, KEPT), True)  # type: ignore[arg-type]
    assert output.most_held <= 1


@pytest.mark.parametrize(
    ("numbers", "wrong", "failed"),
    [
        (range(299), {}, [ONCE]),
        (range(0), {}, [ONCE]),
        (range(300), {"vat_cents": 1}, [PRICED]),
        (range(300), {"item": "elsewhere"}, [PRICED]),
        (range(299, -1, -1), {}, [IN_ORDER]),
        (range(300), {"timestamp": datetime(1957, 10, 4, tzinfo=timezone.utc)}, [KEPT]),
    ],
    ids=repr,
)
def test_what_is_wrong_fails_the_check_that_it_is_part_of(
    numbers: range, wrong: dict[str, Any], failed: list[str]
) -> None:
    found = read_back(Output(numbers, **wrong), 300)  # type: ignore[arg-type]
    assert [words for words, right in found.items() if not right] == failed


def test_some_orders_are_of_before_1970_and_each_has_a_time_of_its_own() -> None:
    times = [order(n)["timestamp"] for n in range(300)]
    assert len(set(times)) == 300 and times[0] == datetime(1957, 10, 4, tzinfo=timezone.utc)
    assert sum(each.year < 1970 for each in times) == 10


def test_vat_is_rounded_half_up() -> None:
    assert priced({"quantity": 1, "price_cents": 50})["vat_cents"] == 10, "of 9.5 cents"
