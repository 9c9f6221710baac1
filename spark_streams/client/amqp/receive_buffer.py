"""Copies deliveries out of proton's engine: many messages into one preallocated buffer.

The loop over ``pn_link_current``, ``pn_link_recv`` and ``pn_delivery_settle`` is the only place of a read where Python
runs per message (0.55 µs measured); it creates no object but the delivery's pointer. It puts lengths into a C array
that NumPy reads in place.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from cproton_ffi import ffi, lib

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns.block import MessageBlock

_SLACK_BYTES: Final = 1 << 20
"""Bytes of room behind ``max_bytes``, so that a message that begins before the limit seldom makes the buffer grow."""

HEAD_BYTES: Final = 512
"""Bytes kept of a message when only its delivery annotations matter; they come first and have about 150 bytes."""

_WASTE: Final = ffi.new("char[]", 65_536)
"""The memory for bytes that are not kept."""


class ReceiveBuffer:
    """Holds messages back to back in one buffer.

    Args:
        max_rows: messages that fit.
        max_bytes: the buffer begins no further message once it has this many bytes; the last message may exceed it.
        max_message_bytes: bytes of the largest message that the buffer grows for.
        settles: whether each delivery is settled as it is taken, which suits a peer that settles them itself; if not,
            ``accept`` settles them.

    Attributes:
        held: the deliveries of the whole messages, advanced but unsettled; None where each is settled as it is taken.
        rows: the whole messages in the buffer.
        whole_bytes: bytes of these.
        received: bytes in the buffer, those of an incomplete message included.
    """

    _kept_bytes: int | None = None
    """How many bytes of a message are kept, at most; None for all."""

    def __init__(self, max_rows: int, max_bytes: int, max_message_bytes: int, *, settles: bool = True) -> None:
        self.held: list[Any] | None = None if settles else []
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._max_message_bytes = max_message_bytes
        self._cells = ffi.new("int64_t[]", max_rows)
        self._ends = np.frombuffer(ffi.buffer(self._cells), np.int64)
        self._allocate(max_bytes + _SLACK_BYTES)
        self.rows = 0
        self.received = 0
        self.whole_bytes = 0

    def _allocate(self, size: int) -> None:
        self._memory = np.empty(size, np.uint8)
        self._start = ffi.cast("char *", self._memory.ctypes.data)

    def take(self, link: Any) -> int:
        """Move the messages that have arrived on a receiving link into the buffer, until it is full.

        A message may have come only in part: this call copies its first frames, and the next call continues it.

        Args:
            link: the ``pn_link_t``.

        Returns:
            The number of messages that this call completed.

        Raises:
            RemoteProtocolError: a message is empty, or larger than allowed.
        """
        current, recv, settle, advance = (
            lib.pn_link_current,
            lib.pn_link_recv,
            lib.pn_delivery_settle,
            lib.pn_link_advance,
        )
        end_of_message, kept = lib.PN_EOS, self._kept_bytes
        cells, memory, held = self._cells, self._start, self.held
        row, size, whole = self.rows, self.received, self.whole_bytes
        first, max_rows, max_bytes = row, self._max_rows, self._max_bytes
        limit = whole + kept if kept else len(self._memory)
        # Deliveries of a link come one after the other: only the last queued one can be incomplete.
        left = lib.pn_link_queued(link)
        while left and row < max_rows and whole < max_bytes:
            delivery = current(link)
            if not delivery:
                break
            got = recv(link, memory + size, limit - size)
            if got > 0:
                size += got
                if size == limit and not kept:
                    self.received = size
                    self._grow(whole)
                    memory, limit = self._start, len(self._memory)
                    continue
            elif got < 0 and got != end_of_message:
                size = whole  # the peer aborted the delivery (AMQP 1.0 part 2 §2.6.14)
                settle(delivery)
                left -= 1
                continue
            if left == 1 and lib.pn_delivery_partial(delivery):
                # Read the bytes that are not kept as they come: settling now would leak their part of the session
                # window.
                while size == limit and recv(link, _WASTE, len(_WASTE)) > 0:
                    pass
                break
            if size == whole:
                raise RemoteProtocolError("the peer sent an empty message: expected at least a body section")
            cells[row] = whole = size
            row += 1
            left -= 1
            if kept:
                limit = whole + kept
            if held is None:
                settle(delivery)
            else:
                held.append(delivery)
                advance(link)
        self.rows, self.received, self.whole_bytes = row, size, whole
        return row - first

    @property
    def full(self) -> bool:
        """Whether the buffer begins no further message."""
        return self.rows >= self._max_rows or self.whole_bytes >= self._max_bytes

    def holds(self, text: bytes, since: int) -> bool:
        """Return whether ``text`` occurs in the whole messages from byte ``since`` on, in any of their sections."""
        return self._memory[since : self.whole_bytes].tobytes().find(text) >= 0

    def block(self, first: int = 0) -> MessageBlock:
        """Return the whole messages from row ``first`` on; ``clear`` frees their memory for other messages."""
        origin = int(self._ends[first - 1]) if first else 0
        ends = self._ends[first : self.rows] - origin
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        return MessageBlock(self._memory[origin : self.whole_bytes], starts, ends)

    def accept(self) -> None:
        """Accept and settle the deliveries that are held."""
        if self.held is None:
            return
        for delivery in self.held:
            lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
            lib.pn_delivery_settle(delivery)
        self.held.clear()

    def clear(self) -> None:
        """Drop the whole messages; the first part of an incomplete message stays."""
        begun = self.received - self.whole_bytes
        old = self._memory[self.whole_bytes : self.received].copy()
        if len(self._memory) > self._max_bytes + _SLACK_BYTES and begun < self._max_bytes:
            self._allocate(self._max_bytes + _SLACK_BYTES)
        self._memory[:begun] = old
        self.rows, self.received, self.whole_bytes = 0, begun, 0

    def _grow(self, whole: int) -> None:
        if self.received - whole > self._max_message_bytes:
            raise RemoteProtocolError(
                f"the peer sent a message of more than {self._max_message_bytes} bytes, the most this client takes"
            )
        old = self._memory
        self._allocate(min(2 * len(old), whole + self._max_message_bytes + _SLACK_BYTES + 1))
        self._memory[: self.received] = old[: self.received]


class HeadBuffer(ReceiveBuffer):
    """Holds the first bytes of each message, back to back; the rest of a message is dropped.

    Args:
        max_rows: messages that fit.
    """

    _kept_bytes = HEAD_BYTES

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows, max_rows * HEAD_BYTES, HEAD_BYTES)
