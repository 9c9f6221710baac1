"""The demo's run and its report: it starts the query, watches it, and checks its output.

The check reads the output stream and compares it with the orders that were sent, order by order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_streams.cli.demo.orders import Orders, Producer, new_session, start_query
from spark_streams.client import AmqpClient, RangeRead
from spark_streams.endpoint import parse_url
from spark_streams.errors import SparkStreamsError
from spark_streams.position import EARLIEST
from spark_streams.testing import LogProcess, LogStream

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_SOURCE: Final = "orders"
_SINK: Final = "orders-priced"
_LOOK_S: Final = 0.25
_LINE_S: Final = 2.0
_STALLED_S: Final = 120.0


def read_back(client: AmqpClient, stream: str, orders: Orders) -> dict[str, bool]:
    """Read all of ``stream`` batch by batch, and return each check in words, with whether it passed."""
    numbers: list[int] = []
    last_of_key: dict[str, int] = {}
    in_order = priced = kept = True
    for partition, bounds in client.describe(stream).partitions.items():
        if bounds.latest is None:
            continue
        read = RangeRead(stream, partition, EARLIEST, bounds.latest, ("value", "key", "timestamp"))
        for batch in client.fetch(read):
            values, keys, instants = batch.columns
            rows = zip(values.to_pylist(), keys.to_pylist(), instants.cast(pa.int64()).to_pylist(), strict=True)
            for value, key, us in rows:
                order = json.loads(value)
                number = order["order"]
                numbers.append(number)
                priced &= (order["net_cents"], order["vat_cents"], order["origin"]) == orders.priced(number)
                kept &= (key, us) == (orders.keys[number], int(orders.instants_ms[number]) * 1_000)
                in_order &= last_of_key.get(key, -1) < number
                last_of_key[key] = number
    ledger = int(orders.ledger.sum())
    return {
        f"each of {orders.count:,} orders came out exactly once": sorted(numbers) == list(range(orders.count)),
        "each customer's orders are in the order in which they were sent": in_order,
        "each order has its price and its VAT": priced,
        "each event kept its key, and its time to the millisecond; "
        f"{ledger:,} of them lie before 1970, the first on 1957-10-04": kept,
    }


def show(events: int, seconds: float, partitions: int) -> int:
    """Run the demo in the current folder, which is temporary; return the exit code."""
    stderr = os.dup(sys.stderr.fileno())
    with open("noise.log", "wb") as noise:
        os.dup2(noise.fileno(), sys.stderr.fileno())  # what the JVM says would hide the report
    try:
        _run(events, seconds, partitions)
    except KeyboardInterrupt:
        return 130
    except Exception as fault:
        os.dup2(stderr, sys.stderr.fileno())
        print("".join(Path("noise.log").read_text(errors="replace").splitlines(keepends=True)[-20:]), file=sys.stderr)
        if not isinstance(fault, (RuntimeError, SparkStreamsError)):
            raise
        print(f"The demo failed: {fault}", file=sys.stderr)
        return 1
    return 0


def _run(events: int, seconds: float, partitions: int) -> None:
    """Run the demo.

    Raises:
        RuntimeError: the demo failed; the text says why.
    """
    with LogProcess() as log:
        source = LogStream(log, _SOURCE, partitions, {"timestamp_type": "create"})
        sink = LogStream(log, _SINK, partitions, {"timestamp_type": "create"})
        source.create()
        sink.create()
        endpoint = parse_url(source.options("amqp-events")["url"])
        print(f"log       {endpoint.url}: {_SOURCE} and {_SINK}, {partitions} partitions each")
        print(f"look      {log.urls['web']}, while this runs")
        orders = Orders(events, time.time_ns() // 1_000_000)
        producer = Producer(endpoint, _SOURCE, orders, seconds)
        begun = time.monotonic()
        producer.start()
        print(f"producer  {events:,} orders in {seconds:g} s", flush=True)
        spark = new_session()
        query = start_query(spark, source, sink, str(Path.cwd() / "checkpoint"))
        print(f"Spark     {spark.version}: {_SOURCE} -> price each order, add VAT -> {_SINK}\n", flush=True)
        try:
            with AmqpClient(endpoint) as client:
                _watch(client, producer, query, orders)
                taken_s = time.monotonic() - begun
                query.processAllAvailable()  # commits the last batch before the query stops
                batches = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
                query.stop()
                checks = read_back(client, _SINK, orders)
        finally:
            spark.stop()
    for words, right in checks.items():
        print(f"{'✓' if right else '✗ not true:'} {words}")
    if faults := [words for words, right in checks.items() if not right]:
        raise RuntimeError("; not true: ".join(["what came out is not what went in", *faults]))
    print(f"\n{events:,} events in {taken_s:,.1f} s, micro-batches: {batches}; nothing of this is left behind.")


def _watch(client: AmqpClient, producer: Producer, query: StreamingQuery, orders: Orders) -> None:
    """Print how far producer and query are, until every order is written."""
    everywhere = dict.fromkeys(client.describe(_SINK).partitions, EARLIEST)
    moved_at = next_line_at = time.monotonic()
    before = (0, 0)
    while True:
        written = sum(count or 0 for count in client.remaining(_SINK, everywhere).values())
        now = time.monotonic()
        if before != (producer.sent, written):
            before, moved_at = (producer.sent, written), now
        if now >= next_line_at or written >= orders.count:
            next_line_at = now + _LINE_S
            print(f"sent {producer.sent:>10,}  written {written:>10,}", flush=True)
        if written >= orders.count:
            return
        fault = producer.fault or query.exception()
        if fault is not None:
            raise RuntimeError(f"{'the producer' if producer.fault else 'the query'}: {fault}") from fault
        if not query.isActive or now - moved_at > _STALLED_S:
            raise RuntimeError(f"the query stands still with {written:,} of {orders.count:,} orders written")
        time.sleep(_LOOK_S)


if __name__ == "__main__":  # the demo's own process, which `spark-streams demo` starts in a temporary folder
    sys.exit(show(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
