"""Reads one range of one stream, as record batches.

::

    subscribe at the next offset -> chunks -> records of the range -> RowDecoder -> RecordBatch …  until offset > end

A range ends with the chunk that holds its last offset, or with a later one. The broker may have nothing to deliver at
the end of a range: tracking chunks use up offsets, filters skip chunks. So when the broker sends nothing more, the
reader checks whether the stream reaches the end of the range, and after that whether there is a further chunk after all
(``Subscription.look_again``). Only both answers together end a range; a silence never does.

Tracking chunks and filters also leave gaps between chunks, and so does retention when it overtakes a reader: brokers
then silently continue with the remaining chunks. Before the reader yields rows after a gap, it requests the chunk, of
any kind, where the gap begins.

A filter may narrow the range to the offsets from a later one on. The reader does not read the records before that one,
but checks that they still exist, so that a loss does not depend on the filter.

Delivery guarantee: every record of the range that the stream holds comes exactly once, in order. The reader replaces a
connection that breaks, and continues at the offset after the last yielded record, if the last chunk before it is still
the same: otherwise the stream was deleted and created again. Lost records raise ``PositionLost``, or are reported in a
warning.

Spec: docs/specifications.md, S-12, S-31 to S-37, S-61 to S-65, S-71 to S-73, S-81, S-91, S-132.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.log_client import RangeRead
from spark_streams.client.rabbitmq import bounds
from spark_streams.client.rabbitmq.cluster import Cluster
from spark_streams.client.rabbitmq.pushdown import PushedFilter
from spark_streams.client.rabbitmq.row_decoder import RowDecoder
from spark_streams.client.rabbitmq.subscription import FIRST_CREDIT, CreditWindow, Delivered, Subscription
from spark_streams.client.retry import LONG_BACKOFF, Attempts, Deadline
from spark_streams.errors import DeadlineExceeded, NotFound, RemoteProtocolError, SparkStreamsError
from spark_streams.offsets import first_wanted, format_offset, offset_number
from spark_streams.wire.rabbitmq.chunk import ChunkHeader, ChunkRecords, ChunkType, decode_chunk
from spark_streams.wire.rabbitmq.consumer_commands import OffsetSpecification, OffsetType

GLANCE_S: Final = 0.02
"""Seconds of silence after which the reader yields its rows, or asks the broker whether there is more."""
BEHIND_S: Final = 0.1
"""Seconds to wait before the next request to a node that lags behind."""


@dataclass
class _Collected:
    """Received records that are not yielded yet.

    Args:
        following: the offset after the last received chunk; None before the first one of a whole stream.
        gap: the first offset of the first gap between chunks, None if there is none.
    """

    following: int | None
    gap: int | None = None
    chunks: list[ChunkRecords] = field(default_factory=list)
    rows: int = 0
    size: int = 0


@dataclass
class RangeReader:
    """Reads one range; call ``batches`` once.

    Args:
        read: the range.
        pushed: the filter of the range.
        cluster: the broker; a node may lag behind the planned end for as long as the broker may be silent.
        properties: the properties of its subscriptions.
        max_rows: rows of a batch at most.
        max_bytes: a batch takes no further chunk, and no further row of a chunk, once it has this many bytes.
    """

    read: RangeRead
    pushed: PushedFilter
    cluster: Cluster
    properties: Mapping[str, str]
    max_rows: int
    max_bytes: int

    def __post_init__(self) -> None:
        read = self.read
        self._stream = read.partition
        self._lowest = self.pushed.first_offset
        self._loss = LossPolicy(read.stream, read.fail_on_data_loss)
        self._decoder = RowDecoder(read, self.pushed, self.max_rows, self.max_bytes)
        self._next = first_wanted(read.start)
        self._skipped: int | None = None
        """The begin of the range, if reading begins later and the records in between are not checked yet; else None."""
        if self._next is not None and self._next < self._lowest:
            self._skipped, self._next = self._next, self._lowest
        self._end = offset_number(read.end)
        self._last: ChunkHeader | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range, none twice.

        Raises:
            PositionLost: events of the range are gone and ``fail_on_data_loss`` is set.
            NotFound: the stream did not exist for some 40 seconds, and ``fail_on_data_loss`` is set.
            Refused: the broker refused a request.
            RemoteProtocolError: the broker broke a rule, for example skipped records, or a chunk fails its check.
            TransportError: the connection broke more often than the retries allow, or the broker fell silent.
        """
        attempts = Attempts(LONG_BACKOFF)
        if self._next is None and self._lowest > self._end:
            return
        while self._next is None or self._next <= self._end or self._skipped is not None:
            try:
                self._look_at_skipped()
                for chunks, following in self._runs():
                    # Before the yield: a reconnect must not repeat rows that the caller has.
                    self._next = following
                    attempts.progressed()
                    yield from self._decoder.batches(chunks)
            except SparkStreamsError as fault:
                if isinstance(fault, RemoteProtocolError):
                    self._place(fault)
                if not self._loss.tries_again(self._stream, attempts, fault):
                    return
                self._compare_last()

    def _place(self, fault: RemoteProtocolError) -> None:
        """Say in an error which stream and partition the range is of; one about an event says so already."""
        if str(fault).startswith(self.read.what):
            return
        of = "" if self._stream == self.read.stream else f", partition '{self._stream}'"
        fault.args = (f"stream '{self.read.stream}'{of}: {fault}",)

    def _look_at_skipped(self) -> None:
        """Report records that were removed at the begin of the range, where the filter matches none."""
        if self._skipped is None:
            return
        lost = self._skipped
        # The first offset that the broker reports may lag behind the files that it has removed: the chunk counts.
        chunk = self._chunk_at(lost)
        first = self.cluster.near(self._stream, bounds.extent).first if chunk is None else chunk.first_offset
        self._skipped = None
        if first > lost:
            there = f"the next offset there is '{format_offset(first)}'"
            self._loss.report(self._stream, f"at offset '{format_offset(lost)}'", there)
            self._next = max(first, self._lowest)

    def _compare_last(self) -> None:
        """Report, after a fault, a stream that was created again."""
        last = self._last
        if last is None:
            return
        try:
            now = self._chunk_at(last.first_offset)
        except SparkStreamsError as fault:
            if not fault.retriable and not isinstance(fault, NotFound):
                raise
            return  # the next subscription meets the same fault, and is retried
        if now is None or now.first_offset > last.first_offset:
            return  # the stream ends before the chunk, or has lost it: later checks report either
        if (now.first_offset, now.timestamp_ms) != (last.first_offset, last.timestamp_ms):
            self._last = None
            lost = f"after offset '{format_offset(max(last.next_offset - 1, 0))}'"
            self._loss.report(self._stream, lost, "the stream was created again since")

    def _runs(self) -> Iterator[tuple[list[ChunkRecords], int]]:
        """Yield the records of one subscription, enough for a batch at a time, with the offset that follows."""
        if self._next is not None and self._next > self._end:
            return
        at = self._next
        if at is None and self._lowest and self.cluster.near(self._stream, bounds.extent).first < self._lowest:
            at = self._lowest  # no offset is expected: a whole stream begins at its present first offset
        start = OffsetSpecification(OffsetType.FIRST) if at is None else OffsetSpecification(OffsetType.OFFSET, at)
        subscribe = partial(Subscription, offset=start, credit=FIRST_CREDIT, properties=self.properties)
        subscription, window = self.cluster.near(self._stream, subscribe), CreditWindow()
        held = _Collected(self._next)
        try:
            while True:
                while not self._collect(subscription, window, held):
                    pass
                regained = self._regained(held)
                following = held.following if regained is None else regained
                assert following is not None
                chunks, held = held.chunks, _Collected(following)
                yield chunks, min(following, self._end + 1)
                if following > self._end or regained is not None:
                    return  # the rest begins at ``regained``, and the broker may have skipped some of it
        except SparkStreamsError:
            if held.chunks and held.gap is None and held.following is not None:
                # The records before the fault are whole: yielded now, they need not come again.
                yield held.chunks, min(held.following, self._end + 1)
            raise
        finally:
            subscription.close()

    def _chunk_at(self, offset: int) -> ChunkHeader | None:
        """Return the chunk of any kind that holds an offset, else the first one after it, else None."""
        return self.cluster.near(self._stream, partial(bounds.chunk_at, offset=offset))

    def _collect(self, subscription: Subscription, window: CreditWindow, held: _Collected) -> bool:
        """Receive one chunk, or learn that there is none; return whether to yield the held records now."""
        delivered = subscription.next(GLANCE_S)
        if delivered is None:
            if held.chunks or held.gap is not None:
                return True
            if not self._is_complete(subscription):
                return False
            held.gap, held.following = held.following, self._end + 1
            return True
        self._take(delivered, held)
        assert held.following is not None
        if held.following > self._end:
            return True
        header = delivered.header
        credit = window.consumed(header.data_bytes, header.records, self._end + 1 - held.following)
        if credit:
            subscription.grant(credit)
        return held.rows >= self.max_rows or held.size >= self.max_bytes

    def _take(self, delivered: Delivered, held: _Collected) -> None:
        """Keep the records of a chunk that the range wants."""
        header = delivered.header
        if header.first_offset <= self._end:
            chunk = self._wanted(delivered, held.following)
            if chunk.offsets.size:
                held.chunks.append(chunk)
                held.rows += chunk.offsets.size
                held.size += int(chunk.ends[-1]) - int(chunk.starts[0])
        if held.following is None:
            held.following = header.next_offset
        elif header.first_offset > held.following and held.gap is None:
            held.gap = held.following
        held.following = max(held.following, header.next_offset)
        self._last = header

    def _wanted(self, delivered: Delivered, expected: int | None) -> ChunkRecords:
        """Return the records of a chunk from the expected offset up to the end of the range."""
        chunk = decode_chunk(delivered.buffer, delivered.start, delivered.end)
        first = int(np.searchsorted(chunk.offsets, max(self._lowest, expected or 0)))
        rows = slice(first, int(np.searchsorted(chunk.offsets, self._end, "right")))
        return ChunkRecords(chunk.header, chunk.offsets[rows], chunk.buffer, chunk.starts[rows], chunk.ends[rows])

    def _is_complete(self, subscription: Subscription) -> bool:
        """Return whether the broker has no more chunks of the range, after a moment without any.

        Raises:
            PositionLost: the stream did not reach the end of the range within the cluster's ``timeout_ms``.
            DeadlineExceeded: the leader reaches it, and this node did not within that time.
        """
        deadline = Deadline(self.cluster.timeout_ms)
        settled = partial(bounds.settled, last_chunks={})
        while True:
            last = self._last_offset()
            if subscription.look_again():
                return False
            if last >= self._end:
                return True
            try:
                left = deadline.left_s("")
            except DeadlineExceeded:
                leads = self.cluster.retrying(lambda: self.cluster.at_leader(self._stream, settled)).last
                if leads is not None and leads >= self._end:
                    raise DeadlineExceeded(
                        f"stream '{self._stream}': the node that reads has come to offset {last}, expected "
                        f"{self._end} as its leader has, within {deadline.timeout_ms} ms: it is behind, look at that "
                        "node"
                    ) from None
                held = f"its last offset is '{format_offset(last)}'" if last >= 0 else "it holds nothing"
                self._loss.report(self._stream, f"up to offset '{self.read.end}'", held)
                return True
            time.sleep(min(left, BEHIND_S))

    def _last_offset(self) -> int:
        """Return the stream's last offset, -1 for none; return the range's end when the stream reaches it."""
        last = self.cluster.near(self._stream, bounds.extent).last
        if last is not None and last >= self._end:
            return self._end
        if self._chunk_at(self._end) is not None:
            return self._end  # perhaps a tracking chunk at the tail, which the bounds of some brokers do not include
        return -1 if last is None else last

    def _regained(self, held: _Collected) -> int | None:
        """Find out whether the offsets of a gap were removed, or had no records for the range.

        Returns:
            None when none was removed. Otherwise, if losses do not fail the query, the first remaining offset; the
            records after the gap are dropped, and read again from there.
        """
        if held.gap is None:
            return None
        # The first offset that the broker reports may lag behind the files that it has removed: only the chunk counts.
        chunk = self._chunk_at(held.gap)
        if chunk is not None and chunk.first_offset <= held.gap:
            if chunk.kind == ChunkType.USER and self.pushed.pushed is None:
                raise RemoteProtocolError(f"the broker skipped the chunk at offset {held.gap}")
            return None
        left = (
            "there is nothing" if chunk is None else f"the next offset there is '{format_offset(chunk.first_offset)}'"
        )
        self._loss.report(self._stream, f"at offset '{format_offset(held.gap)}'", left)
        gap = held.gap
        held.chunks = [each for each in held.chunks if int(each.offsets[0]) < gap]
        return self._end + 1 if chunk is None else chunk.first_offset
