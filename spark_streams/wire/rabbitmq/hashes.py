"""Hash as RabbitMQ Streams does: MurmurHash3 chooses a key's partition, and a bloom filter describes a chunk.

MurmurHash3 is the 32-bit variant for x86, as RabbitMQ's own clients use it. All keys are hashed in lockstep, four bytes
of each at a time, and what is left of the longest ones by itself. The partition is the hash, unsigned, modulo the
number of partitions.

The bloom filter tells which filter values the records of a chunk may have::

    bits     numbered from the most significant one of byte 0
    bit 0    some record has no filter value, or an empty one, which counts as none
    others   two for each filter value, by two hashes modulo (bits - 1), plus 1

A chunk whose records all have no filter value has no filter (0 bytes). The filter never leaves the server, so the
hashes are each implementation's own; these are the two halves of an 8-byte BLAKE2b.

Spec: smhasher, MurmurHash3_x86_32; docs/specifications.md, S-52, S-135; osiris_bloom.erl.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import mmh3
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import loads

SEED: Final = 104_729
"""The seed that the Java, JavaScript and Rust clients use."""

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_ADDED: Final = np.uint32(0xE6546B64)
FEW: Final = 32
"""The longest keys: for so few, numbers of Python are faster than a NumPy call for each of their blocks."""
_BYTE_ORDER_MARK: Final = b"\xff\xfe"
_TAIL: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
"""The mask of a little-endian word for a tail of 0 to 3 bytes."""

Hashes = NDArray[np.uint32]


def murmur3_32(keys: pa.Array, seed: int = SEED) -> Hashes:
    """Return the hash of every key.

    Args:
        keys: string, large_string, binary or large_binary; no nulls.
        seed: the seed of the hash.

    Raises:
        LocalProtocolError: a key is null, or the keys have another type.
    """
    if keys.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise LocalProtocolError(f"keys of type {keys.type}: expected strings or binary")
    if keys.null_count:
        raise LocalProtocolError(f"{keys.null_count} of {len(keys)} keys are null: expected one in every row")
    if not len(keys):
        return np.empty(0, np.uint32)
    bounds, content = layout(keys)
    # Padding, so that the word of the last tail ends inside.
    padded = np.concatenate((content, np.zeros(4, np.uint8)))
    return _hash(loads(padded, "<u4"), bounds[:-1], np.diff(bounds), seed)


def _hash(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int) -> Hashes:
    """Return the hashes of the keys at ``starts``; ``words`` holds the four bytes from every position on."""
    blocks = lengths >> 2
    # Sort the longest first, so that the keys that still have a block are always the first ones.
    behind = blocks.max() - blocks
    order = np.argsort(behind.astype(np.uint16) if behind.max() < 1 << 16 else behind, kind="stable")
    at, left = starts[order], blocks[order]
    state = np.full(lengths.size, seed & 0xFFFFFFFF, np.uint32)
    active = lengths.size
    together = int(left[FEW]) if left.size > FEW else 0
    for block in range(together):
        active = int(np.searchsorted(-left[:active], -block, "left"))
        some = state[:active]
        some ^= scrambled(words[at[:active] + 4 * block], _C1, 15, _C2)
        some[:] = rotated(some, 13) * np.uint32(5) + _ADDED
    for row in np.flatnonzero(left[:FEW] > together).tolist():
        number, added = int(state[row]), int(_ADDED)
        for word in scrambled(words[at[row] + 4 * together : at[row] + 4 * left[row] : 4], _C1, 15, _C2).tolist():
            number ^= word
            number = (number << 13 | number >> 19) * 5 + added & 0xFFFFFFFF
        state[row] = number
    hashes = np.empty_like(state)
    hashes[order] = state
    tail = words[starts + 4 * blocks] & _TAIL[lengths & 3]
    # A key without a tail has zeros here, and scrambled zeros are zeros.
    hashes ^= scrambled(tail, _C1, 15, _C2)
    hashes ^= lengths.astype(np.uint32)
    return mixed(hashes, (16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


def scrambled(words: Hashes, first: np.uint32, bits: int, second: np.uint32) -> Hashes:
    """Return words times ``first``, rotated left by ``bits``, times ``second``."""
    product: Hashes = rotated(words * first, bits) * second
    return product


def rotated(words: Hashes, bits: int) -> Hashes:
    """Return words rotated left by ``bits``."""
    turned: Hashes = words << np.uint32(bits) | words >> np.uint32(32 - bits)
    return turned


def mixed(words: Hashes, *steps: tuple[int, int]) -> Hashes:
    """Return the end of a hash: for each step, words combined with themselves shifted right, times a factor."""
    for bits, factor in steps:
        words = (words ^ words >> np.uint32(bits)) * np.uint32(factor)
    return words


def murmur3_128_modulo(keys: pa.StringArray, count: int) -> NDArray[np.uint64]:
    """Return the hash of every key by which rstream chooses a super stream's partition, modulo ``count``.

    rstream takes all 128 bits of MurmurHash3 for x64 (mmh3's) of what Python's codec "UTF-16" gives on a little-endian
    machine, which begins with a byte order mark (rstream 1.1, ``HashRoutingMurmurStrategy``).

    Args:
        keys: strings; no nulls.
        count: number of partitions, below 2^32.

    Raises:
        LocalProtocolError: a key is null, or not UTF-8.
    """
    if keys.null_count:
        raise LocalProtocolError(f"{keys.null_count} of {len(keys)} keys are null: expected one in every row")
    hashes = np.empty(len(keys), np.uint64)
    for row, key in enumerate(keys.cast(pa.binary()).to_pylist()):
        try:
            units = key.decode().encode("utf-16-le")
        except UnicodeDecodeError as fault:
            raise LocalProtocolError(f"key {row} of {len(keys)} is not UTF-8: {fault.reason}") from fault
        hashes[row] = mmh3.hash128(_BYTE_ORDER_MARK + units, SEED) % count
    return hashes


MIN_BLOOM_BYTES: Final = 16
MAX_BLOOM_BYTES: Final = 255
"""The maximum of the stream argument ``stream-filter-size-bytes``; the size is one byte of the chunk's header."""
DEFAULT_BLOOM_BYTES: Final = 16


def _mask(value: bytes, size_bytes: int) -> int:
    """Return the bits of one value as a number of ``size_bytes`` bytes; bit 0 is the most significant one."""
    bits = size_bytes * 8
    first = 1 << bits - 1
    if not value:
        return first
    digest = hashlib.blake2b(value, digest_size=8).digest()
    halves = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")
    return first >> halves[0] % (bits - 1) + 1 | first >> halves[1] % (bits - 1) + 1


def bloom_of(values: Collection[bytes], unfiltered: bool, size_bytes: int = DEFAULT_BLOOM_BYTES) -> bytes:
    """Return the filter of a chunk.

    Args:
        values: the filter values of the chunk's records; an empty one counts as none.
        unfiltered: whether some record has no filter value.
        size_bytes: size of the filter, 16 to 255.

    Returns:
        The filter; no bytes when no record has a filter value.

    Raises:
        LocalProtocolError: the size is outside 16 to 255.
    """
    if not MIN_BLOOM_BYTES <= size_bytes <= MAX_BLOOM_BYTES:
        raise LocalProtocolError(f"a bloom filter of {size_bytes} bytes: expected 16 to 255")
    if not any(values):
        return b""
    bits = _mask(b"", size_bytes) if unfiltered else 0
    for value in values:
        bits |= _mask(value, size_bytes)
    return bits.to_bytes(size_bytes, "big")


class BloomProbe:
    """The filter values of a subscription, to compare with the filters of many chunks.

    Args:
        values: the filter values; an empty one selects records without a filter value.
        match_unfiltered: whether to select records without a filter value, too.
    """

    def __init__(self, values: Collection[bytes], match_unfiltered: bool) -> None:
        self._values = [*values, b""] if match_unfiltered else list(values)
        self._masks: dict[int, tuple[int, ...]] = {}

    def may_match(self, bloom: bytes) -> bool:
        """Return whether a chunk may hold a record with one of the values; False is certain.

        Args:
            bloom: the chunk's filter, of any size; no bytes when no record has a filter value.
        """
        if not bloom:
            return b"" in self._values
        masks = self._masks.get(len(bloom))
        if masks is None:
            masks = self._masks[len(bloom)] = tuple(_mask(value, len(bloom)) for value in self._values)
        bits = int.from_bytes(bloom, "big")
        return any(bits & mask == mask for mask in masks)
