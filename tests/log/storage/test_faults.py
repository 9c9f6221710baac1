"""Failures half way: of rolls, of writes, of files that are gone."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import google_crc32c
import pytest

from spark_streams.errors import CorruptLog
from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
from spark_streams.log import stream as stream_module
from spark_streams.log import stream_metadata as metadata_module
from spark_streams.log.storage import segment_index as index_module
from spark_streams.log.storage import segments as segments_module
from spark_streams.log.storage.recovery import RecoveryPointFile
from tests.log.reading import all_values

SMALL = StreamConfig(segment_max_bytes=400)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def folder_of(root: Path) -> Path:
    return root / "streams" / "s" / "0"


def as_kill_9_leaves_it(folder: Path, copy: Path) -> list[bytes]:
    """Open a copy of a log's files as they are now, and return what it holds."""
    shutil.copytree(folder, copy)
    with ReferenceLog(copy) as log:
        return all_values(log.stream("s").partitions["0"])


@pytest.mark.parametrize("fails", ["index", "folder", "point"])
def test_a_roll_that_fails_half_way_is_ended_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        partition.append([b"a" * 200])
        with monkeypatch.context() as patch:
            if fails == "index":
                patch.setattr(index_module, "write_atomically", full_disk)
            elif fails == "folder":
                patch.setattr(segments_module, "sync_directory", full_disk)
            else:
                patch.setattr(RecoveryPointFile, "sync", full_disk)
            with pytest.raises(OSError, match="No space"):
                partition.append([b"b" * 250])
        assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "first") == [b"a" * 200]
        # It would fit the old segment, whose successor may be on the disk already: it must not go there.
        assert partition.append([b"c"]).first_offset == 1
        assert all_values(partition) == [b"a" * 200, b"c"]
        assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "second") == [b"a" * 200, b"c"]
        assert partition.append([b"d" * 300]).first_offset == 2
    assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "third") == [b"a" * 200, b"c", b"d" * 300]


def test_killed_between_the_new_segment_and_the_point(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        partition.append([b"a" * 200])
        point = (folder_of(tmp_path / "log") / "recovery-point").read_bytes()
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "log", copy)
    (folder_of(copy) / f"{1:020d}.log").touch()
    assert (folder_of(copy) / "recovery-point").read_bytes() == point
    with ReferenceLog(copy) as log:
        partition = log.stream("s").partitions["0"]
        assert all_values(partition) == [b"a" * 200]
        assert partition.append([b"b"]).first_offset == 1
    with ReferenceLog(copy) as log:
        assert all_values(log.stream("s").partitions["0"]) == [b"a" * 200, b"b"]


def test_nothing_is_visible_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceLog(tmp_path, LogConfig(fsync="always")) as log:
        partition = log.create_stream("s", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        partition.append([b"kept"], timestamps=[1])
        seen: list[object] = []

        def look_and_refuse(fd: int) -> None:
            seen.extend([partition.next_offset, partition.read(1), partition.offset_for_time(2)])
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", look_and_refuse)
            with pytest.raises(OSError, match="Input/output"):
                partition.append([b"lost"], timestamps=[9])
        assert seen == [1, None, None]
        with monkeypatch.context() as patch:
            patch.setattr(RecoveryPointFile, "write", full_disk)
            with pytest.raises(OSError, match="No space"):
                partition.append([b"lost"], timestamps=[9])
        assert (partition.next_offset, partition.offset_for_time(2)) == (1, None)
        assert partition.append([b"next"], timestamps=[3]).first_offset == 1
        assert partition.offset_for_time(2) == (1, 3)
        assert all_values(partition) == [b"kept", b"next"]


def test_bytes_that_could_not_be_taken_back_are_never_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        partition.append([b"a"])
        with monkeypatch.context() as patch:
            patch.setattr(RecoveryPointFile, "write", full_disk)
            patch.setattr(os, "ftruncate", full_disk)
            with pytest.raises(OSError, match="No space"):
                partition.append([b"x" * 150])
        partition.append([b"b"])
        assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "copy") == [b"a", b"b"]
        partition.append([b"c" * 300])
        assert partition.segment_count == 2
        assert all_values(partition) == [b"a", b"b", b"c" * 300]
    assert as_kill_9_leaves_it(tmp_path / "log", tmp_path / "again") == [b"a", b"b", b"c" * 300]


