"""Command ``spark-streams demo``: a log, orders sent to it, a query that prices them, and a check of the result.

It runs in a process of its own, in a temporary folder. Spark is a JVM with Python workers, and the log is a process
too: however the demo ends, by itself, by Ctrl-C or by SIGTERM, ``demo`` ends all of them and removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

import spark_streams
from spark_streams import worker_python
from spark_streams.cli.errors import exit_on_signal
from spark_streams.client import AmqpClient, RangeRead
from spark_streams.endpoint import parse_url
from spark_streams.errors import OptionError
from spark_streams.position import EARLIEST
from spark_streams.testing import LogProcess, LogStream

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

VAT_PERCENT: Final = 19
_SOURCE: Final = "orders"
_SINK: Final = "orders-priced"
_ITEMS: Final = (("espresso beans", 1_290), ("tea, 100 g", 480), ("grinder", 8_900), ("filter paper", 350))
_FIRST: Final = datetime(1957, 10, 4, tzinfo=timezone.utc)
"""The time of the oldest order in the paper ledgers, whose orders come mixed with those of the shop."""
_SHOP: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_EACH_LEDGER: Final = 32
"""One order in so many is from the ledgers."""
_TICK_S: Final = 0.1
_TICK_ORDERS: Final = 5_000
"""The most orders that are sent at once."""
_LINE_S: Final = 2.0
_STALLED_S: Final = 120.0
_GRACE_S: Final = 8.0
"""Seconds that the demo's processes have to end by themselves once it is over."""


def order(n: int) -> dict[str, Any]:
    """Return order number ``n`` as a row for a sink; it is the same in every run."""
    item, price_cents = _ITEMS[n % len(_ITEMS)]
    return {
        "key": f"customer-{n * 7_919 % 200:03d}",
        "timestamp": (_SHOP if n % _EACH_LEDGER else _FIRST) + timedelta(milliseconds=n),
        "value": {"order": n, "item": item, "quantity": 1 + n % 5, "price_cents": price_cents},
    }


