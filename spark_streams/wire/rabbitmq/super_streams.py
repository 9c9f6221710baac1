"""Commands about super streams: one name for several streams, with a binding key each.

Spec: Streams Protocol Reference, Route, Partitions, CreateSuperStream, DeleteSuperStream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spark_streams.wire.rabbitmq.fields import Pairs, Text, array_of
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Request

__all__ = [
    "CreateSuperStream",
    "CreateSuperStreamAnswer",
    "DeleteSuperStream",
    "DeleteSuperStreamAnswer",
    "Partitions",
    "PartitionsAnswer",
    "Route",
    "RouteAnswer",
]

Texts = Annotated[tuple[str, ...], array_of(Text)]


@dataclass(frozen=True)
class Route(Request):
    """Asks which streams a routing key leads to."""

    KEY = 0x0018
    routing_key: Text
    super_stream: Text


@dataclass(frozen=True)
class RouteAnswer(Answer):
    """The streams; none is an answer too."""

    KEY = 0x0018 | ANSWER
    streams: Texts = ()


@dataclass(frozen=True)
class Partitions(Request):
    """Asks for the streams of a super stream."""

    KEY = 0x0019
    super_stream: Text


@dataclass(frozen=True)
class PartitionsAnswer(Answer):
    """The streams, in the order of the partitions."""

    KEY = 0x0019 | ANSWER
    streams: Texts = ()


@dataclass(frozen=True)
class CreateSuperStream(Request):
    """Creates a super stream; as many binding keys as partitions."""

    KEY = 0x001D
    name: Text
    partitions: Texts
    binding_keys: Texts
    arguments: Pairs = field(default_factory=dict)


@dataclass(frozen=True)
class CreateSuperStreamAnswer(Answer):
    """Whether it was created."""

    KEY = 0x001D | ANSWER


@dataclass(frozen=True)
class DeleteSuperStream(Request):
    """Deletes a super stream and its streams."""

    KEY = 0x001E
    name: Text


@dataclass(frozen=True)
class DeleteSuperStreamAnswer(Answer):
    """Whether it was deleted."""

    KEY = 0x001E | ANSWER
