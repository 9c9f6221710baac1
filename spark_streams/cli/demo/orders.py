"""The orders of the demo, the same in every run, the producer that sends them, and the query that prices them."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

import spark_streams
from spark_streams.client import AmqpClient, encode_columns
from spark_streams.endpoint import Endpoint
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.testing import LogStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

VAT_PERCENT: Final = 19
_CUSTOMERS: Final = 200
_ITEMS: Final = (
    ("espresso beans", 1_290),
    ("tea, 100 g", 480),
    ("grinder", 8_900),
    ("filter paper", 350),
    ("mug", 750),
)
_LEDGER_SHARE: Final = 0.03
_FIRST_LEDGER_MS: Final = -386_380_800_000
"""1957-10-04 in milliseconds: the oldest order of the paper ledgers, which come together with today's orders."""
_TICK_S: Final = 0.1
_LONGEST_FOLDER: Final = 60
"""Bytes of a folder in which a socket may lie: its path has 104 bytes on macOS, of which Spark's names take 43."""


class Orders:
    """The orders, of which a few date from before 1970.

    Args:
        count: number of orders.
        now_ms: base of the times of orders that are not from the ledgers, in milliseconds since 1970.
    """

    def __init__(self, count: int, now_ms: int) -> None:
        random = np.random.default_rng(20_260_101)
        self.count = count
        self.keys = [f"customer-{number:03d}" for number in random.integers(0, _CUSTOMERS, count)]
        self.items = random.integers(0, len(_ITEMS), count)
        self.quantities = random.integers(1, 6, count)
        self.ledger = random.random(count) < _LEDGER_SHARE
        self.ledger[0] = True
        span_ms = -_FIRST_LEDGER_MS - 1
        instants = now_ms + np.arange(count, dtype=np.int64)
        instants[self.ledger] = _FIRST_LEDGER_MS + random.integers(0, span_ms, int(self.ledger.sum()))
        instants[0] = _FIRST_LEDGER_MS
        self.instants_ms = instants
        self.net_cents = np.array([price for _, price in _ITEMS])[self.items] * self.quantities

    def priced(self, n: int) -> tuple[int, int, str]:
        """Return what the query is to add to an order: its price and its VAT in cents, and where it is from."""
        net = int(self.net_cents[n])
        return net, (2 * net * VAT_PERCENT + 100) // 200, "ledger" if self.ledger[n] else "shop"

    def columns(self, start: int, stop: int) -> dict[str, pa.Array]:
        """Return orders ``start`` (inclusive) to ``stop`` (exclusive) as the columns of a sink."""
        values = [json.dumps(self._order(n)) for n in range(start, stop)]
        instants_us = pa.array(self.instants_ms[start:stop] * 1_000)
        return {
            "value": pa.array(values),
            "key": pa.array(self.keys[start:stop]),
            "timestamp": instants_us.cast(COMMON_SCHEMA.field("timestamp").type),
        }

    def _order(self, n: int) -> dict[str, Any]:
        item, price_cents = _ITEMS[self.items[n]]
        return {"order": n, "item": item, "quantity": int(self.quantities[n]), "price_cents": price_cents}


class Producer(threading.Thread):
    """Sends the orders at an even pace.

    Args:
        endpoint: the log's endpoint.
        stream: the stream to send to.
        orders: the orders to send.
        seconds: the time over which they are spread.

    Attributes:
        sent: number of orders that the log has acknowledged.
        fault: the error that ended the producer early, or None.
    """

    def __init__(self, endpoint: Endpoint, stream: str, orders: Orders, seconds: float) -> None:
        super().__init__(name="demo-producer", daemon=True)
        self.sent = 0
        self.fault: Exception | None = None
        self._endpoint = endpoint
        self._stream = stream
        self._orders = orders
        self._seconds = seconds

    def run(self) -> None:
        """Send all orders."""
        try:
            with AmqpClient(self._endpoint) as client:
                publisher = client.publisher(self._stream)
                for stop in self._paced():
                    start = self.sent
                    payloads = encode_columns(self._orders.columns(start, stop))
                    publisher.send(payloads, lambda row: f"order {self.sent + row}")
                    publisher.flush()
                    self.sent = stop
                publisher.close()
        except Exception as fault:  # shown by the thread that watches
            self.fault = fault

    def _paced(self) -> Iterator[int]:
        """Yield, as time passes, the number of the order up to which (exclusive) the orders are due."""
        count, begun = self._orders.count, time.monotonic()
        while self.sent < count:
            share = 1.0 if self._seconds <= 0 else (time.monotonic() - begun) / self._seconds
            due = min(count, int(count * share) + 1, self.sent + 5_000)
            if due > self.sent:
                yield due
            if self.sent < count:
                time.sleep(_TICK_S)


def new_session() -> SparkSession:
    """Start Spark, which reads its settings from conf/spark-defaults.conf.

    Only the JVM's temporary folder is set here, so that the files that it unpacks are removed with the demo; and where
    its path is long, as on macOS, Spark's sockets are not in it.
    """
    from pyspark.sql import SparkSession

    folder = tempfile.gettempdir()
    builder = SparkSession.builder.appName("spark-streams-demo")
    builder.config("spark.driver.extraJavaOptions", f"-XX:-UsePerfData -Djava.io.tmpdir={folder}")
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        builder.config("spark.python.unix.domain.socket.enabled", "false")
    spark = builder.getOrCreate()
    spark_streams.register(spark)
    return spark


def start_query(spark: SparkSession, source: LogStream, sink: LogStream, checkpoint: str) -> StreamingQuery:
    """Read ``source`` from its beginning, price each order, and write it to ``sink`` with the same key and time."""
    from pyspark.sql import functions as F

    orders = (
        spark.readStream.format("amqp-events")
        .options(**source.options("amqp-events", startingOffsets="earliest"))
        .schema("value binary, key string, timestamp timestamp")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), "order long, item string, quantity int, price_cents long")
    net = F.col("o.quantity") * F.col("o.price_cents")
    vat = F.round(net * VAT_PERCENT / 100).cast("long")
    origin = F.when(F.col("timestamp") < F.lit("1970-01-01").cast("timestamp"), "ledger").otherwise("shop")
    value = F.struct("o.*", net.alias("net_cents"), vat.alias("vat_cents"), origin.alias("origin"))
    priced = orders.withColumn("o", order).select(F.to_json(value).alias("value"), "key", "timestamp")
    return (
        priced.writeStream.format("amqp-events")
        .queryName("price-orders")
        .options(**sink.options("amqp-events", checkpointLocation=checkpoint))
        .start()
    )
