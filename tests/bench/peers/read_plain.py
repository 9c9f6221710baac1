"""A batch query that reads all columns, beside what one writes without this project: formats on plain clients.

    python -m tests.bench.peers.read_plain [--formats amqp-events,plain-proton] [--rows N] [--rounds N]

Plain formats read a tenth of the rows, and two columns.
"""

from __future__ import annotations

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import ratio
from tests.bench.peers import read_all

NAME = "batch read, plain clients"
FEWER = 10
PYTHON = "CPU of Python, µs/row"


def rows_of(run: Run, form: Format) -> int:
    return int(run.options.rows) // (1 if form.ours else FEWER)


def one(run: Run, form: Format) -> dict[str, float]:
    """Read a stream."""
    return read_all.read(run, form, rows_of(run, form))


def prepare(run: Run, form: Format) -> None:
    one(run, form)


MEASURE = Measure(
    NAME,
    (
        *("rabbitmq-stream", "plain-rstream", "amqp-events", "plain-proton"),
        *("event-hubs", "plain-event-hubs", "feedapi", "plain-feed", "plain-zeroeventhub"),
    ),
    one,
    prepare,
    targets=(
        ratio(NAME, "rabbitmq-stream", "plain-rstream", "k rows/s", at_least=5),
        ratio(NAME, "plain-proton", "amqp-events", PYTHON, at_least=10),
        ratio(NAME, "plain-event-hubs", "event-hubs", PYTHON, at_least=20),
        ratio(NAME, "feedapi", "plain-feed", "k rows/s", at_least=3),
        ratio(NAME, "feedapi", "plain-zeroeventhub", "k rows/s"),
    ),
)

if __name__ == "__main__":
    main(MEASURE)
