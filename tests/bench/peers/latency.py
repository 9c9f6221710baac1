"""Latency at 1,000 events/s with the default trigger: from an event's time to its arrival at the sink.

    python -m tests.bench.peers.latency [--formats kafka,rabbitmq-stream] [--rounds N] [--seconds S] [--conf KEY=VALUE]

A producer in a process of its own writes its clock into each body. The query reads the JVM's clock for every row as it
passes to the sink, without a Python function in any format, and Spark's observed metrics bring the differences back.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import ROOT, Measure, Run, main
from tests.bench.harness.targets import ratio

NAME = "latency"
RATE = 1_000
SETTLE_S = 3.0
"""After the first events, before latencies count: connections, code that is compiled, workers that start."""
NOW = "CAST(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)"


def produce(run: Run, form: Format, stream: str) -> subprocess.Popen[bytes]:
    kind = "kafka" if form.server == "kafka" else "rabbitmq"
    where = run.peers.urls["kafka"] if kind == "kafka" else run.peers.rabbitmq_url(form.server)
    command = [sys.executable, "-m", "tests.bench.harness.producer", kind, where, stream, str(RATE)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)


def one(run: Run, form: Format) -> dict[str, float]:
    """Follow a stream for a while."""
    stream = run.peers.create(form.server)
    frame = form.read_stream(run.spark, run.peers, stream, "latest", run.folder())
    sent = "CAST(substring(CAST(value AS STRING), 1, 13) AS BIGINT)"
    seen = frame.selectExpr("*", f"{sent} AS sent", f"{NOW} AS now")
    from pyspark.sql import functions as F

    seen = seen.observe("seen", F.collect_list(F.struct("sent", "now")).alias("times"))
    query = seen.writeStream.format("noop").option("checkpointLocation", run.folder()).start()
    producer = None
    try:
        while not query.recentProgress:
            if not query.isActive:
                query.processAllAvailable()  # raises what it failed with
            time.sleep(0.2)
        producer = produce(run, form, stream)
        while not any(each.numInputRows for each in query.recentProgress):
            if not query.isActive:
                query.processAllAvailable()
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        with run.cpu(form) as used:
            begun = time.time()
            time.sleep(run.options.seconds)
            ended = time.time()
        time.sleep(2)  # what was written last arrives
    finally:
        if producer is not None:
            assert producer.stdin is not None
            producer.stdin.close()
            producer.wait(30)
        query.stop()
    latencies, triggers = [], []
    for progress in query.recentProgress:
        times = progress.observedMetrics["seen"]["times"] if "seen" in progress.observedMetrics else []
        counted = [row["now"] - row["sent"] for row in times if begun <= row["sent"] / 1_000 < ended]
        latencies += counted
        if counted:
            triggers.append(progress.durationMs["triggerExecution"])
    if len(latencies) < 0.9 * RATE * (ended - begun):
        raise RuntimeError(f"{len(latencies)} of {RATE * (ended - begun):.0f} events came")
    latencies.sort()
    return {
        "p50, ms": statistics.median(latencies),
        "p99, ms": latencies[int(len(latencies) * 0.99)],
        "trigger, ms": statistics.median(triggers),
        "CPU of JVM, ms/s": used["JVM"] / (ended - begun) * 1_000,
        "CPU of Python, ms/s": used["Python"] / (ended - begun) * 1_000,
    }


MEASURE = Measure(
    NAME,
    ("kafka", "rabbitmq-jvm", "rabbitmq-stream", "amqp-events"),
    one,
    streaming=True,
    targets=tuple(ratio(NAME, form, "kafka", "p50, ms", at_most=1.3) for form in ("rabbitmq-stream", "amqp-events")),
)


if __name__ == "__main__":
    main(MEASURE)
