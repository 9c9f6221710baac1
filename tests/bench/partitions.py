"""What it costs to plan an idle micro-batch of a stream with many partitions, on the log and on a real RabbitMQ.

    python tests/bench/partitions.py [--format NAME]… [--partitions N]… [--rounds N] [--json FILE]

The log serves each size in a process of its own; with RABBITMQ_STREAM_URL set, a super stream of each size on that
broker is measured too. Every partition holds one event. Measured is what Spark calls in a trigger that finds nothing:
``latestOffset`` with a description that is not cached, ``reportLatestOffset``, the JSON of the offsets; the median of
the rounds counts. ``first`` is the plan of batch 0 until its tasks are there: ``initialOffset``, ``latestOffset``,
``partitions``. CPU is that of the planning process (driver) and of the serving one (peer).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
FORMATS = ("rabbitmq-stream", "amqp-events", "feedapi")
SOURCES = {
    "rabbitmq-stream": ("spark_streams.sources.rabbitmq_stream", "RabbitStreamDataSource"),
    "amqp-events": ("spark_streams.sources.amqp_events", "AmqpEventsDataSource"),
    "feedapi": ("spark_streams.sources.feedapi", "FeedDataSource"),
}
DOORS = {"amqp-events": "amqp"}
"""The door of a format whose name is another one."""
SIZES = (10, 100, 1_000, 10_000)
PATIENCE_MS = "300000"
EVENT = b'\x00\x53\x75\xa0\x09{"id": 1}'
"""An AMQP message with one data section."""
QUIET_S = 3.0
"""Seconds without an event after which a feed's fetchers have polled every partition again."""
PUBLISHERS = 200
"""Publishers at a time on one connection, which may have 256."""


@dataclass(frozen=True)
class Measured:
    """One line of the table; milliseconds."""

    format: str
    peer: str
    partitions: int
    idle: float
    idle_driver_cpu: float
    idle_peer_cpu: float
    first: float
    first_driver_cpu: float
    first_peer_cpu: float


# --- peers


def serve(folder: str, partitions: int) -> None:
    """Serve a log with one event in each partition, print the urls as a JSON line, and stay until stdin closes."""
    from spark_streams.log import LogConfig, ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread
    from spark_streams.server.feed.config import FeedConfig
    from spark_streams.server.rabbitmq.config import RabbitConfig

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = LogConfig(fsync="never", max_partitions=max(4_096, partitions))
    with ReferenceLog(folder, config) as log:
        stream = log.create_stream("orders", partitions)
        for partition in stream.partitions.values():
            partition.append([EVENT])
        with ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0)) as server:
            print(json.dumps({door: server.url(door) for door in server.urls}), flush=True)
            sys.stdin.read()


