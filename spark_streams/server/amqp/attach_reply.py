"""Answers an attach: the termini, settlement modes and link properties that are in force.

Spec: AMQP 1.0 part 3 §3.5.3, §3.5.4; Event Stream Extensions §4.6.1 to §4.6.3 (ES-105, ES-209).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_streams.server.amqp.consumer_groups import Claim
from spark_streams.server.amqp.link_filters import LinkFilters
from spark_streams.wire.amqp.engine.links import SETTLED, UNSETTLED, Attach, Link
from spark_streams.wire.amqp.engine.termini import DISTRIBUTION, DURABLE, EXPIRY, FILTER, TIMEOUT, Terminus
from spark_streams.wire.amqp.event_streams import CONSUMER_GROUP, EPOCH, PARTITION
from spark_streams.wire.amqp.values import Symbol


def to_producer(link: Link, bound: str | None) -> Attach:
    """Return the answer to the attach of a link on which the peer sends events, or requests."""
    target = link.target and link.target.but({DURABLE: None})
    return Attach(link.source, target, link.settles, properties=_properties(bound, None))


def to_consumer(
    link: Link, source: Terminus, filters: LinkFilters, bound: str | None, claim: Claim | None, *, durable: bool
) -> Attach:
    """Return the answer to the attach of a link on which the door sends events of a source."""
    source = source.but({FILTER: dict(filters.echo) or None, DISTRIBUTION: Symbol("copy")})
    if not durable:
        source = source.but({DURABLE: None, EXPIRY: Symbol("link-detach"), TIMEOUT: None})
    return to_receiver(link, source, properties=_properties(bound, claim))


def to_receiver(
    link: Link,
    source: Terminus | None,
    *,
    offered: Sequence[str] = (),
    properties: Mapping[str, Any] | None = None,
) -> Attach:
    """Return the answer to the attach of any link on which the door sends: settled where the receiver asks for it."""
    settles = SETTLED if link.settles == SETTLED else UNSETTLED
    return Attach(source, link.target, settles, link.receiver_settles, offered, properties)


def to_reader(link: Link) -> Attach:
    """Return the answer to the attach of a link on which the door sends what is no event."""
    return to_receiver(link, link.source and link.source.but({FILTER: None, DURABLE: None}))


def _properties(bound: str | None, claim: Claim | None) -> dict[str, Any]:
    properties: dict[str, Any] = {} if bound is None else {PARTITION: Symbol(bound)}
    if claim is not None:
        properties |= {CONSUMER_GROUP: claim.group.name, EPOCH: claim.epoch}
    return properties
