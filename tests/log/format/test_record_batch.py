"""The stored form: golden bytes from the format's definition, KIP-228's tables cell by cell, and damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.log import NO_TIMESTAMP, StreamConfig, TimestampRefused
from spark_streams.log.format import batching as batching_module
from spark_streams.log.format import record_batch as format_module
from spark_streams.log.format.batching import encode_records, place
from spark_streams.log.format.record_batch import (
    FEW_RECORDS,
    HEADER_BYTES,
    BatchFault,
    Body,
    encode_batch,
    encode_few,
    parse_header,
    seal,
    single_record,
    to_stored,
    verify,
)
from spark_streams.log.format.records import Records, decode_batches, record_headers
from spark_streams.log.format.varint import decode_varints, encode_varint, encode_varints

# Provenance: made by hand, with plain struct, from the format's definition and KIP-228's bit.
B1 = bytes.fromhex(
    "00000000000000000000003900000000024ee492e1004000000000ffffffffffffffffffffffffffffffff"
    "ffffffffffffffffffffffffffff000000010e00000001027800"
)
B2 = bytes.fromhex(
    "0000000000000000000000390000000002dc16b1e2000000000000ffffffffffffffffffffffffffffffff"
    "ffffffffffffffffffffffffffff000000010e00000001027800"
)
B3 = bytes.fromhex(
    "0000000000000000000000420000000002c86ed61f004000000001ffffffa609e8e000ffffffa609e8e3e8"
    "ffffffffffffffffffffffffffff000000020e000000010278001000d00f0201027900"
)
SPUTNIK = -386_380_800_000


def decode(batch: bytes) -> Records:
    header = parse_header(batch)
    verify(batch, 0, header)
    return decode_batches(batch, [(0, header)])


def batch_of(timestamp: int, *, extended: bool) -> bytes:
    """One record "x", laid out by hand with struct, not by our encoder."""
    body = struct.pack(">hiqqqhii", 0x40 if extended else 0, 0, timestamp, timestamp, -1, -1, -1, 1) + bytes.fromhex(
        "0e00000001027800"
    )
    return struct.pack(">qiibI", 0, len(body) + 9, 0, 2, google_crc32c.value(body)) + body


def test_hand_laid_batch_is_the_golden_one() -> None:
    assert batch_of(-1, extended=True) == B1
    assert batch_of(-1, extended=False) == B2


@pytest.mark.parametrize(
    ("golden", "values", "timestamps", "extended"),
    [
        (B1, [b"x"], [-1], True),
        (B2, [b"x"], [NO_TIMESTAMP], False),
        (B3, [b"x", b"y"], [SPUTNIK, SPUTNIK + 1000], True),
    ],
    ids=["B1", "B2", "B3"],
)
def test_golden_bytes_both_ways(golden: bytes, values: list[bytes], timestamps: list[int], extended: bool) -> None:
    records = decode(golden)
    assert [records.value(i) for i in range(len(records))] == values
    assert [records.key(i) for i in range(len(records))] == [None] * len(values)
    assert records.timestamps.tolist() == timestamps
    stored = to_stored(np.array(timestamps), extended)
    array = pa.array(values, pa.large_binary())
    assert seal(encode_batch(array, None, stored, extended=extended), 0)[1] == golden
    assert seal(encode_few(values, [None] * len(values), stored, extended=extended), 0)[1] == golden


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (1000, "d00f"),
        (-86_400_000, "ffefb252"),
        (2**31 - 1, "feffffff0f"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varint_vectors(value: int, encoded: str) -> None:
    matrix, used = encode_varints(np.array([value]))
    assert matrix[used].tobytes().hex() == encoded
    assert encode_varint(value).hex() == encoded
    values, after = decode_varints(np.frombuffer(bytes.fromhex(encoded), np.uint8), np.array([0]))
    assert values.tolist() == [value]
    assert after.tolist() == [len(encoded) // 2]


def test_crc_is_castagnoli() -> None:
    assert google_crc32c.value(b"123456789") == 0xE3069283


def test_diagram_names_every_field_at_its_place() -> None:
    """The byte diagram in the module's docstring is the layout that parse_header reads."""
    expected = {
        "baseOffset": (0, "q"),
        "batchLength": (8, "i"),
        "partitionLeaderEpoch": (12, "i"),
        "magic": (16, "b"),
        "crc": (17, "I"),
        "attributes": (21, "h"),
        "lastOffsetDelta": (23, "i"),
        "baseTimestamp": (27, "q"),
        "maxTimestamp": (35, "q"),
        "producerId": (43, "q"),
        "producerEpoch": (51, "h"),
        "baseSequence": (53, "i"),
        "recordsCount": (57, "i"),
    }
    letters = {"i64": "q", "i32": "i", "i16": "h", "i8": "b", "u32": "I"}
    found = {}
    for line in (format_module.__doc__ or "").splitlines():
        words = line.split()
        if len(words) >= 3 and words[0].isdigit() and words[2] in letters:
            found[words[1]] = (int(words[0]), letters[words[2]])
    assert found == expected
    assert struct.calcsize(">" + "".join(letter for _, letter in expected.values())) == HEADER_BYTES


