"""What the node bears: limits of frames, messages, links and connections, garbage, silence, odd deliveries."""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from proton import Delivery, Link, Message

from tests.server.amqp.raw_peer import EARLIEST, Ended, Refused

SASL = b"AMQP\x03\x01\x00\x00"


def works(node: Any, **options: Any) -> bool:
    """Whether the node serves someone else, as if nothing had happened."""
    peer = node.peer(**options)
    peer.sender("orders").send(b"still here")
    alive = any(b"still here" in e.encoded for e in peer.receiver("orders", filter=EARLIEST).drain())
    peer.close()
    return alive


def dial(node: Any) -> socket.socket:
    parts = urlsplit(node.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=120)


def until_closed(plain: socket.socket, limit_s: float = 120) -> bytes:
    """Return what the node says before it closes the socket."""
    received, end = b"", time.monotonic() + limit_s
    while time.monotonic() < end:
        if not select.select([plain], [], [], 0.05)[0]:
            continue
        try:
            chunk = plain.recv(65536)
        except ConnectionError:
            return received
        if not chunk:
            return received
        received += chunk
    raise AssertionError(f"the node did not close the socket within {limit_s} s")


def test_the_frame_limit_is_told_and_kept(nodes: Any) -> None:
    node = nodes(max_frame_bytes=4_096)
    node.create()
    peer = node.peer()
    assert peer.transport.remote_max_frame_size == 4_096
    peer.socket.sendall(struct.pack(">IBBH", 4_097, 2, 0, 0) + b"\x00" * 4_089)
    with pytest.raises(Ended) as ended:
        peer.pause(5)
    assert ended.value.condition == "amqp:connection:framing-error"
    assert works(node)


