"""Answers an attach: sets the termini, settlement modes and link properties that are in force.

Spec: AMQP 1.0 part 3 §3.5.3, §3.5.4; Event Stream Extensions §4.6.1 to §4.6.3 (ES-105, ES-209).
"""

from __future__ import annotations

from typing import Any

import proton

from spark_streams.server.amqp.consumer_groups import Claim
from spark_streams.server.amqp.link_filters import LinkFilters
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.event_streams import CONSUMER_GROUP, EPOCH, PARTITION


def open_producer(link: Any, bound: str | None, max_message_bytes: int) -> None:
    """Answer the attach of a link on which the peer sends events; ``OutgoingFrames`` opens it."""
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.target.durability = proton.Terminus.NONDURABLE
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = proton.Link.RCV_FIRST
    link.max_message_size = max_message_bytes
    _set_properties(link, bound, None)


def open_consumer(link: Any, filters: LinkFilters, bound: str | None, claim: Claim | None, *, durable: bool) -> None:
    """Answer the attach of a link on which the door sends events; ``OutgoingFrames`` opens it."""
    link.source.copy(link.remote_source)
    link.source.filter.clear()
    if filters.echo:
        link.source.filter.put_dict(dict(filters.echo))
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    if not durable:
        link.source.durability = proton.Terminus.NONDURABLE
        link.source.expiry_policy = proton.Terminus.EXPIRE_WITH_LINK
        link.source.timeout = 0
    _set_properties(link, bound, claim)
    settle_modes(link)


def open_info(connection: Any, link: Any, owner: Any) -> OutgoingDeliveries:
    """Answer the attach of a link of an information source; return what sends on it for its owner."""
    link.source.copy(link.remote_source)
    link.source.filter.clear()
    link.source.durability = proton.Terminus.NONDURABLE
    settle_modes(link)
    deliveries: OutgoingDeliveries = connection.incoming.attached_sender
    deliveries.owner = owner
    connection.outgoing.open_sender(deliveries, link)
    return deliveries


def settle_modes(link: Any) -> None:
    """Set how a link on which the door sends settles deliveries: settled where the receiver asks for it."""
    link.target.copy(link.remote_target)
    presettled = link.remote_snd_settle_mode == proton.Link.SND_SETTLED
    link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
    link.rcv_settle_mode = link.remote_rcv_settle_mode


def _set_properties(link: Any, bound: str | None, claim: Claim | None) -> None:
    properties: dict[Any, Any] = {}
    if bound is not None:
        properties[proton.symbol(PARTITION)] = proton.symbol(bound)
    if claim is not None:
        properties[proton.symbol(CONSUMER_GROUP)] = claim.group.name
        properties[proton.symbol(EPOCH)] = claim.epoch
    if properties:
        link.properties = properties
