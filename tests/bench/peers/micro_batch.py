"""A micro-batch of 100 rows through a sink: how long Spark's trigger takes, and the CPU time of each.

python -m tests.bench.peers.micro_batch [--formats kafka,amqp-events] [--rounds N] [--conf KEY=VALUE]
"""

from __future__ import annotations

import statistics
import time

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import ratio

NAME = "micro-batch of a sink"
OURS = ("rabbitmq-stream", "amqp-events", "feedapi")
ROWS = 100
WARM = 5
"""Micro-batches before those that count."""
COUNTED = 12


def one(run: Run, form: Format) -> dict[str, float]:
    """Run a query that writes ``ROWS`` rows in each micro-batch."""
    stream = run.peers.create(form.server)
    source = run.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=2).load()
    writer = form.rows(source).writeStream.format(form.spark).options(**form.sink(run.peers, stream))
    query = writer.option("checkpointLocation", run.folder()).start()
    try:
        wait(query, WARM)
        first = query.lastProgress.batchId
        with run.cpu(form) as used:
            wait(query, first + COUNTED)
            last = query.lastProgress.batchId
    finally:
        query.stop()
    triggers = [each.durationMs for each in query.recentProgress if first < each.batchId <= last]
    batches = last - first
    return {
        "trigger, ms": statistics.median(each["triggerExecution"] for each in triggers),
        "addBatch, ms": statistics.median(each["addBatch"] for each in triggers),
        "CPU of JVM, ms": used["JVM"] / batches * 1_000,
        "CPU of Python, ms": used["Python"] / batches * 1_000,
    }


def wait(query: object, batch: int) -> None:
    while (query.lastProgress is None) or query.lastProgress.batchId < batch:  # type: ignore[attr-defined]
        if not query.isActive:  # type: ignore[attr-defined]
            query.processAllAvailable()  # type: ignore[attr-defined]  # raises what it failed with
        time.sleep(0.5)  # to ask costs CPU time too


MEASURE = Measure(
    NAME,
    ("kafka", "rabbitmq-jvm", *OURS),
    one,
    targets=tuple(ratio(NAME, form, "kafka", "trigger, ms", at_most=1.3) for form in OURS),
)

if __name__ == "__main__":
    main(MEASURE)