def test_segments_that_are_gone_are_an_error(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        for n in range(6):
            partition.append([b"%d" % n * 200])
    segments = sorted(folder_of(tmp_path).glob("*.log"))
    content = {path: path.read_bytes() for path in segments}
    segments[-1].unlink()
    with pytest.raises(CorruptLog, match="the file is missing") as caught:
        ReferenceLog(tmp_path)
    assert caught.value.file == str(segments[-1])
    for path in segments[:-1]:
        path.unlink()
    with pytest.raises(CorruptLog, match="the file is missing"):
        ReferenceLog(tmp_path)
    for path, before in content.items():
        path.write_bytes(before)
    with ReferenceLog(tmp_path) as log:
        partition = log.stream("s").partitions["0"]
        segments[2].unlink()
        with pytest.raises(CorruptLog, match="the file is missing"):
            all_values(partition)
    shutil.rmtree(folder_of(tmp_path))
    with pytest.raises(CorruptLog, match="partition 0 is missing"):
        ReferenceLog(tmp_path)


def test_what_a_killed_process_wrote_is_forced_to_the_disk_before_the_point_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReferenceLog(tmp_path / "log", LogConfig(fsync="never")) as log:
        log.create_stream("s").partitions["0"].append([b"x"])
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
    path = folder_of(tmp_path / "copy") / f"{0:020d}.log"
    synced: list[str] = []
    real = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with ReferenceLog(tmp_path / "copy", LogConfig(fsync="never")):
        assert str(path) in synced
        point = RecoveryPointFile(path.parent / "recovery-point")
        found = point.read()
        point.close()
        assert found is not None
        assert found.synced_end == found.acknowledged_end == path.stat().st_size


def times_log(root: Path) -> ReferenceLog:
    log = ReferenceLog(root)
    config = StreamConfig(timestamp_type="create", segment_max_bytes=400, index_interval_bytes=1)
    partition = log.create_stream("s", 1, config).partitions["0"]
    for n in range(12):
        partition.append([b"%d" % n], timestamps=[10 * n])
    assert partition.segment_count > 2
    return log


def test_a_flipped_maximum_hides_no_record_from_a_lookup(tmp_path: Path) -> None:
    times_log(tmp_path).close()
    path = folder_of(tmp_path) / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    second = 12 + int.from_bytes(content[8:12], "big")
    content[second + 35] ^= 0x80  # the sign of maxTimestamp, of the record at 10 ms
    path.write_bytes(content)
    for index in ("kept", "missing"):
        if index == "missing":
            path.with_suffix(".index").unlink()
        with ReferenceLog(tmp_path) as log, pytest.raises(CorruptLog, match="CRC") as caught:
            log.stream("s").partitions["0"].offset_for_time(10)
        assert (caught.value.file, caught.value.position) == (str(path), second)


def test_a_closed_segment_that_lost_its_last_batch_is_an_error(tmp_path: Path) -> None:
    times_log(tmp_path).close()
    path = folder_of(tmp_path) / f"{0:020d}.log"
    content = path.read_bytes()
    size = 12 + int.from_bytes(content[8:12], "big")
    path.write_bytes(content[: len(content) - size])
    with ReferenceLog(tmp_path) as log:
        partition = log.stream("s").partitions["0"]
        for use in (lambda: partition.offset_for_time(45), lambda: all_values(partition)):
            with pytest.raises(CorruptLog, match="next segment starts at"):
                use()


def open_files(folder: Path) -> list[str]:
    """Return the open files below a folder, removed ones too."""
    links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return sorted(link for link in links if link.startswith(str(folder)))


@pytest.mark.parametrize(
    ("module", "function"), [(metadata_module, "write_atomically"), (stream_module, "sync_directory")]
)
def test_a_creation_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str
) -> None:
    with ReferenceLog(tmp_path) as log:
        descriptors = open_files(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(module, function, full_disk)
            with pytest.raises(OSError, match="No space"):
                log.create_stream("s", 2)
        assert list((tmp_path / "streams").iterdir()) == []
        gc.collect()
        assert open_files(tmp_path) == descriptors
        stream = log.create_stream("s", 2)
        with monkeypatch.context() as patch:
            patch.setattr(metadata_module, "write_atomically", full_disk)
            with pytest.raises(OSError, match="No space"):
                log.add_partitions("s", 1)
        assert list(stream.partitions) == ["0", "1"]
        assert list(log.add_partitions("s", 1).partitions) == ["0", "1", "2"]
        assert stream.partitions["2"].append([b"x"]).first_offset == 0


def test_a_setting_of_a_newer_release_is_named(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("s")
    path = tmp_path / "streams" / "s" / "stream.json"
    content = json.loads(path.read_text())
    content["config"]["compaction"] = "key"
    del content["crc32c"]
    content["crc32c"] = f"{google_crc32c.value(json.dumps(content, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptLog, match=r"setting compaction is of a newer release"):
        ReferenceLog(tmp_path)


def test_a_partition_that_cannot_be_synced_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReferenceLog(tmp_path, LogConfig(fsync="never")) as log:
        partitions = log.create_stream("s", 3).partitions
        for partition in partitions.values():
            partition.append([b"x"])
        real = os.fdatasync
        synced: list[str] = []

        def middle_fails(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.parent.name == "1":
                raise OSError(errno.EIO, "Input/output error")
            if path.suffix == ".log":
                synced.append(path.parent.name)
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", middle_fails)
            with pytest.raises(OSError, match="Input/output"):
                log.sync()
        assert sorted(synced) == ["0", "2"]


@pytest.mark.usefixtures("unforced")
def test_cut_at_every_byte_of_the_last_of_several_segments(tmp_path: Path) -> None:
    values = [b"%d" % n * 40 for n in range(8)]
    with ReferenceLog(tmp_path / "log") as log:
        partition = log.create_stream("s", 1, SMALL).partitions["0"]
        for value in values:
            partition.append([value])
        base = partition._segments[-1].base_offset
    name = f"{base:020d}.log"
    content = (folder_of(tmp_path / "log") / name).read_bytes()
    assert base > 0
    for size in range(len(content) + 1):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "log", copy)
        os.truncate(folder_of(copy) / name, size)
        whole, at = base, 0
        while at + 12 <= size and at + 12 + int.from_bytes(content[at + 8 : at + 12], "big") <= size:
            at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
            whole += 1
        with ReferenceLog(copy) as log:
            partition = log.stream("s").partitions["0"]
            assert all_values(partition) == values[:whole]
            assert partition.append([b"next"]).first_offset == whole
        with ReferenceLog(copy) as log:
            assert all_values(log.stream("s").partitions["0"]) == [*values[:whole], b"next"]
        shutil.rmtree(copy)
