"""What hostile clients say at the Event Hubs door, frame by frame."""

from __future__ import annotations

import struct

from tests.server.hostile.doors import (
    AMQP,
    AMQP_BEGIN,
    AMQP_OPEN,
    FALSE,
    NULL,
    SASL,
    TRUE,
    ZERO,
    amqp_frame,
    amqp_list,
    amqp_text,
    attach,
    flow,
)

BATCH_FORMAT = 0x80013700
SAS_TYPE = "servicebus.windows.net:sastoken"
FRAME_BYTES = 60_000


def anonymous() -> bytes:
    """SASL ANONYMOUS and open, as of somebody who is to put a token."""
    fields = b"\xa3\x09ANONYMOUS"
    body = b"\x00\x53\x41\xc0" + bytes([len(fields) + 1, 1]) + fields
    return SASL + struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body + AMQP + AMQP_OPEN


def number(value: int) -> bytes:
    return struct.pack(">BI", 0x70, value)


def sender(address: bytes, handle: int = 0) -> bytes:
    """A link on which the peer sends; with handle 0 its session too."""
    content = amqp_text(address)
    target = b"\x00\x53\x29\xd0" + struct.pack(">II", len(content) + 4, 1) + content
    name = amqp_text(b"sends %d" % handle)
    attached = amqp_list(0x12, name, number(handle), FALSE, NULL, NULL, b"\x00\x53\x28\x45", target, NULL, NULL, ZERO)
    return (b"" if handle else amqp_frame(0, AMQP_BEGIN)) + amqp_frame(0, attached)


def receiver(address: bytes, handle: int, credit: int) -> bytes:
    """A link on which the peer receives; its target is ``replies``."""
    name = b"receives %d" % handle
    return amqp_frame(0, attach(name, handle, address, echo=b"replies")) + amqp_frame(0, flow(handle, credit))


def transfer(payload: bytes, delivery: int, message_format: int = 0, handle: int = 0) -> bytes:
    """A message, in as many frames as it needs."""
    pieces = [payload[at : at + FRAME_BYTES] for at in range(0, len(payload), FRAME_BYTES)]
    frames = []
    for at, piece in enumerate(pieces):
        more = TRUE if at < len(pieces) - 1 else FALSE
        fields = number(handle), number(delivery), b"\xa0\x01t", number(message_format), FALSE, more
        frames.append(amqp_frame(0, amqp_list(0x14, *fields) + piece))
    return b"".join(frames)


def request(body: bytes, message_id: bytes = b"r", **properties: str) -> bytes:
    """A request to ``$cbs`` or ``$management``; the body is an encoded value."""
    entries = [amqp_text(word.encode()) for pair in properties.items() for word in pair]
    content = b"".join(entries)
    named = b"\x00\x53\x74\xd1" + struct.pack(">II", len(content) + 4, len(entries)) + content
    identity = amqp_text(message_id)
    head = b"\x00\x53\x73\xd0" + struct.pack(">II", len(identity) + 4, 1) + identity
    return head + named + b"\x00\x53\x77" + body
