"""Hash keys in UTF-16 by the 128-bit MurmurHash3 for x64, by which rstream chooses a super stream's partition.

RabbitMQ's own clients use another hash (``hashes.py``). rstream hashes the output of Python's codec "UTF-16" on a
little-endian machine, which begins with a byte order mark, and takes all 128 bits modulo the number of partitions. All
keys are hashed in lockstep, sixteen bytes of each at a time.

Spec: smhasher, MurmurHash3_x64_128; rstream 1.1, ``HashRoutingMurmurStrategy``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import loads
from spark_streams.wire.rabbitmq.hashes import FEW, SEED, mixed, rotated, scrambled

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_BYTE_ORDER_MARK: Final = 0xFEFF
_BLOCK_UNITS: Final = 8
_ALL: Final = np.uint64(2**64 - 1)
_END: Final = ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1))

Words = NDArray[np.uint64]
Bounds = NDArray[np.int64]


def murmur3_128_modulo(keys: pa.StringArray, count: int) -> Words:
    """Return the hash of every key modulo ``count``.

    Args:
        keys: strings; no nulls.
        count: number of partitions, below 2^32.

    Raises:
        LocalProtocolError: a key is null, or not UTF-8.
    """
    if keys.null_count:
        raise LocalProtocolError(f"{keys.null_count} of {len(keys)} keys are null: expected one in every row")
    if not len(keys):
        return np.empty(0, np.uint64)
    units, bounds = _utf16(keys)
    low, high = _hash(units, bounds[:-1], np.diff(bounds))
    divisor = np.uint64(count)
    carried: Words = (high % divisor * np.uint64(2**64 % count) + low % divisor) % divisor
    return carried


def _utf16(keys: pa.StringArray) -> tuple[NDArray[np.uint16], Bounds]:
    """Return the keys as UTF-16, each after a byte order mark, and the start and end of each, in units of 16 bits."""
    bounds, octets = layout(keys)
    encoded = octets.tobytes()
    try:
        text = np.frombuffer(encoded.decode().encode("utf-16-le"), "<u2")
    except UnicodeDecodeError as fault:
        row = int(np.searchsorted(bounds, fault.start, "right")) - 1
        raise LocalProtocolError(f"key {row} of {len(keys)} is not UTF-8: {fault.reason}") from fault
    # Count a character's units at its first byte: two outside the basic plane (four bytes in UTF-8), else one.
    of_octets = np.where(octets & 0xC0 == 0x80, 0, np.where(octets >= 0xF0, 2, 1))
    before = np.concatenate([[0], np.cumsum(of_octets)])[bounds]
    ends = before + np.arange(len(keys) + 1)
    units = np.empty(int(ends[-1]), np.uint16)
    is_text = np.ones(units.size, bool)
    is_text[ends[:-1]] = False
    units[ends[:-1]] = _BYTE_ORDER_MARK
    units[is_text] = text
    return units, ends


def _hash(units: NDArray[np.uint16], starts: Bounds, lengths: Bounds) -> tuple[Words, Words]:
    """Return the low and high halves of the hashes of the keys at ``starts``, all in units of 16 bits."""
    # Pad to a block, so that a tail can be read as a whole block.
    octets = np.concatenate([units.astype("<u2"), np.zeros(_BLOCK_UNITS, "<u2")])
    words: Words = loads(octets.view(np.uint8), "<u8", 2)
    blocks = lengths // _BLOCK_UNITS
    # Sort the longest first, so that the keys that still have a block are always the first ones.
    order = np.argsort(-blocks, kind="stable")
    at, left = starts[order], blocks[order]
    low = np.full(lengths.size, SEED, np.uint64)
    high = low.copy()
    together = int(left[FEW]) if left.size > FEW else 0
    for block in range(together):
        active = int(np.searchsorted(-left, -block, "left"))
        some = slice(active)
        here = at[some] + block * _BLOCK_UNITS
        low[some] ^= scrambled(words[here], _C1, 31, _C2)
        low[some] = (rotated(low[some], 27) + high[some]) * np.uint64(5) + np.uint64(0x52DCE729)
        high[some] ^= scrambled(words[here + 4], _C2, 33, _C1)
        high[some] = (rotated(high[some], 31) + low[some]) * np.uint64(5) + np.uint64(0x38495AB5)
    for row in np.flatnonzero(left[:FEW] > together).tolist():
        alone = words[at[row] + together * _BLOCK_UNITS : at[row] + left[row] * _BLOCK_UNITS : 4]
        first, second = scrambled(alone[::2], _C1, 31, _C2), scrambled(alone[1::2], _C2, 33, _C1)
        one, other = int(low[row]), int(high[row])
        for of_one, of_other in zip(first.tolist(), second.tolist(), strict=True):
            one ^= of_one
            one = ((one << 27 | one >> 37) + other) * 5 + 0x52DCE729 & 2**64 - 1
            other ^= of_other
            other = ((other << 31 | other >> 33) + one) * 5 + 0x38495AB5 & 2**64 - 1
        low[row], high[row] = one, other
    tail, size = at + left * _BLOCK_UNITS, (lengths[order] % _BLOCK_UNITS) * 2
    high ^= scrambled(_first_octets(words[tail + 4], size - 8), _C2, 33, _C1)
    low ^= scrambled(_first_octets(words[tail], size), _C1, 31, _C2)
    total = (lengths[order] * 2).astype(np.uint64)
    low, high = low ^ total, high ^ total
    low += high
    high += low
    low, high = mixed(low, *_END), mixed(high, *_END)
    low += high
    high += low
    unsorted = np.empty_like(order)
    unsorted[order] = np.arange(order.size)
    return low[unsorted], high[unsorted]


def _first_octets(words: Words, size: Bounds) -> Words:
    """Return little-endian words with only the first ``size`` bytes kept: none below 1, all above 7."""
    kept: Words = np.where(size >= 8, words, words & ~(_ALL << (np.clip(size, 0, 7).astype(np.uint64) * np.uint64(8))))
    return kept
