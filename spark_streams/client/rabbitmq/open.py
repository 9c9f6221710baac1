"""Opens a connection: connect, introduce, sign in, tune, open the virtual host, exchange versions.

``wire/rabbitmq/connection_commands.py`` has the order: each state has one step, whose outcome leads to the next state.

Spec: Streams Protocol Reference, "Authentication"; docs/specifications.md, S-21 to S-26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import DEFAULT_LOGIN, refusal, signs_in_by_certificate
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import open_socket
from spark_streams.client.tls import NO_EXTERNAL, STRANGERS_CERTIFICATE
from spark_streams.client.what_answers import known_right, silent_close_fault, wrong_port
from spark_streams.endpoint import Endpoint
from spark_streams.errors import AuthenticationFailed, ConnectFailed, ConnectionLost, RemoteProtocolError
from spark_streams.redaction import remember
from spark_streams.wire.rabbitmq import connection_commands as commands
from spark_streams.wire.rabbitmq.connection_commands import CLIENT_RECEIVES, TRANSITIONS, HandshakeInput, HandshakeState
from spark_streams.wire.rabbitmq.frames import ResponseCode, code_name

MAX_SIGN_IN_BYTES: Final = 8_192 - 19
"""The most bytes of PLAIN's response by default: frames have 8,192 until Open, SaslAuthenticate's other fields 19."""
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
        timeout_ms: how many milliseconds all of that may take, and the broker for each later answer.
        connect_ms: how many milliseconds the network may take to connect, where that is less.

    Raises:
        ConnectFailed: no connection, or the peer is no broker with streams.
        AuthenticationFailed: the broker does not accept the credentials, or offers no mechanism that we may use.
        Refused: the broker does not permit us to use the virtual host.
        ConnectionLost, DeadlineExceeded, RemoteProtocolError: the broker closed the connection, gave no answer in time,
            or sent something that it may not send in this state.
    """
    deadline = Deadline(timeout_ms)
    connection = Connection(endpoint, open_socket(endpoint, Deadline(connect_ms or timeout_ms)), timeout_ms)
    connection.opening = deadline
    try:
        _Handshake(connection, deadline).run()
    except BaseException:
        connection.abandon()
        raise
    return connection


