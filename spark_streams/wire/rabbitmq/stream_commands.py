"""The commands for streams and super streams: create, delete, locations, statistics and partitions.

A super stream is one name for several streams, each with a binding key.

Spec: Streams Protocol Reference, Create to MetadataUpdate, StreamStats, Route, Partitions, CreateSuperStream,
DeleteSuperStream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.fields import U16, U32, Counts, Pairs, Reader, Text, array_of, write_fields
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Command, Frame, Request, frame_head

NO_LEADER = 0xFFFF
"""The leader reference of a stream that does not exist, or has no leader now."""
_CORRELATION_BYTES = 4
_NAMES = array_of(Text)


class Create(Request, key=0x000D):
    """A request to create a stream; all values of its arguments are strings."""

    stream: Text
    arguments: Pairs = field(default_factory=dict)


class CreateAnswer(Answer, key=0x000D | ANSWER):
    """Whether it was created."""


class Delete(Request, key=0x000E):
    """A request to delete a stream."""

    stream: Text


class DeleteAnswer(Answer, key=0x000E | ANSWER):
    """Whether it was deleted."""


class Metadata(Request, key=0x000F):
    """A request for the nodes that hold streams."""

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


class MetadataAnswer(Command, key=0x000F | ANSWER):
    """The nodes and the streams; there is no code for the whole answer."""

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


class MetadataUpdate(Command, key=0x0010):
    """The server's notice that it has dropped this connection's publishers and subscriptions of a stream."""

    code: U16
    stream: Text


class StreamStats(Request, key=0x001C):
    """A request for numbers about a stream."""

    stream: Text


class StreamStatsAnswer(Answer, key=0x001C | ANSWER):
    """The numbers; the set of them depends on the broker (S-121)."""

    values: Counts = field(default_factory=dict)


Texts = Annotated[tuple[str, ...], array_of(Text)]


class Route(Request, key=0x0018):
    """A request for the streams of a routing key."""

    routing_key: Text
    super_stream: Text


class RouteAnswer(Answer, key=0x0018 | ANSWER):
    """The streams; there may be none."""

    streams: Texts = ()


class Partitions(Request, key=0x0019):
    """A request for the streams of a super stream."""

    super_stream: Text


class PartitionsAnswer(Answer, key=0x0019 | ANSWER):
    """The streams, in the order of the partitions."""

    streams: Texts = ()


class CreateSuperStream(Request, key=0x001D):
    """A request to create a super stream; there are as many binding keys as partitions."""

    name: Text
    partitions: Texts
    binding_keys: Texts
    arguments: Pairs = field(default_factory=dict)


class CreateSuperStreamAnswer(Answer, key=0x001D | ANSWER):
    """Whether it was created."""


class DeleteSuperStream(Request, key=0x001E):
    """A request to delete a super stream and its streams."""

    name: Text


class DeleteSuperStreamAnswer(Answer, key=0x001E | ANSWER):
    """Whether it was deleted."""
