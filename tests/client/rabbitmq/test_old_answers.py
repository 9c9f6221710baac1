"""RabbitMQ 3.10 forgets the bit that marks answers to Route and Partitions; its bytes are in tests/wire/golden."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.errors import NotFound
from spark_streams.wire.rabbitmq.stream_commands import Partitions, PartitionsAnswer, Route, RouteAnswer
from tests.client.rabbitmq.scripted import Scripted, Wire
from tests.real_rabbitmq import by_hand as key

LINES = (Path(__file__).parents[2] / "wire" / "rabbitmq" / "golden" / "rabbitmq-3.10.hex").read_text().splitlines()
CAPTURED = {line.split()[0]: bytes.fromhex(line.split()[1]) for line in LINES if line.startswith("server-")}


def test_answers_without_their_bit_are_answers() -> None:
    def replay(wire: Wire, number: int, body: bytes) -> None:
        kind = "route" if body.startswith(key.text("1")) else "partitions"
        which = "unknown" if b"no" in body else "one" if kind == "route" else "three"
        raw = CAPTURED[f"server-{kind}-v1-{which}"]
        assert raw[4] == 0, "no bit"
        wire.raw(raw[:8] + struct.pack(">I", number) + raw[12:])

    with Scripted({key.PARTITIONS: replay, key.ROUTE: replay}) as broker:
        connection = open_connection(broker.endpoint, timeout_ms=120_000)
        names = tuple(f"golden-super-{n}" for n in range(3))
        assert connection.request(Partitions("golden-super"), PartitionsAnswer, "x").streams == names
        assert connection.request(Route("1", "golden-super"), RouteAnswer, "x").streams == names[1:2]
        with pytest.raises(NotFound):
            connection.request(Partitions("golden-no"), PartitionsAnswer, "x")
        with pytest.raises(NotFound):
            connection.request(Route("1", "golden-no"), RouteAnswer, "x")
        connection.close()
