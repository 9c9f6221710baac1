"""The Event Hubs door: listens, and attaches the links of its connections to the hubs of one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final

from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.admission import Sockets
from spark_streams.server.amqp.attaches import address_of, named_stream, permitted_stream
from spark_streams.server.amqp.connection_links import AttachedLink, LinkConnection, LinkResources
from spark_streams.server.amqp.error_conditions import NOT_FOUND, LinkRefused
from spark_streams.server.amqp.placement import split_refusal
from spark_streams.server.amqp.requests import Reply, ReplyLink, Request, RequestLink
from spark_streams.server.door import TcpDoor
from spark_streams.server.event_hubs.access import WrongToken
from spark_streams.server.event_hubs.addresses import HubAddress, read_address, read_start
from spark_streams.server.event_hubs.config import EventHubsConfig, connection_string, shown_users
from spark_streams.server.event_hubs.connection import HubConnection
from spark_streams.server.event_hubs.links import HubBlock, HubReceiver, HubSender
from spark_streams.server.event_hubs.management import answer, partition_of
from spark_streams.server.event_hubs.receivers import Place, Receiver, Receivers
from spark_streams.wire.amqp.cbs import PUT_TOKEN
from spark_streams.wire.amqp.dialects.event_hubs import (
    CBS,
    DEFAULT_GROUP,
    EPOCH,
    RECEIVER_NAME,
)
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.session import INVALID_FIELD, NOT_ALLOWED
from spark_streams.wire.amqp.management import MANAGEMENT
from spark_streams.wire.amqp.values import Long

_MOST_SHOWN: Final = 80
"""The most characters of a receiver's name in messages to others."""


class HubNode(LinkResources):
    """All streams of a log, as the hubs of a namespace; see ``DoorNode``."""

    config: EventHubsConfig

    make_block = HubBlock

    def __post_init__(self) -> None:
        super().__post_init__()
        self.receivers = Receivers(self.config.max_receivers)
        self._alike: dict[str, Stream | None] = {}
        """Each name in lower case to its stream; None where several streams have it."""
        self._changes = -1
        """The log's ``changes`` when the names were listed."""

    def _producer(self, connection: LinkConnection, link: Link) -> AttachedLink:
        assert isinstance(connection, HubConnection)
        address = read_address(address_of(link.target))
        if address.path.lower() == CBS:
            return _requests(connection, link, CBS, lambda request: _put(connection, request))
        if address.path.lower() == MANAGEMENT:
            return self._management(connection, link)
        if address.group is not None:
            raise LinkRefused(NOT_ALLOWED, "a consumer group can only be read: send to the hub, or to a partition")
        stream = self._hub(connection.access.users(address), "write", address)
        if address.partition is not None:
            partition = partition_of(stream, address.partition)
            if partition.closed:
                raise split_refusal(partition)
        elif len(address.place) > 1:
            raise _not_found(address)
        sender = HubSender(connection, link, stream, address.partition)
        self._grant(connection, sender, "write", address)
        return sender

    def _management(self, connection: HubConnection, link: Link) -> AttachedLink:
        def stream_of(name: str, token: str) -> Stream:
            return self._hub(connection.access.managers(name, token), "read", HubAddress(name, name, ()))

        return _requests(connection, link, MANAGEMENT, lambda request: answer(request, stream_of))

    def _consumer(self, connection: LinkConnection, link: Link) -> AttachedLink:
        assert isinstance(connection, HubConnection)
        source = link.source
        address = read_address(address_of(source))
        assert source is not None
        if address.path.lower() in (CBS, MANAGEMENT):
            return ReplyLink(connection, link, connection.replies_from(address.path.lower()))
        if address.partition is None or address.group is None:
            raise LinkRefused(
                NOT_FOUND,
                f"'{address.path:.200}' cannot be read: expected <hub>/ConsumerGroups/<group>/Partitions/<partition>",
            )
        stream = self._hub(connection.access.users(address), "read", address)
        partition = partition_of(stream, address.partition)
        self._check_group(address)
        properties = link.properties
        start = read_start(source, partition)
        place = Place(stream.incarnation, address.group.lower(), partition.id)
        name = properties.get(RECEIVER_NAME)
        shown = name if isinstance(name, str) and name else link.name
        receiver = Receiver(place, shown[:_MOST_SHOWN], _epoch(properties))
        self.receivers.enter(receiver)
        try:
            attached = HubReceiver(connection, link, stream, start, receiver, self.receivers)
        except BaseException:
            self.receivers.leave(receiver)
            raise
        self._grant(connection, attached, "read", address)
        return attached

    def _grant(self, connection: HubConnection, attached: AttachedLink, action: str, address: HubAddress) -> None:
        connection.grant(attached, lambda: self._hub(connection.access.users(address), action, address))

    def _hub(self, users: Sequence[str], action: str, address: HubAddress) -> Stream:
        """Return a hub that one of some users may ``write`` or ``read``.

        Raises:
            LinkRefused: none of them may (amqp:unauthorized-access), or there is no such hub (amqp:not-found).
        """
        found = self.find(address.hub)
        name = address.hub if found is None else found.name
        for number, user in enumerate(users, 1):
            try:
                return permitted_stream(self, user, action, name)
            except LinkRefused as refusal:
                if refusal.name == NOT_FOUND:
                    raise _not_found(address) from refusal
                if number == len(users):
                    raise
        raise AssertionError("there is at least one user")

    def find(self, hub: str) -> Stream | None:
        """Return the stream that a hub's name means: of that name, or the one whose name differs in case alone."""
        if self._changes != (changes := self.log.changes):
            self._changes, self._alike = changes, {}
            for stream in self.log.streams():
                name = stream.name.lower()
                self._alike[name] = None if name in self._alike else stream
        return named_stream(self.log, hub) or self._alike.get(hub.lower())

    def _check_group(self, address: HubAddress) -> None:
        known, group = self.config.groups, (address.group or "").lower()
        if known != "dynamic" and group not in {each.lower() for each in (DEFAULT_GROUP, *known)}:
            raise _not_found(address)


