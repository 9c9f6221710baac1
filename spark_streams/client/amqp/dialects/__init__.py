"""Defines what a client asks a peer about its logs; each dialect has its own way to ask.

An operation takes an open connection, perhaps with the address that the peer has redirected to, and the stream's name.
It runs once; the client repeats it where trying again can help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.connections import Reached
from spark_streams.client.amqp.links import Binding, Link
from spark_streams.client.amqp.pushdown import PushedFilter
from spark_streams.client.log_client import RangeRead, StreamDescription
from spark_streams.filters.tree import Expression
from spark_streams.position import Position
from spark_streams.wire.amqp.dialects.dialect import StartFilter

Receive = Callable[[Binding, tuple[StartFilter, ...]], Link]


class Inquiries(Protocol):
    """What a client asks a peer in one dialect.

    All raise the errors of the peer: ``NotFound`` for a stream or partition that is not there, ``DeadlineExceeded``
    where no answer comes in time, ``RemoteProtocolError`` for an answer that breaks the contract.
    """

    def describe(self, to: Reached, stream: str) -> StreamDescription:
        """Return the partitions of a stream and what they retain, as the peer reports it now."""

    def list_streams(self, connection: Connection) -> list[str] | None:
        """Return the names of the streams that we may read; None for a peer that does not list them over AMQP 1.0."""
        return None

    def settings(self, connection: Connection, stream: str) -> dict[str, Any]:
        """Return the settings of a stream, by the peer's names; ``Refused`` from a peer that does not tell them."""

    def remaining(self, to: Reached, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return how many events there are after each position, from it on for ``At``; None for an unknown count.

        Where offsets are numbers, the count is the number of offsets, some of which may have no event.
        """
        described = self.describe(to, stream).partitions
        return {p: described[p].count_from(position) if p in described else None for p, position in positions.items()}

    def log_identity(self, to: Reached, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return, for each offset, a text that identifies the event there; None where there is no event."""

    def first_at_time(
        self, connection: Connection, binding: Binding, timestamp_ms: int, receive: Receive
    ) -> str | None:
        """Return the offset of the first event that is not earlier than an instant; None when there is none now.

        ``receive`` attaches a receiver on the connection, with the first of some filters that the peer accepts.
        """

    def push(self, expression: Expression | None, connection: Connection, read: RangeRead | None) -> PushedFilter:
        """Split a filter for the peer; ``read`` is the range to read, None only to learn what the split would be."""
