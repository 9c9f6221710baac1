"""Settings of the doors that speak HTTP: who is let in, by a user or a token, and the limits of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from spark_streams.server.door_config import DoorConfig, OpenAccess
from spark_streams.server.users import StreamPatterns, is_host

LITTLE_BYTES: Final = 32 << 10
"""A body of at most so many bytes does not count for ``bodies_bytes``."""


@dataclass(frozen=True)
class BearerToken(StreamPatterns):
    """A token that clients show, and its permissions: regular expressions that have to match whole stream names.

    Args:
        token: the secret; printable ASCII without spaces.
        configure: streams that it may create and delete, and whose partitions it may split.
        write: streams that it may publish to.
        read: streams that it may discover and fetch.
    """

    token: str = field(repr=False)
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[!-~]+", self.token):
            raise ValueError("a token is not printable ASCII without spaces (it is not shown here)")
        super().__post_init__()

    @property
    def limited(self) -> bool:
        """Whether there is a stream to which it may not do everything."""
        return (self.configure, self.write, self.read) != (".*",) * 3


@dataclass(frozen=True)
class HttpConfig(DoorConfig):
    """Settings of a door that speaks HTTP: those of ``DoorConfig``, and these.

    Args:
        users: user name to password, for basic authentication (RFC 7617).
        permissions: user name to its permissions, ``*`` for users that are not listed; without it they may do
            everything. When the door authenticates nobody, all clients are the user ``anonymous``.
        tokens: bearer tokens that are let in besides users; a plain text is a token that may do everything. With
            neither users nor tokens the door authenticates nobody.
        allowed_hosts: names and addresses, beside its own and ``localhost``, under which clients may reach a door that
            asks nobody for credentials; a page of another site could otherwise reach it under the site's name.
        tls_client_ca: PEM file of the authorities whose client certificates are accepted; a client that shows another
            one is refused. The client is still identified by a user or a token.
        handshake_timeout_ms: a request whose head has not come after this long, TLS included, is answered 408.
        body_timeout_ms: a request whose body has not come this long after its head is answered 408.
        idle_timeout_ms: a connection without a request for this long is closed.
        write_timeout_ms: a client that has bytes to read and reads none for this long is dropped.
        max_connections: the most connections that are served at a time; the first request of a further one is answered
            503.
        max_handshakes: the most connections at a time that have made no request yet; a further one replaces the oldest.
        max_head_bytes: the most bytes of a request's head; a longer one is answered 431, as is one of very many lines.
        max_body_bytes: the most bytes of a request to publish, packed and unpacked; what is published once is read back
            in one piece too.
        bodies_bytes: the most bytes of all requests to publish that are being received or wait to be stored, and of
            bodies that are sent as files; one user may have 7/8 of it. Above it the largest body that has not come
            whole is answered 503. Bodies of up to 32 KiB do not count.
    """

    positive: ClassVar[tuple[str, ...]] = ("body_timeout_ms", "idle_timeout_ms", "max_head_bytes", "max_body_bytes")

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: tuple[BearerToken | str, ...] = field(default=(), repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    body_timeout_ms: int = 60_000
    idle_timeout_ms: int = 75_000
    max_head_bytes: int = 65_536
    max_body_bytes: int = 16 << 20
    bodies_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.bearers  # this checks each token
        for host in self.allowed_hosts:
            if not is_host(host):
                raise ValueError(f"allowed_hosts has {host!r}: expected a host without scheme, port and brackets")

    @property
    def asks_nobody(self) -> bool:
        """Whether it lets in everybody who reaches it."""
        return not (self.signs_in or self.tls_client_required)

    @property
    def signs_in(self) -> bool:
        """Whether anybody can sign in; otherwise a client certificate, or nothing at all, gives access."""
        return bool(self.users or self.tokens)

    @property
    def answer_headers(self) -> dict[str, str]:
        """The headers of every answer: no page of another site can use it, and no browser takes it for another type."""
        return {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}

    @property
    def bearers(self) -> tuple[BearerToken, ...]:
        """The tokens with their permissions."""
        return tuple(BearerToken(each) if isinstance(each, str) else each for each in self.tokens)

    def _without_credentials(self) -> OpenAccess | None:
        if self.tokens or self.tls_client_required or self.has_own_users:
            return None
        return OpenAccess("it asks nobody from there for a token or a password", "tokens or users")
