"""Commands about streams: create, delete, where they live, what they hold, how far their consumers came.

Spec: Streams Protocol Reference, Create to MetadataUpdate, StreamStats, StoreOffset, QueryOffset;
docs/specifications.md, S-111, S-112, S-121, S-122, S-131 to S-133.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_streams.server.rabbitmq.topology import Served
from spark_streams.wire.rabbitmq.consumer_commands import QueryOffset, QueryOffsetAnswer, StoreOffset
from spark_streams.wire.rabbitmq.fields import write_fields
from spark_streams.wire.rabbitmq.frames import Frame
from spark_streams.wire.rabbitmq.publisher_commands import MAX_REFERENCE_BYTES
from spark_streams.wire.rabbitmq.response_codes import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import (
    NO_LEADER,
    Broker,
    Create,
    CreateAnswer,
    Delete,
    DeleteAnswer,
    Metadata,
    MetadataAnswer,
    Statistic,
    StreamMetadata,
    StreamStats,
    StreamStatsAnswer,
)

if TYPE_CHECKING:
    from spark_streams.server.rabbitmq.connection import RabbitConnection

__all__ = ["create", "delete", "long_metadata", "metadata", "query_offset", "stats", "store_offset"]

BROKER = 0
"""Metadata's number of the one broker there is."""
FEW_NAMES: Final = 256
"""As many are answered on the loop, in some 2 ms."""

Work = Coroutine[object, object, None]


async def create(connection: RabbitConnection, request: Create) -> None:
    """Create a stream, or answer why not."""
    if not connection.may("configure", request.stream):
        code = ResponseCode.ACCESS_REFUSED
    else:
        code = await connection.node.topology.create(request.stream, request.arguments)
    connection.answer(request, CreateAnswer, code)


async def delete(connection: RabbitConnection, request: Delete) -> None:
    """Delete a stream, and tell all connections that use it; or answer why not."""
    if not connection.may("configure", request.stream):
        code = ResponseCode.ACCESS_REFUSED
    else:
        code = await connection.node.topology.delete(request.stream)
    connection.answer(request, DeleteAnswer, code)
    connection.node.follow()


def metadata(connection: RabbitConnection, request: Metadata) -> Work | None:
    """Answer where streams live: here, or nowhere; or that the user has no business with them, there or not.

    A request that names none is answered with all that the user may read, an extension: brokers answer it with none.
    """
    if not request.streams:
        readable = filter(partial(connection.may, "read"), connection.node.topology.names())
        return _at_length(connection, request.correlation_id, readable)
    if len(request.streams) > FEW_NAMES:
        return _at_length(connection, request.correlation_id, request.streams)
    for frame in _metadata(connection, request.correlation_id, request.streams):
        connection.send(frame)
    return None


def long_metadata(connection: RabbitConnection, frame: Frame) -> Work:
    """Answer a Metadata frame that is so large that its names are read while they are answered."""
    return _at_length(connection, Metadata.correlation_of(frame), Metadata.names_of(frame))


async def _at_length(connection: RabbitConnection, correlation_id: int, names: Iterable[str]) -> None:
    found = _metadata(connection, correlation_id, names)
    while (frame := await connection.node.aside.step(partial(next, found, None))) is not None:
        connection.send(frame)


def _metadata(connection: RabbitConnection, correlation_id: int, names: Iterable[str]) -> Iterator[bytes]:
    """Yield nothing, a step for each few names, and the answer in the end; it may run beside the loop."""
    encoded = bytearray()
    count, here = 0, False
    for count, name in enumerate(names, 1):
        if not connection.may_anything(name):
            found = StreamMetadata(name, ResponseCode.ACCESS_REFUSED, NO_LEADER, ())
        elif connection.node.topology.find(name) is None:
            found = StreamMetadata(name, ResponseCode.STREAM_DOES_NOT_EXIST, NO_LEADER, ())
        else:
            found = StreamMetadata(name, ResponseCode.OK, BROKER, ())
            here = True
        write_fields(encoded, found)
        if not count % FEW_NAMES:
            yield b""
    brokers = (Broker(BROKER, *connection.advertised()),) if here else ()
    yield MetadataAnswer.joined(correlation_id, brokers, count, encoded)


def stats(connection: RabbitConnection, request: StreamStats) -> None:
    """Answer a stream's first and last chunk, and its last offset."""
    served = connection.node.topology.find(request.stream)
    if not connection.may("read", request.stream):
        connection.answer(request, StreamStatsAnswer, ResponseCode.ACCESS_REFUSED)
    elif served is None:
        connection.answer(request, StreamStatsAnswer, ResponseCode.STREAM_DOES_NOT_EXIST)
    else:
        connection.answer(request, StreamStatsAnswer, statistics=_statistics(connection, served))


def _statistics(connection: RabbitConnection, served: Served) -> tuple[Statistic, ...]:
    partition = served.partition
    end = partition.next_offset
    first = last = -1
    if end:
        # Of a log that retention has emptied nothing is left but where it goes on: first and next are the same then.
        first = partition.first_offset
        last = connection.node.chunks(served).last_id() if first < end else end - 1
    values = {"first_chunk_id": first, "last_chunk_id": last, "committed_chunk_id": last}
    if connection.node.config.committed_offset:
        values["committed_offset"] = end - 1
    return tuple(Statistic(name, value) for name, value in values.items())


def store_offset(connection: RabbitConnection, command: StoreOffset) -> None:
    """Remember how far a consumer came; what cannot be remembered is dropped without a word (S-111).

    A further name of a user who has too many ends the connection: there is no answer that could say so, and a consumer
    must not come back without its offset, believing that it was stored.
    """
    served = connection.node.topology.find(command.stream)
    size = len(command.reference.encode())
    if served is None or size > MAX_REFERENCE_BYTES or not connection.may("write", command.stream):
        return
    if not connection.node.offsets.store(served, command.reference, command.offset, connection.user):
        most = connection.node.config.max_stored_offsets
        connection.fail(
            ResponseCode.PRECONDITION_FAILED,
            f"user '{connection.user}' has stored offsets under {most} names, and max_stored_offsets is {most}",
        )


def query_offset(connection: RabbitConnection, request: QueryOffset) -> None:
    """Answer how far a consumer came."""
    code, offset = ResponseCode.OK, 0
    served = connection.node.topology.find(request.stream)
    if not connection.may("read", request.stream):
        code = ResponseCode.ACCESS_REFUSED
    elif served is None:
        code = ResponseCode.STREAM_DOES_NOT_EXIST
    else:
        stored = connection.node.offsets.query(served, request.reference)
        code, offset = (ResponseCode.NO_OFFSET, 0) if stored is None else (ResponseCode.OK, stored)
    connection.answer(request, QueryOffsetAnswer, code, offset=offset)
