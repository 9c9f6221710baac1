"""One connection's publishers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.wire.rabbit.frames import Frame
from spark_streams.wire.rabbit.publishing import DeclarePublisher, DeletePublisher, QueryPublisherSequence

if TYPE_CHECKING:
    from spark_streams.server.rabbit.connection import RabbitConnection

__all__ = ["Publishers"]


class Publishers:
    """The publishers of one connection.

    Args:
        connection: theirs.
    """

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection

    def declare(self, request: DeclarePublisher) -> None:
        """Open a publisher, or answer why not."""
        raise NotImplementedError

    def delete(self, request: DeletePublisher) -> None:
        """Close a publisher, or answer that there is none."""
        raise NotImplementedError

    def query_sequence(self, request: QueryPublisherSequence) -> None:
        """Answer the last publishing id of a reference."""
        raise NotImplementedError

    def publish(self, frame: Frame) -> None:
        """Take a Publish frame; it is stored by ``received_all`` at the latest."""
        raise NotImplementedError

    def received_all(self) -> None:
        """Store what was published by the bytes that have just come, and confirm it."""
        raise NotImplementedError

    def drop(self, stream: str) -> bool:
        """Close the publishers of a stream that is gone; return whether there were any."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all: the connection has ended."""
        raise NotImplementedError
