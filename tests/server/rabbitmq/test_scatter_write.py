"""Frames in many pieces: all arrive, once and in their order, whatever the socket takes at a time."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from typing import Any

from spark_streams.server.rabbitmq.session import ScatteredWriter


async def _connected(ours: socket.socket) -> tuple[asyncio.Transport, Any]:
    transport, protocol = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    return transport, protocol


def test_everything_arrives_in_order() -> None:
    chance = random.Random(3)
    writes = [[chance.randbytes(chance.choice((0, 1, 60, 5_000))) for _ in range(1_500)] for _ in range(10)]
    expected = b"".join(b"".join(pieces) + b"between" for pieces in writes)
    ours, theirs = socket.socketpair()
    received = bytearray()

    def read() -> None:
        while part := theirs.recv(chance.choice((100, 100_000))):
            received.extend(part)

    async def write() -> None:
        transport, _ = await _connected(ours)
        writer = ScatteredWriter(transport)
        for pieces in writes:
            writer.write([memoryview(piece) if len(piece) % 2 else piece for piece in pieces])
            transport.write(b"between")
            await asyncio.sleep(0.001)
        transport.close()
        while transport.get_write_buffer_size():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        writer.close()

    reader = threading.Thread(target=read)
    reader.start()
    asyncio.run(write())
    reader.join(120)
    theirs.close()
    assert bytes(received) == expected


def test_a_peer_that_is_gone_ends_the_connection_and_nothing_else() -> None:
    async def write() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await _connected(ours)
        writer = ScatteredWriter(transport)
        theirs.close()
        for _ in range(3):
            writer.write([b"x" * 1000, b"y"])
            await asyncio.sleep(0)
        assert transport.is_closing()
        writer.write([b"z"])
        writer.close()
        writer.close()

    asyncio.run(write())
