"""The walk over stored batches, reads by whole batches, and where in a read they begin."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import CorruptLog
from spark_streams.log import NO_TIMESTAMP, Header, LogConfig, Partition, ReferenceLog, StoredBatch, StreamConfig
from spark_streams.log.format.record_batch import HEADER_BYTES
from spark_streams.log.format.records import Records, record_headers
from spark_streams.log.storage import batch_walk as walk_module
from spark_streams.log.storage import files
from spark_streams.log.storage import segment as segment_module
from spark_streams.log.storage.readable_partition import PartitionClosed
from tests.examples import examples


def as_read(partition: Partition, max_bytes: int = 1 << 20) -> list[tuple[int, int, int, tuple[Header, ...]]]:
    """Return what reading everything says of the stored batches: offsets, largest timestamp, first record's headers."""
    out = []
    offset = partition.first_offset
    while (records := partition.read(offset, max_bytes)) is not None:
        edges = [*records.batch_rows, len(records)]
        for start, stop in pairwise(edges):
            instants = records.timestamps[start:stop]
            notes = tuple(record_headers(records, start))
            out.append((int(records.offsets[start]), int(records.offsets[stop - 1]) + 1, int(instants.max()), notes))
        offset = int(records.offsets[-1]) + 1
    return out


def as_walked(partition: Partition, offset: int = 0) -> list[tuple[int, int, int, tuple[Header, ...]]]:
    return [(b.first_offset, b.next_offset, b.max_timestamp, b.notes) for b in partition.batches(offset)]


