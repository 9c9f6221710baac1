"""The event log node: answers attaches, and keeps the links that are attached to logs.

Spec: Event Stream Extensions §3.2, §4; AMQP 1.0 part 2 §2.6.3 (refusal), part 3 §3.5 (termini).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from spark_streams.server.activity import MOST_TEXT, Item, ReaderInfo, Who
from spark_streams.server.amqp.attaches import (
    INFO_SUFFIX,
    ConsumerAttach,
    ConsumerResources,
    address_of,
    permitted_stream,
    read_attach_request,
)
from spark_streams.server.amqp.connection_links import AttachedLink, LinkConnection
from spark_streams.server.amqp.consumer_groups import Group
from spark_streams.server.amqp.consumer_link import ConsumerLink
from spark_streams.server.amqp.error_conditions import NOT_FOUND, LinkRefused
from spark_streams.server.amqp.info_link import (
    NAMED_ONLY,
    STREAMS,
    WITNESSES,
    Descriptions,
    InfoLink,
    list_streams,
    read_positions,
)
from spark_streams.server.amqp.link_filters import read_filters
from spark_streams.server.amqp.management import answer
from spark_streams.server.amqp.producer_link import ProducerLink
from spark_streams.server.amqp.requests import Replies, ReplyLink, RequestLink
from spark_streams.server.users import permissions_of
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.session import NOT_ALLOWED
from spark_streams.wire.amqp.management import MANAGEMENT


class Node(ConsumerResources):
    """All logs of a container, for all its connections; see ``DoorNode``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._descriptions = Descriptions()
        self._managed: WeakKeyDictionary[LinkConnection, Replies] = WeakKeyDictionary()

    def _producer(self, connection: LinkConnection, link: Link) -> AttachedLink:
        address = address_of(link.target)
        if address == MANAGEMENT:
            user = connection.user
            return RequestLink(connection, link, self._replies(connection), lambda request: answer(request, self, user))
        if address.endswith(INFO_SUFFIX):
            permitted_stream(self, connection.user, "read", address[: -len(INFO_SUFFIX)])
            raise LinkRefused(NOT_ALLOWED, "an information source can only be read")
        stream = permitted_stream(self, connection.user, "write", address)
        bound = self.placement.bound_or_agnostic(stream, read_attach_request(link).partition, writing=True)
        return ProducerLink(connection, link, stream, bound)

    def _consumer(self, connection: LinkConnection, link: Link) -> AttachedLink:
        source = link.source
        address = address_of(source)
        assert source is not None
        if address.endswith(INFO_SUFFIX):
            return self._info(connection, link, address)
        if address == STREAMS:
            return self._directory(connection, link)
        if address == MANAGEMENT:
            return ReplyLink(connection, link, self._replies(connection))
        stream = permitted_stream(self, connection.user, "read", address)
        filters = read_filters(source)
        attach = ConsumerAttach(self, connection, link, source, stream, filters, read_attach_request(link))
        group, partition = attach.request.group, attach.request.partition
        self._check_room(attach)
        if attach.durable:
            self.termini.displace(attach.terminus_key)
        if group is None:
            return ConsumerLink(attach, self.placement.bound_or_agnostic(stream, partition))
        if self.config.groups != "dynamic" and group not in self.config.groups:
            raise LinkRefused(NOT_FOUND, f"there is no consumer group '{group}' here, and none is made on the fly")
        if partition is not None:
            return self._claimed(attach, self.placement.bound(stream, partition))
        attached = self.assign(attach)
        if attached is None and self.config.unassigned == "reject":
            raise attach.none_free
        return attached or PendingAttach(self, attach)

    def assign(self, attach: ConsumerAttach) -> AttachedLink | None:
        """Open a receiver of a group on a free partition; None when there is none (ES-205, ES-206)."""
        self._check_room(attach)  # an attach that has waited: its user may have more durable links by now
        free = self.groups.free(self.group(attach), self.placement.any_here(attach.stream))
        if not free:
            return None
        resumed = attach.resume()
        return self._claimed(attach, resumed.partition if resumed and resumed.partition in free else free[0])

    def _check_room(self, attach: ConsumerAttach) -> None:
        """Check that a user may have this link if it is durable.

        Raises:
            LinkRefused: the user has ``max_durable_links`` already.
        """
        if attach.durable:
            self.termini.check_room(attach.terminus_key)

    def _claimed(self, attach: ConsumerAttach, bound: str) -> AttachedLink:
        """Claim a partition for a receiver of a group, and open the receiver."""
        claim = self.groups.claim(self.group(attach), bound, attach.request.epoch)
        try:
            return ConsumerLink(attach, bound, claim)
        except BaseException:
            self.groups.release(claim)
            raise

    def group(self, attach: ConsumerAttach) -> Group:
        """Return the group that a receiver requests: its user's, unless the settings list it for all users."""
        assert attach.request.group is not None
        user = attach.connection.user if self.config.groups == "dynamic" else None
        return Group(attach.stream.incarnation, attach.request.group, user)

    def _info(self, connection: LinkConnection, link: Link, address: str) -> AttachedLink:
        stream = permitted_stream(self, connection.user, "read", address[: -len(INFO_SUFFIX)])
        positions, witnessed = read_positions(link), read_positions(link, WITNESSES)
        named_only = link.properties.get(NAMED_ONLY) is True
        message = functools.partial(self._descriptions.describe, stream, positions, witnessed, named_only=named_only)
        return InfoLink(connection, link, stream, message)

    def _replies(self, connection: LinkConnection) -> Replies:
        """Return the links on which a connection gets replies from ``$management``."""
        return self._managed.setdefault(connection, Replies())

    def _directory(self, connection: LinkConnection, link: Link) -> AttachedLink:
        """Open a link whose messages list the streams that this user may read."""
        permissions = permissions_of(self.config.permissions, connection.user)

        def message() -> bytes:
            names = (stream.name for stream in self.log.streams())
            return list_streams(n for n in names if permissions is None or permissions.allow("read", n))

        return InfoLink(connection, link, None, message)


