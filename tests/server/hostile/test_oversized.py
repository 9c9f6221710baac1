"""Sizes that are announced and are too large: refused in the protocol's own words, before the bytes come."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import PUBLISH, text
from tests.server.hostile.doors import (
    AMQP,
    AMQP_BEGIN,
    FALSE,
    NULL,
    SASL,
    TRUE,
    ZERO,
    Raw,
    amqp_frame,
    amqp_list,
    amqp_text,
    established,
    introduction,
    rabbit_frame,
    sasl_init,
    until_said,
)
from tests.server.hostile.hub_frames import transfer

NDJSON = b"Content-Type: application/x-ndjson\r\n"
POST = b"POST /calm HTTP/1.1\r\nHost: localhost\r\n" + NDJSON
CLOSE = struct.pack(">HH", 0x16, 1)
FRAME_TOO_LARGE = struct.pack(">H", 0x0E)
MANY = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1_000) for n in range(100))


@dataclass(frozen=True)
class Oversized:
    """What is sent, and what the door says before it ends the connection.

    Args:
        door: which.
        sent: the bytes.
        known: whether it has introduced itself before.
        said: what the answer holds; nothing: somebody unknown is told nothing.
        first: what is sent before, and ``answered``, what the answer to that holds.
        stays: whether the connection may go on.
    """

    door: str
    sent: bytes
    known: bool = True
    first: bytes = b""
    answered: bytes = b""
    said: bytes = b""
    stays: bool = False


def sender() -> bytes:
    """A session, and a link to write to calm."""
    address = amqp_text(b"calm")
    target = b"\x00\x53\x29\xd0" + struct.pack(">II", len(address) + 4, 1) + address
    source = b"\x00\x53\x28\x45"
    attach = amqp_list(0x12, amqp_text(b"large"), ZERO, FALSE, NULL, NULL, source, target, NULL, NULL, ZERO)
    return amqp_frame(0, AMQP_BEGIN) + amqp_frame(0, attach)


def endless_message(size: int) -> bytes:
    """The first bytes of a message that never ends."""
    tag = b"\xa0\x01t"
    return amqp_frame(0, amqp_list(0x14, ZERO, ZERO, tag, ZERO, FALSE, TRUE) + b"x" * 30_000) * (size // 30_000)


OVERSIZED = {
    "amqp sasl frame": Oversized("amqp", SASL + struct.pack(">IBBH", 0x7FFFFFFF, 2, 1, 0), known=False, said=SASL),
    "amqp frame before open": Oversized(
        "amqp", SASL + sasl_init() + AMQP + struct.pack(">IBBH", 0x7FFFFFFF, 2, 0, 0), known=False, said=AMQP
    ),
    "amqp frame": Oversized("amqp", struct.pack(">IBBH", 0x7FFFFFFF, 2, 0, 0), said=b"amqp:connection:framing-error"),
    "amqp message": Oversized(
        "amqp",
        endless_message(1_200_000),
        first=sender(),
        answered=b"\x00\x53\x12",
        said=b"amqp:link:message-size-exceeded",
        stays=True,
    ),
    "event-hubs frame": Oversized(
        "event-hubs", struct.pack(">IBBH", 0x7FFFFFFF, 2, 0, 0), said=b"amqp:connection:framing-error"
    ),
    "event-hubs message": Oversized(
        "event-hubs",
        transfer(b"x" * 1_200_000, 0),
        first=sender(),
        answered=b"\x00\x53\x12",
        said=b"amqp:link:message-size-exceeded",
        stays=True,
    ),
    "rabbitmq-stream first frame": Oversized("rabbitmq-stream", struct.pack(">IHH", 0x7FFFFFFF, 0x11, 1), known=False),
    "rabbitmq-stream frame before open": Oversized(
        "rabbitmq-stream", introduction() + struct.pack(">IHH", 8_193, 0x13, 1), known=False
    ),
    "rabbitmq-stream frame": Oversized(
        "rabbitmq-stream",
        struct.pack(">IHH", (1 << 20) + 1, PUBLISH, 1),
        said=FRAME_TOO_LARGE + text("frame too large"),
    ),
    "rabbitmq-stream count": Oversized(
        "rabbitmq-stream", rabbit_frame(PUBLISH, b"\x01" + struct.pack(">I", 0x7FFFFFFF)), said=CLOSE
    ),
    "feedapi head without end": Oversized("feedapi", b"GET /" + b"a" * 100_000, known=False, said=b" 431 "),
    "feedapi many headers": Oversized("feedapi", b"GET /calm HTTP/1.1\r\n" + MANY, said=b" 431 "),
    "feedapi body": Oversized("feedapi", POST + b"Content-Length: 1000000000000\r\n\r\n", said=b" 413 "),
    "feedapi body that waits to be wanted": Oversized(
        "feedapi", POST + b"Expect: 100-continue\r\nContent-Length: 9000000\r\n\r\n", said=b" 413 "
    ),
    "feedapi chunked body": Oversized(
        "feedapi",
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 9,
        said=b" 413 ",
    ),
}


@pytest.fixture(scope="module")
def sent(hostile_log: Any) -> Iterator[dict[str, tuple[Raw, int]]]:
    """All of them at the same time; a client, and how much it had been told before it was too large."""
    before = hostile_log.memory_bytes
    clients: dict[str, tuple[Raw, int]] = {}
    for name, large in OVERSIZED.items():
        raw = established(hostile_log.urls[large.door]) if large.known else Raw(hostile_log.urls[large.door])
        raw.send(large.first)
        until_said(raw, large.answered)
        clients[name] = raw, len(raw.received)
        raw.send(large.sent)
    yield clients
    hostile_log.step()
    assert hostile_log.memory_bytes < before + 60_000_000
    Raw.close_all()


@pytest.mark.parametrize("name", OVERSIZED)
def test_too_large_is_refused(hostile_log: Any, sent: dict[str, tuple[Raw, int]], name: str) -> None:
    large = OVERSIZED[name]
    raw, at = sent[name]

    def refused() -> bool:
        raw.look()
        return large.said in raw.received[at:] and (raw.ended or large.stays)

    hostile_log.until(refused, f"a refusal of: {name}")
