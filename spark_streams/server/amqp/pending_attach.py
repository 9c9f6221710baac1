"""An attach that waits for a partition of its consumer group to become free (ES-206)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from spark_streams.log import Stream
from spark_streams.server.amqp.attached_link import AttachedLink, LinkHost
from spark_streams.server.amqp.consumer_groups import Group, Groups
from spark_streams.server.amqp.error_conditions import LinkRefused


class PendingAttach(AttachedLink):
    """A link whose attach is not answered yet; first come, first served.

    Args:
        connection, link: see ``AttachedLink``.
        stream: the log.
        groups: all groups, which call ``try_again`` when a partition becomes free.
        group: the consumer group.
        assign: returns the ``AttachedLink`` that serves the link on a free partition, or None.
        assigned: called with this ``AttachedLink``.
        refusal: the answer after the wait.
        wait_s: how long the attach waits.
    """

    def __init__(
        self,
        connection: LinkHost,
        link: Any,
        stream: Stream,
        groups: Groups,
        group: Group,
        assign: Callable[[], AttachedLink | None],
        assigned: Callable[[AttachedLink], None],
        refusal: LinkRefused,
        *,
        wait_s: float,
    ) -> None:
        super().__init__(connection, link, stream.name, stream.incarnation)
        self._groups = groups
        self._group = group
        self._assign = assign
        self._assigned = assigned
        self._trying = False
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.fail, refusal)
        groups.wait(group, self)

    def serve(self) -> bool:
        """Do nothing: there is no link yet."""
        return False

    def try_again(self) -> None:
        """Take a partition if one is free."""
        if self.ended or self._trying:
            return  # its own failed claim makes the partition free again, which calls this again
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
            self._assigned(attached)
            self.connection.wake(attached)

    def fail(self, refusal: LinkRefused) -> None:
        """Refuse the attach."""
        if not self.ended:
            self.end(closed=False)
            self.connection.refuse(self.link, refusal)
            self.connection.wake()

    def _released(self, *, closed: bool) -> None:
        self._timer.cancel()
        self._groups.leave(self._group, self)