notes = st.lists(st.tuples(st.binary(max_size=20), st.one_of(st.none(), st.binary(max_size=200))), max_size=3)
appends = st.lists(
    st.tuples(
        st.integers(1, 120),
        st.sampled_from([0, 1, 50, 70, 700, 20_000]),
        st.sampled_from([None, b"", b"key", b"k" * 300]),
        st.one_of(st.none(), st.integers(-(2**62), 2**62)),
        notes,
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(50), deadline=None)
@given(appends, st.booleans(), st.sampled_from([1_000, 50_000, 64 << 20]), st.integers(0, 2**32))
def test_the_walk_tells_what_reading_tells(
    parts: list[tuple[int, int, bytes | None, int | None, list[Header]]], append_time: bool, segment: int, any_: int
) -> None:
    config = StreamConfig(timestamp_type="append" if append_time else "create", segment_max_bytes=segment)
    with ReferenceLog(None, LogConfig(fsync="never"), clock=lambda: 1_234) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for count, size, key, instant, headers in parts:
            partition.append([b"v" * size] * count, [key] * count, [instant] * count, notes=headers)
            last = partition.last_batch()
            assert last is not None
            assert (last.next_offset, last.append_time) == (partition.next_offset, append_time)
        expected = as_read(partition)
        assert as_walked(partition) == expected
        assert as_read(partition, 10_000) == expected
        assert partition.last_batch() == list(partition.batches(0))[-1]
        for offset in {any_ % partition.next_offset, partition.next_offset - 1}:
            assert as_walked(partition, offset) == [batch for batch in expected if batch[1] > offset]
            holding = next(batch for batch in expected if batch[0] <= offset < batch[1])
            whole = partition.read(offset, 1, whole=True)
            assert whole is not None
            assert (int(whole.offsets[0]), int(whole.offsets[-1]) + 1) == holding[:2]
            assert whole.batch_rows == (0,)
            exact = partition.read(offset, 1)
            assert exact is not None
            assert (int(exact.offsets[0]), exact.batch_rows) == (offset, (0,))


def test_no_batches(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        assert partition.last_batch() is None
        assert list(partition.batches(0)) == []
        assert partition.read(0, whole=True) is None
        with pytest.raises(ValueError, match="beyond the next one"):
            partition.batches(1)
        partition.append([b"v"])
        assert list(partition.batches(1)) == []
        walk = partition.batches(0)
    with pytest.raises(PartitionClosed):
        next(walk)
    with pytest.raises(PartitionClosed):
        partition.batches(0)
    with pytest.raises(PartitionClosed):
        partition.last_batch()


def test_a_batch_is_told_from_any_other_at_its_place(tmp_path: Path) -> None:
    config = StreamConfig(timestamp_type="create")
    with ReferenceLog(tmp_path) as log:
        one, other, same = (log.create_stream(name, 1, config).partitions["0"] for name in ("one", "other", "same"))
        for partition, last in ((one, [b"d"]), (other, [b"e"]), (same, [b"d"])):
            partition.append([b"a", b"b"], timestamps=[1, 2])
            partition.append([b"c"], timestamps=[3])
            partition.append(last, timestamps=[4])
        told = [[partition.batch_with(offset) for offset in range(5)] for partition in (one, other, same)]
        assert [[batch and batch.first_offset for batch in each] for each in told] == [[0, 0, 2, 3, None]] * 3
        a, b, c = ([batch and batch.witness for batch in each] for each in told)
        assert a == c
        assert a[:3] == b[:3]
        assert len({*a, *b} - {None}) == 4


def test_what_was_removed_is_in_no_batch(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        config = StreamConfig(segment_max_bytes=200, retention_max_bytes=300)
        partition = log.create_stream("s", 1, config).partitions["0"]
        for _ in range(10):
            partition.append([b"v" * 100])
        partition.enforce_retention()
        assert partition.first_offset > 0
        assert partition.batch_with(partition.first_offset - 1) is None
        assert partition.batch_with(partition.first_offset) is not None
        assert partition.batch_with(-1) is None


def test_timestamps_of_batches(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path, clock=lambda: 99) as log:
        appended = log.create_stream("append").partitions["0"]
        appended.append([b"a", b"b"], timestamps=[5, 7])
        assert list(appended.batches(0)) == [StoredBatch(0, 2, 99, True, (), ANY)]
        config = StreamConfig(timestamp_type="create", timestamp_format="legacy")
        for name, own in (("extended", StreamConfig(timestamp_type="create")), ("legacy", config)):
            created = log.create_stream(name, 1, own).partitions["0"]
            created.append([b"a", b"b"], timestamps=[7, 5])
            created.append([b"c"])
            assert list(created.batches(0)) == [
                StoredBatch(0, 2, 7, False, (), ANY),
                StoredBatch(2, 3, NO_TIMESTAMP, False, (), ANY),
            ]


def test_the_walk_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, StreamConfig(segment_max_bytes=500)).partitions["0"]
        for ends in range(1, 12):
            partition.append([b"v" * 100])
            walk = partition.batches(0)
            partition.append([b"w"])
            assert [batch.first_offset for batch in walk] == list(range(2 * ends - 1))


def test_retention_under_a_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamConfig(segment_max_bytes=500, retention_max_bytes=1_000)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(30):
            partition.append([b"v" * 100], notes=[(b"n", b"%d" % n)])
        walk = partition.batches(0)
        seen = [next(walk).first_offset]
        held = partition.segment_count
        assert partition.enforce_retention() > 5
        # The segment that the walk is in is still open; of those after it only the retained ones are left.
        seen += [batch.first_offset for batch in walk]
        first = partition.first_offset
        assert first > 20
        assert seen == [*range(seen.index(first)), *range(first, 30)]
        assert 0 < seen.index(first) < 30 // held + 2
        assert [batch.first_offset for batch in partition.batches(0)] == list(range(first, 30))

        # Retention takes a closed segment between the look at the list and the opening of the file.
        real, removed = segment_module.Segment.file, []
        for _ in range(30):
            partition.append([b"v" * 100])

        def removed_first(self: segment_module.Segment) -> segment_module.OpenFile:
            if not removed:
                removed.append(partition.enforce_retention())
            return real(self)

        monkeypatch.setattr(segment_module.Segment, "file", removed_first)
        assert [batch.first_offset for batch in partition.batches(first + 1)] == list(range(partition.first_offset, 60))
        assert removed[0] > 0


def test_the_last_batch_after_everything_went(tmp_path: Path) -> None:
    now = 1_000
    config = StreamConfig(retention_max_age_ms=10, segment_max_bytes=400)
    with ReferenceLog(tmp_path, clock=lambda: now) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(9):
            partition.append([b"v" * 50] * 2, notes=[(b"n", b"%d" % n)])
        now += 100
        assert partition.enforce_retention() > 0
        assert partition.last_batch() is None
        assert list(partition.batches(0)) == []
        partition.append([b"v"], notes=[(b"n", None)])
        assert partition.last_batch() == StoredBatch(18, 19, 1_100, True, ((b"n", None),), ANY)


def test_the_last_batch_of_a_closed_segment(tmp_path: Path) -> None:
    """After a roll that was killed, the last segment is empty and the batch lies in the one before."""
    config = StreamConfig(index_interval_bytes=300)
    folder = tmp_path / "streams" / "s" / "0"
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(20):
            partition.append([b"v" * 50] * 2, notes=[(b"n", b"%d" % n)])
        last = partition.last_batch()
        partition._files.roll()
        assert partition.last_batch() == last
    assert (folder / f"{40:020d}.log").stat().st_size == 0
    with ReferenceLog(tmp_path) as log:
        partition = log.stream("s").partitions["0"]
        assert partition.last_batch() == last
        assert last is not None
        assert (last.first_offset, last.notes) == (38, ((b"n", b"19"),))


def test_the_walk_reads_little_of_large_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        for n in range(5):
            partition.append([b"v" * 400_000, b"w" * 500_000], notes=[(b"n", b"%d" % n)])
            partition.append([b"v" * 900_000])
        read = []
        real = files.read_exactly

        def counted(fd: int, size: int, position: int) -> bytes:
            content = real(fd, size, position)
            read.append(len(content))
            return content

        monkeypatch.setattr(files, "read_exactly", counted)
        assert [batch.notes for batch in partition.batches(0)][::2] == [((b"n", b"%d" % n),) for n in range(5)]
        assert sum(read) <= 15 * walk_module.HEADERS_AHEAD_BYTES
        assert len(read) == 15, "one read for each batch, and one behind the first value of those with notes"
        read.clear()
        last = partition.last_batch()
        assert last is not None
        assert (last.first_offset, last.notes, len(read)) == (14, (), 1)


def test_any_window_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        for n in range(40):
            notes = [(b"n%d" % n, b"x" * 37 * n), (b"", None)][: n % 3]
            partition.append([b"v" * 17 * n] * (n % 4 + 1), [b"k" * 23 * n] * (n % 4 + 1), notes=notes)
        expected = as_walked(partition)
        assert expected == as_read(partition)
        for size in (*range(100), 500):
            monkeypatch.setattr(walk_module, "HEADERS_AHEAD_BYTES", HEADER_BYTES + size)
            assert as_walked(partition) == expected


def test_a_batch_at_another_place_is_damage(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        for n in range(3):
            partition.append([b"%d" % n])
        path = tmp_path / "streams" / "s" / "0" / f"{0:020d}.log"
        content = path.read_bytes()
        size = len(content) // 3
        path.write_bytes(content[:size] + content[2 * size :] + content[2 * size :])
        with pytest.raises(CorruptLog, match="says offset 2, expected 1") as caught:
            list(partition.batches(0))
        assert caught.value.position == size
        path.write_bytes(content[: 2 * size + 5])
        with pytest.raises(CorruptLog, match="no whole batch header"):
            list(partition.batches(0))
        with pytest.raises(CorruptLog, match="no whole batch header"):
            partition.last_batch()


def records_of(batch_rows: tuple[int, ...], count: int) -> Records:
    longs = np.arange(count, dtype=np.int64)
    return Records(longs, longs, b"", longs, longs, longs, longs, batch_rows)


@given(st.lists(st.integers(1, 4), max_size=8), st.data())
def test_slices_know_where_batches_begin(counts: list[int], data: st.DataObject) -> None:
    total = sum(counts)
    begins = tuple(sum(counts[:n]) for n in range(len(counts)))
    edge = st.one_of(st.none(), st.integers(-total - 1, total + 1))
    start, stop = data.draw(st.integers(0, total + 1)), data.draw(edge)
    cut = records_of(begins, total).slice(start, stop)
    rows = list(range(total))[start:stop]
    assert len(cut) == len(rows)
    assert cut.offsets.tolist() == rows
    assert cut.batch_rows == tuple(at for at, row in enumerate(rows) if row in begins or not at)


def test_batch_rows_of_a_read(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        for count in (1, 3, 200, 2):
            partition.append([b"v"] * count)
        expected = {(0, False): (0, 1, 4, 204), (2, False): (0, 2, 202), (2, True): (0, 3, 203), (204, True): (0,)}
        for (offset, whole), batch_rows in expected.items():
            records = partition.read(offset, whole=whole)
            assert records is not None
            assert records.batch_rows == batch_rows
