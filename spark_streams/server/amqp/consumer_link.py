"""Serves a link on which the door sends events: of one partition, or of all partitions in turn.

Delivery state: a presettled delivery is done when it is sent. Otherwise ``accepted``, ``rejected``, ``modified`` with
undeliverable-here, and settling without an outcome all mean done. After ``released`` and other ``modified`` outcomes
the link sends the event again, in offset order and before any later event that it has not sent yet; ``modified`` with
delivery-failed adds one to the header's delivery-count.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_streams.server.amqp.attaches import ConsumerAttach, ConsumerResources, to_consumer
from spark_streams.server.amqp.consumer_groups import Claim
from spark_streams.server.amqp.durable_termini import Kept, Terminus
from spark_streams.server.amqp.event_sender import EventSender
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.transfer_block import TransferBlock
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.engine.outgoing_session import Outcome
from spark_streams.wire.amqp.engine.session import ranges
from spark_streams.wire.amqp.event_streams import ASSIGNED_KEYS
from spark_streams.wire.amqp.values import Array, Described, Symbol, UInt, ULong
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

CHANGED: Final = Symbol(ASSIGNED_KEYS[0])
"""The section's name; its text says "assigned" (A-1)."""


class ConsumerLink(EventSender):
    """A sending link of the node.

    Args:
        attach: the receiver's attach, which is answered.
        bound: the partition that the link is bound to, or None.
        claim: its claim to the partition in a consumer group, or None.

    Attributes:
        terminus: its durable terminus, or None.
    """

    node: ConsumerResources

    def __init__(self, attach: ConsumerAttach, bound: str | None, claim: Claim | None = None) -> None:
        super().__init__(attach.connection, attach.link, attach.stream)
        self._max_unsettled = self.node.config.max_unsettled
        self._size_limit = attach.link.max_message_bytes
        resumed = attach.resume()
        answer = to_consumer(attach.link, attach.source, attach.filters, bound, claim, durable=attach.durable)
        attach.link.attach(answer)
        self._deliveries.settled = self._settled
        self.bound = bound
        self.claim = claim
        self.terminus: Terminus | None = None
        self._filters = attach.filters
        self._changed = False
        self._partition_count = len(attach.stream.partitions)
        names = self.node.placement.here(attach.stream) if bound is None else [bound]
        self.set_positions({name: self._position(name, resumed) for name in names})
        if claim is not None:
            claim.end_owner = self.fail_from_outside
            self.membership = claim.group.name, claim.group.user or "", claim.epoch
        if attach.durable:
            self.terminus = Terminus(attach.terminus_key, self.snapshot, self.fail_from_outside, attach.timeout_s)
            self.node.termini.activate(self.terminus)

    def _position(self, name: str, resumed: Kept | None, *, added: bool = False) -> LinkPosition:
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

    def _serve(self) -> bool:
        if self.bound is None and len(self._log_stream.partitions) != self._partition_count:
            self.follow()
            if self.ended:
                return False
        return super()._serve()

    def _send_from(self, position: LinkPosition, limit: int) -> tuple[int | None, int]:
        return (self._send_again(position), 1) if position.again else super()._send_from(position, limit)

    def _send_rows(self, position: LinkPosition, block: TransferBlock, rows: Positions) -> int:
        if not self._changed:
            return super()._send_rows(position, block, rows)
        self._send_alone(position, block, int(rows[0]), 0)
        return 1

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

    def snapshot(self) -> Kept:
        """Return the state that a durable terminus keeps."""
        pending: dict[str, list[int]] = {p: [n for n, _ in c.again] for p, c in self.positions.items()}
        for sent in self._deliveries.session.of(self._deliveries):
            pending[sent.origin[0].reader.partition.id] += sent.unsettled_offsets.tolist()
        positions = {p: (c.next_offset, c.latest) for p, c in self.positions.items()}
        again = {p: ranges(np.sort(offsets), -1) for p, offsets in pending.items() if offsets}
        return Kept(self.incarnation, self._filters.fingerprint, self.bound, positions, again)

    # --- what the node does

    def follow(self) -> None:
        """Send from added partitions too; an agnostic receiver gets their names with its next event (ES-121).

        A partition whose history was redistributed ends the link: the offsets of its events mean nothing on the
        partitions that replace it. A durable receiver that attaches again continues at the translated position.
        """
        super().follow()
        if self.ended or self.bound is not None:
            return
        self._partition_count = len(self._log_stream.partitions)
        added = [name for name in self.node.placement.here(self._log_stream) if name not in self.positions]
        if added:
            self.set_positions({**self.positions, **{name: self._position(name, None, added=True) for name in added}})
            self._changed = True
            self.connection.turns.wake(self)

    def _released(self, *, closed: bool) -> None:
        if self.terminus is not None:
            self.node.termini.release(self.terminus, closed=closed)
        super()._released(closed=closed)
        if self.claim is not None:
            self.node.groups.release(self.claim)
