"""What one writes without this project: a Python DataSource on rstream, and a task that sends its rows with rstream.

Nothing here is slow on purpose: whole batches are sent, the consumer has a window of ten chunks, and a row is a tuple.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

SEND_BATCH = 1_000
"""Messages of one send_batch: rstream makes one frame of them, which may not be larger than 1 MiB."""
QUEUE = 10_000


class Rows(InputPartition):
    """How many messages of a stream to read."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class PlainReader(DataSourceReader):
    """Consumes with rstream in an event loop of its own, and yields tuples."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[Rows]:
        return [Rows(int(self.options["count"]))]

    def read(self, partition: Rows) -> Iterator[tuple[Any, ...]]:
        import queue
        import threading

        rows: queue.Queue[list[tuple[Any, ...]] | None] = queue.Queue(100)
        thread = threading.Thread(target=lambda: asyncio.run(_consume(self.options, partition.count, rows)))
        thread.start()
        while (some := rows.get()) is not None:
            yield from some
        thread.join()


async def _consume(options: dict[str, str], count: int, rows: Any) -> None:
    from datetime import datetime, timezone

    from rstream import Consumer, ConsumerOffsetSpecification, OffsetType, amqp_decoder

    url = urlsplit(options["url"])
    done = asyncio.Event()
    seen, batch = 0, []

    def on_message(message: Any, context: Any) -> None:
        nonlocal seen, batch
        if seen >= count:
            return
        seen += 1
        body = b"".join(message.body) if isinstance(message.body, list) else bytes(message.body)
        instant = datetime.fromtimestamp(context.timestamp / 1000, timezone.utc)
        batch.append((body, f"{context.offset:020d}", instant))
        if len(batch) >= 1_000 or seen == count:
            rows.put(batch)
            batch = []
        if seen == count:
            done.set()

    consumer = Consumer(url.hostname, port=url.port, username=url.username, password=url.password)
    await consumer.start()
    await consumer.subscribe(
        options["stream"],
        on_message,
        decoder=amqp_decoder,
        offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
        initial_credit=10,
    )
    await done.wait()
    rows.put(None)
    await consumer.close()


class PlainSource(DataSource):
    """``format("plain-rstream")``."""

    @classmethod
    def name(cls) -> str:
        return "plain-rstream"

    def schema(self) -> str:
        return "value BINARY, offset STRING, timestamp TIMESTAMP"

    def reader(self, schema: Any) -> DataSourceReader:
        return PlainReader(dict(self.options))


def send_rows(url: str, stream: str) -> Any:
    """Return a function for ``foreachPartition`` that sends column ``value`` of its rows as AMQP messages."""

    def send(rows: Iterator[Any]) -> None:
        asyncio.run(_send(url, stream, rows))

    return send


async def _send(url: str, stream: str, rows: Iterator[Any]) -> None:
    from rstream import AMQPMessage, Producer

    parts = urlsplit(url)
    confirmed, sent = 0, 0
    done = asyncio.Event()

    async def on_confirm(status: Any) -> None:
        nonlocal confirmed
        confirmed += 1
        if confirmed == sent:
            done.set()

    async with Producer(parts.hostname, port=parts.port, username=parts.username, password=parts.password) as producer:
        batch: list[Any] = []
        for row in rows:
            batch.append(AMQPMessage(body=bytes(row.value)))
            if len(batch) == SEND_BATCH:
                sent += len(batch)
                await producer.send_batch(stream, batch, on_publish_confirm=on_confirm)
                batch = []
                await asyncio.sleep(0)
        if batch:
            sent += len(batch)
            await producer.send_batch(stream, batch, on_publish_confirm=on_confirm)
        if confirmed < sent:
            done.clear()
            await done.wait()
