"""A batch query that writes rows with a body and a key, made by Spark, to a stream.

python -m tests.bench.peers.write_batch [--formats kafka,rabbitmq-stream] [--rows N] [--rounds N] [--conf KEY=VALUE]
"""

from __future__ import annotations

from tests.bench.harness.cost import cost
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.peers import PARTITIONS
from tests.bench.harness.targets import figure

NAME = "batch write"


def one(run: Run, form: Format) -> dict[str, float]:
    """Write all rows to a new stream."""
    return write(run, form, run.options.rows)


def prepare(run: Run, form: Format) -> None:
    write(run, form, 10_000)


def write(run: Run, form: Format, rows: int) -> dict[str, float]:
    stream = run.peers.create(form.server)
    frame = form.rows(run.spark.range(0, rows, 1, PARTITIONS))
    writer = frame.write.format(form.spark).options(**form.sink(run.peers, stream)).mode("append")
    return cost(run, form, rows, writer.save)


MEASURE = Measure(
    NAME,
    ("kafka", "rabbitmq-jvm", "rabbitmq-stream", "amqp-events", "feedapi"),
    one,
    prepare,
    targets=(figure(NAME, "amqp-events", "k rows/s", at_least=300),),
)

if __name__ == "__main__":
    main(MEASURE)
