"""Batches that take long hold up nobody, and replies that nobody takes are not collected."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from spark_streams.server import turns
from spark_streams.server.amqp import requests
from spark_streams.server.amqp.routing import Routed
from spark_streams.server.event_hubs import connection, links
from spark_streams.testing import eventually
from spark_streams.wire.amqp.engine.messages import Messages
from tests.server.event_hubs.conftest import HUB, WAIT_S, Namespace, sas
from tests.server.hostile.doors import Raw, amqp_frame, amqp_text, established, flow, until_said
from tests.server.hostile.hub_frames import (
    BATCH_FORMAT,
    SAS_TYPE,
    anonymous,
    receiver,
    request,
    sender,
    transfer,
)

GUARD_S = 2 * WAIT_S
EMPTY, BROKEN = b"\x00\x53\x75\xa0\x00", b"\x00\x53\x75\xa0\x01\x00"
MANY = 200_000
ACCEPTED, REJECTED = b"\x00\x53\x24", b"\x00\x53\x25"


class Held:
    """Reading a large batch, which waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    split_batch, held = links.split_batch, Held()

    def split(raw: bytes) -> Any:
        if len(raw) > 500_000:
            held.begun.set()
            assert held.go.wait(GUARD_S)
        return split_batch(raw)

    monkeypatch.setattr(links, "split_batch", split)
    yield held
    held.go.set()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    Raw.close_all()


def sending(namespace: Namespace) -> Raw:
    """A peer with a link to the hub."""
    raw = established(namespace.url)
    raw.send(sender(HUB.encode()))
    until_said(raw, b"\x00\x53\x13")
    return raw


