"""Handles commands about streams and super streams: create, delete, metadata, statistics, and stored offsets.

Spec: Streams Protocol Reference, Create to MetadataUpdate, StreamStats, StoreOffset, QueryOffset, Route, Partitions,
CreateSuperStream, DeleteSuperStream; docs/specifications.md, S-111, S-112, S-121, S-122, S-131 to S-137.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Final

from spark_streams.server.rabbitmq.session import CommandRefused, Session
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.wire.rabbitmq.consumer_commands import QueryOffset, StoreOffset
from spark_streams.wire.rabbitmq.fields import write_fields
from spark_streams.wire.rabbitmq.frames import Frame, Request, ResponseCode
from spark_streams.wire.rabbitmq.publish_decode import MAX_REFERENCE_BYTES
from spark_streams.wire.rabbitmq.stream_commands import (
    NO_LEADER,
    Broker,
    Create,
    CreateSuperStream,
    Delete,
    DeleteSuperStream,
    Metadata,
    MetadataAnswer,
    Partitions,
    Route,
    StreamMetadata,
    StreamStats,
)

BROKER = 0
"""The number of the only broker in Metadata."""
FEW_NAMES: Final = 256
"""The most names that are answered on the loop, in some 2 ms."""

Work = Coroutine[object, object, None]
Change = Coroutine[object, object, ResponseCode]


def create_stream(session: Session, request: Create) -> Work:
    """Create a stream and answer; raise as ``Session.require`` does."""
    session.require("configure", request.stream)
    create = partial(session.node.topology.create, request.stream, request.arguments, session.user)
    return _changed(session, request, create)


def create_super_stream(session: Session, request: CreateSuperStream) -> Work:
    """Create a super stream with its streams and answer; raise as ``Session.require`` does."""
    node, names = session.node, request.partitions
    # With more partitions than are allowed, `create_super` refuses.
    for name in (request.name, *names[: node.config.max_super_stream_partitions]):
        session.require("configure", name)
    create = partial(
        node.topology.create_super, request.name, names, request.binding_keys, request.arguments, session.user
    )
    return _changed(session, request, create)


def delete_stream(session: Session, request: Delete) -> Work:
    """Delete a stream, answer, and report it to all connections that use it; raise as ``Session.require`` does."""
    session.require("configure", request.stream)
    return _deleted(session, request, partial(session.node.topology.delete, request.stream))


def delete_super_stream(session: Session, request: DeleteSuperStream) -> Work:
    """Do the same as ``delete_stream`` for a super stream with its streams."""
    session.require("configure", request.name)
    return _deleted(session, request, partial(session.node.topology.delete_super, request.name))


async def _changed(session: Session, request: Request, change: Callable[[], Change]) -> None:
    """Make a change, and answer with its outcome."""
    session.answer(request, await session.node.topology.in_turn(change))


async def _deleted(session: Session, request: Request, deletion: Callable[[], Change]) -> None:
    await _changed(session, request, deletion)
    session.node.follow()  # for deletions only, as it looks at every stream that is used: a creation does not wait


def metadata(session: Session, request: Metadata) -> Work | None:
    """Answer which streams exist here; where the user has no permission, answer that, whether a stream exists or not.

    The answer to a request without names lists all streams that the user may read, an extension: brokers list none.
    """
    if not request.streams:
        readable = filter(partial(session.may, "read"), session.node.topology.names())
        return _at_length(session, request.correlation_id, readable)
    if len(request.streams) > FEW_NAMES:
        return _at_length(session, request.correlation_id, request.streams)
    for frame in _metadata(session, request.correlation_id, request.streams):
        session.send(frame)
    return None


def long_metadata(session: Session, frame: Frame) -> Work:
    """Answer a large Metadata frame; its names are read while the answer is made."""
    return _at_length(session, Metadata.correlation_of(frame), Metadata.names_of(frame))


async def _at_length(session: Session, correlation_id: int, names: Iterable[str]) -> None:
    found = _metadata(session, correlation_id, names)
    while (frame := await session.node.worker.step(partial(next, found, None))) is not None:
        session.send(frame)


def _metadata(session: Session, correlation_id: int, names: Iterable[str]) -> Iterator[bytes]:
    """Yield empty bytes after each few names, and the answer at the end; it may run in the worker thread."""
    encoded = bytearray()
    count, here = 0, False
    for count, name in enumerate(names, 1):
        if not session.may_anything(name):
            found = StreamMetadata(name, ResponseCode.ACCESS_REFUSED, NO_LEADER, ())
        elif session.node.topology.find(name) is None:
            found = StreamMetadata(name, ResponseCode.STREAM_DOES_NOT_EXIST, NO_LEADER, ())
        else:
            found = StreamMetadata(name, ResponseCode.OK, BROKER, ())
            here = True
        write_fields(encoded, found)
        if not count % FEW_NAMES:
            yield b""
    brokers = (Broker(BROKER, *session.advertised()),) if here else ()
    yield MetadataAnswer.joined(correlation_id, brokers, count, encoded)


def route(session: Session, request: Route) -> None:
    """Answer with the streams that a binding key leads to, perhaps none; raise as ``_super_stream`` does."""
    found = _super_stream(session, request.super_stream)
    session.answer(request, streams=session.node.topology.route(found, request.routing_key))


def partitions(session: Session, request: Partitions) -> None:
    """Answer with the streams of a super stream; raise as ``_super_stream`` does."""
    session.answer(request, streams=tuple(each.name for each in _super_stream(session, request.super_stream)))


def _super_stream(session: Session, name: str) -> tuple[Served, ...]:
    """Return the streams of a super stream.

    Raises:
        CommandRefused: there is no such super stream; a user needs a permission on it, or on one of its streams, to
            learn whether there is.
    """
    found = session.node.topology.super_stream(name)
    if not (session.may_anything(name) or any(session.may_anything(served.name) for served in found or ())):
        raise CommandRefused(ResponseCode.ACCESS_REFUSED)
    if found is None:
        raise CommandRefused(ResponseCode.STREAM_DOES_NOT_EXIST)
    return found


def stats(session: Session, request: StreamStats) -> None:
    """Answer with a stream's first and last chunk, and its last offset; raise as ``Session.find`` does."""
    served = session.find("read", request.stream)
    partition = served.partition
    end = partition.next_offset
    first = last = -1
    if end:
        # A log that retention has emptied has only the offset of its next record: first and next are the same then.
        first = partition.first_offset
        last = session.node.chunks(served).last_id() if first < end else end - 1
    values = {"first_chunk_id": first, "last_chunk_id": last, "committed_chunk_id": last}
    if session.node.config.committed_offset:
        values["committed_offset"] = end - 1
    session.answer(request, values=values)


def store_offset(session: Session, command: StoreOffset) -> None:
    """Store a consumer's offset; an offset that may not be stored is dropped without an answer (S-111).

    A further name of a user who has too many ends the connection: StoreOffset has no answer that could refuse it, and
    a consumer must not return without its offset, believing that it was stored.
    """
    served = session.node.topology.find(command.stream)
    size = len(command.reference.encode())
    if served is None or size > MAX_REFERENCE_BYTES or not session.may("write", command.stream):
        return
    if not session.node.offsets.store(served, command.reference, command.offset, session.user):
        most = session.node.config.max_stored_offsets
        session.fail(
            ResponseCode.PRECONDITION_FAILED,
            f"user '{session.user}' has stored offsets under {most} names, and max_stored_offsets is {most}",
        )


def query_offset(session: Session, request: QueryOffset) -> None:
    """Answer with a consumer's stored offset.

    Raises:
        CommandRefused: none is stored, or the user may not read the stream, or it does not exist.
    """
    offset = session.node.offsets.query(session.find("read", request.stream), request.reference)
    if offset is None:
        raise CommandRefused(ResponseCode.NO_OFFSET)
    session.answer(request, offset=offset)
