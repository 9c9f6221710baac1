"""Encodes the filter values of a stored batch as notes, and finds the records that a subscription wants by them.

A batch has two notes, or none where no record has a filter value:

::

    rabbitmq-bloom                      the bloom filter of all values (wire/rabbitmq/hashes.py)
    rabbitmq-filter-values-by-record    a code for each record (log/format/batch_headers.py), where they differ
        code 0     the record has no filter value
        others     with a table: 1 + the index in it of the value's hash, four bytes, big-endian
                   without: 1 + the value's hash modulo 65535

A hash, of BLAKE2b, may let a record pass by mistake, as the bloom filter does: the client leaves out records that it
does not want. So a note takes at most two bytes a record, whatever the length and the number of the values.

Spec: docs/specifications.md, S-52, S-91, S-92.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_streams.log.format.batch_headers import BY_RECORD_SUFFIX, Codes, RecordCodes, decode_codes, encode_codes
from spark_streams.log.format.record_batch import Header
from spark_streams.wire.columnar.byte_view import Mask
from spark_streams.wire.columnar.gather import copied
from spark_streams.wire.rabbitmq.hashes import BloomProbe, bloom_of
from spark_streams.wire.rabbitmq.publish_decode import Published

BLOOM_NOTE: Final = b"rabbitmq-bloom"
VALUES_NOTE: Final = b"rabbitmq-filter-values" + BY_RECORD_SUFFIX

FEW: Final = 24
"""The most values of a frame that Python encodes faster than Arrow."""
MAX_TABLE: Final = 255
"""The most values of a table; with more the note has hashes alone."""
_HASH_CODES: Final = 0xFFFF
_HASH_BYTES: Final = 4


@dataclass(frozen=True)
class ValueColumn:
    """The filter values of records.

    Args:
        codes: int64[n]: 0 for none, else 1 + the index in ``values``.
        values: the distinct values, none of them empty.
    """

    codes: Codes
    values: tuple[bytes, ...]

    def only(self, rows: Mask) -> ValueColumn:
        """Return the filter values of some records; ``values`` may keep some that none of these records has."""
        return ValueColumn(self.codes[rows], self.values)


def values_of(published: Published) -> ValueColumn | None:
    """Return the filter values of the entries of a Publish frame, one record each; None when no entry has one."""
    starts, ends = published.filter_starts, published.filter_ends
    if starts is None or ends is None:
        return None
    if len(starts) <= FEW:
        known: dict[bytes, int] = {}
        numbers = [
            known.setdefault(bytes(published.buffer[start:end]), len(known) + 1) if end > start else 0
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return ValueColumn(np.array(numbers, np.int64), tuple(known)) if known else None
    there = ends > starts
    if not there.any():
        return None
    encoded = copied(published.buffer, starts[there], ends[there]).dictionary_encode()
    codes = np.zeros(len(starts), np.int64)
    codes[there] = encoded.indices.to_numpy().astype(np.int64) + 1
    return ValueColumn(codes, tuple(encoded.dictionary.to_pylist()))


def value_notes(columns: Sequence[tuple[ValueColumn | None, int, int]], bloom_bytes: int) -> tuple[Header, ...]:
    """Return the notes of a batch.

    Args:
        columns: the batch's records, in their order, as ranges of columns: a column, None for no values, its first
            record (inclusive) and its last one (exclusive).
        bloom_bytes: the size of the bloom filter, 16 to 255.
    """
    if all(column is None for column, _, _ in columns):
        return ()
    known: dict[bytes, int] = {}
    parts = []
    for column, first, end in columns:
        if column is None:
            parts.append(np.zeros(end - first, np.int64))
            continue
        numbers = [0, *(known.setdefault(value, len(known) + 1) for value in column.values)]
        parts.append(np.array(numbers, np.int64)[column.codes[first:end]])
    used, codes = np.unique(np.concatenate(parts), return_inverse=True)
    every = [b"", *known]
    values = [every[number] for number in used.tolist() if number]
    unfiltered = not used[0]
    if not values:
        return ()
    bloom = (BLOOM_NOTE, bloom_of(values, unfiltered, bloom_bytes))
    if len(used) == 1:
        return (bloom,)
    return bloom, (VALUES_NOTE, encode_codes(_noted(codes + (0 if unfiltered else 1), values)))


def _noted(codes: Codes, values: Sequence[bytes]) -> RecordCodes:
    hashes = np.array([_hash(value) for value in values], np.int64)
    if len(values) <= MAX_TABLE:
        return RecordCodes(codes, len(values).bit_length(), hashes.astype(">u4").tobytes())
    return RecordCodes(np.concatenate(([0], hashes % _HASH_CODES + 1))[codes], 16, b"")


def _hash(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=_HASH_BYTES).digest(), "big")


class Sought:
    """The filter values of a subscription.

    Args:
        values: records with any of these are wanted; an empty value means records without a filter value.
        unfiltered: whether it wants records without a filter value too.
    """

    def __init__(self, values: Sequence[bytes], unfiltered: bool) -> None:
        self._values = list(values)
        self._none = unfiltered or b"" in self._values
        self._hashes = np.array([_hash(value) for value in self._values if value], np.int64)
        self._probe = BloomProbe(self._values, unfiltered)

    def __bool__(self) -> bool:
        """Whether the subscription has filter values: without any it gets all records."""
        return bool(self._values)

    def may_match(self, notes: Sequence[Header]) -> bool:
        """Return whether a stored batch may hold a wanted record, by its bloom filter; False is certain."""
        bloom = next((value for name, value in notes if name == BLOOM_NOTE), None) or b""
        return self._probe.may_match(bloom)

    def rows(self, notes: Sequence[Header], count: int) -> Mask | None:
        """Return which of the ``count`` records of a stored batch may be wanted, by its notes; False is certain.

        Returns:
            bool[count]; None when the notes do not have the records' values, so that all records may be wanted.
        """
        for name, value in notes:
            if name == VALUES_NOTE:
                try:
                    noted = decode_codes(value)
                except ValueError:
                    return None
                return self._wanted(noted) if noted.codes.size == count else None
        return None

    def _wanted(self, noted: RecordCodes) -> Mask | None:
        if noted.table:
            hashes = np.frombuffer(noted.table[: len(noted.table) // _HASH_BYTES * _HASH_BYTES], ">u4")
            matches = np.concatenate(([self._none], (hashes[:, None] == self._hashes).any(axis=1)))
            if noted.codes.size and noted.codes.max() >= matches.size:
                return None
        else:
            matches = np.zeros(_HASH_CODES + 1, np.bool_)
            matches[self._hashes % _HASH_CODES + 1] = True
            matches[0] = self._none
        wanted: Mask = matches[noted.codes]
        return wanted
