"""What it costs to plan an idle micro-batch of a stream with many partitions, on the log and on a real RabbitMQ.

    python -m tests.bench.peers.partitions [--formats feedapi] [--partitions 100,1000,10000] [--rounds N]

Every partition holds one event. Measured is what Spark calls in a trigger that finds nothing, without Spark:
``latestOffset`` with a description that is not cached, ``reportLatestOffset``, the JSON of the offsets. ``first`` is
the plan of batch 0 until its tasks are there: ``initialOffset``, ``latestOffset``, ``partitions``. CPU is that of the
planning process (driver) and of the serving one.
"""

from __future__ import annotations

import json
import time
from importlib import import_module
from statistics import median
from typing import Any

from tests.bench.harness.filling import one_event_each
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import figure, parts

NAME = "many partitions"
FORMATS = ("rabbitmq-stream", "rabbitmq-log", "amqp-events", "feedapi")
SOURCES = {
    "rabbitmq-stream": ("spark_streams.sources.rabbitmq_stream", "RabbitStreamDataSource"),
    "amqp-events": ("spark_streams.sources.amqp_events", "AmqpEventsDataSource"),
    "feedapi": ("spark_streams.sources.feedapi", "FeedDataSource"),
}
PATIENCE_MS = "300000"
QUIET_S = 3.0
"""Seconds without an event after which a feed's fetchers have polled every partition again."""
PLANS = 5
"""Idle micro-batches of a round."""


def one(run: Run, form: Format) -> dict[str, float]:
    """Plan streams of all sizes."""
    seen = {}
    for partitions in run.options.partitions:
        stream = run.streams[NAME, f"{form.server} {partitions}"]
        seen |= {f"{partitions}: {name}": value for name, value in plan(run, form, stream, partitions).items()}
    return seen


def prepare(run: Run, form: Format) -> None:
    """Make a stream of each size on the format's server, where another format has not made it."""
    for partitions in run.options.partitions:
        known = (NAME, f"{form.server} {partitions}")
        if known not in run.streams:
            run.streams[known] = run.peers.create(form.server, partitions)
            one_event_each(run.peers.rabbitmq_url(form.server), run.streams[known], partitions)


def plan(run: Run, form: Format, stream: str, partitions: int) -> dict[str, float]:
    """Plan batch 0, and then idle micro-batches."""
    reader = reader_of(run, form, stream)
    try:
        with run.cpu(form) as first_cpu:
            begun = time.perf_counter()
            end = planned(reader, reader.initialOffset())
            tasks = len(reader.partitions(through_json(reader.initialOffset()), through_json(end)))
            if form.name == "feedapi":  # what a plan takes is what was fetched: it may take several plans
                while tasks < partitions:
                    start, end = end, planned(reader, end)
                    tasks += len(reader.partitions(through_json(start), through_json(end)))
            first = time.perf_counter() - begun
        if tasks != partitions:
            raise RuntimeError(f"{tasks} tasks for {partitions} partitions")
        if form.name == "feedapi":
            end = settled(reader, end)
        reader.commit(through_json(end))
        took = []
        with run.cpu(form) as cpu:
            for _ in range(PLANS):
                stale(reader, form)
                begun = time.perf_counter()
                again = planned(reader, end)
                through_json(reader.reportLatestOffset())
                took.append(time.perf_counter() - begun)
                if again != end and form.name != "feedapi":
                    raise RuntimeError("the trigger was not idle")
                end = again
    finally:
        reader.stop()
    return {
        "idle, ms": median(took) * 1e3,
        "idle, CPU of driver, ms": cpu["Python"] / PLANS * 1e3,
        "idle, CPU of server, ms": cpu["server"] / PLANS * 1e3,
        "first, ms": first * 1e3,
        "first, CPU of driver, ms": first_cpu["Python"] * 1e3,
        "first, CPU of server, ms": first_cpu["server"] * 1e3,
    }


def reader_of(run: Run, form: Format, stream: str) -> Any:
    """A stream reader, as Spark makes it."""
    module, kind = SOURCES[form.spark]
    options = form.source(run.peers, stream) | {"startingOffsets": "earliest", "requestTimeout": PATIENCE_MS}
    source = getattr(import_module(module), kind)(options)
    return source.streamReader(source.schema())


def through_json(offset: Any) -> Any:
    """What Spark does with an offset between its calls."""
    return json.loads(json.dumps(offset))


def planned(reader: Any, start: Any) -> Any:
    """Ask for the end of the next micro-batch, as Spark 4.2 and later does."""
    return through_json(reader.latestOffset(through_json(start), reader.getDefaultReadLimit()))


def settled(reader: Any, end: Any) -> Any:
    """Plan a feed until its offsets stay as they are."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        start, end = end, planned(reader, end)
        if start != end:
            quiet_since = time.monotonic()
        time.sleep(0.1)
    return end


def stale(reader: Any, form: Format) -> None:
    """Make the planner's description of the server too old, as a poll interval does."""
    planner = reader._planner
    if form.name == "feedapi":
        planner._discovered = None
    else:
        planner._driver._described_at = float("-inf")


MEASURE = Measure(
    NAME,
    FORMATS,
    one,
    prepare,
    targets=(
        *(figure(NAME, form, "1000: idle, ms", at_most=300) for form in FORMATS),
        *(parts(NAME, form, "1000: idle, ms", "100: idle, ms", at_most=12) for form in FORMATS),
    ),
)

if __name__ == "__main__":
    main(MEASURE)
