"""The TLS side of the doors."""

from __future__ import annotations

import os
import ssl
from typing import Protocol

__all__ = ["TlsFiles", "server_context"]


class TlsFiles(Protocol):
    """What a door's settings say about TLS; the names are those of ``AmqpConfig``."""

    @property
    def tls_cert(self) -> str | os.PathLike[str] | None:
        """PEM file with the server's certificate chain."""

    @property
    def tls_key(self) -> str | os.PathLike[str] | None:
        """PEM file with its private key."""

    @property
    def tls_client_ca(self) -> str | os.PathLike[str] | None:
        """PEM file of the authorities whose client certificates are taken."""

    @property
    def tls_client_required(self) -> bool:
        """Whether a client has to show one."""


def server_context(config: TlsFiles) -> ssl.SSLContext | None:
    """Return the context for the configured certificate; None for a door without TLS.

    Raises:
        OSError, ssl.SSLError: a file cannot be read, or holds no certificate or key.

    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert, config.tls_key)
    if config.tls_client_ca is not None:
        context.load_verify_locations(config.tls_client_ca)
        # Optional unless it is said: a peer that shows none may still sign in with a password or a token.
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_required else ssl.CERT_OPTIONAL
    return context
