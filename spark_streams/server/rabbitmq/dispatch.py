"""Maps each command of an open connection to the function that handles it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.rabbitmq import stream_requests
from spark_streams.server.rabbitmq.session import CommandRefused, Session
from spark_streams.server.rabbitmq.stream_requests import Work
from spark_streams.wire.rabbitmq.connection_commands import (
    SERVER_RECEIVES,
    Close,
    CommandVersions,
    ExchangeCommandVersions,
    Heartbeat,
    SaslAuthenticate,
    decode,
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
from spark_streams.wire.rabbitmq.frames import Command, Frame, Request
from spark_streams.wire.rabbitmq.publish_decode import (
    PUBLISH_KEY,
    DeclarePublisher,
    DeletePublisher,
    QueryPublisherSequence,
)
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

_UNLISTED: Final = frozenset({*range(0x11, 0x16), 0x1A, 0x1B})
"""Commands of the handshake and of the command list itself: brokers do not list them."""


def handle(session: Session, command: Command) -> Work | None:
    """Handle a command; answer a request that is refused.

    Returns:
        The work that remains, to be done before the next command is handled; None if there is none.

    Raises:
        RemoteProtocolError: no client sends this command, or not at this time.
    """
    handler = _HANDLERS.get(type(command))
    if handler is None:
        raise RemoteProtocolError(f"{type(command).__name__} on an open connection")
    try:
        return handler(session, command)
    except CommandRefused as refusal:
        assert isinstance(command, Request)  # other commands have no answer
        session.answer(command, refusal.code)
        return None


async def handle_large(session: Session, frame: Frame) -> None:
    """Handle a large frame, which is decoded in the worker thread.

    Raises:
        RemoteProtocolError: the frame is malformed, or no client sends its command, or not at this time.
    """
    if (frame.key, frame.version) == (Metadata.KEY, Metadata.VERSION):
        work: Work | None = stream_requests.long_metadata(session, frame)
    else:
        work = handle(session, await session.node.worker.step(partial(decode, frame)))
    if work is not None:
        await work


def _exchange_versions(session: Session, request: ExchangeCommandVersions) -> None:
    config = session.node.config
    session.client_versions = {each.key: each.maximum for each in request.commands}
    listed = []
    for each in SERVER_RECEIVES:
        if each.key in config.without or each.key in _UNLISTED:
            continue
        single = each.key == PUBLISH_KEY and not config.filtering
        listed.append(CommandVersions(each.key, 1, 1) if single else each)
    session.answer(request, commands=tuple(listed))


_HANDLERS: Final[dict[type[Command], Callable[[Any, Any], Work | None]]] = {
    Heartbeat: lambda session, command: None,
    Close: lambda session, command: session.closed_by_peer(command),
    ExchangeCommandVersions: _exchange_versions,
    SaslAuthenticate: lambda session, command: session.authenticate_again(command),
    DeclarePublisher: lambda session, command: session.publishers.declare(command),
    DeletePublisher: lambda session, command: session.publishers.delete(command),
    QueryPublisherSequence: lambda session, command: session.publishers.query_sequence(command),
    Subscribe: lambda session, command: session.subscriptions.subscribe(command),
    Credit: lambda session, command: session.subscriptions.credit(command),
    Unsubscribe: lambda session, command: session.subscriptions.unsubscribe(command),
    ConsumerUpdateAnswer: lambda session, command: session.subscriptions.consumer_updated(command),
    ResolveOffsetSpec: lambda session, command: session.subscriptions.resolve(command),
    Create: stream_requests.create_stream,
    Delete: stream_requests.delete_stream,
    CreateSuperStream: stream_requests.create_super_stream,
    DeleteSuperStream: stream_requests.delete_super_stream,
    Metadata: stream_requests.metadata,
    Partitions: stream_requests.partitions,
    Route: stream_requests.route,
    StreamStats: stream_requests.stats,
    StoreOffset: stream_requests.store_offset,
    QueryOffset: stream_requests.query_offset,
}
