"""The commands of publishers; ``publish_decode.py`` and ``publish_encode.py`` have the messages, in columns.

Spec: Streams Protocol Reference, DeclarePublisher to DeletePublisher.
"""

from __future__ import annotations

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


class DeclarePublisher(Request, key=0x0001):
    """A request to open a publisher; an empty reference means one without deduplication (S-101)."""

    publisher_id: U8
    reference: Text
    stream: Text


class DeclarePublisherAnswer(Answer, key=0x0001 | ANSWER):
    """Whether the publisher is open."""


class QueryPublisherSequence(Request, key=0x0005):
    """A request for the last publishing id of a reference."""

    reference: Text
    stream: Text


class QueryPublisherSequenceAnswer(Answer, key=0x0005 | ANSWER):
    """The last publishing id; 0 for none (S-104)."""

    sequence: U64 = 0


class DeletePublisher(Request, key=0x0006):
    """A request to close a publisher."""

    publisher_id: U8


class DeletePublisherAnswer(Answer, key=0x0006 | ANSWER):
    """Whether the publisher existed."""
