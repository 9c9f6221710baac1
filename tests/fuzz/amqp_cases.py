"""Cases for the AMQP door: what proton said, damaged, and frames of which each part may be anything."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.fuzz.mutation import INTERESTING

SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
DEEP = 3_000
NESTED = (
    b"\x00" * 1_000,
    b"\xc0\x02\x01" * 300 + b"\x40",
    b"".join(struct.pack(">BII", 0xD0, 9 * (DEEP - n) + 1, 1) for n in range(DEEP)) + b"\x40",
    b"".join(struct.pack(">BII", 0xF0, 9 * (DEEP - n) + 1, 1) for n in range(DEEP)) + b"\x40",
    b"\x00\x53\x24" * DEEP + b"\x45",
    b"\xf0\x00\x00\x00\x05\x7f\xff\xff\xff\x40",
    b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45",
)
ADDRESSES = (
    "orders",
    "many",
    "created",
    "/orders",
    "orders/$info",
    "many/$info",
    "%6frders",
    "",
    "\0",
    "nobody",
    "o" * 300,
)
SQL = (
    "offset > '5'",
    "a = 1 AND (b LIKE '%x_' ESCAPE '!' OR NOT c IN ('1','2'))",
    "(" * 2_000 + "1=1" + ")" * 2_000,
    "NOT " * 4_000 + "TRUE",
    " OR ".join(["a=1"] * 3_000),
    "- " * 5_000 + "1 > 0",
    "a LIKE '" + "%a" * 3_000 + "b'",
    "timestamp BETWEEN -9223372036854775808 AND 9223372036854775807",
    "1e400 > 0x" + "f" * 400,
    "9" * 5_000 + " > 1 / 0",
    "'" + "''" * 5_000,
    "properties.subject IS NULL AND substring('abc', 1 / 0) = 'a'",
    "\ud7ff\0\u2028 = 1",
    "application_properties['" + "x" * 5_000 + "'] = 1.5",
)


def symbol(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return b"\xb3" + struct.pack(">I", len(encoded)) + encoded


def string(text: str) -> bytes:
    return b"\xb1" + symbol(text)[1:]


def compound(code: int, items: list[bytes]) -> bytes:
    content = b"".join(items)
    return struct.pack(">BII", code, len(content) + 4, len(items)) + content


def listed(items: list[bytes]) -> bytes:
    return compound(0xD0, items)


def mapped(items: list[bytes]) -> bytes:
    return compound(0xD1, items)


def described(code: int, value: bytes) -> bytes:
    return b"\x00\x80" + struct.pack(">Q", code) + value


def frame(body: bytes, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, 0, channel) + body


def anything(chance: Random, depth: int = 0) -> bytes:
    """Return a value of any type, now and then one that is none."""
    kind = chance.randrange(22 if depth < 4 else 14)
    number = (chance.choice(INTERESTING) + chance.choice((-1, 0, 1))) % 2**64
    if kind < 4:
        code, size = chance.choice(
            (
                (0x50, 1),
                (0x52, 1),
                (0x53, 1),
                (0x60, 2),
                (0x70, 4),
                (0x71, 4),
                (0x80, 8),
                (0x81, 8),
                (0x83, 8),
                (0x82, 8),
            )
        )
        return bytes([code]) + (number % (1 << 8 * size)).to_bytes(size, "big")
    if kind < 8:
        return chance.choice((b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45", b"\x56\x02", b"\x98" + b"u" * 16))
    if kind < 11:
        return chance.choice((string, symbol))(chance.choice((*ADDRESSES, "\U0001f600", "é" * 40)))
    if kind == 11:
        return b"\xa0\x05\xff\x00\xfeab"
    if kind == 12:
        return b"\x94" + chance.randbytes(16)
    if kind == 13:
        return bytes([chance.randrange(256)]) + chance.randbytes(chance.randrange(6))
    items = [anything(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind < 16:
        return listed(items)
    if kind < 19:
        return mapped(items)
    if kind == 19:
        return described(chance.choice((0x24, 0x29, 0x70, 0x120, 0x200, 0x201, 2**64 - 1)), anything(chance, depth + 1))
    if kind == 20:
        return b"\xf0" + struct.pack(">II", 5 + 4 * len(items), len(items)) + b"\x71" + bytes(4 * len(items))
    return chance.choice(NESTED)


def _or_anything(chance: Random, value: bytes) -> bytes:
    return anything(chance) if chance.random() < 0.06 else value


def filters(chance: Random) -> bytes:
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: described(0x201, string(chance.choice(SQL))),
        lambda: described(0x120, string(chance.choice(SQL))),
        lambda: described(
            0x200,
            mapped([symbol("event-streams-offset"), symbol(chance.choice(("@earliest", "@latest", "0", "9" * 40)))]),
        ),
        lambda: described(
            0x200, mapped([symbol("event-streams-timestamp"), b"\x83" + chance.choice(INTERESTING).to_bytes(8, "big")])
        ),
        lambda: anything(chance),
    )
    pairs: list[bytes] = []
    for number in range(chance.randrange(4)):
        pairs += [symbol(f"f{number}"), chance.choice(kinds)()]
    return mapped(pairs)


def performative(chance: Random) -> bytes:
    """Return a frame of any kind, its fields mostly of their types."""
    handle = chance.randrange(3)
    uint = b"\x70" + struct.pack(">I", chance.choice((0, 1, 10, 1_000, 2**31, 2**32 - 1)))
    small = b"\x52" + bytes([chance.randrange(4)])
    null, address = b"\x40", string(chance.choice(ADDRESSES))
    properties = mapped(
        [
            symbol("event-streams-partition"),
            symbol(chance.choice(("0", "1", "9", "x"))),
            symbol("event-streams-consumer-group"),
            string("g"),
            symbol("event-streams-epoch"),
            anything(chance),
        ]
    )
    terminus = [address, small, symbol(chance.choice(("never", "link-detach", "x"))), uint, b"\x42", null, null]
    source = described(0x28, listed([*terminus, filters(chance)]))
    target = described(0x29, listed(terminus))
    role = chance.choice((b"\x41", b"\x42"))
    bodies: dict[int, list[bytes]] = {
        0x10: [string("c"), string("h"), uint, b"\x60\x00\x10", uint, null, null, null, null, properties],
        0x11: [null, b"\x43", uint, uint, uint],
        0x12: [
            string(f"l{handle}"),
            b"\x52" + bytes([handle]),
            role,
            null,
            null,
            source,
            target,
            null,
            null,
            b"\x43",
            b"\x44",
            null,
            null,
            chance.choice((null, properties)),
        ],
        0x13: [uint, uint, b"\x43", uint, b"\x52" + bytes([handle]), uint, uint, null, role, role],
        0x14: [
            b"\x52" + bytes([handle]),
            uint,
            b"\xa0\x01a",
            b"\x43",
            role,
            chance.choice((b"\x41", b"\x42", b"\x42")),
        ],
        0x15: [
            role,
            uint,
            uint,
            b"\x41",
            described(chance.choice((0x23, 0x24, 0x25, 0x26, 0x27)), listed([anything(chance)] * chance.randrange(2))),
        ],
        0x16: [b"\x52" + bytes([handle]), role],
        0x17: [],
        0x18: [],
    }
    code = chance.choices(list(bodies), (1, 4, 12, 8, 12, 4, 3, 1, 1))[0]
    fields = [_or_anything(chance, field) for field in bodies[code]]
    body = b"\x00\x53" + bytes([code]) + listed(fields)
    return frame(body + (message(chance) if code == 0x14 else b""), chance.choice((0, 0, 0, 0, 1, 65_535)))


def message(chance: Random) -> bytes:
    """Return sections of a message."""
    sections: list[bytes] = []
    for code in sorted(chance.sample((0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78), chance.randrange(5))):
        value = anything(chance)
        if code == 0x75 and chance.random() < 0.8:
            value = b"\xb0\x00\x00\x00\x03abc"
        elif code == 0x73 and chance.random() < 0.8:
            value = listed([anything(chance) for _ in range(chance.randrange(14))])
        elif code in (0x72, 0x74, 0x71, 0x78) and chance.random() < 0.8:
            value = mapped([symbol("event-streams-group-key"), anything(chance), string("a"), anything(chance)])
        sections.append(b"\x00\x53" + bytes([code]) + value)
    if chance.random() < 0.1:
        chance.shuffle(sections)
    return b"".join(sections)


def opening() -> list[bytes]:
    """Return what signs in, and opens a connection and a session."""
    init = b"\x00\x53\x41" + listed([symbol("PLAIN"), b"\xa0\x0c\0guest\0guest", string("h")])
    return [
        SASL,
        struct.pack(">IBBH", len(init) + 8, 2, 1, 0) + init,
        AMQP,
        frame(b"\x00\x53\x10" + listed([string("fuzz"), string("h"), b"\x70\x00\x00\x80\x00", b"\x60\x00\xff"])),
        frame(b"\x00\x53\x11" + listed([b"\x40", b"\x43", b"\x70\x00\x01\x00\x00", b"\x70\x00\x01\x00\x00"])),
    ]


SIGNED_IN = 3
"""Frames of a conversation before which nobody is signed in: SASL's header, init, and AMQP's header."""


def grammar(chance: Random) -> list[bytes]:
    """Return a conversation that begins well, and goes on with anything."""
    return [*opening(), *(performative(chance) for _ in range(chance.randint(1, 12)))]


def sized(content: bytes) -> bytes:
    """Return a frame with its true size."""
    return struct.pack(">I", len(content)) + content[4:] if len(content) >= 8 and content[:4] != b"AMQP" else content


def illegal(answer: bytes, reset: bool) -> str | None:
    """Return what is wrong with all that the door said on a connection, or None.

    Args:
        answer: the bytes.
        reset: the connection was reset, which takes from the peer what it has not read yet.
    """
    at, closed, opened = 0, False, False
    while at < len(answer):
        if closed:
            return f"{len(answer) - at} bytes after close"
        if answer[at : at + 4] == b"AMQP":
            if len(answer) - at < 8:
                return None if reset else "a header that is cut"
            at += 8
            continue
        if len(answer) - at < 8:
            return None if reset else f"{len(answer) - at} bytes that are no frame"
        size, words, kind = struct.unpack_from(">IBB", answer, at)
        if size < 8 or words != 2 or kind > 1:
            return f"a frame head {answer[at : at + 8].hex()} at byte {at}"
        if at + size > len(answer):
            return None if reset else f"a frame of {size} bytes that is cut"
        body = answer[at + 8 : at + size]
        at += size
        if not body:
            continue
        if body[:2] != b"\x00\x53":
            return f"a body {body[:8].hex()} at byte {at}"
        code = body[2]
        if not (0x40 <= code <= 0x44 if kind else 0x10 <= code <= 0x18):
            return f"performative {code:#x} in a frame of type {kind}"
        if not kind:
            if not opened and code != 0x10:
                return f"performative {code:#x} before open"
            opened, closed = True, code == 0x18
    return None
