"""The SASL layer of one connection: finds out the peer's user before the engine gets a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.users import ANONYMOUS, common_name, knows
from spark_streams.wire.amqp.sasl import SASL_HEADER, SaslServer


@dataclass(frozen=True)
class Answer:
    """The result of reading bytes from the peer.

    Args:
        send: bytes to send to the peer.
        refused: why the connection must be closed after ``send``, or None.
        leftover: once the layer is over, the bytes that belong to the engine; None before.
        failed: whether credentials were not accepted.
    """

    send: bytes = b""
    refused: str | None = None
    leftover: bytes | None = None
    failed: bool = False


@dataclass(eq=False)
class Handshake:
    """The server's side of the SASL layer.

    Args:
        config: the users.
        peer_host: the peer's address, None when it is not known.
        certificate: the peer's verified TLS certificate, in the form of ``ssl.SSLSocket.getpeercert``, or None.
        anonymous: the mechanisms to offer to peers without credentials.
        skippable: whether peers may begin without SASL.
    """

    config: LinkConfig
    peer_host: str | None
    certificate: Mapping[str, Any] | None
    anonymous: Sequence[str] = ()
    skippable: bool = False

    def __post_init__(self) -> None:
        self._kept_out = ""
        identity = common_name(self.certificate)
        if identity is not None and not self.config.admits(identity, self.peer_host):
            identity = None
        known = [*(["EXTERNAL"] if identity is not None else []), *(["PLAIN"] if self.config.users else [])]
        self._sasl = SaslServer([*known, *self.anonymous], self._check_plain, identity)

    @property
    def user(self) -> str:
        """The peer's user, once the layer is over; ``anonymous`` without credentials."""
        return self._sasl.identity or ANONYMOUS

    @property
    def proven(self) -> bool:
        """Whether the peer has proved who it is, once the layer is over."""
        return self._sasl.mechanism is not None and self._sasl.mechanism not in self.anonymous

    def receive(self, received: bytes) -> Answer:
        """Take bytes from the peer; return the answer to them."""
        try:
            send = self._sasl.receive(received)
        except RemoteProtocolError as fault:
            return Answer(SASL_HEADER, str(fault))
        if self._sasl.failed:
            return Answer(send, self._kept_out or "none that this door accepts", failed=True)
        if not self._sasl.done:
            return Answer(send)
        if self._sasl.skipped and not self.skippable:
            return Answer(SASL_HEADER, "it began without SASL, which is not configured")
        return Answer(send, leftover=self._sasl.leftover)

    def _check_plain(self, user: str, password: str) -> bool:
        if not knows(self.config.users, user, password.encode()):
            return False
        if not self.config.admits(user, self.peer_host):
            self._kept_out = f"user '{user}' is one of loopback_users, who may come from this machine alone"
            return False
        return True
