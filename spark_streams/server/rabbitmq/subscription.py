"""One subscription of the door: its position, its credit, and which chunks it sends.

A subscription with filter values skips stored batches that have none of them. Of a batch with a note of each record's
filter value (``filter_values.py``) it sends the records that match (``chunk_parts.py``); of any other batch all.

``start_record`` and ``start_offset`` return the record and the chunk at which an offset specification starts.

Deliveries start at a whole chunk: a client that wants a record inside of it skips the records before that one, in the
first chunk that it gets and in no other. A filtered subscription therefore starts at the record: it does not send the
earlier runs of the chunk, because the client sees each run as a chunk.

Spec: docs/specifications.md, S-61 to S-65, S-71 to S-73, S-81, S-91 to S-93.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from spark_streams.log import NO_TIMESTAMP, Partition, StoredBatch
from spark_streams.server.rabbitmq.chunk_cache import Chunk
from spark_streams.server.rabbitmq.chunk_parts import runs_of, selection_of
from spark_streams.server.rabbitmq.chunks import ONE_BATCH, Chunks, Prefetch
from spark_streams.server.rabbitmq.filter_values import Sought
from spark_streams.server.rabbitmq.session import Session
from spark_streams.server.rabbitmq.single_active import Group
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.server.turns import Turn
from spark_streams.wire.columnar.byte_view import Mask
from spark_streams.wire.rabbitmq.chunk import SELECTIONS
from spark_streams.wire.rabbitmq.consumer_commands import (
    DELIVER_KEY,
    OffsetSpecification,
    OffsetType,
    Subscribe,
    encode_deliver_head,
)


def start_record(partition: Partition, chunks: Chunks, wanted: OffsetSpecification) -> int:
    """Return the offset of the first record that a specification means; the log's next offset if there is none yet.

    Args:
        partition: of the log.
        chunks: of the partition.
        wanted: of any type but NONE. An offset below the first record means the first one, as do instants before it; an
            offset or instant beyond the last record means what is appended next. LAST means the last chunk's first.

    Raises:
        CorruptLog: what is stored there fails its check.
        PartitionClosed: the stream was deleted, or the log closed.
    """
    end = partition.next_offset
    if wanted.type == OffsetType.NEXT:
        return end
    if wanted.type == OffsetType.LAST:
        last = chunks.last()
        return end if last is None else last.first_offset
    offset = partition.first_offset
    if wanted.type == OffsetType.OFFSET:
        offset = max(offset, wanted.value)
    elif wanted.type == OffsetType.TIMESTAMP and wanted.value != NO_TIMESTAMP:
        found = partition.offset_for_time(wanted.value)
        offset = end if found is None else found[0]
    return min(offset, end)


def start_offset(partition: Partition, chunks: Chunks, wanted: OffsetSpecification) -> int:
    """Return the id of the chunk with the record of ``start_record``; the log's next offset if there is none yet.

    Args:
        partition: of the log.
        chunks: of the partition.
        wanted: of any type but NONE.

    Raises:
        CorruptLog: what is stored there fails its check.
        PartitionClosed: the stream was deleted, or the log closed.
    """
    offset = start_record(partition, chunks, wanted)
    end = partition.next_offset
    if offset >= end or offset == partition.first_offset or wanted.type == OffsetType.LAST:
        return offset
    holding = chunks.run(offset, 1, ONE_BATCH)
    return holding[0].first_offset if holding else end


_SIGN_BIT: Final = 0x8000
"""Brokers read the u16 of Credit as a signed number, and the u16 of Subscribe as unsigned (S-72)."""
_BATCH_COST: Final = 512
"""Looking for filter values in a stored batch counts as sending this many bytes."""


class Subscription:
    """One subscription, which delivers nothing before it is started.

    Args:
        session: its connection.
        served: the stream.
        request: the client's request.
        wake: called on the loop when there are new records.
        update: sends the consumer a ConsumerUpdate, active or not; it takes effect once the consumer has answered.

    Attributes:
        number: its id on the connection.
        served: the stream.
        name: its name, under which the consumer may store offsets; empty for none.
        group: its group of single active consumers, or None.
        active: whether it delivers.
        update: as it was given.
    """

    def __init__(
        self,
        session: Session,
        served: Served,
        request: Subscribe,
        wake: Callable[[Subscription], None],
        update: Callable[[Subscription, bool], None],
    ) -> None:
        node = session.node
        self.number = request.subscription_id
        self.served = served
        self.name = request.properties.get("name", "")
        self.group: Group | None = None
        self.active = False
        self._session = session
        self._chunks = node.chunks(served)
        self._reader = node.readers.use(served.partition)
        self._wake = partial(wake, self)
        self.update = partial(update, self)
        self._requested = request.offset
        self._credit = request.credit
        self._threshold = request.credit // 2 if node.config.half_credit else 0
        self._sending = False
        self._next = 0
        # Version 2 only if the peer reported exactly that (S-24).
        self._version = 2 if session.client_versions.get(DELIVER_KEY) == 2 else 1
        properties = request.properties if node.config.filtering else {}
        self._filter_values = Sought(
            [value.encode() for name, value in properties.items() if name.startswith("filter.")],
            properties.get("match-unfiltered") == "true",
        )
        self._selections = properties.get(SELECTIONS) == "true"
        self._matches: Iterator[Chunk | None] | None = None
        self._ahead = Prefetch(self._chunks, node.loop)

    # --- starting and stopping

    def start_at(self, wanted: OffsetSpecification) -> int:
        """Return where deliveries would start; type NONE means the subscribed position. Raises as ``start_offset``."""
        if wanted.type == OffsetType.NONE:
            wanted = self._requested
        find = start_record if self._filter_values else start_offset
        return find(self.served.partition, self._chunks, wanted)

    def start(self, offset: int) -> None:
        """Deliver from the chunk with this id on; with filter values, the matching records from this offset on."""
        self._next = offset
        self._matches = None
        self.active = True

    def stop(self) -> None:
        """Stop delivering; the credit is kept."""
        self.active = False
        self._sending = False
        self._matches = None
        self._ahead.stop()
        self._reader.remove_waiter(self._wake)

    def close(self) -> None:
        """Release everything."""
        self.stop()
        self._session.node.readers.release(self._reader)

    @property
    def next_offset(self) -> int | None:
        """The next record that it sends, or one before that it does not want; None while it is not active."""
        return self._next if self.active else None

    def add_credit(self, more: int) -> None:
        """Add the u16 of a Credit command."""
        self._credit += more - 2 * _SIGN_BIT if more >= _SIGN_BIT else more

    # --- delivering

    def deliver(self, budget: int, turn: Turn) -> tuple[int, bool]:
        """Send chunks, as many as there is credit for.

        Args:
            budget: about how many bytes to send at most; at least one chunk is sent where there is one.
            turn: no further chunk is begun when it is over.

        Returns:
            How many bytes of the budget were used, and whether budget or turn ended before the chunks did. If not, the
            next credit or append starts the next delivery.

        Raises:
            CorruptLog: what is stored there fails its check.
            PartitionClosed: the stream was deleted, or the log closed.
        """
        if not self.active or self._credit <= 0:
            return 0, False
        if not self._sending and self._credit <= self._threshold:
            return 0, False
        self._sending = True
        counters = self._session.node.counters
        pieces: list[bytes | memoryview] = []
        committed = self._chunks.last_id() if self._version == 2 else 0
        used = 0
        while self._credit > 0:
            if used >= budget or (used and turn.over):
                if pieces:  # nothing sent is no sign of life: the door's heartbeat is still due
                    self._session.send_all(pieces)
                return used, True
            before = used
            for chunk in self._wanted():
                if chunk is None:
                    used += _BATCH_COST
                else:
                    size = chunk.size
                    last = max(committed, chunk.first_offset) if self._version == 2 else None
                    pieces += (encode_deliver_head(self.number, size, last), chunk.header, chunk.data)
                    used += size
                    self._credit -= 1
                    self._next = chunk.next_offset
                    counters.delivered += chunk.records
                    counters.delivered_bytes += size
                if used >= budget or self._credit <= 0 or (self._filter_values and turn.over):
                    break  # ``_matches`` goes on from here
            if used == before:  # nothing came: all stored batches have been examined
                self._matches = None
                if self._at_end():
                    break
        self._sending = False
        if pieces:
            self._session.send_all(pieces)
            if not self._filter_values:
                self._ahead.from_offset(self._next)
        return used, False

    def _at_end(self) -> bool:
        """Wait for the next append, and return whether no records are left before it."""
        partition = self.served.partition
        if self._next < partition.next_offset:
            return False
        self._reader.add_waiter(self._wake)
        return self._next >= partition.next_offset  # an append may have come in between

    def _wanted(self) -> Iterable[Chunk | None]:
        """Return the next chunks to send; with filter values None after each stored batch, too. Nothing at the end."""
        first = self.served.partition.first_offset
        if self._next < first:
            # Retention has removed the next records, and perhaps all later ones too.
            self._next = first
            self._matches = None
        if not self._filter_values:
            return self._chunks.run(self._next, self._credit)
        if self._matches is None:
            self._matches = self._matching()
        return self._matches

    def _matching(self) -> Iterator[Chunk | None]:
        """Yield the chunks with the wanted records from the position on, and None after each stored batch.

        The caller moves the position to the end of each chunk that it sends, and may take the next chunk much later.
        """
        for batch in self.served.partition.batches(self._next):
            self._next = max(self._next, batch.first_offset)
            if self._filter_values.may_match(batch.notes):
                yield from self._of_batch(batch)
            self._next = max(self._next, batch.next_offset)
            yield None

    def _of_batch(self, batch: StoredBatch) -> Iterator[Chunk]:
        """Yield the chunks with the wanted records of a stored batch, from the position on."""
        first, until = batch.first_offset, batch.next_offset
        rows = self._filter_values.rows(batch.notes, until - first)
        while self._next < until:
            if rows is not None:
                left = rows[self._next - first :]
                if not left.any():
                    return
                self._next += int(left.argmax())  # a batch of create time may have a chunk for each record
            parts, end = self._next_parts(first, until, rows)
            while parts:
                yield parts.popleft()  # while it waits for credit, nothing here keeps the memory of a sent chunk
            self._next = end

    def _next_parts(self, first: int, until: int, rows: Mask | None) -> tuple[deque[Chunk], int]:
        """Return the parts of the chunk at the position that hold its wanted records, and the chunk's end.

        Args:
            first: the first offset of the stored batch.
            until: its end, exclusive.
            rows: which of its records are wanted; None for all.
        """
        # Only this batch is read and encoded, unless another subscription has needed more of the block.
        chunks = self._chunks.run(self._next, 1, ONE_BATCH)
        if not chunks or chunks[0].first_offset >= until:
            return deque(), until  # retention has removed the rest of the batch
        chunk = chunks[0]
        if rows is None:
            return deque([chunk]), chunk.next_offset
        wanted = rows[chunk.first_offset - first : chunk.next_offset - first].copy()
        wanted[: max(0, self._next - chunk.first_offset)] = False
        if not wanted.any():
            return deque(), chunk.next_offset
        parts = [selection_of(chunk, wanted)] if self._selections else runs_of(chunk, wanted)
        return deque(parts), chunk.next_offset
