"""Settings of the FeedAPI door."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from spark_streams.server.door_config import DoorConfig, Unguarded, expect_at_least
from spark_streams.server.users import StreamPatterns


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

    allows = StreamPatterns.allow


@dataclass(frozen=True)
class FeedConfig(DoorConfig):
    """Settings of the FeedAPI door: those of ``DoorConfig``, and these.

    Args:
        users: user name to password, for basic authentication (RFC 7617).
        permissions: user name to its permissions, ``*`` for users that are not listed; without it they may do
            everything. When the door authenticates nobody, all clients are the user ``anonymous``.
        tokens: bearer tokens that are let in besides users; a plain text is a token that may do everything. With
            neither users nor tokens the door authenticates nobody.
        tls_client_ca: PEM file of the authorities whose client certificates are accepted; a client that shows another
            one is refused. The client is still identified by a user or a token.
        dialect: which version 2 is served: ``v2a`` with fetches on the feed's own path, ``v2b`` with ``/events`` and
            a token in the discovery. Version 1 is served beside either.
        go_numbers: write references between partitions as numbers, which Go's library needs (F-3).
        exactly_once: promise consumers that no event is on a feed twice. The door itself never repeats an event; a user
            who sets this promises that publishers do not, either.
        page_size: events of a page when the client does not request a number.
        max_page_size: the most events of a page.
        max_page_bytes: a page ends when it has as many bytes, not counting compression.
        checkpoint_events: events between two checkpoints of a page, at most.
        checkpoint_interval_ms: the time between checkpoints of a ``stream`` response without new events.
        max_stream_ms: how long a ``stream`` response lasts at most; 0: as long as the client wants.
        gzip_min_bytes: pages of at least so many bytes are compressed for clients that accept gzip; 0: none.
        cache_bytes: rendered events that are kept in memory for further readers.
        scan_bytes: the most stored bytes that one filtered fetch searches.
        handshake_timeout_ms: a request whose head has not come after this long, TLS included, is answered 408.
        body_timeout_ms: a request whose body has not come this long after its head is answered 408.
        idle_timeout_ms: a connection without a request for this long is closed.
        write_timeout_ms: a client that has bytes to read and reads none for this long is dropped.
        max_connections: the most connections that are served at a time; the first request of a further one is answered
            503.
        max_handshakes: the most connections at a time that have made no request yet; a further one replaces the oldest.
        max_head_bytes: the most bytes of a request's head; a longer one is answered 431.
        max_body_bytes: the most bytes of a request to publish, unpacked too; what is published once is read back in one
            piece too.
        max_body_events: the most events that a request may publish; more are answered 413.
        bodies_bytes: the most bytes of all requests to publish that are being received or wait to be stored; above it
            the largest that has not come whole is answered 503. Bodies of up to 32 KiB do not count.
        max_partitions: the most partitions of a feed that is created through the door.
        max_publishers: publishers of a partition whose last ``Idempotency-Sequence`` is remembered; when there are
            more, the user (or token) with the most publishers loses the one that wrote longest ago.
    """

    protocol: ClassVar = "feedapi"
    positive: ClassVar = (
        "page_size", "max_page_size", "max_page_bytes", "checkpoint_events", "checkpoint_interval_ms", "scan_bytes",
        "body_timeout_ms", "idle_timeout_ms", "max_head_bytes", "max_body_bytes", "max_body_events", "bodies_bytes",
        "max_partitions", "max_publishers",
    )  # fmt: skip

    port: int = 8080
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: tuple[BearerToken | str, ...] = field(default=(), repr=False)
    dialect: Literal["v2a", "v2b"] = "v2a"
    go_numbers: bool = False
    exactly_once: bool = False
    page_size: int = 10_000
    max_page_size: int = 100_000
    max_page_bytes: int = 16 << 20
    checkpoint_events: int = 1_000
    checkpoint_interval_ms: int = 5_000
    max_stream_ms: int = 0
    gzip_min_bytes: int = 64 << 10
    cache_bytes: int = 64 << 20
    scan_bytes: int = 16 << 20
    body_timeout_ms: int = 60_000
    idle_timeout_ms: int = 75_000
    max_head_bytes: int = 65_536
    max_body_bytes: int = 16 << 20
    max_body_events: int = 1_000_000
    bodies_bytes: int = 64 << 20
    max_partitions: int = 1_000
    max_publishers: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_at_least(0, self, "max_stream_ms", "gzip_min_bytes", "cache_bytes")
        if self.dialect not in ("v2a", "v2b"):
            raise ValueError(f"dialect is {self.dialect!r}, expected 'v2a' or 'v2b'")
        for token in self.tokens:
            if isinstance(token, str):
                BearerToken(token)

    @property
    def bearers(self) -> tuple[BearerToken, ...]:
        """The tokens with their permissions."""
        return tuple(BearerToken(each) if isinstance(each, str) else each for each in self.tokens)

    def _without_credentials(self) -> Unguarded | None:
        if self.tokens or self.tls_client_required or self.has_own_users:
            return None
        return Unguarded("it asks nobody from there for a token or a password", "tokens or users")
