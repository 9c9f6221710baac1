"""The event log node: which links are attached, to what, and with which properties.

Spec: Event Stream Extensions §3.2, §4; AMQP 1.0 part 2 §2.6.3 (refusal), part 3 §3.5 (termini).
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

import proton

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.appender import Appender
from spark_streams.server.attach import (
    CONSUMER_GROUP,
    EPOCH,
    INFO_SUFFIX,
    PARTITION,
    Wishes,
    find_stream,
    read_wishes,
)
from spark_streams.server.conditions import (
    DETACH_FORCED,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    REDIRECT,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    LinkRefused,
)
from spark_streams.server.config import AmqpConfig
from spark_streams.server.consumer_link import ConsumerLink
from spark_streams.server.cursor import Cursor
from spark_streams.server.feed import Feeds
from spark_streams.server.groups import Claim, Groups
from spark_streams.server.info import InfoLink, read_positions
from spark_streams.server.intake import Intake
from spark_streams.server.line import PlaceInLine
from spark_streams.server.link_filters import LinkFilters, read_filters
from spark_streams.server.links import AttachedLink, refuse
from spark_streams.server.producer_link import ProducerLink
from spark_streams.server.termini import Resumed, Termini, Terminus, outlives_link

if TYPE_CHECKING:
    from spark_streams.server.connection import AmqpConnection

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
        self.feeds = Feeds(loop)
        self.termini = Termini(log, loop)
        self.groups = Groups(log, config.reset_epoch)
        self.intake = Intake(config.max_message_bytes)
        self.appender = Appender(loop, off_loop=log.config.fsync == "always")
        self._links: set[AttachedLink] = set()
        self._known: dict[str, tuple[str, int]] = {}
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self.termini.remove_expired()

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
            refuse(link, refusal)
            return
        if attached is not None:
            self._attached(connection, attached)

    def _attached(self, connection: AmqpConnection, attached: AttachedLink) -> None:
        connection.attached(attached)
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
            find_stream(self.log, address[: -len(INFO_SUFFIX)])
            raise LinkRefused(NOT_ALLOWED, "an information source can only be read")
        stream = find_stream(self.log, address)
        bound = self._partition(stream, read_wishes(link).partition)
        link.source.copy(link.remote_source)
        link.target.copy(target)
        link.target.durability = proton.Terminus.NONDURABLE
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = proton.Link.RCV_FIRST
        link.max_message_size = self.config.max_message_bytes
        _set_properties(link, bound)
        link.open()
        return ProducerLink(connection, link, stream, bound=bound, credit=self.config.producer_credit)

    def _consumer(self, connection: AmqpConnection, link: Any) -> AttachedLink | None:
        address = _address(link.remote_source)
        if address.endswith(INFO_SUFFIX):
            return self._info(connection, link, address)
        stream = find_stream(self.log, address)
        filters = read_filters(link.remote_source)
        wishes = read_wishes(link)
        if outlives_link(link.remote_source):
            self.termini.displace(_terminus_key(connection, link))
        if wishes.group is None:
            return self._open_consumer(
                connection, link, stream, filters, self._partition(stream, wishes.partition), None
            )
        if self.config.groups != "dynamic" and wishes.group not in self.config.groups:
            raise LinkRefused(
                NOT_FOUND, f"there is no consumer group '{wishes.group}' here, and none is made on the fly"
            )
        if wishes.partition is not None:
            bound = self._partition(stream, wishes.partition)
            assert bound is not None
            return self._claimed(connection, link, stream, filters, bound, wishes)
        attached = self._assigned(connection, link, stream, filters, wishes)
        if attached is None:
            if self.config.unassigned == "reject":
                raise _none_free(stream, wishes)
            place = PlaceInLine(
                connection,
                link,
                stream,
                wishes.group,
                lambda: self._assigned(connection, link, stream, filters, wishes),
                _none_free(stream, wishes),
                wait_s=self.config.unassigned_wait_ms / 1000,
            )
            self._attached(connection, place)
        return attached

    def _assigned(
        self, connection: AmqpConnection, link: Any, stream: Stream, filters: LinkFilters, wishes: Wishes
    ) -> AttachedLink | None:
        """Open a receiver of a group on a free partition; None when there is none (ES-205, ES-206)."""
        assert wishes.group is not None
        here = self.local_partitions(stream)
        if not here:
            self._redirect(stream, next(iter(stream.partitions)))
        free = self.groups.free(stream.incarnation, wishes.group, here)
        if not free:
            return None
        resumed = self._resume(connection, link, stream, filters)
        bound = resumed.partition if resumed and resumed.partition in free else free[0]
        return self._claimed(connection, link, stream, filters, bound, wishes)

    def _claimed(
        self, connection: AmqpConnection, link: Any, stream: Stream, filters: LinkFilters, bound: str, wishes: Wishes
    ) -> AttachedLink:
        """Open a receiver of a group on a partition that it is entitled to."""
        assert wishes.group is not None
        claim = self.groups.claim(stream.incarnation, wishes.group, bound, wishes.epoch)
        try:
            return self._open_consumer(connection, link, stream, filters, bound, claim)
        except BaseException:
            self.groups.release(claim)
            raise

    def line_served(self, connection: AmqpConnection, attached: AttachedLink) -> None:
        """Take into use a link that had stood in line."""
        self._attached(connection, attached)

    def _info(self, connection: AmqpConnection, link: Any, address: str) -> AttachedLink:
        stream = find_stream(self.log, address[: -len(INFO_SUFFIX)])
        positions = read_positions(link)
        link.source.copy(link.remote_source)
        link.source.filter.clear()
        link.source.durability = proton.Terminus.NONDURABLE
        link.target.copy(link.remote_target)
        link.snd_settle_mode = proton.Link.SND_SETTLED
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.open()
        return InfoLink(connection, link, stream, positions, interval_s=self.config.info_interval_ms / 1000)

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
        names = self.local_partitions(stream) if bound is None else [bound]
        source = link.remote_source
        link.source.copy(source)
        link.source.filter.clear()
        if filters.echo:
            link.source.filter.put_dict(dict(filters.echo))
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        durable = outlives_link(source)
        if not durable:
            link.source.durability = proton.Terminus.NONDURABLE
            link.source.expiry_policy = proton.Terminus.EXPIRE_WITH_LINK
            link.source.timeout = 0
        link.target.copy(link.remote_target)
        presettled = link.remote_snd_settle_mode == proton.Link.SND_SETTLED
        link.snd_settle_mode = proton.Link.SND_SETTLED if presettled else proton.Link.SND_UNSETTLED
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        _set_properties(link, bound, claim)
        link.open()
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
    ) -> Cursor:
        partition = stream.partitions[name]
        known = resumed.positions.get(name) if resumed is not None else None
        # Of a partition that came after the attach every event is new.
        latest = known[1] if known is not None else 0 if added else partition.next_offset
        cursor = Cursor(
            self.feeds.use(partition), filters.predicate, latest=latest, position=None if known is None else known[0]
        )
        if resumed is not None:
            for offset in resumed.pending.get(name, ()):
                cursor.release(offset, 0)
        return cursor

    def _resume(self, connection: AmqpConnection, link: Any, stream: Stream, filters: LinkFilters) -> Resumed | None:
        if not outlives_link(link.remote_source):
            return None
        return self.termini.resume(_terminus_key(connection, link), stream.incarnation, filters.fingerprint)

    # --- partitions

    def local_partitions(self, stream: Stream) -> list[str]:
        """Return the partitions that are served here, in their order."""
        redirects = self.config.redirects
        if not redirects:
            return list(stream.partitions)
        return [name for name in stream.partitions if (stream.name, name) not in redirects]

    def _partition(self, stream: Stream, asked: str | None) -> str | None:
        """Return the partition to bind a link to, or None to leave it agnostic.

        Raises:
            LinkRefused: there is no such partition, or another container has it.

        """
        if asked is None:
            here = self.local_partitions(stream)
            if not here:
                self._redirect(stream, next(iter(stream.partitions)))
            if not self.config.bind_unrequested:
                return None
            self._turn += 1
            return here[(self._turn - 1) % len(here)]
        if asked not in stream.partitions:
            raise LinkRefused(NOT_FOUND, f"stream '{stream.name}' has no partition '{asked:.80}'")
        self._redirect(stream, asked)
        return asked

    def _redirect(self, stream: Stream, partition: str) -> None:
        there = self.config.redirects.get((stream.name, partition))
        if there is not None:
            raise LinkRefused(
                REDIRECT,
                f"partition '{partition}' of stream '{stream.name}' is served by another container",
                {
                    "hostname": there.hostname,
                    "network-host": there.network_host,
                    "port": proton.int32(there.port),
                    "address": there.address,
                },
            )

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
                now[name] = (stream.incarnation, len(stream.partitions))
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
    return Termini.key(connection.container, link.name)


def _set_properties(link: Any, bound: str | None, claim: Claim | None = None) -> None:
    properties: dict[Any, Any] = {}
    if bound is not None:
        properties[proton.symbol(PARTITION)] = proton.symbol(bound)
    if claim is not None:
        properties[proton.symbol(CONSUMER_GROUP)] = claim.key[1]
        properties[proton.symbol(EPOCH)] = claim.epoch
    if properties:
        link.properties = properties


def _none_free(stream: Stream, wishes: Wishes) -> LinkRefused:
    return LinkRefused(
        DETACH_FORCED,
        f"all {len(stream.partitions)} partitions of stream '{stream.name}' are taken in consumer group "
        f"'{wishes.group}'",
    )
