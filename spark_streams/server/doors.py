"""Maps the arguments of a server to the doors of this package, and their names to urls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict
from urllib.parse import quote

from spark_streams.protocols import load, with_doors
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.door import Door
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.event_hubs.config import EventHubsConfig, connection_string
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.web.config import WebConfig


class DoorArguments(TypedDict, total=False):
    """Keyword arguments of ``LogServer`` and ``ServerThread``: settings of doors (None: stays shut), and doors."""

    amqp: AmqpConfig | None
    rabbit: RabbitConfig | None
    feed: FeedConfig | None
    event_hubs: EventHubsConfig | None
    web: WebConfig | None
    doors: Iterable[Door]


def doors_of(configs: Iterable[DoorConfig | None], named: DoorArguments) -> list[Door]:
    """Return the doors to open: those of ``configs``, then those of ``named``.

    Args:
        configs: settings of doors of this package, in any order; None opens no door.
        named: the keyword arguments.

    Raises:
        TypeError: an argument has an unknown name.
        ValueError: two doors have one name.
    """
    rest: dict[str, Any] = dict(named)
    own = rest.pop("doors", ())
    unknown = [name for name in rest if name not in DoorArguments.__annotations__]
    if unknown:
        known = ", ".join(DoorArguments.__annotations__)
        raise TypeError(f"there is no argument '{unknown[0]}': expected one of {known}")
    found: list[Door] = [
        load(with_doors()[config.protocol].door)(config) for config in (*configs, *rest.values()) if config is not None
    ]
    found += own
    names = [door.name for door in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} doors have the name '{name}': a server has one of each")
    return found


class DoorUrls:
    """The urls where the doors of this package listen, for tests.

    Attributes:
        server: the ``LogServer`` of a subclass.
    """

    server: Any

    @property
    def urls(self) -> dict[str, str]:
        """Door name to the URL where it listens, without credentials; ``event-hubs`` to its connection string."""
        urls: dict[str, str] = self.server.urls
        return urls

    def url(self, door: str) -> str:
        """Return a door's URL, or its connection string, with the first user's credentials in it.

        Raises:
            KeyError: there is no such door, or it is not open.
        """
        if isinstance(self.server.door(door).config, EventHubsConfig):
            return self.event_hubs_connection_string
        scheme, _, where = self.urls[door].partition("://")
        for user, password in self.server.door(door).config.users.items():
            return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{where}"
        return self.urls[door]

    @property
    def amqp_url(self) -> str:
        """The AMQP door's URL with the first user's credentials in it, for tests."""
        return self.url("amqp")

    @property
    def rabbit_url(self) -> str:
        """The RabbitMQ streams door's URL with the first user's credentials in it, for tests."""
        return self.url("rabbitmq-stream")

    @property
    def event_hubs_connection_string(self) -> str:
        """The Event Hubs door's connection string, with the first user as the rule and its password as the key."""
        door = self.server.door("event-hubs")
        return connection_string(door.url, door.config.users, tls=door.config.tls_cert is not None)

    @property
    def feed_url(self) -> str:
        """The FeedAPI door's URL; append a slash and a feed's name. It contains no token."""
        return self.urls["feedapi"]