@pytest.mark.parametrize("size", [0, 7, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_frame_of_an_impossible_size_ends_the_connection(node: Any, size: int) -> None:
    node.create()
    peer = node.peer()
    peer.socket.sendall(struct.pack(">IBBH", size, 2, 0, 0) + b"\x00" * 64)
    with pytest.raises(Ended) as ended:
        peer.pause(5)
    assert ended.value.condition in ("amqp:connection:framing-error", None)
    assert works(node)


def test_a_message_of_many_frames_comes_back_whole(nodes: Any) -> None:
    node = nodes(max_frame_bytes=1_024)
    node.create()
    body = random.Random(1).randbytes(300_000)
    node.send("orders", body, b"after")
    peer = node.peer(max_frame_bytes=700)
    assert peer.receiver("orders", filter=EARLIEST).bodies() == [body, b"after"]


def test_the_message_limit_is_told_and_kept(nodes: Any) -> None:
    node = nodes(max_message_bytes=10_000)
    node.create()
    sender = node.peer().sender("orders")
    assert sender.link.remote_max_message_size == 10_000
    sender.send(b"x" * 9_000)
    with pytest.raises(Refused) as refused:
        sender.send(b"x" * 10_001)
    assert refused.value.condition == "amqp:link:message-size-exceeded"
    assert len(node.receive("orders")) == 1
    assert works(node)


def test_the_message_limit_is_kept_before_the_message_ends(nodes: Any) -> None:
    """A message that never ends must not be collected for ever."""
    node = nodes(max_message_bytes=10_000)
    node.create()
    sender = node.peer().sender("orders")
    sender.link.delivery("endless")
    sender.peer.pump(lambda: sender.link.credit > 0)
    sender.link.stream(Message(body=b"x" * 50_000, inferred=True).encode()[:20_000])
    assert sender.wait_closed() == "amqp:link:message-size-exceeded"
    assert works(node)


def test_too_many_links_are_refused(nodes: Any) -> None:
    node = nodes(max_links=5)
    node.create()
    peer = node.peer()
    links = [peer.receiver("orders") for _ in range(5)]
    for more in (peer.attach_receiver("orders"), peer.attach_sender("orders")):
        with pytest.raises((Refused, Ended)) as refused:
            more.answered()
        assert refused.value.condition in (
            "amqp:resource-limit-exceeded",
            "amqp:not-allowed",
            "amqp:connection:framing-error",
            "amqp:session:handle-in-use",
        )
        if isinstance(refused.value, Ended):
            assert works(node)
            return
    links[0].close()
    assert peer.receiver("orders").properties is not None  # what was closed makes room
    assert works(node)


def test_too_many_connections_are_refused(nodes: Any) -> None:
    node = nodes(max_connections=3, max_user_connections=3)
    node.create()
    peers = [node.peer() for _ in range(3)]
    with pytest.raises((Ended, ConnectionError)):
        node.peer()
    peers.pop().close()
    for _ in range(100):
        try:
            assert works(node)
            return
        except (Ended, ConnectionError):
            time.sleep(0.02)
    raise AssertionError("a closed connection made no room")


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": b"\x00" * 64,
    "ones": b"\xff" * 64,
    "random": random.Random(7).randbytes(4_000),
    "sasl then ones": SASL + b"\xff" * 64,
    "sasl then random": SASL + random.Random(8).randbytes(4_000),
    "sasl frame of the wrong type": SASL + struct.pack(">IBBH", 8, 2, 0, 0),
    "sasl init cut": SASL + struct.pack(">IBBH", 12, 2, 1, 0) + b"\x00\x53\x41\xc0",
    "sasl init without a mechanism": SASL + struct.pack(">IBBH", 12, 2, 1, 0) + b"\x00\x53\x41\x45",
    "sasl huge frame": SASL + struct.pack(">IBBH", 0x10000000, 2, 1, 0) + b"\x00" * 1_000,
    "sasl offset beyond the frame": SASL + struct.pack(">IBBH", 12, 200, 1, 0) + b"\x00" * 4,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_instead_of_a_handshake_ends_the_connection(node: Any, name: str) -> None:
    node.create()
    with dial(node) as plain:
        plain.sendall(GARBAGE[name])
        until_closed(plain)
    assert works(node)


@pytest.mark.parametrize("seed", range(12))
def test_garbage_after_the_open_ends_the_connection(node: Any, seed: int) -> None:
    node.create()
    peer = node.peer()
    dice = random.Random(seed)
    body = dice.randbytes(dice.randrange(1, 200))
    if seed % 3 == 0:  # a frame of the right shape
        body = struct.pack(">IBBH", 8 + len(body), 2, 0, dice.randrange(4)) + body
    elif seed % 3 == 1:  # and with a performative
        body = b"\x00\x53" + bytes([dice.choice([0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x18])]) + body
        body = struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body
    peer.socket.sendall(body + b"\x00" * 600)
    with pytest.raises(Ended):
        peer.pause(5)
    assert works(node)


def test_a_client_that_says_nothing_is_not_kept(nodes: Any) -> None:
    node = nodes(handshake_timeout_ms=1_500)
    node.create()
    with dial(node) as plain, dial(node) as half:
        half.sendall(SASL[:5])
        until_closed(plain)
        until_closed(half)
    assert works(node)


def test_a_client_that_falls_silent_is_closed(nodes: Any) -> None:
    node = nodes(idle_timeout_ms=2_000)
    node.create()
    peer = node.peer()
    assert 0 < peer.transport.remote_idle_timeout <= 2
    time.sleep(3.0)  # no empty frames, and none read
    with pytest.raises(Ended) as ended:
        peer.pause(3)
    assert ended.value.condition in ("amqp:resource-limit-exceeded", "amqp:connection:forced", None)
    assert works(node)


def test_a_quiet_connection_is_kept_alive_both_ways(nodes: Any) -> None:
    node = nodes(idle_timeout_ms=4_000)
    node.create()
    peer = node.peer(idle_timeout_s=4)
    receiver = peer.receiver("orders")
    peer.pause(6)  # proton gives up when the node sends no empty frames
    node.send("orders", b"x")
    assert receiver.bodies(receiver.take(1)) == [b"x"]


MALFORMED = {
    "garbage": b"\xff\xfe\xfd",
    "cut data section": b"\x00\x53\x75\xa0\x0aabc",
    "cut properties": b"\x00\x53\x73\xc0\x20\x0d\x40",
    "unknown section": b"\x00\x53\x7f\xa0\x01x",
    "no section": b"\xa1\x05hello",
    "annotations that are no map": b"\x00\x53\x72\xa1\x01x\x00\x53\x75\xa0\x01x",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_rejected_and_not_stored(node: Any, name: str) -> None:
    node.create()
    sender = node.peer().sender("orders")
    with pytest.raises(Refused) as refused:
        sender.send(bytearray(MALFORMED[name]))
    assert refused.value.condition == "amqp:decode-error"
    sender.send(b"good")  # the link lives on
    assert [e.body for e in node.receive("orders")] == [b"good"]


@pytest.mark.parametrize(
    "encoded",
    [b"\x00\x53\x75\x40", b"\x00\x53\x77\x40", b"\x00\x53\x73\xc0\x0b\x07" + b"\x40" * 6 + b"\xa3\x02\xc3\xa9"],
)
def test_bodies_of_null_and_symbols_beyond_ascii_are_stored_as_they_are(node: Any, encoded: bytes) -> None:
    node.create()
    node.peer().sender("orders").send(bytearray(encoded))
    assert next(iter(node.receive("orders"))).encoded.endswith(encoded)


@pytest.mark.parametrize("encoded", [b"", b"\x00\x53\x70\x45"], ids=["nothing", "only a header"])
def test_a_message_without_a_body_does_not_break_reading(node: Any, encoded: bytes) -> None:
    """AMQP wants a body, some clients leave it out: stored or not, the outcome and what is read agree."""
    node.create()
    sender = node.peer().sender("orders")
    delivery = sender.put(bytearray(encoded))
    sender.peer.pump(lambda: delivery.settled)
    sender.send(b"after")
    expected = [None, b"after"] if delivery.remote_state == Delivery.ACCEPTED else [b"after"]
    assert [e.body for e in node.receive("orders")] == expected


def test_a_body_nested_without_end_harms_nobody(node: Any) -> None:
    node.create()
    depth = 20_000
    nested = b"\x45"
    for _ in range(depth):
        nested = b"\xd0" + struct.pack(">II", len(nested) + 4, 1) + nested
        if len(nested) > 200_000:
            break
    sender = node.peer().sender("orders")
    delivery = sender.put(bytearray(b"\x00\x53\x77" + nested))
    sender.peer.pump(lambda: delivery.settled)
    assert delivery.remote_state in (Delivery.ACCEPTED, Delivery.REJECTED)
    assert works(node)


def test_events_that_are_sent_settled_are_stored_too(node: Any) -> None:
    node.create()
    peer = node.peer()
    link = peer.session.sender("settled")
    link.target.address = "orders"
    link.snd_settle_mode = Link.SND_SETTLED
    link.open()
    peer.pump(lambda: link.credit > 0)
    for n in range(3):
        delivery = link.delivery(f"s{n}")
        link.stream(Message(body=n).encode())
        link.advance()
        delivery.settle()
    peer.close()
    assert [e.body for e in node.receive("orders", 3)] == [0, 1, 2]


def test_an_aborted_delivery_is_not_stored(node: Any) -> None:
    node.create()
    sender = node.peer().sender("orders")
    delivery = sender.link.delivery("aborted")
    sender.peer.pump(lambda: sender.link.credit > 0)
    sender.link.stream(Message(body=b"x" * 100_000, inferred=True).encode()[:50_000])
    sender.peer.pause(0.05)
    delivery.abort()
    sender.send(b"after")
    assert [e.body for e in node.receive("orders")] == [b"after"]


def test_a_connection_cut_in_a_message_stores_nothing_of_it(node: Any) -> None:
    node.create()
    sender = node.peer().sender("orders")
    sender.link.delivery("cut")
    sender.peer.pump(lambda: sender.link.credit > 0)
    sender.link.stream(Message(body=b"x" * 100_000, inferred=True).encode()[:50_000])
    sender.peer.pause(0.05)
    sender.peer.drop()
    node.send("orders", b"after")
    assert [e.body for e in node.receive("orders")] == [b"after"]


def test_many_links_and_connections_at_once(node: Any) -> None:
    node.create(partitions=4)
    receivers = [node.peer().receiver("orders") for _ in range(10)]
    receivers += [receivers[0].peer.receiver("orders") for _ in range(20)]
    node.send("orders", *[b"%d" % n for n in range(40)])
    for receiver in receivers:
        assert sorted(int(e.body) for e in receiver.take(40)) == list(range(40))
