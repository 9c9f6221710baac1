"""Notices peers that do not read what they are sent."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

from spark_streams.server.turns import Timer

_RESET: Final = struct.pack("ii", 1, 0)


def throw_away_unsent(transport: asyncio.Transport) -> None:
    """Discard unsent bytes when the connection is cut, those in the system's memory too.

    The peer sees a reset, so that it does not mistake the bytes that it got for all of them.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class WriteTimeout:
    """Notices a peer that reads nothing for too long, while the transport is full.

    Args:
        loop: the server's.
        transport: the connection.
        timeout_ms: how long the peer may read nothing.
        stuck: called once when it has read nothing for so long.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, timeout_ms: int, stuck: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_ms / 1000
        self._stuck = stuck
        self._waiting = 0
        self._timer = Timer(loop)

    def paused(self) -> None:
        """Note that the transport is full."""
        self._wait()

    def resumed(self) -> None:
        """Note that it has room again."""
        self.stop()

    def stop(self) -> None:
        """Stop waiting for the peer."""
        self._timer.stop()

    def _wait(self) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        self._timer.start(self._timeout_s, self._look)

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._waiting:
            self._wait()  # slow, and alive
        else:
            throw_away_unsent(self._transport)
            self._stuck()
