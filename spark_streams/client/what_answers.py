"""Says which url to use where a port answers in another protocol than the client expected; the first bytes show it.

::

    "AMQP" 0|2|3 1 0 0           AMQP 1.0, and SASL or TLS below it (part 2 §2.2)
    size(4) 0x8011|0x8012 0 1    RabbitMQ's stream protocol: the answer to PeerProperties or SaslHandshake
    "HTTP/"                      HTTP (RFC 9112 §4)
    0x14…0x16 0x03               a record of TLS (RFC 8446 §5.1): an alert, or the answer to a hello

Some peers say nothing to foreign bytes: RabbitMQ's stream protocol hangs up, and HTTP waits for the end of a line. A
message then says which ports are usual.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Final

from spark_streams.client.tcp import final
from spark_streams.client.tls import certificate_hint
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed
from spark_streams.protocols import PROTOCOLS
from spark_streams.redaction import safe_text

_TITLES: Final = {"amqp": "AMQP 1.0", "rabbitmq-stream": "RabbitMQ's stream protocol", "feedapi": "HTTP"}
"""Those of our protocols that are known by their first bytes."""
_PASSING: Final = "a proxy's answer"
_TLS: Final = "TLS"
_FIRST_BYTES: Final = (
    (re.compile(rb"AMQP[\x00\x02\x03]\x01\x00\x00"), "amqp"),
    (re.compile(rb".{4}\x80[\x11\x12]\x00\x01", re.DOTALL), "rabbitmq-stream"),
    # Proxies answer so for a peer that is not there, and HTTPS servers to clients without TLS.
    (re.compile(rb"HTTP/\S+ (?:[135]|408|425|429)"), _PASSING),
    (re.compile(rb"HTTP/"), "feedapi"),
    (re.compile(rb"[\x14-\x16]\x03"), _TLS),
)
_SAID: Final = 60
"""Characters of an answer that a message has."""
_RIGHT: Final[set[object]] = set()
"""Where this process has signed in, for as long as it lives: a query may run for months on one connection."""
_way = attrgetter("scheme", "tls", "transport", "dialled")


def known_right(endpoint: Endpoint) -> None:
    """Note that a peer spoke the expected protocol: whatever comes later, the url is not wrong."""
    _RIGHT.add(_way(endpoint))


def was_right(endpoint: Endpoint) -> bool:
    """Return whether the peer spoke what was expected once in this process."""
    return _way(endpoint) in _RIGHT


def wrong_port(endpoint: Endpoint, heard: bytes, where: str | None = None) -> ConnectFailed | None:
    """Return the error for a port where something else answers than the endpoint's url says; it is not retriable.

    Args:
        endpoint: one host of the peer.
        heard: the first bytes that came, within TLS where the endpoint has TLS; none if it said nothing.
        where: what the message begins with; None for the host and port.

    Returns:
        None where it speaks the expected protocol, or has before in this process, or where the bytes show no other.
    """
    own, over_web = endpoint.protocol.name, endpoint.transport != "tcp"
    spoken = next((name for pattern, name in _FIRST_BYTES if pattern.match(heard)), None)
    expected = ("feedapi" if over_web else own, _PASSING, None if endpoint.tls is None else _TLS)
    is_right = spoken is not None and spoken in expected
    if not heard or own not in _TITLES or is_right or was_right(endpoint):
        return None
    wanted = _TITLES[own] + (" over WebSockets" if over_web else "")
    if spoken == _TLS:
        advice = f"the port speaks TLS: {secured_advice(endpoint)}"
    elif spoken is not None:
        other = PROTOCOLS[spoken]
        there = endpoint.at(endpoint.dialled, is_advertised=False).reached("tcp", None).address
        url = f"{other.scheme if endpoint.tls is None else other.tls_scheme}://{there}"
        advice = f"{_TITLES[spoken]} answers there, and {wanted} was expected: {check_port(endpoint)}, or write {url} "
        advice += f"with format '{other.format}'" + (" and without option 'transport'" if over_web else "")
    else:
        said = safe_text(heard.decode("latin-1").strip().partition("\n")[0], _SAID)
        advice = f"the peer does not speak {wanted}, it answered '{said}': {check_port(endpoint)}"
        if heard.startswith(b"AMQP"):
            advice += "; RabbitMQ speaks AMQP 1.0 since version 4, and before with the plugin rabbitmq_amqp1_0"
    return final(ConnectFailed(f"{where or endpoint.address}: {advice}"))


def silent_close_fault(endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a peer that closed the connection before it said anything, as one that starts does too."""
    other = certificate_hint(endpoint.tls) if endpoint.tls else f"speaks TLS, {secured_advice(endpoint)}"
    return ConnectFailed(
        f"{endpoint.address}: the peer closed the connection at once: {check_port(endpoint)}; if it {other}"
    )


def check_port(endpoint: Endpoint) -> str:
    """Return what to check where a peer does not speak what was expected, with the usual ports."""
    protocol = endpoint.protocol
    option = endpoint.option if endpoint.via is None else "customEndpoint"
    return f"check the port in option '{option}' ({protocol.port} is usual, {protocol.tls_port} with TLS)"


def secured_advice(endpoint: Endpoint) -> str:
    """Return what to write for a port that speaks TLS."""
    if endpoint.option != "url":
        return f"leave out UseDevelopmentEmulator=true in option '{endpoint.option}'"
    protocol = endpoint.protocol
    return f"write {protocol.tls_scheme}:// instead of {protocol.scheme}:// in option 'url'"
