"""Writes transfer frames in columns: whole messages as frames, one after the other; ``transfer_frames.py`` reads them.

::

    size(u32) 02 00 channel(u16)                                    the frame's head
    00 53 14 c0 size count                                          transfer, a list of
    handle(uint)  70 delivery-id(u32)  a0 04 delivery-tag(4)  43    message-format 0; another one: 70 format(u32)
    41 or 42  [41 or 42]  [40 40 40 40 40]                          whether it is settled; whether the message goes on;
    payload                                                         further fields, for peers that do not take fewer

A delivery's tag is its id: tags of unsettled deliveries of a link must differ.

Spec: AMQP 1.0 part 2 §2.3 (frames), §2.6.12 (a message in several frames), §2.7.5 (transfer).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.performatives import SERIAL
from spark_streams.wire.columnar.interleave import Ranges, heads, interleave

_HEAD: Final = b"\x02\x00"
_TRANSFER: Final = b"\x00\x53\x14\xc0"
_FORMAT: Final = b"\x43"
_UINT: Final = b"\x70"
_TRUE, _FALSE = b"\x41", b"\x42"
_UNUSED: Final = b"\x40" * 5
"""The last fields of a transfer: rcv-settle-mode, state, resume, aborted and batchable."""
UNUSED_BYTES: Final = len(_UNUSED)
HEAD_BYTES: Final = 33
"""Bytes of a frame before its payload, at most, without the last fields, if the message-format is 0."""
FORMAT_BYTES: Final = 4
"""More bytes of a frame where the message-format may be another one."""


class Sender(NamedTuple):
    """What all transfers of a link have in common.

    Args:
        channel: the link's channel.
        handle: the link's handle.
        settled: whether the messages are settled.
        all_fields: whether to write fields that say nothing, too.
    """

    channel: int
    handle: int
    settled: bool = False
    all_fields: bool = False


def encode_transfers(
    *pieces: Ranges, sender: Sender, first_id: int, formats: NDArray[np.uint32] | None = None
) -> pa.Buffer:
    """Return messages as frames, one for each.

    Args:
        pieces: what each message consists of, one piece after the other, each in less than 2 GiB of memory; with
            ``HEAD_BYTES`` a message fits a frame, where ``formats`` are given with ``FORMAT_BYTES`` more.
        sender: the link.
        first_id: the first message's delivery-id; those of the others follow.
        formats: the message-format of each; None for 0.
    """
    channel, handle, settled, all_fields = sender
    count = len(pieces[0].starts)
    fields = _uint(handle)
    ids = (np.arange(first_id, first_id + count) & SERIAL).astype(">u4")
    flags = _flag(settled)
    if all_fields:
        flags += _FALSE + _UNUSED
    form = (_FORMAT,) if formats is None else (_UINT, (formats, ">u4"))
    listed = 1 + len(fields) + 5 + 6 + 1 + (0 if formats is None else FORMAT_BYTES) + len(flags)
    size = len(_HEAD) + 6 + len(_TRANSFER) + 1 + listed
    sizes = sum((piece.ends - piece.starts for piece in pieces), np.full(count, size))
    # In pieces of at most twelve bytes.
    return interleave(
        heads(count, (sizes, ">u4"), _HEAD + channel.to_bytes(2, "big"), _TRANSFER),
        heads(count, bytes((listed, 4 + len(flags))), fields, b"\x70", (ids, ">u4")),
        heads(count, b"\xa0\x04", (ids, ">u4"), *form, flags[:1]),
        *((heads(count, flags[1:]),) if all_fields else ()),
        *pieces,
    )


def split_message(
    message: memoryview, *, sender: Sender, delivery_id: int, max_frame_bytes: int, message_format: int = 0
) -> Iterator[bytes]:
    """Yield the frames of one message; few of a large one are in memory at a time.

    Args:
        message: the message.
        sender: the link.
        delivery_id: the message's.
        max_frame_bytes: the largest frame that the peer takes; with ``all_fields`` less ``UNUSED_BYTES``.
        message_format: the message's.
    """
    channel, handle, settled, all_fields = sender
    number = (delivery_id & SERIAL).to_bytes(4, "big")
    form = _FORMAT if not message_format else _UINT + message_format.to_bytes(4, "big")
    room = max_frame_bytes - HEAD_BYTES - (len(form) - len(_FORMAT))
    # Further frames need not repeat the first one's fields; they do, as not all peers know that.
    fields = _uint(handle) + b"\x70" + number + b"\xa0\x04" + number + form + _flag(settled)
    unused = _UNUSED if all_fields else b""
    listed = bytes((len(fields) + 2 + len(unused), 6 + len(unused))) + fields
    head = _HEAD + channel.to_bytes(2, "big") + _TRANSFER + listed
    for at in range(0, max(1, len(message)), room):
        piece = message[at : at + room]
        size = 4 + len(head) + 1 + len(unused) + len(piece)
        yield b"".join((size.to_bytes(4, "big"), head, _flag(at + room < len(message)), unused, piece))


def _flag(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def _uint(number: int) -> bytes:
    """Return an uint in the shortest of its encodings."""
    if number < 256:
        return bytes((0x52, number)) if number else b"\x43"
    return b"\x70" + number.to_bytes(4, "big")
