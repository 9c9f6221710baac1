"""Commands about super streams.

Spec: Streams Protocol Reference, Route, Partitions, CreateSuperStream, DeleteSuperStream;
docs/specifications.md, S-134 to S-137.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.wire.rabbitmq.response_codes import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import (
    CreateSuperStream,
    CreateSuperStreamAnswer,
    DeleteSuperStream,
    DeleteSuperStreamAnswer,
    Partitions,
    PartitionsAnswer,
    Route,
    RouteAnswer,
)

if TYPE_CHECKING:
    from spark_streams.server.rabbitmq.connection import RabbitConnection

__all__ = ["create", "delete", "partitions", "route"]


async def create(connection: RabbitConnection, request: CreateSuperStream) -> None:
    """Create a super stream with its streams, or answer why not."""
    most = connection.node.config.max_super_stream_partitions
    if not all(connection.may("configure", name) for name in (request.name, *request.partitions[:most])):
        code = ResponseCode.ACCESS_REFUSED
    else:
        code = await connection.node.topology.create_super(
            request.name, request.partitions, request.binding_keys, request.arguments
        )
    connection.answer(request, CreateSuperStreamAnswer, code)


async def delete(connection: RabbitConnection, request: DeleteSuperStream) -> None:
    """Delete a super stream with its streams, and tell all connections that use them; or answer why not."""
    if not connection.may("configure", request.name):
        code = ResponseCode.ACCESS_REFUSED
    else:
        code = await connection.node.topology.delete_super(request.name)
    connection.answer(request, DeleteSuperStreamAnswer, code)
    connection.node.follow()


def route(connection: RabbitConnection, request: Route) -> None:
    """Answer the streams that a binding key leads to; none is an answer too."""
    found = connection.node.topology.route(request.super_stream, request.routing_key)
    code = _code(connection, request.super_stream)
    connection.answer(request, RouteAnswer, code, streams=(found or ()) if code == ResponseCode.OK else ())


def partitions(connection: RabbitConnection, request: Partitions) -> None:
    """Answer the streams of a super stream."""
    found = connection.node.topology.super_stream(request.super_stream) or ()
    code = _code(connection, request.super_stream)
    names = tuple(each.name for each in found) if code == ResponseCode.OK else ()
    connection.answer(request, PartitionsAnswer, code, streams=names)


def _code(connection: RabbitConnection, name: str) -> ResponseCode:
    """Return whether a super stream is told of: only to those who may do something to it, or to one of its streams."""
    found = connection.node.topology.super_stream(name)
    if not (connection.may_anything(name) or any(connection.may_anything(served.name) for served in found or ())):
        return ResponseCode.ACCESS_REFUSED
    return ResponseCode.STREAM_DOES_NOT_EXIST if found is None else ResponseCode.OK
