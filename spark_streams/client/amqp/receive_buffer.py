"""Taking deliveries out of proton's engine: many messages into one preallocated buffer.

The loop over ``pn_link_current``, ``pn_link_recv`` and ``pn_delivery_settle`` is the one place of a read where Python
runs per message (0.55 µs measured); it makes no object but the delivery's pointer. Lengths go into a C array that NumPy
reads in place.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from cproton_ffi import ffi, lib

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns import MessageBlock

__all__ = ["HeadBuffer", "ReceiveBuffer"]

_SLACK_BYTES: Final = 1 << 20
"""Room behind ``max_bytes``, so that a message that begins before the limit seldom makes the buffer grow."""

HEAD_BYTES: Final = 512
"""What is kept of a message when only its delivery annotations matter; they come first and are about 150 bytes."""


class _Lengths:
    """The ends of the messages in the buffer, as a C array and as the same memory in NumPy."""

    def __init__(self, max_rows: int) -> None:
        self.cells = ffi.new("int64_t[]", max_rows)
        self._array = np.frombuffer(ffi.buffer(self.cells), np.int64)

    def spans(self, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return starts and ends (exclusive) of the first ``rows`` messages, copied."""
        ends = self._array[:rows].copy()
        starts = np.empty_like(ends)
        if rows:
            starts[0] = 0
            starts[1:] = ends[:-1]
        return starts, ends


class ReceiveBuffer:
    """Whole messages, back to back in one buffer.

    Args:
        max_rows: messages that fit.
        max_bytes: no further message is begun once this many bytes are there; the last may exceed it.
        max_message_bytes: largest message that the buffer grows for.
    """

    def __init__(self, max_rows: int, max_bytes: int, max_message_bytes: int) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._max_message_bytes = max_message_bytes
        self._lengths = _Lengths(max_rows)
        self._allocate(max_bytes + _SLACK_BYTES)
        self.rows = 0
        self._size = 0
        self._whole = 0

    def _allocate(self, size: int) -> None:
        self._memory = np.empty(size, np.uint8)
        self._start = ffi.cast("char *", self._memory.ctypes.data)

    @property
    def full(self) -> bool:
        """Whether no further message is begun."""
        return self.rows >= self._max_rows or self._whole >= self._max_bytes

    @property
    def whole_bytes(self) -> int:
        """Bytes of the whole messages that are there."""
        return self._whole

    @property
    def received(self) -> int:
        """Bytes that are there, those of a message that is only begun included."""
        return self._size

    def take(self, link: Any, held: list[Any] | None = None) -> int:
        """Move what has arrived on a receiving link into the buffer, until it is full.

        A message of which only some frames have come is begun, and goes on with the next call.

        Args:
            link: the ``pn_link_t``.
            held: where to put deliveries that the peer did not settle, advanced but unsettled; None settles each.

        Returns:
            Messages that were completed.

        Raises:
            RemoteProtocolError: a message is empty, or larger than allowed.
        """
        current, recv, settle, advance = (
            lib.pn_link_current,
            lib.pn_link_recv,
            lib.pn_delivery_settle,
            lib.pn_link_advance,
        )
        end_of_message = lib.PN_EOS
        cells, memory, capacity = self._lengths.cells, self._start, len(self._memory)
        row, size, whole = self.rows, self._size, self._whole
        first, max_rows, max_bytes = row, self._max_rows, self._max_bytes
        # Deliveries of a link come one after the other: only the last one queued can be incomplete.
        left = lib.pn_link_queued(link)
        while left and row < max_rows and whole < max_bytes:
            delivery = current(link)
            if not delivery:
                break
            got = recv(link, memory + size, capacity - size)
            if got > 0:
                size += got
                if size == capacity:
                    self._size = size
                    self._grow(whole)
                    memory, capacity = self._start, len(self._memory)
                    continue
            elif got < 0 and got != end_of_message:
                size = whole  # aborted: the peer takes back what it began (AMQP 1.0 part 2 §2.6.14)
                settle(delivery)
                left -= 1
                continue
            if left == 1 and lib.pn_delivery_partial(delivery):
                break
            if size == whole:
                raise RemoteProtocolError("the peer sent an empty message: expected at least a body section")
            cells[row] = whole = size
            row += 1
            left -= 1
            if held is None:
                settle(delivery)
            else:
                held.append(delivery)
                advance(link)
        self.rows, self._size, self._whole = row, size, whole
        return row - first

    def holds(self, text: bytes, since: int) -> bool:
        """Say whether ``text`` occurs in the whole messages from byte ``since`` on (a quick look, not a decision)."""
        return self._memory[since : self._whole].tobytes().find(text) >= 0

    def block(self, first: int = 0) -> MessageBlock:
        """Return the whole messages from row ``first`` on; their memory is used again after ``clear``."""
        starts, ends = self._lengths.spans(self.rows)
        starts, ends = starts[first:], ends[first:]
        origin = int(starts[0]) if len(starts) else 0
        return MessageBlock(self._memory[origin : self._whole], starts - origin, ends - origin)

    def clear(self) -> None:
        """Forget the whole messages; a message that is only begun stays."""
        begun = self._size - self._whole
        old = self._memory[self._whole : self._size]
        if len(self._memory) > self._max_bytes + _SLACK_BYTES and begun < self._max_bytes:
            old = old.copy()
            self._allocate(self._max_bytes + _SLACK_BYTES)
        self._memory[:begun] = old.copy()
        self.rows, self._size, self._whole = 0, begun, 0

    def _grow(self, whole: int) -> None:
        if self._size - whole > self._max_message_bytes:
            raise RemoteProtocolError(
                f"the peer sent a message of more than {self._max_message_bytes} bytes, the most this client takes"
            )
        old = self._memory
        self._allocate(min(2 * len(old), whole + self._max_message_bytes + _SLACK_BYTES + 1))
        self._memory[: self._size] = old[: self._size]


