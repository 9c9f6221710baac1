"""The segments of a partition: how many files they take, when they are rolled, what fits in one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
from spark_streams.log.storage import segment as segment_module
from spark_streams.log.storage.segment_index import SegmentIndex
from tests.log.reading import all_values


def test_a_long_log_takes_no_more_files_nor_reads_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    loads: list[Path] = []
    real = SegmentIndex.load.__func__  # type: ignore[attr-defined]

    def noted(cls: type[SegmentIndex], path: Path, **rest: int) -> SegmentIndex:
        loads.append(path)
        index: SegmentIndex = real(cls, path, **rest)
        return index

    monkeypatch.setattr(SegmentIndex, "load", classmethod(noted))
    config = StreamConfig(timestamp_type="create", segment_max_bytes=200)
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        before = files()
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(60):
            partition.append([b"%d" % n * 60], timestamps=[n])
        assert partition.segment_count >= 50
        assert files() - before <= 2
        assert partition.offset_for_time(59) == (59, 59)
        assert not loads, "what was rolled here is passed over by its largest timestamp"
    segment_module._index_of_closed.cache_clear()
    with ReferenceLog(tmp_path) as log:
        assert not loads
        partition = log.stream("s").partitions["0"]
        assert partition.read(30) is not None
        assert len(loads) == 1
        assert len(all_values(partition)) == 60
        assert partition.offset_for_time(55) == (55, 55)
        assert segment_module._index_of_closed.cache_info().currsize <= segment_module.KEPT_INDEXES
        assert files() - before <= 2


def test_a_segment_is_rolled_by_its_first_append_also_after_a_start(tmp_path: Path) -> None:
    now = [1_000_000]
    config = StreamConfig(segment_max_age_ms=1_000)
    with ReferenceLog(tmp_path, clock=lambda: now[0]) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        partition.append([b"x"])
        now[0] += 900
        partition.append([b"y"])
    with ReferenceLog(tmp_path, clock=lambda: now[0]) as log:
        partition = log.stream("s").partitions["0"]
        now[0] += 200
        partition.append([b"z"])
        assert partition.segment_count == 2


def test_records_larger_than_a_batch_or_a_segment(tmp_path: Path) -> None:
    config = StreamConfig(segment_max_bytes=1 << 20)
    values = [b"a", b"b" * (3 << 20), b"c", *[b"d" * 300_000] * 9]
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        appended = partition.append(values)
        assert (appended.first_offset, appended.last_offset) == (0, len(values) - 1)
        partition.append([b"e"])
        assert partition.segment_count == 2
        records = partition.read(1, 1)
        assert records is not None
        assert records.value(0) == values[1]
    with ReferenceLog(tmp_path) as log:
        assert all_values(log.stream("s").partitions["0"]) == [*values, b"e"]