class _Handshake:
    """The client's side of one handshake.

    Args:
        connection: the connection to open.
        deadline: when it has to be open.
    """

    def __init__(self, connection: Connection, deadline: Deadline) -> None:
        self._connection = connection
        self._endpoint = connection.endpoint
        self._where = connection.endpoint.address
        self._sign_in = f"sign in to {self._where}"
        self._deadline = deadline
        self._state = HandshakeState.CONNECTED
        self._properties: dict[str, str] = {}
        self._mechanisms: tuple[str, ...] = ()
        self._frame_max_bytes = self._heartbeat_s = self._sent_bytes = 0

    def run(self) -> None:
        """Do all steps, and open the connection with the negotiated values.

        Raises:
            ConnectFailed, AuthenticationFailed, Refused, ConnectionLost, DeadlineExceeded, RemoteProtocolError: as for
                ``open_connection``.
        """
        while self._state is not HandshakeState.OPEN:
            try:
                outcome = _STEPS[self._state](self)
            except ConnectionLost as fault:
                explained = self._explained()
                if explained is None:
                    raise
                raise explained from fault
            self._state = TRANSITIONS[self._state, outcome]
        known_right(self._endpoint)
        versions: Mapping[int, int] = {}
        if _numbers(self._properties.get("version", "")) >= _VERSIONS_SINCE:
            request, what = commands.ExchangeCommandVersions(CLIENT_RECEIVES), f"{self._where}: versions"
            versions = self._connection.request(request, commands.ExchangeCommandVersionsAnswer, what).maximum
        self._connection.opened(self._properties, versions, self._frame_max_bytes, self._heartbeat_s)

    def _introduce(self) -> HandshakeInput:
        request, what = commands.PeerProperties(_INTRODUCTION), f"{self._where}: hello"
        try:
            properties = self._connection.request(request, commands.PeerPropertiesAnswer, what).properties
        except RemoteProtocolError as fault:
            if (wrong := wrong_port(self._endpoint, self._connection.first)) is not None:
                raise wrong from fault
            raise
        self._properties.update(properties)
        return HandshakeInput.PEER_PROPERTIES

    def _ask_mechanisms(self) -> HandshakeInput:
        request, what = commands.SaslHandshake(), self._sign_in
        self._mechanisms = self._connection.request(request, commands.SaslHandshakeAnswer, what).mechanisms
        return HandshakeInput.SASL_HANDSHAKE

    def _authenticate(self) -> HandshakeInput:
        endpoint, what = self._endpoint, self._sign_in
        external = signs_in_by_certificate(endpoint)
        mechanism = "EXTERNAL" if external else "PLAIN"
        if mechanism not in self._mechanisms:
            offered, todo = ", ".join(self._mechanisms) or "nothing", f": {NO_EXTERNAL}" if external else ""
            raise AuthenticationFailed(
                "sasl-mechanism-not-supported (0x07)",
                f"the broker does not offer {mechanism}, it offers {offered}{todo}",
                what,
            )
        data: bytes | None = None
        user, password = DEFAULT_LOGIN
        if mechanism == "PLAIN":
            if endpoint.username is not None:
                user, password = endpoint.username, endpoint.password.reveal() if endpoint.password else ""
                self._deadline.restart()  # a function may have taken long, which is not the broker's fault
            remember(password, user)
            data = b"\0" + user.encode() + b"\0" + password.encode()
            self._sent_bytes = len(data)
        answer = self._connection.ask(commands.SaslAuthenticate(mechanism, data), commands.SaslAuthenticateAnswer, what)
        if answer.code == ResponseCode.SASL_CHALLENGE:
            reason = f"{mechanism} needs no second step, and the broker asks one"
            raise AuthenticationFailed(code_name(answer.code), reason, what)
        if not answer.ok:
            if external and answer.code != ResponseCode.SASL_AUTHENTICATION_FAILURE_LOOPBACK:
                raise refusal(answer.code, what, STRANGERS_CERTIFICATE)
            raise refusal(answer.code, what if external else f"{what} as '{user}'")
        return HandshakeInput.SASL_SUCCESS

    def _tune(self) -> HandshakeInput:
        while (event := self._connection.receive(self._deadline.left_s(f"{self._where}: no tune"))) is None:
            pass
        if not isinstance(event, commands.Tune):
            raise RemoteProtocolError(f"{self._where}: expected tune, got {type(event).__name__}")
        # Accept the proposed values: the frame size bounds the frames that we send, and does not bound Deliver.
        self._frame_max_bytes, self._heartbeat_s = event.frame_max_bytes, event.heartbeat_s
        self._connection.send(commands.TuneAnswer(event.frame_max_bytes, event.heartbeat_s).encode())
        return HandshakeInput.TUNE

    def _open(self) -> HandshakeInput:
        vhost = self._endpoint.vhost
        request, what = commands.Open(vhost), f"{self._where}: open the virtual host '{vhost}'"
        self._properties.update(self._connection.request(request, commands.OpenAnswer, what).properties)
        return HandshakeInput.OPEN

    def _explained(self) -> ConnectionLost | ConnectFailed | AuthenticationFailed | None:
        """Return the error for a broker that closes the connection in this state; None for the original error."""
        if self._state is HandshakeState.CONNECTED:
            return wrong_port(self._endpoint, self._connection.first) or silent_close_fault(self._endpoint)
        if self._sent_bytes > MAX_SIGN_IN_BYTES and self._state is HandshakeState.AUTHENTICATING:
            return AuthenticationFailed(
                "closed",
                f"user and password have {self._sent_bytes - 2} bytes together, and RabbitMQ takes "
                f"{MAX_SIGN_IN_BYTES - 2} at most unless its setting stream.initial_frame_max exceeds 8192: raise "
                "it, or have fewer scopes or groups in the token that is the password",
                self._sign_in,
            )
        if self._state in (HandshakeState.INTRODUCED, HandshakeState.AUTHENTICATING):
            return ConnectionLost(f"sign in to {self._where}: closed without an answer, as some do whom they refuse")
        return None


_STEPS: Final[Mapping[HandshakeState, Callable[[_Handshake], HandshakeInput]]] = {
    HandshakeState.CONNECTED: _Handshake._introduce,
    HandshakeState.INTRODUCED: _Handshake._ask_mechanisms,
    HandshakeState.AUTHENTICATING: _Handshake._authenticate,
    HandshakeState.AUTHENTICATED: _Handshake._tune,
    HandshakeState.TUNED: _Handshake._open,
}


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; a broker that is not RabbitMQ, or reports none, counts as new."""
    return tuple(map(int, takewhile(str.isdigit, version.split(".")))) or _VERSIONS_SINCE
