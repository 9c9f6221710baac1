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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from spark_streams.cli.demo.orders import Orders
from spark_streams.cli.demo.report import read_back
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

    def __init__(self, orders: Orders, numbers: range, **wrong: Any) -> None:
        self.orders = orders
        self.wrong = wrong
        self.numbers = {"0": [n for n in numbers if self.first(n)], "1": [n for n in numbers if not self.first(n)]}
        self.most_held = 0

    def first(self, n: int) -> bool:
        return int(self.orders.keys[n][-3:]) % 2 == 0

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
        cells = (int(self.orders.net_cents[n]), *self.orders.priced(n)[1:])
        value = {"order": n, **dict(zip(("net_cents", "vat_cents", "origin"), cells, strict=True)), **self.wrong}
        row: dict[str, Any] = {
            "value": json.dumps(value).encode(),
            "key": self.orders.keys[n],
            "timestamp": int(self.orders.instants_ms[n]) * 1_000,
        }
        schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
        return pa.RecordBatch.from_arrays([pa.array([row[f.name]], f.type) for f in schema], schema=schema)


def test_the_output_is_checked_batch_by_batch() -> None:
    orders = Orders(300, 1_700_000_000_000)
    output = Output(orders, range(300))
    assert list(read_back(output, "orders-priced", orders).values()) == [True] * 4  # type: ignore[arg-type]
    assert output.most_held <= 1


@pytest.mark.parametrize(
    ("numbers", "wrong", "failed"),
    [
        (range(299), {}, ["each of 300 orders came out exactly once"]),
        (range(0), {}, ["each of 300 orders came out exactly once"]),
        (range(300), {"vat_cents": 1}, ["each order has its price and its VAT"]),
        (range(300), {"origin": "elsewhere"}, ["each order has its price and its VAT"]),
        (range(299, -1, -1), {}, ["each customer's orders are in the order in which they were sent"]),
    ],
    ids=repr,
)
def test_what_is_wrong_fails_the_check_that_it_is_part_of(
    numbers: range, wrong: dict[str, Any], failed: list[str]
) -> None:
    orders = Orders(300, 1_700_000_000_000)
    found = read_back(Output(orders, numbers, **wrong), "orders-priced", orders)  # type: ignore[arg-type]
    assert [words for words, right in found.items() if not right] == failed


def test_an_event_with_another_time_or_key_is_told() -> None:
    orders, sent = Orders(300, 1_700_000_000_000), Orders(300, 1_700_000_000_001)
    found = read_back(Output(orders, range(300)), "orders-priced", sent)  # type: ignore[arg-type]
    assert list(found.values()) == [True, True, True, False]


def test_vat_is_rounded_half_up() -> None:
    orders = Orders(1, 0)
    orders.net_cents[0] = 50  # 9.5 cents
    assert orders.priced(0) == (50, 10, "ledger")
