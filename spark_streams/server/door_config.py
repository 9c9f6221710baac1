"""The settings that all doors have: where a door listens, whom it lets in, TLS, and how many connections it serves."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from spark_streams.log.config import expect_at_least
from spark_streams.server.users import LOOPBACK, Permissions, host_name, is_loopback

DEFAULT_USERS: Final[Mapping[str, str]] = {"guest": "guest"}
"""The users of doors that authenticate users, unless configured otherwise; the password is no secret."""
LOOPBACK_USERS: Final = frozenset({"guest"})


@dataclass(frozen=True)
class OpenAccess:
    """The reason why a door would let in strangers.

    Args:
        problem: the reason, as text.
        setting: which of the door's settings to change: ``users`` or ``tokens or users``, to be set, or
            ``allow_anonymous``, to be unset.
    """

    problem: str
    setting: str


NO_USERS: Final = OpenAccess("nobody but guest is named who may sign in", "users")
DEFAULT_USER: Final = OpenAccess("guest may come from there with password guest, which everybody knows", "users")


@dataclass(frozen=True)
class DoorConfig:
    """How a door listens, whom it lets in, and what it limits; each door's own settings follow these.

    Args:
        host: address to bind to.
        port: TCP port; 0 takes any free one.
        users: user name to password.
        permissions: user name to its permissions, ``*`` for users that are not listed; without it they may do
            everything.
        loopback_users: users that are let in from loopback addresses only, by password or certificate. ``guest`` is
            one, as at RabbitMQ.
        loopback: addresses and networks that count as loopback.
        insecure: listen beyond loopback even if that lets in strangers, and let in ``loopback_users`` from everywhere.
        tls_cert: PEM file with the server's certificate chain; the door speaks TLS when it is set.
        tls_key: PEM file with its private key.
        tls_client_ca: PEM file of the authorities whose client certificates are accepted.
        tls_client_required: refuse a peer that shows no client certificate, before it may send anything.
        max_connections: the most connections that are served at a time.
        max_user_connections: the most of them that one user may have, so that others find room; None: seven eighths.
        max_handshakes: the most connections at a time that are not opened yet; a further one replaces the oldest. TLS
            handshakes are under way for half as many, and a quarter from one address; the others wait.
        handshake_timeout_ms: how long a connection may take until it is opened, TLS included.
        write_timeout_ms: a peer that has bytes to read and reads none for this long is dropped.
        authentication_delay_ms: how much later wrong credentials are answered, against guessing; the delay doubles with
            each further attempt from the same address, up to 4 s.

    Attributes:
        protocol: the name of the protocol that the door speaks, in ``spark_streams.protocols``.
        positive: the names of the settings that are at least 1.

    Raises:
        ValueError: a setting has an invalid value; the message names it and what was expected.
    """

    protocol: ClassVar[str]
    positive: ClassVar[tuple[str, ...]] = (
        "max_connections",
        "max_user_connections",
        "max_handshakes",
        "handshake_timeout_ms",
        "write_timeout_ms",
    )

    host: str = "127.0.0.1"
    port: int = 0
    users: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_USERS), repr=False)
    permissions: Mapping[str, Permissions] = field(default_factory=dict)
    loopback_users: frozenset[str] = LOOPBACK_USERS
    loopback: frozenset[str] = LOOPBACK
    insecure: bool = False
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    tls_client_ca: str | os.PathLike[str] | None = None
    tls_client_required: bool = False
    max_connections: int = 1_024
    max_user_connections: int | None = None
    max_handshakes: int = 512
    handshake_timeout_ms: int = 10_000
    write_timeout_ms: int = 60_000
    authentication_delay_ms: int = 500

    def __post_init__(self) -> None:
        expect_at_least(1, self, *DoorConfig.positive, *self.positive)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are needed together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.tls_client_required and self.tls_client_ca is None:
            raise ValueError("tls_client_required needs tls_client_ca")
        for network in self.loopback:
            ipaddress.ip_network(network)

    @property
    def user_connections(self) -> int:
        """The most connections that one user may have."""
        return self.max_user_connections or max(1, self.max_connections * 7 // 8)

    def is_own(self, host: str, also: Iterable[str] = ()) -> bool:
        """Return whether a host means this machine: a loopback name or address, ``self.host``, or one of ``also``."""
        named = {"localhost", *map(host_name, (self.host, *also))}
        return host_name(host) in named or is_loopback(host, self.loopback)

    def admits(self, user: str, peer_host: str | None) -> bool:
        """Return whether a user is let in from an address; None is an unknown address."""
        return self.insecure or user not in self.loopback_users or is_loopback(peer_host, self.loopback)

    @property
    def has_own_users(self) -> bool:
        """Whether a user may sign in from another machine, with a password that is not the well-known one."""
        return self.users != DEFAULT_USERS and any(user not in self.loopback_users for user in self.users)

    @property
    def open_access(self) -> OpenAccess | None:
        """Why strangers from another machine would be let in; None when they would not."""
        default = any(
            self.users.get(user) == password and user not in self.loopback_users
            for user, password in DEFAULT_USERS.items()
        )
        if default and not self.tls_client_required:
            return DEFAULT_USER
        return self._without_credentials()

    def _without_credentials(self) -> OpenAccess | None:
        """Return why peers need no credentials; None when all peers need them."""
        return None if self.tls_client_ca is not None or self.has_own_users else NO_USERS
