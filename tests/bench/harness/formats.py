"""The formats that are measured: each one's name in Spark, where it reads and writes, and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.harness.peers import Peers
from tests.server.feed.zeroeventhub_package import environment

BODY_BYTES = 100


def body(size: int = BODY_BYTES) -> str:
    """Return the SQL of a body of so many bytes."""
    return f"CAST(repeat('x', {size}) AS BINARY) AS value"


@dataclass(frozen=True)
class Format:
    """One way from a peer into Spark and back."""

    name: str
    server: str
    """``kafka``, ``rabbitmq``, ``log``, or an empty text: none."""
    spark: str
    """Its name in Spark."""
    source: Callable[[Peers, str], dict[str, str]]
    """Options for reading a stream, of streams and batches."""
    sink: Callable[[Peers, str], dict[str, str]]
    key: str = "key"
    """The sink's column that decides the partition."""
    streams_since: str = "4.0"
    """The Spark from which on it is a streaming source."""

    @property
    def ours(self) -> bool:
        return self.spark in ("rabbitmq-stream", "amqp-events", "feedapi")

    def read(self, spark: Any, peers: Peers, stream: str) -> Any:
        """Return a batch reader of a whole stream."""
        options = self.source(peers, stream)
        return spark.read.format(self.spark).options(**options, startingOffsets="earliest").load()

    def read_stream(self, spark: Any, peers: Peers, stream: str, start: str, spool: str) -> Any:
        """Return a streaming frame that starts at ``earliest`` or ``latest``."""
        options = self.source(peers, stream) | {"startingOffsets": start}
        if self.spark == "feedapi":
            options["spoolLocation"] = spool
        return spark.readStream.format(self.spark).options(**options).load()

    def rows(self, numbers: Any) -> Any:
        """Return what the sink takes, made of a frame with a number in each row."""
        return numbers.selectExpr(f"CAST({numbers.columns[-1]} AS STRING) AS {self.key}", body())


def _rabbit(peers: Peers, stream: str) -> dict[str, str]:
    return {"url": peers.urls["rabbitmq"], "superStream": stream}


def _rabbit_door(peers: Peers, stream: str) -> dict[str, str]:
    return {"url": peers.urls["rabbitmq-stream"], "superStream": stream}


def _jvm_rabbit(peers: Peers, stream: str) -> dict[str, str]:
    where, user, password = peers.endpoint()
    return {"endpoints": where, "username": user, "password": password, "superstream": stream}


def _amqp(peers: Peers, stream: str) -> dict[str, str]:
    return {"url": peers.urls["amqp"], "stream": stream}


def _hub(peers: Peers, stream: str) -> dict[str, str]:
    return {"connectionString": peers.urls["event-hubs"], "stream": stream}


def _plain_hub(peers: Peers, stream: str) -> dict[str, str]:
    return _hub(peers, stream) | {"rows": str(peers.rows.get(stream, 0))}


def _plain(door: str) -> Callable[[Peers, str], dict[str, str]]:
    """Options of a format of tests/bench/plain, which reads as many rows as it is told."""
    return lambda peers, stream: {"url": peers.urls[door], "stream": stream, "rows": str(peers.rows.get(stream, 0))}


def _feed(peers: Peers, stream: str) -> dict[str, str]:
    return {"url": f"{peers.urls['feedapi']}/{stream}"}


def _version_1(peers: Peers, stream: str) -> dict[str, str]:
    (packages,) = environment().glob("lib/python*/site-packages")
    return {**_feed(peers, stream), "packages": str(packages)}


FORMATS = {
    each.name: each
    for each in (
        Format(
            "kafka",
            "kafka",
            "kafka",
            lambda peers, stream: {"kafka.bootstrap.servers": peers.urls["kafka"], "subscribe": stream},
            lambda peers, stream: {"kafka.bootstrap.servers": peers.urls["kafka"], "topic": stream},
        ),
        Format("rabbitmq-jvm", "rabbitmq", "rabbitmq_streams", _jvm_rabbit, _jvm_rabbit, "routing_key"),
        Format("rabbitmq-stream", "rabbitmq", "rabbitmq-stream", _rabbit, _rabbit),
        # ... on the log, which has a door for RabbitMQ's protocol
        Format("rabbitmq-log", "log", "rabbitmq-stream", _rabbit_door, _rabbit_door),
        Format("plain-rstream", "rabbitmq", "plain-rstream", _plain("rabbitmq"), _plain("rabbitmq")),
        Format("amqp-events", "log", "amqp-events", _amqp, _amqp),
        Format("plain-proton", "log", "plain-proton", _plain("amqp"), _plain("amqp")),
        # ... on the log as an Event Hubs namespace
        Format("event-hubs", "log", "amqp-events", _hub, _hub),
        Format("plain-event-hubs", "log", "plain-event-hubs", _plain_hub, _plain_hub),
        Format("feedapi", "log", "feedapi", _feed, _feed, streams_since="4.2"),
        Format("plain-feed", "log", "plain-feed", _feed, _feed),
        Format("plain-zeroeventhub", "log", "plain-zeroeventhub", _version_1, _version_1),
        Format("ceiling", "", "ceiling", lambda peers, stream: {"rows": stream}, lambda peers, stream: {}),
    )
}
