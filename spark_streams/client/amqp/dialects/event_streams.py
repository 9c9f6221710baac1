"""Asks peers of event streams about their logs: by the information source, and by filters.

Spec: Event Stream Extensions §5.2, §6.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.client.amqp import info
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.links import Binding
from spark_streams.client.amqp.offset_walk import first_offset
from spark_streams.client.amqp.pushdown import PushedFilter, push
from spark_streams.client.amqp.receivers import Receivers
from spark_streams.client.log_client import RangeRead, StreamDescription
from spark_streams.filters.tree import Expression
from spark_streams.position import Position


class EventStreamsInquiries:
    """See ``Inquiries``."""

    def describe(self, connection: Connection, at: str | None, stream: str) -> StreamDescription:
        """See ``info.describe``."""
        return info.describe(connection, at or info.info_address(stream), stream)

    def list_streams(self, connection: Connection) -> list[str] | None:
        """See ``info.list_streams``."""
        return info.list_streams(connection, info.STREAMS)

    def remaining(
        self, connection: Connection, at: str | None, stream: str, positions: Mapping[str, Position]
    ) -> dict[str, int | None]:
        """See ``info.remaining``."""
        return info.remaining(connection, at or info.info_address(stream), stream, positions)

    def log_identity(
        self, connection: Connection, at: str | None, stream: str, offsets: Mapping[str, str]
    ) -> dict[str, str | None]:
        """See ``info.log_identity``."""
        return info.log_identity(connection, at or info.info_address(stream), stream, offsets)

    def first_at_time(
        self,
        connection: Connection,
        receivers: Receivers,
        at: str | None,
        stream: str,
        partition: str,
        timestamp_ms: int,
    ) -> str | None:
        """Return the offset of the first event whose timestamp a filter lets pass.

        Raises:
            StartRefused, Refused: the peer has no filter for the instant.
        """
        starts = connection.dialect.start_filters_at_time(timestamp_ms)
        return first_offset(receivers.attach(connection, at, Binding(stream, partition), starts))

    def push(self, expression: Expression | None, connection: Connection, read: RangeRead | None) -> PushedFilter:
        """See ``pushdown.push``."""
        return push(expression, connection, read)
