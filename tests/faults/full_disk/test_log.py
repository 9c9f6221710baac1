"""The log on a full disk: what was acknowledged stays and is read, nothing else does, and with room it goes on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_streams.errors import UnknownStream
from spark_streams.log import LogConfig, Partition, ReferenceLog, StreamConfig
from tests.faults.full_disk.disk import Disk
from tests.log.reading import all_values

SMALL = StreamConfig(segment_max_bytes=2_000)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "log", monkeypatch)


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        act()
    assert caught.value.errno == errno.ENOSPC


def as_kill_9_leaves_it(folder: Path, copy: Path) -> list[bytes]:
    shutil.copytree(folder, copy)
    with ReferenceLog(copy) as log:
        return all_values(log.stream("s").partitions["0"])


@pytest.mark.parametrize("fsync", ["interval", "always"])
@pytest.mark.parametrize("room", [0, 1, 60, 61, 100, 299])
def test_a_record_batch_that_fits_in_part_is_taken_back(disk: Disk, tmp_path: Path, room: int, fsync: str) -> None:
    with ReferenceLog(tmp_path / "log", LogConfig(fsync=fsync)) as log:  # type: ignore[arg-type]
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"a", b"b"])
        file = tmp_path / "log" / "streams" / "s" / "0" / f"{0:020d}.log"
        before = file.read_bytes()
        disk.fill(room)
        refused(lambda: partition.append([b"x" * 300]))
        assert file.read_bytes() == before
        assert all_values(partition) == [b"a", b"b"]
        assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "killed") == [b"a", b"b"]
        disk.free()
        assert partition.append([b"c"]).first_offset == 2
        assert all_values(partition) == [b"a", b"b", b"c"]
    with ReferenceLog(tmp_path / "log") as log:
        assert all_values(log.stream("s").partitions["0"]) == [b"a", b"b", b"c"]


def test_a_torn_batch_that_cannot_be_taken_back_is_cut_by_the_next_start(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"a"])

        def no(fd: int, length: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", no)
            disk.fill(100)
            refused(lambda: partition.append([b"x" * 300]))
        assert all_values(partition) == [b"a"]
        assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "killed") == [b"a"]


@pytest.mark.parametrize("room", [0, 40, 300])
def test_no_room_for_the_roll_of_a_segment(disk: Disk, tmp_path: Path, room: int) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        partition.append([b"a" * 1_500])
        disk.fill(room)
        for _ in range(3):
            refused(lambda: partition.append([b"b" * 1_500]))
        assert all_values(partition) == [b"a" * 1_500]
        # Half an index would take room where there is none.
        assert not list((tmp_path / "log").rglob("*.new"))
        assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "killed") == [b"a" * 1_500]
        disk.free()
        partition.append([b"b" * 1_500])
        partition.append([b"c"])
        assert all_values(partition) == [b"a" * 1_500, b"b" * 1_500, b"c"]
        assert partition.segment_count > 1


def test_an_index_that_is_missing_is_made_in_memory(disk: Disk, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        for n in range(4):
            partition.append([b"%d" % n * 1_500])
    for index in (tmp_path / "log").rglob("*.index"):
        index.unlink()
    disk.fill()
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.stream("s").partitions["0"]
        assert all_values(partition) == [b"%d" % n * 1_500 for n in range(4)]


def test_a_stream_that_cannot_be_created_is_not_there(disk: Disk, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        for room in (0, 10, 100):
            disk.fill(room)
            refused(lambda: log.create_stream("s", 2))
            with pytest.raises(UnknownStream):
                log.stream("s")
            assert not list((tmp_path / "log" / "streams").iterdir())
        disk.free()
        log.create_stream("s", 2).partitions["1"].append([b"a"])


@pytest.mark.parametrize("history", [False, True])
def test_a_partition_that_cannot_be_split_is_as_it_was(disk: Disk, tmp_path: Path, history: bool) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"a" * 3_000], [b"k"])
        for room in (0, 100, 300):
            disk.fill(room)
            refused(lambda: log.split_partition("s", "0", history=history))
            disk.free()
            assert log.stream("s").open_partitions == ("0",)
            assert all_values(partition) == [b"a" * 3_000]
        log.split_partition("s", "0", history=history)
        assert len(log.stream("s").open_partitions) == 2


def test_what_is_deleted_makes_room(disk: Disk, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("s").partitions["0"].append([b"a"])
        disk.fill()
        log.delete_stream("s")
        assert not list((tmp_path / "log" / "streams").iterdir())


def test_retention_makes_room_where_a_roll_has_none(disk: Disk, tmp_path: Path) -> None:
    now = [1_000]
    config = StreamConfig(segment_max_bytes=2_000, retention_max_age_ms=10)
    with ReferenceLog(tmp_path / "log", clock=lambda: now[0]) as log:
        old = log.create_stream("s", 1, config).partitions["0"]
        other = log.create_stream("t", 1, config).partitions["0"]
        for partition in (old, other):
            for n in range(4):
                partition.append([b"%d" % n * 1_500])
        now[0] += 1_000
        disk.fill()
        # All of it is too old. The active segment cannot go, as there is no room for the next one; the others can.
        refused(log.enforce_retention)
        assert [partition.segment_count for partition in (old, other)] == [1, 1]
        assert all_values(old) == [b"3" * 1_500]
        disk.free()
        assert log.enforce_retention() == 2
        assert all_values(old) == []


def test_the_state_store_says_so_and_goes_on(disk: Disk, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.state.put("n", "k", b"1")
        disk.fill()
        refused(lambda: log.state.put("n", "k", b"2"))
        refused(lambda: log.state.delete("n", "k"))
        assert not log.state.drop("n", "k")
        assert log.state.get("n", "k") == b"1"
        disk.free()
        log.state.put("n", "k", b"2")
        assert log.state.drop("n", "k")
        assert log.state.get("n", "k") is None


def test_a_start_on_a_full_disk(disk: Disk, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("s", 1, SMALL).partitions["0"].append([b"a"])
        shutil.copytree(tmp_path / "log", tmp_path / "killed")
    file = tmp_path / "killed" / "streams" / "s" / "0" / f"{0:020d}.log"
    file.write_bytes(file.read_bytes() + b"torn")
    os.replace(tmp_path / "log", tmp_path / "stopped")
    for left in ("stopped", "killed"):
        os.replace(tmp_path / left, tmp_path / "log")
        disk.fill()
        with ReferenceLog(tmp_path / "log") as log:
            partition: Partition = log.stream("s").partitions["0"]
            assert all_values(partition) == [b"a"]
            refused(lambda p=partition: p.append([b"b"]))
            disk.free()
            partition.append([b"b"])
            assert all_values(partition) == [b"a", b"b"]
        shutil.rmtree(tmp_path / "log")
