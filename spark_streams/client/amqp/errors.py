"""The one boundary where errors of sockets, TLS and peers become ours.

Every message names ``host:port`` and what to do; none holds a password, as what peers say is looked through
(``redaction``): here where it becomes part of a message of ours, else as it becomes part of the error.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_streams.client.tls import WANTS_A_CERTIFICATE, is_no_tls, refused_certificate, unverified
from spark_streams.endpoint import RABBITMQ_SCHEMES, Endpoint
from spark_streams.errors import (
    ConnectFailed,
    ConnectionLost,
    NotFound,
    OwnershipLost,
    Refused,
    SparkStreamsError,
)
from spark_streams.redaction import told

__all__ = [
    "LinkRedirected",
    "connect_fault",
    "connection_fault",
    "foreign_answer_fault",
    "lost",
    "peer_fault",
    "silent_close_fault",
    "tls_fault",
]

_TLS_RECORDS = (b"\x14\x03", b"\x15\x03", b"\x16\x03")
_PLAIN = {
    **dict.fromkeys(("amqp", "amqps"), "write amqp:// instead of amqps://"),
    **dict.fromkeys(
        ("rabbitmq-stream", "rabbitmq-stream+tls"), "write rabbitmq-stream:// instead of rabbitmq-stream+tls://"
    ),
    **dict.fromkeys(("http", "https"), "write http:// instead of https://"),
}
_EPOCH = re.compile(r"epoch\D{0,12}(\d+)", re.IGNORECASE)


@dataclass
class LinkRedirected(SparkStreamsError):
    """The peer names another container for a link (``amqp:link:redirect``); the client follows, users never see it.

    Spec: AMQP 1.0 part 2 §2.8.18.
    """

    network_host: str
    port: int
    hostname: str | None
    address: str | None


def final(fault: ConnectFailed) -> ConnectFailed:
    """Mark a fault that another try cannot heal: a name, a certificate or a scheme has to be changed first."""
    fault.retriable = False
    return fault


def connect_fault(fault: OSError, endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a TCP connection that could not be made."""
    if endpoint.is_told:
        return _told_fault(fault, endpoint)
    where = endpoint.address
    if isinstance(fault, socket.gaierror):
        return final(
            ConnectFailed(f"{where}: the host name '{endpoint.host}' is not known: check the host in option 'url'")
        )
    if isinstance(fault, ConnectionRefusedError):
        return ConnectFailed(
            f"{where}: connection refused: nothing listens there; check the port in option 'url' and that the log runs"
        )
    if isinstance(fault, TimeoutError):
        failed = ConnectFailed(f"{where}: no answer: check the host and port in option 'url', and firewalls on the way")
        failed.costly = True
        return failed
    return ConnectFailed(f"{where}: no connection: {fault.strerror or fault}: check the host and port in option 'url'")


def _told_fault(fault: OSError, endpoint: Endpoint) -> ConnectFailed:
    """Return the same for a host that no option has named: the peer has, and there is where to look."""
    where, reason, what = endpoint.address, str(fault.strerror or fault), "the peer redirects there"
    if endpoint.scheme in RABBITMQ_SCHEMES:
        what = (
            "so the broker advertises one of its nodes (its settings stream.advertised_host and "
            "stream.advertised_port), not option 'url'; if that is a load balancer, set option 'loadBalancer' to 'true'"
        )
    if isinstance(fault, socket.gaierror):
        reason = f"the host name '{told(endpoint.host)}' is not known"
    elif isinstance(fault, ConnectionRefusedError):
        reason = "connection refused: nothing listens there"
    elif isinstance(fault, TimeoutError):
        reason = "no answer"
    failed = ConnectFailed(f"{where}: {reason}: it has to be reachable from here: {what}")
    failed.retriable = not isinstance(fault, socket.gaierror)
    failed.costly = isinstance(fault, TimeoutError)
    return failed


