"""Large frames that are received in their place; the peer's bytes come in pieces of any size."""

from __future__ import annotations

import random
import struct

import pytest

from spark_streams.wire.columnar.byte_view import PADDING
from spark_streams.wire.rabbitmq.frames import LARGE_BYTES, SHARED_BYTES, Frame, FrameReader, FrameTooLarge


def frame(size: int, seed: int = 0) -> bytes:
    return struct.pack(">IHH", 4 + size, 8, 2) + random.Random(seed).randbytes(size)


def receive(reader: FrameReader, raw: bytes, piece: int) -> list[Frame]:
    """Give the reader bytes as a connection does: into the room where there is one, at most ``piece`` at once."""
    found, at = [], 0
    while at < len(raw):
        room = reader.room()
        count = min(piece, len(raw) - at, len(raw) if room is None else len(room))
        if room is None:
            reader.feed(raw[at : at + count])
        else:
            room[:count] = raw[at : at + count]
            reader.filled(count)
        at += count
        while (frame := reader.next()) is not None:
            found.append(frame)
    return found


def content(frame: Frame) -> bytes:
    return bytes(frame.buffer[frame.start : frame.end])


SIZES = (
    10,
    0,
    LARGE_BYTES - 1,
    LARGE_BYTES,
    3,
    5 * LARGE_BYTES,
    4 * LARGE_BYTES,
    SHARED_BYTES + 1,
    7,
    SHARED_BYTES // 2,
)


@pytest.mark.parametrize("piece", [7_001, LARGE_BYTES, 1 << 20, 1 << 30])
def test_frames_are_the_same_whatever_the_pieces(piece: int) -> None:
    raws = [frame(size, seed) for seed, size in enumerate(SIZES)]
    found = receive(FrameReader(0), b"".join(raws), piece)
    assert [(each.key, each.version, each.size) for each in found] == [(8, 2, size + 4) for size in SIZES]
    # All are kept until the end: none is written over.
    assert [content(each) for each in found] == [raw[8:] for raw in raws]


def test_large_frames_that_follow_one_another_lie_in_one_buffer() -> None:
    raws = [frame(3 * LARGE_BYTES, seed) for seed in range(3)]
    found = receive(FrameReader(0), b"".join(raws), LARGE_BYTES)
    assert found[0].buffer is found[1].buffer is found[2].buffer
    assert all(each.end + PADDING <= len(each.buffer) for each in found)


def test_small_frames_get_no_room() -> None:
    reader = FrameReader(0)
    assert reader.room() is None
    reader.feed(frame(LARGE_BYTES - 100)[:-1])
    assert reader.next() is None
    assert reader.room() is None


def test_a_frame_beyond_the_limit_gets_no_room() -> None:
    reader = FrameReader(4 * LARGE_BYTES)
    reader.feed(frame(4 * LARGE_BYTES)[:100])
    with pytest.raises(FrameTooLarge):
        reader.next()
    assert reader.room() is None
