"""The log's door for RabbitMQ's protocol beside the real RabbitMQ: one connection writes a stream, others read it.

    python -m tests.bench.peers.doors [--rows N] [--rounds N]

Clients run in this process, without Spark: what differs is the server. A round measures each within some seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tests.bench.harness import cpu
from tests.bench.harness.formats import BODY_BYTES, Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import ratio

NAME = "door for RabbitMQ"
FEWER = 10
"""Of the messages that rstream reads."""
LIMIT_S = 60.0


def one(run: Run, form: Format) -> dict[str, float]:
    """Write a stream and read it in three ways."""
    url, stream = run.peers.rabbitmq_url(form.server), f"{run.peers.create(form.server)}-0"
    messages = run.options.rows
    some = messages // FEWER
    ways: dict[str, tuple[int, Callable[[], None]]] = {
        "written": (messages, lambda: write(url, stream, messages)),
        "read": (messages, lambda: read(url, stream, messages)),
        "read, chunks only": (messages, lambda: read_chunks(url, stream)),
        "read by rstream": (some, lambda: asyncio.run(read_by_rstream(url, stream, some))),
    }
    figures = {}
    for name, (count, way) in ways.items():
        before, begun = cpu.of_peer(run.peers.pids[form.server]), time.perf_counter()
        way()
        figures[f"{name}, k/s"] = count / (time.perf_counter() - begun) / 1_000
        used = cpu.of_peer(run.peers.pids[form.server]) - before
        figures[f"{name}, CPU of server, µs"] = used / count * 1e6
    return figures


def endpoint(url: str) -> Any:
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url

    return parse_url(url, schemes=RABBITMQ_SCHEMES)


def write(url: str, stream: str, messages: int) -> None:
    """Publish messages, at least once."""
    import pyarrow as pa

    from spark_streams.client import RabbitPublishing, TaskPublisher, encode_columns

    publisher = TaskPublisher(endpoint(url), RabbitPublishing(max_in_flight=40_000), None)
    values = pa.array([b"x" * BODY_BYTES] * 10_000, pa.binary())
    for first in range(0, messages, len(values)):
        columns = encode_columns({"value": values.slice(0, messages - first)})
        publisher.send(columns, stream, None, str)
    publisher.flush()
    publisher.close()


def read(url: str, stream: str, messages: int) -> None:
    """Read the stream as rows."""
    from spark_streams.client import RabbitClient, RangeRead
    from spark_streams.position import EARLIEST

    with RabbitClient(endpoint(url)) as client:
        last = client.describe(stream).partitions[stream].latest
        assert last is not None
        wanted = RangeRead(stream, stream, EARLIEST, last, ("value", "offset", "timestamp"))
        rows = sum(batch.num_rows for batch in client.fetch(wanted))
    if rows != messages:
        raise RuntimeError(f"{rows} of {messages} messages came")


def read_chunks(url: str, stream: str) -> None:
    """Read the stream without decoding messages."""
    from spark_streams.client.rabbitmq.bounds import extent
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.client.rabbitmq.subscription import Subscription
    from spark_streams.wire.rabbitmq.consumer_commands import OffsetSpecification, OffsetType

    with open_connection(endpoint(url), timeout_ms=30_000) as connection:
        last = extent(connection, stream).last
        assert last is not None
        subscription = Subscription(connection, stream, OffsetSpecification(OffsetType.FIRST), 10)
        while True:
            chunk = subscription.next(LIMIT_S)
            if chunk is None:
                raise RuntimeError(f"nothing came for {LIMIT_S} seconds")
            if chunk.header.next_offset > last:
                return
            subscription.grant(1)


async def read_by_rstream(url: str, stream: str, messages: int) -> None:
    """Read the beginning of the stream with rstream, messages as bytes."""
    from rstream import Consumer, ConsumerOffsetSpecification, OffsetType

    to, seen, done = urlsplit(url), 0, asyncio.Event()

    def on_message(message: Any, context: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == messages:
            done.set()

    consumer = Consumer(to.hostname, port=to.port, username=to.username, password=to.password)
    await consumer.start()
    start = ConsumerOffsetSpecification(OffsetType.FIRST, None)
    await consumer.subscribe(stream, on_message, offset_specification=start, initial_credit=10)
    await done.wait()
    await consumer.close()


MEASURE = Measure(
    NAME,
    ("rabbitmq-stream", "rabbitmq-log"),
    one,
    targets=(
        *(
            ratio(NAME, "rabbitmq-log", "rabbitmq-stream", f"{way}, k/s", at_least=1)
            for way in ("written", "read", "read by rstream")
        ),
        ratio(NAME, "rabbitmq-log", "rabbitmq-stream", "read, chunks only, k/s"),
    ),
)

if __name__ == "__main__":
    main(MEASURE)
