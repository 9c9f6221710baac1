"""The bloom filter of a chunk: which filter values its records may have.

::

    bits     numbered from the most significant one of byte 0
    bit 0    some record has no filter value, or an empty one, which is the same
    others   two for each filter value, by two hashes modulo (bits - 1), plus 1

A chunk whose records all have no filter value has no filter (0 bytes). The filter never leaves the server, so the
hashes are each implementation's own; these are the two halves of an 8-byte BLAKE2b.

Spec: docs/specifications.md, S-52; osiris_bloom.erl.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from spark_streams.errors import LocalProtocolError

__all__ = ["DEFAULT_BLOOM_BYTES", "MAX_BLOOM_BYTES", "MIN_BLOOM_BYTES", "BloomProbe", "bloom_of"]

MIN_BLOOM_BYTES: Final = 16
MAX_BLOOM_BYTES: Final = 255
"""What the stream argument ``stream-filter-size-bytes`` may say; the size is one byte of the chunk's header."""
DEFAULT_BLOOM_BYTES: Final = 16


def _mask(value: bytes, size_bytes: int) -> int:
    """Return the bits of one value, as a number of ``size_bytes`` bytes whose first bit is the most significant."""
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
        values: the filter values of its records; an empty one counts as none.
        unfiltered: whether some record has no filter value.
        size_bytes: of the filter, 16 to 255.

    Returns:
        The filter; nothing when no record has a filter value.

    Raises:
        LocalProtocolError: another size.
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
    """Filter values that are asked for, compared with the filter of one chunk after the other.

    Args:
        values: the filter values; an empty one asks for records without any.
        match_unfiltered: whether records without a filter value are asked for too.
    """

    def __init__(self, values: Collection[bytes], match_unfiltered: bool) -> None:
        self._values = [*values, b""] if match_unfiltered else list(values)
        self._masks: dict[int, tuple[int, ...]] = {}

    def may_match(self, bloom: bytes) -> bool:
        """Return whether a chunk may hold a record with one of the values; False is certain.

        Args:
            bloom: the chunk's filter; of any size, nothing when no record has a filter value.
        """
        if not bloom:
            return b"" in self._values
        masks = self._masks.get(len(bloom))
        if masks is None:
            masks = self._masks[len(bloom)] = tuple(_mask(value, len(bloom)) for value in self._values)
        bits = int.from_bytes(bloom, "big")
        return any(bits & mask == mask for mask in masks)
