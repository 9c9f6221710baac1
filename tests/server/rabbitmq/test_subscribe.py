"""Subscribe on the door and on a real broker: where deliveries start, what they are, and when they come.

Spec: Streams Protocol Reference, Subscribe, Deliver; docs/specifications.md, S-24,
S-31 to S-37, S-61 to S-65, S-81.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    DELIVER,
    FIRST,
    LAST,
    METADATA,
    NEXT,
    RESPONSE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    array,
    chunk,
    filtered,
    offset,
    pairs,
    plain,
    text,
    timestamp,
)
from tests.server.rabbitmq.consuming import (
    chunks_of_three,
    delivered,
    firsts,
    grant,
    publish_chunk,
    publish_one,
    records,
)

EVERYTHING, NOTHING = [0, 3, 6], []


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param(FIRST, EVERYTHING, id="first"),
        pytest.param(LAST, [6], id="last"),
        pytest.param(NEXT, NOTHING, id="next"),
        pytest.param(offset(0), EVERYTHING, id="offset-0"),
        pytest.param(offset(2), EVERYTHING, id="last-of-a-chunk"),
        pytest.param(offset(3), [3, 6], id="first-of-a-chunk"),
        pytest.param(offset(4), [3, 6], id="inside-of-a-chunk"),
        pytest.param(offset(8), [6], id="last-offset"),
        pytest.param(offset(9), NOTHING, id="next-offset"),
        pytest.param(offset(10), NOTHING, id="beyond-next"),
        pytest.param(offset(2**63), NOTHING, id="beyond-int64"),
        pytest.param(offset(2**64 - 1), NOTHING, id="largest-offset"),
        pytest.param(timestamp(0), EVERYTHING, id="before-the-first"),
        pytest.param(timestamp(-1), EVERYTHING, id="negative"),
        pytest.param(timestamp(-(2**63)), EVERYTHING, id="least-timestamp"),
        pytest.param(timestamp(2**60), NOTHING, id="future"),
    ],
)
def test_offset_specifications(broker: Any, start: bytes, expected: list[int]) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    assert peer.subscribe(1, stream, start) == 1
    assert firsts(peer, stream) == expected
    publish_one(peer, stream, b"new")
    assert firsts(peer, stream) == [9]


def test_timestamps_mean_the_first_chunk_that_is_not_earlier(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    times = chunks_of_three(peer, stream)
    asked = {times[0] - 1: [0, 3, 6], times[0]: [0, 3, 6], times[1]: [3, 6], times[1] + 1: [6], times[2]: [6]}
    asked[times[2] + 1] = []
    for number, (instant, expected) in enumerate(asked.items()):
        assert peer.subscribe(number, stream, timestamp(instant)) == 1
        assert firsts(peer, stream) == expected


@pytest.mark.parametrize("start", [FIRST, LAST, NEXT, offset(0), offset(7), timestamp(0), timestamp(2**60)])
def test_an_empty_stream_has_its_first_chunk_as_the_next(broker: Any, start: bytes) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, start) == 1
    assert firsts(peer, stream) == []
    publish_one(peer, stream, b"first")
    (only,) = delivered(peer, stream)
    assert (only.first, records(only)) == (0, [b"first"])


def test_a_chunk_is_delivered_whole_without_bloom_and_trailer(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    before_ms = int(time.time() * 1000) - 1000
    publish_chunk(peer, stream, [b"", b"a", b"bc" * 100])
    assert peer.subscribe(7, stream, offset(1)) == 1
    (only,) = delivered(peer, stream)
    assert (only.subscription, only.type, only.first, only.records) == (7, 0, 0, 3)
    assert records(only) == [b"", b"a", b"bc" * 100]
    assert only.epoch == 1
    assert only.data_length == len(only.rest)
    assert only.crc == zlib.crc32(only.rest)
    assert before_ms < only.timestamp < before_ms + 60_000


@pytest.mark.parametrize("count", [1, 200])
def test_a_chunk_tells_the_size_of_the_trailer_and_bloom_filter_that_it_comes_without(broker: Any, count: int) -> None:
    """The trailer has the last id of each publisher that has a reference."""
    stream, peer = broker.stream(), broker.peer()
    found = []
    for number, (reference, value) in enumerate((("", None), ("tést", None), ("ref", "pear"))):
        assert peer.declare(number, stream, reference) == 1
        peer.publish(number, [filtered(1 + n, value, b"x") for n in range(count)], version=2)
        peer.confirmed(count)
        assert peer.subscribe(number, stream, offset(number * count), 100) == 1
        chunks = delivered(peer, stream)
        assert all(each.rest and len(each.rest) == each.data_length for each in chunks)
        found.append({(each.trailer_length, each.bloom_size) for each in chunks})
        peer.ask(UNSUBSCRIBE, bytes([number]))
    assert found == [{(0, 0)}, {(10 + 5, 0)}, {(10 + 3, 16)}]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ((), 1),
        (((DELIVER, 1, 1),), 1),
        (((DELIVER, 1, 2),), 2),
        (((DELIVER, 2, 2),), 2),
        (((DELIVER, 1, 3),), 1),
    ],
)
def test_deliver_2_is_sent_to_those_who_ask_for_exactly_that(broker: Any, versions: Any, expected: int) -> None:
    stream = broker.stream()
    peer = broker.peer(versions=versions)
    chunks_of_three(broker.peer(), stream)
    assert peer.subscribe(1, stream, FIRST) == 1
    frames = peer.barrier(stream)
    assert [frame.version for frame in frames] == [expected] * 3
    assert [chunk(frame).committed for frame in frames] == [6 if expected == 2 else None] * 3


def test_the_answer_comes_before_the_first_delivery(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    seen = len(peer.received)
    assert peer.subscribe(1, stream, FIRST) == 1
    peer.barrier(stream)
    keys = [struct.unpack_from(">H", raw, 4)[0] for raw in peer.received[seen:]]
    assert keys == [SUBSCRIBE | RESPONSE, DELIVER, DELIVER, DELIVER, METADATA | RESPONSE]


@pytest.mark.parametrize("credit", [1, 2, 10, 50, 500])
def test_all_deliveries_come_before_the_answer_of_the_next_request(broker: Any, credit: int) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.declare(1, stream) == 1
    for number in range(60):
        peer.publish(1, [plain(number, b"x")])
        peer.confirmed(1)
    body = bytes([1]) + text(stream) + FIRST + struct.pack(">H", credit) + pairs({})
    peer.send(SUBSCRIBE, struct.pack(">I", 900) + body)
    peer.send(METADATA, struct.pack(">I", 901) + array([text(stream)]))
    offsets = []
    while (frame := peer.read()).key != METADATA | RESPONSE:
        if frame.key == DELIVER:
            offsets.append(chunk(frame).first)
    assert offsets == list(range(min(credit, 60)))


def test_a_client_that_does_not_read_gets_its_answer_after_all_deliveries(broker: Any) -> None:
    stream, peer, publisher = broker.stream(), broker.peer(), broker.peer()
    message = b"m" * 500_000
    for _ in range(40):
        publish_one(publisher, stream, message)
    body = bytes([1]) + text(stream) + FIRST + struct.pack(">H", 500) + pairs({})
    peer.send(SUBSCRIBE, struct.pack(">I", 900) + body)
    peer.send(METADATA, struct.pack(">I", 901) + array([text(stream)]))
    time.sleep(0.3)  # the broker fills all buffers meanwhile, and has to wait with what is left
    count = 0
    while (frame := peer.read()).key != METADATA | RESPONSE:
        count += chunk(frame).records if frame.key == DELIVER else 0
    assert count == 40


def test_several_subscriptions_stand_on_their_own(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    assert peer.subscribe(0, stream, FIRST, 1) == 1
    assert peer.subscribe(255, stream, LAST, 1) == 1
    found = [(each.subscription, each.first) for each in delivered(peer, stream)]
    assert found == [(0, 0), (255, 6)]
    grant(peer, 0, 1)
    assert [(each.subscription, each.first) for each in delivered(peer, stream)] == [(0, 3)]


def test_after_unsubscribe_nothing_comes_and_the_id_is_free(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST) == 1
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 1
    publish_one(peer, stream, b"x")
    assert firsts(peer, stream) == []
    assert peer.subscribe(1, stream, FIRST) == 1
    assert firsts(peer, stream) == [0]


def test_the_undocumented_chunk_selector_is_taken(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    assert peer.subscribe(1, stream, FIRST, 10, {"chunk_selector": "all"}) == 1
    assert firsts(peer, stream) == [0, 3, 6]


def test_properties_may_be_absent_empty_or_unknown(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    publish_one(peer, stream, b"x")
    for number, properties in enumerate((None, {}, {"name": "n", "what": "ever"})):
        assert peer.subscribe(number, stream, FIRST, 1, properties) == 1
    assert [each.subscription for each in delivered(peer, stream)] == [0, 1, 2]


def test_live_consumers_are_woken_in_order(broker: Any) -> None:
    stream, publisher = broker.stream(), broker.peer()
    peers = [broker.peer() for _ in range(3)]
    for peer in peers:
        assert peer.subscribe(1, stream, NEXT, 100) == 1
    for number in range(20):
        publish_one(publisher, stream, b"%d" % number)
    for peer in peers:
        found = [chunk(peer.expect(DELIVER)) for _ in range(20)]
        assert [each.first for each in found] == list(range(20))
        assert [records(each) for each in found] == [[b"%d" % number] for number in range(20)]