@pytest.mark.parametrize(("event", "outcome", "stored"), [(EMPTY, ACCEPTED, MANY), (BROKEN, REJECTED, 0)])
def test_a_batch_of_200_000_events_holds_up_nobody(
    namespace: Namespace, held: Held, make_peer: Callable[..., Any], event: bytes, outcome: bytes, stored: int
) -> None:
    namespace.create()
    hostile = sending(namespace)
    hostile.send(transfer((event * MANY)[: (1 << 20) // len(event) * len(event)], 0, BATCH_FORMAT))
    assert held.begun.wait(GUARD_S), "it is read beside the loop"
    peer = make_peer(namespace.url)
    other = peer.sender(HUB)
    for number in range(3):
        other.send(b"%d" % number, timeout_s=GUARD_S)
    assert namespace.ends() == {"0": 3}
    held.go.set()
    until_said(hostile, outcome)
    assert namespace.ends() == {"0": 3 + stored}
    refused = namespace.server.server.door("event-hubs").counters.refused_events
    assert refused == ({} if stored else {"invalid": (1 << 20) // len(event)}), "each event of the batch"


def keyed(number: int) -> bytes:
    """An event in a batch; every seventh has a key annotation, which is stored under another name."""
    key = b"\x00\x53\x72\xc1\x19\x02\xa3\x13x-opt-partition-key\xa1\x01k" if number % 7 == 3 else b""
    event = key + b"\x00\x53\x75\xa0\x05%05d" % number
    return b"\x00\x53\x75\xa0" + bytes([len(event)]) + event


def test_a_batch_is_put_together_again_from_its_parts(
    namespace: Namespace, make_peer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_ROWS_PER_STEP", 3)
    namespace.create()
    raw = sending(namespace)
    raw.send(transfer(b"".join(keyed(number) for number in range(1_000)), 0, BATCH_FORMAT))
    until_said(raw, ACCEPTED)
    got = make_peer(namespace.url).receiver(f"{HUB}/ConsumerGroups/$Default/Partitions/0").take(1_000)
    assert [int(event.body) for event in got] == list(range(1_000))
    keys = [(event.message.annotations or {}).get("x-opt-partition-key") for event in got]
    assert keys == ["k" if number % 7 == 3 else None for number in range(1_000)]


def test_who_sends_a_batch_waits_for_a_part_of_anothers(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    read, parts, both = links.incoming_steps, list[int](), threading.Semaphore(0)
    beside = turns.Worker.run

    def noted(worker: Any, steps: Any) -> Any:
        both.release()
        return beside(worker, steps)

    def reads(block: Any, **options: Any) -> Any:
        if not parts:  # in the thread, until the other one waits for it
            assert both.acquire(timeout=GUARD_S) and both.acquire(timeout=GUARD_S)
        parts.append(len(block.buffer))
        return read(block, **options)

    monkeypatch.setattr(links, "_ROWS_PER_STEP", 10)
    monkeypatch.setattr(links, "incoming_steps", reads)
    monkeypatch.setattr(turns.Worker, "run", noted)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    namespace.create()
    first, second = sending(namespace), sending(namespace)
    first.send(transfer(keyed(0) * 4_000, 0, BATCH_FORMAT))
    second.send(transfer(keyed(0) * 1_000, 0, BATCH_FORMAT))
    for raw in (first, second):
        until_said(raw, ACCEPTED)
    changes = sum(one != other for one, other in pairwise(parts))
    assert changes >= 2 * 100 - 2, "they take turns until the shorter one is read"


def test_all_events_of_a_delivery_are_refused_with_its_first_reason() -> None:
    count = 1_000
    memory = np.frombuffer(EMPTY * count, np.uint8)
    events = links._Events(Messages(memory, *(np.array([value]) for value in (0, len(memory), 7, 0))))
    events.delivery, events.bounds = np.arange(count) // 2, np.arange(0, count + 1, 2)
    routed = Routed(np.zeros(count, np.int64), {}, 0)
    first, second = links._KEY_AND_PARTITION, links._MALFORMED
    events.refuse(routed, [0], first)
    events.refuse(routed, events.of(np.arange(0, count, 4)), second)
    assert routed.partitions.tolist() == [-1, -1, 0, 0] * (count // 4)
    assert routed.rejections == {0: first, **dict.fromkeys(range(4, count, 4), second)}


def waiting(namespace: Namespace) -> int:
    """How many replies wait for their peers."""
    door = namespace.server.server.door("event-hubs")

    def counted() -> int:
        return sum(replies.waiting for each in door.node.connections for replies in each._replies.values())

    return namespace.server.call(counted)  # type: ignore[no-any-return]


def test_with_many_replies_that_the_peer_does_not_take_no_more_requests_are_answered(namespace: Namespace) -> None:
    namespace.create()
    raw = established(namespace.url)
    raw.send(sender(b"$management"))
    for handle in range(1, requests._MOST_LINKS + 1):  # links that get no credit; together they have no more room
        raw.send(receiver(b"$management", handle, 0))
    raw.send(receiver(b"$management", requests._MOST_LINKS + 1, 0))
    until_said(raw, b"links get replies from this address, and no more may")
    question = {"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB}
    for number in range(3 * requests._MOST_WAITING):  # as if credit were no matter
        raw.send(transfer(request(b"\x40", b"i", **question), number))
    eventually(lambda: waiting(namespace) == requests._MOST_WAITING, "as many as may wait", WAIT_S)
    raw.send(amqp_frame(0, flow(requests._MOST_LINKS, 5)))  # the latest one, which is the one that replies go to
    until_said(raw, b"status-code")
    eventually(lambda: waiting(namespace) == requests._MOST_WAITING, "others wait in their place", WAIT_S)
    assert not raw.ended
    raw.close()
    eventually(lambda: waiting(namespace) == 0, "what waits goes with the connection", WAIT_S)


def test_a_reply_repeats_no_message_id_of_any_length(namespace: Namespace) -> None:
    namespace.create()
    raw = established(namespace.url)
    raw.send(sender(b"$management") + receiver(b"$management", 1, 10))
    question = {"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB}
    raw.send(transfer(request(b"\x40", b"i" * 2_000, **question), 0))
    until_said(raw, b"amqp:decode-error")
    assert b"status-code" not in raw.received


def test_who_has_not_signed_in_sends_no_more_than_signing_in_needs(namespace: Namespace) -> None:
    namespace.create()
    raw = Raw(namespace.url)
    raw.send(anonymous() + sender(b"$cbs"))
    until_said(raw, b"\x00\x53\x13")
    sent = 0
    deadline = time.monotonic() + GUARD_S
    while not raw.ended and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            raw.socket.sendall(transfer(b"x" * 50_000, sent))
            sent += 1
        raw.look(0.01)
    assert raw.ended and sent * 50_000 > connection._MOST_EARLY_BYTES - 50_000


def test_tokens_are_counted_and_the_last_one_for_a_uri_stays(namespaces: Callable[..., Namespace]) -> None:
    namespace = namespaces(max_tokens=3)
    namespace.create()
    raw = Raw(namespace.url)
    raw.send(anonymous() + sender(b"$cbs") + receiver(b"$cbs", 1, 1_000))
    for number in range(12):
        token = sas(f"sb://h/{number % 6}", "guest", "guest")
        asked = request(amqp_text(token.encode()), b"%d" % number, operation="put-token", type=SAS_TYPE)
        raw.send(transfer(asked, number))
    deadline = time.monotonic() + GUARD_S
    while raw.received.count(b"status-code") < 12:
        assert not raw.ended and time.monotonic() < deadline
        raw.look(0.05)
    assert raw.received.count(b"Accepted") == 6
    assert raw.received.count(b"the connection has put 3 tokens, and may no more") == 6
