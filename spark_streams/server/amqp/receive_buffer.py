"""Takes whole messages out of the engine, back to back into one buffer that all producers' links share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from cproton_ffi import ffi, lib

from spark_streams.server.amqp.error_conditions import MESSAGE_TOO_LARGE, LinkRefused
from spark_streams.wire.amqp.columns.block import MessageBlock

MAX_ROWS: Final = 1_024
MAX_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 4 << 20


@dataclass
class Received:
    """What one turn of a producer's link has received.

    Args:
        block: the whole messages; the next turn uses their memory again, unless it is given away.
        deliveries: C pointers, one for each message; None for a message that the peer sent settled.
        refusal: why the link must end after these messages, or None.
        more: whether the engine may have further messages.
    """

    block: MessageBlock
    deliveries: list[Any] = field(default_factory=list)
    refusal: LinkRefused | None = None
    more: bool = False


class ReceiveBuffer:
    """The buffer of all producers' links of a node.

    Args:
        max_message_bytes: size of the largest message that is accepted.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max = max_message_bytes
        self._allocate(MAX_BYTES + (64 << 10))

    def _allocate(self, size: int) -> None:
        self._memory = np.empty(size, np.uint8)
        self._start = ffi.cast("char *", self._memory.ctypes.data)

    def take(self, link: Any, begun: bytearray) -> Received:
        """Take a bounded part of the messages that a receiving link has.

        Args:
            link: the ``pn_link_t``.
            begun: the bytes of a message of which only some frames have come; the caller keeps it from turn to turn.
        """
        current, recv = lib.pn_link_current, lib.pn_link_recv
        settle, advance = lib.pn_delivery_settle, lib.pn_link_advance
        if len(self._memory) > _KEPT_BYTES:
            self._allocate(MAX_BYTES + (64 << 10))
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
            if total > self._max:
                refusal = LinkRefused(
                    MESSAGE_TOO_LARGE,
                    f"a message of more than {self._max} bytes, this node's max-message-size, was sent",
                )
                break
            # Only the new bytes of an unfinished message are moved: it may come in thousands of frames.
            held = 0 if lib.pn_delivery_partial(delivery) else len(begun)
            if size + held + pending > len(self._memory):
                self._grow(size, held + pending)
            if held:
                ffi.memmove(self._start + size, ffi.from_buffer(begun), held)
            if pending:
                recv(link, self._start + size + held, pending)
            if lib.pn_delivery_partial(delivery):
                begun += self._memory[size : size + pending].tobytes()
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
        return Received(MessageBlock(self._memory[:size], starts, stops), deliveries, refusal, more)

    def give_away(self) -> None:
        """Use other memory from the next turn on: what the last turn returned keeps its memory."""
        self._allocate(MAX_BYTES + (64 << 10))

    def _grow(self, used: int, needed: int) -> None:
        old = self._memory
        self._allocate(used + needed + (64 << 10))
        self._memory[:used] = old[:used]
