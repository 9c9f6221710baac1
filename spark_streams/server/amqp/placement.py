"""Decides which partitions of a log this container serves, and which partition a link is bound to.

Spec: Event Stream Extensions §4.1, §4.3 (ES-101 to ES-106).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spark_streams.log import Partition, Stream
from spark_streams.server.amqp.config import Redirect
from spark_streams.server.amqp.error_conditions import NOT_FOUND, REDIRECT, LinkRefused
from spark_streams.wire.amqp.engine.session import NOT_ALLOWED
from spark_streams.wire.amqp.values import Int


class PartitionSplit(LinkRefused):
    """A partition was split, and takes no more events."""


def split_refusal(partition: Partition) -> PartitionSplit:
    """Return the refusal of an append to a partition that was split."""
    return PartitionSplit(
        NOT_ALLOWED,
        f"partition '{partition.id}' takes no more events: it was split into partitions "
        f"{', '.join(partition.successors)}",
    )


class Placement:
    """The partitions that this container serves.

    Args:
        redirects: (stream, partition) to the container that serves it.
        bind_unrequested: whether links that request no partition are bound to one.
    """

    def __init__(
        self, redirects: Mapping[tuple[str, str], Redirect] = MappingProxyType({}), *, bind_unrequested: bool = False
    ) -> None:
        self._redirects = redirects
        self._bind_unrequested = bind_unrequested
        self._turn = 0

    def here(self, stream: Stream) -> list[str]:
        """Return the partitions that are served here, in their order."""
        return [name for name in stream.partitions if (stream.name, name) not in self._redirects]

    def open_here(self, stream: Stream) -> dict[str, Partition]:
        """Return the partitions that are served here and take events, in their order."""
        return {
            name: partition
            for name, partition in stream.partitions.items()
            if not partition.closed and (stream.name, name) not in self._redirects
        }

    def any_here(self, stream: Stream) -> list[str]:
        """Return the partitions that are served here, at least one.

        Raises:
            LinkRefused: other containers have all of them; the redirect names the container with the first partition.
        """
        names = self.here(stream)
        if not names:
            self._redirect(stream, next(iter(stream.partitions)))
        return names

    def bound(self, stream: Stream, requested: str) -> str:
        """Return the partition to which a link requests to be bound.

        Raises:
            LinkRefused: there is no such partition (amqp:not-found), or another container has it (amqp:link:redirect).
        """
        if requested not in stream.partitions:
            raise LinkRefused(NOT_FOUND, f"stream '{stream.name}' has no partition '{requested:.80}'")
        self._redirect(stream, requested)
        return requested

    def bound_or_agnostic(self, stream: Stream, requested: str | None, *, writing: bool = False) -> str | None:
        """Return the partition to which a link is bound, or None for an agnostic link.

        Args:
            stream: the log.
            requested: the partition that the link requests, or None.
            writing: whether the link appends events, which only open partitions take.

        Raises:
            LinkRefused: see ``bound`` and ``any_here``; or the partition takes no more events.
        """
        if requested is not None:
            name = self.bound(stream, requested)
            if writing and stream.partitions[name].closed:
                raise split_refusal(stream.partitions[name])
            return name
        names = self.any_here(stream)
        if writing:
            names = list(self.open_here(stream))
            if not names:
                self._redirect(stream, stream.open_partitions[0])
        if not self._bind_unrequested:
            return None
        self._turn += 1
        return names[(self._turn - 1) % len(names)]

    def _redirect(self, stream: Stream, partition: str) -> None:
        there = self._redirects.get((stream.name, partition))
        if there is not None:
            raise LinkRefused(
                REDIRECT,
                f"partition '{partition}' of stream '{stream.name}' is served by another container",
                {
                    "hostname": there.hostname,
                    "network-host": there.network_host,
                    "port": Int(there.port),
                    "address": there.address,
                },
            )