NEW, OLD = "extended", "legacy"


def appended(timestamp: int | None, broker: str, on_negative: str) -> tuple[bool, list[int]]:
    """Return whether the batch that stores one record has the bit, and the timestamp that is read from it."""
    config = StreamConfig(timestamp_type="create", timestamp_format=broker, legacy_negative=on_negative)  # type: ignore[arg-type]
    ((header, stored),) = place(encode_records([b"x"], None, [timestamp], config), 7, 0)
    assert header.base_offset == 7
    return header.extended, decode(stored).timestamps.tolist()


@pytest.mark.parametrize(
    ("row", "timestamp", "broker", "on_negative", "outcome"),
    [
        ("W1", None, OLD, "error", NO_TIMESTAMP),
        ("W2, W4", None, NEW, "error", NO_TIMESTAMP),
        ("W3", NO_TIMESTAMP, OLD, "error", NO_TIMESTAMP),
        ("W3", NO_TIMESTAMP, OLD, "degrade", NO_TIMESTAMP),
        ("W4", NO_TIMESTAMP, NEW, "error", NO_TIMESTAMP),
        ("W5", -1, OLD, "error", None),
        ("W5", -1, OLD, "degrade", NO_TIMESTAMP),
        ("W6", -1, NEW, "error", -1),
        ("W8", SPUTNIK, NEW, "error", SPUTNIK),
        ("W9", SPUTNIK, OLD, "error", None),
        ("W9", SPUTNIK, OLD, "degrade", NO_TIMESTAMP),
    ],
)
def test_write_path(row: str, timestamp: int | None, broker: str, on_negative: str, outcome: int | None) -> None:
    if outcome is None:
        with pytest.raises(TimestampRefused):
            appended(timestamp, broker, on_negative)
    else:
        assert appended(timestamp, broker, on_negative) == (broker == NEW, [outcome])


@pytest.mark.parametrize(
    ("row", "timestamp", "flag", "new_consumer"),
    [
        ("R1", -1, False, NO_TIMESTAMP),
        ("R2", -1, True, -1),
        ("R3", NO_TIMESTAMP, True, NO_TIMESTAMP),
        ("R4", SPUTNIK, True, SPUTNIK),
        ("R5", -5, False, -5),
        ("R6", NO_TIMESTAMP, False, NO_TIMESTAMP),
        ("R7", 5, False, 5),
        ("R7", 5, True, 5),
    ],
)
def test_read_path_of_a_new_consumer(row: str, timestamp: int, flag: bool, new_consumer: int) -> None:
    assert decode(batch_of(timestamp, extended=flag)).timestamps.tolist() == [new_consumer]


