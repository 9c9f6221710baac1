"""Serves a link on which a producer sends events: routes them in columns, appends once for each partition and turn.

The link accepts an event when its append has returned, which with fsync policy ``always`` means that the event is on
the disk. A message that takes more than a turn is read in the worker thread; later messages of its link wait for it.

The outcome of a rejected event gives the reason. An event that was sent settled cannot be rejected, so the link is
closed with the error instead: no event is dropped silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.log import NO_TIMESTAMP, Partition, Stream
from spark_streams.log.format.batching import LARGE_BYTES
from spark_streams.server.activity import MOST_TEXT, Item, Who, WriterInfo
from spark_streams.server.amqp.attaches import to_producer
from spark_streams.server.amqp.connection_links import AttachedLink, LinkConnection
from spark_streams.server.amqp.error_conditions import INTERNAL_ERROR, RESOURCE_DELETED, LinkRefused
from spark_streams.server.amqp.placement import PartitionSplit
from spark_streams.server.amqp.routing import REJECTED, Routed, route
from spark_streams.server.appender import AppendRefused, Batch, Outcome, RefusalReason
from spark_streams.server.counters import logger
from spark_streams.server.turns import Turn, one_turn
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.from_producers import Incoming, incoming_steps
from spark_streams.wire.amqp.engine.incoming_deliveries import ACCEPT
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.messages import SETTLED, Messages
from spark_streams.wire.amqp.engine.session import INVALID_FIELD, RESOURCE_LIMIT
from spark_streams.wire.amqp.message import PROPERTIES, decode_sections
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.gather import copied

MAX_ROWS: Final = 2_048
MAX_BYTES: Final = 1 << 20
"""The most messages of one turn, and about the most bytes of theirs."""
NO_INSTANT: Final = LinkRefused(INVALID_FIELD, "creation-time is -2^63 ms, which means none inside the log")
"""The refusal of an event with this creation-time, where creation times are events' timestamps."""
_RESERVED_INSTANT = b"\x83" + (-(2**63)).to_bytes(8, "big", signed=True)


CONTINUED: Final = -2
"""In the place of the delivery-id of an event that came in one delivery with the event before it."""


class _Rows(NamedTuple):
    """Messages that are appended to one partition together.

    Args:
        ids: the delivery-ids of their deliveries, ``SETTLED`` or ``CONTINUED``; those of one delivery are stored in one
            partition, and together or not at all.
        values: their stored form.
        keys: their group keys, binary, null for none.
        timestamps: int64[n], their creation times in ms.
        free: bool[n], whether each may go to another partition if this one is split meanwhile.
    """

    ids: Positions
    values: pa.Array
    keys: pa.Array
    timestamps: NDArray[np.int64]
    free: NDArray[np.bool_]

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """How many events each delivery has; None: one each."""
        if not (self.ids == CONTINUED).any():
            return None
        return np.diff(np.append(np.flatnonzero(self.ids != CONTINUED), len(self.ids)))

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        """Return some of the messages."""
        taken = pa.array(rows)
        return _Rows(
            self.ids[rows], self.values.take(taken), self.keys.take(taken), self.timestamps[rows], self.free[rows]
        )


class Read(NamedTuple):
    """The events of one turn.

    Args:
        ids: as for ``_Rows``, those that are refused included.
        routed: their routes.
        parts: what is appended to which partition.
    """

    ids: Positions
    routed: Routed
    parts: list[tuple[Partition, _Rows]]

    @classmethod
    def of(
        cls,
        ids: Positions,
        block: MessageBlock,
        incoming: Incoming,
        routed: Routed,
        partitions: list[Partition],
        free: NDArray[np.bool_],
    ) -> Read:
        """Copy what is stored of routed events, since their block holds more; ``routed`` indexes the partitions."""
        keys, parts = incoming.group_key.cast(pa.binary()), []
        for place in np.unique(routed.partitions[routed.partitions >= 0]).tolist():
            rows_there = np.flatnonzero(routed.partitions == place)
            whole = len(rows_there) == len(ids)
            there = keys if whole else keys.take(pa.array(rows_there))
            rows = slice(None) if whole else rows_there
            # From their message annotations on.
            values = copied(block.buffer, incoming.value_starts[rows], block.ends[rows])
            part = _Rows(ids[rows], values, there, incoming.creation_time_ms[rows], free[rows])
            parts.append((partitions[place], part))
        return cls(ids, routed, parts)


class _Block:
    """The unsettled events of one turn; their senders get the outcomes when all appends of the turn have ended.

    A disposition names a run of delivery-ids. The events of one partition alone, which lie between those of all others,
    would take about as many runs as events, and cost more than all other work on them.

    Args:
        accept: tells the peer that deliveries are accepted.
    """

    def __init__(self, accept: Callable[[Positions], None]) -> None:
        self._accept = accept
        self._stored: list[Positions] = []
        self.appends = 0
        """How many appends have not ended."""

    def add(self, ids: Positions) -> None:
        """Add events that are stored."""
        self._stored.append(ids)

    def tell(self) -> None:
        """Tell the peer of those that are stored so far."""
        if self._stored:
            self._accept(np.sort(np.concatenate(self._stored)))
            self._stored.clear()


