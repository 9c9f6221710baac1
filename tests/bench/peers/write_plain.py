"""A batch query that writes rows, beside what one writes without this project: formats on plain clients.

python -m tests.bench.peers.write_plain [--formats amqp-events,plain-proton] [--rows N] [--rounds N]
"""

from __future__ import annotations

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import ratio
from tests.bench.peers import write_batch
from tests.bench.peers.read_plain import PYTHON, rows_of

NAME = "batch write, plain clients"


def one(run: Run, form: Format) -> dict[str, float]:
    """Write to a new stream; plain formats a tenth of the rows, and bodies only."""
    return write_batch.write(run, form, rows_of(run, form))


MEASURE = Measure(
    NAME,
    (
        *("rabbitmq-stream", "plain-rstream", "amqp-events", "plain-proton"),
        *("event-hubs", "plain-event-hubs", "feedapi", "plain-feed"),
    ),
    one,
    write_batch.prepare,
    targets=(
        ratio(NAME, "rabbitmq-stream", "plain-rstream", "k rows/s", at_least=4),
        ratio(NAME, "plain-proton", "amqp-events", PYTHON, at_least=10),
        ratio(NAME, "plain-event-hubs", "event-hubs", PYTHON, at_least=10),
        ratio(NAME, "feedapi", "plain-feed", "k rows/s"),
    ),
)

if __name__ == "__main__":
    main(MEASURE)
