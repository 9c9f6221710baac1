"""Writes transfer frames in columns: whole messages as frames, one after the other; ``transfer_frames.py`` reads them.

::

    size(u32) 02 00 channel(u16)                                    the frame's head
    00 53 14 c0 size count                                          transfer, a list of
    handle(uint)  70 delivery-id(u32)  a0 04 delivery-tag(4)  43    message-format 0
    42 [41 or 42]                                                   not settled; whether the message goes on
    payload

A delivery's tag is its id: a tag must be no other unsettled delivery's of the link.

Spec: AMQP 1.0 part 2 §2.3 (frames), §2.6.12 (a message in several frames), §2.7.5 (transfer).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.performatives import SERIAL
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges, heads, interleave

_HEAD: Final = b"\x02\x00"
_TRANSFER: Final = b"\x00\x53\x14\xc0"
_FORMAT_UNSETTLED: Final = b"\x43\x42"
_MORE, _LAST = b"\x41", b"\x42"
HEAD_BYTES: Final = 32
"""Bytes of a frame before its payload, at most."""


def encode_transfers(
    memory: NDArray[np.uint8], starts: Positions, ends: Positions, *, channel: int, handle: int, first_id: int
) -> pa.Buffer:
    """Return messages as frames, one for each, unsettled.

    Args:
        memory: holds the messages, less than 2 GiB.
        starts: first byte of each message.
        ends: where they end, exclusive; with ``HEAD_BYTES`` each fits a frame.
        channel: the link's channel.
        handle: the link's handle.
        first_id: the first message's delivery-id; those of the others follow.
    """
    count = len(starts)
    fields = _uint(handle)
    ids = (np.arange(first_id, first_id + count) & SERIAL).astype(">u4")
    listed = 1 + len(fields) + 5 + 6 + 2
    size = len(_HEAD) + 6 + len(_TRANSFER) + 1 + listed
    # In pieces of at most twelve bytes.
    return interleave(
        heads(count, (ends - starts + size, ">u4"), _HEAD + channel.to_bytes(2, "big"), _TRANSFER),
        heads(count, bytes((listed, 5)), fields, b"\x70", (ids, ">u4")),
        heads(count, b"\xa0\x04", (ids, ">u4"), _FORMAT_UNSETTLED),
        Ranges(memory, starts, ends),
    )


def split_message(
    message: memoryview, *, channel: int, handle: int, delivery_id: int, max_frame_bytes: int
) -> Iterator[bytes]:
    """Yield the frames of one message, unsettled; few of a large one are in memory at a time.

    Args:
        message: the message.
        channel: the link's channel.
        handle: the link's handle.
        delivery_id: the message's.
        max_frame_bytes: the largest frame that the peer takes.
    """
    number = delivery_id.to_bytes(4, "big")
    room = max_frame_bytes - HEAD_BYTES
    for at in range(0, max(1, len(message)), room):
        piece = message[at : at + room]
        fields = _uint(handle) + b"\x70" + number
        # A further frame need not say again what the first one does.
        fields += b"\x40\x40\x40" if at else b"\xa0\x04" + number + _FORMAT_UNSETTLED
        fields += _LAST if at + room >= len(message) else _MORE
        listed = bytes((len(fields) + 1, 6)) + fields
        size = len(_HEAD) + 6 + len(_TRANSFER) + len(listed) + len(piece)
        yield b"".join((size.to_bytes(4, "big"), _HEAD, channel.to_bytes(2, "big"), _TRANSFER, listed, piece))


def _uint(number: int) -> bytes:
    """Return an uint in the shortest of its encodings."""
    if number < 256:
        return bytes((0x52, number)) if number else b"\x43"
    return b"\x70" + number.to_bytes(4, "big")
