"""RabbitMQ's clients for Java and Go as one: a program for each (java/, go/) that does what lines of JSON tell it.

A request is one line, such as ``{"do": "producer", "as": "p", "on": "e", "stream": "orders"}``; the answer is the line
``{"value": …}`` or ``{"error": "…"}``, when it is done. ``as`` names what is made, ``on`` an environment (a connection
and all it needs), ``of`` a producer or consumer:

    connect                 as, url, ca, certificate and key (then SASL EXTERNAL)
    create, delete, exists  on, stream, max_age_s
    create_super_stream     on, super_stream, partitions or keys
    delete_super_stream     on, super_stream
    producer                as, on, stream or super_stream with routing (hash, key), name, filter, entry_size and
                            compression
    send                    of, messages: body, and id, key, filter; gives confirmed, codes
    last_id                 of
    consumer                as, on, stream or super_stream, from (first, last, next, stored, offset, timestamp), name,
                            store_every, single_active, filter_values, match_unfiltered
    take                    of, count: of all that came, [stream, offset, body], once there are so many
    told                    of, count: likewise "closed", and [stream, whether active]
    store                   on, name, stream, offset
    stored                  of
    close                   of

``key`` and ``filter`` of a message are application properties, which the client routes and filters by.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.server.foreign_programs import Driver, go, java

HERE = Path(__file__).parent


class Client:
    """A client's connection to one broker, and what was made on it.

    Args:
        driver: its program.
        url: of the broker, with credentials.
        tls: ``ca``, ``certificate`` and ``key``.
    """

    _numbers = itertools.count()

    def __init__(self, driver: Driver, url: str, **tls: str) -> None:
        self._driver = driver
        self._name = f"client-{next(self._numbers)}"
        self._made: list[Made] = []
        driver.ask("connect", **{"as": self._name}, url=url, **tls)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have it do something that needs neither a producer nor a consumer."""
        return self._driver.ask(do, on=self._name, **arguments)

    def producer(self, **how: Any) -> Made:
        """A producer of ``stream``, or of ``super_stream``."""
        return self._make("producer", how)

    def consumer(self, start: Any = "first", **how: Any) -> Made:
        """A consumer of ``stream``, or of ``super_stream``."""
        return self._make("consumer", {"from": start, **how})

    def publish(self, messages: list[dict[str, Any]], **how: Any) -> None:
        """Publish by a producer of its own, all confirmed."""
        producer = self.producer(**how)
        assert producer("send", messages=messages) == {"confirmed": len(messages), "codes": []}
        producer.close()

    def _make(self, what: str, how: dict[str, Any]) -> Made:
        name = f"{what}-{next(self._numbers)}"
        self.ask(what, **{"as": name}, **how)
        made = Made(self._driver, name)
        self._made.append(made)
        return made

    def close_made(self) -> None:
        """Close the producers and consumers that are still open."""
        for made in self._made:
            made.close()

    def close(self) -> None:
        """Close what is still open, and the connection."""
        self.close_made()
        self._driver.ask("close", of=self._name)


class Made:
    """A producer or consumer."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name
        self._open = True

    def __call__(self, do: str, **arguments: Any) -> Any:
        return self._driver.ask(do, of=self._name, **arguments)

    def take(self, count: int) -> list[list[Any]]:
        """What came since it was made, once that is ``count``: [stream, offset, body]."""
        taken: list[list[Any]] = self("take", count=count)
        return taken

    def wait_closed(self) -> None:
        """Return once its client says that it is closed, which it did by itself."""
        assert self("told", count=1)[-1] == "closed"
        self._open = False

    def close(self) -> None:
        """Close it, if it is open."""
        if self._open:
            self._open = False
            self("close")


def numbered(numbers: range | list[int], **more: Any) -> list[dict[str, Any]]:
    """Messages whose bodies are numbers."""
    return [{"body": str(number), **more} for number in numbers]


def of(stream: str, numbers: range | list[int], first: int = 0) -> list[list[Any]]:
    """What a consumer takes of messages whose bodies are numbers and whose offsets begin at ``first``."""
    return [[stream, offset, str(number)] for offset, number in enumerate(numbers, first)]


PROGRAMS: dict[str, Callable[[], list[str]]] = {"java": partial(java, HERE / "java"), "go": partial(go, HERE / "go")}
