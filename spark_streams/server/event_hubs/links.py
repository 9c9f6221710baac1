"""The links on which events go: a receiver of one partition, and a sender to a hub or to one of its partitions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.errors import RemoteProtocolError
from spark_streams.log import Stream
from spark_streams.log.reference_log import wall_clock_ms
from spark_streams.server.amqp.attaches import to_receiver
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.server.amqp.event_sender import EventSender
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.producer_link import CONTINUED, NO_INSTANT, ProducerLink, Read, reserved_instants
from spark_streams.server.amqp.routing import Routed, target_refusal
from spark_streams.server.amqp.transfer_block import TransferBlock, bare_starts
from spark_streams.server.appender import RefusalReason
from spark_streams.server.event_hubs.addresses import Start
from spark_streams.server.event_hubs.connection import HubConnection
from spark_streams.server.event_hubs.management import newest
from spark_streams.server.event_hubs.receivers import Receiver, Receivers
from spark_streams.wire.amqp.columns.block import MessageBlock, chosen
from spark_streams.wire.amqp.columns.from_producers import Incoming, incoming_steps
from spark_streams.wire.amqp.dialects.event_hubs import BATCH_FORMAT, OPERATION_CANCELLED, RUNTIME_METRIC, SERVER_BUSY
from spark_streams.wire.amqp.engine.endpoints import Condition
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.messages import Messages
from spark_streams.wire.amqp.engine.session import DECODE_ERROR, INVALID_FIELD, MESSAGE_TOO_LARGE, NOT_ALLOWED
from spark_streams.wire.amqp.engine.termini import DURABLE, FILTER
from spark_streams.wire.amqp.event_batches import split_batch
from spark_streams.wire.amqp.event_hubs import Newest, outgoing_pieces, runtime_metrics, with_group_keys
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

_FEW_BYTES: Final = 8 << 10
"""The most bytes of batches that are read at once: an event may have five bytes, and one of these may take 0.1 ms."""
_ROWS_PER_STEP: Final = 4_096
"""Others who wait for the worker thread have their turn after so many events of a batch."""
_MALFORMED: Final = LinkRefused(DECODE_ERROR, "the message cannot be decoded as AMQP 1.0 sections")
_KEY_AND_PARTITION: Final = LinkRefused(
    NOT_ALLOWED, "an event with a partition key cannot be sent to a partition: send it to the hub, or leave out the key"
)


class HubBlock(TransferBlock):
    """Events of a partition, with the log's annotations in front of their own."""

    @cached_property
    def pieces(self) -> tuple[Ranges, ...]:
        """See ``TransferBlock``."""
        records = self.records
        starts = bare_starts(records)
        return outgoing_pieces(records.buffer, starts, records.value_ends, records.offsets, records.timestamps)


class HubReceiver(EventSender):
    """A receiver of one partition. The outcomes of its deliveries mean nothing to the log.

    Args:
        connection, link: see ``AttachedLink``.
        stream: the hub.
        start: where it begins.
        receiver: its place in the consumer group.
        there: the receivers of all groups; it leaves them at its end.
    """

    def __init__(
        self, connection: HubConnection, link: Link, stream: Stream, start: Start, receiver: Receiver, there: Receivers
    ) -> None:
        # Without a limit: the peer's max-message-size says nothing of the annotations. Microsoft's client for Python
        # says as much as the door takes, and reads more.
        super().__init__(connection, link, stream)
        # Whether each event tells how far behind it is.
        self._metrics = RUNTIME_METRIC in link.desired
        source = link.source and link.source.but({DURABLE: None, FILTER: start.filter or None})
        link.attach(to_receiver(link, source, offered=(RUNTIME_METRIC,) if self._metrics else ()))
        partition = self._partition = start.partition
        reader = self.node.readers.use(partition)
        self.set_positions({partition.id: LinkPosition(reader, None, latest=start.offset, position=start.offset)})
        self._newest = Newest(-2, 0)
        self._receiver, self._there = receiver, there
        receiver.end = self.fail_from_outside
        self.membership = receiver.place.group, "", receiver.epoch  # a group is everybody's

    def _pieces(self, block: TransferBlock, rows: Positions) -> tuple[Ranges, ...]:
        pieces = super()._pieces(block, rows)
        if not self._metrics:
            return pieces
        if self._newest.sequence_number != self._partition.next_offset - 1:
            self._newest = newest(self._partition)
        section = np.frombuffer(runtime_metrics(self._newest, wall_clock_ms()), np.uint8)
        none = np.zeros(len(rows), np.int64)
        return Ranges(section, none, none + len(section)), *pieces

    def _released(self, *, closed: bool) -> None:
        self._there.leave(self._receiver)
        super()._released(closed=closed)


