"""Who may read the files of a log: this user alone, and who may read its folder where that was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.log import LogConfig, ReferenceLog, StreamConfig


@pytest.fixture(autouse=True)
def unmasked() -> Iterator[None]:
    """A process whose new files everybody may read and write, if it does not say otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, set[int]]:
    """Fill a log with a file of each kind, here and after a start; return the modes of its folders and of its files."""
    for name in ("first", "second"):
        with ReferenceLog(folder, LogConfig(fsync="never")) as log:
            stream = log.create_stream(name, 2, StreamConfig(segment_max_bytes=200))
            for n in range(9):
                stream.partitions["0"].append([b"%d" % n * 60], [b"%d" % n])
            log.split_partition(name, "0", history=True)
            log.split_partition(name, "1")
            log.state.put("links", "a", b"1")
            found: dict[str, set[int]] = {"folders": set(), "files": set()}
            for path in (folder, *folder.rglob("*")):
                found["folders" if path.is_dir() else "files"].add(path.stat().st_mode & 0o7777)
    names = {path.suffix or path.name for path in folder.rglob("*") if path.is_file()}
    assert names >= {".log", ".index", ".json", ".sqlite", "lock", "recovery-point"}
    assert (folder / "streams" / "first" / "splits" / "0").is_file()
    return found


def test_a_new_log_is_this_users_alone(tmp_path: Path) -> None:
    assert modes(tmp_path / "above" / "data") == {"folders": {0o700}, "files": {0o600}}


@pytest.mark.parametrize(
    ("mode", "files"),
    [
        pytest.param(0o700, 0o600, id="its user's"),
        pytest.param(0o750, 0o640, id="a group's that makes backups"),
        pytest.param(0o770, 0o660, id="a group's, as where containers run under any user"),
        pytest.param(0o755, 0o644, id="everybody's, as states before the first release made it"),
    ],
)
def test_a_folder_that_is_there_keeps_its_mode_and_its_files_follow(tmp_path: Path, mode: int, files: int) -> None:
    (tmp_path / "data").mkdir(mode)
    assert modes(tmp_path / "data") == {"folders": {mode}, "files": {files}}


def test_a_folders_group_is_that_of_what_is_made_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o2750)
    found = modes(folder)
    assert found == {"folders": {0o2750}, "files": {0o640}}
