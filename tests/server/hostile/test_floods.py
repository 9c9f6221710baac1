"""Too many: connections that say nothing, connections that are open, and whatever may be opened on one of them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import requests

from tests.real_rabbitmq.by_hand import METADATA, RESPONSE, array, pairs, text
from tests.real_rabbitmq.by_hand import Peer as RabbitPeer
from tests.server.amqp.raw_peer import Ended, Peer
from tests.server.hostile.conftest import DOORS, MAX_CONNECTIONS, MAX_HANDSHAKES, MAX_LINKS
from tests.server.hostile.doors import AMQP_BEGIN, DEADLINE_S, Raw, amqp_frame, attach, established, rabbit_frame

FLOOD = 5 * MAX_HANDSHAKES
FULL = {
    "amqp": b"amqp:resource-limit-exceeded",
    "rabbitmq-stream": b"serves %d connections" % MAX_CONNECTIONS,
    "feedapi": b" 503 ",
    "event-hubs": b"amqp:resource-limit-exceeded",
}
QUESTION = {
    "amqp": amqp_frame(0, AMQP_BEGIN),
    "rabbitmq-stream": rabbit_frame(METADATA, struct.pack(">I", 77) + array([])),
    "feedapi": b"",
    "event-hubs": amqp_frame(0, AMQP_BEGIN),
}
"""What those who are served are answered, behind their introduction."""
ANSWER = {
    "amqp": b"\x00\x53\x11",
    "rabbitmq-stream": struct.pack(">HHI", METADATA | RESPONSE, 1, 77),
    "feedapi": b" 200 ",
    "event-hubs": b"\x00\x53\x11",
}


@pytest.mark.parametrize("door", DOORS)
def test_connections_that_say_nothing(served: Any, door: str) -> None:
    before, memory = served.descriptors, served.memory_bytes
    flood: list[Raw] = []
    most = 0
    for _ in range(FLOOD):
        flood.append(Raw(served.urls[door]))
        if len(flood) % MAX_HANDSHAKES == 0:
            # In the middle of it, those who are here are served, and whoever comes.
            served.step()
            served.newcomer(door)
            most = max(most, served.descriptors)
    # At the RabbitMQ door each takes two; what is left is for what the tests' own clients have open meanwhile.
    assert most <= before + 2 * MAX_HANDSHAKES + 12
    for raw in flood[: FLOOD // 2]:
        served.until(lambda raw=raw: raw.look() or raw.ended, "the end of those who came first")
    assert served.memory_bytes < memory + 40_000_000
    for raw in flood:
        raw.close()


@pytest.mark.parametrize("door", DOORS)
def test_connections_that_are_open(served: Any, door: str) -> None:
    full: list[Raw] = []
    refused = 0
    while refused < 3:
        raw = established(served.urls[door])
        raw.send(QUESTION[door])
        while not (said := raw.holds(ANSWER[door], FULL[door])):
            raw.look(0.05)
            assert not raw.ended or raw.holds(FULL[door])
        if FULL[door] in said:
            refused += 1
            served.until(lambda raw=raw: raw.look() or raw.ended, "the end of one that was refused")
        else:
            full.append(raw)
    assert MAX_CONNECTIONS // 2 < len(full) < MAX_CONNECTIONS, "beside them is one who means well"
    for raw in full:
        raw.look()
    assert not any(raw.ended or FULL[door] in raw.received for raw in full)


def test_links_of_a_connection(served: Any) -> None:
    raw = established(served.urls["amqp"])
    raw.send(amqp_frame(0, AMQP_BEGIN))
    for number in range(3 * MAX_LINKS):
        raw.send(amqp_frame(0, attach(b"link %d" % number, number, b"calm")))
    served.until(lambda: raw.look() or raw.ended, "the end of a connection that does not detach what is refused")
    assert raw.received.count(b"the connection has 50 links, the most that it may have") > MAX_LINKS // 2
    assert b"more than 50 links were refused" in raw.received
    raw.close()


def test_sessions_of_a_connection(served: Any) -> None:
    raw = established(served.urls["amqp"])
    for channel in range(12):
        raw.send(amqp_frame(channel, AMQP_BEGIN))
    served.until(lambda: raw.look() or raw.ended, "the end of a connection with too many sessions")
    assert b"amqp:connection:framing-error" in raw.received
    raw.close()


def test_unfinished_messages_of_a_connection(served: Any) -> None:
    before = served.memory_bytes
    peer = Peer(served.urls["amqp"])
    with pytest.raises(Ended) as ended:
        for number in range(20):
            sender = peer.sender("calm")
            sender.link.delivery(f"unfinished {number}")
            peer.pump(lambda sender=sender: sender.link.credit > 0, DEADLINE_S)
            sender.link.stream(b"x" * 900_000)
            served.step()
            peer.pump(lambda: peer.session.outgoing_bytes == 0, DEADLINE_S)
    # A peer that is still sending when the door closes may find a reset in place of the door's last words.
    assert ended.value.condition in ("amqp:resource-limit-exceeded", None)
    assert served.memory_bytes < before + 40_000_000
    peer.close()


def test_publishers_and_subscriptions_of_a_connection(served: Any) -> None:
    before = served.memory_bytes
    peer = RabbitPeer(served.urls["rabbitmq-stream"]).open()
    start = struct.pack(">H", 3)
    codes = [(peer.declare(n, "calm", f"reference {n}"), peer.subscribe(n, "calm", start, 1)) for n in range(256)]
    assert codes == [(1, 1)] * 256
    assert (peer.declare(7, "calm"), peer.subscribe(7, "calm", start)) == (0x11, 3), "as many as there are numbers"
    served.step()
    assert served.memory_bytes < before + 40_000_000
    peer.close()


def test_streams_are_not_made_without_end(served: Any) -> None:
    """Each holds files open: descriptors are kept for those who are here already."""
    before = served.descriptors
    feed = served.urls["feedapi"]
    peer = RabbitPeer(served.urls["rabbitmq-stream"]).open()
    names = [f"flood-{n}" for n in range(60)]
    codes = [peer.create(name) for name in names]
    made = codes.count(1)
    assert codes == [1] * made + [0x11] * (60 - made) and 10 < made < 30
    assert peer.ask(0x1D, text("super") + array([text("s-0")]) + array([text("0")]) + pairs({})).code == 0x11
    answer = requests.put(f"{feed}/one-more", timeout=DEADLINE_S)
    assert answer.status_code == 400 and "max_partitions" in answer.text
    answer = requests.post(f"{feed}/calm/partitions/0/split?into=2", timeout=DEADLINE_S)
    assert answer.status_code == 400 and "max_partitions" in answer.text
    assert served.descriptors < before + 4 * 30
    served.step()
    assert [peer.delete(name) for name in names[:made]] == [1] * made
    peer.close()
