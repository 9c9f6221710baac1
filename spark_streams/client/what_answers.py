"""Says which url to use, where something else answers at a port than a client expected.

Some peers say nothing to foreign bytes: RabbitMQ's stream protocol hangs up, and HTTP waits for the end of a line. A
message then says whose port it usually is.
"""

from __future__ import annotations

from typing import Final

from spark_streams.client.first_bytes import (
    AMQP,
    HTTP,
    STREAMS,
    TLS,
    WEB_SOCKET,
    Spoken,
    is_refused,
    is_served,
    recognised,
)
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import ConnectFailed
from spark_streams.protocols import PROTOCOLS, protocol_of
from spark_streams.redaction import safe_text

_Way = tuple[str, str, bool, Node]
_RIGHT: Final[set[_Way]] = set()
"""Where this process has signed in, for as long as it lives: a query may run for months on one connection."""
_SAID: Final = 60
"""Characters of an answer that a message has."""
_BY_SCHEME: Final = {scheme: each for each in (AMQP, STREAMS, HTTP) for scheme in PROTOCOLS[each.name or ""].schemes}
_OTHERS: Final = {9092: "Kafka, which Spark reads with its own format 'kafka'", 15672: "RabbitMQ's management"}
"""Ports that people come with, and whose they usually are."""


def known_right(endpoint: Endpoint) -> None:
    """Note that a peer spoke what was expected: whatever comes later, it is not the url that is wrong."""
    _RIGHT.add(_way(endpoint))


def wrong_port(endpoint: Endpoint, heard: bytes, where: str | None = None) -> ConnectFailed | None:
    """Return the error for a port where something else answers than the endpoint's url says; it is not retriable.

    Args:
        endpoint: one host of the peer.
        heard: the first bytes that came, within TLS where the endpoint has TLS; none if it said nothing.
        where: what the message begins with; None for the host and port.

    Returns:
        None where it speaks what was expected, or has before in this process, and where that is not known.
    """
    wanted = _BY_SCHEME.get(endpoint.scheme) if endpoint.transport == "tcp" else WEB_SOCKET
    if wanted is None or not heard or _way(endpoint) in _RIGHT:
        return None  # a protocol that is not known here, or a peer that is being restarted
    spoken = recognised(heard)
    is_passing = spoken is HTTP and not (is_served(heard) or is_refused(heard))
    if is_passing or spoken is (HTTP if wanted is WEB_SOCKET else wanted) or (spoken is TLS and endpoint.tls):
        return None
    failed = ConnectFailed(f"{where or endpoint.address}: {_advice(endpoint, wanted, spoken, heard)}")
    failed.retriable = False
    return failed


def _way(endpoint: Endpoint) -> _Way:
    return endpoint.scheme, endpoint.transport, endpoint.tls is not None, endpoint.dialled


def usual_port(endpoint: Endpoint) -> str:
    """Return whose port another protocol's usually is, to be added to the error for a peer that said nothing."""
    port = endpoint.dialled[1]
    other = _OTHERS.get(port)
    for entry in PROTOCOLS.values():
        if port in entry.ports.values() and endpoint.scheme not in entry.schemes:
            other = f"{entry.scheme}:// with format '{entry.format}'"
    return "" if other is None or endpoint.transport != "tcp" else f"; port {port} is usual for {other}"


# --- what a user is told


def _advice(endpoint: Endpoint, wanted: Spoken, spoken: Spoken | None, heard: bytes) -> str:
    """Return what answers, what was expected, and what to do."""
    said = f"'{safe_text(heard.decode('latin-1').strip().partition(chr(10))[0], _SAID)}'"
    if spoken is None:
        return f"the peer does not speak {wanted.title}, it answered {said}: {_other_port(endpoint, wanted)}"
    if spoken is TLS:
        return f"the port speaks TLS: {secured_advice(endpoint)}"
    secured = endpoint.tls is not None
    expected = f"{spoken.title} answers there{', with TLS' if secured else ''}, and {wanted.title} was expected: "
    if (entry := spoken.entry) is None:
        return f"{expected}{spoken.todo or f'it said {said}'}; {_other_port(endpoint, wanted)}"
    there = endpoint.at(endpoint.dialled, is_advertised=False).reached("tcp", None)
    url = f"{entry.tls_scheme if secured else entry.scheme}://{there.address}"
    if wanted is WEB_SOCKET and spoken is AMQP:
        return f"the port does not speak WebSockets, but AMQP 1.0 itself: leave out option 'transport', and write {url}"
    if spoken is HTTP and b"server: cowboy" in heard.lower():
        return f"{expected}it looks like RabbitMQ's management; {_other_port(endpoint, wanted)}"
    if spoken is HTTP:
        web = "; at an Event Hubs, set option 'transport' to 'websocket'" if wanted is AMQP and secured else ""
        return f"{expected}{_other_port(endpoint, wanted)}; if it is a feed, write {url}/… with format 'feedapi'{web}"
    return f"{expected}write {url} with format '{entry.format}', or {_other_port(endpoint, wanted)}"


def secured_advice(endpoint: Endpoint) -> str:
    """Return what to write for a port that speaks TLS."""
    if endpoint.option != "url":
        return f"leave out UseDevelopmentEmulator=true in option '{endpoint.option}'"
    protocol = protocol_of(endpoint.scheme)
    assert protocol is not None  # an endpoint's scheme is that of an entry
    return f"write {protocol.tls_scheme}:// instead of {protocol.scheme}:// in option 'url'"


def _other_port(endpoint: Endpoint, wanted: Spoken) -> str:
    option = endpoint.option if endpoint.via is None else "customEndpoint"
    entry = wanted.entry
    usual = f" ({entry.port} is usual, {entry.tls_port} with TLS)" if entry and wanted in (AMQP, STREAMS) else ""
    return f"check the port in option '{option}'{usual}"
