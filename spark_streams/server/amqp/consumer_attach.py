"""The attach of a receiver of events, and one that waits for a partition of its consumer group to become free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_streams.log import Stream
from spark_streams.server.amqp.attach_request import AttachRequest
from spark_streams.server.amqp.connection_links import AttachedLink, ConnectionLinks
from spark_streams.server.amqp.consumer_groups import Group, Groups
from spark_streams.server.amqp.durable_termini import Termini, outlives_link
from spark_streams.server.amqp.error_conditions import DETACH_FORCED, LinkRefused
from spark_streams.server.amqp.link_filters import LinkFilters


@dataclass(frozen=True)
class ConsumerAttach:
    """The attach of a receiver of events, decoded.

    Args:
        connection: the receiver's connection.
        link: the ``proton.Link``.
        stream: the log.
        filters: the link's filters.
        request: its link properties.
    """

    connection: ConnectionLinks
    link: Any
    stream: Stream
    filters: LinkFilters
    request: AttachRequest

    @property
    def durable(self) -> bool:
        """Whether its terminus outlives the link."""
        return outlives_link(self.link.remote_source)

    @property
    def terminus_key(self) -> str:
        """The key of its terminus, if it is durable."""
        return Termini.key(self.connection.user, self.connection.container, self.link.name)

    @property
    def none_free(self) -> LinkRefused:
        """The refusal when all partitions of its consumer group are taken (ES-206)."""
        return LinkRefused(
            DETACH_FORCED,
            f"all {len(self.stream.partitions)} partitions of stream '{self.stream.name}' are taken in consumer group "
            f"'{self.request.group}'",
        )


class PendingAttach(AttachedLink):
    """A link whose attach is not answered yet; first come, first served.

    Args:
        attach: the attach.
        groups: all groups, which call ``try_again`` when a partition becomes free.
        group: the consumer group.
        assign: returns the ``AttachedLink`` that serves the link on a free partition, or None.
        assigned: called with this ``AttachedLink``.
        wait_s: how long the attach waits until it is refused.
    """

    def __init__(
        self,
        attach: ConsumerAttach,
        groups: Groups,
        group: Group,
        assign: Callable[[], AttachedLink | None],
        assigned: Callable[[AttachedLink], None],
        wait_s: float,
    ) -> None:
        super().__init__(attach.connection, attach.link, attach.stream)
        self._groups = groups
        self._group = group
        self._assign = assign
        self._assigned = assigned
        self._trying = False
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.fail, attach.none_free)
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

    def _released(self, *, closed: bool) -> None:
        self._timer.cancel()
        self._groups.leave(self._group, self)
