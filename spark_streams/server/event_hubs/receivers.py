"""The receivers of each partition in each consumer group: who may be there together, and who displaces whom.

::

    without epoch   while one with an epoch is there   refused
                    while as many are there as may be  refused, amqp:resource-limit-exceeded
    with an epoch   while one with a greater is there  refused, amqp:link:stolen
                    otherwise                          all others are ended, amqp:link:stolen

An epoch lasts as long as its receiver.

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from spark_streams.server.amqp.error_conditions import STOLEN, LinkRefused
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT


class Place(NamedTuple):
    """Where receivers meet.

    Args:
        incarnation: the stream's.
        group: the consumer group's name, in lower case.
        partition: the partition's identifier.
    """

    incarnation: str
    group: str
    partition: str


@dataclass(eq=False)
class Receiver:
    """One receiver.

    Args:
        place: where it is.
        name: its name in messages to others.
        epoch: its epoch, or None.
        end: ends its link; set once there is one.
    """

    place: Place
    name: str
    epoch: int | None
    end: Callable[[LinkRefused], None] | None = None


class Receivers:
    """All receivers of a namespace.

    Args:
        most: the most receivers without epoch at one place.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._there: dict[Place, list[Receiver]] = {}

    def enter(self, receiver: Receiver) -> None:
        """Let a receiver in; ``leave`` when its link ends.

        Raises:
            LinkRefused: it may not be beside those that are there; nothing has changed then.
        """
        there = self._there.get(receiver.place, [])
        current = next((each for each in there if each.epoch is not None), None)  # at most one, and then alone
        if receiver.epoch is None:
            self._check_without_epoch(there, current)
            displaced = []
        else:
            if current is not None and current.epoch is not None and current.epoch > receiver.epoch:
                raise LinkRefused(
                    STOLEN,
                    f"Receiver '{current.name}' with a higher epoch of '{current.epoch}' already exists. Receiver "
                    f"'{receiver.name}' with epoch {receiver.epoch} cannot be created. Make sure you are creating "
                    "receiver with increasing epoch value to ensure connectivity, or ensure all old epoch receivers "
                    "are closed or disconnected.",
                )
            displaced = list(there)
        self._there[receiver.place] = [*(each for each in there if each not in displaced), receiver]
        for each in displaced:
            if each.end is not None:
                each.end(_displaced(receiver, each))

    def _check_without_epoch(self, there: list[Receiver], current: Receiver | None) -> None:
        if current is not None:
            raise LinkRefused(
                STOLEN,
                f"At least one receiver for the endpoint is created with epoch of '{current.epoch}', and so non-epoch "
                "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are "
                "closed or disconnected.",
            )
        if len(there) >= self._most:
            raise LinkRefused(
                RESOURCE_LIMIT,
                "Exceeded the maximum number of allowed receivers per partition in a consumer group which is "
                f"{self._most}. List of connected receivers - {', '.join(each.name for each in there)}.",
            )

    def leave(self, receiver: Receiver) -> None:
        """Let a receiver go; one that was displaced is gone already."""
        there = self._there.get(receiver.place, [])
        if receiver in there:
            there.remove(receiver)
            if not there:
                del self._there[receiver.place]


def _displaced(winner: Receiver, loser: Receiver) -> LinkRefused:
    was = "" if loser.epoch is None else f" with epoch '{loser.epoch}'"
    return LinkRefused(
        STOLEN,
        f"New receiver '{winner.name}' with higher epoch of '{winner.epoch}' is created hence current receiver "
        f"'{loser.name}'{was} is getting disconnected. If you are recreating the receiver, make sure a higher epoch is "
        "used.",
    )
