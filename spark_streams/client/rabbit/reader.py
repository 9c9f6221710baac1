"""Reading one range of one stream, as record batches.

::

    subscribe at the next offset -> chunks -> records of the range -> RowDecoder -> RecordBatch …  until offset > end

A range ends with the chunk that holds its last offset, or lies behind it. At its tail there may be nothing to be
delivered: tracking chunks use up offsets, filters skip chunks. So when the broker has nothing more to send, it is
asked: whether the stream reaches the end of the range, and, after that, whether there is a chunk all the same
(``Subscription.look_again``). Only both answers together end a range; a silence never does.

Delivery guarantee: every record of the range that the stream holds comes exactly once, in order. A connection that
breaks is replaced, and reading goes on at the offset after the last record that was handed out. Records that are gone
raise ``PositionLost``, or are told in a warning.

Spec: notes, sections 6 to 9 and 17 (C2 to C9).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.client.loss import LossPolicy
from spark_streams.client.model import FilterValues, RangeRead
from spark_streams.client.rabbit.bounds import Extent
from spark_streams.client.rabbit.offsets import first_wanted, offset_number, offset_text
from spark_streams.client.rabbit.rows import Piece, RowDecoder
from spark_streams.client.rabbit.subscription import Delivered, Subscription
from spark_streams.client.retry import Attempts, Backoff, Deadline
from spark_streams.errors import DeadlineExceeded, SparkStreamsError
from spark_streams.wire.rabbit.chunk import decode_chunk
from spark_streams.wire.rabbit.consuming import OffsetSpecification, OffsetType

__all__ = ["RangeReader"]

PATIENT: Final = Backoff(attempts=24)
"""Some 40 s: a broker that restarts takes 5 to 10 s, and then its streams come back one by one."""
CREDIT: Final = 10
"""Chunks on the way: enough to hide a round trip; a chunk has rarely more than 4 MB."""
GLANCE_S: Final = 0.02
"""Silence after which the broker is asked whether there is more."""
BEHIND_S: Final = 0.1
"""How long to wait before a node that is behind is asked again."""


class RangeReader:
    """Reads one range; ``batches`` is its whole life.

    Args:
        read: the range.
        filters: which rows are wanted, None for all.
        subscribe: opens a subscription at a position, with so much credit.
        extent: what the stream holds now, by the node that the subscription is on.
        max_rows: rows of a batch, about: a chunk is not divided.
        max_bytes: a batch takes no further chunk once it has this many bytes.
        timeout_ms: how long a node may be behind what was planned.
    """

    def __init__(
        self,
        read: RangeRead,
        filters: FilterValues | None,
        subscribe: Callable[[OffsetSpecification, int], Subscription],
        extent: Callable[[], Extent],
        *,
        max_rows: int,
        max_bytes: int,
        timeout_ms: int,
    ) -> None:
        self._read = read
        self._filtered = filters is not None
        self._subscribe = subscribe
        self._extent = extent
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._timeout_ms = timeout_ms
        self._loss = LossPolicy(read)
        self._decoder = RowDecoder(read, filters)
        self._next = first_wanted(read.start)
        self._end = offset_number(read.end)
        # The first offset of a gap between chunks that has not been explained yet.
        self._gap: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range, none twice.

        Raises:
            PositionLost: events of the range are gone and ``fail_on_data_loss`` is set.
            NotFound, Refused: the broker refused.
            RemoteProtocolError: the broker broke a rule, or a chunk fails its check.
            TransportError: the connection broke more often than is tried, or the broker fell silent.
        """
        attempts = Attempts(PATIENT)
        while self._next is None or self._next <= self._end:
            try:
                for pieces, following in self._runs():
                    batches = self._decoder.batches(pieces)
                    # Before the rows are out of our hands: a reconnect must not repeat them.
                    self._next = following
                    attempts.progressed()
                    yield from batches
                self._explain_gap()
                return
            except SparkStreamsError as fault:
                attempts.after(fault)

    def _runs(self) -> Iterator[tuple[list[Piece], int]]:
        """Yield what one subscription delivers, a batch's worth at a time, with the offset that follows."""
        start = (
            OffsetSpecification(OffsetType.FIRST)
            if self._next is None
            else OffsetSpecification(OffsetType.OFFSET, self._next)
        )
        subscription = self._subscribe(start, CREDIT)
        try:
            yield from self._collected(subscription)
        finally:
            subscription.close()

    def _collected(self, subscription: Subscription) -> Iterator[tuple[list[Piece], int]]:
        expected = self._next
        pieces: list[Piece] = []
        rows = size = consumed = 0
        while True:
            delivered = subscription.next(0.0 if pieces else GLANCE_S)
            if delivered is None:
                if pieces and expected is not None:
                    yield pieces, expected
                    pieces, rows, size = [], 0, 0
                    continue
                if self._is_complete(subscription):
                    return
                continue
            header = delivered.header
            if expected is not None and header.first_offset > expected:
                self._noticed_gap(expected, header.first_offset)
            if header.first_offset <= self._end:
                piece = self._piece(delivered, expected)
                if piece is not None:
                    pieces.append(piece)
                    rows += len(piece.offsets)
                    size += piece.size
            expected = header.next_offset if expected is None else max(expected, header.next_offset)
            if expected > self._end:
                yield pieces, self._end + 1
                return
            consumed += 1
            subscription.give_back()
            if rows >= self._max_rows or size >= self._max_bytes:
                yield pieces, expected
                pieces, rows, size = [], 0, 0

    def _piece(self, delivered: Delivered, expected: int | None) -> Piece | None:
        records = decode_chunk(delivered.buffer, delivered.start, delivered.end)
        count = len(records.offsets)
        if not count:
            return None
        first = 0 if expected is None else int(np.searchsorted(records.offsets, expected))
        last = int(np.searchsorted(records.offsets, self._end, side="right"))
        if first >= last:
            return None
        cut = slice(first, last)
        return Piece(
            records.offsets[cut], delivered.header.timestamp_ms, records.buffer, records.starts[cut], records.ends[cut]
        )

    def _is_complete(self, subscription: Subscription) -> bool:
        """Say whether the broker has nothing more of the range; it had nothing to send for a moment.

        Raises:
            PositionLost: the stream does not reach, or no longer holds, the end of the range.
            DeadlineExceeded: this node of the broker is behind, and stays so.
        """
        deadline = Deadline(self._timeout_ms)
        while True:
            there = self._extent()
            if there.last is not None and there.last >= self._end:
                return not subscription.look_again()
            if subscription.look_again():
                return False
            try:
                left = deadline.left_s("")
            except DeadlineExceeded:
                held = "it holds nothing" if there.last is None else f"its last offset is '{offset_text(there.last)}'"
                self._loss.lost(f"up to offset '{self._read.end}'", held)
                return True
            time.sleep(min(left, BEHIND_S))

    def _noticed_gap(self, first: int, following: int) -> None:
        """Find out whether offsets between two chunks were removed, or held nothing for us.

        Tracking chunks use up offsets, and filters skip chunks: then the stream still begins before the gap.
        """
        self._gap = first if self._gap is None else self._gap
        if not self._filtered or first == self._next:
            self._explain_gap()

    def _explain_gap(self) -> None:
        if self._gap is None:
            return
        first = self._extent().first
        if first > self._gap:
            self._loss.lost(
                f"at offset '{offset_text(self._gap)}'", f"the first offset there is '{offset_text(first)}'"
            )
        self._gap = None
