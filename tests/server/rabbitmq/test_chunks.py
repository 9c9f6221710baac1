"""Chunks that the door makes of stored batches: where they are cut, what is in them, and that they are made once."""

from __future__ import annotations

import errno
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.log import NO_TIMESTAMP, LogConfig, Partition, ReferenceLog, StreamConfig
from spark_streams.server.rabbitmq import chunk_cache
from spark_streams.server.rabbitmq.chunk_cache import AREA_CHUNKS, ChunkCache
from spark_streams.server.rabbitmq.chunks import LARGE_APPEND_RECORDS, MAX_RECORDS, Chunks
from tests.real_rabbitmq.by_hand import (
    DELIVER,
    FIRST,
    LAST,
    METADATA_UPDATE,
    NEXT,
    offset,
    pairs,
    plain,
    text,
    timestamp,
)
from tests.server.rabbitmq.beside import until
from tests.server.rabbitmq.consuming import delivered, firsts, grant, publish_chunk, publish_one, records

ESCAPE = bytes.fromhex("008000000000000000 75b0".replace(" ", ""))


def make(door: Any, name: str = "made", **config: Any) -> Any:
    """Create a stream behind the door's back, as another door would; return its partition."""
    return door.server.call(lambda: door.log.create_stream(name, 1, StreamConfig(**config)).partitions["0"])


@pytest.fixture
def cutting(door: Any) -> Any:
    partition = make(door)
    door.server.call(lambda: partition.append([b"%d" % n for n in range(20_000)]))
    door.server.call(lambda: partition.append([b"one", b"two"]))
    return door


def test_a_stored_batch_is_cut_into_chunks_of_which_the_last_is_small(cutting: Any) -> None:
    peer = cutting.peer()
    assert peer.subscribe(1, "made", FIRST) == 1
    found = delivered(peer, "made")
    assert [(each.first, each.records, each.entries) for each in found] == [
        (0, 8_192, 8_192),
        (8_192, 8_192, 8_192),
        (16_384, 3_072, 3_072),
        (19_456, 544, 544),
        (20_000, 2, 2),
    ]
    assert [message for each in found for message in records(each)] == [
        *(b"%d" % n for n in range(20_000)),
        b"one",
        b"two",
    ]
    assert all(each.crc == zlib.crc32(each.rest) for each in found)


@pytest.mark.parametrize(
    ("start", "first"), [(offset(10_000), 8_192), (offset(19_455), 16_384), (offset(20_001), 20_000), (LAST, 20_000)]
)
def test_each_cut_is_a_chunk_of_its_own(cutting: Any, start: bytes, first: int) -> None:
    peer = cutting.peer()
    assert peer.subscribe(1, "made", start, 1) == 1
    assert firsts(peer, "made") == [first]


@pytest.mark.parametrize("timestamp_type", ["append", "create"])
@pytest.mark.parametrize(
    ("count", "first"), [(1_023, 0), (1_024, 0), (1_025, 1_024), (2_048, 1_024), (8_192, 7_168), (8_193, 8_192)]
)
def test_the_last_chunk_may_be_the_end_of_a_stored_batch(
    door: Any, timestamp_type: str, count: int, first: int
) -> None:
    partition = make(door, timestamp_type=timestamp_type)
    door.server.call(lambda: partition.append([b"x"] * count, timestamps=[7] * count))
    peer = door.peer()
    assert peer.subscribe(1, "made", LAST) == 1
    (last,) = delivered(peer, "made")
    assert (last.first, last.records, last.committed) == (first, count - first, first)
    assert peer.subscribe(2, "made", FIRST) == 1
    assert sum(each.records for each in delivered(peer, "made")) == count


def test_the_last_chunk_is_not_the_whole_of_a_large_publish(broker: Any) -> None:
    """A broker's chunks grow from 32 entries, each at most as large as all before it and 32 more."""
    stream, peer, count = broker.stream(), broker.peer(), 4_999
    assert peer.declare(1, stream) == 1
    peer.publish(1, [plain(number, b"%d" % number) for number in range(count)])
    peer.confirmed(count)
    assert peer.subscribe(1, stream, LAST, 100) == 1
    found = delivered(peer, stream)
    assert found[0].first >= (count - 32) // 2
    assert [message for each in found for message in records(each)] == [b"%d" % n for n in range(found[0].first, count)]
    if hasattr(broker, "log"):
        assert [(each.first, each.records) for each in found] == [(4_096, 903)]


