"""Prepares stored events to be sent as AMQP transfers, and caches them for each partition.

A transfer carries the section with the log's annotations, which the door renders for a whole block at once, and the
bare message, which is sent from the log's own bytes. A producer of the AMQP door cannot store the sections header
and delivery annotations: they are meant for the node, which drops them. A RabbitMQ stream gives its readers the bytes
that were published, so it stores these sections; when the AMQP door sends such a message, the door's own delivery
annotations replace them.

Spec: AMQP 1.0 part 3 §3.2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.log import Partition, Records
from spark_streams.log.format.varint import Longs
from spark_streams.server.partition_readers import PartitionReader
from spark_streams.wire.amqp.columns.block import BlockSections, MessageBlock
from spark_streams.wire.amqp.columns.single_message import row_columns
from spark_streams.wire.amqp.event_streams import delivery_annotations
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS
from spark_streams.wire.columnar.byte_view import Words
from spark_streams.wire.columnar.interleave import Ranges, grouped

READ_BYTES: Final = 256 << 10
"""Bytes of one read: enough that decoding in columns pays, few enough that one read does not delay other links."""
SEARCHED_BYTES: Final = 1 << 20
"""Bytes of one read for a link whose filter reads messages: most of them are not sent."""
CACHED_BLOCKS: Final = 4
"""Links that read a log's tail stand within a block or two of each other."""
_SMALL_ULONG: Final = 0x53
_ULONG: Final = 0x80
_SYMBOLS: Final = (0xA3, 0xB3)
_HEADER: Final = 0x70
"""Header; 0x71, delivery annotations, is the other section before the bare message."""


class TransferBlock:
    """Events of a partition in rising order, made ready to send once one of them is sent.

    Attributes:
        offsets, timestamps: int64[n], for filters.
        first, last: the offsets of the first and the last event.
    """

    def __init__(self, records: Records, partition: str) -> None:
        self.offsets = records.offsets
        self.timestamps = records.timestamps
        self.first = int(records.offsets[0])
        self.last = int(records.offsets[-1])
        self.records = records
        self._partition = partition

    def only(self, rows: NDArray[np.int64]) -> TransferBlock:
        """Return a block of one or more of these events, by their rising rows."""
        return type(self)(self.records.take(rows), self._partition)

    @cached_property
    def sizes(self) -> Longs:
        """Bytes of each transfer."""
        return sum((each.ends - each.starts for each in self.pieces), np.zeros(len(self.offsets), np.int64))

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest transfer."""
        return int(self.sizes.max())

    @cached_property
    def pieces(self) -> tuple[Ranges, ...]:
        """Where the bytes of each transfer are, one piece after the other: delivery annotations, and bare messages."""
        records = self.records
        sections = delivery_annotations(records.offsets, records.timestamps, self._partition)
        stored = Ranges(records.buffer, bare_starts(records), records.value_ends)
        return Ranges(*grouped(len(records.offsets), sections)), stored

    def rows(self, rows: Longs) -> tuple[Ranges, ...]:
        """Return the pieces of some events' transfers."""
        return tuple(Ranges(each.buffer, each.starts[rows], each.ends[rows]) for each in self.pieces)

    def message(self, row: int) -> tuple[bytes, ...]:
        """Return the pieces of one event's transfer."""
        return tuple(
            np.frombuffer(each.buffer, np.uint8)[each.starts[row] : each.ends[row]].tobytes() for each in self.pieces
        )


class BlockReader(PartitionReader):
    """Reads a partition in transfer blocks, and keeps the latest of them for all links.

    Args:
        partition, loop: see ``PartitionReader``.
        make_block: prepares its events.
    """

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop, make_block: type[TransferBlock]) -> None:
        super().__init__(partition, loop)
        self._make_block = make_block
        self._blocks: deque[TransferBlock] = deque(maxlen=CACHED_BLOCKS)

    def block(self, offset: int, size: int = READ_BYTES) -> TransferBlock | None:
        """Return a block that holds the event ``offset``, or begins with the first retained one after it.

        Args:
            offset: where to read.
            size: bytes to read when the block is not cached.

        Returns:
            None at the end of the log.

        Raises:
            CorruptLog: the stored bytes fail their check.
        """
        for block in self._blocks:
            if block.first <= offset <= block.last:
                return block
        records = self.partition.read(offset, size)
        if records is None or not len(records.offsets):
            return None
        block = self._make_block(records, self.partition.id)
        self._blocks.append(block)
        return block


def bare_starts(records: Records) -> Longs:
    """Return the first byte of each record's bare message; the record's end where it has none."""
    starts, ends = records.value_starts, records.value_ends
    words = Words(np.frombuffer(records.buffer, np.uint8))
    head = words.little(starts)
    # Nearly every message begins with a descriptor of one byte, and with another section than these.
    form, code = head >> 8 & 0xFF, head >> 16 & 0xFE
    suspect = code == _HEADER
    if not (form == _SMALL_ULONG).all():
        suspect &= form == _SMALL_ULONG
        suspect |= (form == _ULONG) & (words.little(starts + 9) & 0xFE == _HEADER) | np.isin(form, _SYMBOLS)
    rows = np.flatnonzero(suspect & (ends - starts >= 3))
    if not len(rows):
        return starts
    block = BlockSections(MessageBlock(records.buffer, starts[rows], ends[rows]), DELIVERY_ANNOTATIONS)
    found: Longs = starts.copy()
    found[rows] = np.where(block.irregular, starts[rows], block.sections.bare_start + block.origin)
    for row in np.flatnonzero(block.irregular).tolist():
        with suppress(RemoteProtocolError):
            found[rows[row]] += row_columns(block.raw(row), ("message",))["bare_start"]
    return found
