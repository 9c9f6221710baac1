"""Start of a stream: seconds from its start to the end of the first micro-batch with rows, and CPU time until then.

    python -m tests.bench.peers.start [--formats kafka,rabbitmq-stream] [--rounds N] [--conf KEY=VALUE]

The JVM has run such a query before. Spark starts anew in it before each start, so that Python's processes start too.
"""

from __future__ import annotations

import time

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import figure

NAME = "start of a stream"
OURS = ("rabbitmq-stream", "amqp-events", "feedapi")
ROWS = 100


def prepare(run: Run, form: Format) -> None:
    """Fill what is read, and start a stream of it once."""
    stream = run.streams["start", form.name] = run.peers.create(form.server)
    rows = form.rows(run.spark.range(ROWS))
    rows.write.format(form.spark).options(**form.sink(run.peers, stream)).mode("append").save()
    one(run, form)


def one(run: Run, form: Format) -> dict[str, float]:
    """Start a stream."""
    run.restart()
    with run.cpu(form) as used:
        begun = time.perf_counter()
        frame = form.read_stream(run.spark, run.peers, run.streams["start", form.name], "earliest", run.folder())
        query = frame.writeStream.format("noop").option("checkpointLocation", run.folder()).start()
        while not any(each.numInputRows for each in query.recentProgress):
            if not query.isActive:
                query.processAllAvailable()  # raises what it failed with
            time.sleep(0.05)
        took = time.perf_counter() - begun
    query.stop()
    return {"wall, s": took, "CPU of JVM, s": used["JVM"], "CPU of Python, s": used["Python"]}


MEASURE = Measure(
    NAME,
    ("kafka", "rabbitmq-jvm", *OURS),
    one,
    prepare,
    streaming=True,
    targets=tuple(figure(NAME, form, "CPU of Python, s", at_most=0.8) for form in OURS),
)


if __name__ == "__main__":
    main(MEASURE)
