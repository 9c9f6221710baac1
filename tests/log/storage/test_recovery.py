"""What survives: torn tails, flipped bits, kill -9, a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_streams.errors import CorruptLog
from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
from spark_streams.log.storage import files as files_module
from spark_streams.log.storage import segment as segment_module
from spark_streams.log.storage.recovery import RecoveryPointFile
from tests.log.reading import acknowledged_before_kill_9, all_values

APPENDS = [[b"one"], [b"two", b"three"], [b"four" * 10], [b"five"]]
VALUES = [value for part in APPENDS for value in part]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A data directory with four batches in one segment, closed as kill -9 would leave it."""
    folder = tmp_path / "written"
    with ReferenceLog(folder, clock=lambda: 1_000) as log:
        partition = log.create_stream("s").partitions["0"]
        for part in APPENDS:
            partition.append(part)
    return folder


def segment_file(folder: Path) -> Path:
    return folder / "streams" / "s" / "0" / f"{0:020d}.log"


def batch_ends(folder: Path) -> list[int]:
    """Where each batch ends, found by the length fields alone."""
    content = segment_file(folder).read_bytes()
    ends = [0]
    while ends[-1] < len(content):
        ends.append(ends[-1] + 12 + int.from_bytes(content[ends[-1] + 8 : ends[-1] + 12], "big"))
    return ends


def reopen(folder: Path) -> list[bytes]:
    with ReferenceLog(folder) as log:
        return all_values(log.stream("s").partitions["0"])


@pytest.mark.usefixtures("unforced")
@pytest.mark.parametrize("point", ["kept", "missing"])
def test_cut_at_every_byte_keeps_exactly_the_whole_batches(written: Path, tmp_path: Path, point: str) -> None:
    ends = batch_ends(written)
    assert len(ends) == 5
    for size in range(ends[-1] + 1):
        copy = tmp_path / "copy"
        shutil.copytree(written, copy)
        os.truncate(segment_file(copy), size)
        if point == "missing":
            (segment_file(copy).parent / "recovery-point").unlink()
        whole = sum(1 for end in ends[1:] if end <= size)
        kept = [value for part in APPENDS[:whole] for value in part]
        with ReferenceLog(copy) as log:
            partition = log.stream("s").partitions["0"]
            assert all_values(partition) == kept, size
            assert segment_file(copy).stat().st_size == ends[whole]
            assert partition.append([b"next"]).first_offset == len(kept)
        assert reopen(copy) == [*kept, b"next"]
        shutil.rmtree(copy)


def one_of(byte: int) -> list[int]:
    """Return another bit for each byte."""
    return [byte % 8]


def all_of(byte: int) -> list[int]:
    """Return each bit of each byte, of which every one takes an opening of the log."""
    return list(range(8))


BITS = pytest.mark.parametrize("bits", [one_of, pytest.param(all_of, marks=pytest.mark.nightly)])


@pytest.mark.usefixtures("unforced")
@BITS
def test_every_flipped_bit_is_an_error_that_names_file_and_position(
    written: Path, bits: Callable[[int], list[int]]
) -> None:
    path = segment_file(written)
    content = path.read_bytes()
    ends = batch_ends(written)
    for byte in range(len(content)):
        batch = max(end for end in ends if end <= byte)
        for bit in bits(byte):
            damaged = bytearray(content)
            damaged[byte] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CorruptLog) as caught:
                reopen(written)
            assert caught.value.file == str(path)
            assert caught.value.position == batch, (byte, bit)
            assert path.read_bytes() == bytes(damaged), "nothing may be cut from a corrupt log"
    path.write_bytes(content)
    assert reopen(written) == VALUES


@pytest.mark.usefixtures("unforced")
@BITS
def test_flipped_bits_in_closed_segments_are_never_served(tmp_path: Path, bits: Callable[[int], list[int]]) -> None:
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, StreamConfig(segment_max_bytes=100)).partitions["0"]
        for part in APPENDS:
            partition.append(part)
        assert partition.segment_count > 2
    path = segment_file(tmp_path)
    content = path.read_bytes()
    for byte in range(len(content)):
        for bit in bits(byte):
            damaged = bytearray(content)
            damaged[byte] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CorruptLog) as caught:
                reopen(tmp_path)
            assert caught.value.file == str(path)
    path.write_bytes(content)
    assert reopen(tmp_path) == VALUES


def test_flipped_bits_under_a_running_log_are_never_served(written: Path) -> None:
    path = segment_file(written)
    content = path.read_bytes()
    with ReferenceLog(written) as log:
        partition = log.stream("s").partitions["0"]
        with path.open("r+b") as file:
            for byte in range(0, len(content), 3):
                file.seek(byte)
                file.write(bytes([content[byte] ^ 0x10]))
                file.flush()
                with pytest.raises(CorruptLog):
                    all_values(partition)
                file.seek(byte)
                file.write(content[byte : byte + 1])
                file.flush()
        assert all_values(partition) == VALUES


