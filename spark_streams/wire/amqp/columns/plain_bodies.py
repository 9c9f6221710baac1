"""Read messages that are one data section and nothing else, as producers of plain bytes send them.

::

    00 53 75 a0 size(u8) body      a body of at most 255 bytes
    00 53 75 b0 size(u32) body     any other one

One load of eight bytes shows the head of such a message, so this takes a fraction of the time of ``decode_columns``,
whose columns these are too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES
from spark_streams.wire.columnar.byte_view import MAX_BLOCK_BYTES, Mask, Octets, Positions, Words
from spark_streams.wire.columnar.gather import gather

_NARROW: Final = b"\x00\x53\x75\xa0"
_WIDE: Final = b"\x00\x53\x75\xb0"
_HEADS: Final = (_NARROW, _WIDE)
_NARROW_BYTES: Final = 5
_WIDE_BYTES: Final = 8
_NARROW_HEAD: Final = np.uint64(int.from_bytes(_NARROW, "little"))
_WIDE_HEAD: Final = np.uint64(int.from_bytes(_WIDE, "little"))
_FIVE_BYTES: Final = np.uint64((1 << 40) - 1)
_FOUR_BYTES: Final = np.uint64(32)
"""The number of bits of a head before the size."""


def plain_body_columns(block: MessageBlock, names: Collection[str]) -> dict[str, pa.Array] | None:
    """Return what ``decode_columns`` returns, if each message is one data section and nothing else; None if not.

    Args:
        block: the messages.
        names: names in ``COLUMN_TYPES``.
    """
    starts, ends = block.starts, block.ends
    words = Words(np.frombuffer(block.buffer, np.uint8))
    bodies = _plain_bodies(block, words)
    if bodies is None:
        return None
    columns: dict[str, pa.Array] = {}
    for name in names:
        kind = COLUMN_TYPES[name]
        if name == "value":
            columns[name] = gather(words, bodies, ends - bodies, kind)
        elif name == "message":
            columns[name] = gather(words, starts, ends - starts, kind)
        else:
            columns[name] = pa.nulls(starts.size, kind)
    return columns


def are_plain_bodies(block: MessageBlock) -> bool:
    """Return whether each message is one data section and nothing else, and there is a message."""
    return _plain_bodies(block, Words(np.frombuffer(block.buffer, np.uint8))) is not None


def _plain_bodies(block: MessageBlock, words: Words) -> Positions | None:
    """Return the first byte of each body; None if a message is of another kind."""
    starts, ends, size = block.starts, block.ends, len(block.buffer)
    if not starts.size or int(starts.min()) < 0 or int(ends.max()) > min(size, MAX_BLOCK_BYTES):
        return None
    # Most often the first message shows that they are of another kind.
    if bytes(block.buffer[starts[0] : starts[0] + len(_NARROW)]) not in _HEADS:
        return None
    heads, sizes = words.little(starts), ends - starts
    narrow = _is_narrow(heads, sizes)
    if narrow.all():
        return starts + _NARROW_BYTES
    if not (narrow | _is_wide(heads, sizes)).all():
        return None
    return starts + np.where(narrow, _NARROW_BYTES, _WIDE_BYTES)


def plain_rows(words: Words, starts: Positions, ends: Positions) -> Mask:
    """Return which messages are one data section and nothing else."""
    heads, sizes = words.little(starts), ends - starts
    return _is_narrow(heads, sizes) | _is_wide(heads, sizes)


def _is_narrow(heads: Octets, sizes: Positions) -> Mask:
    # A message that is too short has a negative size here, whose upper bits no head has.
    wanted = (sizes - _NARROW_BYTES).view(np.uint64) << _FOUR_BYTES | _NARROW_HEAD
    same: Mask = heads & _FIVE_BYTES == wanted
    return same


def _is_wide(heads: Octets, sizes: Positions) -> Mask:
    # On the wire the size has its highest byte first.
    turned = (sizes - _WIDE_BYTES).astype(">u4").view("<u4").astype(np.uint64)
    same: Mask = (heads == (turned << _FOUR_BYTES | _WIDE_HEAD)) & (sizes >= _WIDE_BYTES)
    return same