class HubSender(ProducerLink):
    """A sender to a hub, or to one of its partitions: single events, and batches that are stored whole or not at all.

    A delivery goes to the partition of its key, or to the partitions in turn.
    """

    conditions: Mapping[RefusalReason, str] = {
        RefusalReason.INVALID: INVALID_FIELD,
        RefusalReason.SPLIT: OPERATION_CANCELLED,  # clients try that again at once, on another partition
        RefusalReason.DISK_FULL: SERVER_BUSY,
        RefusalReason.FAILED: SERVER_BUSY,
    }

    tells_partition = False

    def __init__(self, connection: HubConnection, link: Link, stream: Stream, bound: str | None) -> None:
        super().__init__(connection, link, stream, bound)
        if bound is not None:  # the partition takes no more, however often that is tried
            self.conditions = {**self.conditions, RefusalReason.SPLIT: NOT_ALLOWED}
        self._deliveries.rejects_large = True  # as the service: its clients do not notice that a link ends as they send

    def _take(self) -> bool:
        for number, size in self._deliveries.take_rejected().items():
            self.node.counters.refused_events[RefusalReason.INVALID.label] += 1
            words = (
                f"The received message (delivery-id:{number}, size:{size} bytes) exceeds the limit "
                f"({self._deliveries.max_message_bytes} bytes) currently allowed on the link."
            )
            self._deliveries.settle(np.array([number]), Condition(MESSAGE_TOO_LARGE, words).rejected)
        return super()._take()

    def _takes_long(self, taken: Messages) -> bool:
        return super()._takes_long(taken) or (len(taken.memory) > _FEW_BYTES and bool(taken.formats.any()))

    def _steps(self, taken: Messages) -> Generator[None, None, Read]:
        partitions, stream = self.node.placement.open_here(self._log_stream), self._log_stream
        events = _Events(taken)
        parts: list[tuple[MessageBlock, Incoming]] = []
        for first in range(0, len(events.ids), _ROWS_PER_STEP):
            if first:
                yield
            part = with_group_keys(chosen(events.block, slice(first, first + _ROWS_PER_STEP)))
            parts.append((part, (yield from incoming_steps(part, thorough=True))))
        block, incoming = _joined(parts)
        routed = events.route(incoming, stream, list(partitions), self.bound, self._turn)
        if stream.config.timestamp_type == "create":
            events.refuse(routed, events.of(np.array(reserved_instants(block, incoming), np.int64)), NO_INSTANT)
        free = np.zeros(len(events.ids), np.bool_)
        return Read.of(events.ids, block, incoming, routed, list(partitions.values()), free)


def _joined(parts: list[tuple[MessageBlock, Incoming]]) -> tuple[MessageBlock, Incoming]:
    """Return the messages of all parts, each of at least one message, as one block."""
    if len(parts) == 1:
        return parts[0]
    memories = [np.frombuffer(block.buffer, np.uint8)[block.starts[0] : block.ends[-1]] for block, _ in parts]
    places = np.cumsum([0, *map(len, memories[:-1])]).tolist()
    moved = [place - int(block.starts[0]) for place, (block, _) in zip(places, parts, strict=True)]
    every = list(zip(parts, moved, strict=True))
    return MessageBlock(
        np.concatenate(memories),
        np.concatenate([block.starts + by for (block, _), by in every]),
        np.concatenate([block.ends + by for (block, _), by in every]),
    ), Incoming(
        np.concatenate([incoming.value_starts + by for (_, incoming), by in every]),
        pa.concat_arrays([incoming.group_key for _, incoming in parts]),
        pa.concat_arrays([incoming.target_partition for _, incoming in parts]),
        np.concatenate([incoming.creation_time_ms for _, incoming in parts]),
        np.concatenate([incoming.malformed for _, incoming in parts]),
    )


class _Events:
    """The events of deliveries.

    Args:
        taken: the deliveries.

    Attributes:
        ids: their delivery-ids, ``CONTINUED`` for all but the first event of a delivery.
        block: their messages.
        delivery: the delivery of each, counted from 0.
        bounds: where the events of each delivery begin, and the end of the last one's.
    """

    def __init__(self, taken: Messages) -> None:
        self._keys: dict[int, str] = {}
        self._broken: set[int] = set()
        self.ids, self.block = taken.ids, taken.block
        self.delivery = np.arange(len(taken.ids))
        self.bounds = np.arange(len(taken.ids) + 1)
        if taken.formats.any():
            self._split(taken)

    def _split(self, taken: Messages) -> None:
        starts: list[Positions] = []
        ends: list[Positions] = []
        counts = np.ones(len(taken.ids), np.int64)
        for number in range(len(taken.ids)):
            first, last = int(taken.starts[number]), int(taken.ends[number])
            one = np.array([first]), np.array([last])
            if taken.formats[number] == BATCH_FORMAT:
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
        self.bounds = np.concatenate(([0], np.cumsum(counts)))
        self.ids = np.full(len(self.delivery), CONTINUED, np.int64)
        self.ids[self.bounds[:-1]] = taken.ids

    def refuse(self, routed: Routed, deliveries: Iterable[int], refusal: LinkRefused) -> None:
        """Refuse deliveries, each with all its events."""
        for each in deliveries:
            first, stop = self.bounds[each : each + 2].tolist()
            routed.partitions[first:stop] = -1
            routed.rejections.setdefault(first, refusal)

    def of(self, rows: Positions) -> list[int]:
        """Return the deliveries of events, each once."""
        found: list[int] = np.unique(self.delivery[rows]).tolist()
        return found

    def route(self, incoming: Incoming, stream: Stream, partitions: list[str], bound: str | None, turn: int) -> Routed:
        """Route the events; see ``route`` of the AMQP door."""
        keys = self._delivery_keys(incoming)
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
            refusal = target_refusal(stream, bound, index, bound)
            if refusal is not None:
                self.refuse(routed, range(len(keys)), refusal)
            with_key = np.flatnonzero(incoming.group_key.is_valid().to_numpy(zero_copy_only=False))
            self.refuse(routed, {*self.of(with_key), *self._keys}, _KEY_AND_PARTITION)
        broken = np.flatnonzero(incoming.malformed)
        self.refuse(routed, {*self.of(broken), *self._broken}, _MALFORMED)
        return routed

    def _delivery_keys(self, incoming: Incoming) -> list[bytes | None]:
        """Return the key of each delivery, in UTF-8: that of its batch, or of its first event."""
        of_events: pa.Array = incoming.group_key
        firsts = self.bounds[:-1]
        if not self._keys and of_events.null_count == len(of_events):
            return [None] * len(firsts)
        keys = of_events.take(pa.array(firsts)).to_pylist()
        for number, key in self._keys.items():
            keys[number] = key
        return [None if key is None else key.encode() for key in keys]
