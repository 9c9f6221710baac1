"""An attach that waits for a partition of its group to become free (ES-206)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spark_streams.log import Stream
from spark_streams.server.amqp.attached_link import AttachedLink
from spark_streams.server.amqp.consumer_groups import Group
from spark_streams.server.amqp.error_conditions import LinkRefused

if TYPE_CHECKING:
    from spark_streams.server.amqp.connection import AmqpConnection

__all__ = ["PendingAttach"]


class PendingAttach(AttachedLink):
    """A link whose attach is not answered yet; first come, first served.

    Args:
        connection, link: see ``AttachedLink``.
        stream: the log.
        group: the consumer group.
        assign: opens the link on a free partition, or answers None.
        refusal: what to answer when time is up.
        wait_s: how long that is.

    """

    def __init__(
        self,
        connection: AmqpConnection,
        link: Any,
        stream: Stream,
        group: Group,
        assign: Callable[[], AttachedLink | None],
        refusal: LinkRefused,
        *,
        wait_s: float,
    ) -> None:
        super().__init__(connection, link, stream.name, stream.incarnation)
        self._group = group
        self._assign = assign
        self._trying = False
        node = connection.node
        self._timer = node.loop.call_later(wait_s, self.fail, refusal)
        node.groups.wait(group, self)

    def serve(self) -> bool:
        """Do nothing: there is no link yet."""
        return False

    def try_again(self) -> None:
        """Take a partition if one is free."""
        if self.ended or self._trying:
            return  # a claim of its own that comes to nothing makes the partition free once more
        self._trying = True
        try:
            self.connection.guarded(self._try_again)
        finally:
            self._trying = False

    def follow(self) -> None:
        """Take one of the partitions that were added."""
        self.try_again()

    def _try_again(self) -> None:
        try:
            attached = self._assign()
        except LinkRefused as refusal:
            self.fail(refusal)
            return
        if attached is not None:
            self.end(closed=False)
            self.connection.node.line_served(self.connection, attached)
            self.connection.wake(attached)

    def fail(self, refusal: LinkRefused) -> None:
        """Refuse the attach."""
        if not self.ended:
            self.end(closed=False)
            self.connection.refuse(self.link, refusal)
            self.connection.wake()

    def _released(self, *, closed: bool) -> None:
        self._timer.cancel()
        self.connection.node.groups.leave(self._group, self)
