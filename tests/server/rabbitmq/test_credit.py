"""Credit: one a chunk, answered only when it is refused, read as a signed number; a broker's reluctance to begin.

Spec: Streams Protocol Reference, Credit; docs/specifications.md, S-71 to S-73.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import CREDIT, FIRST, NEXT, RESPONSE, UNSUBSCRIBE
from tests.server.rabbitmq.consuming import (
    chunks_of_three,
    delivered,
    firsts,
    grant,
    publish_one,
    refused_credit,
)


def ones(peer: Any, stream: str, count: int) -> None:
    for number in range(count):
        publish_one(peer, stream, b"%d" % number)


def test_a_credit_is_one_chunk_whatever_it_holds(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    chunks_of_three(peer, stream)
    assert peer.subscribe(1, stream, FIRST, 1) == 1
    assert firsts(peer, stream) == [0]
    assert firsts(peer, stream) == []
    grant(peer, 1, 1)
    assert firsts(peer, stream) == [3]
    grant(peer, 1, 5)
    assert firsts(peer, stream) == [6]


def test_unused_credit_is_kept_for_what_comes_later(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, NEXT, 1) == 1
    grant(peer, 1, 2)
    ones(peer, stream, 5)
    assert firsts(peer, stream) == [0, 1, 2]


def test_a_subscription_may_begin_without_credit(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    ones(peer, stream, 2)
    assert peer.subscribe(1, stream, FIRST, 0) == 1
    assert firsts(peer, stream) == []
    grant(peer, 1, 1)
    assert firsts(peer, stream) == [0]


def test_the_initial_credit_is_unsigned(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    ones(peer, stream, 3)
    assert peer.subscribe(1, stream, FIRST, 65_535) == 1
    assert firsts(peer, stream) == [0, 1, 2]


def test_a_credit_above_32767_is_negative(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    ones(peer, stream, 3)
    assert peer.subscribe(1, stream, FIRST, 0) == 1
    grant(peer, 1, 65_535)
    assert firsts(peer, stream) == []
    grant(peer, 1, 3)
    assert firsts(peer, stream) == [0, 1]


def test_credit_is_not_answered(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST, 1) == 1
    grant(peer, 1, 0)
    grant(peer, 1, 7)
    peer.barrier(stream)
    assert list(peer.take(CREDIT | RESPONSE)) == []


def test_credit_for_no_subscription_is_refused(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert refused_credit(peer, 9) == (0x04, 9)
    assert peer.subscribe(9, stream, FIRST, 1) == 1
    assert peer.ask(UNSUBSCRIBE, bytes([9])).code == 1
    assert refused_credit(peer, 9) == (0x04, 9)
    assert firsts(peer, stream) == []


def reluctant(peer: Any, stream: str) -> None:
    """With an initial credit of 10, nothing begins while 5 or less are left; once begun, all are used."""
    ones(peer, stream, 40)
    assert peer.subscribe(1, stream, FIRST, 10) == 1
    assert firsts(peer, stream) == list(range(10))
    for _ in range(5):
        grant(peer, 1, 1)
        assert firsts(peer, stream) == []
    grant(peer, 1, 1)
    assert firsts(peer, stream) == list(range(10, 16))
    assert peer.subscribe(2, stream, FIRST, 1) == 1
    assert firsts(peer, stream) == [0]
    grant(peer, 2, 1)
    assert firsts(peer, stream) == [1]


@pytest.mark.rabbitmq
@pytest.mark.parametrize("broker", ["real"], indirect=True)
def test_a_broker_begins_only_above_half_of_the_initial_credit(broker: Any) -> None:
    reluctant(broker.peer(), broker.stream())


def test_the_door_can_be_told_to_be_as_reluctant(doors: Callable[..., Any]) -> None:
    door = doors(half_credit=True)
    reluctant(door.peer(), door.stream())


def test_the_door_gives_one_chunk_for_one_credit(door: Any) -> None:
    stream, peer = door.stream(), door.peer()
    ones(peer, stream, 20)
    assert peer.subscribe(1, stream, FIRST, 10) == 1
    assert firsts(peer, stream) == list(range(10))
    for number in range(10, 20):
        grant(peer, 1, 1)
        assert firsts(peer, stream) == [number]


def test_a_reluctant_door_waits_with_new_chunks_too(doors: Callable[..., Any]) -> None:
    door = doors(half_credit=True)
    stream, peer = door.stream(), door.peer()
    assert peer.subscribe(1, stream, FIRST, 4) == 1
    ones(peer, stream, 4)
    assert firsts(peer, stream) == [0, 1]  # then two are left, which is half
    grant(peer, 1, 1)
    assert firsts(peer, stream) == [2, 3]


def test_credit_of_one_connection_is_not_anothers(broker: Any) -> None:
    stream, first, second = broker.stream(), broker.peer(), broker.peer()
    ones(first, stream, 2)
    assert first.subscribe(1, stream, FIRST, 1) == 1
    assert second.subscribe(1, stream, FIRST, 0) == 1
    grant(second, 1, 2)
    assert [each.first for each in delivered(second, stream)] == [0, 1]
    assert [each.first for each in delivered(first, stream)] == [0]
