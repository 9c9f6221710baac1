"""Notes: what a door stores or loses together with the records of a batch."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.errors import CorruptLog
from spark_streams.log import Header, LogConfig, Partition, ReferenceLog, StreamConfig
from spark_streams.log.format.batching import encode_records, place
from spark_streams.log.format.record_batch import FEW_RECORDS, Body, parse_header, seal, single_record
from spark_streams.log.format.records import decode_batches, record_headers
from spark_streams.log.publisher_sequences import SequenceKind
from tests.log.reading import acknowledged_before_kill_9, all_values

GOLDEN = (Path(__file__).parent / "golden" / "kafka-python-notes.hex").read_text().split("\n")
NOTES: list[Header] = [
    (b"rabbitmq-bloom", bytes(range(16))),
    (b"rabbitmq-publishers", b'{"a": 7}'),
    (b"empty", b""),
    (b"null", None),
]


def notes_of(partition: Partition) -> list[tuple[int, list[Header]]]:
    return [(batch.next_offset, list(batch.notes)) for batch in partition.batches(0)]


@pytest.mark.parametrize(("count", "golden"), [(3, GOLDEN[1]), (120, GOLDEN[2])], ids=["one by one", "in columns"])
def test_notes_are_stored_as_another_implementation_stores_headers(count: int, golden: str) -> None:
    assert count > FEW_RECORDS or count < 8
    values = [b"value %d" % n * (n % 9 + 1) for n in range(count)]
    keys = [b"k%d" % n if n % 2 else None for n in range(count)]
    instants = [1_585_672_841_000 + n * 1000 for n in range(count)]
    config = StreamConfig(timestamp_type="create", timestamp_format="legacy")
    ((header, encoded),) = place(encode_records(values, keys, instants, config, NOTES), 0, 0)
    assert encoded.hex() == golden
    records = decode_batches(encoded, [(0, header)])
    assert record_headers(records, 0) == NOTES
    assert record_headers(records, 1) == record_headers(records, count - 1) == []


@pytest.mark.parametrize("count", [1, 2, FEW_RECORDS, FEW_RECORDS + 1, 300])
def test_notes_change_nothing_else(count: int) -> None:
    values = pa.array([b"before", *(b"v" * (n % 300) for n in range(count)), b"after"], pa.binary())[1:-1]
    for keys in (None, pa.array([b"", None, *[b"k" * 99] * count], pa.large_binary())[1 : count + 1]):
        for config in (StreamConfig(), StreamConfig(timestamp_type="create")):
            ((plain_header, plain),) = place(encode_records(values, keys, None, config), 7, 5)
            ((header, noted),) = place(encode_records(values, keys, None, config, NOTES), 7, 5)
            without, with_notes = (decode_batches(b, [(0, h)]) for h, b in ((plain_header, plain), (header, noted)))
            assert record_headers(with_notes, 0) == NOTES
            assert record_headers(without, 0) == []
            assert with_notes.offsets.tolist() == without.offsets.tolist() == list(range(7, 7 + count))
            assert with_notes.timestamps.tolist() == without.timestamps.tolist()
            for row in range(count):
                assert with_notes.value(row) == without.value(row) == values[row].as_py()
                assert with_notes.key(row) == without.key(row)


def test_each_batch_of_an_append_has_its_notes(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"x" * 100_000] * 25, notes=NOTES)
        partition.append([b"y" * 100_000] * 25)
        asked = []

        def told(start: int, stop: int) -> list[Header]:
            asked.append((start, stop))
            return [(b"until", b"%d" % stop)]

        partition.append([b"z" * 100_000] * 25, notes=told)
        partition.append([b"few"] * 3, notes=told)
        batches = [(batch.first_offset, batch.next_offset, list(batch.notes)) for batch in partition.batches(0)]
        assert asked == [(0, 10), (10, 20), (20, 25), (0, 3)]
        assert [notes for first, _, notes in batches if first < 25] == [NOTES] * 3
        assert [notes for first, _, notes in batches if 25 <= first < 50] == [[]] * 3
        untils = [(first - 50, after - 50, notes) for first, after, notes in batches if 50 <= first < 75]
        assert untils == [(start, stop, [(b"until", b"%d" % stop)]) for start, stop in asked[:-1]]
        assert batches[-1] == (75, 78, [(b"until", b"3")])
        create = log.create_stream("create", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        create.append([b"a", b"b", b"c"], timestamps=[5, None, None], notes=told)
        assert notes_of(create) == [(1, [(b"until", b"1")]), (3, [(b"until", b"3")])]


def test_the_note_of_publishers_is_small() -> None:
    assert SequenceKind(b"publishers", "x").note_of({"a": 7, "b": 8}) == (b"publishers", b'{"a":7,"b":8}')


def test_notes_survive_another_start(tmp_path: Path) -> None:
    config = StreamConfig(segment_max_bytes=600)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(30):
            partition.append([b"v"] * (n % 3 + 1), notes=[(b"n", b"%d" % n)])
        assert partition.segment_count > 3
        before = notes_of(partition)
    assert [notes for _, notes in before] == [[(b"n", b"%d" % n)] for n in range(30)]
    with ReferenceLog(tmp_path) as log:
        assert notes_of(log.stream("s").partitions["0"]) == before


CHILD = textwrap.dedent(
    """
    import sys
    from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
    log = ReferenceLog(sys.argv[1], LogConfig(fsync=sys.argv[2]))
    partition = log.create_stream("s", 1, StreamConfig(segment_max_bytes=3_000_000), exist_ok=True).partitions["0"]
    while True:
        base = partition.next_offset
        values = [b"%07d" % n * 20_000 for n in range(base, base + 20)] if base % 3 else [b"%07d" % base]
        told = lambda start, stop: [(b"last", b"%d" % (base + stop - 1))]
        print(partition.append(values, notes=told).last_offset, flush=True)
    """
)


@pytest.mark.parametrize("fsync", ["never", pytest.param("always", marks=pytest.mark.nightly)])
def test_notes_and_records_survive_kill_9_together(tmp_path: Path, fsync: str) -> None:
    for round_ in range(2):
        acknowledged = acknowledged_before_kill_9(CHILD, [str(tmp_path), fsync], 5 + 4 * round_)
        with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
            partition = log.stream("s").partitions["0"]
            values = all_values(partition)
            assert [value[:7] for value in values] == [b"%07d" % n for n in range(len(values))]
            assert len(values) > acknowledged
            # Whatever was kept of the last append, no note tells of a record that was not.
            assert notes_of(partition) == [(end, [(b"last", b"%d" % (end - 1))]) for end, _ in notes_of(partition)]
            last = partition.last_batch()
            assert last is not None
            assert last.notes == ((b"last", b"%d" % (len(values) - 1)),)


@pytest.mark.parametrize(
    "record",
    [
        single_record(b"v", headers=[(b"a", b"1")]).replace(b"\x02\x02a\x021", b"\x02\x03a\x021"),
        single_record(b"v", headers=[(b"a", b"1")]).replace(b"\x02\x02a\x021", b"\x02\x02a\x0a1"),
        single_record(b"v", headers=[(b"a", b"1")]).replace(b"\x02\x02a\x021", b"\x7e\x02a\x021"),
        single_record(b"v", headers=[(b"a", b"1")]).replace(b"\x02\x02a\x021", b"\x01\x02a\x021"),
        single_record(b"v", headers=[(b"a", b"1")]).replace(b"\x01\x02v", b"\x01\x7ev"),
        single_record(b"v", headers=[(b"a", b"1")]).replace(b"\x01\x02v", b"\x03\x02v"),
        b"\x7e" + single_record(b"v")[1:],
        b"\x01" + single_record(b"v")[1:],
        b"\xff" * 12,
        b"\x18" + b"\x00" * 2 + b"\xff" * 10,
        b"",
    ],
)
def test_notes_that_do_not_fit_are_damage(tmp_path: Path, record: bytes) -> None:
    path = tmp_path / "streams" / "s" / "0" / f"{0:020d}.log"
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"some thing that takes more room than all of these"])
        _, batch = seal(Body((record,), 1, 0x48), 0)
        # The rest of the file is a second batch's length that is never looked at.
        whole = path.read_bytes()
        path.write_bytes(batch + whole[len(batch) :])
        assert parse_header(batch).size < len(whole)
        with pytest.raises(CorruptLog) as caught:
            list(partition.batches(0))
        assert (caught.value.file, caught.value.position) == (str(path), 0)
        with pytest.raises(CorruptLog):
            partition.last_batch()
