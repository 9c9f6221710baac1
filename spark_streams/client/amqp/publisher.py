"""Sends encoded messages on one link; a message counts as sent once the peer has settled it.

::

    payloads --pn_link_send--> engine --> peer     at most as many under way as the peer gave credit for
    ring of deliveries <--dispositions-- peer      accepted: done; anything else: DeliveryFailed with the row's label

Delivery guarantee: at least once. When the connection breaks, the task fails, and Spark runs it again. The publisher
sends nothing twice silently.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import proton
import pyarrow as pa
from cproton_ffi import ffi, lib

from spark_streams.client.amqp.links import Link
from spark_streams.client.digested_rows import Label, RowLabels
from spark_streams.client.retry import Deadline
from spark_streams.errors import DeliveryFailed, LocalProtocolError, PeerError, SparkStreamsError, TransportError
from spark_streams.redaction import safe_text

MAX_IN_FLIGHT: Final = 8_192
"""Deliveries under way at most, whatever the peer's credit; each of them is also in memory."""
_TURN_ROWS: Final = 1_024
_TURN_BYTES: Final = 1 << 20
"""After this many rows or bytes the engine's output goes to the socket before the publisher adds more."""

_OUTCOMES: Final = {lib.PN_REJECTED: "rejected", lib.PN_RELEASED: "released", lib.PN_MODIFIED: "modified"}


class Publisher:
    """An at-least-once sender on one stream. After an error it can only be closed.

    Args:
        link: an attached sender.
        stream: the stream's name, for messages.
        timeout_ms: how many milliseconds the peer may give neither credit nor an outcome.
    """

    def __init__(self, link: Link, stream: str, timeout_ms: int) -> None:
        self._link = link
        self._stream = stream
        self._deadline = Deadline(timeout_ms)
        self._ring = ffi.new("pn_delivery_t *[]", MAX_IN_FLIGHT)
        self._sent = 0
        self._done = 0
        self._fault: SparkStreamsError | None = None
        self._labels = RowLabels()
        self._max_bytes = int(link.proton_link.remote_max_message_size)
        self._counter = ffi.new("uint64_t *")
        self._tag = ffi.new("pn_bytes_t *", {"size": 8, "start": ffi.cast("char *", self._counter)})[0]

    @property
    def accepted(self) -> int:
        """Messages that the peer has accepted so far."""
        return self._done

    def send(self, payloads: pa.LargeBinaryArray, labels: Label) -> None:
        """Send one message a row, in order; return when all are sent, not when all are settled (see ``flush``).

        Args:
            payloads: whole encoded messages, without nulls.
            labels: row of ``payloads`` to its name in errors, such as ``row 17 (key 'customer-4')``.

        Raises:
            DeliveryFailed: the peer rejected, released or modified a message of this call or an earlier one, or a
                message exceeds the peer's largest size.
            DeadlineExceeded: the peer gave neither credit nor an outcome in time.
            TransportError, PeerError, RemoteProtocolError: the link or connection ended. Nobody knows then how many
                messages the peer stored.
        """
        if self._link.closed:
            raise LocalProtocolError(f"the publisher of stream '{self._stream}' is closed")
        if self._fault is not None:
            raise self._fault
        if payloads.null_count:
            raise LocalProtocolError("payloads have nulls: expected one encoded message a row")
        _, offsets, memory = payloads.buffers()
        count = len(payloads)
        bounds = np.frombuffer(offsets, np.int64)[payloads.offset : payloads.offset + count + 1]
        self._labels.add(count, labels)
        self._check_sizes(bounds)
        start = ffi.from_buffer(memory) if memory is not None else ffi.NULL
        row = 0
        self._deadline.restart()
        while row < count:
            room = min(lib.pn_link_credit(self._link.impl), MAX_IN_FLIGHT - (self._sent - self._done), _TURN_ROWS)
            stop = min(count, row + room)
            if stop <= row or lib.pn_session_outgoing_bytes(self._link.session._impl) > 4 * _TURN_BYTES:
                self._wait(f"the peer gave no credit and settled nothing, with {self._sent - self._done} under way")
                continue
            self._deadline.restart()
            # One turn sends as many rows as fit its bytes, and at least one.
            stop = max(row + 1, min(stop, int(np.searchsorted(bounds, bounds[row] + _TURN_BYTES))))
            self._push(start, bounds[row : stop + 1].tolist())
            row = stop
            self._turn(last=row == count)

    def flush(self) -> None:
        """Wait until the peer has accepted every message that was sent.

        Raises:
            DeliveryFailed, TransportError, PeerError, RemoteProtocolError: as for ``send``.
        """
        if self._link.closed:
            raise LocalProtocolError(f"the publisher of stream '{self._stream}' is closed")
        self._deadline.restart()
        self._reap()
        while self._done < self._sent:
            self._wait(f"the peer left {self._sent - self._done} messages without an outcome", last=True)

    def close(self) -> None:
        """Detach; never raise. Messages without an outcome stay without one."""
        self._link.close()

    def _push(self, start: Any, bounds: list[int]) -> None:
        new, send, advance = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        link, ring, counter, tag = self._link.impl, self._ring, self._counter, self._tag
        sent, begin = self._sent, bounds[0]
        for end in bounds[1:]:
            counter[0] = sent
            delivery = new(link, tag)
            send(link, start + begin, end - begin)
            advance(link)
            ring[sent % MAX_IN_FLIGHT] = delivery
            sent += 1
            begin = end
        self._sent = sent

    def _reap(self) -> None:
        """Settle the deliveries that have an outcome, in the order that they were sent in."""
        updated, state, settle = lib.pn_delivery_updated, lib.pn_delivery_remote_state, lib.pn_delivery_settle
        ring, done, sent, accepted = self._ring, self._done, self._sent, lib.PN_ACCEPTED
        while done < sent:
            delivery = ring[done % MAX_IN_FLIGHT]
            if not updated(delivery):
                break
            outcome = state(delivery)
            if outcome != accepted:
                if outcome not in _OUTCOMES and not lib.pn_delivery_settled(delivery):
                    break  # "received" is no outcome yet (AMQP 1.0 part 3 §3.4.1)
                self._done = done
                self._fail(delivery, outcome)
            settle(delivery)
            done += 1
        if done > self._done:
            self._done = done
            self._deadline.restart()
            self._labels.take(done)

    def _fail(self, delivery: Any, outcome: int) -> None:
        wrapped = proton.Delivery.wrap(delivery)
        condition = wrapped.remote.condition
        raise DeliveryFailed(
            _OUTCOMES.get(outcome, "settled without an outcome"),
            str(condition.name) if condition is not None else "",
            safe_text(condition.description or "") if condition is not None else "",
            self._labels(self._done),
            self._stream,
        )

    def _check_sizes(self, bounds: np.ndarray[Any, Any]) -> None:
        if not self._max_bytes:
            return
        sizes = np.diff(bounds)
        too_large = np.flatnonzero(sizes > self._max_bytes)
        if len(too_large):
            row = int(too_large[0])
            raise DeliveryFailed(
                "rejected",
                "amqp:link:message-size-exceeded",
                f"{int(sizes[row])} bytes encoded, the peer takes at most {self._max_bytes}",
                self._labels(self._sent + row),
                self._stream,
            )

    def _wait(self, what: str, *, last: bool = False) -> None:
        """Turn the connection once, and wait until the deadline at most."""
        address = self._link.connection.endpoint.address
        self._turn(self._deadline.left_s(f"stream '{self._stream}' at {address}: {what}"), last=last)

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
        if last and self._done == self._sent:
            return
        if self._fault is not None:
            raise self._fault
        self._link.check()