def test_where_timestamps_change_a_chunk_ends(door: Any) -> None:
    partition = make(door, timestamp_type="create")
    instants = [10, 10, 20, 20, 20, 5, None, None, -7]
    door.server.call(lambda: partition.append([b"%d" % n for n in range(9)], timestamps=instants))
    door.server.call(lambda: partition.append([b"9"], timestamps=[-7]))
    peer = door.peer()
    assert peer.subscribe(1, "made", FIRST) == 1
    found = delivered(peer, "made")
    assert [(each.first, each.records, each.timestamp) for each in found] == [
        (0, 2, 10),
        (2, 3, 20),
        (5, 1, 5),
        (6, 2, NO_TIMESTAMP),
        (8, 1, -7),
        (9, 1, -7),
    ]
    assert {each.committed for each in found} == {9}
    for number, (start, expected) in enumerate(
        [(timestamp(11), 2), (timestamp(10), 0), (timestamp(-7), 0), (offset(7), 6), (LAST, 9), (offset(4), 2)]
    ):
        assert peer.subscribe(10 + number, "made", start, 1) == 1
        assert firsts(peer, "made") == [expected]


MESSAGES = (
    b"",
    b"\x00",
    b"not AMQP",
    b"\xff" * 300,
    bytes.fromhex("005375a005") + b"hello",
    bytes.fromhex("005375b000000005") + b"hello",
    bytes.fromhex("005377a105") + b"hello",
    bytes.fromhex("005370450053 71c10100 005375a00161".replace(" ", "")),  # header, delivery annotations, data
    bytes.fromhex("005375a005") + b"too short",
    ESCAPE + bytes.fromhex("00000003") + b"abc",
    ESCAPE,
    ESCAPE[:10],
    ESCAPE + bytes.fromhex("00000012") + ESCAPE + bytes.fromhex("00000003") + b"abc",
)


@pytest.mark.parametrize("together", [True, False])
def test_readers_get_the_bytes_that_were_published(broker: Any, together: bool) -> None:
    stream, peer = broker.stream(), broker.peer()
    groups: Sequence[Sequence[bytes]] = [MESSAGES] if together else [[message] for message in MESSAGES]
    for group in groups:
        publish_chunk(peer, stream, group)
    assert peer.subscribe(1, stream, FIRST, 100) == 1
    assert [message for each in delivered(peer, stream) for message in records(each)] == list(MESSAGES)


def test_messages_of_sizes_that_differ(broker: Any) -> None:
    generator = np.random.default_rng(7)
    messages = [generator.bytes(int(size)) for size in generator.integers(0, 300, 2000)]
    stream, peer = broker.stream(), broker.peer()
    publish_chunk(peer, stream, messages)
    assert peer.subscribe(1, stream, FIRST) == 1
    found = delivered(peer, stream)
    assert [message for each in found for message in records(each)] == messages
    assert all(each.crc == zlib.crc32(each.rest) for each in found)


def test_retention_under_a_subscription_leads_to_the_first_retained_chunk(doors: Callable[..., Any]) -> None:
    door = doors()
    partition = make(door, segment_max_bytes=4096, retention_max_bytes=4096)
    door.server.call(lambda: [partition.append([b"%d" % n + b"x" * 1000]) for n in range(40)])
    peer = door.peer()
    assert peer.subscribe(1, "made", FIRST, 2) == 1
    assert firsts(peer, "made") == [0, 1]
    assert door.server.call(partition.enforce_retention) > 0
    first = partition.first_offset
    assert first > 2
    grant(peer, 1, 1)
    assert firsts(peer, "made") == [first]
    assert peer.subscribe(2, "made", offset(0), 1) == 1
    assert firsts(peer, "made") == [first]


