"""Creates and deletes streams and super streams of a broker.

Spec: Streams Protocol Reference, Create, Delete, CreateSuperStream, DeleteSuperStream; docs/specifications.md, S-131 to
S-137.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from spark_streams.client.rabbitmq.cluster import Cluster
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.client.rabbitmq.routing import partitions_of
from spark_streams.errors import NotFound, Refused
from spark_streams.wire.rabbitmq.frames import Answer, Request, ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import (
    Create,
    CreateAnswer,
    CreateSuperStream,
    CreateSuperStreamAnswer,
    Delete,
    DeleteAnswer,
    DeleteSuperStream,
    DeleteSuperStreamAnswer,
)

_WHY: Final[Mapping[int, str]] = {
    ResponseCode.ACCESS_REFUSED: "the user lacks permission 'configure' on it, or on one of its partitions",
    ResponseCode.PRECONDITION_FAILED: "expected a name that does not begin with 'amq.' and arguments that the broker "
    "takes, and no single partition of a super stream to delete; the broker's own log says more",
}
"""The meanings of refused changes."""


def create_stream(cluster: Cluster, stream: str, partitions: int | None, arguments: Mapping[str, str]) -> bool:
    """Create a stream, or a super stream; see ``RabbitClient.create``."""
    count = partitions or 1
    if _is_taken(cluster, stream, is_super=count == 1):
        return False
    if count == 1:
        return _changed(cluster, Create(stream, dict(arguments)), CreateAnswer, stream, "created")
    numbers = tuple(str(number) for number in range(count))
    names = tuple(f"{stream}-{number}" for number in numbers)
    command = CreateSuperStream(stream, names, numbers, dict(arguments))
    return _changed(cluster, command, CreateSuperStreamAnswer, stream, "created")


def delete_stream(cluster: Cluster, stream: str, *, is_super: bool) -> None:
    """Delete a stream, or a super stream; see ``RabbitClient.delete``."""
    if is_super:
        _changed(cluster, DeleteSuperStream(stream), DeleteSuperStreamAnswer, stream, "deleted")
    else:
        _changed(cluster, Delete(stream), DeleteAnswer, stream, "deleted")


def _is_taken(cluster: Cluster, stream: str, *, is_super: bool) -> bool:
    """Return whether a super stream, or a stream, has the name: RabbitMQ would make the other kind beside it."""
    try:
        if is_super:
            cluster.retrying(lambda: partitions_of(cluster.any(), stream))
        else:
            cluster.retrying(lambda: cluster.check([stream]))
    except (NotFound, Refused):  # a user who may not ask hears from the broker whether it may create
        return False
    return True


def _changed(cluster: Cluster, command: Request, kind: type[Answer], stream: str, done: str) -> bool:
    """Send a command once, as a second try could find the result of the first; return False if it exists already."""
    connection = cluster.retrying(cluster.any)
    what = f"stream '{stream}' was not {done} at {connection.endpoint.address}"
    if connection.versions and command.KEY not in connection.versions:
        name = type(command).__name__
        raise Refused("no such command", f"the broker has no {name}: RabbitMQ has it from 3.13 on", what)
    answer = connection.ask(command, kind, what)
    if answer.code == ResponseCode.STREAM_ALREADY_EXISTS:
        return False
    if answer.ok:
        return True
    why = _WHY.get(answer.code)
    if answer.code == ResponseCode.PRECONDITION_FAILED and done == "created":
        with suppress(NotFound):
            cluster.check([stream])
            why = "there is one already, with other settings"
    raise refusal(answer.code, what, why)
