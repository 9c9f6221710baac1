"""Deliver: one chunk for one subscription. The chunk itself is read and written in columns: ``chunk.py``.

::

    version 1   subscription id(u8) chunk
    version 2   subscription id(u8) committed chunk id(u64) chunk

A server sends version 2 only to a client that lists it with exactly that maximum (S-24).

Spec: Streams Protocol Reference, Deliver; docs/specifications.md, S-24, S-81.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.chunk import HEADER_BYTES
from spark_streams.wire.rabbitmq.consumer_commands import DELIVER_KEY
from spark_streams.wire.rabbitmq.frames import Frame

__all__ = ["Delivery", "decode_deliver", "encode_deliver_head"]

_FRAME: Final = struct.Struct(">IHH")
_HEADS: Final = {1: struct.Struct(">B"), 2: struct.Struct(">BQ")}


class Delivery(NamedTuple):
    """What is in front of the chunk, and where that begins.

    Args:
        subscription_id: whose chunk it is.
        committed_chunk_id: of the last chunk that was committed when this one was sent; None in version 1.
        chunk_start: index of the chunk's first byte in the frame's buffer.
    """

    subscription_id: int
    committed_chunk_id: int | None
    chunk_start: int


def decode_deliver(frame: Frame) -> Delivery:
    """Read the head of a Deliver frame.

    Raises:
        RemoteProtocolError: another version than 1 and 2, or no room for a chunk's header.
    """
    head = _HEADS.get(frame.version)
    if head is None or frame.end - frame.start < head.size + HEADER_BYTES:
        raise RemoteProtocolError(f"a Deliver frame, version {frame.version}, of {frame.size} bytes")
    subscription_id, *committed = head.unpack_from(frame.buffer, frame.start)
    return Delivery(subscription_id, committed[0] if committed else None, frame.start + head.size)


def encode_deliver_head(subscription_id: int, chunk_bytes: int, committed_chunk_id: int | None = None) -> bytes:
    """Return everything of a Deliver frame that is in front of its chunk, the frame's size included.

    Args:
        subscription_id: 0 to 255.
        chunk_bytes: size of the chunk that follows: header and data.
        committed_chunk_id: for version 2; None for version 1.
    """
    if committed_chunk_id is None:
        return _FRAME.pack(chunk_bytes + 5, DELIVER_KEY, 1) + _HEADS[1].pack(subscription_id)
    return _FRAME.pack(chunk_bytes + 13, DELIVER_KEY, 2) + _HEADS[2].pack(subscription_id, committed_chunk_id)
