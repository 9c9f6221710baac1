"""TLS at a door: the context of its certificate, the handshakes that are under way, and the connections after them.

::

    accepted -> first bytes -> waits for its turn -> handshake under way -> the door's protocol, on a ``TlsTransport``
                                                     fails -> alert, no more from the door -> the peer hangs up

asyncio's own TLS takes 256 KiB for each connection before its peer has sent a byte, computes all the handshakes that it
can at once, and cuts a connection whose handshake fails before its peer is told why. Here the connections of a door
share one receive buffer, a connection that has sent nothing takes no place in the queue, and handshakes are computed in
turns, beside the door's other work.

Spec: RFC 8446 §6.1 (the end of data), §6.2 (a fatal alert, after which nothing more is sent).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Final

from spark_streams.server.admission import Admission
from spark_streams.server.counters import logger
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.turns import Timer, Turn
from spark_streams.server.users import peer_network

UNEXPECTED: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""The alert unexpected_message, which RFC 8446 §5.1 requires for bytes that are no TLS record; OpenSSL sends none."""
READ_BYTES: Final = 1 << 18
"""The most bytes that are taken from a socket at once."""
HANDSHAKE_BYTES: Final = 1 << 13
"""The same before TLS is established; a connection keeps up to so many bytes while it waits for its turn."""
RECORD_BYTES: Final = 1 << 14
"""The most bytes of a record (RFC 8446 §5.1)."""
TURN_SHARE: Final = 0.25
"""The part of a turn for which a door computes handshakes at a time, as each door may have some to compute. A step
takes a third of it, or five times as much, depending on the certificate's key."""
END_S: Final = 2.0
"""How long a peer may take to answer the end of TLS, in seconds."""
_SAME: Final = ("pause_reading", "get_write_buffer_size", "set_write_buffer_limits", "abort")
"""The methods of a TLS transport that belong to the TCP connection alone."""
NOBODY: Final = asyncio.Protocol()
"""Stands for the door's protocol before TLS is established, and after the connection is lost."""


