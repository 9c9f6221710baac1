"""Transfer frames that are written in columns, beside the specification's bytes; proton's engine reads them in
``tests/client/amqp/test_sent_messages.py``."""

from __future__ import annotations

import numpy as np
import pytest

from spark_streams.wire.amqp.transfer_encode import FORMAT_BYTES, HEAD_BYTES, Sender, encode_transfers, split_message
from spark_streams.wire.columnar.interleave import Ranges


def test_frames_are_those_of_the_specification() -> None:
    memory = np.frombuffer(b"abc..de", np.uint8)
    messages = Ranges(memory, np.array([0, 5, 7]), np.array([3, 7, 7]))
    written = encode_transfers(messages, sender=Sender(0x0102, 0), first_id=0xFFFF_FFFF)
    # Part 2 §2.3.1 (head), §2.7.5 (transfer): handle 0, delivery-id, delivery-tag, message-format 0, not settled.
    assert bytes(written) == bytes.fromhex(
        "0000001f 02 00 0102  00 53 14 c0 0f 05  43 70ffffffff a004ffffffff 43 42  616263"
        "0000001e 02 00 0102  00 53 14 c0 0f 05  43 7000000000 a00400000000 43 42  6465"
        "0000001c 02 00 0102  00 53 14 c0 0f 05  43 7000000001 a00400000001 43 42"
    )


@pytest.mark.parametrize(("handle", "encoded", "size"), [(7, "5207", "10"), (256, "7000000100", "13")])
def test_a_handle_takes_as_many_bytes_as_it_needs(handle: int, encoded: str, size: str) -> None:
    none = np.zeros(1, np.int64)
    messages = Ranges(np.zeros(1, np.uint8), none, none)
    written = bytes(encode_transfers(messages, sender=Sender(0, handle), first_id=5))
    assert written[8:] == bytes.fromhex(f"00 53 14 c0 {size} 05 {encoded} 7000000005 a00400000005 43 42")
    assert len(written) == int.from_bytes(written[:4], "big")


def test_messages_in_two_pieces_that_are_settled() -> None:
    memory = np.frombuffer(b"abcde", np.uint8)
    first, second = (
        Ranges(memory, np.array([0, 1]), np.array([1, 1])),
        Ranges(memory, np.array([3, 4]), np.array([5, 5])),
    )
    written = encode_transfers(first, second, sender=Sender(0, 0, True), first_id=9)
    assert bytes(written) == bytes.fromhex(
        "0000001f 02 00 0000  00 53 14 c0 0f 05  43 7000000009 a00400000009 43 41  61 6465"
        "0000001d 02 00 0000  00 53 14 c0 0f 05  43 700000000a a0040000000a 43 41  65"
    )


@pytest.mark.parametrize(("settled", "flag"), [(False, "42"), (True, "41")])
def test_a_message_in_several_frames(settled: bool, flag: str) -> None:
    message = memoryview(b"x" * 970)
    frames = list(split_message(message, sender=Sender(3, 0, settled), delivery_id=9, max_frame_bytes=512))
    # Room for 479 bytes a frame. §2.7.5: a further frame may repeat id, tag, format and settled.
    listed = f"00 53 14 c0 10 06 43 70 00 00 00 09 a0 04 00 00 00 09 43 {flag}"
    assert [
        each[:8].hex(" ") + " " + each[8 : len(each) - n].hex(" ")
        for each, n in zip(frames, (479, 479, 12), strict=True)
    ] == [
        f"00 00 01 fc 02 00 00 03 {listed} 41",
        f"00 00 01 fc 02 00 00 03 {listed} 41",
        f"00 00 00 29 02 00 00 03 {listed} 42",
    ]
    assert b"".join(each[29:] for each in frames) == message


def test_messages_of_several_formats() -> None:
    memory = np.frombuffer(b"abcde", np.uint8)
    messages = Ranges(memory, np.array([0, 3]), np.array([3, 5]))
    formats = np.array([0x8001_3700, 0], np.uint32)
    written = encode_transfers(messages, sender=Sender(0, 0), first_id=9, formats=formats)
    assert bytes(written) == bytes.fromhex(
        "00000023 02 00 0000  00 53 14 c0 13 05  43 7000000009 a00400000009 7080013700 42  616263"
        "00000022 02 00 0000  00 53 14 c0 13 05  43 700000000a a0040000000a 7000000000 42  6465"
    )
    assert len(written) - 5 <= 2 * (HEAD_BYTES + FORMAT_BYTES)


def test_a_message_of_another_format_in_several_frames() -> None:
    message = memoryview(b"x" * 500)
    frames = list(
        split_message(message, sender=Sender(3, 0), delivery_id=9, max_frame_bytes=512, message_format=0x8001_3700)
    )
    listed = "00 53 14 c0 14 06 43 70 00 00 00 09 a0 04 00 00 00 09 70 80 01 37 00 42"
    assert [each[:33].hex(" ") for each in frames] == [
        f"00 00 01 fc 02 00 00 03 {listed} 41",
        f"00 00 00 3a 02 00 00 03 {listed} 42",
    ]
    assert b"".join(each[33:] for each in frames) == message
