"""Collects deliveries of a receiving link in one preallocated buffer, to decode many of them at once.

The frame headers between the messages are copied with them: one copy of a thousand frames takes less time than a
thousand copies.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.engine.incoming_deliveries import RELEASE, IncomingDeliveries
from spark_streams.wire.amqp.engine.messages import SETTLED, Messages
from spark_streams.wire.amqp.performatives import ACCEPTED
from spark_streams.wire.amqp.values import Described, ULong
from spark_streams.wire.columnar.byte_view import Positions

_SLACK_BYTES: Final = 1 << 20
"""Bytes of room after ``max_bytes``, so that a message that begins before the limit seldom makes the buffer grow."""


_EMPTY: Final = "the peer sent an empty message: expected at least a body section"


class ReceiveBuffer:
    """Holds messages in one buffer.

    Args:
        max_rows: messages that fit.
        max_bytes: the buffer begins no further message once it has this many bytes; the last message may exceed it.
        settles: whether each delivery is released as it is taken, for probes; if not, ``accept`` settles them.

    Attributes:
        rows: the messages in the buffer.
        size: bytes in the buffer.
    """

    def __init__(self, max_rows: int, max_bytes: int, *, settles: bool = True) -> None:
        self._settles = settles
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._starts = np.empty(max_rows, np.int64)
        self._ends = np.empty(max_rows, np.int64)
        self._allocate(max_bytes + _SLACK_BYTES)
        self._held: list[tuple[int, Positions]] = []
        self.rows = 0
        self.size = 0

    def _allocate(self, size: int) -> None:
        self._bytes = bytearray(size)  # can be searched in place, which NumPy's array cannot
        self._memory = np.frombuffer(self._bytes, np.uint8)

    def take(self, deliveries: IncomingDeliveries) -> int:
        """Move the messages that have arrived into the buffer, until it is full.

        Returns:
            How many messages were moved.

        Raises:
            RemoteProtocolError: a message is empty or does not come from a log, or the peer broke another rule.
        """
        first = self.rows
        while not self.full and (run := deliveries.next_run()) is not None:
            origin = int(run.starts[0])
            if len(run.starts) == 1:
                self._take_one(run, deliveries)
                continue
            # A message begins where the one before it ends.
            count = 1 + int(np.searchsorted(run.ends[:-1], origin + self._max_bytes - self.size))
            count = min(count, self._max_rows - self.rows)
            starts, ends = run.starts[:count], run.ends[:count]
            if (starts == ends).any():
                raise RemoteProtocolError(_EMPTY)
            size = int(ends[-1]) - origin
            if self.size + size > len(self._memory):
                self._grow(self.size + size)
            self._memory[self.size : self.size + size] = run.memory[origin : origin + size]
            rows = slice(self.rows, self.rows + count)
            np.add(starts, self.size - origin, out=self._starts[rows])
            np.add(ends, self.size - origin, out=self._ends[rows])
            self._settle_or_hold(run, count, deliveries)
            self.rows += count
            self.size += size
            deliveries.taken(count)
        if deliveries.proof is not None and self.rows > first:
            deliveries.proof(self.block(first))
            deliveries.proof = None
            deliveries.flow(0)  # tells the peer of the credit that was kept back
        return self.rows - first

    def _take_one(self, run: Messages, deliveries: IncomingDeliveries) -> None:
        """Move a message that came alone, as large ones do: as ``take`` moves many, but without arrays."""
        start, end, row, at = int(run.starts[0]), int(run.ends[0]), self.rows, self.size
        size = end - start
        if not size:
            raise RemoteProtocolError(_EMPTY)
        if at + size > len(self._memory):
            self._grow(at + size)
        self._memory[at : at + size] = run.memory[start:end]
        self._starts[row], self._ends[row] = at, at + size
        self._settle_or_hold(run, 1, deliveries)
        self.rows, self.size = row + 1, at + size
        deliveries.taken(1)

    def _settle_or_hold(self, run: Messages, count: int, deliveries: IncomingDeliveries) -> None:
        ids = run.ids[:count]
        if ids[0] == SETTLED and (count == 1 or ids.max() == SETTLED):
            return
        if self._settles:
            deliveries.settle(ids, RELEASE)
        else:
            self._held.append((self.rows, ids))

    @property
    def full(self) -> bool:
        """Whether the buffer begins no further message."""
        return self.rows >= self._max_rows or self.size >= self._max_bytes

    def holds(self, text: bytes, since: int) -> bool:
        """Return whether ``text`` occurs from byte ``since`` on, in the messages or between them."""
        return self._bytes.find(text, since, self.size) >= 0

    def block(self, first: int = 0) -> MessageBlock:
        """Return the messages from row ``first`` on; ``clear`` frees their memory for other messages."""
        origin = int(self._starts[first]) if self.rows > first else 0
        rows = slice(first, self.rows)
        return MessageBlock(self._memory[origin : self.size], self._starts[rows] - origin, self._ends[rows] - origin)

    def delivery_id(self, row: int) -> int | None:
        """Return the number of a row's delivery that is held; None for a settled one."""
        for first, ids in self._held:
            if first <= row < first + len(ids) and ids[row - first] != SETTLED:
                return int(ids[row - first])
        return None

    def accept(self, deliveries: IncomingDeliveries) -> None:
        """Accept and settle the deliveries that are held."""
        for _, ids in self._held:
            deliveries.settle(ids, Described(ULong(ACCEPTED), []))
        self._held.clear()

    def clear(self) -> None:
        """Drop the messages."""
        if len(self._memory) > self._max_bytes + _SLACK_BYTES:
            self._allocate(self._max_bytes + _SLACK_BYTES)
        self._held.clear()
        self.rows = self.size = 0

    def _grow(self, size: int) -> None:
        old = self._memory
        self._allocate(size + _SLACK_BYTES)
        self._memory[: self.size] = old[: self.size]
