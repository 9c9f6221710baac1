"""The deliveries of one link on which we send: its credit, and the unwritten part of a large message.

Counts of a whole session are in ``outgoing_session.py``. Messages are written in columns.

Spec: AMQP 1.0 part 2 §2.6.7 (flow control), §2.6.12 (transferring a message).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.engine.outgoing_frames import OutgoingFrames
from spark_streams.wire.amqp.engine.outgoing_session import Outcome, OutgoingSession, Sent
from spark_streams.wire.amqp.performatives import SERIAL, Performative, signed
from spark_streams.wire.amqp.transfer_encode import (
    FORMAT_BYTES,
    HEAD_BYTES,
    UNUSED_BYTES,
    Sender,
    encode_transfers,
    split_message,
)
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

Write = Callable[[pa.Buffer | bytes], None]
"""Queues frames for the peer."""

MAX_FRAME_BYTES: Final = 1 << 20
"""The largest frame that is written, where the peer takes larger ones."""
MIN_FRAME_BYTES: Final = 512
"""The least that every peer takes (AMQP 1.0 part 2 §2.4.1)."""


class OutgoingDeliveries:
    """The deliveries of one link on which we send.

    Args:
        session: the link's session.

    Attributes:
        session: the link's session.
        owner: who sends; None before the link is opened and after its end.
        available: returns how many messages wait for credit; an upper bound where a filter leaves some out.
        settled: called with the origin and the offsets of deliveries that the peer has settled, and their outcome.
        handle: our handle; None before our attach, and after the link's end.
        delivery_count, credit: what a flow tells the peer; the credit is below 0 if the peer took some back.
        drain: whether the peer asks for its credit to be used up or given back.
        draining: whether the peer waits for the answer to its drain.
        unsettled: deliveries that the peer has not settled.
        sent: messages so far.
        written: bytes of all their frames so far.
    """

    def __init__(self, session: OutgoingSession) -> None:
        self.session = session
        self.owner: Any = None
        self.available: Callable[[], int] = lambda: 0
        self.settled: Callable[[Any, Positions, Outcome], None] = lambda origin, offsets, outcome: None
        self.handle: int | None = None
        self.delivery_count = 0
        self.credit = 0
        self.drain = self.draining = False
        self.unsettled = 0
        self.sent = 0
        self.written = 0
        self._presettled = False
        self._write: Write = lambda frames: None
        self._max_frame_bytes = MIN_FRAME_BYTES
        self._all_fields = False
        self._begun: Iterator[bytes] = iter(())
        self._next_frame: bytes | None = None

    def open(self, handle: int, frames: OutgoingFrames, *, presettled: bool) -> None:
        """Note our attach.

        Args:
            handle: our handle.
            frames: the outgoing frames of the connection.
            presettled: whether deliveries are settled as they are sent.
        """
        self.handle, self._presettled, self._write = handle, presettled, frames.write
        self._max_frame_bytes = max(MIN_FRAME_BYTES, min(frames.max_frame_bytes or MAX_FRAME_BYTES, MAX_FRAME_BYTES))
        self._all_fields = frames.all_fields
        self._max_frame_bytes -= UNUSED_BYTES if self._all_fields else 0

    def on_flow(self, flow: Performative) -> None:
        """Read the link's part of the peer's flow.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        self.drain = self.draining = flow.field(8, bool, False)
        if flow.field(9, bool, False) and not self.drain:
            self.session.owed[self] = None
        self.credit = flow.number(6, 0) - signed(self.delivery_count - flow.number(5, 0))

    @property
    def state(self) -> tuple[int, int, int]:
        """The delivery-count, the link-credit and the available messages to send to the peer."""
        return self.delivery_count, max(0, self.credit), min(self.available(), SERIAL)

    @property
    def room(self) -> int:
        """How many messages may be sent now, if each takes one frame."""
        return 0 if self.is_begun or self.handle is None else max(0, min(self.credit, self.session.window))

    @property
    def is_begun(self) -> bool:
        """Whether some frames of the last message are not written yet."""
        return self._next_frame is not None

    def send(
        self, *pieces: Ranges, offsets: Positions, origin: Any = None, formats: NDArray[np.uint32] | None = None
    ) -> int:
        """Send the first messages: as many as take one frame each, or one that may take several.

        Args:
            pieces: what each message consists of, one piece after the other; one message, or at most ``room``.
            offsets: the messages' numbers in their log, such as their offsets; ``settled`` is called with them.
            origin: the other argument of ``settled``.
            formats: the message-format of each; None for 0.

        Returns:
            How many messages were sent.
        """
        session, handle = self.session, self.handle
        if session.channel is None or handle is None:
            return 0
        sender = Sender(session.channel, handle, self._presettled, self._all_fields)
        count = len(offsets)
        sizes = sum((piece.ends - piece.starts for piece in pieces), np.zeros(count, np.int64))
        large = sizes > self._max_frame_bytes - HEAD_BYTES - (0 if formats is None else FORMAT_BYTES)
        if large.any():
            count = max(1, int(large.argmax()))
        first = session.next_id
        self.delivery_count = self.delivery_count + count & SERIAL
        self.credit -= count
        self.sent += count
        session.next_id += count
        if not self._presettled and session.outcomes:
            self.unsettled += count
            session.add(Sent(self, first, offsets[:count], origin, np.ones(count, np.bool_), count))
        if count > 1:
            shortened = [Ranges(piece.buffer, piece.starts[:count], piece.ends[:count]) for piece in pieces]
            formats = None if formats is None else formats[:count]
            frames = encode_transfers(*shortened, sender=sender, first_id=first, formats=formats)
            self._queue(frames, count)
            return count
        parts = [np.frombuffer(each.buffer, np.uint8)[each.starts[0] : each.ends[0]].data for each in pieces]
        self._begun = split_message(
            parts[0] if len(parts) == 1 else memoryview(b"".join(parts)),
            sender=sender,
            delivery_id=first,
            max_frame_bytes=self._max_frame_bytes,
            message_format=0 if formats is None else int(formats[0]),
        )
        self._next_frame = next(self._begun)
        self.go_on(0)
        return 1

    def go_on(self, most_bytes: int) -> None:
        """Write frames of the last message while the window allows, one at least, and up to about so many bytes."""
        end = self.written + most_bytes
        while self._next_frame is not None and self.session.window > 0:
            self._queue(self._next_frame, 1)
            self._next_frame = next(self._begun, None)
            if self.written >= end:
                break

    def give_back(self) -> None:
        """Give back the credit of a draining receiver, and tell it so. Spec: §2.6.7."""
        if self.draining:
            self.delivery_count = self.delivery_count + max(0, self.credit) & SERIAL
            self.credit, self.draining = 0, False
            self.session.owed[self] = None

    def _queue(self, frames: pa.Buffer | bytes, count: int) -> None:
        self.session.window -= count
        self.session.next_transfer = self.session.next_transfer + count & SERIAL
        self.written += len(frames)
        self._write(frames)

    def end(self) -> None:
        """Note the link's end: nothing is sent any more; outcomes may still come."""
        self.owner, self.handle, self._next_frame = None, None, None
        self.session.owed.pop(self, None)

    def drop(self) -> None:
        """End the link, and forget its unsettled deliveries."""
        self.end()
        self.session.forget(self)
