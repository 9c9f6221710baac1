"""Flipped bits in the files beside the segments: nothing else is served, or it is an error that names the file."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from spark_streams.errors import CorruptLog
from spark_streams.log import ReferenceLog, StateStore, StreamConfig
from spark_streams.log import reference_log as reference_log_module
from spark_streams.log import stream as stream_module
from spark_streams.log.format.varint import encode_varints
from spark_streams.log.storage.partition import Partition
from spark_streams.log.storage.recovery import RecoveryPointFile
from spark_streams.log.storage.segment_index import IndexInvalid, SegmentIndex
from spark_streams.log.stream import load_stream
from tests.log.reading import all_values


def flips(content: bytes) -> list[bytes]:
    return [
        content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :]
        for byte in range(len(content))
        for bit in range(8)
    ]


def not_opened(folder: Path, stream: str, partition_id: str, config: StreamConfig) -> Partition:
    return Partition.__new__(Partition)


@pytest.mark.usefixtures("unforced")
def test_a_flipped_bit_in_the_metadata_hides_no_partition_and_changes_no_setting(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("s", 3, StreamConfig(retention_max_bytes=90_000))
    folder = tmp_path / "streams" / "s"
    path = folder / "stream.json"
    good = path.read_bytes()
    # By hand: the CRC is that of all else, as JSON with sorted keys.
    content = json.loads(good)
    said = content.pop("crc32c")
    assert int(said, 16) == google_crc32c.value(json.dumps(content, sort_keys=True).encode())
    for damaged in flips(good):
        path.write_bytes(damaged)
        with pytest.raises(CorruptLog, match="metadata") as caught:
            load_stream(folder, not_opened)
        assert caught.value.file == str(path)
    for other in (b"[]", b"3", good.replace(b"crc32c", b"crc"), good.replace(b'"partitions": 3', b'"partitions": 2')):
        path.write_bytes(other)
        with pytest.raises(CorruptLog, match="metadata"):
            load_stream(folder, not_opened)
    path.write_bytes(good)
    stream = load_stream(folder, not_opened)
    assert stream is not None
    assert (list(stream.partitions), stream.config.retention_max_bytes) == (["0", "1", "2"], 90_000)


def test_a_flipped_bit_in_the_recovery_point_is_noticed_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("s").partitions["0"].append([b"a", b"b"])
    path = tmp_path / "streams" / "s" / "0" / "recovery-point"
    good = path.read_bytes()
    for damaged in flips(good):
        path.write_bytes(damaged)
        point = RecoveryPointFile(path)
        assert point.read() is None
        point.close()
    assert caplog.text.count(str(path)) == len(good) * 8
    caplog.clear()
    with caplog.at_level(logging.WARNING), ReferenceLog(tmp_path) as log:
        assert all_values(log.stream("s").partitions["0"]) == [b"a", b"b"]
    assert str(path) in caplog.text
    # The next start finds a good one again.
    point = RecoveryPointFile(path)
    assert point.read() is not None
    point.close()


def test_without_a_recovery_point_a_flipped_bit_is_still_an_error(tmp_path: Path) -> None:
    """Both damaged at once: only a length that runs past the end of the file cannot be told from a torn tail."""
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"one"])
        partition.append([b"two"])
    folder = tmp_path / "streams" / "s" / "0"
    path = folder / f"{0:020d}.log"
    good = path.read_bytes()
    for byte in range(0, len(good), 5):
        damaged = good[:byte] + bytes([good[byte] ^ 1]) + good[byte + 1 :]
        batch = 0 if byte < len(good) // 2 else len(good) // 2
        if byte - batch in range(8, 12):
            continue
        path.write_bytes(damaged)
        (folder / "recovery-point").unlink()
        with pytest.raises(CorruptLog) as caught:
            ReferenceLog(tmp_path)
        assert (caught.value.file, caught.value.position) == (str(path), batch)
        assert path.read_bytes() == damaged


@pytest.mark.usefixtures("unforced")
def test_a_flipped_bit_in_an_index_is_noticed(tmp_path: Path) -> None:
    index = SegmentIndex(10)
    for n, stamp in enumerate([5, -3, 9]):
        index.add(n, n * 10, stamp)
    path = tmp_path / "x.index"
    index.write(path)
    for damaged in flips(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(IndexInvalid):
            SegmentIndex.load(path, interval_bytes=10, base_offset=0, segment_bytes=30)


def test_a_flipped_bit_in_a_stored_position_is_never_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    state = StateStore(path)
    state.put("links", "a", b"offset-7")
    state.put("links", "empty", b"")
    assert state.items("links") == [("a", b"offset-7"), ("empty", b"")]
    state.close()
    good = path.read_bytes()
    start = good.index(b"offset-7")
    for damaged in flips(good[start - 4 : start + 8]):
        path.write_bytes(good[: start - 4] + damaged + good[start + 8 :])
        state = StateStore(path)
        for use in (lambda state=state: state.get("links", "a"), lambda state=state: state.items("links")):
            with pytest.raises(CorruptLog, match="CRC-32C") as caught:
                use()
            assert caught.value.file == str(path)
        assert state.get("links", "empty") == b""
        state.close()
    # A value that stands at another key's place does not pass either.
    path.write_bytes(good)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE state SET value=(SELECT value FROM state WHERE key='a') WHERE key='empty'")
    db.close()
    state = StateStore(path)
    with pytest.raises(CorruptLog, match="'empty'"):
        state.get("links", "empty")
    state.close()


def test_a_state_file_that_sqlite_calls_damaged_is_an_error_of_the_log(tmp_path: Path) -> None:
    ReferenceLog(tmp_path).close()
    path = tmp_path / "state.sqlite"
    good = path.read_bytes()
    for damaged in (b"X" + good[1:], good.replace(b"CREATE TABLE", b"CREATE UABLE"), b"no database" * 99):
        path.write_bytes(damaged)
        with pytest.raises(CorruptLog, match="SQLite says") as caught:
            ReferenceLog(tmp_path)
        assert caught.value.file == str(path)
    # A key index that does not lead to its row any more would hide the row, as if it had never been stored.
    path.write_bytes(good)
    state = StateStore(path)
    state.put("links", "a", b"1")
    state.close()
    stored = path.read_bytes()
    page = stored.rindex(b"linksa")
    path.write_bytes(stored[:page] + b"linksb" + stored[page + 6 :])
    with pytest.raises(CorruptLog, match="SQLite says") as caught:
        ReferenceLog(tmp_path)
    assert caught.value.file == str(path)
    # What SQLite says of anything but damage keeps its own words.
    path.unlink()
    path.with_name("state.sqlite-wal").mkdir()
    with pytest.raises(sqlite3.OperationalError):
        ReferenceLog(tmp_path)


def test_the_folders_that_lead_to_streams_are_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = reference_log_module.sync_directory

    def noted(path: Path) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(reference_log_module, "sync_directory", noted)
    monkeypatch.setattr(stream_module, "sync_directory", noted)
    monkeypatch.chdir(tmp_path)
    with ReferenceLog(Path("new")) as log:
        assert synced == [tmp_path, Path("new")]
        log.create_stream("s")
        assert synced[2:] == [Path("new", "streams")]
    # A folder that is there is somebody else's to have made: its parent may not even be readable.
    synced.clear()
    with ReferenceLog(Path("new")):
        assert synced == [Path("new")]
    assert os.path.isdir("new")


def test_varint_columns_are_as_wide_as_their_longest() -> None:
    for values, width in (([], 1), ([0, -1], 1), ([63, -64], 1), ([64], 2), ([1, -(2**63)], 10), ([2**63 - 1], 10)):
        matrix, used = encode_varints(np.array(values, np.int64))
        assert matrix.shape == used.shape == (len(values), width)