def test_n02_a_legacy_stream_never_sets_the_bit() -> None:
    config = StreamConfig(timestamp_type="create", timestamp_format="legacy")
    for header, _ in place(encode_records([b"a", b"b"], None, [5, None], config), 0, 0):
        assert not header.extended


def test_n08_flipping_the_bit_without_a_new_crc_is_found() -> None:
    damaged = bytearray(B1)
    damaged[22] ^= 0x40
    with pytest.raises(BatchFault, match="CRC"):
        decode(bytes(damaged))


def test_every_flipped_bit_behind_the_crc_is_found() -> None:
    for byte in range(12, len(B3)):
        if 12 <= byte < 16:
            continue  # partitionLeaderEpoch is set by the log and outside the CRC, as in Kafka
        for bit in range(8):
            damaged = bytearray(B3)
            damaged[byte] ^= 1 << bit
            with pytest.raises(BatchFault):
                decode(bytes(damaged))


def test_every_truncation_is_found() -> None:
    for size in range(len(B3)):
        with pytest.raises(BatchFault):
            decode(B3[:size])


@pytest.mark.parametrize(
    ("attributes", "words"),
    [(0x41, "gzip"), (0x44, "zstd"), (0x50, "transactional"), (0x60, "control"), (0xC0, "does not know")],
)
def test_kinds_that_are_not_stored_are_refused(attributes: int, words: str) -> None:
    _, batch = seal(Body((bytes.fromhex("0e00000001027800"),), 1, attributes), 0)
    with pytest.raises(BatchFault, match=words):
        decode(batch)


def test_headers_are_read_and_written() -> None:
    # Laid out by hand from the format: key "k", value "v", headers ("a", "1") and ("b", null).
    by_hand = bytes.fromhex("1e" + "00" + "00" + "00" + "026b" + "0276" + "04" + "0261" + "0231" + "0262" + "01")
    assert single_record(b"v", key=b"k", headers=[(b"a", b"1"), (b"b", None)]) == by_hand
    records = decode(seal(Body((by_hand,), 1, 0x40), 0)[1])
    assert records.value(0) == b"v"
    assert records.key(0) == b"k"
    assert record_headers(records, 0) == [(b"a", b"1"), (b"b", None)]


def test_null_keys_and_values_are_read() -> None:
    # By hand: delta 0, key "k", value "v", headers ("a", "1") and ("b", null); then delta 5, null key, null value.
    first = bytes.fromhex("1e" + "00" + "00" + "00" + "026b" + "0276" + "04" + "0261" + "0231" + "0262" + "01")
    second = bytes.fromhex("0c" + "00" + "0a" + "02" + "01" + "01" + "00")
    _, batch = seal(Body((first, second), 2, 0x40, base_timestamp=-3, max_timestamp=2), 0)
    records = decode(batch)
    assert records.timestamps.tolist() == [-3, 2]
    assert [(records.key(row), records.value(row)) for row in (0, 1)] == [(b"k", b"v"), (None, b"")]
    assert [record_headers(records, row) for row in (0, 1)] == [[(b"a", b"1"), (b"b", None)], []]


def test_degrading_takes_only_what_lies_before_1970() -> None:
    config = StreamConfig(timestamp_type="create", timestamp_format="legacy", legacy_negative="degrade")
    ((header, stored),) = place(encode_records([b"v", b"w"], [b"k", None], [-3, 2], config), 7, 0)
    records = decode(stored)
    assert (header.extended, records.timestamps.tolist()) == (False, [NO_TIMESTAMP, 2])
    assert [(records.key(row), records.value(row)) for row in (0, 1)] == [(b"k", b"v"), (None, b"w")]


@pytest.mark.parametrize("count", [1, FEW_RECORDS + 1])
def test_n02_append_time_sets_the_bit_as_the_stream_says(count: int) -> None:
    for name, extended in (("legacy", False), ("extended", True)):
        config = StreamConfig(timestamp_format=name)  # type: ignore[arg-type]
        ((header, stored),) = place(encode_records([b"x"] * count, None, [-1] * count, config), 0, 5)
        assert (header.extended, decode(stored).timestamps.tolist()) == (extended, [5] * count)


