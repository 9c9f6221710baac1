"""A link that was refused and is attached again before it is detached: that costs the link, not the connection.

Raw frames, since proton's own engine does not let a client do that. Spec: AMQP 1.0 part 2 §2.6.3, §2.6.5.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.hostile.doors import (
    AMQP_BEGIN,
    DEADLINE_S,
    FALSE,
    NULL,
    TRUE,
    ZERO,
    Raw,
    amqp_frame,
    amqp_list,
    amqp_text,
    attach,
    detach,
    established,
)

NOWHERE, ANSWERED, DETACHED = b"amqp:not-found", b"\x00\x53\x12", b"\x00\x53\x16"


class Session:
    """A session of a raw connection; ``says`` waits for words."""

    def __init__(self, node: Any) -> None:
        self.raw: Raw = established(node.url)
        self.send(AMQP_BEGIN)

    def send(self, *performatives: bytes) -> None:
        self.raw.send(b"".join(amqp_frame(0, each) for each in performatives))

    def says(self, words: bytes, times: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.raw.received.count(words) < times:
            assert not self.raw.ended and time.monotonic() < deadline, self.raw.received
            self.raw.look(0.05)


@pytest.fixture
def session(node: Any) -> Iterator[Session]:
    node.create()
    made = Session(node)
    yield made
    made.raw.close()


def as_sender(name: bytes, handle: int, address: bytes) -> bytes:
    target = b"\x00\x53\x29" + b"\xd0" + struct.pack(">II", len(address) + 9, 1) + amqp_text(address)
    source = b"\x00\x53\x28\x45"
    number = struct.pack(">BI", 0x70, handle)
    return amqp_list(0x12, amqp_text(name), number, FALSE, NULL, NULL, source, target, NULL, NULL, ZERO)


def transfer(handle: int, number: int, content: bytes) -> bytes:
    tag = b"\xa0\x01" + bytes([number])
    sections = b"\x00\x53\x75\xb0" + struct.pack(">I", len(content)) + content
    ids = (struct.pack(">BI", 0x70, handle), struct.pack(">BI", 0x70, number))
    return amqp_list(0x14, *ids, tag, ZERO, FALSE) + sections


@pytest.mark.parametrize("handle", [0, 1], ids=["same-handle", "another-handle"])
def test_it_is_refused_again_and_its_neighbours_go_on(session: Session, handle: int) -> None:
    session.send(attach(b"neighbour", 9, b"orders"))
    session.says(ANSWERED, 1)
    session.send(attach(b"again", 0, b"nowhere"))
    session.says(NOWHERE, 1)
    session.send(attach(b"again", handle, b"nowhere"))
    session.says(NOWHERE, 2)
    session.send(*(detach(each) for each in range(handle + 1)), detach(9))
    session.says(DETACHED, 3)  # those of both refusals, and the answer to the neighbour's


def test_it_is_taken_when_nothing_speaks_against_it_any_more(node: Any, session: Session) -> None:
    session.send(attach(b"again", 0, b"later"))
    session.says(NOWHERE, 1)
    node.create("later")
    session.send(attach(b"again", 1, b"later"), detach(0))
    session.says(ANSWERED, 2)
    session.send(detach(1), attach(b"again", 0, b"later"))
    session.says(ANSWERED, 3)
    assert session.raw.received.count(NOWHERE) == 1


def test_what_is_sent_on_it_without_credit_does_not_use_up_the_session_s_window(nodes: Any) -> None:
    node = nodes(session_bytes=400_000)  # twelve frames
    node.create()
    session, content = Session(node), b"x" * 30_000
    for number in range(4):
        session.send(as_sender(b"again", 0, b"nowhere"))
        session.says(NOWHERE, number + 1)
        session.send(transfer(0, 2 * number, content), transfer(0, 2 * number + 1, content), detach(0))
    session.send(as_sender(b"again", 0, b"orders"))
    session.says(ANSWERED, 5)
    session.says(b"\x00\x53\x13", 1)  # a flow, with the window
    session.send(*(transfer(0, 8 + number, content) for number in range(8)))
    assert [event.body for event in node.receive("orders", 8)] == [content] * 8
    session.raw.close()


@pytest.mark.parametrize("closed", [TRUE, FALSE])
def test_one_that_waited_in_line_and_is_refused_is_refused_again(nodes: Any, closed: bytes) -> None:
    node = nodes(unassigned="wait", unassigned_wait_ms=100)
    node.create(partitions=1)
    session = Session(node)
    group = amqp_text(b"g")
    properties = b"\xd1" + struct.pack(">II", 0, 2) + _symbol(b"event-streams-consumer-group") + group
    properties = b"\xd1" + struct.pack(">I", len(properties) - 5) + properties[5:]
    source = b"\x00\x53\x28" + b"\xd0" + struct.pack(">II", len(b"orders") + 9, 1) + amqp_text(b"orders")

    def member(name: bytes, handle: int) -> bytes:
        number = struct.pack(">BI", 0x70, handle)
        fields = (amqp_text(name), number, TRUE, NULL, NULL, source, b"\x00\x53\x29\x45", *[NULL] * 6, properties)
        return amqp_list(0x12, *fields)

    session.send(member(b"owner", 5))
    session.says(ANSWERED, 1)
    for handle in range(3):
        session.send(member(b"late", handle))
        session.says(b"amqp:link:detach-forced", handle + 1)
    session.send(*(amqp_list(0x16, struct.pack(">BI", 0x70, handle), closed) for handle in range(3)), detach(5))
    session.says(DETACHED, 4)
    session.raw.close()


def _symbol(words: bytes) -> bytes:
    return b"\xb3" + struct.pack(">I", len(words)) + words
