"""The links on which events go: a receiver of one partition, and a sender to a hub or to one of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import proton
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.log import Partition, Stream
from spark_streams.server.amqp.attach_reply import open_producer, settle_modes
from spark_streams.server.amqp.deliveries import Messages
from spark_streams.server.amqp.error_conditions import DECODE_ERROR, INVALID_FIELD, NOT_ALLOWED, LinkRefused
from spark_streams.server.amqp.event_sender import EventSender
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.producer_link import CONTINUED, NO_INSTANT, ProducerLink, Read, reserved_instants
from spark_streams.server.amqp.routing import Routed
from spark_streams.server.amqp.transfer_block import TransferBlock, bare_starts
from spark_streams.server.appender import RefusalReason
from spark_streams.server.event_hubs.connection import HubConnection
from spark_streams.server.event_hubs.management import newest, now_ms
from spark_streams.server.event_hubs.receivers import Receiver, Receivers
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.from_producers import Incoming, incoming_columns
from spark_streams.wire.amqp.dialects.event_hubs import BATCH_FORMAT
from spark_streams.wire.amqp.event_batches import split_batch
from spark_streams.wire.amqp.event_hubs import Newest, outgoing_pieces, runtime_metrics, with_group_keys
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

SERVER_BUSY: Final = "com.microsoft:server-busy"
OPERATION_CANCELLED: Final = "com.microsoft:operation-cancelled"
RUNTIME_METRIC: Final = "com.microsoft:enable-receiver-runtime-metric"
"""The capability by which a receiver wants to know how far behind it is."""
_MALFORMED: Final = LinkRefused(DECODE_ERROR, "the message cannot be decoded as AMQP 1.0 sections")
_KEY_AND_PARTITION: Final = LinkRefused(
    NOT_ALLOWED, "an event with a partition key cannot be sent to a partition: send it to the hub, or leave out the key"
)


class HubBlock(TransferBlock):
    """Events of a partition, with the log's annotations in front of their own."""

    def _pieces(self) -> tuple[Ranges, ...]:
        records = self.records
        starts = bare_starts(records)
        return outgoing_pieces(records.buffer, starts, records.value_ends, records.offsets, records.timestamps)


class HubReceiver(EventSender):
    """A receiver of one partition. What becomes of what it gets means nothing to the log.

    Args:
        connection, link: see ``AttachedLink``.
        stream: the hub.
        partition: the partition.
        start: the offset at which it begins.
        receiver: its place in the consumer group.
        receivers: those of all groups; it leaves them at its end.
        metrics: whether each event tells how far behind it is.
    """

    def __init__(
        self,
        connection: HubConnection,
        link: Any,
        stream: Stream,
        partition: Partition,
        start: int,
        receiver: Receiver,
        receivers: Receivers,
        *,
        metrics: bool,
    ) -> None:
        deliveries = connection.incoming.attached_sender
        assert deliveries is not None
        super().__init__(connection, link, stream, deliveries)
        link.source.copy(link.remote_source)
        link.source.durability = proton.Terminus.NONDURABLE
        settle_modes(link)
        connection.outgoing.offered = (RUNTIME_METRIC,) if metrics else ()
        connection.outgoing.open_sender(deliveries, link)
        deliveries.owner = self
        reader = self.node.readers.use(partition)
        self.set_positions({partition.id: LinkPosition(reader, None, latest=start, position=start)})
        self._partition, self._metrics = partition, metrics
        self._newest = Newest(-2, 0)
        self._receiver, self._receivers = receiver, receivers
        receiver.end = self.fail_from_outside

    def _pieces(self, block: TransferBlock, rows: Positions) -> tuple[Ranges, ...]:
        pieces = super()._pieces(block, rows)
        if not self._metrics:
            return pieces
        if self._newest.sequence_number != self._partition.next_offset - 1:
            self._newest = newest(self._partition)
        section = np.frombuffer(runtime_metrics(self._newest, now_ms()), np.uint8)
        none = np.zeros(len(rows), np.int64)
        return Ranges(section, none, none + len(section)), *pieces

    def _released(self, *, closed: bool) -> None:
        super()._released(closed=closed)
        self._receivers.leave(self._receiver)


