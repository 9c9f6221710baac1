"""Segments, lookup by time, retention, offsets: one partition through its life."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import LogLocked, StreamExists, UnknownStream
from spark_streams.log import NO_TIMESTAMP, LogConfig, Partition, ReferenceLog, StreamConfig, format_offset
from spark_streams.log.storage.files import OpenFile, ReadAhead
from spark_streams.log.storage.segment import Segment
from spark_streams.log.storage.segment_index import SegmentIndex
from tests.examples import examples


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def rows(partition: Partition, start: int = 0, max_bytes: int = 1 << 20) -> list[tuple[int, bytes, int]]:
    out: list[tuple[int, bytes, int]] = []
    offset = max(start, partition.first_offset)
    while (records := partition.read(offset, max_bytes)) is not None:
        assert records.offsets.tolist() == list(range(offset, offset + len(records)))
        out += [(int(records.offsets[i]), records.value(i), int(records.timestamps[i])) for i in range(len(records))]
        offset = out[-1][0] + 1
    assert offset == partition.next_offset
    return out


def test_what_is_appended_is_read_back_from_every_offset(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path, clock=Clock()) as log:
        partition = log.create_stream("orders", 1, StreamConfig(segment_max_bytes=500)).partitions["0"]
        for i in range(0, 60, 3):
            appended = partition.append([b"%d" % n for n in range(i, i + 3)], [b"k", None, b""])
            assert (appended.first_offset, appended.last_offset) == (i, i + 2)
        assert partition.segment_count > 1
        whole = [(n, b"%d" % n, 1_000_000) for n in range(60)]
        for start in range(60):
            assert rows(partition, start, max_bytes=200) == whole[start:]
        assert partition.read(60) is None
        with pytest.raises(ValueError, match="beyond"):
            partition.read(61)
        records = partition.read(0)
        assert records is not None
        assert [records.key(i) for i in range(3)] == [b"k", None, b""]


def test_offset_strings_keep_the_logs_order() -> None:
    numbers = [0, 1, 9, 10, 99, 100, 999, 1000, 2**31, 2**32, 2**63 - 1]
    texts = [format_offset(n) for n in numbers]
    assert texts == sorted(texts)
    assert {len(t) for t in texts} == {20}
    for wrong in (-1, 10**20):
        with pytest.raises(ValueError, match="not the number"):
            format_offset(wrong)


def test_a_reopened_log_goes_on(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("a/b ü", 2, StreamConfig(segment_max_bytes=500))
        incarnation = stream.incarnation
        for n in range(40):
            stream.partitions["1"].append([b"%d" % n])
    with ReferenceLog(tmp_path) as log:
        stream = log.stream("a/b ü")
        assert stream.incarnation == incarnation
        assert [value for _, value, _ in rows(stream.partitions["1"])] == [b"%d" % n for n in range(40)]
        assert stream.partitions["1"].append([b"x"]).first_offset == 40
        log.add_partitions("a/b ü", 1)
        assert list(stream.partitions) == ["0", "1", "2"]
        log.delete_stream("a/b ü")
        assert log.create_stream("a/b ü").incarnation != incarnation
    with ReferenceLog(tmp_path) as log:
        assert rows(log.stream("a/b ü").partitions["0"]) == []


def test_names_locks_and_errors(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("orders")
        with pytest.raises(StreamExists, match="'orders'"):
            log.create_stream("orders")
        assert log.create_stream("orders", exist_ok=True) is log.stream("orders")
        with pytest.raises(UnknownStream, match="there are: 'orders'"):
            log.stream("nope")
        for wrong in ("", "x" * 300, "a\nb"):
            with pytest.raises(ValueError, match="cannot name a stream"):
                log.create_stream(wrong)
        log.create_stream("..")
        assert (tmp_path / "streams" / "%2E%2E").is_dir()
        with pytest.raises(LogLocked, match="open in another process"):
            ReferenceLog(tmp_path)
        partition = log.stream("orders").partitions["0"]
        for values in ([], [b"a", None]):
            with pytest.raises(ValueError, match="at least one value"):
                partition.append(values)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="another number"):
            partition.append([b"a"], [b"k", b"l"])
        assert partition.next_offset == 0


def test_a_temporary_log_leaves_nothing_behind() -> None:
    with ReferenceLog() as log:
        log.create_stream("s").partitions["0"].append([b"x"])
        assert log.data_dir.is_dir()
    assert not log.data_dir.exists()


def linear(instants: list[int | None], target: int) -> tuple[int, int] | None:
    return next(((n, t) for n, t in enumerate(instants) if t is not None and t >= target), None)


SHAPES: dict[str, list[int | None]] = {
    "monotone": list(range(-50, 50)),
    "reversed": list(range(50, -50, -1)),
    "sawtooth": [n % 7 - 3 for n in range(100)],
    "all equal": [-1] * 30,
    "all none": [None] * 30,
    "mixed": [None, -5, None, 3, -(2**63) + 1, 2**63 - 1, 0, None],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_n03_lookup_equals_a_linear_scan(tmp_path: Path, shape: str) -> None:
    instants = SHAPES[shape]
    config = StreamConfig(timestamp_type="create", segment_max_bytes=900, index_interval_bytes=150)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(0, len(instants), 3):
            part = instants[n : n + 3]
            partition.append([b"v"] * len(part), timestamps=part)
        for target in [-1, -(2**63) + 1, 0, 1, -4, 49, 50, 51, 2**63 - 1]:
            assert partition.offset_for_time(target) == linear(instants, target)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(-20, 20)), min_size=1, max_size=5), min_size=1, max_size=25),
    st.lists(st.integers(-22, 22), min_size=1, max_size=5),
)
def test_n03_lookup_on_random_logs(appends: list[list[int | None]], targets: list[int]) -> None:
    config = StreamConfig(timestamp_type="create", segment_max_bytes=600, index_interval_bytes=120)
    with ReferenceLog() as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for part in appends:
            partition.append([b"v"] * len(part), timestamps=part)
        instants = [t for part in appends for t in part]
        for target in targets:
            assert partition.offset_for_time(target) == linear(instants, target)
        assert [t for _, _, t in rows(partition)] == [NO_TIMESTAMP if t is None else t for t in instants]


def test_timestamp_types(tmp_path: Path) -> None:
    clock = Clock()
    with ReferenceLog(tmp_path, clock=clock) as log:
        default = log.create_stream("append").partitions["0"]
        default.append([b"x"], timestamps=[-386_380_800_000])
        assert [t for _, _, t in rows(default)] == [clock.now]
        create = log.create_stream("create", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        create.append([b"x"] * 3, timestamps=[-386_380_800_000, None, -1])
        assert [t for _, _, t in rows(create)] == [-386_380_800_000, NO_TIMESTAMP, -1]


def test_rolling_by_size_and_age(tmp_path: Path) -> None:
    clock = Clock()
    with ReferenceLog(tmp_path, clock=clock) as log:
        by_size = log.create_stream("size", 1, StreamConfig(segment_max_bytes=1_000)).partitions["0"]
        for _ in range(20):
            by_size.append([b"x" * 200])
        sizes = [p.stat().st_size for p in (tmp_path / "streams" / "size" / "0").glob("*.log")]
        assert len(sizes) == by_size.segment_count >= 4
        assert max(sizes) <= 1_000
        by_age = log.create_stream("age", 1, StreamConfig(segment_max_age_ms=500)).partitions["0"]
        for passed in (0, 499, 1, 0):
            clock.now += passed
            by_age.append([b"x"])
        assert by_age.segment_count == 2


def test_retention_by_size(tmp_path: Path) -> None:
    config = StreamConfig(segment_max_bytes=1_000, retention_max_bytes=2_500)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for _ in range(40):
            partition.append([b"x" * 200])
        assert partition.first_offset == 0
        held = partition.stored_bytes
        assert log.enforce_retention() > 0
        assert 2_500 <= partition.stored_bytes < held
        assert partition.stored_bytes < 2_500 + 1_000
        assert rows(partition)[0][0] == partition.first_offset
        assert log.enforce_retention() == 0
        kept = partition.first_offset
    with ReferenceLog(tmp_path) as log:
        assert log.stream("s").partitions["0"].first_offset == kept


def test_n09_retention_by_age_goes_by_append_time(tmp_path: Path) -> None:
    clock = Clock()
    config = StreamConfig(timestamp_type="create", segment_max_bytes=300, retention_max_age_ms=1_000)
    with ReferenceLog(tmp_path, clock=clock) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        partition.append([b"x" * 200], timestamps=[-386_380_800_000])
        partition.append([b"y" * 200], timestamps=[None])
        assert log.enforce_retention() == 0
        clock.now += 600
        partition.append([b"z" * 200], timestamps=[2**60])
    with ReferenceLog(tmp_path, clock=clock) as log:
        partition = log.stream("s").partitions["0"]
        clock.now += 500
        assert log.enforce_retention() == 2
        assert [n for n, _, _ in rows(partition)] == [2]
        clock.now += 1_000
        assert log.enforce_retention() == 1
        assert (partition.first_offset, partition.next_offset) == (3, 3)
        assert partition.read(3) is None
        assert partition.append([b"n"]).first_offset == 3


def test_what_retention_removed_is_logged_though_the_roll_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    config = StreamConfig(segment_max_bytes=300, retention_max_age_ms=1_000)
    with ReferenceLog(tmp_path, clock=clock) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for _ in range(3):
            partition.append([b"x" * 200])
        clock.now += 2_000
        with monkeypatch.context() as patch, caplog.at_level("INFO", "spark_streams.log"):
            patch.setattr(Segment, "seal", _refused)
            with pytest.raises(OSError, match="No space"):
                partition.enforce_retention()
        assert partition.first_offset == 2
        folder = tmp_path / "streams" / "s" / "0"
        assert caplog.messages == [f"{folder}: retention removed 2 segments"]


def _refused(segment: Segment) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_readers_go_on_while_retention_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamConfig(timestamp_type="create", segment_max_bytes=300, retention_max_bytes=400)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(10):
            partition.append([b"%d" % n * 100], timestamps=[n])
        # A reader that has the file open finishes; one that comes too late reads from the first that is retained.
        segment = partition._segments[0]
        held = segment.file()
        whole = os.fstat(held.fd).st_size
        real, removed = Segment.file, []

        def removed_first(self: Segment) -> OpenFile:
            if not removed:
                removed.append(partition.enforce_retention())
            return real(self)

        monkeypatch.setattr(Segment, "file", removed_first)
        records = partition.read(0)
        assert removed[0] > 0
        assert records is not None
        assert int(records.offsets[0]) == partition.first_offset > 0
        assert not segment.path.exists()
        assert len(os.pread(held.fd, whole, 0)) == whole
        assert partition.offset_for_time(0) == (partition.first_offset, partition.first_offset)


def test_an_append_costs_the_same_in_a_long_log(tmp_path: Path) -> None:
    """Finding a place in ten times the log looks at no more batches: the index is searched, the segment is not."""
    config = StreamConfig(index_interval_bytes=1_000)
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for _ in range(2_000):
            partition.append([b"x" * 100])
        segment = partition._segments[0]
        walked = []
        for offset in (5, 150, 1_500, 1_999):
            position, _ = segment.index.stretch_of(offset)
            ahead = ReadAhead(segment.file(), segment.end)
            headers = segment.headers(*segment.index.stretch_of(offset), ahead)
            walked.append(sum(1 for _, h in headers if h.base_offset <= offset))
            assert position <= segment.locate(offset)[0]
        assert max(walked) <= 8


def test_batches_are_found_with_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones a stretch of the index at a time; long ones lie beyond it, and each is read for itself."""
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        partition = log.create_stream("s", 1, StreamConfig(index_interval_bytes=4_000)).partitions["0"]
        for number in range(300):
            partition.append([b"x" * (10_000 if 100 <= number < 110 else 10)])
        reads: list[int] = []
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size, at: reads.append(size) or pread(fd, size, at))
        segment = partition._segments[0]
        for offset in range(300):
            reads.clear()
            position, base = segment.locate(offset)
            assert base == offset and (not offset or position > 0)
            assert len(reads) <= 2
        read = partition.read(105)
        assert read is not None and read.value(0) == b"x" * 10_000