def test_indexes_are_made_anew(tmp_path: Path) -> None:
    config = StreamConfig(timestamp_type="create", segment_max_bytes=400, index_interval_bytes=100)
    with ReferenceLog(tmp_path) as log:
        partition = log.create_stream("s", 1, config).partitions["0"]
        for n in range(30):
            partition.append([b"%d" % n], timestamps=[-n])
    indexes = sorted((tmp_path / "streams" / "s" / "0").glob("*.index"))
    originals = [path.read_bytes() for path in indexes]
    assert len(indexes) > 3
    indexes[0].unlink()
    indexes[1].write_bytes(originals[1][:-1])
    indexes[2].write_bytes(originals[2][:20] + b"\xff" + originals[2][21:])
    orphan = indexes[0].with_name(f"{999:020d}.index")
    orphan.write_bytes(originals[0])
    with ReferenceLog(tmp_path) as log:
        partition = log.stream("s").partitions["0"]
        assert all_values(partition) == [b"%d" % n for n in range(30)]
        assert partition.offset_for_time(-3) == (0, 0)
    assert not orphan.exists()
    assert [path.read_bytes() for path in indexes] == originals


def test_bytes_past_the_acknowledged_end_are_cut_and_whole_batches_kept(written: Path) -> None:
    path = segment_file(written)
    content = path.read_bytes()
    path.write_bytes(content + b"\x00" * 100)
    assert reopen(written) == VALUES
    assert path.read_bytes() == content
    # The point was written before the last batch: nobody was told that it is stored, but it is whole.
    point = RecoveryPointFile(path.parent / "recovery-point")
    point.write(0, batch_ends(written)[-2], 0)
    point.close()
    assert reopen(written) == VALUES


def test_a_power_cut_loses_only_what_was_not_synced(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segment_file(written)
    ends = batch_ends(written)
    content = bytearray(path.read_bytes())
    content[ends[2] : ends[3]] = bytes(ends[3] - ends[2])  # a block that the disk never got
    path.write_bytes(content)
    point = RecoveryPointFile(path.parent / "recovery-point")
    point.write(0, ends[4], ends[2])
    point.close()
    with pytest.raises(CorruptLog):  # the same boot: the system has what was written, so this is damage
        reopen(written)
    monkeypatch.setattr("spark_streams.log.storage.recovery.this_boot", lambda: b"another boot id!")
    assert reopen(written) == VALUES[:3]


def test_half_made_streams_are_removed(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("kept")
    (tmp_path / "streams" / "half" / "0").mkdir(parents=True)
    (tmp_path / "streams" / ".deleted-x").mkdir()
    with ReferenceLog(tmp_path) as log:
        assert [s.name for s in log.streams()] == ["kept"]
    assert sorted(p.name for p in (tmp_path / "streams").iterdir()) == ["kept"]


def test_metadata_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("s")
    path = tmp_path / "streams" / "s" / "stream.json"
    path.write_text("{")
    with pytest.raises(CorruptLog, match="metadata"):
        ReferenceLog(tmp_path)


def test_a_full_disk_takes_nothing_and_loses_nothing(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceLog(written) as log:
        partition = log.stream("s").partitions["0"]

        def half_then_full(fd: int, content: bytes, position: int) -> None:
            os.pwrite(fd, content[: len(content) // 2], position)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(segment_module, "write_all", half_then_full)
        with pytest.raises(OSError, match="No space"):
            partition.append([b"lost", b"too"])
        assert all_values(partition) == VALUES
        monkeypatch.setattr(segment_module, "write_all", files_module.write_all)
        assert partition.append([b"fits"]).first_offset == len(VALUES)
    assert reopen(written) == [*VALUES, b"fits"]


def test_a_failed_sync_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with ReferenceLog(tmp_path, LogConfig(fsync="always")) as log:
        partition = log.create_stream("s").partitions["0"]
        partition.append([b"kept"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match="Input/output"):
                partition.append([b"lost"])
        assert all_values(partition) == [b"kept"]
        assert partition.append([b"next"]).first_offset == 1


CHILD = textwrap.dedent(
    """
    import sys
    from spark_streams.log import LogConfig, ReferenceLog, StreamConfig
    log = ReferenceLog(sys.argv[1], LogConfig(fsync=sys.argv[2]))
    partition = log.create_stream("s", 1, StreamConfig(segment_max_bytes=20_000), exist_ok=True).partitions["0"]
    n = partition.next_offset
    while True:
        last = partition.append([b"%d" % i for i in range(n, n + 7)]).last_offset
        n = last + 1
        print(last, flush=True)
    """
)


@pytest.mark.parametrize("fsync", ["never", pytest.param("interval", marks=pytest.mark.nightly), "always"])
def test_an_acknowledged_append_survives_kill_9(tmp_path: Path, fsync: str) -> None:
    for round_ in range(2):
        acknowledged = acknowledged_before_kill_9(CHILD, [str(tmp_path), fsync], 40 + 30 * round_)
        with ReferenceLog(tmp_path) as log:
            values = all_values(log.stream("s").partitions["0"])
        assert values == [b"%d" % n for n in range(len(values))]
        assert len(values) >= acknowledged + 1
        assert len(values) % 7 == 0, "an append is kept whole or not at all"
