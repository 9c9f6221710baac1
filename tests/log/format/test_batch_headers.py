"""Headers with a code for each record: as they are stored, and what a split makes of them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from spark_streams.log import ReferenceLog, StreamConfig
from spark_streams.log.format.batch_headers import RecordCodes, decode_codes, encode_codes, headers_of_rows
from spark_streams.log.format.record_batch import Header

NAME = b"test-by-record"


def noted(codes: list[int], width: int, table: bytes = b"t") -> RecordCodes:
    return RecordCodes(np.array(codes, np.int64), width, table)


def test_codes_are_laid_out_as_written_down() -> None:
    # 3 records of 3 bits: 101 001 110, filled up with zeros: 1010 0111 0000 0000.
    value = encode_codes(noted([5, 1, 6], 3, b"ab"))
    assert value == struct.pack(">IBI", 3, 3, 2) + b"ab" + bytes([0b10100111, 0])
    assert decode_codes(value).codes.tolist() == [5, 1, 6]
    assert decode_codes(value).table == b"ab"


@pytest.mark.parametrize("width", range(1, 17))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_every_width_comes_back(width: int, count: int) -> None:
    codes = np.random.default_rng(width).integers(0, 1 << width, count)
    value = encode_codes(RecordCodes(codes, width, b"table"))
    assert len(value) == 9 + 5 + (count * width + 7) // 8
    found = decode_codes(value)
    assert (found.codes.tolist(), found.width, found.table) == (codes.tolist(), width, b"table")
    with pytest.raises(ValueError, match="header"):
        decode_codes(value + b"\0")
    with pytest.raises(ValueError, match="header"):
        decode_codes(value[:-1])


@pytest.mark.parametrize(("codes", "width"), [([2], 1), ([-1], 4), ([0], 0), ([0], 17)])
def test_codes_that_do_not_fit(codes: list[int], width: int) -> None:
    with pytest.raises(ValueError, match="codes of"):
        encode_codes(noted(codes, width))


def test_what_cannot_be_read_is_left_out_of_a_part() -> None:
    good = encode_codes(noted([0, 1, 0, 1], 1))
    notes: list[Header] = [(b"other", b"x"), (NAME, good), (b"bad-by-record", b"?"), (b"null-by-record", None)]
    kept = dict(headers_of_rows(notes, np.array([1, 2])))
    assert set(kept) == {b"other", NAME}
    assert decode_codes(kept[NAME]).codes.tolist() == [1, 0]
    assert headers_of_rows([(NAME, good)], np.array([4])) == ()  # it has fewer records than the batch


@pytest.mark.parametrize("kind", ["append", "create"])
def test_a_split_that_takes_the_history_along_takes_them_apart(tmp_path: Path, kind: str) -> None:
    def told(start: int, stop: int) -> list[Header]:
        return [(NAME, encode_codes(noted([n % 7 for n in range(start, stop)], 3)))]

    size = 3_000  # several stored batches of 1 MiB
    values = [b"%06d" % n + b"." * 500 for n in range(size)]
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 1, StreamConfig(timestamp_type=kind))  # type: ignore[arg-type]
        instants = [None if n % 100 == 0 else n for n in range(size)] if kind == "create" else None
        stream.partitions["0"].append(values, [b"%d" % (n % 50) for n in range(size)], instants, notes=told)
        log.split_partition("s", "0", history=True)
    with ReferenceLog(tmp_path) as log:
        seen = []
        for partition in log.stream("s").partitions.values():
            for batch in partition.batches(partition.first_offset):
                records = partition.read(batch.first_offset, 1, whole=True)
                assert records is not None
                count = batch.next_offset - batch.first_offset
                numbers = [int(records.value(row)[:6]) for row in range(count)]
                ((name, value),) = batch.notes
                assert name == NAME
                codes = decode_codes(value).codes.tolist()
                assert len(codes) == count
                seen += list(zip(numbers, codes, strict=True))
        assert sorted(number for number, _ in seen) == list(range(size))
        assert all(code == number % 7 for number, code in seen)
