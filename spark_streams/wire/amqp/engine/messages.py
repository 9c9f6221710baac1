"""Received messages: whole ones in columns, and one of which only some frames have come.

Spec: AMQP 1.0 part 2 §2.6.12 (transferring a message), §2.7.5 (transfer).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.engine.session import Unfinished
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Mask, Positions, Words
from spark_streams.wire.columnar.gather import gather

SETTLED: Final = -1
"""Stands for the delivery-id of a message that the peer sent settled."""
OWN_BYTES: Final = 48
"""The memory of a waiting message beside its bytes: its places, its delivery-id and its format, and some more."""
_NOTHING: Final = np.zeros(0, np.uint8)
_NO_BYTES: Final = memoryview(bytearray())
_NO_PLACES: Final = np.zeros(0, np.int64)


class Messages(NamedTuple):
    """Whole messages in one piece of memory, in their order.

    Args:
        memory: the bytes; those between the messages mean nothing.
        starts, ends: where each message lies, the end exclusive.
        ids: their delivery-ids, ``SETTLED`` for those that the peer has settled.
        formats: their message formats; AMQP's messages have 0.
    """

    memory: NDArray[np.uint8]
    starts: Positions
    ends: Positions
    ids: Positions
    formats: Positions

    @property
    def held_bytes(self) -> int:
        """The memory that the messages take; there has to be at least one."""
        return int(self.ends[-1]) - int(self.starts[0]) + len(self.ids) * OWN_BYTES

    @property
    def block(self) -> MessageBlock:
        """The messages, without their ids."""
        return MessageBlock(self.memory, self.starts, self.ends)

    def rows(self, rows: slice | Mask) -> Messages:
        """Return some of the messages."""
        return Messages(self.memory, self.starts[rows], self.ends[rows], self.ids[rows], self.formats[rows])

    def heads(self, most_bytes: int) -> Messages:
        """Return the first bytes of the messages."""
        sizes = np.minimum(self.ends - self.starts, most_bytes)
        bounds, memory = layout(gather(Words(self.memory), self.starts, sizes, pa.large_binary()))
        return self._replace(memory=memory, starts=bounds[:-1], ends=bounds[1:])


def joined(pieces: list[Messages]) -> Messages:
    """Return the messages of all pieces, with no more memory than from the first to the last one of each piece."""
    if not pieces:
        return Messages(_NOTHING, _NO_PLACES, _NO_PLACES, _NO_PLACES, _NO_PLACES)
    memories = [piece.memory[int(piece.starts[0]) : int(piece.ends[-1])] for piece in pieces]
    places = np.cumsum([0, *map(len, memories[:-1])]).tolist()
    moved = [place - int(piece.starts[0]) for place, piece in zip(places, pieces, strict=True)]
    columns = [
        (piece.starts + by, piece.ends + by, piece.ids, piece.formats) for piece, by in zip(pieces, moved, strict=True)
    ]
    if len(pieces) == 1:
        return Messages(memories[0], *columns[0])
    return Messages(np.concatenate(memories), *map(np.concatenate, zip(*columns, strict=True)))


class Begun:
    """The bytes of a message of which some frames have come.

    The memory is as large as the last message was, or larger, so that messages of about one size are copied once.

    Args:
        unfinished: counts them; None where nothing bounds them.
    """

    def __init__(self, unfinished: Unfinished | None) -> None:
        self._unfinished = unfinished
        self._size = self._last = 0
        self._memory, self._view = _NOTHING, _NO_BYTES

    def __len__(self) -> int:
        return self._size

    def add(self, payload: memoryview) -> None:
        """Add the bytes of a frame.

        Raises:
            Violation: the connection has too many bytes of unfinished messages.
        """
        size, old = self._size + len(payload), self._view
        if size > len(old):
            self._memory = np.empty(max(size, 2 * len(old), self._last), np.uint8)
            self._view = self._memory.data
            self._view[: self._size] = old[: self._size]
        self._view[self._size : size] = payload
        self._size = size
        if self._unfinished is not None:
            self._unfinished.add(len(payload))

    def whole(self) -> NDArray[np.uint8]:
        """Return the message, whose last frame was added, without a copy: it may have thousands of frames."""
        self._last = self._size
        return self._memory[: self._size]

    def clear(self) -> None:
        """Forget the message."""
        if self._unfinished is not None:
            self._unfinished.add(-self._size)
        self._size, self._memory, self._view = 0, _NOTHING, _NO_BYTES
