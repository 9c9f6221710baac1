"""Bounds the whole time of a peer's answer, as the time-out of a socket begins anew for each address and each byte.

A peer that sends a byte a second is never silent, so no time-out of a socket ends a response whose end it never sends,
nor one that it puts off again and again (status 100). Python's TLS bounds each handshake as a whole, and ``Deadline``
our own loops over ``recv``; this module is for loops inside libraries.
"""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPResponse
from typing import Any

from spark_streams.endpoint import Node


def connect(node: Node, until: float) -> socket.socket:
    """Return a connection; each address of the host gets an equal part of the time that is left.

    Args:
        node: the host and port.
        until: when to give up, by the monotonic clock; the time that is left then becomes the time-out of the socket.

    Raises:
        OSError, UnicodeError, OverflowError: no connection could be made.
    """
    addresses = socket.getaddrinfo(*node, type=socket.SOCK_STREAM)
    failed = OSError("no address")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        connected = None
        try:
            connected = socket.socket(family, kind, protocol)  # a kernel without IPv6 has none for its addresses
            connected.settimeout(left_s(until) / (len(addresses) - index))
            connected.connect(address)
        except OSError as fault:
            if connected is not None:
                connected.close()
            failed = fault
            continue
        connected.settimeout(left_s(until))
        # Requests, flows and dispositions are small and must not wait for more to come (Nagle).
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    raise failed


class TimedResponse(HTTPResponse):
    """A response that has to come within the time-out of its socket, counted from here: its head, and its body.

    Args:
        sock: the socket, with a time-out.
        arguments: as for ``HTTPResponse``.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self._reader = _TimedReader(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self._reader)

    def steady(self, silence_s: float) -> None:
        """Do not limit the rest, as long as the peer is never silent for more than ``silence_s`` seconds."""
        if not self.isclosed():
            self._reader.until = None
            self._reader.socket.settimeout(silence_s)


class _TimedReader(io.RawIOBase):
    """Reads a socket until a point in time; where that is None, with the socket's own time-out for each read."""

    def __init__(self, raw: io.RawIOBase, connected: socket.socket) -> None:
        self._raw, self.socket = raw, connected
        self.until: float | None = time.monotonic() + (connected.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int | None:
        if self.until is not None:
            if time.monotonic() >= self.until:
                raise TimeoutError("timed out")
            self.socket.settimeout(left_s(self.until))
        return self._raw.readinto(room)

    def close(self) -> None:
        self._raw.close()
        super().close()


def left_s(until: float) -> float:
    """Return the seconds that are left, a moment at least."""
    return max(0.001, until - time.monotonic())
