"""Settings of the Event Hubs door, and the connection string by which clients find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.door_config import DEFAULT_USERS


@dataclass(frozen=True)
class EventHubsConfig(LinkConfig):
    """Settings of the Event Hubs door: those of ``LinkConfig``, and these.

    Args:
        users: the shared access rules, name to key; they sign in with SASL PLAIN too, and have the log's permissions.
        permissions: rule to its permissions, ``*`` for rules that are not listed; without it they may do everything.
            ``configure`` has no effect at this door.
        tls_client_ca: PEM file of the authorities whose client certificates are accepted; a peer that shows one may use
            SASL EXTERNAL, and its rule is the certificate's common name.
        max_connections: the most connections that are served at a time, those that have signed in; a further one is
            closed with an error.
        max_handshakes: the most connections at a time that have not signed in yet; a further one replaces the oldest.
        handshake_timeout_ms: a connection that has not signed in after this long, TLS included, is dropped.
        max_tokens: the most tokens that one connection may have put.
        max_receivers: the most receivers without epoch of one partition in one consumer group; the service has five.
        groups: ``dynamic`` allows any consumer group; a set of names allows these and ``$Default``.
    """

    protocol: ClassVar = "event-hubs"
    positive: ClassVar[tuple[str, ...]] = (*LinkConfig.positive, "max_tokens", "max_receivers")

    port: int = 5673
    max_frame_bytes: int = 65_536
    max_message_bytes: int = 1 << 20
    idle_timeout_ms: int = 240_000
    max_tokens: int = 1_000
    max_receivers: int = 5
    groups: Literal["dynamic"] | frozenset[str] = "dynamic"


def connection_string(url: str, users: Mapping[str, str], *, tls: bool) -> str:
    """Return the connection string of a door, with a rule and its key, which is a secret, where there are users.

    ``UseDevelopmentEmulator`` has clients connect without TLS; with TLS they take port 5671, whatever the string says.

    Args:
        url: the door's url, or another connection string of it.
        users: the rules and their keys, of which the first is taken.
        tls: whether the door speaks TLS.
    """
    parts = [f"Endpoint=sb://{urlsplit(url.removeprefix('Endpoint=').partition(';')[0]).netloc}/"]
    for name, key in list(users.items())[:1]:
        parts += [f"SharedAccessKeyName={name}", f"SharedAccessKey={key}"]
    return ";".join(parts + ([] if tls else ["UseDevelopmentEmulator=true"]))


def shown_users(users: Mapping[str, str]) -> Mapping[str, str]:
    """Return the users whose keys may be shown: those of the default settings, whose password is no secret."""
    return {name: key for name, key in users.items() if DEFAULT_USERS.get(name) == key}
