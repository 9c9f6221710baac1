"""A connected socket: TCP, and TLS on it when the endpoint says so."""

from __future__ import annotations

import socket

from spark_streams.client.amqp.errors import connect_fault, tls_fault
from spark_streams.client.retry import Deadline
from spark_streams.client.tls import tls_context
from spark_streams.endpoint import Endpoint

__all__ = ["open_socket"]


def open_socket(endpoint: Endpoint, deadline: Deadline, server_name: str | None = None) -> socket.socket:
    """Return a connected, non-blocking socket.

    Args:
        endpoint: where to.
        deadline: how long to try.
        server_name: the name that a TLS certificate has to hold; the endpoint's host when None.

    Raises:
        ConnectFailed: no connection, or TLS failed on it.
        OptionError: a file of ``endpoint.tls`` cannot be read.
    """
    context = tls_context(endpoint.tls) if endpoint.tls else None
    try:
        raw = socket.create_connection(
            (endpoint.host, endpoint.port), timeout=deadline.left_s(f"{endpoint.address}: no connection")
        )
    except UnicodeError as fault:  # no host name can be written so: a part of it is empty, or too long
        raise connect_fault(socket.gaierror(str(fault)), endpoint) from fault
    except (OSError, OverflowError) as fault:
        raise connect_fault(fault if isinstance(fault, OSError) else OSError(str(fault)), endpoint) from fault
    try:
        # Flow and disposition frames are small and must not wait for more to come (Nagle).
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected: socket.socket = raw
        if context is not None:
            connected = context.wrap_socket(raw, server_hostname=server_name or endpoint.host)
        connected.setblocking(False)
        return connected
    except OSError as fault:
        raw.close()
        raise tls_fault(fault, endpoint) from fault
    except BaseException:
        raw.close()
        raise
