"""What one task publishes: rows to one stream or to the partitions of a super stream, each as often as was promised.

Delivery guarantee, with an identity: exactly once. Publishing ids are derived from the micro-batch and the row's
number, under a reference that is the same on every attempt, so the broker drops what it has already, and what it has
is skipped here. Rows that are not those of an earlier attempt are noticed and fail the task
(``publishing_ids.py``; docs/adr/0010-rabbitmq-exactly-once.md). Without an identity: at least once.

``flush`` returns only when everything is confirmed, and raises otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.rabbit.connection import Connection
from spark_streams.client.rabbit.publisher import Entries, StreamPublisher, query_sequence
from spark_streams.client.rabbit.publishing_ids import WINDOW_ROWS, Resumed, Window, Windows, publishing_ids
from spark_streams.client.rabbit.routing import Router, open_router
from spark_streams.client.retry import Deadline, retrying
from spark_streams.endpoint import Endpoint
from spark_streams.errors import DeadlineExceeded, DeliveryFailed, OptionError, PeerError, TransportError
from spark_streams.wire.rabbit.codes import ResponseCode, code_name
from spark_streams.wire.rabbit.compression import Compression
from spark_streams.wire.rabbit.frames import Command, Frame
from spark_streams.wire.rabbit.published import decode_confirm, decode_publish_error
from spark_streams.wire.rabbit.publishing import CONFIRM_KEY, PUBLISH_ERROR_KEY
from spark_streams.wire.rabbit.streams import MetadataUpdate

__all__ = ["RabbitPublishing", "TaskIdentity", "TaskPublisher"]

MAX_PUBLISHERS: Final = 256
"""A publisher's id has one byte."""

Label = Callable[[int], str]


@dataclass(frozen=True)
class TaskIdentity:
    """What a task is on every attempt: it makes publishing exactly once.

    Args:
        reference: the publisher's, the same for this query and Spark partition in every micro-batch.
        batch: number of the micro-batch.
    """

    reference: str
    batch: int


@dataclass(frozen=True)
class RabbitPublishing:
    """How to publish.

    Args:
        super_stream: the super stream that rows are routed in, None: rows name their streams.
        by_binding_key: whether a row's key is a binding key; otherwise its hash chooses the partition.
        compression: of sub-entry batches: none, gzip, snappy, lz4 or zstd.
        sub_entry_size: messages of a sub-entry batch; 1 for none.
        max_in_flight: messages that may wait for their confirm.
        timeout_ms: how long the broker may confirm nothing, or not answer.
    """

    super_stream: str | None = None
    by_binding_key: bool = False
    compression: str = "none"
    sub_entry_size: int = 1
    max_in_flight: int = 10_000
    timeout_ms: int = 30_000


