"""Deliver frames without a chunk, or of a version that nobody knows: a protocol error, and no end of a range."""

from __future__ import annotations

import pytest

from spark_streams.errors import RemoteProtocolError
from tests.client.rabbitmq.brokers import read
from tests.client.rabbitmq.scripted import Chunks, S, Scripted, Wire, deliver
from tests.real_rabbitmq import by_hand as key


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(
    ("body", "version"), [(b"", 1), (b"\0", 1), (b"", 2), (bytes(56), 2), (bytes(60), 3)], ids=repr
)
def test_a_deliver_frame_that_is_none(body: bytes, version: int, first: bool) -> None:
    chunks = Chunks(deliver(0, [b"a"]), deliver(1, [b"b"]))

    def subscribe(wire: Wire, number: int, asked: bytes) -> None:
        if first:
            wire.answer(key.SUBSCRIBE, number)
        else:
            chunks.subscribe(wire, number, asked)
        wire.send(key.DELIVER, body, version)

    script = {**chunks.script(9), key.SUBSCRIBE: subscribe}
    with (
        Scripted(script) as broker,
        broker.client() as client,
        pytest.raises(RemoteProtocolError, match=f"a Deliver frame, version {version}, of {len(body) + 4} bytes"),
    ):
        read(client, S, 9)
