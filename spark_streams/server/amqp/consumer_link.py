"""Serves a link on which the door sends events: of one partition, or of all partitions in turn.

Delivery state: a presettled delivery is done when it is sent. Otherwise ``accepted``, ``rejected``, ``modified`` with
undeliverable-here, and settling without an outcome all mean done. After ``released`` and other ``modified`` outcomes
the link sends the event again, in offset order and before any later event that it has not sent yet; ``modified`` with
delivery-failed adds one to the header's delivery-count.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import numpy as np

from spark_streams.errors import CorruptLog
from spark_streams.offsets import format_offset
from spark_streams.server.amqp.attach_reply import open_consumer
from spark_streams.server.amqp.attach_request import ConsumerAttach
from spark_streams.server.amqp.connection_links import AttachedLink
from spark_streams.server.amqp.consumer_groups import Claim
from spark_streams.server.amqp.durable_termini import Resumed, Terminus, ranges
from spark_streams.server.amqp.error_conditions import INTERNAL_ERROR, MESSAGE_TOO_LARGE, RESOURCE_DELETED, LinkRefused
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.outgoing_deliveries import BYTES_PER_TURN, Outcome
from spark_streams.server.amqp.transfer_block import TransferBlock
from spark_streams.server.turns import Turn
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.event_streams import ASSIGNED_KEYS
from spark_streams.wire.amqp.values import Array, Described, Symbol, UInt, ULong
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

EVENTS_PER_TURN: Final = 4_096
"""One or two milliseconds of work, after which other links and connections have their turn."""
EVENTS_PER_PARTITION: Final = 1_024
"""How many events of one partition an agnostic link sends before the next partition's turn."""
BLOCKS_PER_TURN: Final = 8
"""Blocks that a filter without matches may skip in one turn."""

CHANGED: Final = Symbol(ASSIGNED_KEYS[0])
"""The section's name; its text says "assigned" (A-1)."""

logger = logging.getLogger("spark_streams.server")


