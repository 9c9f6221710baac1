"""The commands of publishers; ``publish_decode.py`` and ``publish_encode.py`` have the messages, in columns.

Spec: Streams Protocol Reference, DeclarePublisher to DeletePublisher.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.wire.rabbitmq.fields import U8, U64, Text
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Request

PUBLISH_KEY = 0x0002
"""The key of Publish, versions 1 and 2, from the client."""
CONFIRM_KEY = 0x0003
"""The key of PublishConfirm, from the server."""
PUBLISH_ERROR_KEY = 0x0004
"""The key of PublishError, from the server."""
MAX_REFERENCE_BYTES = 255
"""The longest reference: the protocol allows 256 characters, but brokers refuse more than 255 bytes (S-102)."""


@dataclass(frozen=True)
class DeclarePublisher(Request):
    """A request to open a publisher; an empty reference means one without deduplication (S-101)."""

    KEY = 0x0001
    publisher_id: U8
    reference: Text
    stream: Text


@dataclass(frozen=True)
class DeclarePublisherAnswer(Answer):
    """Whether the publisher is open."""

    KEY = 0x0001 | ANSWER


@dataclass(frozen=True)
class QueryPublisherSequence(Request):
    """A request for the last publishing id of a reference."""

    KEY = 0x0005
    reference: Text
    stream: Text


@dataclass(frozen=True)
class QueryPublisherSequenceAnswer(Answer):
    """The last publishing id; 0 for none (S-104)."""

    KEY = 0x0005 | ANSWER
    sequence: U64 = 0


@dataclass(frozen=True)
class DeletePublisher(Request):
    """A request to close a publisher."""

    KEY = 0x0006
    publisher_id: U8


@dataclass(frozen=True)
class DeletePublisherAnswer(Answer):
    """Whether the publisher existed."""

    KEY = 0x0006 | ANSWER
