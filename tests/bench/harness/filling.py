"""Streams that are full before the rounds: one for each server, which all formats of that server read."""

from __future__ import annotations

from tests.bench.harness.formats import BODY_BYTES, FORMATS, Format, body
from tests.bench.harness.measure import Run
from tests.bench.harness.peers import PARTITIONS


def filled(run: Run, form: Format, rows: int, size: int = BODY_BYTES) -> str:
    """Return a stream with so many rows on the server of a format, filled when it is first asked for.

    The rows have a body of ``size`` bytes only, and every partition the same number of them.
    """
    if not form.server:
        return str(rows)
    known = ("filled", f"{form.server} {rows} {size}")
    if known not in run.streams:
        stream = run.streams[known] = run.peers.create(form.server)
        for number in range(PARTITIONS):
            frame = run.spark.range(0, rows // PARTITIONS, 1, 1).selectExpr(body(size), f"{number} AS partition")
            if form.server == "kafka":
                by = FORMATS["kafka"]
                options = by.sink(run.peers, stream)
            else:  # a partition of a super stream is a stream
                by, frame = FORMATS["rabbitmq-stream"], frame.drop("partition")
                options = {"url": run.peers.rabbitmq_url(form.server), "stream": f"{stream}-{number}"}
            frame.write.format(by.spark).options(**options).mode("append").save()
    return run.streams[known]