@pytest.mark.parametrize(
    "record", ["2a00000001" + "feffffffffffffffff01" + "00" * 7, "2600" + "0000" + "feffffffffffffffff01" + "00" * 6]
)
def test_a_size_near_2_to_the_63_does_not_wrap_around(record: str) -> None:
    body = bytes.fromhex(record)
    assert body[0] >> 1 == len(body) - 1
    with pytest.raises(BatchFault, match="runs past its record"):
        decode(seal(Body((body,), 1, 0x40), 0)[1])


@pytest.mark.parametrize("record", ["0c" + "000000" + "03" + "01" + "00", "0c" + "000000" + "01" + "03" + "00"])
def test_a_size_below_that_of_null_is_refused(record: str) -> None:
    with pytest.raises(BatchFault, match="runs past its record"):
        decode(seal(Body((bytes.fromhex(record),), 1, 0x40), 0)[1])


def test_slices_strings_and_few_records_give_the_same_bytes() -> None:
    for count in (1, 3, FEW_RECORDS, FEW_RECORDS + 1, 300):
        plain = [b"v%d" % n for n in range(count)]
        keys = [None if n % 3 else b"k%d" % n for n in range(count)]
        padded = [b"before", *plain, b"after"]
        for config in (StreamConfig(), StreamConfig(timestamp_type="create")):
            expected = place(encode_records(plain, keys, None, config), 5, 77)
            assert [decode(b).key(0) for _, b in expected] == [b"k0"]
            for kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
                texts = pa.array(padded, pa.binary()).cast(kind)[1:-1]
                names = pa.array([b"x", *keys, None], pa.binary()).cast(kind)[1:-1]
                assert place(encode_records(texts, names, None, config), 5, 77) == expected
            chunked = pa.chunked_array([pa.array(plain[:1], pa.binary()), pa.array(plain[1:], pa.binary())])
            assert place(encode_records(chunked, pa.array(keys, pa.binary()), None, config), 5, 77) == expected


def little_few(values: list[bytes], *arguments: Any, **options: Any) -> Body:
    """Encode a few records, which are little: of more bytes it would make copies with Python's lock held."""
    assert sum(map(len, values)) <= batching_module.MAX_BATCH_BYTES // 2
    return encode_few(values, *arguments, **options)


def test_what_is_large_is_not_copied_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    large = pa.array([b"x" * (1 << 20)] * 3, pa.large_binary())
    monkeypatch.setattr(batching_module, "_plain", None)  # it makes Python objects of what it is given
    monkeypatch.setattr(batching_module, "encode_few", None)
    assert len(encode_records(large, None, None, StreamConfig())) == 3


def test_short_runs_of_records_with_and_without_a_timestamp_are_encoded_without_arrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In columns each would take twenty times as long, and the loop would wait a second for 8,192 of them."""
    values = pa.array([b"%d" % n for n in range(200)], pa.large_binary())
    monkeypatch.setattr(batching_module, "encode_batch", None)
    config = StreamConfig(timestamp_type="create")
    batches = place(encode_records(values, None, [None, 5] * 100, config), 7, 0)
    assert [(header.base_offset, decode(batch).value(0)) for header, batch in batches] == [
        (7 + n, b"%d" % n) for n in range(200)
    ]


def test_what_is_large_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In columns, and copied a mebibyte at a time; with a batch of few records, one by one."""
    for sizes in ([3 << 20], [(1 << 20) - 68], [5, 2 << 20, 7], [100] * 90):
        values = pa.array([bytes([65 + n % 26]) * size for n, size in enumerate(sizes)], pa.large_binary())
        keys = pa.array([None if n % 2 else b"k" * size for n, size in enumerate(sizes)], pa.large_binary())
        for config in (StreamConfig(), StreamConfig(timestamp_type="create")):
            for notes in ((), ((b"a", b"1"),)):
                with monkeypatch.context() as patched:
                    patched.setattr(batching_module, "encode_few", little_few)
                    patched.setattr(batching_module, "FEW_RECORDS", 80)
                    large = place(encode_records(values, keys, None, config, notes), 5, 77)
                for header, encoded in large:
                    records = decode(encoded)
                    few = encode_few(
                        [records.value(row) for row in range(len(records))],
                        [records.key(row) for row in range(len(records))],
                        None if header.append_time else np.full(len(records), NO_TIMESTAMP),
                        extended=True,
                        headers=record_headers(records, 0),
                    )
                    assert seal(few, header.base_offset, 77) == (header, encoded) == (parse_header(encoded), encoded)


