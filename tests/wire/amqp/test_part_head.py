"""What the parts of a message have in common, beside the decoded fields of each."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.wire.amqp.part_head import PartHead
from spark_streams.wire.amqp.performatives import Performative, read_performative
from tests.examples import examples

IDS = st.sampled_from([None, 0, 5, 255, 256, 0xFFFF_FFFF])
FLAGS = st.sampled_from(["absent", b"\x40", b"\x41", b"\x42", b"\x56\x01", b"\x56\x00"])


def transfer(
    number: int | None, tag: bytes | None, settled: object, more: object, aborted: object, style: int
) -> bytes:
    """A transfer as part 2 §2.7.5 has it, in some of the encodings of part 1 §1.6."""
    wide = number is not None and (number > 255 or style % 2)
    fields = [b"\x52\x07" if style % 3 else b"\x70\0\0\0\x07"]
    fields += [b"\x40" if number is None else b"\x70" + struct.pack(">I", number) if wide else bytes((0x52, number))]
    fields += [b"\x40" if tag is None else b"\xa0" + bytes([len(tag)]) + tag, b"\x43"]
    for flag, gap in ((settled, b""), (more, b"\x40\x40\x40"), (aborted, b"")):
        if not isinstance(flag, bytes):
            break
        fields.append(flag + gap)
    count = len(fields) + (3 if len(fields) >= 6 else 0)
    listed = b"".join(fields)
    performative = b"\x00\x53\x14\xc0" + bytes([len(listed) + 1, count]) + listed
    payload = b"x" * (style % 40)
    return struct.pack(">IBBH", 8 + len(performative) + len(payload), 2, 0, style % 5) + performative + payload


FRAMES = st.builds(
    transfer, IDS, st.sampled_from([None, b"", b"ab", b"cd", b"abc"]), FLAGS, FLAGS, FLAGS, st.integers(0, 119)
)


def said(read: Performative) -> tuple[object, ...]:
    """What the fields of a part say, but for ``more``."""
    assert read.number(0, 0) == 7
    return read.number(1, None), read.field(4, bool, False), read.field(9, bool, False), read.raw[read.payload :]


@settings(max_examples=examples(1_500))
@given(FRAMES, FRAMES)
def test_what_a_head_says_of_another_frame_is_what_its_fields_say(one: bytes, other: bytes) -> None:
    first, second = read_performative(one), read_performative(other)
    head = PartHead.of(first)
    assert head is None or first.field(5, bool, False)
    if head is None:
        return
    assert (head.number, head.settled, False) == said(first)[:3]
    more = head.goes_on(memoryview(other))
    if more is not None:
        assert said(second) == (head.number, head.settled, False, other[4 + len(head.head) :])
        assert second.field(5, bool, False) == more
    following = head.following(memoryview(other))
    if following is not None:
        assert following == PartHead.of(second)
        assert other[6:8] == one[6:8]


def test_usual_parts_need_no_decoding() -> None:
    # §2.7.5: handle 0, delivery-id, delivery-tag, message-format 0, not settled, more
    text = "000000{size} 02 00 0003 00 53 14 c0 10 06 43 70 {id} a0 04 {id} 43 42 {more} {payload}"

    def frame(number: str, more: str, payload: str) -> memoryview:
        size = f"{29 + len(payload) // 2:02x}"
        return memoryview(bytes.fromhex(text.format(size=size, id=number, more=more, payload=payload)))

    head = PartHead.of(read_performative(bytes(frame("00000009", "41", "6162"))))
    assert head is not None
    assert (head.number, head.settled, len(head.head)) == (9, False, 25)
    assert head.goes_on(frame("00000009", "41", "63646566")) is True
    assert head.goes_on(frame("00000009", "42", "6364")) is False
    assert head.goes_on(frame("0000000a", "41", "6364")) is None
    following = head.following(frame("0000000a", "41", "6364"))
    assert following is not None and following.number == 10
    assert following.goes_on(frame("0000000a", "42", "")) is False
    assert head.following(frame("0000000a", "42", "6364")) is None
