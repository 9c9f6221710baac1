"""Which files a log with many partitions holds open."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
from spark_streams.log.storage import recovery
from tests.log.reading import all_values

PARTITIONS, KEPT = 40, 5


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few recovery points are kept open that most of the partitions have none."""
    monkeypatch.setattr(recovery, "KEPT_POINTS", KEPT)
    monkeypatch.setattr(recovery, "_kept", type(recovery._kept)())


def open_files(folder: Path) -> Counter[str]:
    """How many files below a folder are open, by their kind."""
    found: Counter[str] = Counter()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            path = os.readlink(fd)
        except OSError:  # the directory that is being listed
            continue
        if path.startswith(f"{folder}/streams/"):
            found[Path(path).suffix or Path(path).name] += 1
    return found


@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
def test_partitions_without_appends_hold_one_file_each(tmp_path: Path, fsync: str) -> None:
    with ReferenceLog(tmp_path, LogConfig(fsync=fsync)) as log:  # type: ignore[arg-type]
        partitions = list(log.create_stream("s", PARTITIONS).partitions.values())
        assert open_files(tmp_path) == {".log": PARTITIONS, "recovery-point": KEPT}
        for value in (b"a", b"b", b"c"):
            for partition in partitions:
                partition.append([value])
            assert open_files(tmp_path) == {".log": PARTITIONS, "recovery-point": KEPT}
    assert open_files(tmp_path) == {}
    with ReferenceLog(tmp_path) as log:
        assert open_files(tmp_path)["recovery-point"] == KEPT
        for partition in log.stream("s").partitions.values():
            assert all_values(partition) == [b"a", b"b", b"c"]


def test_the_point_is_that_of_the_last_append_wherever_its_file_was_closed_in_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn batch was acknowledged, and only the point tells that it was."""
    copy = tmp_path / "copy"
    with ReferenceLog(tmp_path / "log", LogConfig(fsync="always", stream=StreamConfig(segment_max_bytes=400))) as log:
        partitions = list(log.create_stream("s", PARTITIONS).partitions.values())
        for n in range(6):
            for partition in partitions:
                partition.append([b"%d" % n + b"x" * 100])
        shutil.copytree(tmp_path / "log", copy)  # as kill -9 leaves it
    points = [path.read_bytes() for path in sorted(copy.glob("streams/s/*/recovery-point"))]
    assert len(points) == PARTITIONS and len(set(points)) == 1
    for folder in copy.glob("streams/s/*/"):
        last = max(folder.glob("*.log"))
        last.write_bytes(last.read_bytes()[:-1])
    ReferenceLog(copy).close()
    assert caplog.text.count(" acknowledged bytes were lost") == PARTITIONS


@pytest.mark.parametrize("end", [ReferenceLog.close, lambda log: log.delete_stream("s")])
def test_nothing_is_written_to_the_folder_of_a_partition_that_has_ended(
    tmp_path: Path, end: Callable[[ReferenceLog], None]
) -> None:
    with ReferenceLog(tmp_path) as log:
        partitions = list(log.create_stream("s", PARTITIONS).partitions.values())
        points = [partition._files._point for partition in partitions]
        end(log)
        for point in points:
            with pytest.raises(OSError, match="Bad file"):
                point.write(0, 0, 0)
            with pytest.raises(OSError, match="Bad file"):
                point.sync()
        assert open_files(tmp_path) == {}
