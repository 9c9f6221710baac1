"""Arrays from buffers are those that pyarrow itself makes of the same values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.wire.columnar.arrays import binaries, booleans, fixed_width, present, repeated, strings

INT64 = [-(2**63), -1, 0, 1, 2**63 - 1]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", tz="UTC")])
def test_numbers(kind: pa.DataType) -> None:
    made = fixed_width(np.array(INT64), kind)
    made.validate(full=True)
    assert made.equals(pa.array(INT64, pa.int64()).cast(kind))


def test_numbers_without_a_sign() -> None:
    assert fixed_width(np.array([-1]), pa.uint64()).to_pylist() == [2**64 - 1]


def test_numbers_with_nulls() -> None:
    valid = np.arange(17) % 3 != 0
    made = fixed_width(np.arange(17), pa.int64(), valid)
    made.validate(full=True)
    assert made.equals(pa.array(range(17), mask=~valid))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1_000])
def test_every_length(count: int) -> None:
    values = np.arange(count)
    assert fixed_width(values, pa.int64()).equals(pa.array(values))
    odd = values % 2 == 1
    assert booleans(odd).equals(pa.array(odd))
    assert repeated("größe", count).equals(pa.array(["größe"] * count, pa.string()))


def test_every_second_number_of_an_array() -> None:
    assert fixed_width(np.arange(10)[::2], pa.int64()).to_pylist() == [0, 2, 4, 6, 8]


def test_a_type_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="int32 has not the width of int64"):
        fixed_width(np.zeros(2, np.int32), pa.int64())


def test_an_empty_text() -> None:
    assert repeated("", 3).to_pylist() == ["", "", ""]


def test_too_many_copies() -> None:
    with pytest.raises(ValueError, match="3 copies of 1000000000 bytes"):
        repeated("x" * 10**9, 3)


@pytest.mark.parametrize(
    "values", [[], [""], ["größe", "", "x" * 1_000], [None], ["a", None, ""] * 100], ids=lambda each: str(len(each))
)
def test_texts_one_by_one(values: list[str | None]) -> None:
    made = strings(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))
    encoded = [None if text is None else text.encode() for text in values]
    of_bytes = binaries(encoded)
    of_bytes.validate(full=True)
    assert of_bytes.equals(pa.array(encoded, pa.binary()))


def test_too_many_bytes_one_by_one() -> None:
    with pytest.raises(ValueError, match="3000000000 bytes do not fit an array of binary"):
        binaries([b"x" * 10**9] * 3)


@pytest.mark.parametrize("start", [0, 1, 7, 9])
@pytest.mark.parametrize("values", [[1] * 20, [None, 1, 2, None] * 5, [None] * 20])
def test_which_rows_are_not_null(values: list[int | None], start: int) -> None:
    part = pa.array(values, pa.int64()).slice(start, 9)
    assert present(part).tolist() == part.is_valid().to_pylist()
