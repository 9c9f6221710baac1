"""Streams that are full before the rounds: one for each server, which all formats of that server read."""

from __future__ import annotations

import struct

from tests.bench.harness.formats import BODY_BYTES, FORMATS, Format, body
from tests.bench.harness.measure import Run
from tests.bench.harness.peers import PARTITIONS

EVENT = b'\x00\x53\x75\xa0\x09{"id": 1}'
"""An AMQP message with one data section."""
PATIENCE_MS = "300000"
"""A disk may be slow to take what a run begins with."""
PUBLISHERS = 200
"""Publishers at a time on one connection, which may have 256."""


def filled(run: Run, form: Format, rows: int, size: int = BODY_BYTES) -> str:
    """Return a stream with so many rows on the server of a format, filled when it is first asked for.

    The rows have a body of ``size`` bytes only, and every partition the same number of them.
    """
    if not form.server:
        return str(rows)
    known = ("filled", f"{form.server} {rows} {size}")
    if known not in run.streams:
        stream = run.streams[known] = run.peers.create(form.server)
        run.peers.rows[stream] = rows
        for number in range(PARTITIONS):
            frame = run.spark.range(0, rows // PARTITIONS, 1, 1).selectExpr(body(size), f"{number} AS partition")
            if form.server == "kafka":
                by = FORMATS["kafka"]
                options = by.sink(run.peers, stream)
            else:  # a partition of a super stream is a stream
                by, frame = FORMATS["rabbitmq-stream"], frame.drop("partition")
                options = {
                    "url": run.peers.rabbitmq_url(form.server),
                    "stream": f"{stream}-{number}",
                    "requestTimeout": PATIENCE_MS,
                }
            frame.write.format(by.spark).options(**options).mode("append").save()
    return run.streams[known]


def one_event_each(url: str, stream: str, partitions: int) -> None:
    """Publish one event to each partition of a super stream, by RabbitMQ's protocol."""
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url
    from spark_streams.wire.rabbitmq import publish_decode as publishing

    names = [f"{stream}-{number}" for number in range(partitions)]
    with open_connection(parse_url(url, schemes=RABBITMQ_SCHEMES), timeout_ms=60_000) as connection:
        for first in range(0, partitions, PUBLISHERS):
            some = names[first : first + PUBLISHERS]
            for number, name in enumerate(some):
                declare = publishing.DeclarePublisher(number, "", name)
                connection.request(declare, publishing.DeclarePublisherAnswer, name)
                event = struct.pack(">HHBIQI", publishing.PUBLISH_KEY, 1, number, 1, 1, len(EVENT)) + EVENT
                connection.send(struct.pack(">I", len(event)) + event)
            confirmed: set[int] = set()
            while len(confirmed) < len(some):
                frame = connection.receive(60)
                if frame is not None and frame.key == publishing.CONFIRM_KEY:
                    confirmed.add(frame.buffer[frame.start])
            for number in range(len(some)):
                delete = publishing.DeletePublisher(number)
                connection.request(delete, publishing.DeletePublisherAnswer, "delete")
