"""A batch query that reads all columns of a stream into nothing (``noop``): what ``read_stream`` does, as a batch.

python -m tests.bench.peers.read_all [--formats kafka,ceiling] [--rows N] [--rounds N] [--conf KEY=VALUE]
"""

from __future__ import annotations

from tests.bench.harness.cost import cost
from tests.bench.harness.filling import filled
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import ratio

NAME = "batch read, all columns"
OURS = ("rabbitmq-stream", "amqp-events", "feedapi")


def one(run: Run, form: Format) -> dict[str, float]:
    """Read all rows of a stream."""
    return read(run, form, run.options.rows)


def read(run: Run, form: Format, rows: int) -> dict[str, float]:
    """Read a stream of so many rows; that none is lost, ``read_batch`` sees."""
    stream = filled(run, form, rows)

    def job() -> None:
        form.read(run.spark, run.peers, stream).write.format("noop").mode("overwrite").save()

    return cost(run, form, rows, job)


def prepare(run: Run, form: Format) -> None:
    one(run, form)


MEASURE = Measure(
    NAME,
    ("kafka", "rabbitmq-jvm", *OURS, "ceiling"),
    one,
    prepare,
    targets=tuple(ratio(NAME, form, "ceiling", "k rows/s") for form in OURS),
)

if __name__ == "__main__":
    main(MEASURE)
