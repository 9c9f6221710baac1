"""A peer that is busy, as Event Hubs that throttle: what it rejects for it is sent again, everything else fails."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import proton
import pytest

from spark_streams.client import AmqpClient
from spark_streams.client.amqp.publisher import Publisher
from spark_streams.client.retry import retries
from spark_streams.endpoint import Endpoint
from spark_streams.errors import DeadlineExceeded, DeliveryFailed
from spark_streams.wire.amqp.dialects import EVENT_HUBS, RABBITMQ, Dialect
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.client.amqp.test_publisher import payloads

BUSY = proton.Condition("com.microsoft:server-busy", "the namespace is throttled")
QUICK = replace(EVENT_HUBS, conditions=EVENT_HUBS.conditions._replace(busy=((BUSY.name, 0.02),)), batch_format=None)
"""Single messages; test_busy_with_batches.py is about batches."""


@pytest.fixture
def peer() -> Iterator[FakePeer]:
    with FakePeer(Script(sender_credit=60)) as served:
        yield served


def publisher(peer: FakePeer, dialect: Dialect = QUICK, timeout_ms: int = 120_000) -> tuple[AmqpClient, Publisher]:
    client = AmqpClient(Endpoint("amqp", "127.0.0.1", peer.port), timeout_ms=120_000, dialect=dialect)
    client._timeout_ms = timeout_ms
    return client, client.publisher("orders")


def numbers(peer: FakePeer) -> list[int]:
    return [int(body.split(b":")[0]) for body in peer.received]


def test_what_was_rejected_is_sent_again_and_nothing_else(peer: FakePeer) -> None:
    chance = random.Random(7)
    denied: Counter[int] = Counter()

    def busy(received: int) -> Any:
        if chance.random() < 0.2:
            denied[numbers(peer)[received]] += 1
            return BUSY
        return None

    peer.script.deny_outcome = busy
    client, link = publisher(peer)
    with client:
        for first in range(0, 900, 300):
            link.send(payloads(first, 300), lambda row: f"row {row}")
        link.flush()
        assert denied and Counter(numbers(peer)) == {n: 1 + denied[n] for n in range(900)}


def test_messages_of_many_frames_are_sent_again_too(peer: FakePeer) -> None:
    def outcome(received: int) -> Any:
        number = numbers(peer)[received]
        return BUSY if number in (1, 2) and numbers(peer)[: received + 1].count(number) == 1 else None

    peer.script.deny_outcome = outcome
    client, link = publisher(peer)
    before = retries()
    with client:
        link.send(payloads(0, 4, 300_000), str)
        link.flush()
    assert retries() - before in (1, 2), "both messages together, or one after the other"
    # In which order depends on whether the first outcome comes before the last message has gone.
    assert sorted(numbers(peer)) == [0, 1, 1, 2, 2, 3]


def test_the_row_that_is_refused_for_another_reason_is_named(peer: FakePeer) -> None:
    def outcome(received: int) -> Any:
        number = numbers(peer)[received]
        if number == 150 and numbers(peer).count(150) == 2:
            return proton.Condition("amqp:not-allowed", "no")
        return BUSY if number in (3, 150) and numbers(peer).count(number) == 1 else None

    peer.script.deny_outcome = outcome
    client, link = publisher(peer)
    with client, pytest.raises(DeliveryFailed, match=r"row 50 of the second was rejected .* amqp:not-allowed"):
        link.send(payloads(0, 100), lambda row: f"row {row} of the first")
        link.send(payloads(100, 100), lambda row: f"row {row} of the second")
        link.flush()


def test_a_peer_that_stays_busy_is_told(peer: FakePeer) -> None:
    peer.script.deny_outcome = lambda received: BUSY
    client, link = publisher(peer, timeout_ms=300)
    with client, pytest.raises(DeadlineExceeded, match=r"the peer is busy: com\.microsoft:server-busy"):
        link.send(payloads(0, 20), str)
        link.flush()


def test_pauses_are_the_services_own(peer: FakePeer) -> None:
    peer.script.deny_outcome = lambda received: BUSY if received == 0 else None
    waits = replace(QUICK, conditions=QUICK.conditions._replace(busy=((BUSY.name, 0.3),)))
    client, link = publisher(peer, waits)
    with client:
        began = time.monotonic()
        link.send(payloads(0, 1), str)
        link.flush()
        assert time.monotonic() - began >= 0.3
    assert dict(EVENT_HUBS.conditions.busy)["com.microsoft:server-busy"] == 4.0


def test_a_peer_of_another_dialect_fails_at_once(peer: FakePeer) -> None:
    peer.script.deny_outcome = lambda received: BUSY
    client, link = publisher(peer, RABBITMQ)
    with client, pytest.raises(DeliveryFailed, match="server-busy"):
        link.send(payloads(0, 20), str)
        link.flush()
