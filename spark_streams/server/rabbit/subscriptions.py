"""One connection's subscriptions: where they start, what they may be sent, and in which order with the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.wire.rabbit.consuming import (
    ConsumerUpdateAnswer,
    Credit,
    ResolveOffsetSpec,
    Subscribe,
    Unsubscribe,
)

if TYPE_CHECKING:
    from spark_streams.server.rabbit.connection import RabbitConnection

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of one connection.

    Args:
        connection: theirs.
    """

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection

    @property
    def busy(self) -> bool:
        """Whether deliveries that a frame allowed are still to be written.

        No later frame of the connection may be looked at meanwhile: clients take the answer to a request for the proof
        that all deliveries before it have come. ``connection.proceed()`` is called when it is over.
        """
        return False

    def subscribe(self, request: Subscribe) -> None:
        """Begin deliveries, or answer why not."""

    def credit(self, command: Credit) -> None:
        """Allow more chunks; only a refusal is answered."""

    def unsubscribe(self, request: Unsubscribe) -> None:
        """End deliveries, or answer that there are none."""

    def consumer_updated(self, answer: ConsumerUpdateAnswer) -> None:
        """Take the answer to a ConsumerUpdate; one that nobody waits for is ignored."""

    def resolve(self, request: ResolveOffsetSpec) -> None:
        """Answer which offset a starting position means now."""

    def drop(self, stream: str) -> bool:
        """End the subscriptions of a stream that is gone; return whether there were any."""
        return False

    def resume(self) -> None:
        """Go on delivering: the socket takes bytes again."""

    def close(self) -> None:
        """End all: the connection has ended."""