class PendingAttach(AttachedLink):
    """A link whose attach is not answered yet; first come, first served.

    Args:
        node: assigns a partition of the consumer group.
        attach: the attach.

    Attributes:
        group: the consumer group.
    """

    waits = True

    def __init__(self, node: Node, attach: ConsumerAttach) -> None:
        super().__init__(attach.connection, attach.link, attach.stream)
        self._node = node
        self._attach = attach
        self.group = node.group(attach)
        self._trying = False
        wait_s = node.config.unassigned_wait_ms / 1000
        self._timer = node.loop.call_later(wait_s, self.fail_from_outside, attach.none_free)
        node.groups.wait(self.group, self.follow)

    def told(self, who: Who) -> Iterable[Item]:
        """Return the link as a reader that waits for its partition."""
        name = self.link.name[:MOST_TEXT]
        return (ReaderInfo(*who, self.stream, "", None, name, self.group.name, self.group.user or ""),)

    def serve(self) -> bool:
        """Do nothing: there is no link yet."""
        return False

    def follow(self) -> None:
        """Take a partition if one is free, or was added."""
        if self.ended or self._trying:
            return  # its own failed claim makes the partition free again, which calls this again
        self._trying = True
        self.connection.guarded(self._try)
        self._trying = False

    def _try(self) -> None:
        try:
            attached = self._node.assign(self._attach)
        except LinkRefused as refusal:
            self.fail(refusal)
            return
        if attached is not None:
            self.end(closed=False)
            self.connection.links.serve(attached)
            self.connection.turns.wake(attached)

    def _released(self, *, closed: bool) -> None:
        self._timer.cancel()
        self._node.groups.leave(self.group, self.follow)