class HubSender(ProducerLink):
    """A sender to a hub, or to one of its partitions: single events, and batches that are stored whole or not at all.

    A delivery goes to the partition of its key, or to the partitions in turn.
    """

    conditions: ClassVar[Mapping[RefusalReason, str]] = {
        RefusalReason.INVALID: INVALID_FIELD,
        RefusalReason.SPLIT: OPERATION_CANCELLED,  # clients try that again at once
        RefusalReason.DISK_FULL: SERVER_BUSY,
        RefusalReason.FAILED: SERVER_BUSY,
    }

    def _answer(self, link: Any, bound: str | None) -> None:
        open_producer(link, None, self.connection.config.max_message_bytes)

    def _reader(self, taken: Messages) -> Callable[[], Read]:
        partitions = self.node.placement.open_here(self._log_stream)
        stream, bound, turn = self._log_stream, self.bound, self._turn
        created = stream.config.timestamp_type == "create"

        def read() -> Read:
            events = _Events(taken)
            block = with_group_keys(events.block)
            incoming = incoming_columns(block, thorough=True)
            routed = events.route(incoming, stream, list(partitions), bound, turn)
            for row in reserved_instants(block, incoming) if created else ():
                events.refuse(routed, row, NO_INSTANT)
            return Read(events.ids, block, incoming, routed, partitions, np.zeros(len(events.ids), np.bool_))

        return read


class _Events:
    """The events of deliveries.

    Args:
        taken: the deliveries.

    Attributes:
        ids: their delivery-ids, ``CONTINUED`` for all but the first event of a delivery.
        block: their messages.
        delivery: the delivery of each, counted from 0.
    """

    def __init__(self, taken: Messages) -> None:
        self._keys: dict[int, str] = {}
        self._broken: set[int] = set()
        self.ids, self.block = taken.ids, taken.block
        self.delivery = np.arange(len(taken.ids))
        if taken.formats is not None:
            self._split(taken, taken.formats)

    def _split(self, taken: Messages, formats: Positions) -> None:
        starts: list[Positions] = []
        ends: list[Positions] = []
        counts = np.ones(len(taken.ids), np.int64)
        for number in range(len(taken.ids)):
            first, last = int(taken.starts[number]), int(taken.ends[number])
            one = np.array([first]), np.array([last])
            if formats[number] == BATCH_FORMAT:
                try:
                    batch = split_batch(taken.memory[first:last].tobytes())
                except RemoteProtocolError:
                    self._broken.add(number)
                else:
                    one, counts[number] = (batch.starts + first, batch.ends + first), len(batch.starts)
                    if batch.key is not None:
                        self._keys[number] = batch.key
            starts.append(one[0])
            ends.append(one[1])
        self.block = MessageBlock(taken.memory, np.concatenate(starts), np.concatenate(ends))
        self.delivery = np.repeat(np.arange(len(counts)), counts)
        self.ids = np.full(len(self.delivery), CONTINUED, np.int64)
        self.ids[np.cumsum(counts) - counts] = taken.ids

    def refuse(self, routed: Routed, row: int, refusal: LinkRefused) -> None:
        """Refuse the delivery of an event."""
        for each in np.flatnonzero(self.delivery == self.delivery[row]).tolist():
            routed.partitions[each] = -1
            routed.rejections.setdefault(each, refusal)

    def route(self, incoming: Incoming, stream: Stream, partitions: list[str], bound: str | None, turn: int) -> Routed:
        """Route the events; see ``route`` of the AMQP door."""
        firsts = np.flatnonzero(np.diff(self.delivery, prepend=-1))
        keys = self._delivery_keys(incoming, firsts)
        index = {name: at for at, name in enumerate(partitions)}
        if bound is None:
            keyed = np.array([key is not None for key in keys], np.bool_)
            unkeyed = np.flatnonzero(~keyed)
            places = np.zeros(len(keys), np.int64)
            places[unkeyed] = (turn + np.arange(len(unkeyed))) % len(partitions)
            homes = stream.homes_among(partitions).homes([key for key in keys if key is not None])
            places[keyed] = [index[home] for home in homes]
            turn += len(unkeyed)
        else:
            places = np.full(len(keys), index.get(bound, -1))
        routed = Routed(places[self.delivery], {}, turn)
        if bound is not None:
            if bound not in index:
                for row in firsts.tolist():
                    self.refuse(routed, row, LinkRefused(OPERATION_CANCELLED, f"partition '{bound}' was split"))
            for number, key in enumerate(keys):
                if key is not None:
                    self.refuse(routed, int(firsts[number]), _KEY_AND_PARTITION)
        broken = [*np.flatnonzero(incoming.malformed).tolist(), *(int(firsts[number]) for number in self._broken)]
        for row in broken:
            self.refuse(routed, row, _MALFORMED)
        return routed

    def _delivery_keys(self, incoming: Incoming, firsts: NDArray[np.int64]) -> list[bytes | None]:
        """Return the key of each delivery, in UTF-8: that of its batch, or of its first event."""
        of_events: pa.Array = incoming.group_key
        if not self._keys and of_events.null_count == len(of_events):
            return [None] * len(firsts)
        keys = of_events.take(pa.array(firsts)).to_pylist()
        for number, key in self._keys.items():
            keys[number] = key
        return [None if key is None else key.encode() for key in keys]
