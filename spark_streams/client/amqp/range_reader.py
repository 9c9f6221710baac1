"""Reads one range of one partition, as record batches.

::

    attach (filter: start) -> credit -> deliveries -> ReceiveBuffer -> RowDecoder -> RecordBatch …  until offset >= end

The reader finds the end by comparing offsets as text. When nothing arrives any more, it drains the link, and the peer
has to answer; then it requests ``$info`` again to explain missing events. When a connection breaks, the reader returns
the deliveries that came as a whole, which is progress, and resumes after them on another connection: each row comes
exactly once.

A range that begins ``At`` an offset must begin with that event: another event in its place is a loss, whatever the
reason.

Where offsets are numbers (``Dialect.numeric_offsets``), a missing number shows where events may be gone, and only then
the reader asks what the partition retains. In a dialect with holes only events before the first retained one are a
loss; the range may end with a hole, and then the answer to the drain ends it. Where the peer answers no drain, a
silence ends it (H-7), and the next read in this process looks for events that come late (H-8).

Where the peer checks a part of the filter, the events at both ends of the range need not come. Then the reader requests
the first one without the filter, and the answer to the drain ends the range if ``$info`` shows that nothing of it is
gone. Events that retention removes after the last received one count as lost, as no peer reports which events its
filter left out.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.client.amqp.credit import LOOK_AFTER_S, LOOKS_OF_SILENCE, MAX_CREDIT, CreditWindow, DrainTimer
from spark_streams.client.amqp.errors import PositionUnknown
from spark_streams.client.amqp.links import Link, Unreadable, not_shown
from spark_streams.client.amqp.receive_buffer import ReceiveBuffer
from spark_streams.client.amqp.row_decoder import DecodedRows, RowDecoder, WrongPartition
from spark_streams.client.data_loss import LossPolicy, instead_of, is_past_end, place
from spark_streams.client.log_client import Bounds, RangeRead, StreamDescription
from spark_streams.client.retry import LONG_BACKOFF, Attempts, Deadline
from spark_streams.errors import DeadlineExceeded, RemoteProtocolError, SparkStreamsError
from spark_streams.offsets import next_message
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.wire.amqp.columns.block import MessageBlock, chosen
from spark_streams.wire.amqp.engine.endpoints import Condition

_log = logging.getLogger(__name__)

_NO_PARTITION: Final = "there is no such partition any more"
_BEHIND_S: Final = 0.1  # between requests to a node that lags behind
_unproven: Final[dict[tuple[str, str, str], str]] = {}
"""The last end that no event has proved, by peer, stream and partition."""
_MAX_EXTENSIONS: Final = 200
"""How many times a searching peer's deadline is extended: 100 minutes in all, if it may be silent for 30 seconds."""


