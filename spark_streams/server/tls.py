"""TLS at a door: the context of its certificate, and the alert that tells a peer why its handshake failed.

::

    asyncio alone       handshake fails -> the connection is cut; the peer sees its end, and no reason
    here                handshake fails -> alert, no more from the door -> the peer hangs up, or its time is over

The alert is in OpenSSL's output when a handshake fails, and asyncio throws it away with the connection. So it is told
that the handshake goes on, until the peer hangs up or the time of the handshake is over: a connection that is cut while
bytes of the peer are unread would be reset, which may overtake the alert.

Spec: RFC 8446 §6.2 (a fatal alert, after which nothing more is sent).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextvars import ContextVar
from typing import Any, Final

from spark_streams.server.door_config import DoorConfig

ARRIVING: Final[ContextVar[asyncio.Transport | None]] = ContextVar("ARRIVING", default=None)
"""The TCP connection whose handshake begins, in the context of its callbacks."""
UNEXPECTED: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""The alert unexpected_message: OpenSSL has none for bytes that are no record of TLS (RFC 8446 §5.1: it is a duty)."""

logger = logging.getLogger("spark_streams.server")


def tls_context(config: DoorConfig) -> ssl.SSLContext | None:
    """Return the context for the configured certificate; None for a door without TLS.

    Raises:
        OSError, ssl.SSLError: a file cannot be read, or holds no certificate or key.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = _TellingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert, config.tls_key)
    if config.tls_client_ca is not None:
        context.load_verify_locations(config.tls_client_ca)
        # Optional unless configured: a peer that shows no certificate may still sign in with a password or a token.
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_required else ssl.CERT_OPTIONAL
    return context


class _TellingObject(ssl.SSLObject):
    """The TLS of a connection, which tells the peer when its handshake fails, and goes on without an end then."""

    # What the handshake needs to tell the peer; None outside of a handshake that can tell it.
    _telling: tuple[ssl.MemoryBIO, ssl.MemoryBIO, asyncio.Transport] | None = None
    _refused: ssl.MemoryBIO | None = None

    def tell(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, transport: asyncio.Transport) -> None:
        """Begin to tell the peer of a transport."""
        self._telling = incoming, outgoing, transport

    def do_handshake(self) -> None:
        """Go on with the handshake; after a failure only read what comes."""
        if self._refused is None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as fault:
                if self._telling is None:
                    raise
                self._refused, outgoing, transport = self._telling
                logger.info("%s: no TLS: %s", transport.get_extra_info("peername"), fault)
                transport.write(outgoing.read() or UNEXPECTED)
                transport.write_eof()
            else:
                self._telling = None
                return
            self._telling = None
        self._refused.read()
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the handshake has failed, and the peer knows")


class _TellingContext(ssl.SSLContext):
    """A context whose failed handshakes are told to the peer of the transport in ``ARRIVING``."""

    sslobject_class = _TellingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **named: Any) -> ssl.SSLObject:
        """Return the TLS of a connection; asyncio calls it when the handshake begins."""
        secured = super().wrap_bio(incoming, outgoing, *more, **named)
        transport = ARRIVING.get()
        if transport is not None and isinstance(secured, _TellingObject):
            secured.tell(incoming, outgoing, transport)
        return secured
