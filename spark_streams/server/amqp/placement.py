"""Which partitions of a log are here, and which one a link gets.

Spec: Event Stream Extensions §4.1, §4.3 (ES-101 to ES-106).
"""

from __future__ import annotations

import proton

from spark_streams.log import Partition, Stream
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.error_conditions import NOT_ALLOWED, NOT_FOUND, REDIRECT, LinkRefused

__all__ = ["Placement", "ended"]


def ended(partition: Partition) -> LinkRefused:
    """Return why nothing can be appended to a partition that was split."""
    return LinkRefused(
        NOT_ALLOWED,
        f"partition '{partition.id}' takes no more events: it was split into partitions "
        f"{', '.join(partition.successors)}",
    )


class Placement:
    """The partitions that this container serves.

    Args:
        config: redirects, and whether links that do not ask are bound.
    """

    def __init__(self, config: AmqpConfig) -> None:
        self._redirects = config.redirects
        self._bind_unrequested = config.bind_unrequested
        self._turn = 0

    def here(self, stream: Stream) -> list[str]:
        """Return the partitions that are served here, in their order."""
        if not self._redirects:
            return list(stream.partitions)
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
            LinkRefused: other containers have them all; the redirect names the one with the first partition.
        """
        names = self.here(stream)
        if not names:
            self._redirect(stream, next(iter(stream.partitions)))
        return names

    def bound(self, stream: Stream, asked: str) -> str:
        """Return the partition that a link asks to be bound to.

        Raises:
            LinkRefused: there is none of that name, or another container has it.
        """
        if asked not in stream.partitions:
            raise LinkRefused(NOT_FOUND, f"stream '{stream.name}' has no partition '{asked:.80}'")
        self._redirect(stream, asked)
        return asked

    def bound_or_agnostic(self, stream: Stream, asked: str | None, *, writing: bool = False) -> str | None:
        """Return the partition to bind a link to that may be left agnostic, or None.

        Args:
            stream: the log.
            asked: the partition that the link asks for, or None.
            writing: whether events are to be appended, which only open partitions take.

        Raises:
            LinkRefused: see ``bound`` and ``any_here``; or the partition takes no more events.
        """
        if asked is not None:
            name = self.bound(stream, asked)
            if writing and stream.partitions[name].closed:
                raise ended(stream.partitions[name])
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
                    "port": proton.int32(there.port),
                    "address": there.address,
                },
            )
