"""Reads and checks what a peer requests in an attach: the address, the link properties, and a receiver's terminus.

The answer has the termini, settlement modes and link properties that are in force.

Spec: AMQP 1.0 part 3 §3.5.3, §3.5.4; Event Stream Extensions §4.6.1 to §4.6.3, §6; A-2, A-5, A-26, A-28.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.connection_links import AttachedLink, LinkConnection, LinkResources
from spark_streams.server.amqp.consumer_groups import Claim, Groups
from spark_streams.server.amqp.durable_termini import Kept, Termini
from spark_streams.server.amqp.error_conditions import (
    DETACH_FORCED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    UNAUTHORIZED,
    LinkRefused,
)
from spark_streams.server.amqp.link_filters import LinkFilters
from spark_streams.server.amqp.placement import Placement
from spark_streams.server.users import permissions_of
from spark_streams.wire.amqp.engine.links import SETTLED, UNSETTLED, Attach, Link
from spark_streams.wire.amqp.engine.session import INVALID_FIELD
from spark_streams.wire.amqp.engine.termini import (
    ADDRESS,
    COORDINATOR,
    DISTRIBUTION,
    DURABLE,
    DYNAMIC,
    EXPIRY,
    FILTER,
    TIMEOUT,
    Terminus,
)
from spark_streams.wire.amqp.event_streams import CONSUMER_GROUP, EPOCH, PARTITION
from spark_streams.wire.amqp.values import Symbol, Timestamp
from spark_streams.wire.columnar.interleave import Ranges

INFO_SUFFIX: Final = "/$info"
_NO_OFFSET: Final = np.zeros(1, np.int64)
"""Stands for the offset of a message that is not sent again."""

_MAX_EPOCH: Final = 2**63 - 1
"""The answer gives the epoch as an AMQP long (A-2)."""


@dataclass(frozen=True)
class AttachRequest:
    """The link properties that the door knows.

    Args:
        partition: the identifier of the partition to bind the link to, or None.
        group: the name of the consumer group, or None.
        epoch: the epoch within the group, 0 to 2^63-1, or None.
    """

    partition: str | None
    group: str | None
    epoch: int | None


class ConsumerResources(LinkResources):
    """The node, as links on which the door sends events use it.

    Attributes:
        termini: positions of durable links.
        groups: consumer groups.
    """

    config: AmqpConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config
        self.placement = Placement(config.redirects, bind_unrequested=config.bind_unrequested)
        self.termini = Termini(self.log, self.loop, config.max_durable_links)
        self.groups = Groups(self.log, config.reset_epoch, config.max_groups)

    def close(self) -> None:
        """Finish work that has begun, and write durable state."""
        super().close()
        self.termini.close()


@dataclass(frozen=True)
class ConsumerAttach:
    """The attach of a receiver of events, decoded.

    Args:
        node: the node.
        connection: the receiver's connection.
        link: the engine's link.
        source: its source, as the receiver names it.
        stream: the log.
        filters: the link's filters.
        request: its link properties.
    """

    node: ConsumerResources
    connection: LinkConnection
    link: Link
    source: Terminus
    stream: Stream
    filters: LinkFilters
    request: AttachRequest

    @property
    def durable(self) -> bool:
        """Whether its terminus outlives the link."""
        return bool(self.source.field(DURABLE, int, 0)) and self.timeout_s != 0

    @property
    def terminus_key(self) -> str:
        """The key of its terminus, if it is durable."""
        return Termini.key(self.connection.user, self.connection.container, self.link.name)

    @property
    def timeout_s(self) -> int | None:
        """How long its terminus is kept without a link, if it is durable; None: forever."""
        never = self.source.field(EXPIRY, str, "") == "never"
        return None if never else int(self.source.field(TIMEOUT, int, 0))

    def resume(self) -> Kept | None:
        """Return the kept state of its terminus, if it is durable and has one."""
        if not self.durable:
            return None
        return self.node.termini.resume(self.terminus_key, self.stream.incarnation, self.filters.fingerprint)

    @property
    def none_free(self) -> LinkRefused:
        """The refusal when all partitions of its consumer group are taken (ES-206)."""
        return LinkRefused(
            DETACH_FORCED,
            f"all {len(self.stream.partitions)} partitions of stream '{self.stream.name}' are taken in consumer group "
            f"'{self.request.group}'",
        )


def read_attach_request(link: Link) -> AttachRequest:
    """Read the link properties of an attach; group and epoch count only for receivers (A-28).

    Raises:
        LinkRefused: a property has a wrong type or value, or there is an epoch without a group (A-26).
    """
    properties = link.properties
    partition = properties.get(PARTITION)
    if partition is not None and not isinstance(partition, str):
        raise LinkRefused(INVALID_FIELD, f"link property {PARTITION} is a {_kind(partition)}: expected a symbol")
    partition = None if partition is None else str(partition)
    if not link.sends:
        return AttachRequest(partition, None, None)
    group, epoch = properties.get(CONSUMER_GROUP), properties.get(EPOCH)
    if group is not None and (not isinstance(group, str) or not group):
        raise LinkRefused(INVALID_FIELD, f"link property {CONSUMER_GROUP} is no name: expected a string")
    if epoch is not None:
        if not isinstance(epoch, int) or isinstance(epoch, bool | Timestamp) or not 0 <= epoch <= _MAX_EPOCH:
            raise LinkRefused(
                INVALID_FIELD,
                f"link property {EPOCH} is {epoch!r:.40} ({_kind(epoch)}): expected an integer from 0 to 2^63-1",
            )
        if group is None:
            raise LinkRefused(INVALID_FIELD, f"link property {EPOCH} needs {CONSUMER_GROUP} beside it")
    return AttachRequest(partition, None if group is None else str(group), None if epoch is None else int(epoch))


def address_of(terminus: Terminus | None) -> str:
    """Return the address of a terminus.

    Raises:
        LinkRefused: it has none, or is the coordinator of transactions.
    """
    if terminus is not None and terminus.code == COORDINATOR:
        raise LinkRefused(NOT_IMPLEMENTED, "transactions are not supported")
    if terminus is None or terminus.field(DYNAMIC, bool, False):
        raise LinkRefused(NOT_IMPLEMENTED, "a node without an address cannot be made here: name a stream")
    address = str(terminus.field(ADDRESS, str, ""))
    if not address:
        raise LinkRefused(INVALID_FIELD, "the terminus has no address: name a stream")
    return address


def stream_names(address: str) -> list[str]:
    """Return the names that an address may mean: as it is, without one leading slash, or percent-encoded."""
    plain = address[1:] if address.startswith("/") else address
    return list(dict.fromkeys((address, plain, unquote(plain))))


def named_stream(log: ReferenceLog, address: str) -> Stream | None:
    """Return the stream of an address; see ``stream_names``. None: there is none."""
    return next((stream for name in stream_names(address) if (stream := log.find(name)) is not None), None)


def permitted_stream(node: LinkResources, user: str, action: str, address: str) -> Stream:
    """Return the stream of an address, if a user may ``write`` or ``read`` it.

    Raises:
        LinkRefused: the user may not, whether the stream exists or not (amqp:unauthorized-access); or there is no such
            stream (amqp:not-found).
    """
    permissions = permissions_of(node.config.permissions, user)
    if permissions is None or any(permissions.allow(action, name) for name in stream_names(address)):
        stream = named_stream(node.log, address)
        if stream is None:
            raise LinkRefused(NOT_FOUND, f"there is no stream '{address:.200}' here")
        if permissions is None or permissions.allow(action, stream.name):
            return stream
    raise LinkRefused(UNAUTHORIZED, f"user '{user}' may not {action} stream '{address:.200}'")


def _kind(value: Any) -> str:
    return type(value).__name__


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


def _properties(bound: str | None, claim: Claim | None) -> dict[str, Any]:
    properties: dict[str, Any] = {} if bound is None else {PARTITION: Symbol(bound)}
    if claim is not None:
        properties |= {CONSUMER_GROUP: claim.group.name, EPOCH: claim.epoch}
    return properties


class MessageLink(AttachedLink):
    """A link on which the door sends single messages that are no events: they are not sent again.

    Args:
        connection, link, log_stream: see ``AttachedLink``; the link's attach is answered.
    """

    def __init__(self, connection: LinkConnection, link: Link, log_stream: Stream | None) -> None:
        super().__init__(connection, link, log_stream)
        self._deliveries = link.outgoing
        link.attach(to_receiver(link, link.source and link.source.but({FILTER: None, DURABLE: None})))

    def _send(self, message: bytes) -> None:
        whole = Ranges(np.frombuffer(message, np.uint8), _NO_OFFSET, np.array([len(message)]))
        self._deliveries.send(whole, offsets=_NO_OFFSET)
