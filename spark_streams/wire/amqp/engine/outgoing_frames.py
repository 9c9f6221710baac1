"""What is to be written on one connection: frames about endpoints, transfers, and what sessions owe the peer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_streams.wire.amqp.engine.outgoing_deliveries import Write
from spark_streams.wire.amqp.engine.session import IncomingSession
from spark_streams.wire.amqp.performatives import encode_frame
from spark_streams.wire.amqp.sasl import AMQP_HEADER


class OutgoingFrames:
    """What is to be written on one connection; first the header.

    Args:
        all_fields: whether frames have all their fields, null ones at their end too.

    Attributes:
        all_fields: as given.
        max_frame_bytes: the largest frame that the peer takes; 0 before it has said so.
        sessions: the connection's.
        write: queues frames.
    """

    def __init__(self, *, all_fields: bool) -> None:
        self.all_fields = all_fields
        self.max_frame_bytes = 0
        self.sessions: list[IncomingSession] = []
        self._ready: list[bytes | pa.Buffer] = [AMQP_HEADER]
        self.write: Write = self._ready.append

    def say(self, channel: int, code: int, fields: list[Any]) -> None:
        """Write a frame; what is settled goes out before it, as it may be a detach.

        Raises:
            LocalProtocolError: a field cannot be encoded; nothing is written then.
        """
        frame = encode_frame(channel, code, fields, all_fields=self.all_fields)
        self._settle()
        self.write(frame)

    def _settle(self) -> None:
        """Write what sessions owe the peer: windows, the state of links, and what is settled."""
        for session in self.sessions:
            if session.due:
                self.write(session.frames())

    @property
    def pending(self) -> bool:
        """Whether frames wait to be written."""
        return bool(self._ready)

    def take(self) -> bytes:
        """Take all that is due."""
        self._settle()
        taken = b"".join(self._ready)
        self._ready.clear()
        return taken

    def end(self) -> None:
        """Write nothing more: no frame follows a close."""
        self.write = lambda frames: None
