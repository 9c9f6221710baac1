"""Turns the answers and conditions of an AMQP peer into our errors.

Every message names ``host:port`` and what to do. A peer's words are redacted (``redaction``) where they become part of
a message of ours, or where the error is created, so that no message holds a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_streams.client.tcp import final, lost
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed, ConnectionLost, NotFound, OwnershipLost, Refused, SparkStreamsError
from spark_streams.redaction import safe_text
from spark_streams.wire.amqp.dialects.dialect import Conditions
from spark_streams.wire.amqp.engine.endpoints import Condition
from spark_streams.wire.amqp.event_streams import EPOCH

_EPOCH = re.compile(r"epoch\D{0,12}(\d+)", re.IGNORECASE)
_PASSES = re.compile("idle|credential expired")


@dataclass
class LinkRedirected(SparkStreamsError):
    """The peer names another container for a link (``amqp:link:redirect``); the client follows, users never see it.

    Spec: AMQP 1.0 part 2 §2.8.18.
    """

    network_host: str
    port: int
    hostname: str | None
    address: str | None


class PositionUnknown(Refused):
    """The log does not have the position where a link was to begin; a reader reports the loss, and hides this error."""


def no_virtual_host(endpoint: Endpoint) -> ConnectFailed:
    """Return the error for a peer that closed the connection instead of opening a virtual host.

    RabbitMQ does that to users without a permission for the virtual host. For the default virtual host the client tries
    again: it opens that one on every peer, and a broker that starts or stops closes connections as well.
    """
    where, vhost = endpoint.address, safe_text(endpoint.vhost)
    if endpoint.vhost == "/":
        of_user = "" if endpoint.username is None else f" of user '{safe_text(endpoint.username)}'"
        return ConnectFailed(
            f"{where}: the peer closed the connection, which had signed in, when it was to be opened: RabbitMQ does "
            f"so without a permission{of_user} for virtual host '/': check it, and the peer's own log"
        )
    return final(
        ConnectFailed(
            f"{where}: the peer closed the connection when virtual host '{vhost}' was asked for: is there such a "
            "virtual host, may this user use it, and is the peer a RabbitMQ?"
        )
    )


def connection_fault(condition: Condition | None, endpoint: Endpoint, conditions: Conditions) -> SparkStreamsError:
    """Return the error for a connection that the peer closed, by its condition or None.

    A connection that was idle for too long counts as lost: the caller may have been busy for longer than the peer's
    idle time-out, and a new connection helps. AMQP has no condition of its own for that; proton and libraries built on
    it send ``amqp:resource-limit-exceeded`` with "local-idle-timeout expired". A connection whose OAuth 2 token has
    expired counts as lost too, as a new one signs in with the present token: RabbitMQ sends
    ``amqp:unauthorized-access`` with "credential expired".
    """
    if condition is not None and _PASSES.search(condition.description):
        return lost(endpoint, f"{condition.name}: {condition.description}")
    return peer_fault(condition, f"connection to {endpoint.address}", conditions)


def peer_fault(condition: Condition | None, context: str, conditions: Conditions) -> SparkStreamsError:
    """Return the error that a peer's condition means.

    Args:
        condition: the peer's condition; None where the peer closed gracefully, and trying again may help
            (ES-107, ES-108).
        context: what we were doing, such as ``attach to 'orders' at localhost:5672``.
        conditions: what conditions mean in the peer's dialect.
    """
    if condition is None:
        return ConnectionLost(f"{context}: the peer closed it without an error")
    name, description = condition.name, safe_text(condition.description)
    for words, advice in conditions.advice:
        if words in description:
            said = description.partition("\\n")[0]  # without the broker's stack
            description = f"{said.strip()}; {advice}"
    info = condition.info or {}
    if name == "amqp:link:redirect":
        redirect = _redirect(info)
        if redirect is not None:
            return redirect
    if name in conditions.not_found:
        return NotFound(name, description, context)
    if name in conditions.stolen:
        return OwnershipLost(name, description, context, _new_owner_epoch(info, description))
    kind = PositionUnknown if name in conditions.position_lost else Refused
    refused = kind(name, description, context)
    refused.retriable = refused.retriable or name in conditions.passes
    return refused


def _redirect(info: Mapping[Any, Any]) -> LinkRedirected | None:
    host, port = info.get("network-host"), info.get("port")
    hostname, address = info.get("hostname"), info.get("address")
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65_536:
        return None
    if safe_text(host) != host:  # messages show the host
        return None
    return LinkRedirected(str(host), int(port), str(hostname) if hostname else None, str(address) if address else None)


def _new_owner_epoch(info: Mapping[Any, Any], description: str | None) -> int | None:
    epoch = info.get("x-opt-epoch", info.get(EPOCH))
    if isinstance(epoch, int):
        return int(epoch)
    found = _EPOCH.search(description or "")
    return int(found.group(1)) if found else None
