"""The doors of a log with its page, at which nobody looks, beside those of a log without: ratios, which are to be 1.

    python -m tests.bench.peers.window [--rows N] [--rounds N]

Each round starts two logs, which differ in option ``--web`` alone, and a way is taken at one, twice at the other, and
at the first again: what else the machine does weighs on both alike. Clients run in this process, without Spark. The
processor time of a log is all that its process used meanwhile, so that what a page does by itself is in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_streams.cli.credentials import PeerOptions
from spark_streams.cli.peers.peer import Peer, ReadRequest, read_peer
from spark_streams.rows import MESSAGE_SCHEMA
from tests.bench.harness import cpu
from tests.bench.harness.formats import BODY_BYTES, Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import figure

NAME = "log's window"
DOORS = {"rabbitmq-log": "rabbitmq-stream", "amqp-events": "amqp", "event-hubs": "event-hubs", "feedapi": "feedapi"}
"""Format to the door that it reads and writes."""
STREAM = "orders"
SENT = 10_000
"""Rows that are sent at once."""
WAYS = ("written", "read")


@dataclass
class Log:
    """A running log, and what the ways took there, in seconds."""

    process: subprocess.Popen[str]
    doors: dict[str, str]
    stream: int = 0

    def peer(self, door: str) -> Peer:
        """Return the newest stream at a door."""
        where, stream = self.doors[door], f"{STREAM}-{self.stream}"
        if door == "event-hubs":
            return read_peer([f"{where};EntityPath={stream}"], PeerOptions())
        mark = "/" if door == "feedapi" else "#"
        return read_peer([where.replace("//", "//guest:guest@") + mark + stream], PeerOptions())


@contextlib.contextmanager
def served(*words: str) -> Iterator[Log]:
    """Serve a log at all doors, and with these words."""
    doors = [word for door in DOORS.values() for word in (f"--{door}", "0")]
    command = [sys.executable, "-m", "spark_streams.cli", "log", "serve", *doors, *words, "--until-stdin-closes"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        yield Log(process, json.loads(process.stdout.readline()))
        process.stdin.close()
