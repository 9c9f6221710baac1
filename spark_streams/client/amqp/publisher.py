"""Sends encoded messages on one link; a message counts as sent once the peer has settled it.

::

    payloads --transfers, in columns--> peer    at most as many under way as the peer gave credit for
    count <------dispositions---------- peer    accepted: done; anything else: DeliveryFailed with the row's label

Where the peer takes batches (``Dialect.batch_format``), the events of one call are sent in batches: the events of one
key together, and the events without a key together, each in their order. The outcome of a batch is that of all its
events.

A peer may be busy (``Conditions.busy``): then the publisher waits until everything under way has an outcome, pauses,
and sends again what was rejected for that reason. It gives up when nothing is accepted within the time-out.

Delivery guarantee: at least once. When the connection breaks, the publisher waits as readers do, attaches anew, and
sends again, in the same order, the messages that the peer has not accepted; the peer may have stored some of them. The
publisher never sends an accepted message twice.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.client.amqp.links import Link
from spark_streams.client.amqp.outgoing_events import OutgoingEvents, outgoing_events
from spark_streams.client.amqp.sent_messages import Refusal, SentMessages
from spark_streams.client.digested_rows import Label, RowLabels
from spark_streams.client.retry import LONG_BACKOFF, Attempts, Deadline, retries
from spark_streams.errors import DeliveryFailed, LocalProtocolError, PeerError, SparkStreamsError, TransportError
from spark_streams.redaction import safe_text
from spark_streams.wire.columnar.arrays import layout

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 8_192
"""Deliveries under way at most, whatever the peer's credit; each of them is also in memory."""
_MAX_KEPT_BYTES: Final = 16 << 20
"""No more is sent while this many bytes are under way and may have to be sent again."""
_TURN_BYTES: Final = 1 << 20
"""After this many bytes the frames go to the socket before the publisher adds more."""