def priced(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value that the query should compute from an order's value: with the price and the VAT, in cents."""
    net = value["quantity"] * value["price_cents"]
    return {**value, "net_cents": net, "vat_cents": (2 * net * VAT_PERCENT + 100) // 200}


def read_back(client: AmqpClient, count: int) -> dict[str, bool]:
    """Read the query's output batch by batch, and return each check as a sentence, with whether it passed."""
    numbers: list[int] = []
    last_of_key: dict[str, int] = {}
    in_order = right = kept = True
    for partition, bounds in client.describe(_SINK).partitions.items():
        if bounds.latest is None:
            continue
        for batch in client.fetch(RangeRead(_SINK, partition, EARLIEST, bounds.latest, ("value", "key", "timestamp"))):
            for row in batch.to_pylist():
                value, key = json.loads(row["value"]), row["key"]
                number = value["order"]
                sent = order(number)
                numbers.append(number)
                right &= value == priced(sent["value"])
                kept &= (key, row["timestamp"]) == (sent["key"], sent["timestamp"])
                in_order &= last_of_key.get(key, -1) < number
                last_of_key[key] = number
    return {
        f"each of {count:,} orders came out exactly once": sorted(numbers) == list(range(count)),
        "each customer's orders are in the order in which they were sent": in_order,
        "each order has its price and its VAT": right,
        "each event kept its key, and its time to the millisecond; "
        f"{-(-count // _EACH_LEDGER):,} of them lie before 1970, the first on 1957-10-04": kept,
    }


@click.command()
@click.option(
    "--events", type=click.IntRange(1, 10_000_000), default=20_000, show_default=True, help="How many orders."
)
@click.option("--seconds", type=click.FloatRange(0), default=30.0, show_default=True, help="Time to spread them over.")
@click.option("--partitions", type=click.IntRange(1, 64), default=4, show_default=True, help="Of both streams.")
def demo(events: int, seconds: float, partitions: int) -> None:
    """Run a streaming query AMQP -> Spark -> AMQP, and show what happened.

    Starts a log of its own, writes orders into it (some of them dated before 1970), has Spark read, enrich and write
    them back, reads the result, checks it, and leaves nothing behind. Needs pyspark and Java 17 or later.
    """
    if find_spec("pyspark") is None:
        raise OptionError("demo", "pyspark is not installed: pip install 'spark-streams[spark]'")
    package = Path(__file__).resolve().parents[1]
    # The installed package has the folder in it, a checkout beside it.
    conf = next((each for each in (package / "conf", package.parent / "conf") if each.is_dir()), None)
    if conf is None:
        raise OptionError("demo", f"there is no folder conf beside {package}: install spark-streams again")
    before = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        with tempfile.TemporaryDirectory(prefix="spark-streams-demo-", ignore_cleanup_errors=True) as folder:
            noise = Path(folder, "noise.log")  # the JVM's own output would hide the report
            with noise.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, "-m", "spark_streams.cli.demo", str(events), str(seconds), str(partitions)],
                    cwd=folder,
                    env={
                        **os.environ,
                        "TMPDIR": folder,
                        "SPARK_LOCAL_DIRS": folder,
                        "SPARK_CONF_DIR": str(conf),
                        "PYSPARK_PYTHON": worker_python.executable(),
                        "PYTHONIOENCODING": "utf-8",
                        "JAVA_TOOL_OPTIONS": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
                    },
                    stdin=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,
                )
            try:
                code = process.wait()
            finally:
                _end_group(process)
            if code:
                click.echo("\n".join(noise.read_text(errors="replace").splitlines()[-20:]), err=True)
                raise click.exceptions.Exit(1)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_group(leader: subprocess.Popen[bytes]) -> None:
    """End the demo's processes, with SIGTERM before SIGKILL, and wait until they have ended.

    Python's workers are a process group of their own, and end with the JVM.
    """
    deadline = time.monotonic() + _GRACE_S
    with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left, or on macOS none but zombies
        while time.monotonic() < deadline + _GRACE_S:
            os.killpg(leader.pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            leader.poll()
            time.sleep(_TICK_S)


# --- in the demo's own process


def _run(events: int, seconds: float, partitions: int) -> None:
    """Run the demo in the current folder.

    Raises:
        SystemExit: the demo failed; the text says why.
    """
    with LogProcess() as log:
        source, sink = (LogStream(log, name, partitions, {"timestamp_type": "create"}) for name in (_SOURCE, _SINK))
        source.create()
        sink.create()
        endpoint = parse_url(source.options("amqp-events")["url"])
        print(f"log       {endpoint.url}: {_SOURCE} and {_SINK}, {partitions} partitions each")
        print(f"look      {log.urls['web']}, while this runs")
        print(f"producer  {events:,} orders in {seconds:g} s", flush=True)
        query = _start_query(source, sink)
        begun = time.monotonic()
        with AmqpClient(endpoint) as client:
            _watch(client, source, query, events, seconds)
            taken_s = time.monotonic() - begun
            query.processAllAvailable()  # commits the last batch before the query stops
            batches = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
            query.stop()
            checks = read_back(client, events)
    for words, right in checks.items():
        print(f"{'✓' if right else '✗ not true:'} {words}")
    if not all(checks.values()):
        _fail("what came out is not what went in")
    print(f"\n{events:,} events in {taken_s:,.1f} s, micro-batches: {batches}; nothing of this is left behind.")


def _start_query(source: LogStream, sink: LogStream) -> StreamingQuery:
    """Start Spark, and read ``source`` from its beginning, price each order, and write it to ``sink``."""
    from pyspark.sql import SparkSession

    # A socket's path has 104 bytes on macOS, and its temporary folders have long paths.
    builder = SparkSession.builder.config("spark.python.unix.domain.socket.enabled", "false")
    spark = builder.appName("spark-streams-demo").getOrCreate()
    spark_streams.register(spark)
    print(f"Spark     {spark.version}: {_SOURCE} -> price each order, add VAT -> {_SINK}\n", flush=True)
    options = source.options("amqp-events", startingOffsets="earliest")
    net = "o.quantity * o.price_cents"
    value = f"struct(o.*, {net} AS net_cents, bigint(round({net} * {VAT_PERCENT} / 100)) AS vat_cents)"
    return (
        spark.readStream.format("amqp-events")
        .options(**options)
        .schema("value binary, key string, timestamp timestamp")
        .load()
        .selectExpr("from_json(string(value), 'order long, item string, quantity int, price_cents long') AS o", "*")
        .selectExpr(f"to_json({value}) AS value", "key", "timestamp")
        .writeStream.format("amqp-events")
        .queryName("price-orders")
        .options(**sink.options("amqp-events", checkpointLocation=str(Path.cwd() / "checkpoint")))
        .start()
    )


def _watch(client: AmqpClient, source: LogStream, query: StreamingQuery, count: int, seconds: float) -> None:
    """Send the orders at an even pace, and print how far they and the query are, until the query has written all."""
    everywhere = dict.fromkeys(client.describe(_SINK).partitions, EARLIEST)
    begun = moved_at = next_line_at = time.monotonic()
    sent = written = 0
    while True:
        now, before = time.monotonic(), (sent, written)
        due = count if now >= begun + seconds else int(count * (now - begun) / seconds) + 1
        sent += source.produce(order(n) for n in range(sent, min(due, sent + _TICK_ORDERS)))
        written = sum(each or 0 for each in client.remaining(_SINK, everywhere).values())
        if before != (sent, written):
            moved_at = now
        if now >= next_line_at or written >= count:
            next_line_at = now + _LINE_S
            print(f"sent {sent:>10,}  written {written:>10,}", flush=True)
        if written >= count:
            return
        if (fault := query.exception()) is not None:
            _fail(f"the query: {fault}")
        if not query.isActive or now - moved_at > _STALLED_S:
            _fail(f"the query stands still with {written:,} of {count:,} orders written")
        time.sleep(_TICK_S)


def _fail(why: str) -> NoReturn:
    sys.exit(f"The demo failed: {why}")


if __name__ == "__main__":
    _run(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
