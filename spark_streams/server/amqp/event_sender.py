"""Sends events on a link: those of its positions in partitions, in turn, as credit, filters and limits allow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from spark_streams.errors import CorruptLog
from spark_streams.log import Stream
from spark_streams.offsets import format_offset
from spark_streams.server.activity import MOST_TEXT, Item, ReaderInfo, Who
from spark_streams.server.amqp.connection_links import AttachedLink, LinkConnection
from spark_streams.server.amqp.error_conditions import INTERNAL_ERROR, RESOURCE_DELETED, LinkRefused
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.link_turns import BYTES_PER_TURN
from spark_streams.server.amqp.transfer_block import TransferBlock
from spark_streams.server.counters import logger
from spark_streams.server.turns import Turn
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.session import MESSAGE_TOO_LARGE
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

EVENTS_PER_TURN: Final = 4_096
"""One or two milliseconds of work, after which other links and connections have their turn."""
EVENTS_PER_PARTITION: Final = 1_024
"""How many events of one partition an agnostic link sends before the next partition's turn."""
BLOCKS_PER_TURN: Final = 8
"""Blocks that a filter without matches may skip in one turn."""
_UNLIMITED: Final = 1 << 62


class EventSender(AttachedLink):
    """A link on which the door sends events; each door defines its beginning, and the meaning of outcomes.

    Args:
        connection, link: see ``AttachedLink``.
        stream: the log.

    Attributes:
        positions: partition to the link's position in it; a subclass sets them with ``set_positions``.
        membership: its consumer group, or None, the user that this belongs to (empty: it is everybody's), and the
            link's epoch, or None.
    """

    _max_unsettled = _UNLIMITED
    """With so many unsettled deliveries, no more are sent."""
    _size_limit = 0
    """Bytes of the largest transfer that the peer takes; 0 for any."""

    def __init__(self, connection: LinkConnection, link: Link, stream: Stream) -> None:
        super().__init__(connection, link, stream)
        self.positions: dict[str, LinkPosition] = {}
        self.membership: tuple[str | None, str, int | None] = (None, "", None)
        self._deliveries = link.outgoing
        self._deliveries.available = lambda: sum(position.available for position in self._order)
        self._log_stream = stream
        self._turn = 0
        self._order: list[LinkPosition] = []

    def set_positions(self, positions: Mapping[str, LinkPosition]) -> None:
        """Send from these positions; ``_released`` gives their readers back."""
        self.positions = dict(positions)
        self._order = list(self.positions.values())

    def told(self, who: Who) -> Iterable[Item]:
        """Return the link as a reader of each of its partitions."""
        name = self.link.name[:MOST_TEXT]
        for part, (partition, position) in enumerate(list(self.positions.items())):
            yield ReaderInfo(*who, self.stream, partition, position.reached, name, *self.membership, part)

    def serve(self) -> bool:
        """Send what credit, filters and limits allow, within one turn's share."""
        if self.ended:
            return False
        deliveries, counters = self._deliveries, self.node.counters
        sent, written = deliveries.sent, deliveries.written
        try:
            return self._serve()
        except LinkRefused as refusal:
            self.fail(refusal)
        except (CorruptLog, OSError, ValueError) as fault:
            if not self.node.is_there(self.stream, self.incarnation):
                self.fail(LinkRefused(RESOURCE_DELETED, f"stream '{self.stream}' was deleted"))
            elif (gone := self._gone()) is not None:
                self.fail(gone)
            else:
                logger.exception("stream %r cannot be read", self.stream)
                self.fail(LinkRefused(INTERNAL_ERROR, f"the log cannot be read: {fault}"))
        finally:
            counters.delivered += deliveries.sent - sent
            counters.delivered_bytes += deliveries.written - written
        return False

    def _serve(self) -> bool:
        deliveries = self._deliveries
        budget, blocks, before = EVENTS_PER_TURN, BLOCKS_PER_TURN, deliveries.written
        turn = Turn(time.monotonic)  # reads wait for the disk; the cost of a filter is up to the peer that wrote it
        while True:
            if self.connection.turns.paused:
                self.connection.turns.block(self)
                return False
            deliveries.go_on(before + BYTES_PER_TURN - deliveries.written)
            written = deliveries.written - before
            if budget <= 0 or blocks <= 0 or written >= BYTES_PER_TURN:
                return True
            if deliveries.is_begun or (deliveries.credit > 0 and not deliveries.room):
                # The peer's next flow decides. A link that has written goes behind those that wait for the same session
                # window.
                if not written:
                    self.connection.turns.block(self)
                return bool(written)
            room = min(budget, deliveries.room, self._max_unsettled - deliveries.unsettled)
            if room <= 0:
                if deliveries.credit <= 0:
                    deliveries.give_back()
                return False
            sent, scanned = self._send_one_share(min(room, EVENTS_PER_PARTITION) if len(self._order) > 1 else room)
            budget -= sent
            blocks -= scanned
            if sent == 0 and scanned == 0:
                if self._wait_for_events():
                    continue
                deliveries.give_back()  # all matching events are on their way
                return False
            if sent == 0 and turn.over:
                return True

    def _send_one_share(self, limit: int) -> tuple[int, int]:
        """Send from the first partition in turn that has events to send.

        Returns:
            Events sent, and blocks that were read or skipped.
        """
        scanned = 0
        for step in range(len(self._order)):
            sent, looked = self._send_from(self._order[(self._turn + step) % len(self._order)], limit)
            scanned += looked
            if sent is not None:
                self._turn += step + 1
                return sent, scanned
        return 0, scanned

    def _send_from(self, position: LinkPosition, limit: int) -> tuple[int | None, int]:
        """Send from one partition.

        Returns:
            Events sent, None if there are none to send; and blocks that were read or skipped.
        """
        if not position.advance():
            return None, 0
        taken = position.take(limit)
        return (None if taken is None else self._send(position, *taken)), 1

    def _send(self, position: LinkPosition, block: TransferBlock, rows: Positions) -> int:
        if self._size_limit and block.largest > self._size_limit:
            rows = self._within_limit(position, block, rows)
        sent = self._send_rows(position, block, rows)
        position.give_back(len(rows) - sent)
        self._moved()
        return sent

    def _send_rows(self, position: LinkPosition, block: TransferBlock, rows: Positions) -> int:
        """Send some events of a block; return how many of them, from the first on."""
        return self._deliveries.send(*self._pieces(block, rows), offsets=block.offsets[rows], origin=(position, 0))

    def _pieces(self, block: TransferBlock, rows: Positions) -> tuple[Ranges, ...]:
        """Return what the transfers of some events consist of."""
        return block.rows(rows)

    def _within_limit(self, position: LinkPosition, block: TransferBlock, rows: Positions) -> Positions:
        """Return the rows before the first event too large for the peer; raise LinkRefused if it is the first row."""
        large = np.flatnonzero(block.sizes[rows] > self._size_limit)
        if not len(large):
            return rows
        if large[0] == 0:
            raise LinkRefused(
                MESSAGE_TOO_LARGE,
                f"the event at offset {format_offset(int(block.offsets[rows[0]]))} of partition "
                f"'{position.reader.partition.id}' has {int(block.sizes[rows[0]])} bytes, "
                f"and the receiver's max-message-size is {self._size_limit}",
            )
        position.give_back(len(rows) - int(large[0]))
        return rows[: large[0]]

    def _wait_for_events(self) -> bool:
        """Register for a wake-up at the next append; return whether an append has come meanwhile."""
        for position in self._order:
            position.reader.add_waiter(self._wake)
        return any(position.available for position in self._order)

    def _wake(self) -> None:
        self.connection.turns.wake(self)

    def _moved(self) -> None:
        """Note that the positions have changed."""

    def follow(self) -> None:
        """End the link if the history of one of its partitions was redistributed.

        The offsets of its events mean nothing on the partitions that replace it.
        """
        gone = None if self.ended else self._gone()
        if gone is not None:
            self.fail(gone)

    def _gone(self) -> LinkRefused | None:
        names = self._log_stream.partitions
        for name, position in self.positions.items():
            if name not in names:
                return LinkRefused(
                    RESOURCE_DELETED,
                    f"partition '{name}' of stream '{self.stream}' is gone: its history was redistributed onto "
                    f"partitions {', '.join(position.reader.partition.successors)}, attach again",
                )
        return None

    def _released(self, *, closed: bool) -> None:
        for position in self._order:
            position.reader.remove_waiter(self._wake)
            self.node.readers.release(position.reader)
        self.set_positions({})
        super()._released(closed=closed)
