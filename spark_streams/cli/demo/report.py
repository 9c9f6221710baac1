"""The demo's run and its report: it starts the query, watches it, checks its output, and prints tables and plots.

The check reads the output stream and compares it with the orders that were sent, order by order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from spark_streams.cli.demo.orders import VAT_PERCENT, Orders, Producer, new_session, start_query
from spark_streams.client import AmqpClient, RangeRead
from spark_streams.endpoint import parse_url
from spark_streams.errors import SparkStreamsError
from spark_streams.position import EARLIEST
from spark_streams.testing import LogProcess, LogStream

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def bar(value: float, largest: float, width: int) -> str:
    """Return a horizontal bar; ``largest`` fills ``width`` characters, and any value above 0 has at least one."""
    if largest <= 0 or value <= 0:
        return ""
    return "█" * max(1, round(width * value / largest))


def resampled(samples: Sequence[tuple[float, float]], count: int) -> list[float]:
    """Return the values of (time, value) samples, in time order, at ``count`` evenly spaced times, interpolated."""
    times, values = zip(*samples, strict=True)
    moments = np.linspace(times[0], times[-1], count)
    return [float(value) for value in np.interp(moments, times, values)]


def columns_plot(values: Sequence[float], height: int, unit: str) -> list[str]:
    """Return the lines of a plot with a column per value and labels at the left; the largest has ``height`` lines."""
    top = max(values, default=0.0) or 1.0
    label = f"{top:,.0f} {unit}"
    lines = []
    for row in range(height, 0, -1):
        cells = ""
        for value in values:
            eighths = round(8 * (value / top * height - (row - 1)))
            cells += _EIGHTHS[min(8, max(0, eighths))]
        left = label if row == height else ("0" if row == 1 else "")
        lines.append(f"{left:>18} ┤{cells}")
    return lines


class ReadBack(NamedTuple):
    """The content of the output stream, and the results of its checks.

    Args:
        per_partition: partition to its number of events.
        per_key: key to its number of events.
        checks: each check in words, to whether it passed.
    """

    per_partition: Counter[str]
    per_key: Counter[str]
    checks: dict[str, bool]


def read_back(client: AmqpClient, stream: str, orders: Orders) -> ReadBack:
    """Read all of ``stream`` batch by batch, and compare it with the orders that were sent."""
    per_partition, per_key = Counter[str](), Counter[str]()
    instants_us: dict[int, int] = {}
    numbers: list[int] = []
    ids: set[str] = set()
    net = vat = ledger = 0
    in_order = True
    last_of_key: dict[str, int] = {}
    columns = ("value", "key", "timestamp", "properties")
    for partition, bounds in sorted(client.describe(stream).partitions.items(), key=lambda each: int(each[0])):
        per_partition[partition] = 0
        if bounds.latest is None:
            continue
        for batch in client.fetch(RangeRead(stream, partition, EARLIEST, bounds.latest, columns)):
            per_partition[partition] += batch.num_rows
            values, keys, instants, properties = batch.columns
            ids.update(properties.field("message_id").to_pylist())
            rows = zip(values.to_pylist(), keys.to_pylist(), instants.cast(pa.int64()).to_pylist(), strict=True)
            for value, key, us in rows:
                order = json.loads(value)
                number = order["order"]
                numbers.append(number)
                instants_us[number] = us
                per_key[key] += 1
                net += order["net_cents"]
                vat += order["vat_cents"]
                ledger += order["origin"] == "ledger"
                in_order &= last_of_key.get(key, -1) < number
                last_of_key[key] = number
    right_vat = sum((2 * int(cents) * VAT_PERCENT + 100) // 200 for cents in orders.net_cents)
    same_times = all(instants_us.get(n, 0) // 1_000 == instant for n, instant in enumerate(orders.instants_ms))
    checks = {
        f"each of {orders.count:,} orders came out exactly once": sorted(numbers) == list(range(orders.count)),
        "every event has a message-id of its own": len(ids) == orders.count and None not in ids,
        "every customer's orders are in the order in which they were sent": in_order,
        f"all {len(per_key)} customers have their orders": per_key == orders.per_customer,
        f"the prices add up: {net / 100:,.2f} EUR": net == int(orders.net_cents.sum()),
        f"so does the VAT: {vat / 100:,.2f} EUR": vat == right_vat,
        "every event kept its time to the millisecond": same_times,
        f"{ledger:,} of them lie before 1970, the first on 1957-10-04": ledger == int(orders.ledger.sum()),
    }
    return ReadBack(per_partition, per_key, checks)


_SOURCE: Final = "orders"
_SINK: Final = "orders-priced"
_LOOK_S: Final = 0.25
_LINE_S: Final = 5.0
_STALLED_S: Final = 120.0


class _Sample(NamedTuple):
    """The numbers of orders sent and written at one moment."""

    at_s: float
    sent: int
    written: int


def show(events: int, seconds: float, partitions: int) -> int:
    """Run the demo in the current folder, which is temporary; return the exit code."""
    stderr = os.dup(sys.stderr.fileno())
    with open("noise.log", "wb") as noise:
        os.dup2(noise.fileno(), sys.stderr.fileno())  # the JVM's output would break the progress bars
    try:
        _run(Console(), events, seconds, partitions)
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


def _run(console: Console, events: int, seconds: float, partitions: int) -> None:
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
        console.print(f"log       {endpoint.url}: {_SOURCE} and {_SINK}, {partitions} partitions each", highlight=False)
        console.print(f"look      {log.urls['web']}, while this runs", highlight=False)
        orders = Orders(events, time.time_ns() // 1_000_000)
        producer = Producer(endpoint, _SOURCE, orders, seconds)
        begun = time.monotonic()
        producer.start()
        console.print(
            f"producer  {events:,} orders of {len(orders.per_customer)} customers in {seconds:g} s", highlight=False
        )
        with console.status("Spark starts"):
            spark = new_session()
            query = start_query(spark, source, sink, str(Path.cwd() / "checkpoint"))
        console.print(
            f"Spark     {spark.version}: {_SOURCE} -> price each order, add VAT -> {_SINK}\n", highlight=False
        )
        try:
            with AmqpClient(endpoint) as client:
                samples = _watch(console, client, producer, query, orders, begun)
                query.processAllAvailable()  # commits the last batch before the query stops
                batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
                query.stop()
                found = read_back(client, _SINK, orders)
        finally:
            spark.stop()
    _report(console, found, samples, len(batches))
    faults = [words for words, right in found.checks.items() if not right]
    if faults:
        raise RuntimeError("; not true: ".join(["what came out is not what went in", *faults]))


def _watch(
    console: Console, client: AmqpClient, producer: Producer, query: StreamingQuery, orders: Orders, begun: float
) -> list[_Sample]:
    """Show the progress of producer and query until every order is written, and return the samples."""
    everywhere = dict.fromkeys(client.describe(_SINK).partitions, EARLIEST)
    samples = [_Sample(0.0, 0, 0)]
    progress = Progress(
        TextColumn("{task.description:9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>12}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    moved_at = next_line_at = time.monotonic()
    with progress:
        sent_bar = progress.add_task("sent", total=orders.count, rate="")
        written_bar = progress.add_task("written", total=orders.count, rate="")
        while True:
            written = sum(count or 0 for count in client.remaining(_SINK, everywhere).values())
            now = time.monotonic()
            sample = _Sample(now - begun, producer.sent, written)
            if (sample.sent, sample.written) != (samples[-1].sent, samples[-1].written):
                moved_at = now
            samples.append(sample)
            earlier = samples[max(0, len(samples) - 8)]
            rate = (written - earlier.written) / max(_LOOK_S, sample.at_s - earlier.at_s)
            progress.update(sent_bar, completed=sample.sent)
            progress.update(written_bar, completed=written, rate=f"{rate:,.0f}/s")
            if not console.is_terminal and now >= next_line_at:
                next_line_at = now + _LINE_S
                behind = sample.sent - written
                line = f"{sample.at_s:5.1f} s  sent {sample.sent:,}  written {written:,}  behind {behind:,}"
                console.print(line, highlight=False)
            if written >= orders.count:
                return samples
            fault = producer.fault or query.exception()
            if fault is not None:
                raise RuntimeError(f"{'the producer' if producer.fault else 'the query'}: {fault}") from fault
            if not query.isActive or now - moved_at > _STALLED_S:
                raise RuntimeError(f"the query stands still with {written:,} of {orders.count:,} orders written")
            time.sleep(_LOOK_S)


def _report(console: Console, found: ReadBack, samples: list[_Sample], batches: int) -> None:
    """Print the tables, the plots and the results of the checks."""
    width = 32
    columns = ("partition", Column("events", justify="right"), "")
    table = Table(*columns, title=f"Events in {_SINK}", title_justify="left")
    most = max(found.per_partition.values())
    for partition, count in found.per_partition.items():
        table.add_row(partition, f"{count:,}", bar(count, most, width))
    table.add_section()
    top = found.per_key.most_common(8)
    for key, count in top:
        table.add_row(key, f"{count:,}", bar(count, top[0][1], width))
    rest = len(found.per_key) - len(top)
    if rest > 0:
        table.add_row(f"{rest} others", f"{sum(found.per_key.values()) - sum(c for _, c in top):,}", "")
    console.print(table)

    points = 56
    written = resampled([(s.at_s, float(s.written)) for s in samples], points + 1)
    step_s = samples[-1].at_s / points
    rates = [max(0.0, after - before) / step_s for before, after in pairwise(written)]
    lags = resampled([(s.at_s, float(s.sent - s.written)) for s in samples], points)
    axis = f"{'':18} └{'─' * points}\n{'':18}  0 s{samples[-1].at_s:>{points - 6},.0f} s"
    for title, values, unit in (("Written, events per second", rates, "/s"), ("Behind, events", lags, "events")):
        console.print(f"\n{title}", style="bold", highlight=False)
        console.print("\n".join(columns_plot(values, 5, unit)), highlight=False)
        console.print(axis, highlight=False)
    console.print()
    for words, right in sorted(found.checks.items(), key=lambda check: not check[1]):  # those that failed come last
        console.print(f"{'[green]✓[/green]' if right else '[red]✗ not true:[/red]'} {words}", highlight=False)
    seconds = samples[-1].at_s
    console.print(
        f"\n{sum(found.per_key.values()):,} events in {seconds:,.1f} s, micro-batches: {batches}; "
        "nothing of this is left behind.",
        highlight=False,
    )


if __name__ == "__main__":  # the demo's own process, which `spark-streams demo` starts in a temporary folder
    sys.exit(show(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
