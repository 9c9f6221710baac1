"""Commands about streams: create, delete, where they live, what they hold.

Spec: Streams Protocol Reference, Create to MetadataUpdate, StreamStats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from spark_streams.wire.rabbit.frames import ANSWER, Answer, Command, Request
from spark_streams.wire.rabbit.layout import I64, U16, U32, Pairs, Text, array_of

__all__ = [
    "NO_LEADER",
    "Broker",
    "Create",
    "CreateAnswer",
    "Delete",
    "DeleteAnswer",
    "Metadata",
    "MetadataAnswer",
    "MetadataUpdate",
    "Statistic",
    "StreamMetadata",
    "StreamStats",
    "StreamStatsAnswer",
]

NO_LEADER = 0xFFFF
"""The leader reference of a stream that is not there, or has none now."""


@dataclass(frozen=True)
class Create(Request):
    """Creates a stream; all values of its arguments are strings."""

    KEY = 0x000D
    stream: Text
    arguments: Pairs = field(default_factory=dict)


@dataclass(frozen=True)
class CreateAnswer(Answer):
    """Whether it was created."""

    KEY = 0x000D | ANSWER


@dataclass(frozen=True)
class Delete(Request):
    """Deletes a stream."""

    KEY = 0x000E
    stream: Text


@dataclass(frozen=True)
class DeleteAnswer(Answer):
    """Whether it was deleted."""

    KEY = 0x000E | ANSWER


@dataclass(frozen=True)
class Metadata(Request):
    """Asks where streams live."""

    KEY = 0x000F
    streams: Annotated[tuple[str, ...], array_of(Text)]


@dataclass(frozen=True)
class Broker:
    """A node of the cluster, by the number that stream metadata refer to."""

    reference: U16
    host: Text
    port: U32


@dataclass(frozen=True)
class StreamMetadata:
    """Where one stream lives; ``code`` says whether it is there at all."""

    stream: Text
    code: U16
    leader: U16
    replicas: Annotated[tuple[int, ...], array_of(U16)]


@dataclass(frozen=True)
class MetadataAnswer(Command):
    """Nodes and streams; there is no code for the whole."""

    KEY = 0x000F | ANSWER
    correlation_id: U32
    brokers: Annotated[tuple[Broker, ...], array_of(Broker)]
    streams: Annotated[tuple[StreamMetadata, ...], array_of(StreamMetadata)]


@dataclass(frozen=True)
class MetadataUpdate(Command):
    """The server has dropped this connection's publishers and subscriptions of a stream."""

    KEY = 0x0010
    code: U16
    stream: Text


@dataclass(frozen=True)
class Statistic:
    """One number about a stream."""

    key: Text
    value: I64


@dataclass(frozen=True)
class StreamStats(Request):
    """Asks for numbers about a stream."""

    KEY = 0x001C
    stream: Text


@dataclass(frozen=True)
class StreamStatsAnswer(Answer):
    """The numbers; which ones depends on the broker (notes, section 12)."""

    KEY = 0x001C | ANSWER
    statistics: Annotated[tuple[Statistic, ...], array_of(Statistic)] = ()

    @property
    def values(self) -> Mapping[str, int]:
        """Name to number."""
        return {each.key: each.value for each in self.statistics}
