"""Heads of Deliver: bytes that were made by hand, frames of real brokers, and frames that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.chunk import HEADER_BYTES, ChunkHeader
from spark_streams.wire.rabbitmq.consumer_commands import decode_deliver, encode_deliver_head
from spark_streams.wire.rabbitmq.frames import Frame, FrameReader

GOLDEN = Path(__file__).parent / "golden"
HELLO = (
    "50000001000000010000018bcfe56800000000000000000100000000000000007b2fd0420000000e"
    + "00" * 8
    + ("0000000a005375a00568656c6c6f")
)
BY_HAND = {
    "v1": bytes.fromhex("00000043" "0008" "0001" "05" + HELLO),
    "v2": bytes.fromhex("0000004b" "0008" "0002" "05" "0000000000000000" + HELLO),
}  # fmt: skip


def captured(broker: str) -> dict[str, bytes]:
    lines = (GOLDEN / f"rabbitmq-{broker}.hex").read_text().splitlines()
    frames = {f"{broker}-{line.split()[0]}": bytes.fromhex(line.split()[1]) for line in lines if line[0] != "#"}
    return {name: raw for name, raw in frames.items() if "-server-deliver-" in name}


FRAMES = BY_HAND | captured("3.10") | captured("4.3")


def frame_of(raw: bytes) -> Frame:
    reader = FrameReader(0)
    reader.feed(raw + b"\0\0")  # what lies behind a frame is not its own
    frame = reader.next()
    assert frame is not None
    return frame


@pytest.mark.parametrize("name", FRAMES)
def test_a_head_is_read_and_written_again(name: str) -> None:
    raw = FRAMES[name]
    frame = frame_of(raw)
    found = decode_deliver(frame)
    assert (found.committed_chunk_id is None) == (frame.version == 1)
    header = ChunkHeader.decode(frame.buffer, found.chunk_start, frame.end)
    if found.committed_chunk_id is not None:
        assert found.committed_chunk_id >= header.first_offset, "nothing else is delivered"
    size = frame.end - found.chunk_start
    assert encode_deliver_head(found.subscription_id, size, found.committed_chunk_id) == raw[: len(raw) - size]


def test_the_notes_vectors() -> None:
    assert [decode_deliver(frame_of(raw))[:2] for raw in BY_HAND.values()] == [(5, None), (5, 0)]
    assert encode_deliver_head(5, 62) == BY_HAND["v1"][:9]
    assert encode_deliver_head(5, 62, 0) == BY_HAND["v2"][:17]
    assert encode_deliver_head(255, 48, 2**64 - 1)[8:] == b"\xff" * 9


@pytest.mark.parametrize("name", BY_HAND)
def test_every_cut(name: str) -> None:
    raw = BY_HAND[name]
    head = 9 if name == "v1" else 17
    for end in range(8, head + HEADER_BYTES):
        with pytest.raises(RemoteProtocolError, match="a Deliver frame"):
            decode_deliver(frame_of(struct.pack(">I", end - 4) + raw[4:end]))


@pytest.mark.parametrize("version", [0, 3, 0xFFFF])
def test_other_versions(version: int) -> None:
    raw = struct.pack(">IHH", 104, 8, version) + bytes(100)
    with pytest.raises(RemoteProtocolError, match=f"version {version}"):
        decode_deliver(frame_of(raw))
