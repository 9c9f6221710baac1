"""MurmurHash3, the 32-bit variant for x86: how RabbitMQ's clients choose a super stream's partition for a key.

All keys are hashed in lockstep, four bytes of each at a time. The partition is the hash, unsigned, modulo their number.

Spec: smhasher, MurmurHash3_x86_32; docs/specifications.md, S-135.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError

__all__ = ["SEED", "murmur3_32"]

SEED: Final = 104_729
"""The seed that the Java, JavaScript and Rust clients use."""

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_ADDED: Final = np.uint32(0xE6546B64)
_TAIL: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
"""Which bits of a little-endian word belong to a tail of 0 to 3 bytes."""

Hashes = NDArray[np.uint32]


def murmur3_32(keys: pa.Array | pa.ChunkedArray, seed: int = SEED) -> Hashes:
    """Return the hash of every key.

    Args:
        keys: string, large_string, binary or large_binary; no nulls.
        seed: of the hash.

    Raises:
        LocalProtocolError: a null among the keys, or keys of another type.
    """
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not (pa.types.is_string(keys.type) or pa.types.is_binary(keys.type)) and not (
        pa.types.is_large_string(keys.type) or pa.types.is_large_binary(keys.type)
    ):
        raise LocalProtocolError(f"keys of type {keys.type}: expected strings or binary")
    if keys.null_count:
        raise LocalProtocolError(f"{keys.null_count} of {len(keys)} keys are null: expected one in every row")
    if not len(keys):
        return np.empty(0, np.uint32)
    _, offsets, content = keys.buffers()
    wide = pa.types.is_large_string(keys.type) or pa.types.is_large_binary(keys.type)
    number = np.dtype(np.int64 if wide else np.int32)
    bounds = np.frombuffer(offsets, number, len(keys) + 1, keys.offset * number.itemsize).astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    # Three bytes of padding: the word that holds the last tail ends inside.
    padded = np.zeros(last - first + 4, np.uint8)
    if content is not None:
        padded[: last - first] = np.frombuffer(content, np.uint8, last - first, first)
    words: Hashes = np.ndarray((padded.size - 3,), "<u4", padded, strides=(1,))
    return _hash(words, bounds[:-1] - first, np.diff(bounds), seed)


def _hash(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int) -> Hashes:
    """Return the hashes of the keys at ``starts``; ``words`` has the four bytes from every position on."""
    blocks = lengths >> 2
    # Longest first: the keys that still have a block are always the first few.
    behind = blocks.max() - blocks
    order = np.argsort(behind.astype(np.uint16) if behind.max() < 1 << 16 else behind, kind="stable")
    at, left = starts[order], blocks[order]
    state = np.full(lengths.size, seed & 0xFFFFFFFF, np.uint32)
    active = lengths.size
    for block in range(int(left[0])):
        active = int(np.searchsorted(-left[:active], -block, "left"))
        some = state[:active]
        some ^= _scrambled(words[at[:active] + 4 * block])
        some[:] = _rotated(some, 13) * np.uint32(5) + _ADDED
    hashes = np.empty_like(state)
    hashes[order] = state
    tail = words[starts + 4 * blocks] & _TAIL[lengths & 3]
    # Of a key without a tail these are zeros, and zeros scrambled are zeros.
    hashes ^= _scrambled(tail)
    hashes ^= lengths.astype(np.uint32)
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _scrambled(words: Hashes) -> Hashes:
    scrambled: Hashes = _rotated(words * _C1, 15) * _C2
    return scrambled


def _rotated(words: Hashes, bits: int) -> Hashes:
    rotated: Hashes = words << np.uint32(bits) | words >> np.uint32(32 - bits)
    return rotated
