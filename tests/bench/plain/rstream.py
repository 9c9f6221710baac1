"""``plain-rstream``: RabbitMQ's streams by rstream, a consumer for each partition, and batches that are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from pyspark import TaskContext

from tests.bench.harness.peers import PARTITIONS
from tests.bench.plain.source import Batches, Plain, Row

SEND_BATCH = 1_000
"""Messages of one send_batch: rstream makes one frame of them, which may not be larger than 1 MiB."""


class PlainRstream(Plain):
    """Options: ``url``, super stream ``stream``, and for reading ``rows``, all that it has."""

    parts = PARTITIONS

    @classmethod
    def name(cls) -> str:
        return "plain-rstream"

    def read(self, partition: int) -> Iterator[Row]:
        rows = Batches(int(self.options["rows"]) // PARTITIONS)
        stream = f"{self.options['stream']}-{partition}"
        return rows.of(lambda: asyncio.run(_consume(self.options["url"], stream, rows)))

    def write(self, bodies: Iterator[bytes]) -> None:
        context = TaskContext.get()
        assert context is not None
        stream = f"{self.options['stream']}-{context.partitionId() % PARTITIONS}"
        asyncio.run(_send(self.options["url"], stream, bodies))


def _address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "username": parts.username, "password": parts.password}


async def _consume(url: str, stream: str, rows: Batches) -> None:
    from rstream import Consumer, ConsumerOffsetSpecification, OffsetType, amqp_decoder

    done = asyncio.Event()

    def on_message(message: Any, context: Any) -> None:
        if done.is_set():
            return
        body = b"".join(message.body) if isinstance(message.body, list) else bytes(message.body)
        if rows.add((body, f"{context.offset:020d}")):
            done.set()

    consumer = Consumer(**_address(url))
    await consumer.start()
    start = ConsumerOffsetSpecification(OffsetType.FIRST, None)
    await consumer.subscribe(stream, on_message, decoder=amqp_decoder, offset_specification=start, initial_credit=10)
    await done.wait()
    await consumer.close()


async def _send(url: str, stream: str, bodies: Iterator[bytes]) -> None:
    from rstream import AMQPMessage, Producer

    confirmed, sent = 0, 0
    some_confirmed = asyncio.Event()

    async def on_confirm(status: Any) -> None:
        nonlocal confirmed
        confirmed += 1
        some_confirmed.set()

    async with Producer(**_address(url)) as producer:
        while batch := [AMQPMessage(body=body) for body in islice(bodies, SEND_BATCH)]:
            sent += len(batch)
            await producer.send_batch(stream, batch, on_publish_confirm=on_confirm)
            await asyncio.sleep(0)
        while confirmed < sent:
            some_confirmed.clear()
            await some_confirmed.wait()
