"""Settings of doors that speak AMQP 1.0, and of the AMQP door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from spark_streams.log.config import check_choices
from spark_streams.server.door_config import DoorConfig, OpenAccess

MIN_FRAME_BYTES: Final = 512
"""Every AMQP peer must accept frames of this size (AMQP 1.0 part 2 §2.4.1)."""


@dataclass(frozen=True)
class Redirect:
    """Where another container serves a partition.

    Args:
        hostname: the container's name, for ``open.hostname`` and TLS.
        network_host: DNS name or address to connect to.
        port: TCP port.
        address: the node's address there.

    Spec: AMQP 1.0 part 2 §2.8.18 (amqp:link:redirect).
    """

    hostname: str
    network_host: str
    port: int
    address: str


@dataclass(frozen=True)
class LinkConfig(DoorConfig):
    """Settings of doors with AMQP links: those of ``DoorConfig``, and these.

    Args:
        max_frame_bytes: the largest frame that the door accepts, announced in open.
        max_message_bytes: the largest message that the door accepts from producers, announced in attach.
        max_links: the most links that one connection may have attached at a time.
        max_sessions: the most sessions that one connection may have at a time.
        producer_credit: messages that a producer may have under way on one link.
        session_bytes: bytes that producers may have under way on one session; and the bytes on one connection, in
            unfinished messages and in messages that are being stored, above which the door takes no more.
        idle_timeout_ms: a connection without a frame for this long is closed; 0 switches that off.
    """

    positive: ClassVar[tuple[str, ...]] = ("max_message_bytes", "max_links", "max_sessions")

    max_frame_bytes: int = 32_768
    max_message_bytes: int = 16 << 20
    max_links: int = 1_024
    max_sessions: int = 256
    producer_credit: int = 2_000
    session_bytes: int = 64 << 20
    idle_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_frame_bytes < MIN_FRAME_BYTES:
            raise ValueError(f"max_frame_bytes is {self.max_frame_bytes}, expected at least {MIN_FRAME_BYTES}")
        if self.producer_credit < 1 or self.session_bytes < 4 * self.max_frame_bytes:
            raise ValueError("producer_credit must be at least 1, and session_bytes at least four frames")


@dataclass(frozen=True)
class AmqpConfig(LinkConfig):
    """Settings of the AMQP door: those of ``LinkConfig``, and these.

    Args:
        users: user name to password, for SASL PLAIN; without users PLAIN is not offered.
        permissions: user name to its permissions, ``*`` for users that are not listed; without it they may do
            everything. Peers without credentials are the user ``anonymous``.
        allow_anonymous: offer SASL ANONYMOUS, and let in peers that begin without SASL.
        tls_client_ca: PEM file of the authorities whose client certificates are accepted; a peer that shows one may use
            SASL EXTERNAL, and its identity is the certificate's common name.
        max_durable_links: the most durable links that one user may have, attached or not.
        max_groups: the most consumer groups that one user may have, of the groups that are created as they are named.
        max_connections: the most connections that are served at a time; a further one is opened and closed with an
            error.
        max_handshakes: the most connections at a time that are not opened yet; a further one replaces the oldest.
        max_unsettled: the most unsettled deliveries of one link; with as many the door sends no more.
        handshake_timeout_ms: a connection that has not been opened after this long, TLS included, is dropped.
        write_timeout_ms: a peer that has bytes to read and reads none for this long is dropped.
        info_interval_ms: the time between messages of ``$info`` when one grant of credit allows several (ES-402).
        groups: ``dynamic`` creates consumer groups as they are named; each belongs to the user who names it. A set of
            names allows only these, to all users who may read the stream (ES-201).
        unassigned: what the door does with a group's receiver when no partition is free (ES-206): ``reject`` or
            ``wait``.
        unassigned_wait_ms: how long an attach may wait.
        reset_epoch: whether an epoch counter goes back to 0 when no link remains (ES-212); otherwise it is kept,
            restarts included.
        bind_unrequested: whether links that request no partition are bound to one (ES-104).
        redirects: (stream, partition) to the container that serves it (ES-101).
    """

    protocol: ClassVar = "amqp"
    positive: ClassVar = (*LinkConfig.positive, "max_durable_links", "max_groups", "max_unsettled")

    port: int = 5672
    allow_anonymous: bool = False
    max_durable_links: int = 1_000
    max_groups: int = 1_000
    max_unsettled: int = 10_000
    info_interval_ms: int = 100
    groups: Literal["dynamic"] | frozenset[str] = "dynamic"
    unassigned: Literal["reject", "wait"] = "reject"
    unassigned_wait_ms: int = 30_000
    reset_epoch: bool = False
    bind_unrequested: bool = False
    redirects: Mapping[tuple[str, str], Redirect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)

    @property
    def open_access(self) -> OpenAccess | None:
        """Why strangers from another machine would be let in; None when they would not."""
        if self.allow_anonymous:
            return OpenAccess("allow_anonymous lets in everybody", "allow_anonymous")
        return super().open_access
