"""A door that was killed, or that could not write, knows of publishing ids neither more nor less than it has."""

from __future__ import annotations

import errno
import gzip
import shutil
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import LogConfig, Partition, StreamConfig
from spark_streams.log import publisher_sequences as sequences_module
from tests.real_rabbitmq.by_hand import DELETE_PUBLISHER, data, plain, sub_batch
from tests.server.rabbitmq.conftest import Door
from tests.server.rabbitmq.test_publish import INTERNAL, read_all, refused, sequence


def packed(number: int, messages: list[bytes]) -> bytes:
    inner = b"".join(data(message) for message in messages)
    return sub_batch(number, 1, len(messages), len(inner), gzip.compress(inner))


def boundaries(segment: bytes) -> list[int]:
    """Where record batches end: each says its length behind an offset of eight bytes."""
    at, found = 0, []
    while at < len(segment):
        at += 12 + struct.unpack_from(">I", segment, at + 8)[0]
        found.append(at)
    return found


def segment_of(folder: Path) -> Path:
    (found,) = (folder / "streams").rglob("*.log")
    return found


def test_a_kill_in_the_middle_of_an_append_leaves_no_part_of_a_sub_batch(
    doors: Callable[..., Door], tmp_path: Path
) -> None:
    door = doors()
    peer = door.peer()
    assert peer.create("orders") == 1 and peer.declare(1, "orders", "ref") == 1
    sizes = [300_000, 30_000, 700_000, 90_000]
    batches = [[b"%d/%d " % (n, i) * (sizes[n % 4] // 8) for i in range(3 + n % 3)] for n in range(8)]
    entries = [packed(n + 1, messages) for n, messages in enumerate(batches)]
    peer.publish(1, entries[:1])
    peer.confirmed(1)
    # The files as they were before the next append: what a kill in the middle of it leaves, but for the segment's end.
    shutil.copytree(tmp_path / "log", tmp_path / "before")
    peer.publish(1, entries[1:])  # one frame, hence one append, of some megabytes
    peer.confirmed(7)
    before = len(segment_of(tmp_path / "before").read_bytes())
    after = segment_of(tmp_path / "log").read_bytes()
    cuts = [end for end in boundaries(after) if end >= before]
    assert len(cuts) > 4
    expected = [message for batch in batches for message in batch]
    for number, cut in enumerate([*cuts[:-1], *(end + 100 for end in cuts[:-1])]):
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "before", folder)
        segment_of(folder).write_bytes(after[:cut])
        again = doors(folder=folder.name)
        other = again.peer()
        kept = read_all(again, "orders")
        last = sequence(other, "ref", "orders")[1]
        assert kept == [message for batch in batches[:last] for message in batch]
        assert 1 <= last < 8
        assert other.declare(1, "orders", "ref") == 1
        other.publish(1, entries)
        assert sorted(other.confirmed(8)) == list(range(1, 9))
        assert read_all(again, "orders") == expected


def test_what_followed_a_failed_append_in_the_same_round_is_not_stored(
    doors: Callable[..., Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full for a large append, and has room for the small one behind it."""
    door = doors(log_config=LogConfig(fsync="always"))
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream, "ref") == 1
    original = Partition.append
    begun, go_on = threading.Event(), threading.Event()

    def choosy(self: Partition, values: Any, *arguments: Any, **named: Any) -> Any:
        if len(values) == 1:
            begun.set()
            go_on.wait(120)  # the others come meanwhile, and are appended in one round
        if len(values) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, values, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", choosy)
        peer.publish(1, [plain(1, b"1")])
        assert begun.wait(120)
        for ids in ((2, 3, 4), (5, 6)):
            peer.publish(1, [plain(i, b"%d" % i) for i in ids])
            door.taken_in()
        go_on.set()
        assert peer.confirmed(1) == [1]
        assert refused(peer) == (1, [(2, INTERNAL), (3, INTERNAL), (4, INTERNAL)])
        assert refused(peer) == (1, [(5, INTERNAL), (6, INTERNAL)])
    assert sequence(peer, "ref", stream) == (1, 1)
    peer.ask(DELETE_PUBLISHER, bytes([1]))
    assert peer.declare(1, stream, "ref") == 1
    peer.publish(1, [plain(i, b"%d" % i) for i in range(1, 7)])
    assert sorted(peer.confirmed(6)) == [1, 2, 3, 4, 5, 6]
    assert read_all(door, stream) == [b"%d" % i for i in range(1, 7)]


def test_a_snapshot_knows_all_that_it_says_it_knows(
    doors: Callable[..., Door], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of several appends in one round the first may make a snapshot due, when the log has the others already."""
    monkeypatch.setattr(sequences_module, "SNAPSHOT_BATCHES", 2)
    door = doors(log_config=LogConfig(fsync="always"))
    peer = door.peer()
    assert peer.create("orders") == 1 and peer.declare(1, "orders", "ref") == 1
    original = Partition.append

    def slow(self: Partition, values: Any, *arguments: Any, **named: Any) -> Any:
        time.sleep(0.3)
        return original(self, values, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append", slow)
        for number in (1, 2, 3):
            peer.publish(1, [plain(number, b"%d" % number)])
            time.sleep(0.1)
        assert sorted(peer.confirmed(3)) == [1, 2, 3]
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    again = doors(folder="killed")
    assert sequence(again.peer(), "ref", "orders") == (1, 3)


def test_a_reference_outlives_the_segments_that_retention_removed(doors: Callable[..., Door], tmp_path: Path) -> None:
    door = doors()
    door.log.create_stream("orders", 1, StreamConfig(segment_max_bytes=2_000, retention_max_bytes=5_000))
    peer = door.peer()
    assert peer.declare(1, "orders", "early") == 1 and peer.declare(2, "orders", "late") == 1
    peer.publish(1, [plain(7, b"x")])
    peer.confirmed(1)
    for number in range(1, 40):
        peer.publish(2, [plain(number, b"y" * 500)])
        peer.confirmed(1)
    door.log.enforce_retention()
    assert door.partition("orders").first_offset > 0
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    other = doors(folder="killed").peer()
    assert sequence(other, "early", "orders") == (1, 7)
    assert sequence(other, "late", "orders") == (1, 39)


def test_a_sub_batch_that_no_batch_can_hold_is_refused_whole(doors: Callable[..., Door]) -> None:
    door = doors()
    door.log.create_stream("orders", 1, StreamConfig(timestamp_type="create"))
    peer = door.peer()
    assert peer.declare(1, "orders", "ref") == 1
    # properties (0x73): eight nulls, absolute-expiry-time null, creation-time 1000
    timed = b"\x00\x53\x73\xc0\x13\x0a" + b"\x40" * 9 + b"\x83" + struct.pack(">q", 1_000) + b"\x00Su\xa0\x01a"
    peer.publish(1, [packed(1, [timed, timed]), packed(2, [b"\x00Su\xa0\x01b"] * 2)])
    assert sorted(peer.confirmed(2)) == [1, 2]
    peer.publish(1, [packed(3, [timed, b"\x00Su\xa0\x01b"])])
    assert refused(peer) == (1, [(3, INTERNAL)])
    assert len(read_all(door, "orders")) == 4