@pytest.mark.parametrize("properties", [{}, {"filter.0": "apple", "match-unfiltered": "true"}])
def test_retention_of_everything_leads_to_what_comes(doors: Callable[..., Any], properties: dict[str, str]) -> None:
    clock = [1_000_000]
    door = doors(clock=lambda: clock[0])
    partition = make(door, retention_max_age_ms=1000)
    door.server.call(lambda: partition.append([b"old"] * 3))
    peer = door.peer()
    assert peer.subscribe(1, "made", FIRST, 0, properties) == 1
    clock[0] += 10_000
    assert door.server.call(partition.enforce_retention) == 1
    grant(peer, 1, 10)
    assert firsts(peer, "made") == []
    for number, start in enumerate((FIRST, LAST, NEXT, offset(1), timestamp(0))):
        assert peer.subscribe(10 + number, "made", start, 1) == 1
    assert firsts(peer, "made") == []
    publish_one(peer, "made", b"new")
    assert {(each.first, each.subscription) for each in delivered(peer, "made")} == {
        (3, number) for number in (1, 10, 11, 12, 13, 14)
    }


# --- made once


@pytest.fixture
def partition(tmp_path: Any) -> Any:
    with ReferenceLog(tmp_path / "log", LogConfig()) as log:
        yield log.create_stream("made", 1).partitions["0"]


