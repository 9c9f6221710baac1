"""Reading a log that is ten times as long: all of it, and its last tenth, beside one as long as that tenth.

    python -m tests.bench.peers.long_log [--rows N] [--rounds N]

The long log has twice ``--rows``.
"""

from __future__ import annotations

import json

from tests.bench.harness.cost import cost
from tests.bench.harness.filling import filled
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.peers import PARTITIONS
from tests.bench.harness.targets import parts

NAME = "long log"
LONGER = 10
FORMATS = ("amqp-events", "rabbitmq-log")
CPU, SERVER = FIGURES = ("CPU, µs/row", "CPU of server, µs/row")
JUDGED = (("all", SERVER), ("last tenth", SERVER), ("last tenth", CPU))
"""What is judged: the start of a query, which is in ``CPU``, weighs less in a read of ten times the rows."""


def one(run: Run, form: Format) -> dict[str, float]:
    """Read the short log, and the long one in two ways."""
    few = run.options.rows // LONGER * PARTITIONS
    many = LONGER * few
    short, long = filled(run, form, few), filled(run, form, many)
    last = last_tenth(form, long, (many - few) // PARTITIONS)
    seen = {}
    for name, stream, start, rows in (
        ("short", short, "earliest", few),
        ("all", long, "earliest", many),
        ("last tenth", long, last, few),
    ):
        used = read(run, form, stream, start, rows)
        seen |= {f"{name}: {figure}": used[figure] for figure in FIGURES}
    return seen


def last_tenth(form: Format, stream: str, first: int) -> str:
    """Return the option that starts with the same offset in each partition."""
    if form.name == "amqp-events":
        return json.dumps({str(number): {"at": f"{first:020d}"} for number in range(PARTITIONS)})
    return json.dumps({f"{stream}-{number}": first for number in range(PARTITIONS)})


def read(run: Run, form: Format, stream: str, start: str, rows: int) -> dict[str, float]:
    """Count the bodies from a position on."""

    def job() -> None:
        options = form.source(run.peers, stream) | {"startingOffsets": start}
        (seen,) = run.spark.read.format(form.spark).options(**options).load().selectExpr("count(value) AS n").collect()
        if seen["n"] != rows:
            raise RuntimeError(f"{seen['n']} of {rows} rows came")

    return cost(run, form, rows, job)


def prepare(run: Run, form: Format) -> None:
    one(run, form)


MEASURE = Measure(
    NAME,
    FORMATS,
    one,
    prepare,
    targets=tuple(
        parts(NAME, form, f"{name}: {figure}", f"short: {figure}", at_most=1.25)
        for form in FORMATS
        for name, figure in JUDGED
    ),
)

if __name__ == "__main__":
    main(MEASURE)
