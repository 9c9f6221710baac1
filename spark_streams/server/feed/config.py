"""Settings of the FeedAPI door."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_streams.server.exposure import DEFAULT_USER, Unguarded
from spark_streams.server.permissions import Permissions
from spark_streams.server.users import LOOPBACK, LOOPBACK_USERS, has_default_user, has_own_users

__all__ = ["BearerToken", "FeedConfig"]

ACTIONS: Final = ("configure", "write", "read")


@dataclass(frozen=True)
class BearerToken:
    """A token that clients show, and what it allows, by regular expressions that have to match whole stream names.

    Args:
        token: the secret; printable ASCII without spaces.
        configure: create and delete streams, split partitions.
        write: publish.
        read: discovery and fetch.
    """

    token: str = field(repr=False)
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[!-~]+", self.token):
            raise ValueError("a token is not printable ASCII without spaces (it is not shown here)")
        for action in ACTIONS:
            try:
                re.compile(getattr(self, action))
            except re.error as fault:
                raise ValueError(f"{action} is {getattr(self, action)!r}, no regular expression: {fault}") from fault

    def allows(self, action: str, stream: str) -> bool:
        """Say whether ``action`` (``configure``, ``write`` or ``read``) is allowed."""
        pattern: str = getattr(self, action)
        return re.fullmatch(pattern, stream) is not None


@dataclass(frozen=True)
class FeedConfig:
    """How the FeedAPI door listens, whom it lets in, and what it limits.

    Args:
        host: address to bind to.
        port: TCP port; 0 takes any free one.
        users: user name to password, for basic authentication (RFC 7617).
        permissions: user name to what it may do, ``*`` for all who are not here; without that they may do everything.
            Where nobody is asked who it is, all are the user ``anonymous``.
        loopback_users: users that are let in from loopback addresses only.
        loopback: addresses and networks that count as such.
        tokens: who is let in besides; a plain text is a token that may do everything. With neither users nor tokens
            nobody is asked who it is.
        insecure: listen beyond loopback even if that lets in strangers, and let in ``loopback_users`` from everywhere.
        tls_cert: PEM file with the server's certificate chain; TLS is spoken when it is set.
        tls_key: PEM file with its private key.
        tls_client_ca: PEM file of the authorities whose client certificates are taken; a client that shows another one
            is turned away. Who it is it says by a user or a token all the same.
        tls_client_required: turn away a peer that shows no client certificate, before it may say anything.
        dialect: which version 2 is served: ``v2a`` with fetches on the feed's own path, ``v2b`` with ``/events`` and
            a token in the discovery. Version 1 is served beside either.
        go_numbers: write references between partitions as numbers, which Go's library needs (F-3).
        exactly_once: promise consumers that no event is on a feed twice. The door itself never repeats one; whoever
            sets this promises that publishers do not, either.
        page_size: events of a page when the client does not say.
        max_page_size: events of a page at most.
        max_page_bytes: a page ends when it has as many bytes, not counting compression.
        checkpoint_events: events between two checkpoints of a page, at most.
        checkpoint_interval_ms: between checkpoints of a ``stream`` response that has nothing new.
        max_stream_ms: how long a ``stream`` response lasts at most; 0: as long as the client wants.
        gzip_min_bytes: pages of as many bytes are compressed for clients that take it; 0: none.
        cache_bytes: rendered events that are kept in memory for further readers.
        scan_bytes: stored bytes that one filtered fetch looks at, at most.
        handshake_timeout_ms: a request whose head is not there after this long, TLS included, is answered 408.
        body_timeout_ms: likewise for its body, from the head on.
        idle_timeout_ms: a connection without a request for this long is closed.
        write_timeout_ms: a client that takes nothing of what it is sent for this long is dropped.
        max_connections: that are served at a time; the first request of a further one is answered 503.
        max_handshakes: connections that may not have made a request yet at a time; a further one takes the place of
            the oldest.
        max_head_bytes: of a request's head; a longer one is answered 431.
        max_body_bytes: of a request to publish, unpacked too; what is published once is read back in one piece too.
        max_body_events: events that a request may publish; more are answered 413.
        bodies_bytes: of all requests to publish that are being received or wait to be stored; the largest that is not
            all there yet is answered 503. Bodies of up to 32 KiB do not count.
        max_partitions: of a feed that is created through the door.
        max_publishers: publishers whose last ``Idempotency-Sequence`` is remembered, a partition; when there are more,
            the user (or token) that has most loses the one that wrote longest ago.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    permissions: Mapping[str, Permissions] = field(default_factory=dict)
    loopback_users: frozenset[str] = LOOPBACK_USERS
    loopback: frozenset[str] = LOOPBACK
    tokens: tuple[BearerToken | str, ...] = field(default=(), repr=False)
    insecure: bool = False
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    tls_client_ca: str | os.PathLike[str] | None = None
    tls_client_required: bool = False
    dialect: Literal["v2a", "v2b"] = "v2a"
    go_numbers: bool = False
    exactly_once: bool = False
    page_size: int = 1_000
    max_page_size: int = 100_000
    max_page_bytes: int = 16 << 20
    checkpoint_events: int = 1_000
    checkpoint_interval_ms: int = 5_000
    max_stream_ms: int = 0
    gzip_min_bytes: int = 64 << 10
    cache_bytes: int = 64 << 20
    scan_bytes: int = 16 << 20
    handshake_timeout_ms: int = 10_000
    body_timeout_ms: int = 60_000
    idle_timeout_ms: int = 75_000
    write_timeout_ms: int = 60_000
    max_connections: int = 1_024
    max_handshakes: int = 512
    max_head_bytes: int = 65_536
    max_body_bytes: int = 16 << 20
    max_body_events: int = 1_000_000
    bodies_bytes: int = 64 << 20
    max_partitions: int = 1_000
    max_publishers: int = 10_000

    def __post_init__(self) -> None:
        if self.dialect not in ("v2a", "v2b"):
            raise ValueError(f"dialect is {self.dialect!r}, expected 'v2a' or 'v2b'")
        for name in (
            "page_size",
            "max_page_size",
            "max_page_bytes",
            "checkpoint_events",
            "checkpoint_interval_ms",
            "scan_bytes",
            "handshake_timeout_ms",
            "body_timeout_ms",
            "idle_timeout_ms",
            "write_timeout_ms",
            "max_connections",
            "max_handshakes",
            "max_head_bytes",
            "max_body_bytes",
            "max_body_events",
            "bodies_bytes",
            "max_partitions",
            "max_publishers",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("max_stream_ms", "gzip_min_bytes", "cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 0")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are needed together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.tls_client_required and self.tls_client_ca is None:
            raise ValueError("tls_client_required needs tls_client_ca")
        for token in self.tokens:
            if isinstance(token, str):
                BearerToken(token)
        for network in self.loopback:
            ipaddress.ip_network(network)

    @property
    def bearers(self) -> tuple[BearerToken, ...]:
        """The tokens with what they allow."""
        return tuple(BearerToken(each) if isinstance(each, str) else each for each in self.tokens)

    @property
    def unguarded(self) -> Unguarded | None:
        """Why strangers from another machine would be let in; None when they would not."""
        if has_default_user(self) and not self.tls_client_required:
            return DEFAULT_USER
        if self.tokens or self.tls_client_required or has_own_users(self):
            return None
        return Unguarded("it asks nobody from there for a token or a password", "tokens or users")
