"""kill -9 of the whole job, AMQP to Spark to AMQP, in mid-batch: no row is lost, and repeated ones keep their ids."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import proton
import pytest

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).with_name("sink_query.py")
START_S = 120


@contextmanager
def job(server: Any, folder: Path, limit: dict[str, str], *, drain: bool) -> Iterator[subprocess.Popen[bytes]]:
    """One life of the job; ends with kill -9 of its process group."""
    peer = {"url": server.urls["amqp"], "username": "guest", "password": "guest"}
    given = {
        "source": peer | {"stream": "orders", "startingOffsets": "earliest"} | limit,
        "sink": peer | {"stream": "copies"},
        "checkpoint": str(folder / "checkpoint"),
        "drain": drain,
    }
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(given)], stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def newest(folder: Path, kind: str) -> int:
    return max((int(p.name) for p in (folder / "checkpoint" / kind).glob("[0-9]*")), default=-1)


def count(server: Any) -> int:
    return sum(p.next_offset for p in server.log.stream("copies").partitions.values())


@pytest.mark.timeout(400)
def test_killed_in_the_middle_of_a_batch(log_server: Any, tmp_path: Path, rate_limits: bool) -> None:
    limit = {"maxOffsetsPerTrigger": "600"} if rate_limits else {}
    expected = []
    for name in ("orders", "copies"):
        log_server.call(lambda name=name: log_server.log.create_stream(name, 3))

    def produce(low: int, high: int) -> None:
        for partition in log_server.log.stream("orders").partitions.values():
            texts = [f"{partition.id}-{n}" for n in range(low, high)]
            partition.append([b"\x00\x53\x75\xa0" + bytes([len(t)]) + t.encode() for t in texts])
            expected.extend(texts)

    produce(0, 400)
    with job(log_server, tmp_path, limit, drain=False) as running:
        deadline = time.monotonic() + START_S
        while newest(tmp_path, "commits") < 0:
            assert running.poll() is None, (tmp_path / "output.txt").read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        produce(400, 800)  # a second batch, also where Spark has no limits
        while not (newest(tmp_path, "commits") >= 0 and newest(tmp_path, "offsets") > newest(tmp_path, "commits")):
            assert running.poll() is None, (tmp_path / "output.txt").read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = count(log_server)
        while count(log_server) < before + 100:
            assert running.poll() is None, (tmp_path / "output.txt").read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert newest(tmp_path, "offsets") > newest(tmp_path, "commits"), "the kill found a batch in the middle"

    with job(log_server, tmp_path, limit, drain=True) as last:
        assert last.wait(START_S) == 0, (tmp_path / "output.txt").read_text()[-4000:]

    by_id, copies = collections.defaultdict(set), []
    for partition in log_server.log.stream("copies").partitions.values():
        offset = partition.first_offset
        while (records := partition.read(offset)) is not None:
            for start, end in zip(records.value_starts.tolist(), records.value_ends.tolist(), strict=True):
                message = proton.Message()
                message.decode(bytes(records.buffer[start:end]))
                text = bytes(message.body).decode()
                by_id[message.id].add(text)
                copies.append(text)
                assert text.startswith(f"{partition.id}-"), "rows keep their partition"
            offset = int(records.offsets[-1]) + 1

    assert len(copies) > len(expected), "the batch that was cut short was written again"
    assert sorted(set(copies)) == sorted(expected), "no row is lost"
    assert all(len(texts) == 1 for texts in by_id.values()), "one id never names two rows"
    assert len(by_id) == len(expected), "a repeated row has the id that it had"
