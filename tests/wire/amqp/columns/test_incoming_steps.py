"""A door reads a message in steps of a few thousand bytes, and builds nothing of it, whatever the bytes are."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from spark_streams.wire.amqp import decode
from spark_streams.wire.amqp.columns import from_producers
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.from_producers import Incoming, incoming_columns, incoming_steps
from spark_streams.wire.amqp.decode import STEP_BYTES

SIZE = 60_000
LINES_A_BYTE = 25
"""Lines of Python for a byte of a message, at most: an annotation in three bytes takes 70."""


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value


def counted(code: int, items: bytes, count: int) -> bytes:
    return bytes([code]) + struct.pack(">II", 4 + len(items), count) + items


def items(item: bytes, of: int = 0xD0, each: int = 1) -> bytes:
    """A list, or a map, of as many items as there is room for."""
    return counted(of, item * (SIZE // len(item)), SIZE // len(item) * each)


BODY = section(0x77, b"\xa1\x01x")
KEY = b"\xa3\x17event-streams-group-key"
ALTERNATING = b"\x40\x50\x00"
MESSAGES: dict[str, bytes] = {
    "a list of nulls": section(0x77, items(b"\x40")),
    "a list of empty lists": section(0x77, items(b"\x45")),
    "a list of numbers of two widths": section(0x77, items(ALTERNATING, each=2)),
    "a list of lists": section(0x77, items(b"\xc0\x02\x01\x40")),
    "a list of described values": section(0x77, items(b"\x00\x53\x01\x40")),
    "a list of arrays": section(0x77, items(b"\xe0\x04\x02\x50\x01\x02")),
    "a map": section(0x77, items(b"\xa1\x00\x40", 0xD1, 2)),
    "a sequence": section(0x76, items(b"\x40")),
    "a long descriptor": section(0x77, b"\x00" + items(b"\x40") + b"\x40"),
    "an array of booleans": section(0x77, counted(0xF0, b"\x56" + b"\x01" * SIZE, SIZE)),
    "an array with a long descriptor": section(0x77, counted(0xF0, b"\x00" + items(b"\x40") + b"\x40", 1)),
    "many data sections": section(0x75, b"\x40") * (SIZE // 4),
    "many sequences": section(0x76, b"\x45") * (SIZE // 4),
    "many properties of an application": section(0x74, items(b"\xa1\x00\x40", 0xD1, 2)) + BODY,
    "many annotations": section(0x72, items(b"\xa3\x00\x40", 0xD1, 2)) + BODY,
    "many delivery annotations": section(0x71, items(b"\xa3\x00\x40", 0xD1, 2)) + BODY,
    "a list for an annotation": section(0x72, counted(0xD1, b"\xa3\x01a" + items(b"\x40"), 2)) + BODY,
}
REFUSED: dict[str, bytes] = {
    "a list for an id": section(0x73, counted(0xD0, items(b"\x40"), 1)) + BODY,
    "a list for a group key": section(0x72, counted(0xD1, KEY + items(b"\x40"), 2)) + BODY,
    "many fields of properties": section(0x73, items(b"\x40")) + BODY,
    "a list for a subject": section(0x73, counted(0xD0, b"\x40\x40\x40" + items(b"\x40"), 4)) + BODY,
    "a broken item behind many": section(0x77, items(b"\x40")[:-1] + b"\x30"),
    "a broken text behind many": section(0x77, counted(0xD0, b"\x40" * SIZE + b"\xa1\x01\xff", SIZE + 1)),
    "a broken section behind many": section(0x75, b"\x40") * (SIZE // 4) + section(0x75, b"\x41"),
    "a key too many": section(0x74, items(b"\xa1\x00", 0xD1)[:-2] + b"\x40\x41") + BODY,
}


def block(*messages: bytes) -> MessageBlock:
    ends = np.cumsum([len(each) for each in messages], dtype=np.int64)
    return MessageBlock(b"".join(messages), ends - [len(each) for each in messages], ends)


def lines_of(do: Callable[[], object]) -> int:
    """Return how many lines of Python a call executes."""
    lines = 0

    def traced(_: FrameType, event: str, __: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        do()
    finally:
        sys.settrace(before)
    return lines


def largest_step(of: MessageBlock) -> tuple[int, Incoming]:
    """Return the most lines of a step, and what was read."""
    steps = incoming_steps(of, thorough=True)
    found: list[Incoming] = []

    def step() -> None:
        try:
            next(steps)
        except StopIteration as end:
            found.append(end.value)

    lines = 0
    while not found:
        lines = max(lines, lines_of(step))
    return lines, found[0]


@pytest.mark.parametrize("name", [*MESSAGES, *REFUSED])
def test_a_step_is_a_few_thousand_bytes(name: str) -> None:
    message = (MESSAGES | REFUSED)[name]
    lines, incoming = largest_step(block(message))
    assert lines <= LINES_A_BYTE * STEP_BYTES + 2_000
    assert incoming.malformed.tolist() == [name in REFUSED]
    tracemalloc.start()
    try:
        incoming_columns(block(message), thorough=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= 6 * len(message), "it is copied, and no object is made of each of its values"


BROKEN: dict[str, Callable[[int], bytes]] = {
    "begins with no section": lambda number: b"\x00\x53" + bytes([number % 20]) * (number % 20),
    "ends within a section": lambda number: b"\x00\x53\x75\xa0\x05" + b"x" * (number % 4),
    "another form of no descriptor": lambda number: b"\x00\xa3\x05other" + b"x" * (number % 4),
    "a text that is none": lambda number: b"\x00\x53\x77\xa1\x02\xff" + bytes([number % 250]),
    "a list that is none": lambda number: b"\x00\x53\x77\xc0\x03\x02\x40" + bytes([number % 0x30]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_message_is_a_step_at_most(name: str) -> None:
    few, many = (block(*map(BROKEN[name], range(count))) for count in (200, 600))
    assert incoming_columns(few, thorough=True).malformed.all()
    lines, incoming = largest_step(many)
    assert incoming.malformed.all()
    assert lines <= 2_500, "what is done in columns, or one message"


# --- long messages and texts, which are read by themselves and in pieces

TEXT = "aé€😀".encode() * 50
"""Characters of one to four bytes: each place is inside one of them in some piece."""
ALONE: dict[str, bytes] = {
    "a body": section(0x75, b"\xb0" + struct.pack(">I", len(TEXT)) + TEXT),
    "a text": section(0x77, b"\xb1" + struct.pack(">I", len(TEXT)) + TEXT),
    "a text that ends within a character": section(0x77, b"\xb1" + struct.pack(">I", len(TEXT) - 1) + TEXT[:-1]),
    "a text with a byte that is no character's": section(
        0x77, b"\xb1" + struct.pack(">I", len(TEXT) + 1) + TEXT + b"\xff"
    ),
    "a symbol in an annotation": section(0x72, counted(0xD1, b"\xa3\x01a\xb3" + struct.pack(">I", len(TEXT)) + TEXT, 2))
    + BODY,
    "a key": section(0x72, counted(0xD1, KEY + b"\xb1" + struct.pack(">I", len(TEXT)) + TEXT, 2)) + BODY,
    "a key behind a header": section(0x70, b"\x45")
    + section(0x72, counted(0xD1, KEY + b"\xb1" + struct.pack(">I", len(TEXT)) + TEXT, 2))
    + BODY,
    "no message": TEXT,
    "a text beyond the end": section(0x77, b"\xb1" + struct.pack(">I", len(TEXT)) + TEXT[:-9]),
}


@pytest.mark.parametrize("pieces", [1, 3, 7, 64])
def test_a_long_message_is_read_as_a_short_one(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    messages = [BODY, *ALONE.values(), BODY, *ALONE.values()]
    ends = np.cumsum([len(each) for each in messages])
    block = MessageBlock(b"".join(messages), np.append(0, ends[:-1]), ends)
    short = incoming_columns(block, thorough=True)
    for module in (decode, from_producers):
        monkeypatch.setattr(module, "LONG_BYTES", pieces)
    long = incoming_columns(block, thorough=True)
    broken = ["ends within" in name or "byte that is no" in name or name == "no message" for name in ALONE]
    broken[-1] = True
    assert long.malformed.tolist() == short.malformed.tolist() == [False, *broken] * 2
    good = ~short.malformed
    for name in ("value_starts", "creation_time_ms"):
        assert getattr(long, name)[good].tolist() == getattr(short, name)[good].tolist()
    for name in ("group_key", "target_partition"):
        assert getattr(long, name).to_pylist() == getattr(short, name).to_pylist()