class TaskPublisher:
    """Publishes the rows of one task. Not for several threads at once.

    Args:
        endpoint: the broker.
        how: options.
        identity: of the task, None for at least once.

    Raises:
        NotFound, Refused, AuthenticationFailed, TransportError: no connection, or no such super stream.
        DeliveryFailed: the stream has a later micro-batch of the query already.
    """

    def __init__(self, endpoint: Endpoint, how: RabbitPublishing, identity: TaskIdentity | None) -> None:
        self._how = how
        self._identity = identity
        self._endpoint = endpoint
        self._compression = int(Compression[how.compression.upper()])
        self._connection = retrying(lambda: Connection(endpoint, timeout_ms=how.timeout_ms))
        self._publishers: dict[str, StreamPublisher] = {}
        self._by_number: dict[int, StreamPublisher] = {}
        self._resumed: dict[str, Resumed] = {}
        self._windows = Windows(max(WINDOW_ROWS, how.sub_entry_size))
        self._labels: list[tuple[int, Label]] = []
        self._row = 0
        self._only: str | None = None
        self._router: Router | None = None
        if how.super_stream is not None:
            self._router = open_router(self._connection, how.super_stream, how.by_binding_key)
            if identity is not None:
                # All of them: one that gets no row now may have got some on an earlier attempt.
                for stream in self._router.partitions:
                    self._resume(stream)

    # --- rows in

    def send(
        self,
        payloads: pa.LargeBinaryArray,
        destinations: pa.StringArray | str,
        filters: pa.StringArray | None,
        label: Label,
    ) -> None:
        """Take rows; waits while too many messages are not confirmed.

        Args:
            payloads: the encoded messages.
            destinations: what decides where each goes: its key in a super stream, else its stream's name; one name for
                all of them when all go to one stream.
            filters: filter values, or None.
            label: names row i of these in errors.

        Raises:
            DeliveryFailed: the broker refused a row, of these or of earlier ones, or the rows are not those of an
                earlier attempt.
            TransportError: the connection broke, or nothing is confirmed in time.
        """
        columns = {"payload": payloads}
        if isinstance(destinations, str):
            self._only = destinations
        else:
            columns["destination"] = destinations
        if filters is not None:
            columns["filter"] = filters
        self._labels.append((self._row, label))
        self._row += len(payloads)
        for window, rows in self._windows.add(pa.table(columns)):
            self._publish(window, rows)

    def flush(self) -> None:
        """Return once everything is confirmed; see ``send``."""
        for window, rows in self._windows.finish():
            self._publish(window, rows)
        for resumed in self._resumed.values():
            resumed.check_end(self._windows.rows)
        self._wait(0)

    def turn(self) -> None:
        """Serve the connection without waiting: heartbeats, confirms."""
        self._connection.turn()
        for event in self._connection.pending():
            self._take(event)

    def close(self) -> None:
        """Disconnect; what is not confirmed may or may not be stored."""
        self._connection.close()

    # --- rows out

    def _publish(self, window: Window, rows: pa.Table) -> None:
        if self._only is not None:
            streams = {self._only: np.arange(window.rows)}
        else:
            destinations = rows.column("destination").combine_chunks()
            if self._router is not None:
                streams = self._router.route(destinations, lambda row: self._label(window.first_row + row))
            else:
                streams = {name: np.flatnonzero(np.asarray(mask)) for name, mask in _by_name(destinations)}
        if self._identity is not None:
            for stream in streams.keys() - self._resumed.keys():
                self._resume(stream).check_first(window)
        for resumed in self._resumed.values():
            resumed.check(window)
        for stream, chosen in streams.items():
            self._publish_to(stream, window, rows, chosen)
        self._forget_labels()

    def _publish_to(self, stream: str, window: Window, rows: pa.Table, chosen: NDArray[np.int64]) -> None:
        publisher = self._publisher(stream)
        # Groups are made before anything is skipped: on every attempt the same rows share a sub-entry batch.
        size = self._how.sub_entry_size
        firsts = np.arange(0, len(chosen), size)
        ends = np.minimum(firsts + size, len(chosen))
        numbers = window.first_row + chosen
        stored = self._resume(stream).stored_rows if self._identity is not None else 0
        kept = numbers[ends - 1] >= stored
        firsts, ends = firsts[kept], ends[kept]
        if not len(firsts):
            return
        wanted = chosen[firsts[0] :]
        picked = rows if len(wanted) == rows.num_rows else rows.take(pa.array(wanted))
        batch = 0 if self._identity is None else self._identity.batch
        filters = picked.column("filter").combine_chunks() if "filter" in picked.column_names else None
        entries = Entries(
            publishing_ids(batch, numbers[ends - 1], window.digest),
            None if size == 1 else ends - firsts,
            picked.column("payload").combine_chunks(),
            filters,
            numbers[firsts],
        )
        self._wait(max(0, self._how.max_in_flight - len(wanted)))
        publisher.send(entries, self._label)

    def _publisher(self, stream: str) -> StreamPublisher:
        publisher = self._publishers.get(stream)
        if publisher is None:
            number = len(self._publishers)
            if number >= MAX_PUBLISHERS:
                raise OptionError(
                    "superStream",
                    f"one task writes to more than {MAX_PUBLISHERS} streams, which is what a connection can: "
                    "repartition the DataFrame by what its rows are routed by",
                )
            if self._identity is not None:
                self._resume(stream)
            reference = "" if self._identity is None else self._identity.reference
            publisher = StreamPublisher(self._connection, number, stream, reference, self._compression)
            self._publishers[stream] = self._by_number[number] = publisher
        return publisher

    def _resume(self, stream: str) -> Resumed:
        resumed = self._resumed.get(stream)
        if resumed is None:
            assert self._identity is not None
            sequence = query_sequence(self._connection, stream, self._identity.reference)
            resumed = self._resumed[stream] = Resumed(stream, self._identity.batch, sequence)
        return resumed

    # --- confirms

    @property
    def _unconfirmed(self) -> int:
        return sum(publisher.unconfirmed for publisher in self._publishers.values())

    def _wait(self, limit: int) -> None:
        """Wait until at most ``limit`` messages are not confirmed."""
        for event in self._connection.pending():
            self._take(event)
        deadline = Deadline(self._how.timeout_ms)
        before = self._unconfirmed
        while before > limit:
            try:
                came = self._connection.receive(deadline.left_s("no confirm"))
            except DeadlineExceeded:
                raise self._first_unconfirmed("no-confirm", f"none within {deadline.timeout_ms} ms") from None
            except (TransportError, PeerError) as fault:
                raise self._first_unconfirmed("connection-lost", str(fault)) from fault
            if came is not None:
                self._take(came)
            left = self._unconfirmed
            if left < before:
                deadline.restart()
            before = left

    def _take(self, event: Command | Frame) -> None:
        if isinstance(event, Frame) and event.key == CONFIRM_KEY:
            confirmed = decode_confirm(event.buffer, event.start, event.end)
            publisher = self._by_number.get(confirmed.publisher_id)
            if publisher is not None:
                publisher.confirmed(confirmed.ids)
        elif isinstance(event, Frame) and event.key == PUBLISH_ERROR_KEY:
            errors = decode_publish_error(event.buffer, event.start, event.end)
            publisher = self._by_number.get(errors.publisher_id)
            if publisher is not None and len(errors.ids):
                raise publisher.refused(errors)
        elif isinstance(event, MetadataUpdate) and event.stream in self._publishers:
            raise self._publishers[event.stream].abandoned(
                code_name(ResponseCode.STREAM_NOT_AVAILABLE),
                "the broker dropped the publisher: the stream was deleted, or its node is gone",
            )

    def _first_unconfirmed(self, why: str, description: str) -> DeliveryFailed:
        waiting = [publisher for publisher in self._publishers.values() if publisher.unconfirmed]
        return waiting[0].abandoned(why, description)

    # --- naming rows in errors

    def _label(self, row: int) -> str:
        for first, label in reversed(self._labels):
            if row >= first:
                return label(row - first)
        return f"row {row}"

    def _forget_labels(self) -> None:
        """Keep the labels that rows under way may need: those of the last so many rows."""
        oldest = self._windows.rows - self._how.max_in_flight - 4 * self._windows.window_rows
        while len(self._labels) > 1 and self._labels[1][0] <= oldest:
            self._labels.pop(0)


def _by_name(streams: pa.StringArray) -> list[tuple[str, pa.BooleanArray]]:
    return [(name, pc.equal(streams, name)) for name in streams.unique().to_pylist()]
