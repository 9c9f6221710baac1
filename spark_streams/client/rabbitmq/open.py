"""Opening a connection: introduce, sign in, tune, open the virtual host, exchange versions.

Spec: Streams Protocol Reference, "Authentication"; docs/specifications.md, S-21 to S-26.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_streams.client.rabbitmq.errors import not_a_broker, refusal
from spark_streams.client.retry import Deadline
from spark_streams.client.tls import WANTS_A_CERTIFICATE
from spark_streams.errors import AuthenticationFailed, ConnectFailed, ConnectionLost, RemoteProtocolError
from spark_streams.redaction import remember
from spark_streams.wire.rabbitmq.connection_commands import (
    ExchangeCommandVersions,
    ExchangeCommandVersionsAnswer,
    Open,
    OpenAnswer,
    PeerProperties,
    PeerPropertiesAnswer,
    SaslAuthenticate,
    SaslAuthenticateAnswer,
    SaslHandshake,
    SaslHandshakeAnswer,
    Tune,
    TuneAnswer,
)
from spark_streams.wire.rabbitmq.registry import CLIENT_RECEIVES
from spark_streams.wire.rabbitmq.response_codes import ResponseCode

if TYPE_CHECKING:
    from spark_streams.client.rabbitmq.connection import Connection

__all__ = ["DEFAULT_LOGIN", "Negotiated", "handshake"]

DEFAULT_LOGIN: Final = ("guest", "guest")
"""User and password where nothing is said of them, as in other clients."""
_VERSIONS_SINCE: Final = (3, 11)
"""Brokers before close a connection that asks for versions: the command is unknown to them."""


@dataclass(frozen=True)
class Negotiated:
    """What both sides know of each other after the handshake.

    Args:
        properties: the broker's, as it says them: they may hold our secrets.
        versions: command key to the highest version that the broker takes; empty where it does not say.
        frame_max_bytes: the largest frame, 0 for no limit.
        heartbeat_s: 0 for none.
    """

    properties: Mapping[str, str]
    versions: Mapping[int, int]
    frame_max_bytes: int
    heartbeat_s: int


def handshake(connection: Connection) -> Negotiated:
    """Do all steps.

    Raises:
        ConnectFailed: the peer is no broker with streams.
        AuthenticationFailed: it does not take the credentials, or offers no mechanism that we may use.
        Refused: it does not let us use the virtual host.
    """
    endpoint = connection.endpoint
    where = endpoint.address
    try:
        properties = connection.request(PeerProperties(_introduction()), PeerPropertiesAnswer, f"{where}: hello")
    except RemoteProtocolError as fault:
        raise not_a_broker(endpoint, str(fault)) from fault
    except ConnectionLost as fault:
        # A broker that is just going down or coming up does so as well.
        wants = "wants TLS (rabbitmq-stream+tls)" if endpoint.tls is None else WANTS_A_CERTIFICATE
        raise ConnectFailed(
            f"{where}: the peer closed the connection without a word: check that the port in option 'url' is one of "
            f"RabbitMQ's for streams (5552 is usual, 5551 with TLS), and whether it {wants}"
        ) from fault
    try:
        _sign_in(connection)
    except ConnectionLost as fault:
        raise ConnectionLost(f"sign in to {where}: closed without an answer, as some do whom they refuse") from fault
    tune = _tune(connection)
    opened = connection.request(Open(endpoint.vhost), OpenAnswer, f"{where}: open the virtual host '{endpoint.vhost}'")
    versions: Mapping[int, int] = {}
    if _version(properties.properties.get("version", "")) >= _VERSIONS_SINCE:
        versions = connection.request(
            ExchangeCommandVersions(CLIENT_RECEIVES), ExchangeCommandVersionsAnswer, f"{where}: versions"
        ).maximum
    said = {**properties.properties, **opened.properties}
    return Negotiated(said, versions, tune.frame_max_bytes, tune.heartbeat_s)


def _introduction() -> dict[str, str]:
    return {
        "product": "spark-streams",
        "version": "0.1.0",
        "platform": "Python",
        "connection_name": "spark-streams",
    }


def _version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; a broker that is not RabbitMQ, or says none, counts as new."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers) or _VERSIONS_SINCE


def _sign_in(connection: Connection) -> None:
    endpoint = connection.endpoint
    what = f"sign in to {endpoint.address}"
    offered = connection.request(SaslHandshake(), SaslHandshakeAnswer, what).mechanisms
    external = endpoint.username is None and endpoint.tls is not None and endpoint.tls.cert_file is not None
    mechanism = "EXTERNAL" if external else "PLAIN"
    if mechanism not in offered:
        raise AuthenticationFailed(
            "sasl-mechanism-not-supported (0x07)",
            f"the broker does not offer {mechanism}, it offers {', '.join(offered) or 'nothing'}",
            what,
        )
    data: bytes | None = None
    user = DEFAULT_LOGIN[0] if endpoint.username is None else endpoint.username
    if mechanism == "PLAIN":
        password = DEFAULT_LOGIN[1]
        if endpoint.username is not None:
            password = endpoint.password.reveal() if endpoint.password else ""
        remember(password, user)
        data = b"\0" + user.encode() + b"\0" + password.encode()
    answer = connection.ask(SaslAuthenticate(mechanism, data), SaslAuthenticateAnswer, what)
    if answer.code == ResponseCode.SASL_CHALLENGE:
        raise AuthenticationFailed(answer.code_name, f"{mechanism} needs no second step, and the broker asks one", what)
    if not answer.ok:
        raise refusal(answer.code, what if external else f"{what} as '{user}'")


def _tune(connection: Connection) -> Tune:
    deadline = Deadline(connection.timeout_ms)
    while True:
        left = deadline.left_s(f"{connection.endpoint.address}: no tune")
        event = connection.receive(left)
        if isinstance(event, Tune):
            # Taken as it is proposed: the frame size is for what we send, Deliver is not bound by it.
            connection.send(TuneAnswer(event.frame_max_bytes, event.heartbeat_s).encode())
            return event
        if event is not None:
            raise RemoteProtocolError(f"{connection.endpoint.address}: expected tune, got {type(event).__name__}")
