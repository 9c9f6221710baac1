"""What all attached links have in common: how they end."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import proton

from spark_streams.server.amqp.error_conditions import LinkRefused

if TYPE_CHECKING:
    from spark_streams.server.amqp.connection import AmqpConnection

__all__ = ["AttachedLink", "refuse"]


def refuse(link: Any, refusal: LinkRefused) -> None:
    """Answer an attach with a null terminus, and close the link at once. Spec: AMQP 1.0 part 2 §2.6.3."""
    if link.is_sender:
        link.target.copy(link.remote_target)
        link.source.type = proton.Terminus.UNSPECIFIED
    else:
        link.source.copy(link.remote_source)
        link.target.type = proton.Terminus.UNSPECIFIED
    link.open()
    link.condition = refusal.condition
    link.close()


class AttachedLink(abc.ABC):
    """A link in use.

    Args:
        connection: its connection.
        link: the ``proton.Link``, opened on both sides.
        stream: the name of the log; empty of a link that is about none.
        incarnation: the log's incarnation.

    """

    def __init__(self, connection: AmqpConnection, link: Any, stream: str, incarnation: str) -> None:
        self.connection = connection
        self.link = link
        self.stream = stream
        self.incarnation = incarnation
        self.ended = False
        self.on_end: list[Callable[[], None]] = []

    @abc.abstractmethod
    def serve(self) -> bool:
        """Do a bounded part of what there is to do now; return whether there is more to do at once."""

    def updated(self, delivery: Any) -> None:  # noqa: B027  only consumers have outgoing deliveries to follow
        """Take note that the peer changed the state of an outgoing delivery (a C pointer)."""

    def follow(self) -> None:  # noqa: B027  only agnostic consumers care
        """Take note that the log's partitions may have changed."""

    def take_input(self) -> None:  # noqa: B027  only producers have input
        """Take all that has come in, because the link is about to end."""

    def end(self, *, closed: bool) -> None:
        """Let go of everything; nothing is sent after this.

        Args:
            closed: whether the peer closed the link, and with it the terminus, rather than only losing it.

        """
        if not self.ended:
            self.ended = True
            self._released(closed=closed)
            for done in self.on_end:
                done()

    @abc.abstractmethod
    def _released(self, *, closed: bool) -> None:
        """Give back what the link holds."""

    def fail(self, refusal: LinkRefused) -> None:
        """Close the link with an error."""
        if not self.ended:
            self.end(closed=False)
            self.link.condition = refusal.condition
            self.link.close()
            self.connection.wake()

    def close(self) -> None:
        """Close the link without an error."""
        if not self.ended:
            self.end(closed=False)
            self.link.close()
            self.connection.wake()
