"""Writes events at a steady rate; the body of each begins with the milliseconds since 1970 at which it was written.

    python -m tests.bench.harness.producer kafka SERVERS TOPIC RATE
    python -m tests.bench.harness.producer rabbitmq URL SUPER_STREAM RATE      a RabbitMQ, or the log's door for it

It writes until its input closes.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.harness.peers import PARTITIONS

TICK_S = 0.01


def ticks(rate: int) -> Iterator[list[bytes]]:
    """Yield the bodies that are due, every ten milliseconds, until the input closes."""
    begun, sent = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], TICK_S)[0]:
        due = int((time.monotonic() - begun) * rate) - sent
        sent += due
        yield [b"%013d" % (time.time_ns() // 1_000_000) + b"x" * 87] * due


def to_kafka(servers: str, topic: str) -> Callable[[list[bytes]], None]:
    """Write through Kafka's own console producer, without lingering."""
    from tests.bench.harness.kafka import classpath

    main = "org.apache.kafka.tools.ConsoleProducer"
    command = ["java", "-Xmx256m", "-XX:-UsePerfData", "-cp", classpath(), main]
    words = ["--bootstrap-server", servers, "--topic", topic, "--producer-property", "linger.ms=0"]
    process = subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    pipe = process.stdin
    assert pipe is not None

    def send(bodies: list[bytes]) -> None:
        pipe.write(b"".join(body + b"\n" for body in bodies))
        pipe.flush()

    return send


def to_rabbitmq(url: str, stream: str) -> Callable[[list[bytes]], None]:
    """Write through our client, each tick to the next partition."""
    import pyarrow as pa

    from spark_streams.client import RabbitPublishing, TaskPublisher, encode_columns
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url

    publisher = TaskPublisher(parse_url(url, schemes=RABBITMQ_SCHEMES), RabbitPublishing(max_in_flight=40_000), None)
    turn = 0

    def send(bodies: list[bytes]) -> None:
        nonlocal turn
        turn += 1
        columns = encode_columns({"value": pa.array(bodies, pa.binary())})
        publisher.send(columns, f"{stream}-{turn % PARTITIONS}", None, str)
        publisher.flush()

    return send


def main(kind: str, where: str, stream: str, rate: str) -> None:
    send = {"kafka": to_kafka, "rabbitmq": to_rabbitmq}[kind](where, stream)
    for bodies in ticks(int(rate)):
        if bodies:
            send(bodies)


if __name__ == "__main__":
    main(*sys.argv[1:])
