"""Cases for the RabbitMQ door: what rstream said, damaged, and commands of which each part may be anything."""

from __future__ import annotations

import functools
import struct
import zlib
from random import Random

import pyarrow as pa

from tests.fuzz.mutation import INTERESTING
from tests.real_rabbitmq import by_hand as hand

CORRELATION = struct.pack(">I", 1)
NAMES = ("orders", "many", "many-0", "many-2", "created-1", "golden", "nobody", "", "amq.x", "\0", "o" * 300, "é")
ARGUMENTS = (
    {},
    {"max-age": "7D"},
    {"max-age": "9" * 300},
    {"max-length-bytes": "-1"},
    {"stream-filter-size-bytes": "16"},
    {"x": "y" * 999},
)
NESTED = (struct.pack(">I", 0x7FFFFFFF), struct.pack(">I", 0xFFFFFFFF), b"\xff\xff", b"\0" * 4_000)
BOMB_BYTES = 80 << 20
KEYS = (*range(34), 0xFFFF)
SIGNED_IN = 5


def raw(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, version) + body


def opening() -> list[bytes]:
    """Return what signs in and opens the connection."""
    return [
        raw(hand.PEER_PROPERTIES, 1, CORRELATION + hand.pairs({"product": "x"})),
        raw(hand.SASL_HANDSHAKE, 1, CORRELATION),
        raw(hand.SASL_AUTHENTICATE, 1, CORRELATION + hand.text("PLAIN") + hand.data(b"\0guest\0guest")),
        raw(hand.RESPONSE | hand.TUNE, 1, struct.pack(">II", 1 << 20, 60)),
        raw(hand.OPEN, 1, CORRELATION + hand.text("/")),
    ]


