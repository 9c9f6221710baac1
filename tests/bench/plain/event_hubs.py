"""``plain-event-hubs``: azure-eventhub, Microsoft's client, as a consumer of all partitions and as a producer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench.plain.source import Batches, Plain, Row

PREFETCH = 5_000
MOST_EVENTS = 1_000
"""Of one call of the consumer's function."""


class PlainEventHubs(Plain):
    """Options: ``connectionString`` of the log, ``stream``, and for reading ``rows``, all that the stream has."""

    @classmethod
    def name(cls) -> str:
        return "plain-event-hubs"

    def read(self, partition: int) -> Iterator[Row]:
        from azure.eventhub import EventHubConsumerClient

        rows = Batches(int(self.options["rows"]))
        consumer = EventHubConsumerClient.from_connection_string(
            self.options["connectionString"], "$Default", eventhub_name=self.options["stream"]
        )

        def on_events(context: Any, events: list[Any]) -> None:
            for event in events:
                if rows.add((b"".join(event.body), event.offset)):
                    consumer.close()

        def receive() -> None:
            consumer.receive_batch(on_events, max_batch_size=MOST_EVENTS, prefetch=PREFETCH, starting_position="-1")

        return rows.of(receive)

    def write(self, bodies: Iterator[bytes]) -> None:
        from azure.eventhub import EventData, EventHubProducerClient

        with EventHubProducerClient.from_connection_string(
            self.options["connectionString"], eventhub_name=self.options["stream"]
        ) as producer:
            batch = producer.create_batch()
            for body in bodies:
                event = EventData(body)
                try:
                    batch.add(event)
                except ValueError:  # the batch is full
                    producer.send_batch(batch)
                    batch = producer.create_batch()
                    batch.add(event)
            producer.send_batch(batch)
