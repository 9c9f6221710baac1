"""The doors of this package by the names that they have in the arguments and urls of a server."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any, TypedDict

from spark_streams.protocols import PROTOCOLS, load
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.door import Door
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.rabbitmq.config import RabbitConfig


class DoorArguments(TypedDict, total=False):
    """What ``LogServer`` and ``ServerThread`` take by name: settings of doors, None for a shut one, and doors."""

    amqp: AmqpConfig | None
    rabbit: RabbitConfig | None
    feed: FeedConfig | None
    doors: Iterable[Door]


def doors_of(configs: Iterable[DoorConfig | None], named: DoorArguments) -> list[Door]:
    """Return the doors to open: those of ``configs``, then those of ``named``.

    Args:
        configs: settings of doors of this package, in any order; None stands for none.
        named: the arguments that have a name.

    Raises:
        TypeError: a name that there is not.
        ValueError: two doors of one name.
    """
    rest: dict[str, Any] = dict(named)
    own = rest.pop("doors", ())
    unknown = [name for name in rest if name not in DoorArguments.__annotations__]
    if unknown:
        known = ", ".join(DoorArguments.__annotations__)
        raise TypeError(f"there is no argument '{unknown[0]}': expected one of {known}")
    found: list[Door] = [
        load(PROTOCOLS[config.protocol].door)(config) for config in (*configs, *rest.values()) if config is not None
    ]
    found += own
    names = [door.name for door in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} doors have the name '{name}': a server has one of each")
    return found


class DoorUrls(abc.ABC):
    """Where the doors of this package listen, for tests."""

    @property
    @abc.abstractmethod
    def urls(self) -> dict[str, str]:
        """Door to where it listens, without credentials."""

    @abc.abstractmethod
    def url(self, door: str) -> str:
        """Return a door's URL, with the first user's credentials in it."""

    @property
    def amqp_url(self) -> str:
        """The AMQP door's URL with the first user's credentials in it, for tests."""
        return self.url("amqp")

    @property
    def rabbit_url(self) -> str:
        """The RabbitMQ streams door's URL with the first user's credentials in it, for tests."""
        return self.url("rabbitmq-stream")

    @property
    def feed_url(self) -> str:
        """The FeedAPI door's URL; a feed's name follows behind a slash. Tokens have no place in it."""
        return self.urls["feedapi"]