def _not_found(address: HubAddress) -> LinkRefused:
    return LinkRefused(NOT_FOUND, f"The messaging entity '{address.path:.200}' could not be found.")


def _requests(connection: HubConnection, link: Link, address: str, answer: Callable[[Request], Reply]) -> RequestLink:
    """Return a link of requests, on which wrong tokens are answered late."""

    def answered(request: Request) -> Reply | Coroutine[object, object, Reply]:
        try:
            return answer(request)
        except WrongToken as refusal:
            return connection.refuse_token(str(refusal))

    return RequestLink(connection, link, connection.replies_from(address), answered)


def _put(connection: HubConnection, request: Request) -> Reply:
    """Take the token of a request to ``$cbs``."""
    if request.text("operation") != PUT_TOKEN or not isinstance(request.body, str):
        return Reply(HTTPStatus.BAD_REQUEST, f"expected {PUT_TOKEN}, with a token as the body")
    try:
        connection.access.put(request.body, request.text("type"))
    except LinkRefused as refusal:
        return Reply(HTTPStatus.UNAUTHORIZED, refusal.description)  # with a condition, the Python SDK hides the status
    connection.token_put()
    return Reply(HTTPStatus.ACCEPTED, "Accepted")


def _epoch(properties: dict[str, Any]) -> int | None:
    """Return the epoch of a receiver.

    Raises:
        LinkRefused: it is no long, or negative (amqp:invalid-field).
    """
    epoch = properties.get(EPOCH)
    if epoch is None:
        return None
    if not isinstance(epoch, Long) or epoch < 0:
        kind = type(epoch).__name__
        raise LinkRefused(INVALID_FIELD, f"link property {EPOCH} is {epoch!r:.40} ({kind}): expected a long from 0 on")
    return int(epoch)


class EventHubsDoor(TcpDoor):
    """The Event Hubs door.

    Args:
        config: its settings.

    Attributes:
        url: the connection string; with the key of a rule only where that is no secret.
        node: the node that links are attached to; None while the door is not open.
    """

    config: EventHubsConfig
    node: HubNode | None

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``."""
        node = self.node = HubNode(log, self.config, asyncio.get_running_loop(), self.counters)
        await self.listen(sockets, lambda admission: HubConnection(node, node.find, admission))
        self.url = connection_string(self.url, shown_users(self.config.users), tls=self.config.tls_cert is not None)
