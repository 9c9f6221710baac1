"""Publishes to one stream: sends frames, handles confirms, and tracks the rows that are not confirmed.

Spec: Streams Protocol Reference, DeclarePublisher to QueryPublisherSequence; docs/specifications.md,
S-101 to S-107.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.digested_rows import Label
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import advice, present
from spark_streams.errors import DeliveryFailed, LocalProtocolError
from spark_streams.wire.columnar.byte_view import run_ends
from spark_streams.wire.rabbitmq.compression import Compression
from spark_streams.wire.rabbitmq.frames import code_name
from spark_streams.wire.rabbitmq.publish_decode import (
    PublishErrors,
    QueryPublisherSequence,
    QueryPublisherSequenceAnswer,
)
from spark_streams.wire.rabbitmq.publish_encode import RabbitPublishing, encode_publish, encode_sub_batches

Ids = NDArray[np.uint64]


def query_sequences(connection: Connection, streams: Sequence[str], reference: str) -> list[int]:
    """Return the last publishing id that the broker has for a reference in each stream, 0 for none.

    Raises:
        PeerError: the broker refused the request for a stream.
    """
    asked = [
        (QueryPublisherSequence(reference, stream), f"stream '{stream}': query the publisher's sequence")
        for stream in streams
    ]
    return [present(answer).sequence for answer in connection.answers(asked, QueryPublisherSequenceAnswer)]


@dataclass(frozen=True)
class Entries:
    """Messages to publish: each one an entry of its own, or several in a sub-entry batch.

    Args:
        ids: uint64[m], ascending: one id per entry.
        counts: int64[m], messages of each entry; None: one each, no sub-entry batches.
        values: large_binary, the messages.
        filter_values: string, as many as messages, or None; only without sub-entry batches.
        rows: int64[m], ascending, the row that names an entry in errors: that of its first message.
    """

    ids: Ids
    counts: NDArray[np.int64] | None
    values: pa.LargeBinaryArray
    filter_values: pa.StringArray | None
    rows: NDArray[np.int64]

    @property
    def messages(self) -> NDArray[np.int64]:
        """Messages of each entry."""
        return np.ones(len(self.ids), np.int64) if self.counts is None else self.counts

    def pieces(self, most: int) -> list[Entries]:
        """Cut into consecutive pieces, each of at most ``most`` messages, or of one entry that has more."""
        totals = np.cumsum(self.messages)
        ends = run_ends(totals, most)
        begins = [0, *totals.tolist()]
        return [
            self._some(slice(first, stop), pa.Array.slice, begins[first], begins[stop] - begins[first])
            for first, stop in pairwise([0, *ends])
        ]

    def chosen(self, places: NDArray[np.int64]) -> Entries:
        """Return some of the entries, by their places, ascending."""
        if len(places) == len(self.ids):
            return self
        wanted = np.zeros(len(self.ids), np.bool_)
        wanted[places] = True
        return self._some(places, pa.Array.take, pa.array(np.flatnonzero(np.repeat(wanted, self.messages))))

    def _some(self, places: slice | NDArray[np.int64], choose: Callable[..., pa.Array], *messages: Any) -> Entries:
        """Return the entries at some places; ``choose`` takes their ``messages`` out of a column."""
        return Entries(
            self.ids[places],
            None if self.counts is None else self.counts[places],
            choose(self.values, *messages),
            None if self.filter_values is None else choose(self.filter_values, *messages),
            self.rows[places],
        )


@dataclass
class _Flying:
    """Entries that are sent, and the places of those that are not confirmed: at least one, ascending."""

    entries: Entries
    label: Label
    left: NDArray[np.int64]

    @property
    def messages(self) -> int:
        """Messages that are not confirmed."""
        return int(self.entries.messages[self.left].sum())


class StreamPublisher:
    """Publishes to one stream over a connection that other publishers share.

    Args:
        connection: the connection, on which it is declared.
        number: the publisher's id on the connection.
        stream: the stream's name.
        how: how to publish.
    """

    def __init__(self, connection: Connection, number: int, stream: str, how: RabbitPublishing) -> None:
        self.stream = stream
        self.number = number
        self.unconfirmed = 0
        """Messages that have been sent and not confirmed."""
        self.kept_bytes = 0
        """Bytes of the messages that were sent together with one of these, and may have to be sent again."""
        self._connection = connection
        self._compression = Compression[how.compression.upper()]
        self._flying: deque[_Flying] = deque()

    @property
    def first_row(self) -> int | None:
        """Number of the first row that is not confirmed; None when all are."""
        return self._row(self._flying[0], 0) if self._flying else None

    def _row(self, flying: _Flying, place: int) -> int:
        return int(flying.entries.rows[flying.left[place]])

    def send(self, entries: Entries, label: Label) -> None:
        """Send entries without waiting for confirms.

        Args:
            entries: the entries to publish.
            label: names a row of ``entries.rows`` in errors.

        Raises:
            DeliveryFailed: a message or a sub-entry batch exceeds the broker's largest size.
            TransportError: the connection broke.
        """
        try:
            frames = self._frames(entries)
        except LocalProtocolError as fault:
            raise self._too_large(entries, label, fault) from fault
        self._flying.append(_Flying(entries, label, np.arange(len(entries.ids))))
        self.unconfirmed += len(entries.values)
        self.kept_bytes += entries.values.nbytes
        for frame in frames:
            self._connection.send(frame)

    def send_again(self, connection: Connection, number: int) -> None:
        """Send what is not confirmed in the same order, under the same ids, on a connection where it is declared anew.

        Raises:
            TransportError: the connection broke.
        """
        self._connection, self.number = connection, number
        for flying in self._flying:
            for frame in self._frames(flying.entries.chosen(flying.left)):
                connection.send(frame)

    def _frames(self, entries: Entries) -> list[bytes]:
        limit = self._connection.frame_max_bytes
        if entries.counts is None:
            return encode_publish(self.number, entries.ids, entries.values, entries.filter_values, limit)
        return encode_sub_batches(self.number, entries.ids, entries.counts, entries.values, self._compression, limit)

    def _too_large(self, entries: Entries, label: Label, fault: LocalProtocolError) -> DeliveryFailed:
        """Return the error that names the first entry that no frame can hold."""
        for piece in entries.pieces(1):
            try:
                self._frames(piece)
            except LocalProtocolError as own:
                reason, row = str(own).removeprefix("row 0: "), label(int(piece.rows[0]))
                sizes = np.asarray(pc.binary_length(piece.values))
                at = int(sizes.argmax())
                if len(sizes) > 1 and (at or sizes[at] < self._connection.frame_max_bytes):
                    row = f"a sub-entry batch of {len(sizes)} rows, the first of which is {row},"
                    reason += f"; message {at + 1} of it is the largest, {sizes[at]} bytes: make 'subEntrySize' smaller"
                return DeliveryFailed("not taken", "too-large", reason, row, self.stream)
        return DeliveryFailed("not taken", "too-large", str(fault), label(int(entries.rows[0])), self.stream)

    def confirmed(self, ids: Ids) -> bool:
        """Handle a PublishConfirm with its ids, in any order; return whether one of them was not confirmed before."""
        waiting = self.unconfirmed
        for flying in self._flying:
            mine, before = flying.entries.ids[flying.left], flying.messages
            count = min(len(ids), len(mine))
            left: slice | NDArray[np.bool_] = slice(count, None)
            if np.array_equal(ids[:count], mine[:count]):  # the usual order, which costs least
                ids = ids[count:]
            else:
                at = np.searchsorted(mine[:-1], ids)
                found = mine[at] == ids
                left = np.ones(len(mine), np.bool_)
                left[at[found]] = False
                ids = ids[~found]
            flying.left = flying.left[left]
            self.unconfirmed -= before - flying.messages
            if not len(ids):
                break
        self._flying = deque(flying for flying in self._flying if len(flying.left))
        self.kept_bytes = sum(flying.entries.values.nbytes for flying in self._flying)
        return self.unconfirmed < waiting

    def refused(self, errors: PublishErrors) -> DeliveryFailed:
        """Return the error for a PublishError: it names the first of its rows, and the code."""
        first = int(errors.ids.min())
        code = int(errors.codes[int(np.argmin(errors.ids))])
        return DeliveryFailed("refused", code_name(code), advice(code), self._row_of(first), self.stream)

    def abandoned(self, why: str, description: str = "") -> DeliveryFailed:
        """Return the error for all rows that are not confirmed: it names the first one."""
        return DeliveryFailed("not confirmed", why, description, self._row_of(None), self.stream)

    def _row_of(self, entry: int | None) -> str:
        for flying in self._flying:
            ids = flying.entries.ids[flying.left]
            at = 0 if entry is None else int(np.searchsorted(ids, np.uint64(entry)))
            if entry is None or (at < len(ids) and int(ids[at]) == entry):
                return flying.label(self._row(flying, at))
        return "a row"