def test_state_survives(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.state.put("links", "a", b"1")
        log.state.put("links", "b", b"2")
        log.state.put("epochs", "a", b"3")
        log.state.put("links", "a", b"4")
        log.state.delete("links", "b")
        log.state.delete("links", "b")
    with ReferenceLog(tmp_path) as log:
        assert log.state.items("links") == [("a", b"4")]
        assert log.state.get("epochs", "a") == b"3"
        assert log.state.get("epochs", "b") is None


def test_indexes_never_fall(tmp_path: Path) -> None:
    index = SegmentIndex(10)
    for n, stamp in enumerate([5, 3, NO_TIMESTAMP, 9, 1]):
        index.add(n, n * 10, stamp)
    assert np.all(np.diff(np.array(index._maxima)) >= 0)
    assert index.stretch_of_time(6) == (30, 3)
    assert index.stretch_of_time(10) is None
    path = tmp_path / "x.index"
    index.write(path)
    again = SegmentIndex.load(path, interval_bytes=10, base_offset=0, segment_bytes=50)
    assert again.stretch_of_time(6) == (30, 3)
    assert again.max_timestamp == 9


def test_the_lowest_target_finds_the_first_record_with_a_timestamp(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        assert partition.offset_for_time(NO_TIMESTAMP) is None
        partition.append([b"x"] * 3, timestamps=[None, NO_TIMESTAMP + 1, 5])
        assert partition.offset_for_time(NO_TIMESTAMP) == (1, NO_TIMESTAMP + 1)
        assert partition.offset_for_time(2**63 - 1) is None
