"""What a stream of the log holds, read through its RabbitMQ door by hand: nothing of the project decodes it."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, NamedTuple

import proton

from spark_streams.testing import LogStream
from tests.real_rabbitmq import by_hand
from tests.real_rabbitmq.by_hand import Peer, chunk

CREDIT = 100


class Stored(NamedTuple):
    """An event as the log has it; ``raw`` is the encoded message."""

    partition: str
    offset: int
    timestamp_ms: int
    raw: bytes
    message: proton.Message

    @property
    def body(self) -> Any:
        body = self.message.body
        return bytes(body) if isinstance(body, memoryview) else body


def stored(stream: LogStream) -> list[Stored]:
    """Return all events of a stream, partition by partition, in log order."""
    events = []
    names = [stream.name] if stream.partitions == 1 else [f"{stream.name}-{n}" for n in range(stream.partitions)]
    with contextlib.closing(Peer(stream.options("rabbitmq-stream")["url"])) as peer:
        peer.open(versions=())
        for number, name in enumerate(names):
            assert peer.subscribe(number, name, by_hand.FIRST, CREDIT) == 1
            while got := peer.barrier(name):
                for frame in got:
                    events += _events(str(number), frame)
                peer.send(by_hand.CREDIT, bytes([number]) + struct.pack(">H", len(got)))
    return events


def _events(partition: str, frame: by_hand.Frame) -> list[Stored]:
    events, at = [], 0
    held = chunk(frame)
    for number in range(held.records):
        assert not held.rest[at] & 0x80, "no sub-entry batch: this door hands out single messages"
        (size,) = struct.unpack_from(">I", held.rest, at)
        raw = held.rest[at + 4 : at + 4 + size]
        message = proton.Message()
        message.decode(raw)
        events.append(Stored(partition, held.first + number, held.timestamp, raw, message))
        at += 4 + size
    assert at == held.data_length
    return events