@contextlib.contextmanager
def served(partitions: int) -> Iterator[tuple[dict[str, str], psutil.Process]]:
    """The log in a process of its own: urls by format, and the process."""
    with tempfile.TemporaryDirectory(prefix="spark-streams-bench-") as folder:
        command = [sys.executable, __file__, "--serve", folder, str(partitions)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdin is not None and process.stdout is not None
            yield json.loads(process.stdout.readline()), psutil.Process(process.pid)
        finally:
            process.stdin.close()
            process.wait(60)


def on_broker(url: str, partitions: int) -> str:
    """Create a super stream on a RabbitMQ, with one event in each partition; return its name."""
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
    from spark_streams.wire.rabbitmq import publisher_commands as publishing
    from spark_streams.wire.rabbitmq.stream_commands import CreateSuperStream, CreateSuperStreamAnswer

    name = f"bench-{secrets.token_hex(4)}"
    streams = tuple(f"{name}-{n}" for n in range(partitions))
    with open_connection(parse_url(url, schemes=RABBITMQ_SCHEMES), timeout_ms=1_800_000) as connection:
        keys = tuple(map(str, range(partitions)))
        connection.request(CreateSuperStream(name, streams, keys), CreateSuperStreamAnswer, "create")
        for first in range(0, partitions, PUBLISHERS):
            some = streams[first : first + PUBLISHERS]
            for number, stream in enumerate(some):
                declare = publishing.DeclarePublisher(number, "", stream)
                connection.request(declare, publishing.DeclarePublisherAnswer, stream)
                one = struct.pack(">HHBIQI", publishing.PUBLISH_KEY, 1, number, 1, 1, len(EVENT)) + EVENT
                connection.send(struct.pack(">I", len(one)) + one)
            confirmed: set[int] = set()
            while len(confirmed) < len(some):
                frame = connection.receive(60)
                if frame is not None and frame.key == publishing.CONFIRM_KEY:
                    confirmed.add(frame.buffer[frame.start])
            for number in range(len(some)):
                delete = publishing.DeletePublisher(number)
                connection.request(delete, publishing.DeletePublisherAnswer, "delete")
    return name


def removed(url: str, name: str) -> None:
    """Delete a super stream."""
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
    from spark_streams.wire.rabbitmq.stream_commands import DeleteSuperStream, DeleteSuperStreamAnswer

    with open_connection(parse_url(url, schemes=RABBITMQ_SCHEMES), timeout_ms=1_800_000) as connection:
        connection.request(DeleteSuperStream(name), DeleteSuperStreamAnswer, "delete")


def broker_process(url: str) -> psutil.Process | None:
    """The process that listens at the url's port, where it is on this machine and we may see it."""
    from urllib.parse import urlsplit

    port = urlsplit(url).port
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
            return psutil.Process(each.pid)
    return None


# --- planning


def reader_of(format: str, url: str, stream: str) -> Any:
    """A stream reader, as Spark makes it."""
    from importlib import import_module

    module, kind = SOURCES[format]
    where = {
        "rabbitmq-stream": {"url": url, "superStream": stream},
        "amqp-events": {"url": url, "stream": stream},
        "feedapi": {"url": f"{url}/{stream}"},
    }[format]
    source = getattr(import_module(module), kind)(
        {**where, "startingOffsets": "earliest", "requestTimeout": PATIENCE_MS}
    )
    return source.streamReader(source.schema())


class Watch:
    """Wall time, and CPU of this process and of another one, since its construction; milliseconds."""

    def __init__(self, peer: psutil.Process | None) -> None:
        self._peer = peer
        self._peer_s = self._of_peer()
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def _of_peer(self) -> float:
        if self._peer is None:
            return 0.0
        used = self._peer.cpu_times()
        return float(used.user + used.system)

    def stopped(self) -> tuple[float, float, float]:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return 1e3 * wall_s, 1e3 * cpu_s, 1e3 * (self._of_peer() - self._peer_s)


def through_json(offset: Any) -> Any:
    """What Spark does with an offset between its calls."""
    return json.loads(json.dumps(offset))


def planned(reader: Any, begin: Any) -> Any:
    """Ask for the end of the next micro-batch, as Spark 4.2 and later does."""
    return through_json(reader.latestOffset(through_json(begin), reader.getDefaultReadLimit()))


def measure(format: str, peer: str, url: str, stream: str, partitions: int, rounds: int, process: Any) -> Measured:
    """Plan batch 0, and then idle triggers."""
    reader = reader_of(format, url, stream)
    try:
        watch = Watch(process)
        end = planned(reader, reader.initialOffset())
        tasks = reader.partitions(through_json(reader.initialOffset()), through_json(end))
        first = watch.stopped()
        if format == "feedapi":  # what a plan takes is what was fetched: it may take several plans
            count, quiet = len(tasks), 0.0
            while count < partitions or quiet < QUIET_S:
                began = time.monotonic()
                begin, end = end, planned(reader, end)
                count += len(reader.partitions(through_json(begin), through_json(end)))
                if count < partitions:
                    first = watch.stopped()
                if begin == end:
                    time.sleep(0.1)
                quiet = quiet + time.monotonic() - began if begin == end else 0.0
            tasks = range(count)
        assert len(tasks) == partitions, (len(tasks), partitions)
        reader.commit(through_json(end))
        idle = []
        for _ in range(rounds):
            stale(reader, format)
            watch = Watch(process)
            again = planned(reader, end)
            through_json(reader.reportLatestOffset())
            idle.append(watch.stopped())
            if again != end and format != "feedapi":
                raise AssertionError("the trigger was not idle")
            end = again
        middle = [median(column) for column in zip(*idle, strict=True)]
        return Measured(format, peer, partitions, *(round(each, 1) for each in (*middle, *first)))
    finally:
        reader.stop()


def stale(reader: Any, format: str) -> None:
    """Make the planner's description of the peer too old, as a poll interval does."""
    planner = reader._planner
    if format == "feedapi":
        planner._discovered_at = float("-inf")
    else:
        planner._driver._described_at = float("-inf")


# --- the table


def show(found: list[Measured]) -> None:
    """Print the table, each size beside the ratio of its time a partition to that of the next smaller size."""
    print(f"{'format':16} {'peer':9} {'n':>6} | {'idle ms':>9} {'driver':>8} {'peer':>8} {'growth':>7} |", end="")
    print(f" {'first ms':>9} {'driver':>9} {'peer':>9}")
    before: dict[tuple[str, str], Measured] = {}
    for each in found:
        last = before.get((each.format, each.peer))
        growth = "" if last is None else f"{each.idle / last.idle / (each.partitions / last.partitions):.2f}"
        before[each.format, each.peer] = each
        print(
            f"{each.format:16} {each.peer:9} {each.partitions:6} | {each.idle:9.1f} {each.idle_driver_cpu:8.1f} "
            f"{each.idle_peer_cpu:8.1f} {growth:>7} | {each.first:9.1f} {each.first_driver_cpu:9.1f} "
            f"{each.first_peer_cpu:9.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="append", choices=FORMATS, dest="formats")
    parser.add_argument("--partitions", action="append", type=int, dest="sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    formats, sizes = arguments.formats or FORMATS, arguments.sizes or SIZES
    broker = os.environ.get("RABBITMQ_STREAM_URL") if "rabbitmq-stream" in formats else None
    found = []
    for partitions in sizes:
        with served(partitions) as (urls, process):
            for format in formats:
                url = urls[DOORS.get(format, format)]
                found.append(measure(format, "log", url, "orders", partitions, arguments.rounds, process))
        if broker is not None:
            name = on_broker(broker, partitions)
            try:
                process = broker_process(broker)
                found.append(
                    measure("rabbitmq-stream", "RabbitMQ", broker, name, partitions, arguments.rounds, process)
                )
            finally:
                removed(broker, name)
    found.sort(key=lambda each: (FORMATS.index(each.format), each.peer, each.partitions))
    show(found)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(each) for each in found], indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