class ConsumerLink(AttachedLink):
    """A sending link of the node.

    Args:
        attach: the receiver's attach, which is answered.
        bound: the partition that the link is bound to, or None.
        claim: its claim to the partition in a consumer group, or None.

    Attributes:
        positions: partition to the link's position in it, in the order of the log's partitions.
        terminus: its durable terminus, or None.
    """

    def __init__(self, attach: ConsumerAttach, bound: str | None, claim: Claim | None = None) -> None:
        super().__init__(attach.connection, attach.link, attach.stream)
        resumed = attach.resume()
        open_consumer(attach.link, attach.filters, bound, claim, durable=attach.durable)
        self._deliveries = attach.deliveries
        attach.connection.outgoing.open_sender(self._deliveries, attach.link)
        self._deliveries.owner, self._deliveries.settled = self, self._settled
        self._log_stream = attach.stream
        self.bound = bound
        self.claim = claim
        self.terminus: Terminus | None = None
        self._filters = attach.filters
        self._max_unsettled = self.node.config.max_unsettled
        self._size_limit = int(attach.link.remote_max_message_size)
        self._changed = False
        self._turn = 0
        self._partition_count = len(attach.stream.partitions)
        names = self.node.placement.here(attach.stream) if bound is None else [bound]
        self.positions = {name: self._position(name, resumed) for name in names}
        self._order = list(self.positions.values())
        if claim is not None:
            claim.end_owner = self.fail_from_outside
        if attach.durable:
            self.terminus = Terminus(attach.terminus_key, self.snapshot, self.fail_from_outside, attach.timeout_s)
            self.node.termini.activate(self.terminus)

    def _position(self, name: str, resumed: Resumed | None, *, added: bool = False) -> LinkPosition:
        """Return the position at which the link begins in a partition; ``_released`` gives its reader back.

        Args:
            name: the partition's identifier.
            resumed: the kept state of the link's durable terminus, or None.
            added: whether the partition was added to the log after the attach.

        Raises:
            CorruptLog: the record of a split of the partition fails its check.
        """
        partition = self._log_stream.partitions[name]
        known, pending = (None, []) if resumed is None else resumed.on(self._log_stream, name)
        # In a partition that was added after the attach, or while a durable link was detached, every event is new.
        added = added or (resumed is not None and resumed.partition is None)
        latest = known[1] if known is not None else 0 if added else partition.next_offset
        next_offset = None if known is None else known[0]
        reader = self.node.readers.use(partition)
        position = LinkPosition(reader, self._filters.predicate, latest=latest, position=next_offset)
        for offset in pending:
            position.release(offset, 0)
        return position

    # --- sending

    def serve(self) -> bool:
        """Send what credit, filters and limits allow, within one turn's share."""
        if self.ended:
            return False
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
        return False

    def _serve(self) -> bool:
        if self.bound is None and len(self._log_stream.partitions) != self._partition_count:
            self.follow()
            if self.ended:
                return False
        deliveries = self._deliveries
        budget, blocks, before = EVENTS_PER_TURN, BLOCKS_PER_TURN, deliveries.written
        turn = Turn(time.monotonic)  # reads wait for the disk; the cost of a filter is up to the peer that wrote it
        while True:
            if self.connection.write_paused:
                self.connection.block(self)
                return False
            deliveries.go_on(before + BYTES_PER_TURN - deliveries.written)
            written = deliveries.written - before
            if budget <= 0 or blocks <= 0 or written >= BYTES_PER_TURN:
                return True
            if deliveries.is_begun or (deliveries.credit > 0 and not deliveries.room):
                # The peer's next flow decides. Who has written goes behind those who wait for the same window.
                if not written:
                    self.connection.block(self)
                return bool(written)
            room = min(budget, deliveries.room, self._max_unsettled - deliveries.unsettled)
            if room <= 0:
                return False
            sent, scanned = self._send_one_share(min(room, EVENTS_PER_PARTITION) if len(self._order) > 1 else room)
            budget -= sent
            blocks -= scanned
            if sent == 0 and scanned == 0:
                if self._wait_for_events():
                    continue
                if deliveries.drain:
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
            position = self._order[(self._turn + step) % len(self._order)]
            if position.again:
                self._turn += step + 1
                return self._send_again(position), 1
            if not position.advance():
                continue
            scanned += 1
            taken = position.take(limit)
            if taken is None:
                continue
            self._turn += step + 1
            block, rows = taken
            return self._send(position, block, rows), scanned
        return 0, scanned

    def _send(self, position: LinkPosition, block: TransferBlock, rows: Positions) -> int:
        block.prepare()
        if self._size_limit and block.largest > self._size_limit:
            rows = self._within_limit(position, block, rows)
        if self._changed:
            self._send_alone(position, block, int(rows[0]), 0)
            sent = 1
        else:
            sent = self._deliveries.send(*block.rows(rows), offsets=block.offsets[rows], origin=(position, 0))
        position.give_back(len(rows) - sent)
        self._moved()
        return sent

    def _send_alone(self, position: LinkPosition, block: TransferBlock, row: int, failed: int) -> None:
        """Send one event whose sections may differ from those of the other events."""
        annotations, stored = block.message(row)
        head = b""
        if failed:
            head = encode_value(Described(ULong(0x70), [None, None, None, None, UInt(failed)]))
        if self._changed:
            self._changed = False
            described, _ = decode_value(annotations)
            names = Array(0xA3, tuple(Symbol(name) for name in self.positions))
            annotations = encode_value(Described(ULong(0x71), {**described.value, CHANGED: names}))
        message = np.frombuffer(head + annotations + stored, np.uint8)
        whole = Ranges(message, np.zeros(1, np.int64), np.array([len(message)]))
        self._deliveries.send(whole, offsets=block.offsets[[row]], origin=(position, failed))

    def _send_again(self, position: LinkPosition) -> int:
        offset, failed = position.again.popleft()
        block = position.reader.block(offset) if offset >= position.reader.partition.first_offset else None
        if block is None or block.first > offset:
            return 0  # retention has removed the event meanwhile
        self._send_alone(position, block, offset - block.first, failed)
        self._moved()
        return 1

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
        return any(position.behind for position in self._order)

    def _wake(self) -> None:
        self.connection.wake(self)

    # --- what the peer does

    def _settled(self, origin: tuple[LinkPosition, int], offsets: Positions, outcome: Outcome) -> None:
        """Note the outcome of deliveries."""
        position, failed = origin
        for offset in offsets.tolist() if outcome.again else ():
            position.release(offset, failed + outcome.failed)
        self._moved()

    def _moved(self) -> None:
        if self.terminus is not None:
            self.node.termini.changed(self.terminus)

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a durable terminus keeps."""
        pending: dict[str, list[int]] = {p: [n for n, _ in c.again] for p, c in self.positions.items()}
        for sent in self._deliveries.session.of(self._deliveries):
            pending[sent.origin[0].reader.partition.id] += sent.unsettled_offsets.tolist()
        return {
            "incarnation": self.incarnation,
            "filter": self._filters.fingerprint,
            "partition": self.bound,
            "positions": {p: [c.next_offset, c.latest] for p, c in self.positions.items()},
            "pending": {p: ranges(sorted(offsets)) for p, offsets in pending.items() if offsets},
        }

    # --- what the node does

    def follow(self) -> None:
        """Send from added partitions too; an agnostic receiver gets their names with its next event (ES-121).

        A partition whose history was redistributed ends the link: the offsets of its events mean nothing on the
        partitions that replace it. A durable receiver that attaches again continues at the translated position.
        """
        if self.ended:
            return
        gone = self._gone()
        if gone is not None:
            self.fail(gone)
            return
        if self.bound is not None:
            return
        self._partition_count = len(self._log_stream.partitions)
        added = [name for name in self.node.placement.here(self._log_stream) if name not in self.positions]
        if added:
            self.positions.update({name: self._position(name, None, added=True) for name in added})
            self._order = list(self.positions.values())
            self._changed = True
            self.connection.wake(self)

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
        if self.terminus is not None:
            self.node.termini.release(self.terminus, closed=closed)
        for position in self._order:
            position.reader.remove_waiter(self._wake)
            self.node.readers.release(position.reader)
        self.positions = {}
        self._order = []
        self._deliveries.end()
        if self.claim is not None:
            self.node.groups.release(self.claim)
