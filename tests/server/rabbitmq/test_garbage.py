"""Whatever bytes come, a connection answers, closes with a code or drops, and the door goes on."""

from __future__ import annotations

import logging
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    CLOSE,
    CREATE,
    CREATE_SUPER_STREAM,
    CREDIT,
    DECLARE_PUBLISHER,
    DELETE,
    EXCHANGE_COMMAND_VERSIONS,
    FIRST,
    METADATA,
    OPEN,
    PARTITIONS,
    PEER_PROPERTIES,
    PUBLISH,
    QUERY_OFFSET,
    QUERY_PUBLISHER_SEQUENCE,
    RESOLVE_OFFSET,
    ROUTE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    STORE_OFFSET,
    STREAM_STATS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    array,
    data,
    filtered,
    pairs,
    plain,
    sub_batch,
    text,
)

CORRELATION = struct.pack(">I", 1)
OPENING = (
    (PEER_PROPERTIES, 1, CORRELATION + pairs({"product": "x"})),
    (SASL_HANDSHAKE, 1, CORRELATION),
    (SASL_AUTHENTICATE, 1, CORRELATION + text("PLAIN") + data(b"\0guest\0guest")),
    (0x8014, 1, struct.pack(">II", 1 << 20, 60)),
    (OPEN, 1, CORRELATION + text("/")),
)
REQUESTS = (
    (EXCHANGE_COMMAND_VERSIONS, 1, CORRELATION + array([struct.pack(">HHH", 8, 1, 2)])),
    (CREATE, 1, CORRELATION + text("s") + pairs({"max-age": "7D"})),
    (CREATE_SUPER_STREAM, 1, CORRELATION + text("t") + array([text("t-0")]) + array([text("0")]) + pairs({})),
    (DECLARE_PUBLISHER, 1, CORRELATION + b"\1" + text("r") + text("s")),
    (
        PUBLISH,
        1,
        b"\1"
        + array([plain(1, b"\0Su\xa0\5hello"), plain(2, b""), sub_batch(3, 0, 1, 6, struct.pack(">I", 2) + b"ab")]),
    ),
    (PUBLISH, 2, b"\1" + array([filtered(4, "v", b"x"), filtered(5, None, b"y")])),
    (SUBSCRIBE, 1, CORRELATION + b"\1" + text("s") + FIRST + struct.pack(">H", 10) + pairs({"filter.0": "v"})),
    (SUBSCRIBE, 1, CORRELATION + b"\2" + text("s") + struct.pack(">HQH", 4, 1, 3)),
    (CREDIT, 1, struct.pack(">BH", 1, 5)),
    (QUERY_PUBLISHER_SEQUENCE, 1, CORRELATION + text("r") + text("s")),
    (STORE_OFFSET, 1, text("r") + text("s") + struct.pack(">Q", 5)),
    (QUERY_OFFSET, 1, CORRELATION + text("r") + text("s")),
    (METADATA, 1, CORRELATION + array([text("s"), text("u")])),
    (STREAM_STATS, 1, CORRELATION + text("s")),
    (RESOLVE_OFFSET, 1, CORRELATION + text("s") + struct.pack(">Hq", 5, -1) + pairs({})),
    (ROUTE, 1, CORRELATION + text("0") + text("t")),
    (PARTITIONS, 1, CORRELATION + text("t")),
    (UNSUBSCRIBE, 1, CORRELATION + b"\1"),
    (0x801A, 1, CORRELATION + struct.pack(">HH", 1, 1)),
    (DELETE, 1, CORRELATION + text("s")),
    (CLOSE, 1, CORRELATION + struct.pack(">H", 1) + text("x")),
)


def raw(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, version) + body


def damaged(chance: random.Random, frame: bytes) -> bytes:
    """Change a frame somewhere; its size mostly stays true."""
    content = bytearray(frame)
    for _ in range(chance.randint(1, 3)):
        kind = chance.randrange(4)
        at = chance.randrange(4 if chance.random() < 0.9 else 0, len(content))
        if kind == 0:
            content[at] = chance.randrange(256)
        elif kind == 1:
            content[at : at + chance.randint(1, 4)] = chance.choice((b"\xff\xff\xff\xff", b"\0\0", b"\x7f\xff", b""))
        elif kind == 2:
            del content[max(at, 8) :]
        else:
            content += chance.randbytes(chance.randint(1, 9))
    if chance.random() < 0.95 and len(content) >= 4:
        content[:4] = struct.pack(">I", len(content) - 4)
    return bytes(content)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing unexpected may be logged while the test runs."""
    with caplog.at_level(logging.WARNING):
        yield
    # ``records`` are those of the teardown here.
    records = [r for r in caplog.get_records("call") if not r.name.startswith("py4j")]  # of other tests' Spark
    said = [r.getMessage() for r in records if r.levelno >= logging.ERROR or r.exc_info]
    assert not said


def hear_out(peer: Any) -> None:
    """Say no more, and read what the door has to say, to the end of the connection."""
    peer.socket.shutdown(socket.SHUT_WR)
    while peer.socket.recv(1 << 16):
        pass


@pytest.mark.parametrize("seed", range(6))
def test_damaged_frames(door: Any, quiet: None, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        peer = door.connect()
        frames = [raw(*frame) for frame in (*OPENING, *REQUESTS)]
        # In the handshake or, mostly, after it: what comes before is whole, so that the damage meets every state.
        place = (
            chance.randrange(len(OPENING)) if chance.random() < 0.15 else chance.randrange(len(OPENING), len(frames))
        )
        for n in range(place, len(frames)):
            if n == place or chance.random() < 0.3:
                frames[n] = damaged(chance, frames[n])
        try:
            peer.socket.sendall(b"".join(frames))
            hear_out(peer)
        except ConnectionError:
            pass
        peer.close()
    alive = door.peer()
    assert alive.create(f"after-{seed}") == 1
    door.server.call(lambda: None)


@pytest.mark.parametrize("seed", range(3))
def test_noise(door: Any, quiet: None, seed: int) -> None:
    chance = random.Random(seed)
    for opened in (False, True) * 40:
        peer = door.peer() if opened else door.connect()
        try:
            peer.socket.sendall(chance.randbytes(chance.randrange(1, 3_000)))
            hear_out(peer)
        except ConnectionError:
            pass
        peer.close()
    assert door.peer().create(f"after-{seed}") == 1
