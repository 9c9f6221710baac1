"""Publishes to one stream: sends frames, handles confirms, and tracks the rows that are not confirmed.

Spec: Streams Protocol Reference, DeclarePublisher to QueryPublisherSequence; docs/specifications.md,
S-101 to S-107.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.digested_rows import Label, run_ends
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import advice, refused
from spark_streams.errors import DeliveryFailed, LocalProtocolError
from spark_streams.wire.rabbitmq.publish_decode import PublishErrors
from spark_streams.wire.rabbitmq.publish_encode import encode_publish, encode_sub_batches
from spark_streams.wire.rabbitmq.publisher_commands import (
    QueryPublisherSequence,
    QueryPublisherSequenceAnswer,
)
from spark_streams.wire.rabbitmq.response_codes import code_name

Ids = NDArray[np.uint64]


def query_sequences(connection: Connection, streams: Sequence[str], reference: str) -> list[int]:
    """Return the last publishing id that the broker has for a reference in each stream, 0 for none.

    Raises:
        PeerError: the broker refused the request for a stream.
    """
    what = [f"stream '{stream}': query the publisher's sequence" for stream in streams]
    requests = [QueryPublisherSequence(reference, stream) for stream in streams]
    answers = connection.ask_all(zip(requests, what, strict=True), QueryPublisherSequenceAnswer)
    for answer, asked in zip(answers, what, strict=True):
        if not answer.ok:
            raise refused(answer.code, QueryPublisherSequence, asked, connection.endpoint)
    return [answer.sequence for answer in answers]


@dataclass(frozen=True)
class Entries:
    """Messages to publish: each one an entry of its own, or several in a sub-entry batch.

    Args:
        ids: uint64[m], ascending: one id an entry.
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
        ends = run_ends(totals, most, len(totals))
        return [
            self._slice(first, stop, int(totals[first - 1]) if first else 0, int(totals[stop - 1]))
            for first, stop in pairwise([0, *ends])
        ]

    def _slice(self, first: int, stop: int, message: int, end: int) -> Entries:
        return Entries(
            self.ids[first:stop],
            None if self.counts is None else self.counts[first:stop],
            self.values.slice(message, end - message),
            None if self.filter_values is None else self.filter_values.slice(message, end - message),
            self.rows[first:stop],
        )


@dataclass
class _Flying:
    """Entries that are sent and not confirmed, at least one, with ascending ids."""

    ids: Ids
    rows: NDArray[np.int64]
    messages: NDArray[np.int64]
    label: Label


class StreamPublisher:
    """Publishes to one stream over a connection that other publishers share.

    Args:
        connection: the connection, on which it is declared.
        number: the publisher's id on the connection.
        stream: the stream's name.
        compression: the compression of sub-entry batches.
    """

    def __init__(self, connection: Connection, number: int, stream: str, compression: int) -> None:
        self.stream = stream
        self.number = number
        self.unconfirmed = 0
        """Messages that have been sent and not confirmed."""
        self._connection = connection
        self._compression = compression
        self._flying: deque[_Flying] = deque()

    @property
    def first_row(self) -> int | None:
        """Number of the first row that is not confirmed; None when all are."""
        return int(self._flying[0].rows[0]) if self._flying else None

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
        self._flying.append(_Flying(entries.ids, entries.rows, entries.messages, label))
        self.unconfirmed += len(entries.values)
        for frame in frames:
            self._connection.send(frame)

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

    def confirmed(self, ids: Ids) -> None:
        """Handle a PublishConfirm with its ids, in any order."""
        for flying in self._flying:
            count, before = min(len(ids), len(flying.ids)), int(flying.messages.sum())
            left: slice | NDArray[np.bool_] = slice(count, None)
            if np.array_equal(ids[:count], flying.ids[:count]):  # the usual order, which costs least
                ids = ids[count:]
            else:
                at = np.searchsorted(flying.ids[:-1], ids)
                found = flying.ids[at] == ids
                left = np.ones(len(flying.ids), np.bool_)
                left[at[found]] = False
                ids = ids[~found]
            flying.ids, flying.rows, flying.messages = flying.ids[left], flying.rows[left], flying.messages[left]
            self.unconfirmed -= before - int(flying.messages.sum())
            if not len(ids):
                break
        self._flying = deque(flying for flying in self._flying if len(flying.ids))

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
            at = 0 if entry is None else int(np.searchsorted(flying.ids, np.uint64(entry)))
            if entry is None or (at < len(flying.ids) and int(flying.ids[at]) == entry):
                return flying.label(int(flying.rows[at]))
        return "a row"
