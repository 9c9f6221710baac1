"""The doors of a log with its page, at which nobody looks, beside those of a log without: ratios, which are to be 1.

    python -m tests.bench.peers.window [--rows N] [--rounds N]

Each round starts two logs, which differ in option ``--web`` alone, and streams of a part of the rows are written and
read at one and the other in turn. The least time of each counts, as what else the machine does only adds to it. Clients
run in this process, without Spark. The processor time of a log is all that its process uses meanwhile, so that what a
page does by itself is in it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.bench.harness import cpu
from tests.bench.harness.formats import BODY_BYTES, Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.peers import PARTITIONS
from tests.bench.harness.targets import figure

if TYPE_CHECKING:
    from spark_streams.cli.peers.peer import Peer

NAME = "log's window"
DOORS = {"rabbitmq-log": "rabbitmq-stream", "amqp-events": "amqp", "event-hubs": "event-hubs", "feedapi": "feedapi"}
"""Format to the door that it reads and writes."""
SENT = 10_000
"""Rows that are sent at once."""
TURNS = 10
"""Streams that are written and read at each log in a round, and count."""
READS = 4
"""Times that a stream is read in a turn: it takes the log little time."""
WAYS = ("written", "read")


@dataclass
class Log:
    """A running log: where its doors are, and the wall and processor time of each turn of a way, in seconds."""

    process: subprocess.Popen[str]
    doors: dict[str, str]
    numbers: Iterator[int] = field(default_factory=itertools.count)
    wall_s: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def peer(self, door: str, stream: str) -> Peer:
        """Return a stream at a door."""
        from spark_streams.cli.credentials import PeerOptions
        from spark_streams.cli.peers.peer import read_peer

        url = self.doors[door] if door == "event-hubs" else self.doors[door].replace("//", "//guest:guest@")
        mark = {"event-hubs": ";EntityPath=", "feedapi": "/"}.get(door, "#")
        return read_peer(url + mark + stream, PeerOptions())

    def take(self, door: str, rows: int) -> None:
        """Write a new stream, read it, and delete it."""
        name = f"orders-{next(self.numbers)}"
        self.peer("amqp", name).create(PARTITIONS, {})
        peer = self.peer(door, name)
        with self._counting("written"):
            write(peer, rows)
        with self._counting("read"):
            for _ in range(READS):
                read(peer, rows)
        self.peer("amqp", name).delete()

    @contextlib.contextmanager
    def _counting(self, way: str) -> Iterator[None]:
        used, begun = cpu.exactly(self.process.pid), time.perf_counter()
        yield
        self.wall_s[way].append(time.perf_counter() - begun)
        self.cpu_s[way].append(cpu.exactly(self.process.pid) - used)


@contextlib.contextmanager
def served(*words: str) -> Iterator[Log]:
    """Serve a log at all doors, and with these words, until the context ends."""
    doors = [word for door in DOORS.values() for word in (f"--{door}", "0")]
    command = [sys.executable, "-m", "spark_streams.cli", "log", "serve", *doors, *words, "--until-stdin-closes"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True, env=environment) as process:
        assert process.stdout is not None
        yield Log(process, json.loads(process.stdout.readline()))
        process.terminate()


def write(peer: Peer, rows: int) -> None:
    """Write a stream through our client, at least once."""
    from spark_streams.rows import MESSAGE_SCHEMA

    columns = {"key": [str(number) for number in range(SENT)], "value": [b"x" * BODY_BYTES] * SENT}
    arrays = [pa.array(columns.get(each.name, [None] * SENT), each.type) for each in MESSAGE_SCHEMA]
    sent = pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
    with peer.open_writer() as writer:
        for first in range(0, rows, SENT):
            writer.send(sent.slice(0, rows - first))
        writer.flush()


def read(peer: Peer, rows: int) -> None:
    """Read a stream to its end through our client."""
    from spark_streams.cli.peers.peer import ReadRequest

    with peer.open_reader(ReadRequest("earliest", None, ("value", "offset"))) as reader:
        came = sum(batch.num_rows for batch in reader.new_events())
    if came != rows:
        raise RuntimeError(f"{came} of {rows} events came")


def least(turns: list[float]) -> float:
    """Return the least of what turns took, without the first one, in which the log grows."""
    return min(turns[1:])


def one(run: Run, form: Format) -> dict[str, float]:
    """Take the ways at both logs in turn; return ratios of the two."""
    door, rows = DOORS[form.name], max(1, run.options.rows // TURNS // 2)
    with served("--web", "0") as window, served() as bare:
        for turn in range(TURNS + 1):
            for log in (window, bare) if turn % 2 else (bare, window):
                log.take(door, rows)
    figures = {}
    for way in WAYS:
        figures[f"{way}, k/s with : without"] = least(bare.wall_s[way]) / least(window.wall_s[way])
        figures[f"{way}, CPU of server without : with"] = least(bare.cpu_s[way]) / least(window.cpu_s[way])
        events = rows * READS if way == "read" else rows
        figures[f"{way}, CPU of server, µs"] = least(window.cpu_s[way]) / events * 1e6
    return figures


MEASURE = Measure(
    NAME,
    tuple(DOORS),
    one,
    targets=tuple(
        figure(NAME, form, f"{way}, {ratio}", at_least=0.99)
        for form in DOORS
        for way in WAYS
        for ratio in ("k/s with : without", "CPU of server without : with")
    ),
)

if __name__ == "__main__":
    main(MEASURE)
