"""One subscription: where it stands, what it may still be sent, and which chunks it wants.

Spec: notes, sections 6 to 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from spark_streams.log.stored_batches import StoredBatch
from spark_streams.server.rabbit.chunks import ONE_BATCH, READ_BYTES, Chunk
from spark_streams.server.rabbit.look_ahead import LookAhead
from spark_streams.server.rabbit.publishers import BLOOM_NOTE
from spark_streams.server.rabbit.starting import start_offset
from spark_streams.wire.rabbit.bloom import may_match
from spark_streams.wire.rabbit.consuming import OffsetSpecification, OffsetType, Subscribe
from spark_streams.wire.rabbit.delivering import encode_deliver_head

if TYPE_CHECKING:
    from spark_streams.server.rabbit.connection import RabbitConnection
    from spark_streams.server.rabbit.single_active import Group
    from spark_streams.server.rabbit.topology import Served

__all__ = ["Subscription"]

_SIGN_BIT: Final = 0x8000
"""Brokers read the u16 of Credit as a signed number, that of Subscribe as it is (notes, section 7)."""
_SKIP_COST: Final = 512
"""Looking at a stored batch that does not match counts as sending this many bytes."""


class Subscription:
    """One subscription, which delivers nothing before it is started.

    Args:
        connection: its connection.
        served: the stream.
        request: what the client asked for.
        wake: called on the loop when there is something new.
        update: called when it is to be the active one of its group, or no more.

    Attributes:
        number: its id on the connection.
        group: its group, when of several consumers one is to be active.
        active: whether it delivers.
    """

    def __init__(
        self,
        connection: RabbitConnection,
        served: Served,
        request: Subscribe,
        wake: Callable[[Subscription], None],
        update: Callable[[Subscription, bool], None],
    ) -> None:
        node = connection.node
        self.number = request.subscription_id
        self.served = served
        self.group: Group | None = None
        self.active = False
        self._connection = connection
        self._chunks = node.chunks(served)
        self._feed = node.feeds.use(served.partition)
        self._wake_up = wake
        self._update = update
        self._asked = request.offset
        self._credit = request.credit
        self._threshold = request.credit // 2 if node.config.half_credit else 0
        self._sending = False
        self._next = 0
        self._version = connection.deliver_version
        properties = request.properties if node.config.filtering else {}
        self._values = [value.encode() for name, value in properties.items() if name.startswith("filter.")]
        self._unfiltered = properties.get("match-unfiltered") == "true"
        self._walk: Iterator[StoredBatch] | None = None
        self._matched_until = 0
        self._ahead = LookAhead(self._chunks, node.loop)

    # --- starting and stopping

    def start_at(self, wanted: OffsetSpecification) -> int:
        """Return where deliveries would start; type NONE means where the client subscribed. Raises as the log does."""
        if wanted.type == OffsetType.NONE:
            wanted = self._asked
        read_bytes = ONE_BATCH if self._values else READ_BYTES
        return start_offset(self.served.partition, self._chunks, wanted, read_bytes)

    def start(self, offset: int) -> None:
        """Deliver from the chunk with this id on."""
        self._next = offset
        self._walk = None
        self._matched_until = 0
        self.active = True

    def stop(self) -> None:
        """Deliver no more; the credit is kept."""
        self.active = False
        self._sending = False
        self._walk = None
        self._ahead.stop()
        self._feed.waiting.remove(self._wake)

    def close(self) -> None:
        """Let go of everything."""
        self.stop()
        self._connection.node.feeds.release(self._feed)

    def add_credit(self, more: int) -> None:
        """Add the u16 of a Credit command."""
        self._credit += more - 2 * _SIGN_BIT if more >= _SIGN_BIT else more

    def update(self, active: bool) -> None:
        """Become the active one of its group, or no more, once the consumer has answered."""
        self._update(self, active)

    def _wake(self) -> None:
        self._wake_up(self)

    # --- delivering

    def deliver(self, budget: int) -> tuple[int, bool]:
        """Send chunks, as many as there is credit for.

        Args:
            budget: about how many bytes to send at most; at least one chunk is sent where there is one.

        Returns:
            How many bytes of the budget were used, and whether it ended for want of budget. Otherwise the next credit
            or append decides when there is more to do.

        Raises:
            CorruptLog: what is stored there fails its check.
            PartitionClosed: the stream was deleted, or the log closed.
        """
        if not self.active or self._credit <= 0:
            return 0, False
        if not self._sending and self._credit <= self._threshold:
            return 0, False
        self._sending = True
        pieces: list[bytes | memoryview] = []
        committed = self._chunks.last_id() if self._version == 2 else 0
        used = 0
        while self._credit > 0:
            if used >= budget:
                self._connection.send_all(pieces)
                return used, True
            wanted, skipped = self._wanted()
            used += skipped * _SKIP_COST
            if wanted:
                used += self._take(wanted, pieces, committed, budget - used)
            elif not skipped and self._at_end():
                break
        self._sending = False
        if pieces:
            self._connection.send_all(pieces)
            if not self._values:
                self._ahead.from_offset(self._next)
        return used, False

    def _take(self, chunks: list[Chunk], pieces: list[bytes | memoryview], committed: int, budget: int) -> int:
        """Have chunks sent, until the budget is used; return their bytes."""
        number, used = self.number, 0
        for chunk in chunks:
            header, data = chunk.header, chunk.data
            size = len(header) + len(data)
            last = max(committed, chunk.first_offset) if self._version == 2 else None
            head = encode_deliver_head(number, size, last)
            pieces += (head, header, data)
            used += size
            self._credit -= 1
            self._next = chunk.next_offset
            if used >= budget:
                break
        return used

    def _at_end(self) -> bool:
        """Wait for the next append, and say whether there is nothing before it."""
        partition = self.served.partition
        if self._next < partition.next_offset:
            return False
        self._feed.waiting.add(self._wake)
        return self._next >= partition.next_offset  # one may have come in between

    def _wanted(self) -> tuple[list[Chunk], int]:
        """Return consecutive chunks to be sent, and how many stored batches were skipped; none of either at the end."""
        # Retention may have removed what would be next, and all that is after it too.
        self._next = max(self._next, self.served.partition.first_offset)
        if not self._values:
            return self._chunks.run(self._next, self._credit), 0
        skipped = 0
        if self._next >= self._matched_until:
            skipped = self._skip_to_match()
            if self._next >= self._matched_until:
                return [], skipped
        # Only what matched is read and encoded, unless somebody else has had a need for it.
        run = self._chunks.run(self._next, self._credit, ONE_BATCH)
        return [chunk for chunk in run if chunk.first_offset < self._matched_until], skipped

    def _skip_to_match(self) -> int:
        """Go on to the next stored batch that may hold a wanted value; return how many were skipped.

        It stops after a number of them: a filter that nothing matches must not hold up the other connections.
        """
        if self._walk is None:
            if self._next >= self.served.partition.next_offset:
                return 0
            self._walk = self.served.partition.batches(self._next)
        skipped = 0
        for batch in self._walk:
            bloom = next((value for name, value in batch.notes if name == BLOOM_NOTE), None) or b""
            if may_match(bloom, self._values, self._unfiltered):
                self._next = max(self._next, batch.first_offset)
                self._matched_until = batch.next_offset
                return skipped
            self._next = batch.next_offset
            skipped += 1
            if skipped * _SKIP_COST >= READ_BYTES:
                return skipped
        self._walk = None
        return skipped
