"""A peer that takes batches and is busy: what it rejects for it is sent again as it was, whole batches at a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import proton
import pytest
from proton.handlers import IncomingMessageHandler

from spark_streams.client import AmqpClient
from spark_streams.client.amqp.publisher import Publisher
from spark_streams.errors import DeadlineExceeded, DeliveryFailed
from spark_streams.wire.amqp.event_batches import split_batch
from tests.client.amqp import test_busy_peer
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.client.amqp.test_busy_peer import BUSY, QUICK
from tests.client.amqp.test_publisher import payloads

DIALECT = replace(QUICK, batch_format=0x8001_3700)


class BatchPeer(FakePeer):
    """A peer that notes the numbers of the events of each delivery; ``deny_outcome`` is asked about each delivery."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.handlers = [each for each in self.handlers if not isinstance(each, IncomingMessageHandler)]
        self.came: list[list[int]] = []
        self.sizes: list[int] = []

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if not link.is_receiver or not delivery.readable or delivery.partial:
            return
        raw = bytes(link.recv(delivery.pending))
        link.advance()
        self.sizes.append(len(raw))
        parts = [raw]
        if raw.count(b"\x00\x53\x75") > 1:
            batch = split_batch(raw)
            parts = [raw[start:end] for start, end in zip(batch.starts, batch.ends, strict=True)]
        self.came.append([self._number(part) for part in parts])
        verdict = None if self.script.deny_outcome is None else self.script.deny_outcome(len(self.came) - 1)
        if verdict is not None:
            delivery.local.condition = verdict
        delivery.update(proton.Delivery.ACCEPTED if verdict is None else proton.Delivery.REJECTED)
        delivery.settle()
        link.flow(1)

    def _number(self, raw: bytes) -> int:
        message = proton.Message()
        message.decode(raw)
        return int(bytes(message.body).split(b":")[0])


@pytest.fixture
def peer() -> Iterator[BatchPeer]:
    with BatchPeer(Script(sender_credit=10, max_message_size=500)) as served:
        yield served


def publisher(peer: FakePeer, timeout_ms: int = 120_000) -> tuple[AmqpClient, Publisher]:
    return test_busy_peer.publisher(peer, DIALECT, timeout_ms)


def test_rejected_batches_are_sent_again_and_nothing_else(peer: BatchPeer) -> None:
    chance = random.Random(7)
    denied: Counter[int] = Counter()

    def busy(received: int) -> Any:
        if chance.random() < 0.2:
            denied.update(peer.came[received])
            return BUSY
        return None

    peer.script.deny_outcome = busy
    client, link = publisher(peer)
    with client:
        for first in range(0, 3_000, 1_000):
            link.send(payloads(first, 1_000), lambda row: f"row {row}")
        link.flush()
        assert link.accepted == 3_000
    assert denied and Counter(n for batch in peer.came for n in batch) == {n: 1 + denied[n] for n in range(3_000)}
    assert max(peer.sizes) <= 500 and max(len(batch) for batch in peer.came) > 10
    assert len(peer.came) < 300


def test_without_a_busy_moment_everything_comes_once_in_order(peer: BatchPeer) -> None:
    client, link = publisher(peer)
    with client:
        for first in range(0, 3_000, 1_000):
            link.send(payloads(first, 1_000), str)
        link.flush()
        assert link.accepted == 3_000
    assert [n for batch in peer.came for n in batch] == list(range(3_000))


def test_a_batch_of_many_frames_is_sent_again_whole() -> None:
    with BatchPeer(Script(sender_credit=10)) as peer:

        def outcome(received: int) -> Any:
            batch = peer.came[received]
            return BUSY if batch[0] in (8, 16) and peer.came[: received + 1].count(batch) == 1 else None

        peer.script.deny_outcome = outcome
        client, link = publisher(peer)
        with client:
            link.send(payloads(0, 32, 30_000), str)
            link.flush()
    first, *again, last = ([*range(at, at + 8)] for at in range(0, 32, 8))
    assert sorted(peer.came) == [first, *sorted([*again, *again]), last]


def test_the_batch_that_is_refused_for_another_reason_is_named(peer: BatchPeer) -> None:
    tries: Counter[int] = Counter()

    def outcome(received: int) -> Any:
        first = peer.came[received][0]
        if 150 not in peer.came[received] and first:
            return None
        tries[first] += 1
        if tries[first] == 1:
            return BUSY
        return proton.Condition("amqp:not-allowed", "no") if first else None

    peer.script.deny_outcome = outcome
    client, link = publisher(peer)
    words = r"row (\d+) of the second, in a batch of \d+, was rejected .* amqp:not-allowed"
    with client, pytest.raises(DeliveryFailed, match=words) as failed:
        link.send(payloads(0, 100), lambda row: f"row {row} of the first")
        link.send(payloads(100, 100), lambda row: f"row {row} of the second")
        link.flush()
    (batch,) = {tuple(each) for each in peer.came if 150 in each}
    assert failed.value.row.startswith(f"row {batch[0] - 100} of")


def test_a_peer_that_stays_busy_is_told(peer: BatchPeer) -> None:
    peer.script.deny_outcome = lambda received: BUSY
    client, link = publisher(peer, timeout_ms=1_500)
    with client, pytest.raises(DeadlineExceeded, match=r"the peer is busy: com\.microsoft:server-busy"):
        link.send(payloads(0, 200), str)
        link.flush()
    assert link.accepted == 0
