"""A log as one would meet it: what pictures of the window show."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from spark_streams.log import ReferenceLog, StreamConfig
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread, WebConfig
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.browser.believable_clients import clients

USERS: Final = {"ann": "secret", "billing": "secret"}
STREAMS: Final = {"orders": 4, "payments": 2, "clicks": 8, "telemetry": 1, "audit": 1, "dead-letters": 1}
EXPLORER: Final = datetime(1958, 2, 1, 3, 47, 56, tzinfo=timezone.utc)
"""The start of Explorer 1, whose counter of cosmic rays the stream of telemetry has."""
PEOPLE: Final = ("ada", "barbara", "edsger", "frances", "grace", "john", "karen", "niklaus")


def order(number: int, chance: random.Random) -> dict[str, Any]:
    """Return a row of stream ``orders``."""
    person = chance.choice(PEOPLE)
    goods = [
        {
            "sku": f"B-{chance.randrange(100, 999)}",
            "count": chance.randrange(1, 4),
            "price": chance.randrange(5, 90) + 0.9,
        }
        for _ in range(chance.randrange(1, 4))
    ]
    value = {"order": number, "customer": person, "country": chance.choice(["DE", "FR", "NL", "PL"]), "goods": goods}
    return {
        "key": person,
        "value": json.dumps(value).encode(),
        "properties": {"subject": "order.placed", "content_type": "application/json", "message_id": f"order-{number}"},
        "application_properties": {"region": "eu", "priority": "high" if number % 7 == 0 else "normal"},
    }


def reading(minute: int) -> dict[str, Any]:
    """Return a row of stream ``telemetry``."""
    count = 30 + 25 * math.sin(minute / 17)
    value = {"spacecraft": "Explorer 1", "minute": minute, "counts_per_second": round(count, 1)}
    return {
        "value": json.dumps(value).encode(),
        "timestamp": EXPLORER + timedelta(minutes=minute),
        "properties": {"subject": "cosmic-rays", "content_type": "application/json"},
    }


def append(log: ReferenceLog, stream: str, rows: list[dict[str, Any]], partition: int = 0) -> None:
    """Append rows to a partition."""
    names = [name for name in FULL_MESSAGE_SCHEMA.names if name in rows[0]]
    fields = {name: FULL_MESSAGE_SCHEMA.field(name).type for name in names}
    columns = {name: pa.array([_of_type(row.get(name), name) for row in rows], fields[name]) for name in names}
    times = [row["timestamp"].timestamp() * 1000 for row in rows] if "timestamp" in rows[0] else None
    there = list(log.stream(stream).partitions.values())
    there[partition].append(
        encode_columns(columns), timestamps=None if times is None else [int(each) for each in times]
    )


def _of_type(value: Any, name: str) -> Any:
    return list(value.items()) if name == "application_properties" and value is not None else value


def fill(log: ReferenceLog) -> None:
    """Create the streams, with what has happened in them."""
    chance = random.Random(1958)
    for name, partitions in STREAMS.items():
        log.create_stream(name, partitions, StreamConfig(timestamp_type="create") if name == "telemetry" else None)
    for partition in range(STREAMS["orders"]):
        append(log, "orders", [order(4 * number + partition, chance) for number in range(900)], partition)
    for partition in range(STREAMS["payments"]):
        append(log, "payments", [{"value": b'{"paid": true}', "key": chance.choice(PEOPLE)}] * 640, partition)
    for partition in range(STREAMS["clicks"]):
        append(log, "clicks", [{"value": b"/shop/%d" % chance.randrange(400)} for _ in range(5_200)], partition)
    append(log, "telemetry", [reading(minute) for minute in range(1_440)])
    append(log, "audit", [{"value": b"ann signed in"}] * 17)


@contextmanager
def believable(folder: Path, **settings: Any) -> Iterator[tuple[ReferenceLog, str]]:
    """Serve such a log, in which something happens all the time; give it, and where its window is."""
    with ReferenceLog(folder) as log:
        fill(log)
        doors = (
            AmqpConfig(port=0, users=USERS, idle_timeout_ms=0),  # its clients here are silent once they have read
            RabbitConfig(port=0, users=USERS, heartbeat_s=0),
            FeedConfig(port=0, users=USERS, idle_timeout_ms=3_600_000),
            EventHubsConfig(port=0, users=USERS, idle_timeout_ms=0),
        )
        with (
            ServerThread(log, *doors, WebConfig(port=0, users=USERS, **settings)) as server,
            clients(log, server.urls),
            _going_on(log),
        ):
            yield log, server.urls["web"].rstrip("/")


@contextmanager
def _going_on(log: ReferenceLog) -> Iterator[None]:
    """Append to some streams, at rates that come and go."""
    ending, chance = threading.Event(), random.Random(1970)

    def go_on() -> None:
        for tenth in range(10**6):
            wave = 1 + math.sin(tenth / 23) + math.sin(tenth / 7) / 2
            some = [order(3_600 + tenth, chance) for _ in range(max(1, round(14 * wave)))]
            append(log, "orders", some, tenth % STREAMS["orders"])
            clicks = [{"value": b"/shop/%d" % chance.randrange(400)} for _ in range(max(1, round(60 * (2 - wave))))]
            append(log, "clicks", clicks, tenth % STREAMS["clicks"])
            if tenth % 5 == 0:
                append(log, "payments", [{"value": b'{"paid": true}'}] * chance.randrange(1, 9), tenth % 2)
            if ending.wait(0.1):
                return

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
