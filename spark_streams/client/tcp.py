"""Opens a socket to a peer, with TLS where the endpoint has it, and turns its errors into ours; for all protocols.

Every message names ``host:port`` and what to do. A peer's words are redacted where they become part of a message.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, TypeVar

from spark_streams.client.retry import Deadline
from spark_streams.client.timed import connect
from spark_streams.client.tls import certificate_advice, is_no_tls, plain_port_advice, tls_context
from spark_streams.endpoint import RABBITMQ_SCHEMES, Endpoint
from spark_streams.errors import ConnectFailed, ConnectionLost, SparkStreamsError
from spark_streams.redaction import safe_text

_REDIRECTED: Final = "the peer redirects there"
_ADVERTISED: Final = dict.fromkeys(
    RABBITMQ_SCHEMES,
    "so the broker advertises one of its nodes (its settings stream.advertised_host and stream.advertised_port), not "
    "option 'url'; if that is a load balancer, set option 'loadBalancer' to 'true'",
)
WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""The errors of a socket of ``open_socket`` that has no bytes, or takes none, for now."""
_T = TypeVar("_T", bound=SparkStreamsError)


def open_socket(
    endpoint: Endpoint,
    deadline: Deadline,
    server_name: str | None = None,
    dial: Callable[[], socket.socket] | None = None,
) -> socket.socket:
    """Return a connected, non-blocking socket.

    Args:
        endpoint: the peer.
        deadline: how long to try.
        server_name: the name that a TLS certificate has to hold; the endpoint's when None.
        dial: connects to the peer in another way than directly, such as through a proxy; with errors of its own.

    Raises:
        ConnectFailed: no connection could be made, or TLS failed on it.
        DeadlineExceeded: ``deadline`` has passed.
        OptionError: a file of ``endpoint.tls`` cannot be read.
    """
    context = tls_context(endpoint.tls) if endpoint.tls else None
    missing = f"{endpoint.address}: no connection"
    try:
        until = time.monotonic() + deadline.left_s(missing)
        raw = connect(endpoint.dialled, until) if dial is None else dial()
    except UnicodeError as fault:  # the name is no host name: a part of it is empty, or too long
        raise connect_fault(socket.gaierror(str(fault)), endpoint) from fault
    except (OSError, OverflowError) as fault:
        raise connect_fault(fault if isinstance(fault, OSError) else OSError(str(fault)), endpoint) from fault
    connected: socket.socket = raw
    try:
        if context is not None:
            name = server_name or endpoint.tls_name
            connected = secured = context.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False)
            secured.settimeout(deadline.left_s(missing))
            secured.do_handshake()
        connected.setblocking(False)
        return connected
    except OSError as fault:
        connected.close()
        raise tls_fault(fault, endpoint) from fault
    except BaseException:
        connected.close()
        raise


def final(fault: _T) -> _T:
    """Mark a fault as not retriable, as the user has to change a name, a certificate or a scheme first; return it."""
    fault.retriable = False
    return fault


def costly(fault: _T) -> _T:
    """Mark a fault as one that took a whole timeout, so that it is retried less often; return it."""
    fault.costly = True
    return fault


def connect_fault(fault: OSError, endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a TCP connection that could not be made.

    For a host that the peer has named, and no option, the message advises to check the peer's settings.
    """
    option = endpoint.option if endpoint.via is None else "customEndpoint"
    reason, todo = f"no connection: {fault.strerror or fault}", f"check the host and port in option '{option}'"
    if isinstance(fault, socket.gaierror):
        reason = f"the host name '{safe_text(endpoint.dialled[0])}' is not known"
        todo = f"check the host in option '{option}'"
    elif isinstance(fault, ConnectionRefusedError):
        reason = "connection refused: nothing listens there"
        todo = f"check the port in option '{option}' and that the log runs"
    elif isinstance(fault, TimeoutError):
        reason, todo = "no answer", f"{todo}, and firewalls on the way"
    if endpoint.is_advertised:
        todo = f"it has to be reachable from here: {_ADVERTISED.get(endpoint.scheme, _REDIRECTED)}"
    failed = ConnectFailed(f"{endpoint.address}: {reason}: {todo}")
    failed.retriable = not isinstance(fault, socket.gaierror)
    failed.costly = isinstance(fault, TimeoutError)
    return failed


def tls_fault(fault: OSError, endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a TLS handshake that failed; it is retriable when the handshake only broke off."""
    where = endpoint.address
    advice = certificate_advice(fault, where)
    if advice is not None:
        return final(ConnectFailed(f"{where}: {advice}"))
    if isinstance(fault, TimeoutError):
        plain = plain_port_advice("no answer to the handshake", endpoint.protocol, endpoint.option)
        slow = "else the peer hangs, or the network does: raise option 'requestTimeout' if they are slow"
        return costly(ConnectFailed(f"{where}: {plain}; {slow}"))
    text = (getattr(fault, "reason", None) or str(fault)).lower()
    failed = ConnectFailed(f"{where}: {plain_port_advice(text, endpoint.protocol, endpoint.option)}")
    return final(failed) if is_no_tls(fault) else failed


def lost(endpoint: Endpoint, reason: object) -> ConnectionLost | ConnectFailed:
    """Return the error for a connection that broke while in use, or that TLS 1.3 refused after the handshake."""
    advice = certificate_advice(reason, endpoint.address) if isinstance(reason, BaseException) else None
    if advice is not None:
        return final(ConnectFailed(f"{endpoint.address}: {advice}"))
    return ConnectionLost(f"{endpoint.address}: the connection was lost: {safe_text(str(reason))}")
