"""The commands for streams and super streams: create, delete, locations, statistics and partitions.

A super stream is one name for several streams, each with a binding key.

Spec: Streams Protocol Reference, Create to MetadataUpdate, StreamStats, Route, Partitions, CreateSuperStream,
DeleteSuperStream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.fields import I64, U16, U32, Pairs, Reader, Text, array_of, write_fields
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Command, Frame, Request, frame_head

NO_LEADER = 0xFFFF
"""The leader reference of a stream that does not exist, or has no leader now."""
_CORRELATION_BYTES = 4
_NAMES = array_of(Text)


@dataclass(frozen=True)
class Create(Request):
    """A request to create a stream; all values of its arguments are strings."""

    KEY = 0x000D
    stream: Text
    arguments: Pairs = field(default_factory=dict)


@dataclass(frozen=True)
class CreateAnswer(Answer):
    """Whether it was created."""

    KEY = 0x000D | ANSWER


@dataclass(frozen=True)
class Delete(Request):
    """A request to delete a stream."""

    KEY = 0x000E
    stream: Text


@dataclass(frozen=True)
class DeleteAnswer(Answer):
    """Whether it was deleted."""

    KEY = 0x000E | ANSWER


@dataclass(frozen=True)
class Metadata(Request):
    """A request for the nodes that hold streams."""

    KEY = 0x000F
    streams: Annotated[tuple[str, ...], array_of(Text)]

    @classmethod
    def correlation_of(cls, frame: Frame) -> int:
        """Return the correlation id of a frame, without reading the rest.

        Raises:
            RemoteProtocolError: the frame is too short.
        """
        head = Reader(frame.buffer, frame.start, frame.end, cls.__name__).take(_CORRELATION_BYTES, "correlation_id")
        return int.from_bytes(head, "big")

    @classmethod
    def names_of(cls, frame: Frame) -> Iterator[str]:
        """Yield the names of a frame one by one, because there may be hundreds of thousands.

        Raises:
            RemoteProtocolError: the content does not fit, or bytes are left over.
        """
        reader = Reader(frame.buffer, frame.start, frame.end, cls.__name__)
        reader.take(_CORRELATION_BYTES, "correlation_id")
        yield from _NAMES.each(reader, "streams")
        if reader.left:
            raise RemoteProtocolError(f"Metadata: {reader.left} bytes after its last field")


@dataclass(frozen=True)
class Broker:
    """A node of the cluster, with the number by which stream metadata refer to it."""

    reference: U16
    host: Text
    port: U32


@dataclass(frozen=True)
class StreamMetadata:
    """The nodes that hold one stream; ``code`` tells whether the stream exists."""

    stream: Text
    code: U16
    leader: U16
    replicas: Annotated[tuple[int, ...], array_of(U16)]


@dataclass(frozen=True)
class MetadataAnswer(Command):
    """The nodes and the streams; there is no code for the whole answer."""

    KEY = 0x000F | ANSWER
    correlation_id: U32
    brokers: Annotated[tuple[Broker, ...], array_of(Broker)]
    streams: Annotated[tuple[StreamMetadata, ...], array_of(StreamMetadata)]

    @classmethod
    def joined(cls, correlation_id: int, brokers: Sequence[Broker], count: int, streams: bytes | bytearray) -> bytes:
        """Return the whole frame; the metadata of its ``count`` streams are already encoded."""
        content = bytearray(correlation_id.to_bytes(_CORRELATION_BYTES, "big"))
        content += len(brokers).to_bytes(4, "big")
        for broker in brokers:
            write_fields(content, broker)
        content += count.to_bytes(4, "big") + streams
        return frame_head(len(content), cls.KEY) + bytes(content)


@dataclass(frozen=True)
class MetadataUpdate(Command):
    """The server's notice that it has dropped this connection's publishers and subscriptions of a stream."""

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
    """A request for numbers about a stream."""

    KEY = 0x001C
    stream: Text


@dataclass(frozen=True)
class StreamStatsAnswer(Answer):
    """The numbers; the set of them depends on the broker (S-121)."""

    KEY = 0x001C | ANSWER
    statistics: Annotated[tuple[Statistic, ...], array_of(Statistic)] = ()

    @property
    def values(self) -> Mapping[str, int]:
        """Each name to its number."""
        return {each.key: each.value for each in self.statistics}


Texts = Annotated[tuple[str, ...], array_of(Text)]


@dataclass(frozen=True)
class Route(Request):
    """A request for the streams of a routing key."""

    KEY = 0x0018
    routing_key: Text
    super_stream: Text


@dataclass(frozen=True)
class RouteAnswer(Answer):
    """The streams; there may be none."""

    KEY = 0x0018 | ANSWER
    streams: Texts = ()


@dataclass(frozen=True)
class Partitions(Request):
    """A request for the streams of a super stream."""

    KEY = 0x0019
    super_stream: Text


@dataclass(frozen=True)
class PartitionsAnswer(Answer):
    """The streams, in the order of the partitions."""

    KEY = 0x0019 | ANSWER
    streams: Texts = ()


@dataclass(frozen=True)
class CreateSuperStream(Request):
    """A request to create a super stream; there are as many binding keys as partitions."""

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
    """A request to delete a super stream and its streams."""

    KEY = 0x001E
    name: Text


@dataclass(frozen=True)
class DeleteSuperStreamAnswer(Answer):
    """Whether it was deleted."""

    KEY = 0x001E | ANSWER
