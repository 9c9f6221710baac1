"""The TLS side of the AMQP door."""

from __future__ import annotations

import ssl

from spark_streams.server.config import AmqpConfig

__all__ = ["server_context"]


def server_context(config: AmqpConfig) -> ssl.SSLContext | None:
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
        # Optional: a peer that shows none may still sign in with a password.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
