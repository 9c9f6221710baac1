"""Splitting partitions: closed with others after them, or their history redistributed."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_streams.errors import CorruptLog, LogError, PartitionEnded
from spark_streams.log import NO_TIMESTAMP, LogConfig, Partition, ReferenceLog, Stream, StreamConfig
from spark_streams.log import stream_metadata as metadata_module
from spark_streams.log.format.record_batch import Body, single_record
from spark_streams.log.publisher_sequences import SequenceKind, Sequences
from spark_streams.log.storage import partition as partition_module
from spark_streams.log.storage.readable_partition import PartitionClosed

Row = tuple[int, bytes, bytes | None, int]
KIND = SequenceKind(b"test-publishers", "test-sequences")


def rows(partition: Partition) -> list[Row]:
    """Return (offset, value, key, timestamp) of all records."""
    found: list[Row] = []
    offset = partition.first_offset
    while (records := partition.read(offset)) is not None:
        for row in range(len(records)):
            found.append(
                (int(records.offsets[row]), records.value(row), records.key(row), int(records.timestamps[row]))
            )
        offset = int(records.offsets[-1]) + 1
    return found


def fill(partition: Partition, first: int, count: int, keys: int = 10) -> None:
    """Append numbered records; every seventh has no key."""
    numbers = range(first, first + count)
    partition.append([b"%d" % n for n in numbers], [None if n % 7 == 0 else b"key-%d" % (n % keys) for n in numbers])


def shape(stream: Stream) -> dict[str, tuple[bool, str | None, tuple[str, ...]]]:
    return {name: (p.closed, p.starts_after, p.cursor_from) for name, p in stream.partitions.items()}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ReferenceLog]:
    with ReferenceLog(tmp_path / "log", LogConfig(fsync="never")) as opened:
        yield opened


def test_with_nothing_split_keys_stay_where_earlier_releases_put_them(log: ReferenceLog) -> None:
    stream = log.create_stream("s", 5)
    for n in range(200):
        assert stream.home(b"key-%d" % n) == str(zlib.crc32(b"key-%d" % n) % 5)
        assert stream.homes_among(stream.open_partitions).homes([b"key-%d" % n]) == [stream.home(b"key-%d" % n)]
    metadata = json.loads((stream.folder / "stream.json").read_text())
    assert (metadata["version"], metadata["partitions"]) == (1, 5)


def test_a_closed_partition_keeps_its_records_and_takes_no_more(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 2)
        before = {b"key-%d" % n: stream.home(b"key-%d" % n) for n in range(300)}
        fill(stream.partitions["0"], 0, 100)
        held = rows(stream.partitions["0"])
        assert log.split_partition("s", "0", 3) is stream
    with ReferenceLog(tmp_path) as log:
        stream = log.stream("s")
        assert shape(stream) == {
            "0": (True, None, ()),
            "1": (False, None, ()),
            "2": (False, "0", ()),
            "3": (False, "0", ()),
            "4": (False, "0", ()),
        }
        assert stream.open_partitions == ("1", "2", "3", "4")
        assert rows(stream.partitions["0"]) == held
        with pytest.raises(PartitionEnded, match="split into partitions 2, 3, 4, append there"):
            stream.partitions["0"].append([b"x"])
        homes = {key: stream.home(key) for key in before}
        assert {homes[key] for key, home in before.items() if home == "0"} == {"2", "3", "4"}
        assert {homes[key] for key, home in before.items() if home == "1"} == {"1"}
        log.split_partition("s", "3")
        assert [p.id for p in stream.predecessors("6")] == ["3", "0"]
        assert all(stream.home(key) in ("5", "6") for key, home in homes.items() if home == "3")
        assert all(stream.home(key) == home for key, home in homes.items() if home != "3")


def test_identifiers_are_never_given_twice(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        log.create_stream("s", 1)
        log.split_partition("s", "0", history=True)
    with ReferenceLog(tmp_path) as log:
        stream = log.add_partitions("s", 1)
        assert list(stream.partitions) == ["1", "2", "3"]
        log.split_partition("s", "3", history=True)
        assert list(stream.partitions) == ["1", "2", "4", "5"]
        assert {stream.home(b"%d" % n) for n in range(100)} == {"1", "2", "4", "5"}
        some, keys = stream.homes_among(["2", "4"]), [b"%d" % n for n in range(100)]
        assert {some.home(key) for key in keys} == {"2", "4"}
        for tree in (some, stream.homes_among(["1", "2", "4", "5"])):
            assert tree.homes(keys) == [tree.home(key) for key in keys]
        fill(stream.partitions["5"], 0, 3)


def test_what_cannot_be_split(log: ReferenceLog) -> None:
    stream = log.create_stream("s", 1)
    for partition, into, history, reason in (
        ("1", 2, False, "no partition '1'"),
        ("0", 1, False, "expected 2 to 256"),
        ("0", 257, True, "expected 2 to 256"),
    ):
        with pytest.raises(ValueError, match=reason):
            log.split_partition("s", partition, into, history=history)
    log.split_partition("s", "0")
    with pytest.raises(ValueError, match="partition 0 is closed"):
        log.split_partition("s", "0", history=True)
    with pytest.raises(ValueError, match="history of partition 1 begins on partition 0"):
        log.split_partition("s", "1", history=True)
    assert list(stream.partitions) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", ["append", "create"])
@pytest.mark.parametrize("segment_bytes", [2_000, 64 << 20])
def test_the_history_is_redistributed_and_cursors_stay_valid(tmp_path: Path, kind: str, segment_bytes: int) -> None:
    config = StreamConfig(timestamp_type=kind, segment_max_bytes=segment_bytes)  # type: ignore[arg-type]
    now = iter(range(1_000, 10_000_000, 10))
    with ReferenceLog(tmp_path, clock=lambda: next(now)) as log:
        parent = log.create_stream("s", 1, config).partitions["0"]
        for n in range(0, 1_000, 20):
            times = np.arange(n, n + 20) - 500
            times[times % 3 == 0] = NO_TIMESTAMP
            keys = [None if i % 7 == 0 else b"key-%d" % (i % 10) for i in range(n, n + 20)]
            parent.append([b"%d" % i for i in range(n, n + 20)], keys, times)
        held = rows(parent)
        log.split_partition("s", "0", 3, history=True)
        with pytest.raises(PartitionEnded):
            parent.append([b"late"])
        with pytest.raises(PartitionClosed, match="redistributed onto partitions 1, 2, 3"):
            parent.read(0)
    with ReferenceLog(tmp_path) as log:
        stream = log.stream("s")
        assert not (stream.folder / "0").exists()
        assert shape(stream) == {name: (False, None, ("0",)) for name in ("1", "2", "3")}
        children = {name: rows(partition) for name, partition in stream.partitions.items()}
        assert all(children.values())
        for name, found in children.items():
            assert {stream.home(key) for _, _, key, _ in found if key is not None} == {name}
            assert [offset for offset, *_ in found] == list(range(len(found)))
            assert [int(value) for _, value, *_ in found] == sorted(int(value) for _, value, *_ in found)
        assert sorted(row[1:] for found in children.values() for row in found if row[2]) == sorted(
            row[1:] for row in held if row[2]
        )
        for cursor in (0, 1, 17, 500, 999, 1_000, 5_000):
            rest = [row for name, found in children.items() for row in found[stream.translate(name, "0", cursor) :]]
            assert sorted((int(row[1]), row[3]) for row in rest) == [(int(row[1]), row[3]) for row in held[cursor:]]


def test_cursors_of_all_ancestors_are_valid_on_a_grandchild(log: ReferenceLog) -> None:
    stream = log.create_stream("s", 1)
    fill(stream.partitions["0"], 0, 300)
    log.split_partition("s", "0", history=True)
    for name in ("1", "2"):
        fill(stream.partitions[name], 300 + 100 * int(name), 100)
    of_one = rows(stream.partitions["1"])
    log.split_partition("s", "1", history=True)
    log.split_partition("s", "3")
    assert shape(stream) == {
        "2": (False, None, ("0",)),
        "3": (True, None, ("1", "0")),
        "4": (False, None, ("1", "0")),
        "5": (False, "3", ()),
        "6": (False, "3", ()),
    }
    for cursor in range(0, 301, 20):
        rest = {
            int(row[1])
            for name in ("2", "3", "4")
            for row in rows(stream.partitions[name])
            if row[0] >= stream.translate(name, "0", cursor)
        }
        assert rest == set(range(cursor, 300)) | set(range(400, 600))
    for cursor in range(0, len(of_one) + 1, 20):
        rest = {
            int(row[1])
            for name in ("3", "4")
            for row in rows(stream.partitions[name])
            if row[0] >= stream.translate(name, "1", cursor)
        }
        assert rest == {int(row[1]) for row in of_one[cursor:]}
    for partition, origin in (("2", "1"), ("5", "0"), ("4", "9")):
        with pytest.raises(ValueError, match="no part of the history"):
            stream.translate(partition, origin, 0)


def test_a_cursor_of_removed_records_is_before_the_first_of_every_child(tmp_path: Path) -> None:
    config = StreamConfig(segment_max_bytes=500, retention_max_bytes=1_000)
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 1, config)
        for n in range(0, 500, 5):
            fill(stream.partitions["0"], n, 5)
        log.enforce_retention()
        first = stream.partitions["0"].first_offset
        held = rows(stream.partitions["0"])
        assert first > 0
        log.split_partition("s", "0", history=True)
        for name, partition in stream.partitions.items():
            assert partition.first_offset == first
            assert stream.translate(name, "0", first) == first
            assert stream.translate(name, "0", first - 1) < first
        assert sorted(int(row[1]) for p in stream.partitions.values() for row in rows(p)) == [
            int(row[1]) for row in held
        ]


def test_retention_by_age_goes_by_the_first_append(tmp_path: Path) -> None:
    now = [1_000_000_000_000]
    config = StreamConfig(retention_max_age_ms=1_000)
    with ReferenceLog(tmp_path, LogConfig(retention_check_ms=10**9), clock=lambda: now[0]) as log:
        stream = log.create_stream("s", 1, config)
        fill(stream.partitions["0"], 0, 50)
        now[0] += 900
        log.split_partition("s", "0", history=True)
        assert log.enforce_retention() == 0
        now[0] += 200
        assert log.enforce_retention() == 2
        assert all(p.first_offset == p.next_offset for p in stream.partitions.values())


def test_publishers_are_known_on_the_children(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 1)
        for n in range(20):
            stream.partitions["0"].append([b"%d" % n], [b"a"], notes=[KIND.note_of({"p": n, f"q{n}": 5})])
        log.split_partition("s", "0", history=True)
        log.split_partition("s", stream.home(b"a"), history=True)
        counts = sorted(len(rows(partition)) for partition in stream.partitions.values())
        assert counts == [0, 0, 20]
    with ReferenceLog(tmp_path) as log:
        stream = log.stream("s")
        sequences = Sequences(log, 1_000, KIND)
        for partition in stream.partitions.values():
            line = sequences.of(stream, partition)
            assert (line.last("p"), line.last("q0"), line.last("r")) == (19, 5, None)


def test_what_is_appended_while_the_history_is_copied_is_not_lost(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 1)
        fill(stream.partitions["0"], 0, 50_000)
        started = threading.Event()
        stored = [50_000]

        def produce() -> None:
            while True:
                partition = stream.partitions.get("0")
                try:
                    if partition is None:
                        return
                    fill(partition, stored[0], 10)
                except PartitionEnded:
                    return
                stored[0] += 10
                started.set()
                time.sleep(0.0005)  # or the other thread hardly gets a turn

        producer = threading.Thread(target=produce)
        producer.start()
        started.wait()
        log.split_partition("s", "0", history=True)
        producer.join()
        found = sorted(int(row[1]) for p in stream.partitions.values() for row in rows(p))
        assert found == list(range(stored[0]))


def test_records_with_headers_of_their_own_are_not_lost_silently(
    log: ReferenceLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = log.create_stream("s", 1)
    body = single_record(b"a") + single_record(b"b", headers=[(b"h", b"1")], offset_delta=1)
    with monkeypatch.context() as patch:
        patch.setattr(partition_module, "encode_records", lambda *_: [Body((body,), 2, 0)])
        stream.partitions["0"].append([b"a", b"b"])
    with pytest.raises(LogError, match="record 1 of partition 0 of stream 's' has headers"):
        log.split_partition("s", "0", history=True)
    assert sorted(path.name for path in stream.folder.iterdir()) == ["0", "stream.json"]
    fill(stream.partitions["0"], 0, 1)


@pytest.mark.parametrize("history", [False, True])
def test_a_split_that_the_system_refuses_leaves_the_partition_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 1)
        fill(stream.partitions["0"], 0, 10)
        with monkeypatch.context() as patch:
            patch.setattr(metadata_module, "write_atomically", full)
            with pytest.raises(OSError, match="No space"):
                log.split_partition("s", "0", history=history)
        assert list(stream.partitions) == ["0"]
        fill(stream.partitions["0"], 10, 10)
        log.split_partition("s", "0", history=history)
        assert sum(len(rows(p)) for p in stream.partitions.values()) == 20


def test_damage_to_what_is_known_of_a_split_is_found(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path) as log:
        stream = log.create_stream("s", 1)
        fill(stream.partitions["0"], 0, 10)
        log.split_partition("s", "0", history=True)
        path = stream.folder / "splits" / "0"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with ReferenceLog(tmp_path) as log, pytest.raises(CorruptLog, match="CRC"):
            log.stream("s").translate("1", "0", 5)
    path.unlink()
    with pytest.raises(CorruptLog, match="split of partition 0 is missing"):
        ReferenceLog(tmp_path)


@pytest.mark.parametrize(
    ("change", "new", "least"),
    [
        (lambda log: log.add_partitions("s", 2), ["0", "1", "2", "3"], 5),
        (lambda log: log.split_partition("s", "0"), ["0", "1", "2", "3"], 5),
        (lambda log: log.split_partition("s", "0", history=True), ["1", "2", "3"], 10),
    ],
    ids=["added", "split", "split with history"],
)
def test_an_error_of_any_file_operation_leaves_a_log_that_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[ReferenceLog], Stream],
    new: list[str],
    least: int,
) -> None:
    names = ("mkdir", "pwrite", "fsync", "fdatasync", "ftruncate", "replace", "unlink", "rmdir", "utime")
    failing = -1
    count = 0
    refused = 0
    numbers = iter(range(60, 10_000))

    def counted(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(errno.EIO, "Input/output error")
        return real(*args, **kwargs)

    for at in itertools.count(1):
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
        # No upkeep in the middle, which would count.
        with ReferenceLog(tmp_path / "log", LogConfig(fsync="never")) as log:
            stream = log.create_stream("s", 2, StreamConfig(segment_max_bytes=700))
            for n in range(0, 60, 10):
                fill(stream.partitions["0"], n, 10)
            stored = set(range(60))
            with monkeypatch.context() as patch:
                for name in names:
                    patch.setattr(os, name, functools.partial(counted, getattr(os, name)))
                failing, count = at, 0
                try:
                    change(log)
                except OSError:
                    refused += 1
                    assert list(stream.partitions) == ["0", "1"]
                else:
                    assert list(stream.partitions) == new
            for name in stream.open_partitions:
                stored.add(next(numbers))
                stream.partitions[name].append([b"%d" % max(stored)])
            shutil.copytree(log.data_dir, tmp_path / "as kill -9 leaves it")
        for folder in (tmp_path / "log", tmp_path / "as kill -9 leaves it"):
            with ReferenceLog(folder) as log:
                assert list(log.stream("s").partitions) == list(stream.partitions), at
                found = [int(row[1]) for p in log.stream("s").partitions.values() for row in rows(p)]
                assert (sorted(found), len(found)) == (sorted(stored), len(stored)), at
                if list(stream.partitions) != new:
                    change(log)
        shutil.rmtree(tmp_path / "as kill -9 leaves it")
        if count < failing:
            break
    assert refused >= least


@pytest.mark.parametrize("way", ["close", pytest.param("history", marks=pytest.mark.nightly)])
def test_kill_9_leaves_the_old_partitions_or_the_new(tmp_path: Path, way: str) -> None:
    """A process is killed before each of its file operations in turn, see split_killer.py."""
    with ReferenceLog(tmp_path / "log") as log:
        stream = log.create_stream("s", 2, StreamConfig(segment_max_bytes=700))
        for n in range(0, 60, 10):
            fill(stream.partitions["0"], n, 10)
    killer = Path(__file__).with_name("split_killer.py")
    ran = subprocess.run(
        [sys.executable, str(killer), str(tmp_path / "log"), str(tmp_path / "copy"), way],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["killed"] >= (15 if way == "close" else 30)
    assert told["old"] > 0
    assert told["new"] > 0
    shutil.rmtree(tmp_path / "copy")
