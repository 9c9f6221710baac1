"""Memory of a Python worker that reads half of ``--rows`` in bodies of 1,000 bytes: 1,000 MB, if not said otherwise.

python -m tests.bench.peers.memory [--formats rabbitmq-stream,feedapi] [--rows N] [--rounds N] [--conf KEY=VALUE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bench.harness.filling import filled
from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main, release, spark_version
from tests.bench.harness.memory import MemoryWatch
from tests.bench.harness.targets import figure
from tests.bench.peers import read_stream

NAME = "memory"
BODY_BYTES = 1_000
MOST_MB = 300
OURS = ("rabbitmq-stream", "amqp-events", "feedapi")


def one(run: Run, form: Format) -> dict[str, float]:
    """Read a stream as a batch and as a stream, each with new Python processes."""
    rows = run.options.rows // 2
    stream = filled(run, form, rows, BODY_BYTES)

    def batch() -> None:
        form.read(run.spark, run.peers, stream).write.format("noop").mode("overwrite").save()

    sizes = largest(run, "batch", ("worker",), batch)
    if release(form.streams_since) <= release(spark_version()):
        sizes |= largest(run, "stream", ("worker", "planner"), lambda: read_stream.drain(run, form, stream, rows))
    return sizes


def largest(run: Run, name: str, kinds: tuple[str, ...], job: Callable[[], Any]) -> dict[str, float]:
    """Return the largest process of each kind, and the part of it that is its own."""
    run.restart()
    with MemoryWatch() as watch:
        job()
    sizes = {}
    for kind in kinds:
        sizes[f"{name}, {kind}, MB"] = watch.resident[kind]
        sizes[f"{name}, {kind}, PSS, MB"] = watch.share[kind]
    return sizes


MEASURE = Measure(
    NAME,
    OURS,
    one,
    targets=tuple(
        figure(NAME, form, f"{name}, worker, MB", at_most=MOST_MB) for form in OURS for name in ("batch", "stream")
    ),
)

if __name__ == "__main__":
    main(MEASURE)
