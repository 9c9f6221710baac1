"""kill -9 of a served log under publishers that repeat what was not confirmed: nothing is lost, nothing is twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests

WRITERS = 3
REQUESTS = 40
EVENTS = 50


class Served:
    """A log that is served by a process of its own, again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = ""
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_streams.cli", "log", "serve", "--feedapi", "0", "--data-dir", self._folder,
             "--stream", "orders:3"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["feedapi"] + "/orders"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(120)


def write(served: Served, writer: int, confirmed: list[int]) -> None:
    for sequence in range(REQUESTS):
        first = (writer * REQUESTS + sequence) * EVENTS
        keys = [b',"key":"%d"' % n if n % 4 else b"" for n in range(first, first + EVENTS)]
        body = b"".join(b'{"event":{"n":%d}%s}\n' % (first + row, key) for row, key in enumerate(keys))
        headers = {
            "Content-Type": "application/x-ndjson",
            "Idempotency-Key": f"writer-{writer}",
            "Idempotency-Sequence": str(sequence),
        }
        while True:
            try:
                answer = requests.post(served.url, data=body, headers=headers, timeout=120)
            except requests.RequestException:
                time.sleep(0.05)
                continue
            if answer.status_code == 200:
                said = answer.json()
                assert said["appended"] + said["repeated"] == EVENTS
                break
            assert answer.status_code in (503, 500), answer.text
        confirmed.append(sequence)


@pytest.mark.timeout(200)
def test_every_event_is_there_once_after_kills(tmp_path: Path) -> None:
    served = Served(tmp_path / "log")
    confirmed: list[int] = []
    writers = [threading.Thread(target=write, args=(served, number, confirmed)) for number in range(WRITERS)]
    try:
        for writer in writers:
            writer.start()
        chance = random.Random(4)
        for kill in range(2):
            while len(confirmed) < (kill + 1) * WRITERS * REQUESTS // 3:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.02)
            served.kill()
            served.start()
        for writer in writers:
            writer.join(100)
        found: list[int] = []
        for partition in range(3):
            cursor = "_first"
            while True:
                page = requests.get(
                    served.url, params={"partition": partition, "cursor": cursor, "pageSizeHint": 5000}, timeout=120
                )
                lines = [json.loads(line) for line in page.content.split(b"\n")[:-1]]
                found += [line["event"]["n"] for line in lines if "event" in line]
                if lines[-1]["cursor"] == cursor:
                    break
                cursor = lines[-1]["cursor"]
        assert sorted(found) == list(range(WRITERS * REQUESTS * EVENTS))
    finally:
        served.kill()
