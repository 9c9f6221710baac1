"""Tracking blocks: what a broker remembers of publishers and consumers, stored within the stream itself.

::

    block       type(u8) id length(u8) id value
        0  sequence     value: last publishing id(u64);  in a snapshot: chunk id(u64) last publishing id(u64)
        1  offset       value: stored offset(u64)
        2  timestamp    value: ms since the epoch(i64)
    blocks stand behind one another in the trailer of a user chunk, and as the one plain entry of a tracking chunk

Spec: docs/specifications.md, S-51; osiris_log.erl, "Tracking format"; osiris_tracking.erl.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.rabbit.compression import Readable

__all__ = ["Tracking", "TrackingType", "decode_tracking", "encode_tracking"]

_HEAD: Final = struct.Struct(">BB")


class TrackingType(IntEnum):
    """What a block is about."""

    SEQUENCE = 0
    OFFSET = 1
    TIMESTAMP = 2


_VALUES: Final = {
    TrackingType.SEQUENCE: struct.Struct(">Q"),
    TrackingType.OFFSET: struct.Struct(">Q"),
    TrackingType.TIMESTAMP: struct.Struct(">q"),
}
_SNAPSHOT_SEQUENCE: Final = struct.Struct(">QQ")


@dataclass(frozen=True)
class Tracking:
    """One block.

    Args:
        type: of ``TrackingType``.
        reference: the publisher's or consumer's name, as bytes; at most 255.
        value: last publishing id, stored offset, or timestamp in ms.
        chunk_id: of a sequence in a snapshot: the chunk that the publishing id is in; else None.
    """

    type: int
    reference: bytes
    value: int
    chunk_id: int | None = None


def decode_tracking(block: Readable, *, snapshot: bool = False) -> list[Tracking]:
    """Read blocks that stand behind one another, to the end.

    Args:
        block: all of them.
        snapshot: whether they are those of a snapshot chunk, where a sequence has two numbers.

    Raises:
        RemoteProtocolError: an unknown type, or the last one is cut short.
    """
    found: list[Tracking] = []
    at, end = 0, len(block)
    while at < end:
        if end - at < _HEAD.size:
            raise RemoteProtocolError(f"a tracking block at byte {at}: {end - at} bytes are left")
        kind, length = _HEAD.unpack_from(block, at)
        layout = _VALUES.get(kind)
        if layout is None:
            raise RemoteProtocolError(f"a tracking block of type {kind} at byte {at}: expected 0, 1 or 2")
        if snapshot and kind == TrackingType.SEQUENCE:
            layout = _SNAPSHOT_SEQUENCE
        name = at + _HEAD.size
        if end - name < length + layout.size:
            raise RemoteProtocolError(f"a tracking block at byte {at}: {end - at} bytes are left")
        *chunk_id, value = layout.unpack_from(block, name + length)
        found.append(Tracking(kind, bytes(block[name : name + length]), value, chunk_id[0] if chunk_id else None))
        at = name + length + layout.size
    return found


def encode_tracking(blocks: Iterable[Tracking], *, snapshot: bool = False) -> bytes:
    """Return the blocks behind one another.

    Raises:
        LocalProtocolError: a reference above 255 bytes, an unknown type, a value that does not fit, or a sequence that
            has a chunk id outside a snapshot or none in it.
    """
    pieces: list[bytes] = []
    for block in blocks:
        two = snapshot and block.type == TrackingType.SEQUENCE
        if len(block.reference) > 255 or block.type not in _VALUES or (block.chunk_id is not None) != two:
            raise LocalProtocolError(f"{block}: expected type 0 to 2, at most 255 bytes, a chunk id in snapshots only")
        numbers = (block.chunk_id, block.value) if two else (block.value,)
        layout = _SNAPSHOT_SEQUENCE if two else _VALUES[TrackingType(block.type)]
        try:
            value = layout.pack(*numbers)
        except struct.error as fault:
            raise LocalProtocolError(f"{block}: {fault}") from fault
        pieces += _HEAD.pack(block.type, len(block.reference)), block.reference, value
    return b"".join(pieces)
