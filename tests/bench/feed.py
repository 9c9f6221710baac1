"""Feeds: this source beside the zeroeventhub client and requests with json and orjson, on one server, in one run.

    python tests/bench/feed.py [--quick]          also: make bench

Parsing alone is measured on lines in memory; whole reads inside Spark, as a batch query and as a stream, against the
embedded log's door in a process of its own, whose CPU time is measured too. It shares the machine with those who read,
so it keeps what it has rendered: what is compared is reading. Of streams the time of micro-batches counts, not what any
query's start takes. Writing is beside a DataSource that posts the same events row by row. Ratios are what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
PARTITIONS = 2
NAME = "orders"
WRITTEN = "written"
COLUMNS = "value BINARY, partition STRING, offset STRING"


def event(number: int) -> bytes:
    """An event of 100 bytes."""
    text = json.dumps({"id": number, "type": "order", "customer": f"customer-{number % 997}", "note": ""})
    return (text[:-2] + "x" * (100 - len(text)) + text[-2:]).encode()


def serve(folder: str, events: int) -> None:
    """Fill a log, serve it through the FeedAPI door, print its url as a JSON line, and stay until stdin closes."""
    import pyarrow as pa

    from spark_streams.log import ReferenceLog
    from spark_streams.server import FeedConfig, ServerThread
    from spark_streams.wire.amqp.columns.encode import encode_columns

    with ReferenceLog(Path(folder)) as log:
        log.create_stream(NAME, PARTITIONS)
        log.create_stream(WRITTEN, PARTITIONS)
        for partition in log.stream(NAME).partitions.values():
            for start in range(0, events // PARTITIONS, 10_000):
                values = [event(n) for n in range(start, min(start + 10_000, events // PARTITIONS))]
                partition.append(encode_columns({"value": pa.array(values, pa.binary())}))
        with ServerThread(log, feed=FeedConfig(port=0, cache_bytes=1 << 30)) as server:
            print(json.dumps({"url": f"{server.feed_url}/{NAME}"}), flush=True)
            sys.stdin.read()


@contextlib.contextmanager
def door(events: int) -> Iterator[tuple[str, psutil.Process]]:
    """A served feed in a process of its own: its url and process."""
    with tempfile.TemporaryDirectory(prefix="spark-streams-bench-") as folder:
        command = [sys.executable, __file__, "--serve", folder, str(events)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
            finally:
                process.stdin.close()


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    used = process.cpu_times()
    return float(used.user + used.system)


def drain(url: str) -> int:
    """Fetch all pages with as little work as can be; return how many lines came."""
    import http.client
    from urllib.parse import quote, urlsplit

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    lines = 0
    for partition in range(PARTITIONS):
        cursor = "_first"
        while True:
            query = f"?partition={partition}&cursor={quote(cursor, safe='')}&pageSizeHint=10000"
            connection.request("GET", parts.path + query)
            body = connection.getresponse().read()
            last = json.loads(body[body.rindex(b"\n", 0, -1) + 1 :] if body.count(b"\n") > 1 else body)
            lines += body.count(b"\n")
            if last["cursor"] == cursor:
                break
            cursor = last["cursor"]
    connection.close()
    return lines


def seconds(job: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a job takes, or says that it has taken."""
    start = clock()
    said = job()
    return said if isinstance(said, float) else clock() - start


