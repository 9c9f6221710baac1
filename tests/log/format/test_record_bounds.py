"""Records found by guesses are those found step by step, and so are the faults."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.log.format import record_bounds as bounds_module
from spark_streams.log.format.record_batch import (
    HEADER_BYTES,
    BatchFault,
    BatchHeader,
    Body,
    encode_batch,
    parse_header,
    seal,
    single_record,
)
from spark_streams.log.format.record_bounds import record_bounds
from tests.examples import examples


@contextmanager
def changed(**constants: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(bounds_module, name, value)
        yield


def outcome(buffer: bytes, batches: list[tuple[int, BatchHeader]]) -> tuple[list[int], list[int]] | str:
    try:
        starts, ends = record_bounds(buffer, batches)
    except BatchFault as fault:
        return str(fault)
    assert starts.dtype == ends.dtype == np.int64
    return starts.tolist(), ends.tolist()


def step_by_step(buffer: bytes, batches: list[tuple[int, BatchHeader]]) -> tuple[list[int], list[int]] | str:
    with changed(FEW_RECORDS=1 << 62):
        return outcome(buffer, batches)


def steps_taken(buffer: bytes) -> int:
    """Return how many records of one batch were not found by a guess."""
    taken = []
    real = bounds_module._step_by_step

    def counted(*args: Any) -> int:
        taken.append(args[3])
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds_module, "_step_by_step", counted)
        record_bounds(buffer, [(0, parse_header(buffer))])
    return sum(taken)


def batch_of(values: list[bytes]) -> bytes:
    return seal(encode_batch(pa.array(values, pa.large_binary()), None, None, extended=True), 0, 1_000)[1]


ESCAPED = bytes.fromhex("0080000000000000 0075 b0 000000")
SHAPES: dict[str, list[bytes]] = {
    "equal": [b"x" * 100] * 3_000,
    "equal, zeros": [bytes(100)] * 3_000,
    "equal runs": [b"x" * (90 + n // 300) for n in range(3_000)],
    "varied": [b"x" * (80 + n * 7 % 41) for n in range(3_000)],
    "varied, one byte or two of length": [b"x" * (20 + n * 37 % 101) for n in range(3_000)],
    "varied, zeros": [bytes(80 + n * 7 % 41) for n in range(3_000)],
    "varied, small": [b"x" * (n * 7 % 23) for n in range(3_000)],
    "varied, AMQP in long form": [ESCAPED + bytes([80 + n * 7 % 41]) + b"\x00y" * 45 for n in range(3_000)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_most_records_are_found_by_guesses(shape: str) -> None:
    values = SHAPES[shape]
    batch = batch_of(values)
    starts, ends = record_bounds(batch, [(0, parse_header(batch))])
    # A record lies between the length of it and that of the next; its value and one byte, no headers, end it.
    assert [batch[end - 1 - len(v) : end - 1] for v, end in zip(values, ends.tolist(), strict=True)] == values
    gaps = starts - np.array([HEADER_BYTES, *ends[:-1]])
    assert (int(gaps.min()) >= 1, int(gaps.max()) <= 2, int(ends[-1])) == (True, True, len(batch))
    assert steps_taken(batch) < bounds_module.FEW_RECORDS


def test_large_records_and_such_with_headers_are_stepped_over() -> None:
    large = batch_of([b"x" * 2_000] * 300)
    assert steps_taken(large) == 300
    records = b"".join(single_record(b"v" * (n % 50), headers=[(b"h", b"1")], offset_delta=n) for n in range(900))
    _, noted = seal(Body((records,), 900, 0), 0)
    assert steps_taken(noted) == 900
    for batch in (large, noted):
        assert outcome(batch, [(0, parse_header(batch))]) == step_by_step(batch, [(0, parse_header(batch))])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", [1, 63, 64, 1_000, 2_990, 2_999])
def test_a_negative_length_is_found(shape: str, row: int) -> None:
    batch = bytearray(batch_of(SHAPES[shape]))
    header = parse_header(batch)
    _, ends = record_bounds(bytes(batch), [(0, header)])
    batch[ends[row - 1]] |= 1  # the lowest bit of a zigzag varint is its sign
    assert outcome(bytes(batch), [(0, header)]) == "a record has a negative length"


@pytest.mark.parametrize(("length_bytes", "fault"), [(5, False), (6, True)])
def test_lengths_longer_than_they_need_be(length_bytes: int, fault: bool) -> None:
    record = bytes([0x80 | 12, *[0x80] * (length_bytes - 2), 0]) + bytes(6)
    _, batch = seal(Body((record * 500,), 500, 0), 0)
    found = outcome(batch, [(0, parse_header(batch))])
    assert found == step_by_step(batch, [(0, parse_header(batch))])
    assert (found == "a record's length runs past the batch") == fault


def values_of(seed: int, count: int) -> list[bytes]:
    """Return values that change their manner every few records."""
    chance = random.Random(seed)
    values: list[bytes] = []
    while len(values) < count:
        manner = chance.randrange(5)
        size = chance.choice([0, 1, 5, 55, 60, 100, 130, 9_000 if chance.random() < 0.05 else 30])
        for _ in range(chance.randrange(1, 40)):
            wide = chance.randrange(size + 1)
            values.append(
                (
                    b"x" * size,
                    bytes(wide),
                    chance.randbytes(wide),
                    bytes(chance.choices((0, 0, 0, 12, 14, 0x80), k=wide)),
                    b"\x00\x80\x01" * (wide // 3),
                )[manner]
            )
    return values[:count]


def batches_of(seed: int, count: int, junk: bytes) -> tuple[bytes, list[tuple[int, BatchHeader]]]:
    """Return one to three batches in one buffer, with bytes before and after them that belong to none."""
    values = values_of(seed, count)
    cut = count // 3
    parts = [values] if seed % 2 else [values[:cut], values[cut : cut + 1], values[cut + 1 :]]
    buffer, batches = junk, []
    for part in parts:
        if part:
            batch = batch_of(part)
            batches.append((len(buffer), parse_header(batch)))
            buffer += batch
    return buffer + junk, batches


SMALL = {"FEW_RECORDS": 4, "WORTHWHILE_RUN": 2, "FIRST_GUESS_BYTES": 60, "LAST_GUESS_BYTES": 500}


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 1_500), st.binary(max_size=5))
def test_guesses_find_what_steps_find(seed: int, count: int, junk: bytes) -> None:
    buffer, batches = batches_of(seed, count, junk)
    expected = step_by_step(buffer, batches)
    assert not isinstance(expected, str)
    assert outcome(buffer, batches) == expected
    with changed(**SMALL):
        assert outcome(buffer, batches) == expected


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 700),
    st.lists(st.tuples(st.integers(0, 2**32), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 12])), max_size=4),
    st.integers(-3, 3),
    st.integers(-3, 3),
)
@example(1, 600, [], 1, 0)
@example(1, 600, [], -1, 0)
@example(1, 600, [], 0, 1)
@example(1, 600, [], 0, -1)
def test_damage_gives_the_same_fault_or_the_same_records(
    seed: int, count: int, flips: list[tuple[int, int]], more_records: int, more_bytes: int
) -> None:
    buffer, batches = batches_of(seed, count, b"\x0e\x00\x00")
    damaged = bytearray(buffer)
    position, header = batches[-1]
    for where, byte in flips:
        damaged[position + HEADER_BYTES + where % (header.size - HEADER_BYTES)] = byte
    header = header._replace(
        records_count=max(header.records_count + more_records, 1), size=max(header.size + more_bytes, HEADER_BYTES)
    )
    batches[-1] = position, header
    expected = step_by_step(bytes(damaged), batches)
    assert outcome(bytes(damaged), batches) == expected
    with changed(**SMALL):
        assert outcome(bytes(damaged), batches) == expected


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([0, 0, 0, 12, 14, 16, 0x80, 0x81, 1, 0xFF]), max_size=200), st.integers(1, 60))
def test_garbage_gives_the_same_fault_or_the_same_records(garbage: list[int], count: int) -> None:
    _, batch = seal(Body((bytes(garbage),), count, 0), 0)
    batches = [(0, parse_header(batch))]
    expected = step_by_step(batch, batches)
    with changed(**SMALL):
        assert outcome(batch, batches) == expected