class Publisher:
    """An at-least-once sender on one stream. After an error it can only be closed.

    Args:
        link: an attached sender.
        stream: the stream's name, for messages.
        timeout_ms: how many milliseconds the peer may give neither credit nor an outcome.
        attach: attaches another sender after the link or its connection broke.
    """

    def __init__(self, link: Link, stream: str, timeout_ms: int, attach: Callable[[], Link]) -> None:
        self._link = link
        self._attach = attach
        self._attempts = Attempts(LONG_BACKOFF)
        self._stream = stream
        self._deadline = Deadline(timeout_ms)
        self._outgoing = SentMessages(link.link)
        self._done = 0
        self._fault: SparkStreamsError | None = None
        self._labels = RowLabels()
        self._max_bytes = link.link.max_message_bytes
        self._timeout_ms = timeout_ms
        self._dialect = link.connection.dialect
        self._busy = dict(self._dialect.conditions.busy)
        self._patience: Deadline | None = None
        """How long a busy peer may accept nothing; None for one that is not busy."""
        self._waiting: deque[OutgoingEvents] = deque()
        """Events that are not sent yet."""
        self._sent: deque[tuple[int, OutgoingEvents]] = deque()
        """Events that were sent and may have to be sent again, each part with the number of its first delivery."""
        self._kept_bytes = 0
        self._rows = 0

    @property
    def accepted(self) -> int:
        """Messages that the peer has accepted so far, in their order."""
        waiting = sum(each.events for each in self._waiting)
        return self._rows - waiting - sum(each.slice(max(0, self._done - at)).events for at, each in self._sent)

    def send(self, payloads: pa.LargeBinaryArray, labels: Label) -> None:
        """Send one message per row; return when all are sent, not when all are settled (see ``flush``).

        They are sent in order; where the peer takes batches, only the events of one key stay in order.

        Args:
            payloads: whole encoded messages, without nulls.
            labels: row of ``payloads`` to its name in errors, such as ``row 17 (key 'customer-4')``.

        Raises:
            DeliveryFailed: the peer rejected, released or modified a message of this call or an earlier one, or a
                message exceeds the peer's largest size.
            DeadlineExceeded: the peer gave neither credit nor an outcome in time.
            TransportError, PeerError, RemoteProtocolError: the link or connection ended, and could not be restored. It
                is unknown then how many messages the peer stored.
        """
        if self._link.closed:
            raise LocalProtocolError(f"the publisher of stream '{self._stream}' is closed")
        if payloads.null_count:
            raise LocalProtocolError("payloads have nulls: expected one encoded message a row")
        first = self._labels.rows
        self._labels.add(len(payloads), labels)
        self._check_sizes(payloads, first)
        for events in outgoing_events(payloads, first, self._dialect, self._max_bytes):
            self._waiting.append(events)
            self._rows += events.events
            self._deadline.restart()
            self._transmit()

    def _transmit(self) -> None:
        """Send what is waiting."""
        while self._waiting:
            if self._is_busy():
                self._send_again()
            events, outgoing = self._waiting[0], self._outgoing
            stop = min(len(events), outgoing.room, MAX_IN_FLIGHT - outgoing.under_way)
            if len(events) and (stop <= 0 or outgoing.pending or self._kept_bytes >= _MAX_KEPT_BYTES):
                self._wait(f"the peer gave no credit and settled nothing, with {outgoing.under_way} under way")
                continue
            self._deadline.restart()
            before = outgoing.sent
            if len(events):
                self._push(events, stop)
            count = outgoing.sent - before
            if count:
                self._sent.append((before, events.slice(0, count)))
                self._kept_bytes += self._sent[-1][1].size
            self._waiting.popleft()
            if count < len(events):
                self._waiting.appendleft(events.slice(count))
            self._turn(last=not self._waiting)

    def _is_busy(self) -> bool:
        """Return whether the peer rejected a message because it is busy."""
        refusal = self._outgoing.refusal if self._busy else None
        return refusal is not None and refusal.condition in self._busy

    def _send_again(self) -> None:
        """Wait until everything under way has an outcome, pause, and put the rejected events before the waiting ones.

        Raises:
            DeliveryFailed: a message was rejected for another reason.
            DeadlineExceeded: the peer stays busy.
        """
        outgoing = self._outgoing
        while self._outgoing.undecided:
            self._wait(f"the peer is busy, and left {self._outgoing.undecided} messages without an outcome")
        refusals = outgoing.refusals
        for first, _, refusal in refusals:
            if refusal.condition not in self._busy:
                raise self._failed(refusal, first)
        said = refusals[0][2]
        what = f"the peer is busy: {said.condition} {safe_text(said.description)}: it accepted nothing"
        if self._patience is None or outgoing.under_way > sum(stop - first for first, stop, _ in refusals):
            self._patience = Deadline(self._timeout_ms)
        retries.add()
        until = time.monotonic() + max(self._busy[refusal.condition] for _, _, refusal in refusals)
        _log.info("stream '%s': %s, %d messages are sent again", self._stream, what, sum(b - a for a, b, _ in refusals))
        while (left := until - time.monotonic()) > 0:
            self._turn(min(left, self._left_s(what, self._patience)), last=False)
        if outgoing is self._outgoing:
            self._put_back(outgoing.refusals)
            outgoing.give_up()
            self._done = outgoing.done

    def _put_back(self, ranges: Sequence[tuple[int, int, Refusal | None]]) -> None:
        """Put the events of some ranges of deliveries before the waiting ones; the rest was accepted."""
        again = [part for first, stop, _ in ranges for part in self._parts(first, stop)]
        self._sent.clear()
        self._kept_bytes = 0
        self._waiting.extendleft(reversed(again))

    def _restore(self, fault: SparkStreamsError) -> None:
        """Go on after a fault: wait, attach anew, and put the events that were not accepted before the waiting ones.

        Raises:
            SparkStreamsError: the fault, or a later one, which is not temporary or has lasted too long.
        """
        while True:
            self._attempts.after(fault)
            try:
                link = self._attach()
                break
            except (TransportError, PeerError) as again:
                fault = again
        self._put_back(self._outgoing.unaccepted)
        self._link, self._outgoing, self._done, self._fault = link, SentMessages(link.link), 0, None
        self._deadline.restart()

    def _parts(self, first: int, stop: int) -> Iterator[OutgoingEvents]:
        """Yield what was sent in a range of deliveries."""
        for begin, events in self._sent:
            low, high = max(first, begin), min(stop, begin + len(events))
            if low < high:
                yield events.slice(low - begin, high - low)

    def _label(self, delivery: int) -> str:
        """Return the name of a delivery's row; for a batch, of its first row, as the row is unknown."""
        # Where nothing is sent again or in batches, the number of the delivery is the number of the row.
        row, count = next((events.rows_of(0) for events in self._parts(delivery, delivery + 1)), (delivery, 1))
        return self._labels(row) + (f", in a batch of {count}," if count > 1 else "")

    def flush(self) -> None:
        """Wait until the peer has accepted every message that was sent.

        Raises:
            DeliveryFailed, TransportError, PeerError, RemoteProtocolError: as for ``send``.
        """
        if self._link.closed:
            raise LocalProtocolError(f"the publisher of stream '{self._stream}' is closed")
        self._deadline.restart()
        self._reap()
        while self._outgoing.under_way or self._waiting:
            if self._is_busy():
                self._send_again()
            self._transmit()
            if self._outgoing.under_way and not self._is_busy():
                self._wait(f"the peer left {self._outgoing.under_way} messages without an outcome", last=True)

    def close(self) -> None:
        """Detach; never raise. Messages without an outcome stay without one."""
        self._link.close()

    def _push(self, events: OutgoingEvents, stop: int) -> None:
        """Send the first deliveries, ``stop`` at most: as many as can be sent together and fit a turn; at least one."""
        bounds, content = layout(events.payloads.slice(0, max(1, stop)))
        stop = max(1, min(stop, int(np.searchsorted(bounds, bounds[0] + _TURN_BYTES))))
        bounds = bounds[: stop + 1]
        first, places = int(bounds[0]), bounds - bounds[0]
        formats = None if events.formats is None else events.formats[:stop]
        self._outgoing.send(content[first : int(bounds[-1])], places[:-1], places[1:], formats)

    def _reap(self) -> None:
        """Count the messages that were accepted, in the order that they were sent in."""
        outgoing = self._outgoing
        if outgoing.done > self._done:
            self._done, self._patience = outgoing.done, None
            self._deadline.restart()
            self._attempts.progressed()
            while self._sent and self._sent[0][0] + len(self._sent[0][1]) <= self._done:
                self._kept_bytes -= self._sent.popleft()[1].size
            needed = [each.first_row for each in (*(each for _, each in self._sent), *self._waiting)]
            self._labels.take(min(needed, default=self._labels.rows))
        refusal = outgoing.refusal
        if refusal is not None and not self._is_busy():
            raise self._failed(refusal, self._done)

    def _failed(self, refusal: Refusal, delivery: int) -> DeliveryFailed:
        row = self._label(delivery)
        return DeliveryFailed(refusal.outcome, refusal.condition, safe_text(refusal.description), row, self._stream)

    def _check_sizes(self, payloads: pa.LargeBinaryArray, first_row: int) -> None:
        if not self._max_bytes:
            return
        sizes = np.diff(layout(payloads)[0])
        too_large = np.flatnonzero(sizes > self._max_bytes)
        if len(too_large):
            row = int(too_large[0])
            raise DeliveryFailed(
                "rejected",
                "amqp:link:message-size-exceeded",
                f"{int(sizes[row])} bytes encoded, the peer takes at most {self._max_bytes}",
                self._labels(first_row + row),
                self._stream,
            )

    def _left_s(self, what: str, deadline: Deadline) -> float:
        address = self._link.connection.endpoint.address
        return deadline.left_s(f"stream '{self._stream}' at {address}: {what}")

    def _wait(self, what: str, *, last: bool = False) -> None:
        """Turn the connection once, and wait until the deadline at most."""
        self._turn(self._left_s(what, self._deadline), last=last)

    def _turn(self, wait_s: float = 0.0, *, last: bool) -> None:
        """Turn the connection once, and settle the deliveries that have an outcome.

        The peer's last outcomes may come together with the end of the connection. They count: the error names a
        rejected row, and the end is no error when the peer has accepted everything.

        Args:
            wait_s: how many seconds to wait for bytes.
            last: whether nothing is left to send for now.
        """
        try:
            self._link.connection.turn(wait_s)
        except (TransportError, PeerError) as fault:
            self._fault = fault
        self._reap()
        if last and not self._outgoing.under_way:
            return
        try:
            if self._fault is not None:
                raise self._fault
            self._link.check()
        except (TransportError, PeerError) as fault:
            self._restore(fault)
