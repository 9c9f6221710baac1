"""Sends encoded messages on one link; a message counts as sent once the peer has settled it.

::

    payloads --transfers, in columns--> peer    at most as many under way as the peer gave credit for
    count <------dispositions---------- peer    accepted: done; anything else: DeliveryFailed with the row's label

Delivery guarantee: at least once. When the connection breaks, the task fails, and Spark runs it again. The publisher
sends nothing twice silently.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.client.amqp.links import Link
from spark_streams.client.digested_rows import Label, RowLabels
from spark_streams.client.retry import Deadline
from spark_streams.errors import DeliveryFailed, LocalProtocolError, PeerError, SparkStreamsError, TransportError
from spark_streams.redaction import safe_text

MAX_IN_FLIGHT: Final = 8_192
"""Deliveries under way at most, whatever the peer's credit; each of them is also in memory."""
_TURN_BYTES: Final = 1 << 20
"""After this many bytes the frames go to the socket before the publisher adds more."""


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
        self._outgoing = link.outgoing
        self._done = 0
        self._fault: SparkStreamsError | None = None
        self._labels = RowLabels()
        self._max_bytes = int(link.proton_link.remote_max_message_size)

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
        content = np.frombuffer(b"" if memory is None else memory, np.uint8)
        outgoing, row = self._outgoing, 0
        self._deadline.restart()
        while row < count:
            stop = min(count, row + min(outgoing.room, MAX_IN_FLIGHT - outgoing.under_way))
            if stop <= row or outgoing.pending:
                self._wait(f"the peer gave no credit and settled nothing, with {outgoing.under_way} under way")
                continue
            self._deadline.restart()
            # One turn sends as many rows as fit its bytes, and at least one.
            stop = max(row + 1, min(stop, int(np.searchsorted(bounds, bounds[row] + _TURN_BYTES))))
            before = outgoing.sent
            self._push(content, bounds[row : stop + 1])
            row += outgoing.sent - before
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
        while self._outgoing.under_way:
            self._wait(f"the peer left {self._outgoing.under_way} messages without an outcome", last=True)

    def close(self) -> None:
        """Detach; never raise. Messages without an outcome stay without one."""
        self._link.close()

    def _push(self, content: NDArray[np.uint8], bounds: NDArray[np.int64]) -> None:
        """Send the first of the messages between ``bounds``: as many as go together."""
        first, places = int(bounds[0]), bounds - bounds[0]
        self._outgoing.send(content[first : int(bounds[-1])], places[:-1], places[1:])

    def _reap(self) -> None:
        """Count the messages that were accepted, in the order that they were sent in."""
        outgoing = self._outgoing
        if outgoing.done > self._done:
            self._done = outgoing.done
            self._deadline.restart()
            self._labels.take(self._done)
        refusal = outgoing.refusal
        if refusal is not None:
            raise DeliveryFailed(
                refusal.outcome, refusal.condition, safe_text(refusal.description), self._labels(self._done),
                self._stream,
            )  # fmt: skip

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
                self._labels(self._outgoing.sent + row),
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
        if last and not self._outgoing.under_way:
            return
        if self._fault is not None:
            raise self._fault
        self._link.check()