def test_timestamps_that_are_no_int64_are_refused() -> None:
    config = StreamConfig(timestamp_type="create")
    for wrong in ([2**63], np.array([1.5]), np.array([2**63], np.uint64)):
        with pytest.raises(ValueError, match="timestamp"):
            encode_records([b"x"], None, wrong, config)  # type: ignore[arg-type]


def test_a_record_too_large_for_the_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_module, "MAX_BATCH_LENGTH", 5_000)
    with pytest.raises(ValueError, match="more than a batch holds"):
        place(encode_records([b"x" * 5_000], None, None, StreamConfig()), 0, 1)


def test_keys_and_empty_values_count_for_a_batchs_size() -> None:
    config = StreamConfig()
    assert len(encode_records([b""] * 300_000, None, None, config)) == 3
    assert len(encode_records([b""] * 30, [b"k" * 100_000] * 30, None, config)) == 3


def test_append_time_wins_over_the_records_own() -> None:
    body = struct.pack(">hiqqqhii", 0x40 | 0x08, 1, SPUTNIK, 1_000, -1, -1, -1, 2) + B3[HEADER_BYTES:]
    batch = struct.pack(">qiibI", 0, len(body) + 9, 0, 2, google_crc32c.value(body)) + body
    assert decode(batch).timestamps.tolist() == [1_000, 1_000]


times = st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1), st.integers(-2000, 2000))


@given(
    st.lists(
        st.tuples(st.binary(max_size=300), st.one_of(st.none(), st.binary(max_size=9)), times), min_size=1, max_size=40
    )
)
def test_batches_read_back_what_was_appended(rows: list[tuple[bytes, bytes | None, int | None]]) -> None:
    config = StreamConfig(timestamp_type="create")
    bodies = encode_records([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], config)
    found = []
    for _, batch in place(bodies, 95, 0):
        records = decode(batch)
        timestamps = records.timestamps.tolist()
        assert len({t == NO_TIMESTAMP for t in timestamps}) == 1
        found += [(records.value(i), records.key(i), t) for i, t in enumerate(timestamps)]
    assert found == [(v, k, NO_TIMESTAMP if t is None else t) for v, k, t in rows]


@given(st.binary(max_size=200))
def test_garbage_gives_a_batch_fault_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(BatchFault):
        decode(garbage)
    _, sealed = seal(Body((garbage,), 1, 0x40), 0)
    try:
        records = decode(sealed)
    except BatchFault:
        return
    assert len(records) == 1


def test_bytes_of_another_implementation() -> None:
    """kafka-python's record batch builder made the file; it has no KIP-228, so the bit is not set."""
    golden = bytes.fromhex((Path(__file__).parents[1] / "golden" / "kafka-python.hex").read_text().split("\n")[-2])
    records = decode(golden)
    assert [(records.key(i), records.value(i)) for i in range(3)] == [(None, b"a"), (b"k", b"b" * 200), (b"", b"")]
    assert records.timestamps.tolist() == [1_585_672_841_000, 1_585_672_841_500, 1_585_672_840_000]
    assert record_headers(records, 1) == [(b"h", b"1")]
