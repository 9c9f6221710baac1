"""Who reads and writes the log of the pictures: one of each kind, some of them behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import requests

from spark_streams.client import (
    AmqpClient,
    Consumer,
    RabbitClient,
    RabbitPublishing,
    RangeRead,
    TaskPublisher,
    encode_columns,
)
from spark_streams.endpoint import AMQP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, parse_url
from spark_streams.log import ReferenceLog
from spark_streams.options.connection_string import parse_connection_string
from spark_streams.position import EARLIEST
from spark_streams.wire.amqp.dialects import EVENT_HUBS

COLUMNS = ("value", "offset")


def began(client: Any, stream: str, partition: str, last: str, ending: ExitStack) -> None:
    """Read a partition up to an offset, and stay attached."""
    batches = client.fetch(RangeRead(stream, partition, EARLIEST, last, COLUMNS))
    next(batches)
    ending.callback(batches.close)


@contextmanager
def clients(log: ReferenceLog, urls: Mapping[str, str]) -> Iterator[None]:
    """Connect them, until the context ends."""
    with ExitStack() as ending:

        def at(door: str, schemes: frozenset[str], user: str) -> Endpoint:
            return parse_url(urls[door].replace("//", f"//{user}:secret@"), schemes=schemes, option="url")

        hub = f"{urls['event-hubs'].partition(';')[0]};SharedAccessKeyName=ann;SharedAccessKey=secret"
        hub_endpoint = parse_connection_string(f"{hub};UseDevelopmentEmulator=true").endpoint
        billing = ending.enter_context(
            AmqpClient(at("amqp", AMQP_SCHEMES, "billing"), consumer_group="billing", epoch=3)
        )
        for partition, last in zip("0123", ("899", "899", "412", "899"), strict=True):
            began(billing, "orders", partition, last, ending)
        shipping = ending.enter_context(
            AmqpClient(hub_endpoint, dialect=EVENT_HUBS, consumer_group="shipping", epoch=1)
        )
        began(shipping, "orders", "0", "640", ending)
        fraud = ending.enter_context(
            RabbitClient(
                at("rabbitmq-stream", RABBITMQ_SCHEMES, "ann"), super_stream=True, consumer=Consumer("fraud", True)
            )
        )
        began(fraud, "payments", "payments-0", "600", ending)
        fraud.store_offsets({"payments-0": "511"})
        session = ending.enter_context(requests.Session())
        session.auth = ("ann", "secret")
        session.get(f"{urls['feedapi']}/clicks", params={"partition": "2", "cursor": "_first"}, timeout=120)
        shop = ending.enter_context(AmqpClient(at("amqp", AMQP_SCHEMES, "billing")))
        writer = shop.publisher("audit")
        writer.send(encode_columns({"value": pa.array([b"billing signed in"])}), str)
        writer.flush()
        ending.callback(writer.close)
        till = TaskPublisher(at("rabbitmq-stream", RABBITMQ_SCHEMES, "ann"), RabbitPublishing(), None)
        till.send(encode_columns({"value": pa.array([b'{"paid": true}'])}), "payments-1", None, str)
        till.flush()
        ending.callback(till.close)
        yield
