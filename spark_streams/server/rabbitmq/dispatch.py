"""What is done about each command of an open connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.rabbitmq import stream_requests, super_stream_requests
from spark_streams.wire.rabbitmq.connection_commands import (
    Close,
    CommandVersions,
    ExchangeCommandVersions,
    ExchangeCommandVersionsAnswer,
    Heartbeat,
    SaslAuthenticate,
)
from spark_streams.wire.rabbitmq.consumer_commands import (
    ConsumerUpdateAnswer,
    Credit,
    QueryOffset,
    ResolveOffsetSpec,
    StoreOffset,
    Subscribe,
    Unsubscribe,
)
from spark_streams.wire.rabbitmq.frames import Command, Frame
from spark_streams.wire.rabbitmq.publisher_commands import (
    PUBLISH_KEY,
    DeclarePublisher,
    DeletePublisher,
    QueryPublisherSequence,
)
from spark_streams.wire.rabbitmq.registry import SERVER_RECEIVES, decode
from spark_streams.wire.rabbitmq.stream_commands import (
    Create,
    CreateSuperStream,
    Delete,
    DeleteSuperStream,
    Metadata,
    Partitions,
    Route,
    StreamStats,
)

if TYPE_CHECKING:
    from spark_streams.server.rabbitmq.connection import RabbitConnection

__all__ = ["handle", "handle_large"]

_UNLISTED: Final = frozenset({*range(0x11, 0x16), 0x1A, 0x1B})
"""Commands of the handshake and of the list itself: brokers leave them out."""


Work = Coroutine[object, object, None]


def handle(connection: RabbitConnection, command: Command) -> Work | None:
    """Do what a command asks for.

    Returns:
        What is still to be done before the next command is looked at; None when all is done.

    Raises:
        RemoteProtocolError: a command that no client sends, or not at this time.
    """
    handler = _HANDLERS.get(type(command))
    if handler is None:
        raise RemoteProtocolError(f"{type(command).__name__} on an open connection")
    return handler(connection, command)


async def handle_large(connection: RabbitConnection, frame: Frame) -> None:
    """Do what a large frame asks for: it is read beside the loop.

    Raises:
        RemoteProtocolError: as ``handle``; and as ``decode``.
    """
    if (frame.key, frame.version) == (Metadata.KEY, Metadata.VERSION):
        work: Work | None = stream_requests.long_metadata(connection, frame)
    else:
        work = handle(connection, await connection.node.aside.step(partial(decode, frame)))
    if work is not None:
        await work


def _exchange_versions(connection: RabbitConnection, request: ExchangeCommandVersions) -> None:
    config = connection.node.config
    connection.client_versions = {each.key: each.maximum for each in request.commands}
    listed = []
    for each in SERVER_RECEIVES:
        if each.key in config.without or each.key in _UNLISTED:
            continue
        single = each.key == PUBLISH_KEY and not config.filtering
        listed.append(CommandVersions(each.key, 1, 1) if single else each)
    connection.answer(request, ExchangeCommandVersionsAnswer, commands=tuple(listed))


def _authenticate_again(connection: RabbitConnection, request: SaslAuthenticate) -> None:
    connection.authenticate_again(connection.handshake.again(request))


_HANDLERS: Final[dict[type[Command], Callable[[RabbitConnection, Any], Work | None]]] = {
    Heartbeat: lambda connection, command: None,
    Close: lambda connection, command: connection.closed_by_peer(command),
    ExchangeCommandVersions: _exchange_versions,
    SaslAuthenticate: _authenticate_again,
    DeclarePublisher: lambda connection, command: connection.publishers.declare(command),
    DeletePublisher: lambda connection, command: connection.publishers.delete(command),
    QueryPublisherSequence: lambda connection, command: connection.publishers.query_sequence(command),
    Subscribe: lambda connection, command: connection.subscriptions.subscribe(command),
    Credit: lambda connection, command: connection.subscriptions.credit(command),
    Unsubscribe: lambda connection, command: connection.subscriptions.unsubscribe(command),
    ConsumerUpdateAnswer: lambda connection, command: connection.subscriptions.consumer_updated(command),
    ResolveOffsetSpec: lambda connection, command: connection.subscriptions.resolve(command),
    Create: stream_requests.create,
    Delete: stream_requests.delete,
    Metadata: stream_requests.metadata,
    StreamStats: stream_requests.stats,
    StoreOffset: stream_requests.store_offset,
    QueryOffset: stream_requests.query_offset,
    CreateSuperStream: super_stream_requests.create,
    DeleteSuperStream: super_stream_requests.delete,
    Route: super_stream_requests.route,
    Partitions: super_stream_requests.partitions,
}
