"""Hash as RabbitMQ Streams does: MurmurHash3 chooses a key's partition, and a bloom filter describes a chunk.

MurmurHash3 is the 32-bit variant for x86, as RabbitMQ's own clients use it. The partition is the hash, unsigned, modulo
the number of partitions.

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

SEED: Final = 104_729
"""The seed that the Java, JavaScript and Rust clients use."""

_BYTE_ORDER_MARK: Final = b"\xff\xfe"


def murmur3_32(keys: pa.Array, seed: int = SEED) -> NDArray[np.uint32]:
    """Return the hash of every key.

    Args:
        keys: string, large_string, binary or large_binary; no nulls.
        seed: the seed of the hash.

    Raises:
        LocalProtocolError: a key is null, or the keys have another type.
    """
    if keys.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise LocalProtocolError(f"keys of type {keys.type}: expected strings or binary")
    return np.fromiter((mmh3.mmh3_32_uintdigest(key, seed) for key in _present(keys)), np.uint32, len(keys))


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
    hashes = np.empty(len(keys), np.uint64)
    for row, key in enumerate(_present(keys)):
        try:
            units = key.decode().encode("utf-16-le")
        except UnicodeDecodeError as fault:
            raise LocalProtocolError(f"key {row} of {len(keys)} is not UTF-8: {fault.reason}") from fault
        hashes[row] = mmh3.hash128(_BYTE_ORDER_MARK + units, SEED) % count
    return hashes


def _present(keys: pa.Array) -> list[bytes]:
    if keys.null_count:
        raise LocalProtocolError(f"{keys.null_count} of {len(keys)} keys are null: expected one in every row")
    present: list[bytes] = keys.cast(pa.large_binary()).to_pylist()
    return present


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
