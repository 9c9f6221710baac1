"""The commands of consumers: subscribe, credit, stored offsets, the active consumer of a group, and Deliver's head.

A Deliver frame holds one chunk for one subscription; ``chunk.py`` reads and writes the chunk in columns::

    version 1   subscription id(u8) chunk
    version 2   subscription id(u8) committed chunk id(u64) chunk

A server sends version 2 only to a client that lists it with exactly that maximum (S-24).

Spec: Streams Protocol Reference, Subscribe to Unsubscribe, ConsumerUpdate, Deliver; ResolveOffsetSpec of later brokers;
docs/specifications.md, S-24, S-81.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.chunk import HEADER_BYTES
from spark_streams.wire.rabbitmq.fields import U8, U16, U64, Number, Reader, SparsePairs, Text
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Command, Frame, Request, frame_head

DELIVER_KEY: Final = 0x0008
"""Deliver, versions 1 and 2, from the server: ``subscription_id(u8) [committed_chunk_id(u64)] chunk``."""


class OffsetType(IntEnum):
    """The types of a subscription's start; NONE occurs only in the answer to ConsumerUpdate."""

    NONE = 0
    FIRST = 1
    LAST = 2
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5


@dataclass(frozen=True)
class OffsetSpecification:
    """A starting position.

    Args:
        type: of ``OffsetType``.
        value: the offset, or the timestamp in ms since the epoch (signed). The other types have no value on the wire
            (S-61), and 0 here.
    """

    type: int
    value: int = 0


class _Specification:
    least = 2
    _TYPE: Final = Number("H")
    _VALUES: Final = {OffsetType.OFFSET: Number("Q"), OffsetType.TIMESTAMP: Number("q")}

    def write(self, out: bytearray, value: Any, field: str) -> None:
        self._TYPE.write(out, value.type, field)
        if value.type in self._VALUES:
            self._VALUES[value.type].write(out, value.value, field)

    def read(self, reader: Reader, field: str) -> Any:
        kind = self._TYPE.read(reader, field)
        if kind > OffsetType.TIMESTAMP:
            raise RemoteProtocolError(f"{reader.what}: {field} has type {kind}, expected 0 to 5")
        return OffsetSpecification(kind, self._VALUES[kind].read(reader, field) if kind in self._VALUES else 0)


Specification = Annotated[OffsetSpecification, _Specification()]


class Subscribe(Request, key=0x0007):
    """A request for deliveries; properties as ``filter.0``, ``match-unfiltered``, ``single-active-consumer``."""

    subscription_id: U8
    stream: Text
    offset: Specification
    credit: U16
    properties: SparsePairs = field(default_factory=dict)


class SubscribeAnswer(Answer, key=0x0007 | ANSWER):
    """Whether the server will send deliveries."""


class Credit(Command, key=0x0009):
    """A grant of credit for more chunks; the server answers only when it refuses."""

    subscription_id: U8
    credit: U16


class CreditAnswer(Command, key=0x0009 | ANSWER):
    """The code of a refused credit; it has no correlation id (S-71)."""

    code: U16
    subscription_id: U8


class StoreOffset(Command, key=0x000A):
    """The offset that the server stores for a named consumer; the server never answers."""

    reference: Text
    stream: Text
    offset: U64


class QueryOffset(Request, key=0x000B):
    """A request for the stored offset."""

    reference: Text
    stream: Text


class QueryOffsetAnswer(Answer, key=0x000B | ANSWER):
    """The stored offset, or no-offset (0x13)."""

    offset: U64 = 0


class Unsubscribe(Request, key=0x000C):
    """The end of a subscription."""

    subscription_id: U8


class UnsubscribeAnswer(Answer, key=0x000C | ANSWER):
    """Whether the subscription existed."""


class ConsumerUpdate(Request, key=0x001A):
    """A request of the server to a consumer that becomes, or is no longer, the active one of its group."""

    subscription_id: U8
    active: U8


class ConsumerUpdateAnswer(Answer, key=0x001A | ANSWER):
    """The consumer's start; type NONE means the start of its subscription. Some clients append eight unused bytes."""

    EXTRA = True
    offset: Specification = OffsetSpecification(OffsetType.NONE)


class ResolveOffsetSpec(Request, key=0x001F):
    """A request for the offset that a starting position means now (brokers from 4.3)."""

    stream: Text
    offset: Specification
    properties: SparsePairs = field(default_factory=dict)


class ResolveOffsetSpecAnswer(Answer, key=0x001F | ANSWER):
    """The offset, always of type OFFSET."""

    offset: Specification = OffsetSpecification(OffsetType.OFFSET)


_HEADS: Final = {1: struct.Struct(">B"), 2: struct.Struct(">BQ")}


class Delivery(NamedTuple):
    """The head of a Deliver frame, and the place of its chunk.

    Args:
        subscription_id: the subscription of the chunk.
        committed_chunk_id: the id of the last chunk committed when the server sent this one; None in version 1.
        chunk_start: index of the chunk's first byte in the frame's buffer.
    """

    subscription_id: int
    committed_chunk_id: int | None
    chunk_start: int


def decode_deliver(frame: Frame) -> Delivery:
    """Read the head of a Deliver frame.

    Raises:
        RemoteProtocolError: the version is neither 1 nor 2, or the frame is too short for a chunk's header.
    """
    head = _HEADS.get(frame.version)
    if head is None or frame.end - frame.start < head.size + HEADER_BYTES:
        raise RemoteProtocolError(f"a Deliver frame, version {frame.version}, of {frame.size} bytes")
    subscription_id, *committed = head.unpack_from(frame.buffer, frame.start)
    return Delivery(subscription_id, committed[0] if committed else None, frame.start + head.size)


def encode_deliver_head(subscription_id: int, chunk_bytes: int, committed_chunk_id: int | None = None) -> bytes:
    """Return the bytes of a Deliver frame before its chunk, the frame's size included.

    Args:
        subscription_id: 0 to 255.
        chunk_bytes: size of the chunk that follows: header and data.
        committed_chunk_id: for version 2; None for version 1.
    """
    if committed_chunk_id is None:
        version, head = 1, _HEADS[1].pack(subscription_id)
    else:
        version, head = 2, _HEADS[2].pack(subscription_id, committed_chunk_id)
    return frame_head(len(head) + chunk_bytes, DELIVER_KEY, version) + head