def tls_fault(fault: OSError, endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a TLS handshake that failed; one that broke off may do better the next time."""
    where = endpoint.address
    if isinstance(fault, ssl.SSLCertVerificationError):
        return final(ConnectFailed(f"{where}: {unverified(fault, where)}"))
    refused = refused_certificate(fault)
    if refused is not None:
        return final(ConnectFailed(f"{where}: {refused}"))
    plain = f"if it is a plain port, {_PLAIN[endpoint.scheme]} in option 'url', without 'tls.' options"
    if isinstance(fault, TimeoutError):
        failed = ConnectFailed(
            f"{where}: TLS does not work there (no answer to the handshake): {plain}; else the peer hangs, or the "
            "network does: raise option 'requestTimeout' if they are slow"
        )
        failed.costly = True
        return failed
    text = (getattr(fault, "reason", None) or str(fault)).lower()
    failed = ConnectFailed(f"{where}: TLS does not work there ({text}): {plain}")
    return final(failed) if is_no_tls(fault) else failed


def foreign_answer_fault(answer: bytes, endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a peer whose first bytes are not AMQP's protocol header."""
    where = endpoint.address
    if answer.startswith(_TLS_RECORDS):
        return final(ConnectFailed(f"{where}: the port speaks TLS: write amqps:// instead of amqp:// in option 'url'"))
    return final(
        ConnectFailed(
            f"{where}: the peer does not speak AMQP 1.0, it answered '{told(answer.decode('latin-1'), 16)}': check the "
            "port in option 'url'"
        )
    )


def silent_close_fault(endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a peer that closed the connection before it said anything."""
    other = WANTS_A_CERTIFICATE if endpoint.tls else "speaks TLS, write amqps:// instead of amqp://"
    return ConnectFailed(
        f"{endpoint.address}: the peer closed the connection at once: check the port in option 'url'; if it {other}"
    )


def lost(endpoint: Endpoint, reason: object) -> ConnectionLost | ConnectFailed:
    """Return the error for a connection that broke while in use; or that never worked, which TLS 1.3 tells late."""
    refused = refused_certificate(reason) if isinstance(reason, BaseException) else None
    if refused is not None:
        return final(ConnectFailed(f"{endpoint.address}: {refused}"))
    return ConnectionLost(f"{endpoint.address}: the connection was lost: {told(str(reason))}")


def connection_fault(condition: Any, endpoint: Endpoint) -> SparkStreamsError:
    """Return the error for a connection that the peer closed, by its condition or None.

    One that was idle for too long is lost like any other: a caller that was busy for longer than the peer's idle
    time-out comes back to it, and a new connection heals it. AMQP has no condition of its own for that; proton and its
    kin send ``amqp:resource-limit-exceeded`` with "local-idle-timeout expired".
    """
    if condition is not None and "idle" in (condition.description or ""):
        return lost(endpoint, f"{condition.name}: {condition.description}")
    return peer_fault(condition, f"connection to {endpoint.address}")


def peer_fault(condition: Any, context: str) -> SparkStreamsError:
    """Return the error that a peer's condition means.

    Args:
        condition: ``proton.Condition`` or None; without one the peer closed gracefully, which passes (ES-107, ES-108).
        context: what it was about, such as ``attach to 'orders' at localhost:5672``.
    """
    if condition is None:
        return ConnectionLost(f"{context}: the peer closed it without an error")
    name, description = str(condition.name), told(condition.description or "")
    info: Mapping[Any, Any] = condition.info if isinstance(condition.info, Mapping) else {}
    if name == "amqp:link:redirect":
        redirect = _redirect(info)
        if redirect is not None:
            return redirect
    if name == "amqp:not-found":
        return NotFound(name, description, context)
    if name == "amqp:link:stolen":
        return OwnershipLost(name, description, context, _thief(info, description))
    return Refused(name, description, context)


def _redirect(info: Mapping[Any, Any]) -> LinkRedirected | None:
    host, port = info.get("network-host"), info.get("port")
    hostname, address = info.get("hostname"), info.get("address")
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65_536:
        return None
    if told(host) != host:  # it goes into messages
        return None
    return LinkRedirected(str(host), int(port), str(hostname) if hostname else None, str(address) if address else None)


def _thief(info: Mapping[Any, Any], description: str | None) -> int | None:
    epoch = info.get("x-opt-epoch", info.get("event-streams-epoch"))
    if isinstance(epoch, int):
        return int(epoch)
    found = _EPOCH.search(description or "")
    return int(found.group(1)) if found else None
