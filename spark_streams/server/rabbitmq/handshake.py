"""Runs the handshake of a connection until it is open: authenticates the peer and agrees on limits, without sockets.

``wire/rabbitmq/connection_commands.py`` has the states and transitions. Heartbeats are accepted in any state. A command
without a row in the present state ends the connection without an answer, as at brokers: an unauthenticated peer learns
nothing. Only PeerProperties and SaslHandshake are answered before it ends.

Spec: Streams Protocol Reference, "Authentication"; docs/specifications.md, S-13, S-21 to S-26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.server.activity import client_text
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.users import common_name, knows
from spark_streams.wire.rabbitmq.connection_commands import (
    TRANSITIONS,
    HandshakeInput,
    HandshakeState,
    Heartbeat,
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
from spark_streams.wire.rabbitmq.frames import Command, ResponseCode

VIRTUAL_HOSTS: Final = frozenset({"/"})
"""All virtual hosts: the log has one name space."""


@dataclass(frozen=True)
class Reply:
    """The door's answer to a command.

    Args:
        send: frames for the peer.
        end: close the connection after them.
        failed: credentials were not accepted; brokers say so after three seconds (seen on 4.3).
    """

    send: tuple[Command, ...] = ()
    end: bool = False
    failed: bool = False


@dataclass(eq=False)
class Handshake:
    """The door's side of one connection's handshake.

    Args:
        config: users, limits, proposals.
        peer_host: the peer's address, None when it is not known.
        certificate: its verified TLS certificate, in the form of ``ssl.SSLSocket.getpeercert``, or None.
        advertised: returns the host and port that clients should connect to.

    Attributes:
        state: how far the handshake has come.
        user: who signed in; empty before.
        client: the peer's own description.
        frame_max_bytes: the largest frame, as agreed; 0 for no limit.
        heartbeat_s: the interval of heartbeats, as agreed; 0 for none.
    """

    config: RabbitConfig
    peer_host: str | None
    certificate: Mapping[str, Any] | None
    advertised: Callable[[], tuple[str, int]]

    def __post_init__(self) -> None:
        self.state = HandshakeState.CONNECTED
        self.user = self.client = self._mechanism = ""
        self.frame_max_bytes = self.config.frame_max_bytes
        self.heartbeat_s = self.config.heartbeat_s
        self._identity = common_name(self.certificate)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The names of the SASL mechanisms that this peer may use."""
        return (
            *(["EXTERNAL"] if self._identity is not None else []),
            *(["PLAIN"] if self.config.users else []),
        )

    def receive(self, command: Command) -> Reply:
        """Handle a command of a connection that is not open yet, and change ``state``; return the answer."""
        if isinstance(command, Heartbeat):
            return Reply()
        if isinstance(command, PeerProperties):
            told = command.properties
            self.client = client_text(*(told.get(name) for name in ("product", "version", "connection_name")))
            answer: Command = PeerPropertiesAnswer(command.correlation_id, properties=_properties(self.config))
            return Reply((answer,), end=not self._step(HandshakeInput.PEER_PROPERTIES))
        if isinstance(command, SaslHandshake):
            answer = SaslHandshakeAnswer(command.correlation_id, mechanisms=self.mechanisms)
            return Reply((answer,), end=not self._step(HandshakeInput.SASL_HANDSHAKE))
        if isinstance(command, SaslAuthenticate) and self._expects(HandshakeInput.SASL_SUCCESS):
            return self._authenticate(command)
        if isinstance(command, (Tune, TuneAnswer)) and self._step(HandshakeInput.TUNE):
            self.frame_max_bytes = _agreed(self.config.frame_max_bytes, command.frame_max_bytes)
            self.heartbeat_s = _agreed(self.config.heartbeat_s, command.heartbeat_s)
            return Reply()
        if isinstance(command, Open) and self._expects(HandshakeInput.OPEN):
            return self._open(command)
        return Reply(end=True)

    def _expects(self, received: HandshakeInput) -> bool:
        return (self.state, received) in TRANSITIONS

    def _step(self, received: HandshakeInput) -> bool:
        """Change to the next state; return whether the input has a row in the present one."""
        expected = self._expects(received)
        if expected:
            self.state = TRANSITIONS[self.state, received]
        return expected

    def again(self, command: SaslAuthenticate) -> Reply:
        """Handle an authentication on an open connection, with which the peer renews a token or a password."""
        if command.mechanism != self._mechanism:
            return _answered(command, ResponseCode.SASL_CANNOT_CHANGE_MECHANISM)
        code, user = self._check(command)
        if code == ResponseCode.OK and user != self.user:
            code = ResponseCode.SASL_CANNOT_CHANGE_USERNAME
        return _answered(command, code)

    def _authenticate(self, command: SaslAuthenticate) -> Reply:
        code, user = self._check(command)
        self._step(HandshakeInput.SASL_SUCCESS if code == ResponseCode.OK else HandshakeInput.SASL_FAILURE)
        reply = _answered(command, code)
        if code != ResponseCode.OK:
            return reply
        self.user, self._mechanism = user, command.mechanism
        return Reply((*reply.send, Tune(self.config.frame_max_bytes, self.config.heartbeat_s)))

    def _check(self, command: SaslAuthenticate) -> tuple[ResponseCode, str]:
        """Return the code to answer, and the user."""
        if command.mechanism not in self.mechanisms:
            return ResponseCode.SASL_MECHANISM_NOT_SUPPORTED, ""
        if command.mechanism == "EXTERNAL":
            user, known = self._identity or "", True
        else:
            words = (command.data or b"").split(b"\0")
            if len(words) != 3 or words[0]:
                return ResponseCode.SASL_ERROR, ""
            user = words[1].decode("utf-8", "replace")
            known = knows(self.config.users, user, words[2])
        if not known:
            return ResponseCode.AUTHENTICATION_FAILURE, user
        if not self.config.admits(user, self.peer_host):
            return ResponseCode.SASL_AUTHENTICATION_FAILURE_LOOPBACK, user
        return ResponseCode.OK, user

    def _open(self, command: Open) -> Reply:
        if command.virtual_host not in VIRTUAL_HOSTS:
            self._step(HandshakeInput.OPEN_FAILURE)
            refused = OpenAnswer(command.correlation_id, ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)
            return Reply((refused,), end=True)
        host, port = self.advertised()
        properties = {"advertised_host": host, "advertised_port": str(port)}
        self._step(HandshakeInput.OPEN)
        return Reply((OpenAnswer(command.correlation_id, properties=properties),))


def _agreed(ours: int, theirs: int) -> int:
    """Return the smaller of two limits, where 0 means no limit (S-11)."""
    return min(ours, theirs) if ours and theirs else ours or theirs


def _answered(command: SaslAuthenticate, code: ResponseCode) -> Reply:
    failed = code != ResponseCode.OK
    return Reply((SaslAuthenticateAnswer(command.correlation_id, code),), end=failed, failed=failed)


def _properties(config: RabbitConfig) -> dict[str, str]:
    """Return what the door reports about itself; all names but the first are those that brokers use."""
    return {
        "implementation": "spark-streams",
        "product": "RabbitMQ",  # because the version is RabbitMQ's: clients read both (ADR 11)
        "version": config.version,
        "platform": "Python",
        "cluster_name": "spark-streams",
        "copyright": "",
        "information": "the embedded log of spark-streams, which speaks RabbitMQ's stream protocol",
    }