class HeadBuffer:
    """The first bytes of each message, back to back; the rest is dropped inside the engine, not copied.

    Args:
        max_rows: messages that fit.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._lengths = _Lengths(max_rows)
        self._memory = np.empty(max_rows * HEAD_BYTES, np.uint8)
        self._start = ffi.cast("char *", self._memory.ctypes.data)
        self._waste = ffi.new("char[]", 65_536)
        self._size = 0
        self._whole = 0
        self.rows = 0

    def take(self, link: Any) -> int:
        """Move the heads of what has arrived into the buffer, until it is full; see ``ReceiveBuffer.take``."""
        current, recv, settle, partial = (
            lib.pn_link_current,
            lib.pn_link_recv,
            lib.pn_delivery_settle,
            lib.pn_delivery_partial,
        )
        end_of_message = lib.PN_EOS
        cells, memory, waste = self._lengths.cells, self._start, self._waste
        row, size, whole = self.rows, self._size, self._whole
        first, max_rows = row, self._max_rows
        left = lib.pn_link_queued(link)
        while left and row < max_rows:
            delivery = current(link)
            if not delivery:
                break
            room = HEAD_BYTES - (size - whole)
            got = recv(link, memory + size, room) if room else recv(link, waste, len(waste))
            if got > 0:
                size += got if room else 0
            elif got < 0 and got != end_of_message:
                size = whole
                settle(delivery)
                left -= 1
                continue
            if left == 1 and partial(delivery):
                # The rest of a large message is emptied out as it comes: settling now would leak its session window.
                while size - whole == HEAD_BYTES and recv(link, waste, len(waste)) > 0:
                    pass
                break
            if size == whole:
                raise RemoteProtocolError("the peer sent an empty message: expected at least a body section")
            cells[row] = whole = size
            row += 1
            left -= 1
            settle(delivery)
        self.rows, self._size, self._whole = row, size, whole
        return row - first

    def block(self) -> MessageBlock:
        """Return the heads; their memory is used again after ``clear``."""
        starts, ends = self._lengths.spans(self.rows)
        return MessageBlock(self._memory[: self._whole], starts, ends)

    def clear(self) -> None:
        """Forget the heads of whole messages; one that is only begun stays."""
        begun = self._size - self._whole
        self._memory[:begun] = self._memory[self._whole : self._size].copy()
        self.rows, self._size, self._whole = 0, begun, 0