class ProducerLink(AttachedLink):
    """A receiving link of the node.

    Args:
        connection, link: see ``AttachedLink``; the link's attach is the one that the connection has just received.
        stream: the log.
        bound: the partition that the link is bound to, or None.
    """

    conditions: Mapping[RefusalReason, str] = {
        RefusalReason.INVALID: INVALID_FIELD,
        RefusalReason.SPLIT: RESOURCE_DELETED,
        RefusalReason.DISK_FULL: RESOURCE_LIMIT,
        RefusalReason.FAILED: INTERNAL_ERROR,
    }
    """Reason to error condition."""
    tells_partition: ClassVar[bool] = True
    """Whether the answer to the attach names the partition."""

    def __init__(self, connection: LinkConnection, link: Link, stream: Stream, bound: str | None) -> None:
        super().__init__(connection, link, stream)
        self._deliveries = link.incoming
        link.attach(to_producer(link, bound if self.tells_partition else None))
        self.bound = bound
        self._log_stream = stream
        self._most_credit = connection.config.producer_credit
        self._appending = 0
        self._waiting: deque[Messages] = deque()
        self._reading: asyncio.Future[Read] | None = None
        self._turn = 0
        self._top_up()

    def told(self, who: Who) -> Iterable[Item]:
        """Return the link as a writer."""
        return (WriterInfo(*who, self.stream, self.bound or "", self.link.name[:MOST_TEXT]),)

    def serve(self) -> bool:
        """Take, route and append the messages that have come, within one turn's share."""
        if self.connection.turns.full:
            self.connection.turns.block(self)
            return False
        return self._reading is None and self._take()

    def take_input(self) -> None:
        """Store all messages that have come, because the link is about to end."""
        while self._take():
            pass

    def _take(self) -> bool:
        if self.ended:
            return False
        taken = self._deliveries.take(MAX_ROWS, MAX_BYTES)
        more = self._deliveries.waiting
        if len(taken.ids):
            self._appending += len(taken.ids)
            self._waiting.append(taken)
            self._read_next()
        fault = self._deliveries.fault
        if fault is not None and not more:
            self.fail(LinkRefused(fault.condition, fault.description))
        else:
            self._top_up()
        return more and not self.ended

    def _takes_long(self, taken: Messages) -> bool:
        """Return whether messages are to be read in the worker thread."""
        return len(taken.memory) > LARGE_BYTES

    def _read_next(self) -> None:
        """Read the waiting messages in their order, even if the link has ended."""
        while self._waiting and self._reading is None:
            taken = self._waiting.popleft()
            steps = self._steps(taken)
            try:
                if not self._takes_long(taken):
                    one_turn(steps, Turn())
            except StopIteration as end:
                self._store(end.value)
            else:
                self._reading = asyncio.ensure_future(self.node.worker.run(steps))
                self._reading.add_done_callback(lambda future: self.connection.guarded(lambda: self._was_read(future)))

    def _was_read(self, future: asyncio.Future[Read]) -> None:
        self._reading = None
        if future.cancelled():
            return  # the server stops
        try:
            self._store(future.result())
        finally:
            self._read_next()
        self.connection.turns.wake(self)

    def _top_up(self) -> None:
        # A peer that miscounts its deliveries makes the credit negative.
        free = self._most_credit - max(0, self._deliveries.credit) - self._appending
        if not self.ended and (free > self._most_credit // 2 or free == self._most_credit):
            self._deliveries.flow(free)

    def _steps(self, taken: Messages) -> Generator[None, None, Read]:
        """Read and route messages, in any thread."""
        partitions, block = self.node.placement.open_here(self._log_stream), taken.block
        # Thorough: a message that no reader of ours can decode would stop every query on the stream for good.
        incoming = yield from incoming_steps(block, thorough=True)
        routed = route(incoming, self._log_stream, list(partitions), self.bound, self._turn)
        created = self._log_stream.config.timestamp_type == "create"
        for row in reserved_instants(block, incoming) if created else ():
            routed.rejections.setdefault(row, NO_INSTANT)
            routed.partitions[row] = -1
        aimed = incoming.target_partition.is_valid().to_numpy(zero_copy_only=False)
        free = ~aimed & (self.bound is None)
        return Read.of(taken.ids, block, incoming, routed, list(partitions.values()), free)

    def _store(self, read: Read) -> None:
        ids, rejections = read.ids, read.routed.rejections
        self._turn = read.routed.turn
        together = _Block(self._accept)
        together.appends += 1  # until all have begun, since an append may end at once
        for partition, rows in read.parts:
            self._append(partition, rows, together)
        self._ended(together)
        self._count_rejected(read.routed)
        if rejections and not self.ended:
            # Last, because a rejection may close the link, and the messages that came with it must still be stored.
            rejected = sorted(rejections)
            self._settle(ids[rejected], [rejections[r] for r in rejected], together)
            together.tell()

    def _count_rejected(self, routed: Routed) -> None:
        rows = np.flatnonzero(routed.partitions == REJECTED)
        if len(rows):
            first = sorted(routed.rejections)  # in a delivery of many events, the first one has the refusal of all
            events = np.bincount(np.searchsorted(first, rows, "right") - 1, minlength=len(first))
            for row, count in zip(first, events.tolist(), strict=True):
                split = isinstance(routed.rejections[row], PartitionSplit)
                reason = RefusalReason.SPLIT if split else RefusalReason.INVALID
                self.node.counters.refused_events[reason.label] += count

    def _append(self, partition: Partition, rows: _Rows, together: _Block) -> None:
        size = rows.values.nbytes
        together.appends += 1

        def done(outcomes: list[Outcome]) -> None:
            self.connection.turns.storing(-size)
            try:
                self._take_outcomes(partition, rows, outcomes, together)
            finally:
                self._ended(together)

        self.connection.turns.storing(size)
        batch = Batch(rows.values, rows.keys, rows.timestamps, done, groups=rows.groups, rerouted=rows.free)
        self.node.appender.append(partition, batch)

    def _take_outcomes(self, partition: Partition, rows: _Rows, outcomes: list[Outcome], together: _Block) -> None:
        if not partition.closed or outcomes.count(None) == len(outcomes) or not rows.free.any():
            self._appended(rows.ids, outcomes, together)
            return
        late = np.array([each is not None and each.reason is RefusalReason.SPLIT for each in outcomes]) & rows.free
        others = np.flatnonzero(~late)
        if len(others):
            self._appended(rows.ids[others], [outcomes[row] for row in others.tolist()], together)
        self._append_rerouted(rows.take(np.flatnonzero(late)), together)

    def _append_rerouted(self, rows: _Rows, together: _Block) -> None:
        """Append messages whose partition was split after they were routed."""
        partitions = self.node.placement.open_here(self._log_stream)
        names = list(partitions)
        home = self._log_stream.homes_among(names).home
        keys = enumerate(rows.keys.to_pylist())
        places = np.array([names[row % len(names)] if key is None else home(key) for row, key in keys])
        for name in dict.fromkeys(places.tolist()):
            self._append(partitions[name], rows.take(np.flatnonzero(places == name)), together)

    def _ended(self, together: _Block) -> None:
        """Count the end of an append; after the last one, tell the peer of the events that are stored."""
        together.appends -= 1
        if not together.appends and not self.ended:
            together.tell()

    def _accept(self, ids: Positions) -> None:
        self._deliveries.settle(ids, ACCEPT)

    def _appended(self, ids: Positions, outcomes: list[Outcome], together: _Block) -> None:
        if self.ended:
            return  # the link has ended: there is nobody to send the outcome to
        self._settle(ids, outcomes, together)
        if not self.ended:
            self._top_up()
            self.connection.turns.wake()

    def _settle(self, ids: Positions, outcomes: Sequence[LinkRefused | Outcome], together: _Block) -> None:
        begun = ids != CONTINUED  # the outcome of a delivery's events is one
        if not begun.all():
            outcomes = [outcomes[row] for row in np.flatnonzero(begun).tolist()]
            ids = ids[begun]
        self._appending -= len(ids)
        unheard = None
        refused = np.array([outcome is not None for outcome in outcomes]) if any(outcomes) else np.zeros(len(ids), bool)
        for row in np.flatnonzero(refused).tolist():
            outcome = outcomes[row]
            assert outcome is not None
            if ids[row] == SETTLED:
                unheard = unheard or self._link_refused(outcome)
            else:
                self._deliveries.settle(ids[row : row + 1], self._link_refused(outcome).condition.rejected)
        together.add(ids[~refused & (ids != SETTLED)])
        if unheard is not None:
            together.tell()
            self.fail(unheard)

    def _link_refused(self, refusal: AppendRefused | LinkRefused) -> LinkRefused:
        if isinstance(refusal, LinkRefused):
            return refusal
        return LinkRefused(self.conditions[refusal.reason], refusal.description)


def reserved_instants(block: MessageBlock, incoming: Incoming) -> list[int]:
    """Return the events whose creation-time is the instant that means none inside the log (N-04)."""
    raw = bytes(block.buffer)
    found = []
    at = raw.find(_RESERVED_INSTANT)
    while at >= 0:
        row = int(np.searchsorted(block.ends, at, side="right"))
        if row == len(block.ends):
            break  # after the last message: the end of a batch
        if not incoming.malformed[row]:
            try:
                message = raw[int(block.starts[row]) : int(block.ends[row])]
                properties = dict(decode_sections(message)).get(PROPERTIES)
            except RemoteProtocolError:
                logger.debug("a message that was taken in columns does not decode by itself")
                properties = None
            if properties is not None and len(properties) > 9 and properties[9] == NO_TIMESTAMP:
                found.append(row)
        at = raw.find(_RESERVED_INSTANT, int(block.ends[row]))
    return found
