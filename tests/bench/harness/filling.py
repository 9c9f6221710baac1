"""Streams that are full before the rounds: one for each server, which all formats of that server read."""

from __future__ import annotations

from tests.bench.harness.formats import FORMATS, Format
from tests.bench.harness.measure import Run

FILLS = {"kafka": "kafka", "rabbitmq": "rabbitmq-stream", "log": "rabbitmq-stream"}


def filled(run: Run, form: Format, rows: int) -> str:
    """Return a stream with so many rows on the server of a format, filled when it is first asked for."""
    if not form.server:
        return str(rows)
    known = ("filled", f"{form.server} {rows}")
    if known not in run.streams:
        stream = run.peers.create(form.server)
        by = FORMATS[FILLS[form.server]]
        options = by.sink(run.peers, stream)
        if form.server != "kafka":
            options["url"] = run.peers.rabbitmq_url(form.server)
        frame = by.rows(run.spark.range(0, rows, 1, 2))
        frame.write.format(by.spark).options(**options).mode("append").save()
        run.streams[known] = stream
    return run.streams[known]
