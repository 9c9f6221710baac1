"""Encoding ahead of a reader: how far, and what is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from spark_streams.log import LogConfig, Partition, ReferenceLog
from spark_streams.server.rabbitmq import chunk_cache
from spark_streams.server.rabbitmq.chunks import BLOCKS_AHEAD, Chunks, Prefetch

APPENDS = 3 * BLOCKS_AHEAD


@pytest.fixture
def partition(tmp_path: Any) -> Iterator[Partition]:
    """A backlog whose blocks are one record each: two do not fit into what is read at once."""
    with ReferenceLog(tmp_path / "log", LogConfig()) as log:
        partition = log.create_stream("made", 1).partitions["0"]
        for _ in range(APPENDS):
            partition.append([b"x" * 600_000])
        yield partition


def settle(loop: asyncio.AbstractEventLoop) -> None:
    for _ in range(2 * APPENDS):
        loop.run_until_complete(asyncio.sleep(0))


def test_it_goes_so_far_and_follows_its_reader(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, loop = Chunks(partition), asyncio.new_event_loop()
    ahead = Prefetch(chunks, loop)
    ahead.from_offset(2)
    settle(loop)
    assert [block.first for block in chunks._blocks] == list(range(2, 2 + BLOCKS_AHEAD))
    ahead.from_offset(5)
    settle(loop)
    assert chunks._blocks[-1].next == 5 + BLOCKS_AHEAD
    monkeypatch.setattr(Partition, "read", None)
    assert [chunks.run(at, 1)[0].first_offset for at in range(5, 5 + BLOCKS_AHEAD)] == list(range(5, 5 + BLOCKS_AHEAD))
    monkeypatch.undo()
    ahead.from_offset(APPENDS - 2)
    settle(loop)
    assert chunks._blocks[-1].next == APPENDS
    ahead.from_offset(0)
    ahead.stop()
    settle(loop)
    assert chunks._blocks[0].first == 2
    loop.close()


def test_where_nothing_is_kept_one_block_is_made(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cache, "FREE_BYTES", 1 << 60)
    chunks, loop = Chunks(partition), asyncio.new_event_loop()
    Prefetch(chunks, loop).from_offset(3)
    settle(loop)
    monkeypatch.setattr(Partition, "read", None)
    assert chunks.run(3, 1)[0].first_offset == 3  # not lost to a later one
    loop.close()


def test_damage_is_left_to_the_delivery_that_meets_it(partition: Partition) -> None:
    segment = partition._segments[0].path
    content = bytearray(segment.read_bytes())
    content[2 * 600_000] ^= 1
    segment.write_bytes(content)
    chunks, loop = Chunks(partition), asyncio.new_event_loop()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    Prefetch(chunks, loop).from_offset(0)
    settle(loop)
    assert [block.first for block in chunks._blocks] == [0]
    assert not faults
    loop.close()