def reads_of(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    offsets: list[int] = []
    original = Partition.read

    def counted(self: Partition, offset: int, *args: Any, **options: Any) -> Any:
        offsets.append(offset)
        return original(self, offset, *args, **options)

    monkeypatch.setattr(Partition, "read", counted)
    return offsets


def everything(chunks: Chunks, end: int, limit: int = 1000) -> list[int]:
    found, at = [], 0
    while at < end:
        run = chunks.run(at, limit)
        found += [chunk.first_offset for chunk in run]
        at = run[-1].next_offset
    return found


def test_many_readers_cost_one_encoding(partition: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        partition.append([b"x" * 5000] * (number % 3 + 1))
    chunks, reads = Chunks(partition), reads_of(partition, monkeypatch)
    expected = everything(chunks, partition.next_offset)
    assert len(expected) == 300
    before = len(reads)
    assert before < 20
    for limit in (1, 2, 7, 1000):
        assert everything(chunks, partition.next_offset, limit) == expected
    assert len(reads) == before
    assert chunks.last().first_offset == chunks.last_id() == expected[-1]


def test_the_cache_is_bounded(partition: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ChunkCache(tmp_path, area_bytes=30_000, areas=3)
    chunks = Chunks(partition, cache)
    for number in range(200):
        partition.append([b"x" * 2000] * 2)
        (made,) = chunks.run(2 * number, 10)
        assert made.first_offset == 2 * number
        assert len(cache._areas) <= 3
    assert len(chunks._blocks) == sum(len(area.blocks) for area in cache._areas) <= 3 * 30_000 // 4000
    reads = reads_of(partition, monkeypatch)
    assert chunks.run(398, 10)
    assert reads == []  # the tail is what stays
    assert everything(chunks, partition.next_offset) == list(range(0, 400, 2))
    chunks.close()
    assert not cache._areas
    assert not list(tmp_path.glob("tmp*"))  # files without a name


def test_small_chunks_are_bounded_too(partition: Any, tmp_path: Any) -> None:
    cache = ChunkCache(tmp_path, areas=2)
    chunks = Chunks(partition, cache)
    for _ in range(3 * AREA_CHUNKS):
        partition.append([b"x"])
    assert everything(chunks, partition.next_offset) == list(range(3 * AREA_CHUNKS))
    assert sum(len(block.chunks) for block in chunks._blocks) <= 2 * AREA_CHUNKS


def test_one_batch_that_is_larger_than_the_cache_is_served(partition: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ChunkCache(area_bytes=1000)
    chunks = Chunks(partition, cache)
    for _ in range(3):
        partition.append([b"x" * 5000])
    assert everything(chunks, 3) == [0, 1, 2]
    reads = reads_of(partition, monkeypatch)
    assert [chunk.first_offset for chunk in chunks.run(2, 1)] == [2]  # the last one that was encoded is at hand
    assert reads == []


def _refused(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("name", "instead", "why"),
    [("write_all", _refused, "No space left"), ("FREE_BYTES", 1 << 60, "are free on the disk")],
)
def test_where_no_file_can_be_written_chunks_are_served(
    partition: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, instead: Any, why: str
) -> None:
    monkeypatch.setattr(chunk_cache, name, instead)
    chunks = Chunks(partition)
    partition.append(large([b"x"] * 500))
    partition.append([b"y"])
    for _ in range(2):
        assert [each.data for each in all_of(chunks, partition)] == [b"\0\0\0\1x" * 500, b"\0\0\0\1y"]
    assert caplog.text.count(why) == 1


def test_sent_parts_outlive_the_cache(partition: Any) -> None:
    chunks = Chunks(partition)
    partition.append([b"sent later"])
    (chunk,) = chunks.run(0, 1)
    chunks.close()
    assert bytes(chunk.data) == b"\0\0\0\x0asent later"


# --- large appends are encoded as they are made


def large(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def varied(count: int, largest: int) -> pa.LargeBinaryArray:
    chance = np.random.default_rng(count)
    ends = np.append(0, chance.integers(0, largest, count).cumsum())
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(chance.bytes(int(ends[-1])))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)


@pytest.mark.parametrize(
    ("values", "config"),
    [
        (large([b"x" * 100] * 2000), {}),
        (varied(2000, 300), {}),
        (varied(2000, 300).slice(100, 1500), {}),
        (large(MESSAGES * 100), {}),
        (large([b"x" * 100_000] * 50), {}),  # several stored batches
        (large([b"%d" % n for n in range(2 * MAX_RECORDS + 5)]), {}),  # several chunks of one
        (varied(200_000, 20), {}),
        (large([b"x"] * 2000), {"timestamp_format": "legacy"}),
    ],
)
def test_they_are_the_same_as_those_that_are_read(
    tmp_path: Any, values: pa.LargeBinaryArray, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReferenceLog(tmp_path / "log", LogConfig()) as log:
        partition = log.create_stream("made", 1, StreamConfig(**config)).partitions["0"]
        partition.append([b"before"])
        chunks = Chunks(partition)
        keys = pa.array([b"key"] * len(values), pa.binary())
        partition.append(values, keys, notes=[(b"note", b"of the first")])
        partition.append(values)
        expected = all_of(Chunks(partition), partition)
        reads = reads_of(partition, monkeypatch)
        assert all_of(chunks, partition, 1) == expected[1:]
        assert reads == []
        assert sum(next_offset - first for first, next_offset, *_ in expected) == 2 * len(values) + 1


def all_of(chunks: Chunks, partition: Partition, at: int = 0) -> list[Any]:
    found: list[Any] = []
    while at < partition.next_offset:
        found += [chunk._replace(data=bytes(chunk.data)) for chunk in chunks.run(at, 1000)]
        at = found[-1].next_offset
    return found


def test_small_ones_and_those_of_create_time_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReferenceLog(tmp_path / "log", LogConfig()) as log:
        made = log.create_stream("made", 1, StreamConfig(timestamp_type="create")).partitions["0"]
        other = log.create_stream("other", 1).partitions["0"]
        reads = reads_of(made, monkeypatch)
        for partition, count in ((made, 1000), (other, LARGE_APPEND_RECORDS - 1)):
            chunks = Chunks(partition)
            partition.append(large([b"x"] * count), timestamps=np.arange(count))
            before = len(reads)
            assert sum(c.next_offset - c.first_offset for c in chunks.run(0, 10_000)) == count
            assert len(reads) == before + 1


def test_appends_of_other_threads_while_chunks_are_read(partition: Any, tmp_path: Any) -> None:
    cache = ChunkCache(tmp_path, area_bytes=100_000, areas=2)
    chunks = Chunks(partition, cache)
    values, appends, threads = large([b"%050d" % n for n in range(400)]), 100, 3

    def append() -> None:
        for _ in range(appends):
            partition.append(values)

    running = [threading.Thread(target=append) for _ in range(threads)]
    for thread in running:
        thread.start()
    found, at, end = [], 0, appends * threads * len(values)
    while at < end:
        for chunk in chunks.run(at, 3):
            found.append(chunk.first_offset)
            assert struct.unpack_from(">I", chunk.header, 32) == (zlib.crc32(chunk.data),)
            at = chunk.next_offset
    for thread in running:
        thread.join()
    assert found == list(range(0, end, len(values)))
    chunks.close()
    partition.append(values)
    assert not chunks._blocks


def test_what_retention_removed_is_not_served_from_the_cache(tmp_path: Any) -> None:
    config = StreamConfig(segment_max_bytes=4096, retention_max_bytes=4096)
    with ReferenceLog(tmp_path / "log", LogConfig()) as log:
        partition = log.create_stream("made", 1, config).partitions["0"]
        for _ in range(20):
            partition.append([b"x" * 1000])
        chunks = Chunks(partition)
        assert everything(chunks, 20) == list(range(20))
        partition.enforce_retention()
        assert chunks.run(0, 1)[0].first_offset == partition.first_offset > 0


# --- turns


def test_a_large_backlog_does_not_hold_up_other_connections(door: Any) -> None:
    partition = make(door)
    door.server.call(lambda: [partition.append([b"x" * 100_000] * 5) for _ in range(100)])
    slow, other = door.peer(), door.peer()
    slow.send(0x7, _subscribe("made", 60_000))  # 50 MB, and nobody reads
    time.sleep(0.2)
    assert other.subscribe(1, "made", LAST, 1) == 1
    assert firsts(other, "made") == [495]
    assert _buffered(door) < 20 << 20
    assert sum(each.records for each in delivered(slow, "made")) == 500


def _connections(door: Any) -> list[Any]:
    return list(door.server.server.door("rabbitmq-stream").node.connections)


def _buffered(door: Any) -> int:
    """Return how many bytes wait for a client that does not read, as soon as some do."""

    def buffered() -> int:
        return int(door.server.call(lambda: max(c.outgoing_bytes for c in _connections(door))))

    until(lambda: buffered() > 0)
    return buffered()


def _subscribe(stream: str, credit: int) -> bytes:
    return struct.pack(">IB", 900, 1) + text(stream) + FIRST + struct.pack(">H", credit) + pairs({})


def test_a_stream_that_is_deleted_in_mid_delivery_sets_the_connection_free(door: Any) -> None:
    partition = make(door)
    door.server.call(lambda: [partition.append([b"x" * 100_000] * 5) for _ in range(100)])
    slow, other = door.peer(), door.peer()
    slow.send(0x7, _subscribe("made", 60_000))
    _buffered(door)  # its socket is full, and frames wait
    assert other.delete("made") == 1
    assert slow.ask(0x1C, text("made")).code == 0x02  # StreamStats
    assert list(slow.take(METADATA_UPDATE))
    assert 0 < len(list(slow.take(DELIVER))) < 100


def test_what_ended_leaves_nothing_behind(doors: Callable[..., Any]) -> None:
    door = doors(heartbeat_s=3_600)
    stream, other = door.stream(), door.stream("other")
    peers = [door.peer() for _ in range(3)]
    for number, peer in enumerate(peers):
        for each in (stream, other):
            sac = {"single-active-consumer": "true", "name": "group"} if each == other else {}
            assert peer.subscribe(number if each == stream else number + 10, each, NEXT, 10, sac) == 1
    assert peers[0].ask(0xC, bytes([0])).code == 1  # Unsubscribe
    publish_one(peers[1], stream, b"x")
    peers[1].close()
    assert door.peer().delete(other) == 1
    peers[2].barrier(stream)
    partition, node = door.partition(stream), door.server.server.door("rabbitmq-stream").node
    assert len(node.readers._readers) == 1
    assert len(partition._listeners) == 1
    for peer in peers:
        peer.close()
    deadline = time.monotonic() + 240
    while (node.readers._readers or partition._listeners or len(node.groups)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (node.readers._readers, partition._listeners, len(node.groups)) == ({}, [], 0)
