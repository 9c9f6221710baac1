"""Writes frames that lie in several pieces to a socket, without joining the pieces, because chunks are large.

asyncio's transports join them before Python 3.12; later ones do not, but those up to 3.12.8 and 3.13.1 then do not
call ``pause_writing`` when the peer does not read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

MOST_PIECES: Final = 512
"""The most pieces of one system call, which accepts at least 1,024."""


class ScatteredWriter:
    """Writes to the socket of a transport while the transport has nothing to write itself, else to the transport.

    Args:
        transport: the transport of a stream socket, with TLS or without.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        secret = transport.get_extra_info("sslcontext") is not None
        self._socket: socket.socket | None = None if secret else transport.get_extra_info("socket").dup()

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write pieces behind earlier writes; the transport keeps those that the socket does not accept at once."""
        if self._socket is None:
            self._transport.writelines(pieces)
            return
        for piece in self._past_transport(self._socket, list(pieces)):
            self._transport.write(piece)

    def _past_transport(self, own: socket.socket, pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Write to the socket itself; return the pieces that it did not accept."""
        at = 0
        while at < len(pieces):
            if self._transport.get_write_buffer_size() or self._transport.is_closing():
                break
            try:
                sent = own.sendmsg(pieces[at : at + MOST_PIECES])
            except OSError:
                break  # it is full; or it is broken, which the transport notices and handles by itself
            while at < len(pieces) and sent >= len(pieces[at]):
                sent -= len(pieces[at])
                at += 1
            if sent:
                pieces[at] = memoryview(pieces[at])[sent:]
        return pieces[at:]

    def close(self) -> None:
        """Close the writer's own descriptor of the socket, because the transport has ended."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
