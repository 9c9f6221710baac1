"""Opens a connection: connect, introduce, sign in, tune, open the virtual host, exchange versions.

This is the straight way through the states of ``wire/rabbitmq/handshake_states.py``: the client repeats no step.

Spec: Streams Protocol Reference, "Authentication"; docs/specifications.md, S-21 to S-26.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import not_a_broker, refusal
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import open_socket
from spark_streams.client.tls import WANTS_A_CERTIFICATE
from spark_streams.endpoint import Endpoint
from spark_streams.errors import AuthenticationFailed, ConnectFailed, ConnectionLost, RemoteProtocolError
from spark_streams.redaction import remember
from spark_streams.wire.rabbitmq import connection_commands as commands
from spark_streams.wire.rabbitmq.registry import CLIENT_RECEIVES
from spark_streams.wire.rabbitmq.response_codes import ResponseCode

DEFAULT_LOGIN: Final = ("guest", "guest")
"""User and password for an endpoint that names none, as in other clients."""
_VERSIONS_SINCE: Final = (3, 11)
"""The first version with ExchangeCommandVersions: older brokers close a connection that sends it."""
_INTRODUCTION: Final = {
    "product": "spark-streams",
    "version": "0.1.0",
    "platform": "Python",
    "connection_name": "spark-streams",
}


def open_connection(endpoint: Endpoint, *, timeout_ms: int, connect_ms: int | None = None) -> Connection:
    """Return an open connection.

    Args:
        endpoint: the broker, with credentials, virtual host and TLS.
        timeout_ms: how many milliseconds the broker may take for an answer.
        connect_ms: how many milliseconds the network may take to connect, where that is less.

    Raises:
        ConnectFailed: no connection, or the peer is no broker with streams.
        AuthenticationFailed: the broker does not accept the credentials, or offers no mechanism that we may use.
        Refused: the broker does not permit us to use the virtual host.
        ConnectionLost, DeadlineExceeded, RemoteProtocolError: the broker closed the connection, gave no answer in time,
            or sent something that it may not send in this state.
    """
    connection = Connection(endpoint, open_socket(endpoint, Deadline(connect_ms or timeout_ms)), timeout_ms)
    where, vhost = endpoint.address, endpoint.vhost
    try:
        properties = _introduce(connection)
        _sign_in(connection)
        tune = _tuned(connection)
        what = f"{where}: open the virtual host '{vhost}'"
        properties |= connection.request(commands.Open(vhost), commands.OpenAnswer, what).properties
        versions: Mapping[int, int] = {}
        if _numbers(properties.get("version", "")) >= _VERSIONS_SINCE:
            request, what = commands.ExchangeCommandVersions(CLIENT_RECEIVES), f"{where}: versions"
            versions = connection.request(request, commands.ExchangeCommandVersionsAnswer, what).maximum
        connection.opened(properties, versions, tune.frame_max_bytes, tune.heartbeat_s)
    except BaseException:
        connection.abandon()
        raise
    return connection


def _introduce(connection: Connection) -> dict[str, str]:
    """Exchange properties, and return the broker's.

    Raises:
        ConnectFailed: the peer is no broker with streams, or closes the connection.
    """
    endpoint = connection.endpoint
    request, what = commands.PeerProperties(_INTRODUCTION), f"{endpoint.address}: hello"
    try:
        return dict(connection.request(request, commands.PeerPropertiesAnswer, what).properties)
    except RemoteProtocolError as fault:
        raise not_a_broker(endpoint, str(fault)) from fault
    except ConnectionLost as fault:
        # A broker that is just stopping or starting does so as well.
        tls = "wants TLS (rabbitmq-stream+tls)" if endpoint.tls is None else WANTS_A_CERTIFICATE
        raise ConnectFailed(
            f"{endpoint.address}: the peer closed the connection without a word: check that the port in option 'url' "
            f"is one of RabbitMQ's for streams (5552 is usual, 5551 with TLS), and whether it {tls}"
        ) from fault


def _sign_in(connection: Connection) -> None:
    what = f"sign in to {connection.endpoint.address}"
    try:
        offered = connection.request(commands.SaslHandshake(), commands.SaslHandshakeAnswer, what).mechanisms
        _authenticate(connection, offered, what)
    except ConnectionLost as fault:
        raise ConnectionLost(f"{what}: closed without an answer, as some do whom they refuse") from fault


def _authenticate(connection: Connection, offered: Sequence[str], what: str) -> None:
    endpoint = connection.endpoint
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
    answer = connection.ask(commands.SaslAuthenticate(mechanism, data), commands.SaslAuthenticateAnswer, what)
    if answer.code == ResponseCode.SASL_CHALLENGE:
        reason = f"{mechanism} needs no second step, and the broker asks one"
        raise AuthenticationFailed(answer.code_name, reason, what)
    if not answer.ok:
        raise refusal(answer.code, what if external else f"{what} as '{user}'")


def _tuned(connection: Connection) -> commands.Tune:
    """Accept the values that the broker proposes, and return them.

    The frame size bounds the frames that we send, and does not bound Deliver.
    """
    where, deadline = connection.endpoint.address, Deadline(connection.timeout_ms)
    while (event := connection.receive(deadline.left_s(f"{where}: no tune"))) is None:
        pass
    if not isinstance(event, commands.Tune):
        raise RemoteProtocolError(f"{where}: expected tune, got {type(event).__name__}")
    connection.send(commands.TuneAnswer(event.frame_max_bytes, event.heartbeat_s).encode())
    return event


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; a broker that is not RabbitMQ, or reports none, counts as new."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers) or _VERSIONS_SINCE