@functools.cache
def bomb(kind: int, size: int) -> bytes:
    """Return few bytes that become ``size``, all of them zero."""
    plain = bytes(size)
    if kind == 1:
        return gzipped(plain)
    if kind == 3:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(plain)
        return bytes(sink.getvalue().to_pybytes())
    if kind == 4:
        return bytes(pa.Codec("zstd").compress(plain, asbytes=True))
    block = pa.Codec("snappy").compress(bytes(65_536), asbytes=True)
    chunk = struct.pack("<I", (len(block) + 4) << 8) + b"\0\0\0\0" + block
    return b"\xff\x06\x00\x00sNaPpY" + chunk * (size // 65_536)


def gzipped(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(plain) + packer.flush()


def entry(chance: Random, number: int) -> bytes:
    """Return an entry of Publish: a message, or a sub-batch that is none, or a bomb."""
    kind = chance.randrange(8)
    if kind < 3:
        return hand.plain(number, chance.choice((b"", b"x", b"\0Su\xa0\5hello", chance.randbytes(40), b"\0" * 300)))
    records = b"".join(hand.data(b"\0Su\xa0\1" + bytes([n])) for n in range(3))
    compression = chance.randrange(8)
    if kind < 6:
        packed = {0: records, 1: gzipped(records), 4: pa.Codec("zstd").compress(records, asbytes=True)}
        stored = packed.get(compression, chance.randbytes(30))
        return hand.sub_batch(number, compression, chance.choice((3, 3, 3, 0, 65_535)), len(records), bytes(stored))
    compression = chance.choice((1, 2, 3, 4))
    size = chance.choice((1 << 20, 1 << 20, BOMB_BYTES))
    said = chance.choice((size, 100, 2**26, 2**32 - 1))
    return hand.sub_batch(number, compression, chance.choice((1, 1_000, 65_535)), said, bomb(compression, size))


def command(chance: Random) -> bytes:
    """Return a frame of any kind, its fields mostly of their types."""
    name, other = hand.text(chance.choice(NAMES)), hand.text(chance.choice(NAMES))
    number = bytes([chance.randrange(4)])
    offset = struct.pack(">Q", chance.choice(INTERESTING))
    place = chance.choice((hand.FIRST, hand.LAST, hand.NEXT, b"\0\4" + offset, b"\0\5" + offset, b"\0\6", b"\0\0"))
    options = hand.pairs(
        chance.choice(
            (
                {},
                {"filter.0": "v"},
                {"single-active-consumer": "true", "name": "n"},
                {"match-unfiltered": "x", "filter." + "9" * 50: ""},
                {"filter.sql": "(" * 3_000},
            )
        )
    )
    arguments = hand.pairs(chance.choice(ARGUMENTS))
    bodies: dict[int, bytes] = {
        hand.DECLARE_PUBLISHER: CORRELATION + number + hand.text(chance.choice(("", "r", "r" * 300))) + name,
        hand.PUBLISH: number + hand.array([entry(chance, n) for n in range(chance.randrange(5))]),
        hand.QUERY_PUBLISHER_SEQUENCE: CORRELATION + hand.text("r") + name,
        hand.DELETE_PUBLISHER: CORRELATION + number,
        hand.SUBSCRIBE: CORRELATION
        + number
        + name
        + place
        + struct.pack(">H", chance.choice((0, 1, 10, 65_535)))
        + options,
        hand.CREDIT: number + struct.pack(">H", chance.choice((0, 1, 65_535))),
        hand.STORE_OFFSET: hand.text(chance.choice(("r", "", "r" * 300))) + name + offset,
        hand.QUERY_OFFSET: CORRELATION + hand.text("r") + name,
        hand.UNSUBSCRIBE: CORRELATION + number,
        hand.CREATE: CORRELATION + name + arguments,
        hand.DELETE: CORRELATION + other,
        hand.METADATA: CORRELATION + hand.array([name, other]),
        hand.PEER_PROPERTIES: CORRELATION + arguments,
        hand.SASL_HANDSHAKE: CORRELATION,
        hand.SASL_AUTHENTICATE: CORRELATION
        + hand.text(chance.choice(("PLAIN", "EXTERNAL", "\0")))
        + hand.data(chance.choice((None, b"", b"\0guest\0guest", b"\0\xff\0"))),
        hand.TUNE: struct.pack(">II", chance.choice(INTERESTING) % 2**32, chance.choice(INTERESTING) % 2**32),
        hand.OPEN: CORRELATION + other,
        hand.CLOSE: CORRELATION + struct.pack(">H", 1) + hand.text("x"),
        hand.HEARTBEAT: b"",
        hand.ROUTE: CORRELATION + hand.text("0") + name,
        hand.PARTITIONS: CORRELATION + name,
        hand.CONSUMER_UPDATE | hand.RESPONSE: CORRELATION + struct.pack(">H", 1) + place,
        hand.EXCHANGE_COMMAND_VERSIONS: CORRELATION + hand.array([struct.pack(">HHH", chance.choice(KEYS), 1, 2)]),
        hand.STREAM_STATS: CORRELATION + name,
        hand.CREATE_SUPER_STREAM: CORRELATION
        + name
        + hand.array([other, hand.text("p1")])
        + hand.array([hand.text("0"), hand.text("1")])
        + arguments,
        hand.DELETE_SUPER_STREAM: CORRELATION + other,
        hand.RESOLVE_OFFSET: CORRELATION + name + place + options,
    }
    key = chance.choice((*bodies, *[hand.DECLARE_PUBLISHER] * 4, *[hand.PUBLISH] * 10, *[hand.SUBSCRIBE] * 6))
    if key == hand.PUBLISH and chance.random() < 0.2:
        return raw(
            key,
            2,
            number + hand.array([hand.filtered(n, chance.choice((None, "v", "v" * 300)), b"x") for n in range(3)]),
        )
    if chance.random() < 0.03:
        return raw(chance.choice(KEYS), chance.choice((0, 1, 2, 65_535)), chance.randbytes(chance.randrange(40)))
    return raw(key, 1, bodies[key])


def grammar(chance: Random) -> list[bytes]:
    """Return a conversation that begins well, and goes on with anything."""
    declared = raw(hand.DECLARE_PUBLISHER, 1, CORRELATION + b"\1" + hand.text("r") + hand.text("orders"))
    return [*opening(), declared, *(command(chance) for _ in range(chance.randint(1, 12)))]


def sized(content: bytes) -> bytes:
    """Return a frame with its true size."""
    return struct.pack(">I", len(content) - 4) + content[4:] if len(content) >= 4 else content


def illegal(answer: bytes, reset: bool) -> str | None:
    """Return what is wrong with all that the door said on a connection, or None; ``reset``: its end may be missing."""
    at = 0
    while at < len(answer):
        if len(answer) - at < 8:
            return None if reset else f"{len(answer) - at} bytes that are no frame"
        size, key, version = struct.unpack_from(">IHH", answer, at)
        if at + 4 + size > len(answer):
            return None if reset else f"a frame of {size} bytes, key {key:#x}, that is cut"
        if not 1 <= key & 0x7FFF <= 31 or version not in (1, 2):
            return f"key {key:#x} version {version} at byte {at}"
        at += 4 + size
    return None
