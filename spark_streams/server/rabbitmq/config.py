"""Settings of the RabbitMQ streams door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_streams.server.door_config import DoorConfig
from spark_streams.wire.rabbitmq.frames import DEFAULT_FRAME_MAX_BYTES, INITIAL_FRAME_MAX_BYTES


@dataclass(frozen=True)
class RabbitConfig(DoorConfig):
    """Settings of the RabbitMQ streams door: those of ``DoorConfig``, and these.

    Args:
        users: user name to password, for SASL PLAIN.
        permissions: user name to its permissions, ``*`` for users that are not listed; without it they may do
            everything.
        tls_client_ca: PEM file of the authorities whose client certificates are accepted; a peer that shows one may use
            SASL EXTERNAL, and its identity is the certificate's common name.
        advertised_host: the host in metadata that clients connect to; None: the address that they connected to.
        advertised_port: the port in metadata that clients connect to; None: the door's port.
        frame_max_bytes: proposed in Tune; 0 for no limit.
        heartbeat_s: proposed in Tune; 0 for none.
        handshake_timeout_ms: a connection that has not been opened after this long, TLS included, is dropped.
        write_timeout_ms: a client that has bytes to read and reads none for this long is dropped.
        max_connections: the most connections that are served at a time; a further one is opened and closed with an
            error.
        max_handshakes: the most connections at a time that are not opened yet; a further one replaces the oldest.
        max_super_stream_partitions: the most partitions of one super stream.
        max_publishers: references of one stream whose last publishing id is remembered (brokers: 255); when there are
            more, the user with the most references loses the one that wrote longest ago.
        max_stored_offsets: the most names under which one user may store offsets, on all streams together.
        max_filter_values: the most filter values of one subscription.
        max_sub_batch_bytes: the most bytes that a sub-entry batch may inflate to (brokers: 64 MiB); a larger one is
            refused.
        max_unconfirmed: the most entries of one connection that may wait to be stored; with more, or 16 MiB of them,
            the door stops reading from its socket.
        max_outgoing_bytes: bytes that may wait for a client that does not read; with more the door delivers nothing.
        consumer_update_timeout_ms: how long a consumer may take to answer ConsumerUpdate.
        half_credit: deliver only while more than half of the first credit is left, as brokers do (S-73).
        committed_offset: report ``committed_offset`` in stream stats (RabbitMQ from 4.3).
        version: the broker version that the door reports; clients derive from it what a broker can do.
        without: keys of commands that the door does not know, to act as an older broker.
        filtering: accept Publish 2 (RabbitMQ from 3.13).
    """

    protocol: ClassVar = "rabbitmq-stream"
    positive: ClassVar = (
        "max_publishers", "max_stored_offsets", "max_filter_values", "max_sub_batch_bytes", "max_unconfirmed",
        "max_outgoing_bytes",
    )  # fmt: skip

    port: int = 5552
    write_timeout_ms: int = 120_000
    advertised_host: str | None = None
    advertised_port: int | None = None
    frame_max_bytes: int = DEFAULT_FRAME_MAX_BYTES
    heartbeat_s: int = 60
    max_super_stream_partitions: int = 1_000
    max_publishers: int = 255
    max_stored_offsets: int = 10_000
    max_filter_values: int = 1_000
    max_sub_batch_bytes: int = 8 << 20
    max_unconfirmed: int = 50_000
    max_outgoing_bytes: int = 8 << 20
    consumer_update_timeout_ms: int = 60_000
    half_credit: bool = False
    committed_offset: bool = True
    version: str = "4.3.0"
    without: frozenset[int] = frozenset()
    filtering: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.frame_max_bytes < INITIAL_FRAME_MAX_BYTES:
            raise ValueError(f"frame_max_bytes is {self.frame_max_bytes}, expected 0 or {INITIAL_FRAME_MAX_BYTES} up")
