"""What the client assumes of a broker, asked of a real one with frames packed by hand."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest

from tests.real_rabbitmq.by_hand import (
    CREDIT,
    FIRST,
    LAST,
    QUERY_OFFSET,
    QUERY_PUBLISHER_SEQUENCE,
    STORE_OFFSET,
    Peer,
    chunk,
    data,
    offset,
    plain,
    sub_batch,
    text,
    timestamp,
)

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def stream(rabbitmq_url: str) -> Iterator[str]:
    name = f"assumptions-{secrets.token_hex(4)}"
    peer = open_peer(rabbitmq_url)
    assert peer.create(name) == 1
    yield name
    open_peer(rabbitmq_url).delete(name)


def open_peer(url: str) -> Peer:
    return Peer(url).open(versions=())


def write(peer: Peer, stream: str, chunks: int, records: int = 1) -> None:
    """Write ``chunks`` chunks, each confirmed before the next is sent, of at least one record each."""
    peer.declare(1, stream)
    for number in range(chunks):
        peer.publish(1, [plain(number * records + each, b"%d" % number) for each in range(records)])
        peer.confirmed(records)


def offsets_from(url: str, stream: str, start: bytes, properties: dict[str, str] | None = None) -> list[int]:
    """Return the first offsets of the chunks that a subscription gets before the answer to the next request."""
    peer = open_peer(url)
    assert peer.subscribe(1, stream, start, 1000, properties) == 1
    return [chunk(frame).first for frame in peer.barrier(stream)]


@pytest.mark.parametrize("credit", [1, 2, 10, 500])
def test_all_that_credit_allows_comes_before_the_next_answer(rabbitmq_url: str, stream: str, credit: int) -> None:
    peer = open_peer(rabbitmq_url)
    write(peer, stream, 60)
    seen: list[int] = []
    reader = open_peer(rabbitmq_url)
    assert reader.subscribe(1, stream, FIRST, credit) == 1
    while got := reader.barrier(stream):
        assert len(got) <= credit
        assert len(got) == credit or chunk(got[-1]).first == 59
        seen += [chunk(frame).first for frame in got]
        reader.send(CREDIT, bytes([1]) + len(got).to_bytes(2, "big"))
    assert seen == list(range(60))


@pytest.mark.parametrize("start", [FIRST, LAST, offset(0), offset(7), timestamp(0)])
def test_an_empty_stream_delivers_nothing_from_anywhere(rabbitmq_url: str, stream: str, start: bytes) -> None:
    assert offsets_from(rabbitmq_url, stream, start) == []


def test_an_offset_starts_with_the_chunk_that_holds_it(rabbitmq_url: str, stream: str) -> None:
    write(open_peer(rabbitmq_url), stream, 4, records=5)
    begins = offsets_from(rabbitmq_url, stream, FIRST)
    for wanted in range(20):
        assert offsets_from(rabbitmq_url, stream, offset(wanted))[0] == max(each for each in begins if each <= wanted)
    assert offsets_from(rabbitmq_url, stream, offset(20)) == []


def test_a_time_starts_with_the_first_chunk_not_before_it(rabbitmq_url: str, stream: str) -> None:
    peer = open_peer(rabbitmq_url)
    for _ in range(3):
        write(peer, stream, 1)
        time.sleep(0.01)  # chunks of different milliseconds
    reader = open_peer(rabbitmq_url)
    reader.subscribe(1, stream, FIRST, 10)
    times = [chunk(frame).timestamp for frame in reader.barrier(stream)]
    assert times[0] < times[1] < times[2]
    assert offsets_from(rabbitmq_url, stream, timestamp(times[1])) == [1, 2]
    assert offsets_from(rabbitmq_url, stream, timestamp(times[1] + 1)) == [2]
    assert offsets_from(rabbitmq_url, stream, timestamp(times[2] + 1)) == []
    assert offsets_from(rabbitmq_url, stream, timestamp(-386380800000)) == [0, 1, 2]


def test_a_stored_offset_takes_up_an_offset(rabbitmq_url: str, stream: str) -> None:
    peer = open_peer(rabbitmq_url)
    write(peer, stream, 1)
    store(peer, stream, 0)
    write(peer, stream, 1)
    assert offsets_from(rabbitmq_url, stream, FIRST) == [0, 2]
    assert offsets_from(rabbitmq_url, stream, FIRST, {"chunk_selector": "all"}) == [0, 1, 2]
    store(peer, stream, 2)
    assert offsets_from(rabbitmq_url, stream, LAST) == [2]
    assert offsets_from(rabbitmq_url, stream, offset(3)) == []


def store(peer: Peer, stream: str, value: int) -> None:
    """Store an offset and wait until the broker tells it."""
    peer.send(STORE_OFFSET, text("reader") + text(stream) + value.to_bytes(8, "big"))
    deadline = time.monotonic() + 240
    while peer.ask(QUERY_OFFSET, text("reader") + text(stream)).body != b"\0\1" + value.to_bytes(8, "big"):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("high", [0, 2**63], ids=["small ids", "ids beyond 2^63"])
def test_publishing_ids_are_unsigned_and_deduplicate_sub_batches_too(rabbitmq_url: str, stream: str, high: int) -> None:
    peer = open_peer(rabbitmq_url)
    assert peer.declare(1, stream, "writer") == 1
    two = data(b"a") + data(b"bc")
    for number in (7, 7, 6, 8):
        peer.publish(1, [sub_batch(high + number, 0, 2, len(two), two)])
        assert peer.confirmed(1) == [high + number]
    peer.publish(1, [plain(high + 8, b"again"), plain(high + 9, b"new")])
    assert sorted(peer.confirmed(2)) == [high + 8, high + 9]
    answer = peer.ask(QUERY_PUBLISHER_SEQUENCE, text("writer") + text(stream))
    assert answer.body == b"\0\1" + (high + 9).to_bytes(8, "big")
    reader = open_peer(rabbitmq_url)
    reader.subscribe(1, stream, FIRST)
    chunks = [chunk(frame) for frame in reader.barrier(stream)]
    assert sum(each.records for each in chunks) == 5
    assert all(len(each.rest) == each.data_length for each in chunks)  # the trailers that chunks name are not sent
    assert any(each.trailer_length for each in chunks)
