"""A filter that keeps 1 % of a stream, in Spark: pushed down, as an Arrow residual, and as Spark's own ``where``.

    python tests/bench/filters.py [--quick] [--events N] [--only FORMAT]          also: make bench

One stream of the embedded log, which runs in a process of its own, is read through its three doors, with one task.
Every hundredth event is wanted, so those that are wanted lie evenly among the others. All readings have the same rows
and the default columns. Times are wall-clock seconds of one Spark job, the median of turns that take each reading once;
bytes are those of one more reading through a TCP proxy, in both directions. Ratios are what counts.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.proxy import TcpProxy  # noqa: E402

STREAM = "orders"
EVERY = 100
"""One event in so many is wanted."""
BLOCK = 20_000
TARGET = 5.0
"""Times as fast as the full read, with pushdown (issue 5, "Speed")."""
QUICK_EVENTS = 50_000
EVENTS = 4_000_000


# --- the log


def serve(folder: str, events: int, relayed: int) -> None:
    """Serve a log with a stream, say where, and stay until stdin closes.

    Args:
        folder: the log's.
        events: how many the stream has.
        relayed: the port that a second RabbitMQ door names to its clients: theirs is a relay's.
    """
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread

    with (
        ReferenceLog(folder) as log,
        ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0)) as server,
        ServerThread(log, None, RabbitConfig(port=0, advertised_host="127.0.0.1", advertised_port=relayed)) as second,
    ):
        log.create_stream(STREAM, 1)
        fill(server.rabbit_url, events)
        urls = {
            "amqp-events": server.amqp_url,
            "rabbitmq-stream": server.rabbit_url,
            "feedapi": f"{server.feed_url}/{STREAM}",
            "relayed": second.rabbit_url,
        }
        print(json.dumps(urls), flush=True)
        sys.stdin.read()


def fill(url: str, events: int) -> None:
    """Publish through the RabbitMQ door, each event with its region as filter value."""
    import pyarrow as pa

    from spark_streams.client import RabbitPublishing, TaskPublisher, encode_columns
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url

    endpoint = parse_url(url, schemes=RABBITMQ_SCHEMES)
    publisher = TaskPublisher(endpoint, RabbitPublishing(max_in_flight=40_000), None)
    for low in range(0, events, BLOCK):
        numbers = range(low, min(low + BLOCK, events))
        regions = [region(n) for n in numbers]
        values = pa.array([body(n) for n in numbers], pa.binary())
        maps = pa.array([[("region", r), ("type", "order")] for r in regions], pa.map_(pa.string(), pa.string()))
        payloads = encode_columns({"value": values, "application_properties": maps})
        publisher.send(payloads, STREAM, pa.array(regions, pa.string()), str)
    publisher.flush()
    publisher.close()


def region(number: int) -> str:
    """The region of an event: the wanted one is ``hot``."""
    return "hot" if number % EVERY == EVERY // 2 else f"cold-{number % 7}"


def body(number: int) -> bytes:
    """The JSON of an event, about 150 bytes."""
    return b'{"n":%d,"region":"%b","type":"order","pad":"%b"}' % (number, region(number).encode(), b"x" * 96)


@contextlib.contextmanager
def served(events: int, relayed: int) -> Iterator[dict[str, str]]:
    """The log in a process of its own: where its doors are."""
    with tempfile.TemporaryDirectory(prefix="spark-streams-bench-") as folder:
        command = [sys.executable, __file__, "--serve", folder, "--events", str(events), "--relayed", str(relayed)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None and process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(30)


# --- readings


@dataclass(frozen=True)
class Format:
    """How one format is read.

    Args:
        name: the format.
        where: what Spark evaluates.
        options: beside url and stream.
        pushed: options that go with a filter that is to be pushed.
    """

    name: str
    where: str
    options: dict[str, str]
    pushed: dict[str, str]


OF_MESSAGES = "application_properties['region'] = 'hot'"
FORMATS = (
    Format(
        "rabbitmq-stream",
        OF_MESSAGES,
        {"stream": STREAM},
        {"filterValueFrom": "application_properties.region"},
    ),
    Format("amqp-events", OF_MESSAGES, {"stream": STREAM}, {}),
    Format("feedapi", "get_json_object(string(value), '$.region') = 'hot'", {}, {}),
)
PUSHABLE = "region = 'hot'"
UNPUSHABLE = "region = 'hot' OR body_size < 0"
"""The same events; no peer can check the size of a body, so none can check the whole."""
PUSHDOWN, RESIDUAL, WHERE = "pushed down", "Arrow residual", "Spark's where, full read"


def readings(spark: Any, form: Format, url: str, events: int) -> dict[str, Callable[[], None]]:
    """Return the three ways to read, each of which checks its number of rows."""

    def frame(**more: str) -> Any:
        return spark.read.format(form.name).options(url=url, **form.options, **more).load()

    def counted(made: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            rows = len(made().select("offset", "value").collect())
            if rows != events // EVERY:
                raise SystemExit(f"{form.name}: {rows} rows, expected {events // EVERY}")

        return run

    return {
        PUSHDOWN: counted(lambda: frame(filter=PUSHABLE, **form.pushed)),
        RESIDUAL: counted(lambda: frame(filter=UNPUSHABLE)),
        WHERE: counted(lambda: frame().where(form.where)),
    }


def seconds(job: Callable[[], None]) -> float:
    """Return how long a job takes."""
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def through(relay: TcpProxy, urls: dict[str, str], form: Format) -> str:
    """Return the url of a door behind the relay."""
    url = urls["relayed" if form.name == "rabbitmq-stream" else form.name]
    port = urlsplit(url).port
    assert port is not None
    relay.target = ("127.0.0.1", port)
    return relay.url(url)


def compare(spark: Any, form: Format, urls: dict[str, str], relay: TcpProxy, events: int, turns: int) -> bool:
    """Measure and print one format."""
    direct = readings(spark, form, urls[form.name], events)
    relayed = readings(spark, form, through(relay, urls, form), events)
    passed = {}
    for name, job in relayed.items():  # a warm-up too
        before = relay.from_server + relay.to_server
        job()
        time.sleep(0.2)
        passed[name] = relay.from_server + relay.to_server - before
    taken: dict[str, list[float]] = {name: [] for name in direct}
    for _ in range(turns):
        for name, job in direct.items():
            taken[name].append(seconds(job))
    full = statistics.median(taken[WHERE])
    print(f"\n{form.name}: {events:,} events, {events // EVERY:,} rows out")
    for name in direct:
        middle = statistics.median(taken[name])
        print(
            f"  {name:26} {middle:7.2f} s  {full / middle:6.1f} x as fast as the full read"
            f"  {passed[name] / 1e6:9.2f} MB on the wire  {100 * passed[name] / passed[WHERE]:6.1f} %"
        )
    ratio = full / statistics.median(taken[PUSHDOWN])
    met = ratio >= TARGET
    print(f"  {'ok' if met else 'MISSED':6} pushed down : full read {ratio:.1f} x, wanted >= {TARGET:g} x")
    return met


def bench(events: int, turns: int, only: str | None) -> bool:
    """Measure all formats, or one; return whether all targets are met."""
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with TcpProxy() as relay, served(events, relay.port) as urls:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        try:
            spark.sparkContext.setLogLevel("ERROR")
            spark_streams.register(spark)
            chosen = [form for form in FORMATS if only in (None, form.name)]
            return all([compare(spark, form, urls, relay, events, turns) for form in chosen])
        finally:
            spark.stop()


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few events, one turn: does it run, not how fast is it")
    parser.add_argument("--events", type=int)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=[form.name for form in FORMATS], help="one format")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--relayed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    events = given.events or (QUICK_EVENTS if given.quick else EVENTS)
    if given.serve:
        serve(given.serve, events, given.relayed)
        return 0
    met = bench(events, 1 if given.quick else given.turns, given.only)
    # A quick run is too short to judge by: start-up weighs as much as the events.
    return 0 if given.quick or met else 1


if __name__ == "__main__":
    sys.exit(main())
