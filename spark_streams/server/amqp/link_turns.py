"""Gives the links of one connection their turns, and counts the memory that they use.

A link that has work to do is due. Each turn of the connection serves the links that are due, each a bounded share;
a link that waits for room in the socket or in memory is blocked, and due again when bytes have been written.
"""

from __future__ import annotations

import abc
import time
from typing import Final, Protocol

from spark_streams.server.admission import Admission
from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.door import DoorNode, TcpConnection
from spark_streams.server.turns import Turn

WRITE_BUFFER_BYTES: Final = 256 << 10
BYTES_PER_TURN: Final = 512 << 10
"""About the most bytes of one link's turn: they wait in memory until the turn of the whole connection is over."""


class Served(Protocol):
    """A link, as it is given turns."""

    @property
    def ended(self) -> bool:
        """Whether it serves no more."""

    def serve(self) -> bool:
        """Do a bounded part of the work that is due; return whether there is more to do at once."""


class LinkTurns(TcpConnection):
    """A connection whose links take turns.

    Args:
        node, admission: see ``TcpConnection``.
        config: the door's settings.

    Attributes:
        config: the door's settings.
        write_paused: whether the socket accepts no more bytes.
    """

    def __init__(self, node: DoorNode, admission: Admission, config: LinkConfig) -> None:
        super().__init__(node, admission, WRITE_BUFFER_BYTES)
        self.config = config
        self.write_paused = False
        self._closing = False
        self._storing_bytes = 0
        self._due: dict[Served, None] = {}
        self._blocked: dict[Served, None] = {}

    @abc.abstractmethod
    def _queue_turn(self) -> None:
        """Queue a turn of this connection."""

    @abc.abstractmethod
    def _close(self, name: str, description: str) -> None:
        """Close the connection with an error."""

    def wake(self, attached: Served | None = None) -> None:
        """Queue a turn of this connection, and make a link due in it."""
        if attached is not None and not attached.ended:
            self._due[attached] = None
        self._queue_turn()

    def block(self, attached: Served) -> None:
        """Make a link due again when bytes have been written."""
        self._blocked[attached] = None

    def _unblock(self) -> None:
        """Make the blocked links due, if the socket accepts bytes: before those that have had what they wait for."""
        if not self.write_paused:
            self._due = {**self._blocked, **self._due}
            self._blocked.clear()

    def _serve_due(self) -> None:
        """Serve the links that are due, at least one, until the turn is over."""
        waiting, self._due = self._due, {}
        turn = Turn(time.monotonic)  # links read from the disk
        while waiting:
            attached = next(iter(waiting))
            del waiting[attached]
            if not attached.ended and attached.serve():
                self._due[attached] = None
            if turn.over:
                break
        # Links that had no turn come before links that need another one.
        self._due = {**waiting, **self._due}

    # --- memory

    def storing(self, more_bytes: int) -> None:
        """Count bytes of messages that are being stored; links that were ``full`` are served when there is room."""
        before = self.full
        self._storing_bytes += more_bytes
        if before and not self.full:
            self._unblock()
            self._queue_turn()

    @property
    def full(self) -> bool:
        """Whether links must accept no more messages: the engine holds up to ``session_bytes`` of the next ones."""
        return self._storing_bytes >= self.config.session_bytes
