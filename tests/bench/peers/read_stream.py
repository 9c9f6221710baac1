"""A stream that reads all columns of what is there (``availableNow``) into nothing (``noop``).

python -m tests.bench.peers.read_stream [--formats kafka,rabbitmq-stream] [--rows N] [--rounds N] [--conf KEY=VALUE]
"""

from __future__ import annotations

from tests.bench.harness.cost import cost
from tests.bench.harness.filling import filled
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import Target, ratio
from tests.bench.peers import read_all

NAME = "stream read"
FORMATS = ("kafka", "rabbitmq-jvm", "rabbitmq-stream", "amqp-events", "feedapi")
CPU = "CPU, µs/row"
AT_MOST = {"feedapi": 1.3}
"""Times the CPU of the batch query."""


def one(run: Run, form: Format) -> dict[str, float]:
    """Read all rows of a stream."""
    return read(run, form, run.options.rows)


def read(run: Run, form: Format, rows: int) -> dict[str, float]:
    """Read a stream of so many rows, from a new checkpoint."""
    stream = filled(run, form, rows)

    return cost(run, form, rows, lambda: drain(run, form, stream, rows))


def drain(run: Run, form: Format, stream: str, rows: int) -> None:
    """Read what is there, from a new checkpoint."""
    frame = form.read_stream(run.spark, run.peers, stream, "earliest", run.folder())
    writer = frame.writeStream.format("noop").option("checkpointLocation", run.folder())
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seen = sum(each.numInputRows for each in query.recentProgress)
    if seen != rows:
        raise RuntimeError(f"{seen} of {rows} rows came")


def prepare(run: Run, form: Format) -> None:
    one(run, form)


def of_batch(form: str) -> Target:
    """The same query as a stream and as a batch."""
    over, under = (NAME, form, CPU), (read_all.NAME, form, CPU)
    return Target(f"`{form}`, stream : batch, {CPU}", over, under, at_most=AT_MOST.get(form))


MEASURE = Measure(
    NAME,
    FORMATS,
    one,
    prepare,
    streaming=True,
    targets=(
        ratio(NAME, "rabbitmq-stream", "rabbitmq-jvm", "k rows/s", at_least=1.2),
        ratio(NAME, "rabbitmq-stream", "rabbitmq-jvm", CPU, at_most=1),
        *map(of_batch, FORMATS),
    ),
)


if __name__ == "__main__":
    main(MEASURE)
