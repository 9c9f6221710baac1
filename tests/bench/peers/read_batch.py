"""A batch query that reads a stream to an aggregate; ``ceiling`` is a source of ready Arrow batches.

python -m tests.bench.peers.read_batch [--formats kafka,ceiling] [--rows N] [--rounds N] [--conf KEY=VALUE]
"""

from __future__ import annotations

from tests.bench.harness.cost import cost
from tests.bench.harness.filling import filled
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import figure, ratio

NAME = "batch read"
CPU = "CPU, µs/row"


def one(run: Run, form: Format) -> dict[str, float]:
    """Read all rows of a stream."""
    rows = run.options.rows
    stream = filled(run, form, rows)

    def job() -> None:
        frame = form.read(run.spark, run.peers, stream)
        (seen,) = frame.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").collect()
        if seen["rows"] != rows:
            raise RuntimeError(f"{seen['rows']} of {rows} rows came")

    return cost(run, form, rows, job)


def prepare(run: Run, form: Format) -> None:
    one(run, form)


MEASURE = Measure(
    NAME,
    ("kafka", "rabbitmq-jvm", "rabbitmq-stream", "amqp-events", "feedapi", "ceiling"),
    one,
    prepare,
    targets=(
        ratio(NAME, "rabbitmq-stream", "rabbitmq-jvm", "k rows/s", at_least=1.2),
        ratio(NAME, "rabbitmq-stream", "rabbitmq-jvm", CPU, at_most=1),
        figure(NAME, "amqp-events", CPU, at_most=1.5),
        ratio(NAME, "rabbitmq-stream", "ceiling", "k rows/s", at_least=0.25),
        ratio(NAME, "amqp-events", "ceiling", "k rows/s"),
        ratio(NAME, "feedapi", "ceiling", "k rows/s"),
    ),
)

if __name__ == "__main__":
    main(MEASURE)
