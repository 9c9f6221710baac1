"""Publishes the rows of one task to streams or to the partitions of a super stream, exactly once or at least once.

Delivery guarantee, with an identity: exactly once. Publishing ids are derived from the micro-batch and the row's
number, under a reference that is the same on every attempt, so the broker drops the rows that it has already; the
publisher skips these rows too, except the last one. It publishes nothing before it has checked that the streams have
the same rows of this task; if they do not, the task fails (``publishing_ids.py``;
docs/adr/0010-rabbitmq-exactly-once.md). Without an identity: at least once.

``flush`` returns only when every row is confirmed, and raises otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.digested_rows import (
    BLOCK_ROWS,
    Destinations,
    Label,
    RowBlock,
    RowBlocks,
    RowLabels,
    TaskIdentity,
)
from spark_streams.client.kept_connections import KeptConnections
from spark_streams.client.rabbitmq.cluster import Cluster
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.publisher_pool import PublisherPool, delete_publishers
from spark_streams.client.rabbitmq.publishing_ids import Resumed, publishing_ids
from spark_streams.client.rabbitmq.routing import Router, open_router
from spark_streams.client.rabbitmq.stream_publisher import Entries, query_sequences
from spark_streams.client.retry import LONG_BACKOFF, retrying
from spark_streams.endpoint import Endpoint
from spark_streams.errors import OptionError, SparkStreamsError
from spark_streams.wire.rabbitmq.publish_decode import PUBLISH_KEY
from spark_streams.wire.rabbitmq.publish_encode import RabbitPublishing

HELD_IN_FLIGHTS: Final = 10
"""The publisher may hold back this many times option maxInFlight while it compares streams: an attempt leaves out no
more messages than were under way when it ended, and the option may have been larger then."""
ANSWERS_MS: Final = 2_000
"""How long the broker may take to answer the first request on a connection of an earlier task."""


class TaskPublisher:
    """Publishes the rows of one task, for one thread at a time.

    Args:
        endpoint: the broker; any of its hosts will do, as every node accepts rows for streams that another one leads.
        how: how to publish.
        identity: the task's identity, None for at least once.
        kept: the connections of tasks that are over: one of them is used, and goes back there; None if there is none.

    Raises:
        NotFound, Refused, AuthenticationFailed, TransportError: no connection, or no such super stream.
        DeliveryFailed: the stream has a later micro-batch of the query already.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        how: RabbitPublishing,
        identity: TaskIdentity | None,
        kept: KeptConnections[Connection] | None = None,
    ) -> None:
        self._how = how
        self._identity = identity
        self._kept = kept or KeptConnections(0)
        self._endpoint = endpoint
        self._key = self._kept.key(endpoint, how.request_timeout_ms)
        self._settled = False
        self._cluster = Cluster(endpoint, how.request_timeout_ms)
        connection = self._taken() or retrying(self._connected, LONG_BACKOFF)
        reference = "" if identity is None else identity.reference
        self._outgoing = PublisherPool(connection, reference, how, self._connected)
        size = max(BLOCK_ROWS, how.sub_entry_size)
        # Batches of another size would cut the rows elsewhere, so it has to be the same on every attempt.
        begin = b"%d messages a batch" % how.sub_entry_size
        self._blocks = RowBlocks(self._place, size, begin, digested=identity is not None)
        self._resumed: dict[str, Resumed] = {}
        self._held: list[tuple[str, Entries, Label]] = []
        self._labels = RowLabels()
        self._only: str | None = None
        self._router: Router | None = None
        try:
            if how.super_stream is not None:
                routed = how.super_stream, how.routing
                self._router = self._outgoing.ask(lambda connection: open_router(connection, *routed))
                if identity is not None:
                    # Resume all partitions: one without a row now may have got rows on an earlier attempt.
                    self._resume(self._router.partitions, identity)
        except BaseException:
            self.close()
            raise

    def send(
        self,
        payloads: pa.LargeBinaryArray,
        destinations: pa.StringArray | str,
        filters: pa.StringArray | None,
        label: Label,
    ) -> None:
        """Add rows, and publish full blocks; wait while too many messages are not confirmed.

        Args:
            payloads: the encoded messages.
            destinations: the key of each row in a super stream, else the name of its stream; one name for all rows
                when all go to one stream.
            filters: filter values, or None.
            label: names row i of these in errors.

        Raises:
            OptionError: there are filter values, and the broker accepts none.
            DeliveryFailed: the broker refused or did not confirm a row of this or an earlier call, the rows differ from
                those of an earlier attempt, or a row has no partition.
            NotFound, Refused: there is no such stream, or we may not publish there.
            TransportError, PeerError: the connection broke, and all earlier rows were confirmed.
        """
        self._settled = False
        columns = {"payload": payloads}
        if isinstance(destinations, str):
            self._only = destinations
        else:
            columns["destination"] = destinations
        if filters is not None:
            self._check_filters()
            columns["filter"] = filters
        self._labels.add(len(payloads), label)
        for block, rows in self._blocks.add(pa.table(columns)):
            self._publish(block, rows)

    def flush(self) -> None:
        """Publish the last block, and return once every row is confirmed.

        Raises:
            DeliveryFailed, NotFound, Refused, TransportError, PeerError: as for ``send``; also ``DeliveryFailed`` if an
                earlier attempt had more rows.
        """
        for block, rows in self._blocks.finish():
            self._publish(block, rows)
        for resumed in self._resumed.values():
            resumed.check_end(self._blocks.rows)
        self._outgoing.flush()
        self._settled = True

    @property
    def unconfirmed(self) -> int:
        """Messages that have been sent and not confirmed."""
        return self._outgoing.unconfirmed

    def turn(self) -> None:
        """Serve the connection without waiting: heartbeats, confirms."""
        self._outgoing.turn()

    def close(self) -> None:
        """Disconnect, or leave the connection to the next task; unconfirmed rows may or may not be stored."""
        self._kept.give_back(self._key if self._settled else None, self._outgoing.connection)

    def _connected(self) -> Connection:
        """Return a connection that is open, a new one where there is none; a password of a file is read for it."""
        self._key = self._kept.key(self._endpoint, self._how.request_timeout_ms)
        return self._cluster.any()

    def _taken(self) -> Connection | None:
        """Return a kept connection that still answers, without the publishers of the task that had it."""
        connection = self._kept.take(self._key)
        if connection is None:
            return None
        connection.timeout_ms = min(ANSWERS_MS, self._how.request_timeout_ms)
        try:
            delete_publishers(connection)
        except SparkStreamsError:  # the network, or a broker with an alarm, which it then reports on another connection
            connection.abandon()
            return None
        connection.timeout_ms = self._how.request_timeout_ms
        connection.events.clear()
        return connection

    def _check_filters(self) -> None:
        connection = self._outgoing.connection
        if connection.versions.get(PUBLISH_KEY, 1) < 2:
            version = connection.properties.get("version", "of unknown version")
            raise OptionError(
                "filterValueColumn",
                f"the broker, {version}, takes no filter values, which came with RabbitMQ 3.13: leave the option out",
            )

    # --- blocks

    def _place(self, first_row: int, rows: pa.Table) -> Destinations:
        """Return where the rows of a block go."""
        if self._only is not None:
            return {self._only: np.arange(rows.num_rows)}
        destinations = rows.column("destination").combine_chunks()
        if self._router is not None:
            return self._router.route(destinations, lambda row: self._labels(first_row + row))
        names = destinations.unique().to_pylist()
        return {name: np.flatnonzero(np.asarray(pc.equal(destinations, name))) for name in names}

    def _publish(self, block: RowBlock, rows: pa.Table) -> None:
        if self._identity is not None:
            self._resume(block.places, self._identity)
            for resumed in self._resumed.values():
                resumed.check(block)
        label = self._labels.take(block.first_row + block.rows)
        for stream, chosen in block.places.items():
            entries = self._entries(stream, block, rows, chosen)
            if entries is not None:
                self._held.append((stream, entries, label))
        behind = [resumed for resumed in self._resumed.values() if not resumed.compared]
        if behind:
            self._check_held(behind)
            return
        held, self._held = self._held, []
        self._outgoing.declare(dict.fromkeys(stream for stream, _, _ in held))
        for stream, entries, named in held:
            self._outgoing.publish(stream, entries, named)

    def _check_held(self, behind: list[Resumed]) -> None:
        """Refuse to hold back more rows than an earlier attempt can have left out.

        Rows of a super stream go to its partitions independently, so one partition may have more of them than another.
        The missing rows of the others wait here until the rows are known to be the same: a published row cannot be
        undone.

        Raises:
            DeliveryFailed: more rows are held back.
        """
        most = HELD_IN_FLIGHTS * self._how.max_in_flight + self._blocks.block_rows
        if sum(len(entries.values) for _, entries, _ in self._held) > most:
            farthest = max(behind, key=lambda resumed: resumed.last_row)
            raise farthest.too_far_behind(most, int(self._held[0][1].rows[0]))

    def _entries(self, stream: str, block: RowBlock, rows: pa.Table, chosen: NDArray[np.int64]) -> Entries | None:
        """Return the entries to publish of a block's rows; None for nothing."""
        # Make the groups before skipping rows: on every attempt the same rows share a sub-entry batch.
        size = self._how.sub_entry_size
        firsts = np.arange(0, len(chosen), size)
        ends = np.minimum(firsts + size, len(chosen))
        numbers = block.first_row + chosen
        if self._identity is not None:
            # Send the last row that the stream has again: its confirm means that the replicas have it.
            kept = numbers[ends - 1] >= self._resumed[stream].last_row
            firsts, ends = firsts[kept], ends[kept]
        if not len(firsts):
            return None
        wanted = chosen[firsts[0] :]
        picked = rows if len(wanted) == rows.num_rows else rows.take(pa.array(wanted))
        lasts = numbers[ends - 1]
        return Entries(
            # Without deduplication ids are for confirms alone.
            (lasts + 1).astype(np.uint64)
            if self._identity is None
            else publishing_ids(self._identity.batch, lasts, block.digest),
            None if size == 1 else ends - firsts,
            picked.column("payload").combine_chunks(),
            picked.column("filter").combine_chunks() if "filter" in picked.column_names else None,
            numbers[firsts],
        )

    def _resume(self, streams: Iterable[str], identity: TaskIdentity) -> None:
        """Request once what each stream has of this task."""
        new = [stream for stream in streams if stream not in self._resumed]
        sequences = self._outgoing.ask(lambda connection: query_sequences(connection, new, identity.reference))
        for stream, sequence in zip(new, sequences, strict=True):
            self._resumed[stream] = Resumed(stream, identity.batch, sequence)