def tls_context(config: DoorConfig) -> ssl.SSLContext | None:
    """Return the context for the configured certificate; None for a door without TLS.

    Raises:
        OSError, ssl.SSLError: a file cannot be read, or holds no certificate or key.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a write would have to wait for it
    context.load_cert_chain(config.tls_cert, config.tls_key)
    if config.tls_client_ca is not None:
        context.load_verify_locations(config.tls_client_ca)
        # Optional unless configured: a peer that shows no certificate may still sign in with a password or a token.
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_required else ssl.CERT_OPTIONAL
    return context


class Handshakes:
    """The TLS handshakes of a door.

    Half as many as ``max_handshakes`` are under way at a time, a quarter from one address. A connection beyond that
    waits: first come, first served, except for those whose address has its full share. While others wait, a handshake
    that takes longer than a fifth of ``handshake_timeout_ms`` is given up. So even if ``max_handshakes`` other
    connections from the same address never go on, a connection has its turn within three fifths of its time.

    Args:
        loop: the server's.
        context: the door's.
        config: the door's settings.

    Attributes:
        buffer: the receive buffer of all connections.
        loop, context: as above.
        under_way: each connection whose handshake is under way to its beginning, on the loop's clock, in seconds.
        waiting: the connections that have sent bytes which are not processed yet, in the order in which they came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, config: DoorConfig) -> None:
        self.context = context
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.under_way: dict[TlsTransport, float] = {}
        self.waiting: dict[TlsTransport, None] = {}
        self.loop = loop
        self._time_s = config.handshake_timeout_ms / 5_000
        self._most = max(1, config.max_handshakes // 2)
        self._most_of_one = max(1, config.max_handshakes // 4)
        self._timer = Timer(loop)
        self._due = False

    def wait(self, connection: TlsTransport) -> None:
        """Call the ``step`` of a connection when it is its turn."""
        self.waiting[connection] = None
        self._serve_soon()

    def leave(self, connection: TlsTransport) -> None:
        """Note that the handshake of a connection is over, or will never begin."""
        self.waiting.pop(connection, None)
        self.under_way.pop(connection, None)
        self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._due:  # not by the timer: starting it anew would put off the call that is due
            self._due = True
            self.loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Take steps of handshakes for a part of a turn, and give up the oldest one when its time is over."""
        self._due = False
        turn, taken = Turn(share=TURN_SHARE), Counter(each.host for each in self.under_way)
        for connection in list(self.waiting):
            if connection not in self.under_way:
                if len(self.under_way) >= self._most or taken[connection.host] >= self._most_of_one:
                    continue
                self.under_way[connection] = self.loop.time()
                taken[connection.host] += 1
            del self.waiting[connection]
            connection.step()
            if turn.over:
                self._serve_soon()
                return
        if self.waiting:
            oldest, begun_s = next(iter(self.under_way.items()))
            if (left_s := begun_s + self._time_s - self.loop.time()) > 0:
                self._timer.start(left_s, self._serve)
            else:
                oldest.admission.late()


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The TLS of one connection: the protocol of its TCP transport, and the transport of the door's protocol.

    Args:
        handshakes: those of the door.
        make: returns the door's protocol, once TLS is established.
        admission: its place at the door.

    Attributes:
        admission: its place at the door.
        host: where the peer comes from, see ``peer_network``.
        max_size: the most bytes that are received at a time, as asyncio's own transports have it.
    """

    max_size = READ_BYTES

    def __init__(
        self, handshakes: Handshakes, make: Callable[[Admission], asyncio.Protocol], admission: Admission
    ) -> None:
        super().__init__()
        self.admission = admission
        self.host: Hashable = None
        self._handshakes = handshakes
        self._make = make
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = handshakes.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._protocol = NOBODY
        self._ending = False
        self._more = False

    # --- the TCP transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer's first bytes."""
        assert isinstance(transport, asyncio.Transport)
        self._tcp = transport
        for name in _SAME:
            setattr(self, name, getattr(transport, name))
        self.host = peer_network((transport.get_extra_info("peername") or ("",))[0])

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for what arrives next; ``buffer_updated`` is called before it is used again."""
        return self._handshakes.buffer[: HANDSHAKE_BYTES if self._protocol is NOBODY else self.max_size]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived; what arrives after a failed handshake is dropped."""
        if self._protocol is not NOBODY:
            self._incoming.write(self._handshakes.buffer[:nbytes])
            if not self._more:
                self._deliver()
        elif not self._ending:
            self._incoming.write(self._handshakes.buffer[:nbytes])
            self.pause_reading()
            self._handshakes.wait(self)

    def eof_received(self) -> None:
        """Pass on that the peer sends no more; the TCP transport closes."""
        while self._more:
            self._deliver()
        if not self._ending:
            self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is lost."""
        self._handshakes.leave(self)
        self._more = False
        protocol, self._protocol = self._protocol, NOBODY
        protocol.connection_lost(exc)
        if protocol is NOBODY:
            self.admission.end()

    def pause_writing(self) -> None:
        """Pass on that the peer does not read."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer reads again."""
        self._protocol.resume_writing()

    # --- the handshake

    def step(self) -> None:
        """Go on with the handshake: bytes have come, and it is this connection's turn."""
        self.resume_reading()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError as fault:
            # The peer shall hang up, once it knows why: a reset, which unread bytes cause, could overtake the alert.
            logger.info("%s: no TLS: %s", self._tcp.get_extra_info("peername"), fault)
            self._handshakes.leave(self)
            self._ending = True
            self.admission.refuse("tls")
            self._tcp.write(self._outgoing.read() or UNEXPECTED)
            self._tcp.write_eof()
        else:
            self._handshakes.leave(self)
            self._extra = {"sslcontext": self._tls.context, "peercert": self._tls.getpeercert()}
            self._send()
            self._protocol = self._make(self.admission)
            self._protocol.connection_made(self)
            self._deliver()

    # --- what the door's protocol receives and sends

    def resume_reading(self) -> None:
        """Receive again, and hand over what has arrived."""
        self._tcp.resume_reading()
        self._hand_over_later()

    def _hand_over_later(self) -> None:
        if self._more:
            self._handshakes.loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._more and self._tcp.is_reading():
            self._deliver()

    def _deliver(self) -> None:
        """Hand over what has arrived, and the rest later if it is more than is received at a time.

        What arrives after the door has closed is dropped.
        """
        pieces, left = [b""], self.max_size
        try:
            while left > 0 and (piece := self._tls.read(min(left, RECORD_BYTES))):
                pieces.append(piece)
                left -= len(piece)
            wants = left <= 0
        except ssl.SSLError as fault:
            wants = isinstance(fault, ssl.SSLWantReadError)
        self._more = left <= 0
        self._hand_over_later()
        self._send()  # an answer of TLS itself, such as that to a change of keys, or an alert
        if not self.is_closing() and (data := b"".join(pieces)):
            self._protocol.data_received(data)
        if not wants:  # the peer has ended TLS, or broken it
            self.eof_received()
            self.close()
            self._tcp.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, after earlier ones."""
        if data and not self.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the bytes being answered broke TLS: ``_deliver`` closes
                self._tls.write(data)
            self._send()

    def _send(self) -> None:
        self._tcp.write(self._outgoing.read())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the TLS, or of the TCP connection."""
        return self._extra[name] if name in self._extra else self._tcp.get_extra_info(name, default)

    # --- its end

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self._ending or self._tcp.is_closing()

    def close(self) -> None:
        """Send the end of TLS after what was written, and close once the peer has answered, or its time is over."""
        if not self.is_closing():
            self._ending = True
            with contextlib.suppress(ssl.SSLError):  # the peer has not answered yet, or has broken TLS
                self._tls.unwrap()
            self._send()
            self.resume_reading()
            self._handshakes.loop.call_later(END_S, self._tcp.close)
