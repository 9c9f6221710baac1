"""The event log node: which links are attached, to what, and with which properties.

Spec: Event Stream Extensions §3.2, §4; AMQP 1.0 part 2 §2.6.3 (refusal), part 3 §3.5 (termini).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import proton

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.amqp.attach_reply import open_consumer, open_info, open_producer
from spark_streams.server.amqp.attach_request import (
    INFO_SUFFIX,
    AttachRequest,
    find_stream,
    read_attach_request,
    stream_names,
)
from spark_streams.server.amqp.attached_link import AttachedLink
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.consumer_groups import Claim, Group, Groups
from spark_streams.server.amqp.consumer_link import ConsumerLink
from spark_streams.server.amqp.durable_termini import Resumed, Termini, Terminus, outlives_link
from spark_streams.server.amqp.error_conditions import (
    DETACH_FORCED,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    LinkRefused,
)
from spark_streams.server.amqp.info_link import STREAMS, WITNESSES, Descriptions, InfoLink, list_streams, read_positions
from spark_streams.server.amqp.link_filters import LinkFilters, read_filters
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.pending_attach import PendingAttach
from spark_streams.server.amqp.placement import Placement
from spark_streams.server.amqp.producer_link import ProducerLink
from spark_streams.server.amqp.receive_buffer import ReceiveBuffer
from spark_streams.server.appender import Appender
from spark_streams.server.partition_readers import PartitionReaders
from spark_streams.server.permissions import permissions_of
from spark_streams.server.worker import Worker

if TYPE_CHECKING:
    from spark_streams.server.amqp.connection import AmqpConnection

__all__ = ["Node"]

FOLLOW_INTERVAL_S: Final = 0.1
"""How soon links notice that partitions were added or their log deleted; the log itself tells nobody."""


class Node:
    """All logs of a container, for all its connections.

    Args:
        log: what is served.
        config: the door's settings.
        loop: the server's.

    """

    def __init__(self, log: ReferenceLog, config: AmqpConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.log = log
        self.config = config
        self.loop = loop
        self.feeds = PartitionReaders(loop)
        self.termini = Termini(log, loop, config.max_durable_links)
        self.placement = Placement(config)
        self.groups = Groups(log, config.reset_epoch, config.max_groups)
        self.intake = ReceiveBuffer(config.max_message_bytes)
        self._info_interval_s = config.info_interval_ms / 1000
        self.appender = Appender(loop, off_loop=log.config.fsync == "always")
        self.aside = Worker("spark-streams-amqp")
        self._descriptions = Descriptions()
        self._links: set[AttachedLink] = set()
        self._known: dict[str, tuple[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- attaching

    def attach(self, connection: AmqpConnection, link: Any) -> None:
        """Answer a peer's attach: with a link in use, a place in line, or a refusal."""
        try:
            if len(connection.links) >= self.config.max_links:
                raise LinkRefused(
                    RESOURCE_LIMIT, f"the connection has {len(connection.links)} links, the most that it may have"
                )
            attached = self._consumer(connection, link) if link.is_sender else self._producer(connection, link)
        except LinkRefused as refusal:
            connection.refuse(link, refusal)
            return
        if attached is not None:
            self._attached(connection, attached)

    def _stream(self, connection: AmqpConnection, action: str, address: str) -> Stream:
        """Return the stream of an address, if the connection's user may ``write`` or ``read`` it.

        Raises:
            LinkRefused: it may not, whether the stream is there or not (amqp:unauthorized-access); there is none
                (amqp:not-found).

        """
        permissions = permissions_of(self.config.permissions, connection.user)
        if permissions is None or any(permissions.allow(action, name) for name in stream_names(address)):
            stream = find_stream(self.log, address)
            if permissions is None or permissions.allow(action, stream.name):
                return stream
        raise LinkRefused(UNAUTHORIZED, f"user '{connection.user}' may not {action} stream '{address:.200}'")

    def _attached(self, connection: AmqpConnection, attached: AttachedLink) -> None:
        connection.attached(attached)
        if not attached.stream:
            return
        self._links.add(attached)
        attached.on_end.append(functools.partial(self._links.discard, attached))
        if self._timer is None:
            self._timer = self.loop.call_later(FOLLOW_INTERVAL_S, self._follow)

    def _producer(self, connection: AmqpConnection, link: Any) -> AttachedLink:
        target = link.remote_target
        if target.type == proton.Terminus.COORDINATOR:
            raise LinkRefused(NOT_IMPLEMENTED, "transactions are not supported")
        address = _address(target)
        if address.endswith(INFO_SUFFIX):
            self._stream(connection, "read", address[: -len(INFO_SUFFIX)])
            raise LinkRefused(NOT_ALLOWED, "an information source can only be read")
        stream = self._stream(connection, "write", address)
        bound = self.placement.bound_or_agnostic(stream, read_attach_request(link).partition, writing=True)
        open_producer(link, bound, self.config.max_message_bytes)
        return ProducerLink(connection, link, stream, bound=bound, credit=self.config.producer_credit)

    def _consumer(self, connection: AmqpConnection, link: Any) -> AttachedLink | None:
        address = _address(link.remote_source)
        if address.endswith(INFO_SUFFIX):
            return self._info(connection, link, address)
        if address == STREAMS:
            return self._directory(connection, link)
        stream = self._stream(connection, "read", address)
        filters = read_filters(link.remote_source)
        wishes = read_attach_request(link)
        self._check_room(connection, link)
        if outlives_link(link.remote_source):
            self.termini.displace(_terminus_key(connection, link))
        if wishes.group is None:
            bound = self.placement.bound_or_agnostic(stream, wishes.partition)
            return self._open_consumer(connection, link, stream, filters, bound, None)
        if self.config.groups != "dynamic" and wishes.group not in self.config.groups:
            raise LinkRefused(
                NOT_FOUND, f"there is no consumer group '{wishes.group}' here, and none is made on the fly"
            )
        if wishes.partition is not None:
            bound = self.placement.bound(stream, wishes.partition)
            return self._claimed(connection, link, stream, filters, bound, wishes)
        attached = self._assigned(connection, link, stream, filters, wishes)
        if attached is None:
            if self.config.unassigned == "reject":
                raise _none_free(stream, wishes)
            place = PendingAttach(
                connection,
                link,
                stream,
                self._group(connection, stream, wishes),
                lambda: self._assigned_later(connection, link, stream, filters, wishes),
                _none_free(stream, wishes),
                wait_s=self.config.unassigned_wait_ms / 1000,
            )
            self._attached(connection, place)
        return attached

    def _assigned(
        self, connection: AmqpConnection, link: Any, stream: Stream, filters: LinkFilters, wishes: AttachRequest
    ) -> AttachedLink | None:
        """Open a receiver of a group on a free partition; None when there is none (ES-205, ES-206)."""
        free = self.groups.free(self._group(connection, stream, wishes), self.placement.any_here(stream))
        if not free:
            return None
        resumed = self._resume(connection, link, stream, filters)
        bound = resumed.partition if resumed and resumed.partition in free else free[0]
        return self._claimed(connection, link, stream, filters, bound, wishes)

    def _assigned_later(
        self, connection: AmqpConnection, link: Any, stream: Stream, filters: LinkFilters, wishes: AttachRequest
    ) -> AttachedLink | None:
        """Do the same for one that has waited, while its user may have got further durable links."""
        self._check_room(connection, link)
        return self._assigned(connection, link, stream, filters, wishes)

    def _check_room(self, connection: AmqpConnection, link: Any) -> None:
        """See whether a user may have a durable link, if this is one. Raises LinkRefused."""
        if outlives_link(link.remote_source):
            self.termini.check_room(_terminus_key(connection, link))

    def _claimed(
        self,
        connection: AmqpConnection,
        link: Any,
        stream: Stream,
        filters: LinkFilters,
        bound: str,
        wishes: AttachRequest,
    ) -> AttachedLink:
        """Open a receiver of a group on a partition that it is entitled to."""
        claim = self.groups.claim(self._group(connection, stream, wishes), bound, wishes.epoch)
        try:
            return self._open_consumer(connection, link, stream, filters, bound, claim)
        except BaseException:
            self.groups.release(claim)
            raise

    def _group(self, connection: AmqpConnection, stream: Stream, wishes: AttachRequest) -> Group:
        """Return the group that a receiver wants to be in: its user's, unless the settings list it for everybody."""
        assert wishes.group is not None
        user = connection.user if self.config.groups == "dynamic" else None
        return Group(stream.incarnation, wishes.group, user)

    def line_served(self, connection: AmqpConnection, attached: AttachedLink) -> None:
        """Take into use a link that had stood in line."""
        self._attached(connection, attached)

    def _info(self, connection: AmqpConnection, link: Any, address: str) -> AttachedLink:
        stream = self._stream(connection, "read", address[: -len(INFO_SUFFIX)])
        positions, witnessed = read_positions(link), read_positions(link, WITNESSES)
        return self._open_info(
            connection, link, stream, lambda: self._descriptions.describe(stream, positions, witnessed)
        )

    def _directory(self, connection: AmqpConnection, link: Any) -> AttachedLink:
        """Open a link that tells which streams there are for this user, and no others."""
        permissions = permissions_of(self.config.permissions, connection.user)

        def message() -> bytes:
            names = (stream.name for stream in self.log.streams())
            return list_streams(n for n in names if permissions is None or permissions.allow("read", n))

        return self._open_info(connection, link, None, message)

    def _open_info(
        self, connection: AmqpConnection, link: Any, stream: Stream | None, message: Callable[[], bytes]
    ) -> InfoLink:
        presettled, most = open_info(link), self.config.max_unsettled
        interval_s = self._info_interval_s
        return InfoLink(
            connection, link, stream, message, presettled=presettled, max_unsettled=most, interval_s=interval_s
        )

    def _open_consumer(
        self,
        connection: AmqpConnection,
        link: Any,
        stream: Stream,
        filters: LinkFilters,
        bound: str | None,
        claim: Claim | None,
    ) -> ConsumerLink:
        resumed = self._resume(connection, link, stream, filters)
        names = self.placement.here(stream) if bound is None else [bound]
        source = link.remote_source
        durable = outlives_link(source)
        presettled = open_consumer(link, filters, bound, claim, durable=durable)
        attached = ConsumerLink(
            connection,
            link,
            stream,
            {name: self._cursor(stream, name, filters, resumed) for name in names},
            lambda name: self._cursor(stream, name, filters, None, added=True),
            bound=bound,
            claim=claim,
            fingerprint=filters.fingerprint,
            presettled=presettled,
            max_unsettled=self.config.max_unsettled,
        )
        if durable:
            never = source.expiry_policy == proton.Terminus.EXPIRE_NEVER
            attached.terminus = Terminus(
                _terminus_key(connection, link),
                attached.snapshot,
                attached.fail,
                None if never else int(source.timeout),
            )
            self.termini.activate(attached.terminus)
        return attached

    def _cursor(
        self, stream: Stream, name: str, filters: LinkFilters, resumed: Resumed | None, *, added: bool = False
    ) -> LinkPosition:
        partition = stream.partitions[name]
        known, pending = (None, []) if resumed is None else resumed.on(stream, name)
        # Of a partition that came after the attach, or while a durable link was away, every event is new.
        added = added or (resumed is not None and resumed.partition is None)
        latest = known[1] if known is not None else 0 if added else partition.next_offset
        cursor = LinkPosition(
            self.feeds.use(partition), filters.predicate, latest=latest, position=None if known is None else known[0]
        )
        for offset in pending:
            cursor.release(offset, 0)
        return cursor

    def _resume(self, connection: AmqpConnection, link: Any, stream: Stream, filters: LinkFilters) -> Resumed | None:
        if not outlives_link(link.remote_source):
            return None
        return self.termini.resume(_terminus_key(connection, link), stream.incarnation, filters.fingerprint)

    # --- what changes while links are attached

    def renegotiate(self, stream: str, group: str) -> int:
        """Gracefully close all links of a group (ES-107, ES-207); returns how many.

        Raises:
            UnknownStream: there is no such stream.

        """
        return self.groups.renegotiate(self.log.stream(stream).incarnation, group)

    def is_there(self, stream: str, incarnation: str) -> bool:
        """Say whether a stream is still the one that a link was attached to."""
        try:
            return self.log.stream(stream).incarnation == incarnation
        except UnknownStream:
            return False

    def _follow(self) -> None:
        self._timer = None
        now: dict[str, tuple[str, int]] = {}
        for name in {link.stream for link in self._links}:
            try:
                stream = self.log.stream(name)
                now[name] = (stream.incarnation, len(stream.partitions))  # every change makes them more
            except UnknownStream:
                now[name] = ("", 0)
        for link in list(self._links):
            if link.incarnation != now[link.stream][0]:
                deleted = LinkRefused(RESOURCE_DELETED, f"stream '{link.stream}' was deleted")
                link.connection.guarded(functools.partial(link.fail, deleted))
            elif self._known.get(link.stream) != now[link.stream]:
                link.connection.guarded(link.follow)
        self._known = now
        if self._links:
            self._timer = self.loop.call_later(FOLLOW_INTERVAL_S, self._follow)

    def close(self) -> None:
        """Write down what is to be kept; all connections have ended before."""
        if self._timer is not None:
            self._timer.cancel()
        self.aside.close()
        self.appender.close()
        self.termini.close()


def _address(terminus: Any) -> str:
    if terminus.type == proton.Terminus.UNSPECIFIED or terminus.dynamic:
        raise LinkRefused(NOT_IMPLEMENTED, "a node without an address cannot be made here: name a stream")
    address = terminus.address
    if not address:
        raise LinkRefused(INVALID_FIELD, "the terminus has no address: name a stream")
    return str(address)


def _terminus_key(connection: AmqpConnection, link: Any) -> str:
    return Termini.key(connection.user, connection.container, link.name)


def _none_free(stream: Stream, wishes: AttachRequest) -> LinkRefused:
    return LinkRefused(
        DETACH_FORCED,
        f"all {len(stream.partitions)} partitions of stream '{stream.name}' are taken in consumer group "
        f"'{wishes.group}'",
    )
