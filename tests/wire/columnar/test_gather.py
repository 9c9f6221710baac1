"""Ranges of buffers read and gathered, beside slices of bytes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import PaddedWords, Words, numbers_at
from spark_streams.wire.columnar.gather import gather

CHANCE = random.Random(1)
BUFFERS = [CHANCE.randbytes(size) for size in (300, 5, 0, 8)]
RANGES = [
    (number, *sorted((CHANCE.randint(0, len(buffer)), CHANCE.randint(0, len(buffer)))))
    for number, buffer in enumerate(BUFFERS)
    for _ in range(100)
]


def test_words_are_the_bytes_from_a_position_on_and_zeros_behind_the_buffer() -> None:
    for buffer in BUFFERS:
        positions = np.arange(len(buffer) + 12)
        words = Words(np.frombuffer(buffer, np.uint8)).little(positions)
        assert words.tobytes() == b"".join(buffer[at : at + 8].ljust(8, b"\0") for at in positions)


@pytest.mark.parametrize("size", [0, 1, 4, 7, 8, 9, 16, 21])
def test_a_text_is_found_where_the_range_holds_it_exactly(size: int) -> None:
    raw = b"abcdefghijklmnopqrstuvwxyz" * 4
    text = raw[3 : 3 + size]
    ranges = [(start, end) for start in range(len(raw) + 1) for end in range(start, len(raw) + 1)]
    start, end = np.array(ranges, np.int64).T
    for words in (Words(np.frombuffer(raw, np.uint8)), PaddedWords(np.frombuffer(raw, np.uint8), 0, len(raw))):
        assert words.equal(start, end, text).tolist() == [raw[a:b] == text for a, b in ranges]
        alike = np.flatnonzero(end - start == size)
        assert words.holds(start[alike], text).tolist() == [raw[at : at + size] == text for at in start[alike]]


@pytest.mark.parametrize("only", range(len(BUFFERS)))
@pytest.mark.parametrize("longest", [12, 300])
def test_ranges_of_a_buffer_become_one_array(only: int, longest: int) -> None:
    some = [each for each in RANGES if each[0] == only and each[2] - each[1] <= longest]
    _, start, end = np.array(some, np.int64).T
    valid = np.arange(start.size) % 3 != 0
    words = Words(np.frombuffer(BUFFERS[only], np.uint8))
    every = gather(words, start, end - start, pa.binary())
    assert every.to_pylist() == [BUFFERS[only][a:b] for _, a, b in some]
    some_null = gather(words, start, end - start, pa.large_binary(), valid=valid)
    assert some_null.to_pylist() == [text if ok else None for text, ok in zip(every.to_pylist(), valid, strict=True)]


def test_text_that_is_no_utf8_is_an_error_unless_its_row_is_null() -> None:
    words = Words(np.frombuffer(b"good\xff", np.uint8))
    start, length = np.array([0, 4]), np.array([4, 1])
    with pytest.raises(pa.ArrowInvalid):
        gather(words, start, length, pa.string())
    assert gather(words, start, length, pa.string(), valid=np.array([True, False])).to_pylist() == ["good", None]


def test_numbers_at_positions_up_to_the_last_one_that_fits() -> None:
    assert numbers_at(b"\1\2\3\4\5", np.array([0, 1]), ">u4").tolist() == [0x01020304, 0x02030405]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
@pytest.mark.parametrize("texts", [[], [b""], [b"one", None, b"", b"seven", b"\xc3\xa9"]])
def test_the_layout_of_an_array_is_that_of_exactly_its_values(kind: pa.DataType, texts: list[bytes | None]) -> None:
    whole = pa.array(texts, pa.large_binary()).cast(kind)
    for first in range(len(texts) + 1):
        for end in range(first, len(texts) + 1):
            bounds, content = layout(whole.slice(first, end - first))
            expected = [text or b"" for text in texts[first:end]]
            assert content.tobytes() == b"".join(expected)
            assert [content[a:b].tobytes() for a, b in itertools.pairwise(bounds)] == expected
            assert bounds.dtype == np.int64 and bounds[0] == 0 and bounds.size == end - first + 1
