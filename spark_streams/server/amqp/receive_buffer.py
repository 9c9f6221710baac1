"""Takes whole messages out of the engine, back to back into memory of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from cproton_ffi import ffi, lib
from numpy.typing import NDArray

from spark_streams.server.amqp.error_conditions import MESSAGE_TOO_LARGE, LinkRefused
from spark_streams.wire.amqp.columns.block import MessageBlock

MAX_ROWS: Final = 1_024
MAX_BYTES: Final = 1 << 20


@dataclass
class Received:
    """What one turn of a producer's link has received.

    Args:
        block: the whole messages.
        deliveries: C pointers, one for each message; None for a message that the peer sent settled.
        refusal: why the link must end after these messages, or None.
        more: whether the engine may have further messages.
    """

    block: MessageBlock
    deliveries: list[Any] = field(default_factory=list)
    refusal: LinkRefused | None = None
    more: bool = False


def take(link: Any, begun: bytearray, max_message_bytes: int) -> Received:
    """Take a bounded part of the messages that a receiving link has.

    Args:
        link: the ``pn_link_t``.
        begun: the bytes of a message of which only some frames have come; the caller keeps it from turn to turn.
        max_message_bytes: size of the largest message that is accepted.
    """
    current, recv = lib.pn_link_current, lib.pn_link_recv
    settle, advance = lib.pn_delivery_settle, lib.pn_link_advance
    memory, start = np.empty(0, np.uint8), ffi.NULL
    ends: list[int] = []
    deliveries: list[Any] = []
    refusal: LinkRefused | None = None
    size = 0
    more = True
    while len(ends) < MAX_ROWS and size < MAX_BYTES:
        delivery = current(link)
        if not delivery:
            more = False
            break
        if lib.pn_delivery_aborted(delivery):
            begun.clear()  # the peer takes back what it began (AMQP 1.0 part 2 §2.6.14)
            settle(delivery)
            continue
        pending = lib.pn_delivery_pending(delivery)
        total = len(begun) + pending
        if total > max_message_bytes:
            refusal = LinkRefused(
                MESSAGE_TOO_LARGE,
                f"a message of more than {max_message_bytes} bytes, this node's max-message-size, was sent",
            )
            break
        # Only the new bytes of an unfinished message are moved: it may come in thousands of frames.
        held = 0 if lib.pn_delivery_partial(delivery) else len(begun)
        if size + held + pending > len(memory):
            memory = _larger(memory, size, held + pending)
            start = ffi.cast("char *", memory.ctypes.data)
        if held:
            ffi.memmove(start + size, ffi.from_buffer(begun), held)
        if pending:
            recv(link, start + size + held, pending)
        if lib.pn_delivery_partial(delivery):
            begun += memory[size : size + pending].tobytes()
            more = False
            break
        size += total
        begun.clear()
        ends.append(size)
        if lib.pn_delivery_settled(delivery):
            deliveries.append(None)
            settle(delivery)
        else:
            deliveries.append(delivery)
            advance(link)
    stops = np.array(ends, np.int64)
    starts = np.zeros_like(stops)
    starts[1:] = stops[:-1]
    return Received(MessageBlock(memory[:size], starts, stops), deliveries, refusal, more)


def _larger(memory: NDArray[np.uint8], used: int, needed: int) -> NDArray[np.uint8]:
    """Return memory that begins with the used bytes of the given one, and has room for more."""
    larger = np.empty(max(MAX_BYTES, used + needed) + (64 << 10), np.uint8)
    larger[:used] = memory[:used]
    return larger
