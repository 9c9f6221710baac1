"""The outgoing frames of one connection: frames about endpoints, transfers, flows and dispositions, heartbeats.

Spec: AMQP 1.0 part 2 §2.2 (the header), §2.4.5 (idle time-out).
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from spark_streams.wire.amqp.engine.session import IncomingSession
from spark_streams.wire.amqp.performatives import encode_frame
from spark_streams.wire.amqp.sasl import AMQP_HEADER

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"


class OutgoingFrames:
    """The outgoing frames of one connection; first the header.

    Args:
        all_fields: whether frames have all their fields, null ones at their end too.

    Attributes:
        all_fields: as given.
        max_frame_bytes: the largest frame that the peer takes; 0 before it has said so.
        idle_s: seconds without a frame after which the peer closes the connection; 0 for never.
    """

    def __init__(self, *, all_fields: bool) -> None:
        self.all_fields = all_fields
        self.max_frame_bytes = 0
        self.idle_s = 0.0
        self._ready: list[bytes | pa.Buffer] = [AMQP_HEADER]
        self._ended = False
        self._wrote, self._due_s = True, 0.0

    def write(self, frames: pa.Buffer | bytes) -> None:
        """Write frames; nothing follows the connection's end."""
        if not self._ended:
            self._ready.append(frames)

    def say(self, channel: int, code: int, fields: list[Any]) -> None:
        """Write a frame.

        Raises:
            LocalProtocolError: a field cannot be encoded; nothing is written then.
        """
        self.write(encode_frame(channel, code, fields, all_fields=self.all_fields))

    def settle(self, session: IncomingSession) -> None:
        """Write the due frames of a session: its window, the state of links, and settlements."""
        if session.due:
            self.write(session.frames())

    @property
    def pending(self) -> bool:
        """Whether frames wait to be written."""
        return bool(self._ready)

    def take(self) -> bytes:
        """Take all due frames."""
        taken = b"".join(self._ready)
        self._ready.clear()
        self._wrote |= len(taken) > len(EMPTY_FRAME)
        return taken

    def beat(self, now_s: float) -> float:
        """Send a heartbeat, if the peer has heard nothing for half of its idle time-out.

        Returns:
            When to call again, in seconds of the same clock; 0 for never.
        """
        half_s = self.idle_s / 2
        if self._wrote:
            self._due_s, self._wrote = now_s + half_s, False
        elif half_s and now_s >= self._due_s:
            self.write(EMPTY_FRAME)
            self._due_s = now_s + half_s
        return self._due_s if half_s else 0.0

    def end(self) -> None:
        """Write nothing more: no frame follows a close."""
        self._ended = True