def interleaved(
    jobs: dict[str, Callable[[], Any]], turns: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Run jobs in turns; return the median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(turns):
        for name, job in jobs.items():
            times[name].append(seconds(job, clock))
    return {name: statistics.median(each) for name, each in times.items()}


def verdict(name: str, seen: float, wanted: float, unit: str = "x") -> bool:
    """Print a line of the result; return whether the target is met."""
    met = seen >= wanted
    print(f"  {name:66} {seen:10,.2f}{unit}   target {wanted:g}{unit}  {'met' if met else 'MISSED'}", flush=True)
    return met


def beside(name: str, seen: float) -> None:
    """Print a line of the result that has no target."""
    print(f"  {name:66} {seen:10,.2f}x", flush=True)


def parsing(count: int, turns: int) -> list[bool]:
    """Compare parsing of lines in memory."""
    import orjson

    from spark_streams.wire.feed.dialect import Dialect
    from spark_streams.wire.feed.lines import LineBlocks, parse_lines

    made = [b'{"event":' + event(n) + b"}\n" for n in range(count)]
    for at in range(1_000, count + 1, 1_001):
        made.insert(at, b'{"cursor":"%020d"}\n' % at)
    body = b"".join([*made, b'{"cursor":"end"}\n'])

    def ours() -> None:
        got = 0
        lines = LineBlocks()
        for at in range(0, len(body), 1 << 20):
            for block in lines.feed(body[at : at + (1 << 20)]):
                got += parse_lines(block, Dialect.V2A).count
        assert got == count

    def by(loads: Callable[[bytes], Any]) -> Callable[[], None]:
        def run() -> None:
            values: list[Any] = []
            for line in body.split(b"\n"):
                if line:
                    read = loads(line)
                    if "event" in read:
                        values.append(read["event"])
            assert len(values) == count

        return run

    took = interleaved({"ours": ours, "json": by(json.loads), "orjson": by(orjson.loads)}, turns, time.process_time)
    print(f"parsing {count:,} lines of 100-byte events, CPU time")
    for name, each in took.items():
        print(f"  {name:12} {each / count * 1e6:8.3f} µs an event", flush=True)
    return [
        verdict("parsing: json line by line : ours", took["json"] / took["ours"], 5),
        verdict("parsing: orjson line by line : ours", took["orjson"] / took["ours"], 1),
    ]


def whole_reads(url: str, server: psutil.Process, events: int, turns: int) -> list[bool]:
    """Compare whole reads, and measure what the door spends."""
    import orjson
    from plain_feed import PlainFeed, read_with_requests, zeroeventhub_count
    from pyspark.sql import SparkSession

    import spark_streams

    met: list[bool] = []
    for how in ("first", "again"):
        before = cpu_s(server)
        wall = seconds(lambda: drain(url))
        spent = max(cpu_s(server) - before, 0.01)  # the clock's step
        print(f"door, read {how}: {events:,} events in {wall:.2f} s, {spent:.2f} s of the server's CPU")
        met.append(verdict(f"door, read {how}: events/s of one core", events / spent, 100_000, "/s"))

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    spark.dataSource.register(PlainFeed)
    with tempfile.TemporaryDirectory(prefix="spark-streams-bench-") as folder, contextlib.closing(Stopping(spark)):
        turn = iter(range(10_000))

        def batch() -> None:
            reader = spark.read.format("feedapi").schema(COLUMNS).option("url", url).option("pageSize", 10_000)
            reader.load().write.format("noop").mode("overwrite").save()

        def stream() -> float:
            number = next(turn)
            reader = spark.readStream.format("feedapi").schema(COLUMNS).option("url", url).option("pageSize", 10_000)
            reader = reader.option("startingOffsets", "earliest").option("spoolLocation", f"{folder}/spool")
            return run(reader, f"{folder}/{number}")

        def run(reader: Any, checkpoint: str) -> float:
            writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", checkpoint).start()
            query.awaitTermination()
            rows = sum(progress["numInputRows"] for progress in query.recentProgress)
            assert rows == events, f"{rows} rows of {events}"
            return sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1_000

        def plain() -> None:
            reader = spark.read.format("plain-feed").option("url", url).option("count", PARTITIONS)
            reader.load().write.format("noop").mode("overwrite").save()

        def plain_stream() -> float:
            reader = spark.readStream.format("plain-feed").option("url", url).option("count", PARTITIONS)
            return run(reader, f"{folder}/{next(turn)}")

        values = "concat('{\"id\": ', id, ', \"note\": \"', repeat('x', 80), '\"}')"
        rows = spark.range(0, events // 5, numPartitions=2).selectExpr(f"cast({values} AS binary) AS value")

        def publish(format: str) -> Callable[[], None]:
            def run() -> None:
                rows.write.format(format).option("url", f"{url.rpartition('/')[0]}/{WRITTEN}").mode("append").save()

            return run

        def counted(read: Callable[[], int]) -> Callable[[], None]:
            def run() -> None:
                assert read() == events

            return run

        jobs = {
            "feedapi, batch query": batch,
            "feedapi, stream": stream,
            "plain DataSource, batch query": plain,
            "plain DataSource, stream": plain_stream,
            "zeroeventhub client, no Spark": counted(lambda: zeroeventhub_count(url, PARTITIONS)),
            "requests and orjson, no Spark": counted(lambda: read_with_requests(url, PARTITIONS, orjson.loads)),
        }
        batch(), stream(), plain()  # warm-up
        took = interleaved(jobs, turns)
        publish("feedapi")()
        wrote = interleaved({"feedapi": publish("feedapi"), "plain DataSource": publish("plain-feed")}, turns)
    print(f"whole reads of {events:,} events, {PARTITIONS} partitions")
    for name, each in took.items():
        print(f"  {name:32} {each:8.2f} s {each / events * 1e6:8.3f} µs an event", flush=True)
    print(f"writing {events // 5:,} events to {PARTITIONS} partitions")
    for name, each in wrote.items():
        print(f"  {name:32} {each:8.2f} s {each / (events // 5) * 1e6:8.3f} µs an event", flush=True)
    ours, streamed = took["feedapi, batch query"], took["feedapi, stream"]
    beside("read: zeroeventhub client : feedapi, batch query", took["zeroeventhub client, no Spark"] / ours)
    beside("read: requests and orjson : feedapi, batch query", took["requests and orjson, no Spark"] / ours)
    beside("write: plain DataSource, rows : feedapi", wrote["plain DataSource"] / wrote["feedapi"])
    return [
        *met,
        verdict(
            "read: plain DataSource, tuples : feedapi, batch query", took["plain DataSource, batch query"] / ours, 3
        ),
        verdict("read: plain DataSource, tuples : feedapi, stream", took["plain DataSource, stream"] / streamed, 3),
    ]


class Stopping:
    """Stops a session when it is closed."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def close(self) -> None:
        self._spark.stop()


def main() -> int:
    """Run all; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, one turn")
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "EVENTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]))
        return 0
    # As many as outweigh a Spark job's start, which takes as long for every reader.
    events, turns = (100_000, 1) if given.quick else (3_000_000, 3)
    met = parsing(min(events, 200_000), 5)
    with door(events) as (url, server):
        met += whole_reads(url, server, events, turns)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
