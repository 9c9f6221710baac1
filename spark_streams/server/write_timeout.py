"""Notices peers that do not read the bytes sent to them."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from spark_streams.server.turns import Timer

_RESET: Final = struct.pack("ii", 1, 0)

logger = logging.getLogger("spark_streams.server")


def throw_away_unsent(transport: asyncio.Transport) -> None:
    """Discard unsent bytes when the connection is cut, those in the system's memory too.

    The peer sees a reset, so that it does not mistake the bytes that it got for all of them.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class WriteTimeout:
    """Drops a peer that reads nothing for too long, while the transport is full.

    Args:
        loop: the server's.
        transport: the connection.
        timeout_ms: how long the peer may read nothing.
        drop: ends the connection at once.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, timeout_ms: int, drop: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._timeout_ms = timeout_ms
        self._drop = drop
        self._waiting = 0
        self._timer = Timer(loop)

    def start(self) -> None:
        """Wait for the peer, because the transport is full."""
        self._waiting = self._transport.get_write_buffer_size()
        self._timer.start(self._timeout_ms / 1000, self._look)

    def stop(self) -> None:
        """Stop waiting for the peer."""
        self._timer.stop()

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._waiting:
            self.start()  # slow, and alive
            return
        peer = self._transport.get_extra_info("peername")
        logger.info("%s: dropped, it took nothing for %d ms", peer, self._timeout_ms)
        throw_away_unsent(self._transport)
        self._drop()
