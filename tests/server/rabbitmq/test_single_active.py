"""Single active consumers: who is active, what a consumer is told, and where it goes on.

Spec: Streams Protocol Reference, ConsumerUpdate; docs/specifications.md, S-141 to S-143.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    CONSUMER_UPDATE,
    CREATE_SUPER_STREAM,
    DELETE_SUPER_STREAM,
    DELIVER,
    FIRST,
    LAST,
    METADATA_UPDATE,
    NEXT,
    RESPONSE,
    UNSUBSCRIBE,
    Frame,
    Peer,
    array,
    chunk,
    offset,
    pairs,
    text,
    timestamp,
)
from tests.server.rabbitmq.consuming import (
    chunks_of_three,
    delivered,
    firsts,
    grant,
    publish_one,
    refused_credit,
)

NONE = struct.pack(">H", 0)


def group(name: str = "group", **more: str) -> dict[str, str]:
    return {"single-active-consumer": "true", "name": name, **more}


def update(peer: Peer) -> tuple[int, int, Frame]:
    """Wait for a ConsumerUpdate; return subscription id, active, and the frame."""
    frame = peer.expect(CONSUMER_UPDATE)
    subscription, active = frame.body
    return subscription, active, frame


def reply(peer: Peer, frame: Frame, start: bytes = NONE, code: int = 1) -> None:
    peer.send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IH", frame.correlation, code) + start)


def activated(peer: Peer, subscription: int = 1, start: bytes = NONE) -> None:
    """Wait for the update that makes a subscription the active one, and agree."""
    number, active, frame = update(peer)
    assert (number, active) == (subscription, 1)
    reply(peer, frame, start)


def quiet(peer: Peer, stream: str) -> bool:
    """Whether neither a delivery nor an update came before an answer."""
    deliveries = peer.barrier(stream)
    return not deliveries and not list(peer.take(CONSUMER_UPDATE))


def settled(peer: Peer, stream: str) -> None:
    """Wait until what another connection did, and this one is told of, has had its time: only where nothing is due."""
    time.sleep(0.1)
    peer.barrier(stream)


def test_the_first_member_is_asked_and_nothing_comes_before_its_answer(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    number, active, frame = update(peer)
    assert (number, active, frame.correlation) == (1, 1, 0)
    assert firsts(peer, stream) == []
    reply(peer, frame)
    assert firsts(peer, stream) == [0, 3, 6]


@pytest.mark.parametrize(
    ("subscribed", "answered", "expected"),
    [
        (FIRST, NONE, [0, 3, 6]),
        (LAST, NONE, [6]),
        (offset(4), NONE, [3, 6]),
        (FIRST, offset(4), [3, 6]),
        (FIRST, LAST, [6]),
        (FIRST, NEXT, []),
        (NEXT, FIRST, [0, 3, 6]),
        (NEXT, timestamp(0), [0, 3, 6]),
        (FIRST, NONE + bytes(8), [0, 3, 6]),  # as rstream does it
    ],
)
def test_the_answer_says_where_to_start(broker: Any, subscribed: bytes, answered: bytes, expected: list[int]) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    assert peer.subscribe(1, stream, subscribed, 10, group()) == 1
    activated(peer, start=answered)
    assert firsts(peer, stream) == expected


def test_an_answer_with_another_code_counts(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    publish_one(peer, stream, b"x")
    assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    reply(peer, update(peer)[2], code=2)
    assert firsts(peer, stream) == [0]


def test_an_answer_that_nobody_asked_for_is_ignored(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    publish_one(peer, stream, b"x")
    peer.send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IH", 77, 1) + offset(0))
    assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    peer.send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IH", 77, 1) + offset(0))
    assert firsts(peer, stream) == []
    activated(peer)
    assert firsts(peer, stream) == [0]


def test_others_wait_and_take_over_in_their_order(broker: Any) -> None:
    stream, peers = broker.stream(), [broker.peer() for _ in range(3)]
    chunks_of_three(peers[0], stream)
    for peer in peers:
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    activated(peers[0])
    assert firsts(peers[0], stream) == [0, 3, 6]
    assert quiet(peers[1], stream)
    assert quiet(peers[2], stream)
    assert peers[0].ask(UNSUBSCRIBE, bytes([1])).code == 1
    activated(peers[1], start=offset(6))
    assert firsts(peers[1], stream) == [6]
    assert quiet(peers[2], stream)
    peers[1].close()  # without a word
    activated(peers[2], start=offset(9))
    publish_one(peers[2], stream, b"new")
    assert firsts(peers[2], stream) == [9]


def test_a_member_that_leaves_before_its_turn_is_not_missed(broker: Any) -> None:
    stream, first, second, third = broker.stream(), broker.peer(), broker.peer(), broker.peer()
    for peer in (first, second, third):
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    activated(first)
    assert second.ask(UNSUBSCRIBE, bytes([1])).code == 1
    first.close()
    activated(third)
    assert quiet(second, stream)


def test_the_active_one_may_leave_before_it_answers(broker: Any) -> None:
    stream, first, second = broker.stream(), broker.peer(), broker.peer()
    for peer in (first, second):
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    update(first)
    first.close()
    activated(second)


def test_members_may_share_a_connection(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    publish_one(peer, stream, b"x")
    for number in (1, 2):
        assert peer.subscribe(number, stream, FIRST, 10, group()) == 1
    activated(peer, 1)
    assert [each.subscription for each in delivered(peer, stream)] == [1]
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 1
    activated(peer, 2)
    assert [each.subscription for each in delivered(peer, stream)] == [2]


def test_groups_of_other_names_and_plain_consumers_are_apart(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    publish_one(peer, stream, b"x")
    assert peer.subscribe(1, stream, FIRST, 10, group("one")) == 1
    assert peer.subscribe(2, stream, FIRST, 10, group("two")) == 1
    assert peer.subscribe(3, stream, FIRST, 10, {"name": "one"}) == 1
    assert peer.subscribe(4, stream, FIRST, 10, {"single-active-consumer": "TRUE", "name": "one"}) == 1
    activated(peer, 1)
    activated(peer, 2)
    assert sorted(each.subscription for each in delivered(peer, stream)) == [1, 2, 3, 4]


def test_credit_of_an_inactive_consumer_is_refused_and_kept(broker: Any) -> None:
    stream, first, second = broker.stream(), broker.peer(), broker.peer()
    chunks_of_three(first, stream)
    assert first.subscribe(1, stream, FIRST, 1, group()) == 1
    assert second.subscribe(1, stream, FIRST, 1, group()) == 1
    activated(first)
    assert refused_credit(second, 1, 1) == (0x11, 1)
    assert first.ask(UNSUBSCRIBE, bytes([1])).code == 1
    activated(second)
    assert firsts(second, stream) == [0, 3]
    grant(second, 1, 1)
    assert firsts(second, stream) == [6]


def test_filters_hold_for_the_active_one(broker: Any) -> None:
    from tests.server.rabbitmq.consuming import publish_filtered

    stream, peer = broker.stream(), broker.peer()
    for value in ("apple", "pear"):
        publish_filtered(peer, stream, value, b"x")
    assert peer.subscribe(1, stream, FIRST, 10, group(**{"filter.0": "pear"})) == 1
    activated(peer)
    assert firsts(peer, stream) == [1]


# --- super streams


@pytest.fixture
def partitions(broker: Any) -> Any:
    """The name of a super stream with three partitions."""
    name, peer = f"{broker.prefix}-super", broker.peer()
    names = [f"{name}-{number}" for number in range(3)]
    keys = [str(number) for number in range(3)]
    body = text(name) + array([text(each) for each in names]) + array([text(each) for each in keys]) + pairs({})
    assert peer.ask(CREATE_SUPER_STREAM, body).code == 1
    yield name
    peer = broker.peer()
    peer.ask(DELETE_SUPER_STREAM, text(name))


def subscribe_all(peer: Peer, name: str) -> None:
    for number in range(3):
        properties = group(**{"super-stream": name})
        assert peer.subscribe(number, f"{name}-{number}", FIRST, 10, properties) == 1


def test_partitions_are_shared_by_index_modulo_members(broker: Any, partitions: str) -> None:
    first, second = broker.peer(), broker.peer()
    for number in range(3):
        publish_one(first, f"{partitions}-{number}", b"%d" % number)
    subscribe_all(first, partitions)
    for number in range(3):
        activated(first, number)
    assert sorted(each.subscription for each in delivered(first, f"{partitions}-0")) == [0, 1, 2]

    subscribe_all(second, partitions)
    number, active, stepping_down = update(first)
    assert (number, active) == (1, 0)
    settled(second, f"{partitions}-0")
    assert quiet(second, f"{partitions}-0")  # nobody is told before the other one has answered
    publish_one(broker.peer(), f"{partitions}-1", b"between")
    assert quiet(first, f"{partitions}-0")  # it does not deliver any more
    reply(first, stepping_down)
    activated(second, 1, offset(1))
    found = chunk(second.expect(DELIVER))
    assert (found.subscription, found.first) == (1, 1)

    second.close()
    activated(first, 1, offset(1))
    found = chunk(first.expect(DELIVER))
    assert (found.subscription, found.first) == (1, 1)


def test_a_third_member_moves_what_the_modulo_says(broker: Any, partitions: str) -> None:
    peers = [broker.peer() for _ in range(3)]
    subscribe_all(peers[0], partitions)
    for number in range(3):
        activated(peers[0], number)
    subscribe_all(peers[1], partitions)
    number, active, frame = update(peers[0])
    assert (number, active) == (1, 0)
    reply(peers[0], frame)
    activated(peers[1], 1)
    subscribe_all(peers[2], partitions)  # 0 % 3, 1 % 3, 2 % 3: only partition 2 moves
    number, active, frame = update(peers[0])
    assert (number, active) == (2, 0)
    reply(peers[0], frame)
    activated(peers[2], 2)
    for peer in peers:
        assert quiet(peer, f"{partitions}-0")


def test_one_that_is_lost_while_it_steps_down_is_replaced(broker: Any, partitions: str) -> None:
    first, second = broker.peer(), broker.peer()
    subscribe_all(first, partitions)
    for number in range(3):
        activated(first, number)
    subscribe_all(second, partitions)
    assert update(first)[:2] == (1, 0)
    first.close()
    told = sorted(update(second)[:2] for _ in range(3))
    assert told == [(0, 1), (1, 1), (2, 1)]


def test_a_partition_without_the_super_stream_is_a_group_like_any(broker: Any, partitions: str) -> None:
    stream, first, second = f"{partitions}-1", broker.peer(), broker.peer()
    for peer in (first, second):
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    activated(first)
    assert quiet(second, stream)


@pytest.mark.parametrize("wrong", ["nothing", "another"])
def test_a_super_stream_that_is_not_its_own_does_not_count(broker: Any, partitions: str, wrong: str) -> None:
    stream = f"{partitions}-1"
    if wrong == "another":
        wrong = broker.stream("another")
    first, second = broker.peer(), broker.peer()
    for peer in (first, second):
        assert peer.subscribe(1, stream, FIRST, 10, group(**{"super-stream": wrong})) == 1
    activated(first)  # partition 1 of its own super stream would go to the second one
    assert quiet(second, stream)
    assert quiet(first, stream)


def test_a_name_is_needed_and_may_be_empty(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST, 10, {"single-active-consumer": "true"}) == 0x11
    assert peer.subscribe(1, stream, FIRST, 10, group("")) == 1
    activated(peer)


def test_members_that_disagree_about_the_partition_do_not_go_together(broker: Any, partitions: str) -> None:
    stream, peer = f"{partitions}-2", broker.peer()
    assert peer.subscribe(1, stream, FIRST, 10, group(**{"super-stream": partitions})) == 1
    assert peer.subscribe(2, stream, FIRST, 10, group()) == 0x11
    assert peer.subscribe(3, stream, FIRST, 10, group("another")) == 1


def test_members_of_a_deleted_stream_hear_of_that_and_of_nothing_else(broker: Any) -> None:
    stream, first, second = broker.stream(), broker.peer(), broker.peer()
    for peer in (first, second):
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    activated(first)
    assert broker.peer().delete(stream) == 1
    for peer in (first, second):
        while peer.read().key != METADATA_UPDATE:
            raise AssertionError("something else came")
        assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 0x04


# --- the door's own


def test_an_answer_without_a_type_ends_the_connection(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    frame = update(peer)[2]
    peer.send(CONSUMER_UPDATE | RESPONSE, struct.pack(">IH", frame.correlation, 1))
    close = peer.expect(0x16)
    assert struct.unpack_from(">H", close.body)[0] == 0x0D


def test_a_consumer_that_does_not_answer_loses_its_connection(doors: Callable[..., Any]) -> None:
    door = doors(consumer_update_timeout_ms=5_000)
    stream, silent, next_one = door.stream(), door.peer(), door.peer()
    publish_one(silent, stream, b"x")
    for peer in (silent, next_one):
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
    update(silent)
    activated(next_one)  # which is told after the other one's connection has ended
    assert firsts(next_one, stream) == [0]
    with pytest.raises(EOFError):
        silent.expect(DELIVER)


def test_a_door_that_does_not_know_the_command_delivers_to_all(doors: Callable[..., Any]) -> None:
    """As RabbitMQ before 3.11 does."""
    door = doors(without=frozenset({CONSUMER_UPDATE}))
    stream, first, second = door.stream(), door.peer(), door.peer()
    publish_one(first, stream, b"x")
    for peer in (first, second):
        assert peer.subscribe(1, stream, FIRST, 10, group()) == 1
        assert firsts(peer, stream) == [0]


def test_groups_leave_nothing_behind(doors: Callable[..., Any]) -> None:
    door = doors(heartbeat_s=3_600)
    stream, peer = door.stream(), door.peer()
    for number in range(3):
        assert peer.subscribe(number, stream, FIRST, 10, group(f"group-{number}")) == 1
        activated(peer, number)
    groups = door.server.server.door("rabbitmq-stream").node.groups

    def count() -> int:
        return int(door.server.call(lambda: len(groups)))

    assert count() == 3
    assert peer.ask(UNSUBSCRIBE, bytes([0])).code == 1
    assert count() == 2
    peer.close()
    deadline = time.monotonic() + 240
    while count() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count() == 0