@dataclass
class RangeReader:
    """Reads one range; call ``batches`` once.

    Args:
        read: the range.
        attach: attaches a receiver that begins at the first position, or at the second, an earlier one, where the peer
            has no filter for the first; with True the client alone filters the events.
        describe: describes the stream as it is now.
        peer: the peer's address.
        has_event: returns whether the partition has an event with an offset, by an inclusive filter and no other one.
        max_rows: rows of a batch at most.
        max_bytes: a batch takes no further message once it has this many bytes.
    """

    read: RangeRead
    attach: Callable[[Earliest | At | After, Earliest | After, bool], Link]
    describe: Callable[[], StreamDescription]
    peer: str
    has_event: Callable[[str], bool]
    max_rows: int
    max_bytes: int

    def __post_init__(self) -> None:
        read = self.read
        self._loss = LossPolicy(read.stream, read.fail_on_data_loss)
        RowDecoder(read, read.start, read.filter)  # a filter on what no row can have fails here, not at the first row
        self._start = read.start
        self._dropped: Earliest | After = EARLIEST
        self._first_gap: At | After | None = None
        self._key = self.peer, read.stream, read.partition
        self._most, self._whole = MAX_CREDIT, False

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of the range, none twice.

        Raises:
            PositionLost: events of the range are gone and ``fail_on_data_loss`` is set.
            OwnershipLost: a consumer with a higher epoch took the partition.
            Unreadable: the peer cannot show a message of the range, which comes after all rows before it.
            NotFound: the stream did not exist for some 40 seconds, and ``fail_on_data_loss`` is set.
            Refused: the peer refused the link.
            RemoteProtocolError: the peer broke a rule; the message names it.
            TransportError: the connection broke too often, or the peer fell silent.
        """
        self._attempts = Attempts(LONG_BACKOFF)
        while True:
            try:
                for rows in self._link_rows():
                    if rows.last is not None:
                        self._attempts.progressed()
                        # Before the yield: a reconnect must not repeat rows that the caller has.
                        self._start = After(rows.last)
                        if rows.batch.num_rows:
                            yield rows.batch
                return
            except Unreadable as fault:
                traceback.clear_frames(fault.__traceback__)
                if self._most == 1 and fault.to_reader:
                    raise Unreadable(fault.condition, not_shown(next_message(self._start)), self.read.what) from fault
                if self._most == 1:
                    raise
                if self.read.filter is None or self._whole:
                    self._most = 1  # the broker sends nothing of what it has credit for: read message by message
                self._whole = True  # without the filter, as the broker searches beyond the range for a match
            except SparkStreamsError as fault:
                if not self._loss.tries_again(self.read.partition, self._attempts, fault):
                    return

    def _link_rows(self) -> Iterator[DecodedRows]:
        """Yield the rows of one link, until the range ends."""
        start, end = self._start, self.read.end
        if (isinstance(start, After) and start.offset >= end) or (isinstance(start, At) and start.offset > end):
            return  # the range is empty
        try:
            if isinstance(start, After) and start.offset == _unproven.get(self._key):
                start = At(start.offset)
            link = self._link = self.attach(start, self._dropped, self._whole)
        except PositionUnknown as fault:
            self._loss.report(self.read.partition, place(self._start), fault.description)
            return
        self._ask_for_loss = self._first = True
        self._buffer = ReceiveBuffer(self.max_rows, self.max_bytes, settles=False)
        try:
            dropped, dialect = self._dropped if link.early else None, link.connection.dialect
            self._dialect, self._reaches_end = dialect, not dialect.drains
            self._behind = Deadline(link.connection.timeout_ms)
            self._decoder = RowDecoder(self.read, self._start, link.residual, dropped, dialect)
            yield from self._decoded_rows()
        except DeadlineExceeded:
            link.connection.abandon()  # no other link may receive what the peer still sends, and it may never answer
            raise
        finally:
            link.close()
            del self._link

    def _decoded_rows(self) -> Iterator[DecodedRows]:
        link, buffer = self._link, self._buffer
        window, timer = CreditWindow(link, self._most), DrainTimer(link)
        broken: SparkStreamsError | None = None
        while True:
            try:
                if not self._collect(window, timer):
                    if not self._is_certain(timer):
                        continue
                    self._explain()
                    return
            except SparkStreamsError as fault:
                if isinstance(fault, DeadlineExceeded):
                    link.connection.abandon()  # no request may use the connection either
                if fault.retriable or isinstance(fault, Unreadable):
                    buffer.take(link.deliveries)  # those that came together with the connection's end
                if not ((fault.retriable or isinstance(fault, Unreadable)) and buffer.rows):
                    raise
                broken = fault
            rows = self._decode()
            yield rows
            if rows.done:
                return
            if (stop := rows.fault or broken) is not None:
                raise stop
            timer.received()  # the caller's time must not count as the peer's silence

    def _collect(self, window: CreditWindow, timer: DrainTimer) -> bool:
        """Receive until the buffer has a block to decode; return False when the peer has no more.

        Raises:
            SparkStreamsError: the connection broke, or the peer fell silent or ended the link.
        """
        link, buffer, decoder, end = self._link, self._buffer, self._decoder, self.read.end.encode()
        deliveries = link.deliveries
        searched, received, extensions = 0, deliveries.received, 0
        # The row at which the range ends at the latest, where offsets are numbers.
        last_row = decoder.rows_left() if self._dialect.numeric_offsets else 0
        while True:
            taken = buffer.take(deliveries)
            if taken or deliveries.received != received:
                window.consumed(taken, deliveries.received - received)
                timer.received()
            complete = buffer.full
            if not complete and buffer.size > searched:
                if not self._dialect.numeric_offsets:
                    complete = buffer.holds(end, searched) and decoder.passes_end(buffer.block())
                elif link.narrowed or buffer.rows >= last_row:
                    last_row = buffer.rows + decoder.rows_left(buffer.block(buffer.rows - 1))
                    complete = buffer.rows >= last_row
                searched = buffer.size
            if not complete and buffer.rows and timer.end_check_due():
                complete = decoder.passes_end(buffer.block(buffer.rows - 1))
            drained = timer.draining and not deliveries.draining and not deliveries.queued
            if complete or (drained and buffer.rows):
                return True
            received = deliveries.received
            if drained and timer.answered_empty():
                return False
            if timer.look_due():
                if buffer.rows:
                    return True
                if not self._may_come(timer):
                    return False
            link.check()
            if not timer.draining and not timer.drain_if_due():
                window.top_up()
            timeout_s = timer.timeout_s(buffer.rows > 0)
            if link.narrowed and timer.draining and extensions < _MAX_EXTENSIONS:
                # The peer may search for long without a match: a request on another link checks that it still answers.
                timeout_s = min(timeout_s, link.connection.timeout_ms / 2_000)
                if not link.turn(timeout_s) and deliveries.draining:
                    self.describe()
                    extensions += 1
                    timer.extend()
            else:
                link.turn(timeout_s)

    def _bounds(self) -> Bounds | None:
        """Return what the partition retains now; None where it is gone."""
        return self.describe().partitions.get(self.read.partition)

    def _may_come(self, timer: DrainTimer) -> bool:
        """Return whether more of the range may come, judging by a look at the partition and the silence so far."""
        described = self.describe()
        bounds = described.partitions.get(self.read.partition)
        there = bounds is not None and instead_of(At(self.read.end), bounds) is None
        if bounds is not None and there and not timer.has_no_more((described.incarnation, bounds.latest)):
            return True
        self._link.turn()
        self._link.check()
        return self._link.deliveries.queued > 0  # deliveries came while the peer was asked

    def _decode(self) -> DecodedRows:
        """Decode the buffer into rows, and check them."""
        try:
            rows = self._decoder.decode(self._without_late(self._buffer.block()))
        except WrongPartition as fault:
            self._reject(fault)
            raise
        if self._dialect.numeric_offsets:
            self._check_gap(rows)
        elif rows.first is not None:
            self._check_loss(rows.first)
        if self._decoder.dropped is not None:
            self._drop(self._decoder.dropped)
        self._buffer.accept(self._link.deliveries)
        self._buffer.clear()
        return rows

    def _reject(self, fault: WrongPartition) -> None:
        """Reject the delivery, and close the link with the reason, as a settled delivery takes no outcome (A-15)."""
        condition = Condition("amqp:not-allowed", str(fault))
        number = self._buffer.delivery_id(fault.row)
        if number is not None:
            self._link.deliveries.settle(np.array([number]), condition.rejected)
        self._link.close(condition)

    def _drop(self, dropped: Earliest | After) -> None:
        """Remember where the dropped events end, so that the next link can begin there."""
        if self._dropped == EARLIEST != dropped:
            _log.info(
                "%s: its peer cannot begin %s: what lies before comes too, and is dropped", self._link.what, self._start
            )
        if self._dropped != dropped:
            self._attempts.progressed()
        self._dropped = dropped

    def _check_loss(self, came: str) -> None:
        """Check whether retention overtook the read, before the reader returns the rows that have just come.

        The check follows the rows: events that are removed later cannot have been in front of them. It runs for every
        block, because a gap between two opaque offsets is invisible. With a peer that does not report the newest
        removed offset, it runs only at the start of a link: later "not retained" also means "read, and removed".

        ``came`` is the offset of the first event of the block.
        """
        first, self._first = self._first, False
        if isinstance(self._start, Earliest) or not self._ask_for_loss:
            return
        bounds = self._bounds()
        self._ask_for_loss = bounds is not None and bounds.tells_truncated
        if bounds is not None and not first and not bounds.tells_truncated:
            return
        available = _NO_PARTITION if bounds is None else instead_of(self._start, bounds)
        if bounds is not None and is_past_end(self._start, bounds):
            available = None  # events after the position have come, so a peer that reports fewer lags behind
        if available is None and first:
            available = self._instead_of_start(came)
        if available is not None:
            self._loss.report(self.read.partition, str(self._start), available)
            self._ask_for_loss = False  # one warning will do

    def _without_late(self, block: MessageBlock) -> MessageBlock:
        """Report events at the front of a link that an earlier read has not found; return the block without them."""
        if not (self._first and isinstance(self._start, After)) or self._dialect.drains:
            return block
        late = self._decoder.rows_up_to(self._start.offset, block)
        if late:
            came = "an event up to there has come late, and is no row: its offset had no event when it was read"
            self._loss.report(self.read.partition, str(self._start), came)
        return chosen(block, slice(late, None))

    def _check_gap(self, rows: DecodedRows) -> None:
        """Check whether events are gone where numbers are missing, before the rows after the gap are returned."""
        self._first, gap = False, rows.gap
        if not self._dialect.drains:
            self._first_gap = self._first_gap or gap
            gap = self._first_gap if rows.done else gap  # once more at the end of the range (H-8)
            if rows.last == _unproven.get(self._key):
                _unproven.pop(self._key, None)  # the event at the end is a row now: the next reader need not look
        if gap is None or not self._ask_for_loss:
            return
        bounds = self._bounds()
        available = _NO_PARTITION if bounds is None else instead_of(gap, bounds)
        if available is not None and (bounds is None or not is_past_end(gap, bounds)):
            self._loss.report(self.read.partition, str(gap), available)
            self._ask_for_loss = False

    def _instead_of_start(self, came: str | None) -> str | None:
        """Return what there is instead of the event that the link begins at; None when that event exists.

        Where the peer leaves out events, this event need not come, and a separate request checks that it exists.

        Args:
            came: offset of the first event that came, None when none did.
        """
        if not isinstance(self._start, At) or came == self._start.offset or self._dialect.numeric_offsets:
            return None
        if came is not None and not self._link.narrowed:
            return f"the first event there has offset '{came}'"
        return None if self.has_event(self._start.offset) else "there is no event with that offset"

    def _explain(self) -> None:
        """Find out why the end of the range did not come; if no event is gone, it was left out or is a hole.

        Raises:
            PositionLost: events are gone, or the stream ends before the range, and losses fail the query.
            RemoteProtocolError: the peer reports that it retains the missing events.
        """
        bounds, narrowed, has_holes = self._bounds(), self._link.narrowed, self._dialect.numeric_offsets
        available = _NO_PARTITION if bounds is None else instead_of(At(self.read.end), bounds)
        start = self._first_gap or self._start
        asks = (has_holes or (narrowed and self._ask_for_loss)) and not isinstance(start, Earliest)
        if bounds is not None and asks and available is None and (bounds.tells_truncated or self._first):
            # A peer that does not report what it removed gives no evidence about events after the first one.
            available = instead_of(start, bounds)
        if available is None and self._first:
            available = self._instead_of_start(None)
        if available is not None:
            self._loss.report(self.read.partition, f"{place(start)} up to '{self.read.end}'", available)
        elif not self._dialect.drains:
            self._end_unproven()
        elif not (narrowed or has_holes):
            raise RemoteProtocolError(
                f"{self.read.what}: the peer has no more events {self._start}, although by its '$info' the range up to "
                f"'{self.read.end}' is retained"
            )

    def _end_unproven(self) -> None:
        """Accept the peer's silence as the end of the range, and remember that no event has proved it."""
        _unproven[self._key] = self.read.end
        _log.warning(
            "%s: nothing came %s for %.0f s, while the peer told again and again that it has offset '%s': what is "
            "missing up to there is taken for compacted",
            *(self._link.what, place(self._start), LOOK_AFTER_S * LOOKS_OF_SILENCE, self.read.end),
        )

    def _is_certain(self, timer: DrainTimer) -> bool:
        """Return whether the peer's answer, that it has no more, ends the range; if not, let it look again.

        In a dialect with holes the last offset of a range may have no event. The node may also lag behind the node with
        which the range was planned: the answer is certain only if the node's description had reached the end before
        it, and this waits for that as long as a peer may be silent.
        """
        if self._reaches_end or not self._dialect.numeric_offsets:
            return True
        bounds = self._bounds()
        behind = bounds is not None and (bounds.latest is None or bounds.latest < self.read.end)
        self._reaches_end = not behind or self._behind.passed
        if behind and not self._reaches_end:
            self._link.turn(_BEHIND_S)
        timer.look_again()
        return False
