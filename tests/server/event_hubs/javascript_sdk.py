"""Microsoft's SDK for JavaScript in the tests: a program, javascript/interop.js, does what they ask for with it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.server.event_hubs.conftest import HUB, Namespace
from tests.server.foreign_programs import Driver, Refused
from tests.server.node_packages import installed

EARLIEST = {"offset": "-1"}
LATEST = {"offset": "@latest"}
OF_CONSUMER = ("connection", "hub", "group", "store", "balance", "retries", "identifier")


def start_program(folder: Path) -> Driver:
    """Start the program.

    Args:
        folder: takes what it writes to stderr.
    """
    script = installed(Path(__file__).parent / "javascript", "azure-event-hubs")
    return Driver(["node", str(script)], folder / "stderr")


class Made:
    """A client of the SDK, or a subscription."""

    def __init__(self, program: Driver, name: str) -> None:
        self._program = program
        self.name = name
        self._open = True

    def __call__(self, do: str, **arguments: Any) -> Any:
        return self._program.ask(do, of=self.name, **arguments)

    def refusal(self, do: str, **arguments: Any) -> tuple[str, str]:
        """Do what the SDK raises at, and return what: its name of a condition, else of the error, and the message."""
        with pytest.raises(Refused) as refused:
            self(do, **arguments)
        (error,) = refused.value.args
        return error["code"] or error["name"], error["message"]

    def failure(self) -> tuple[str, str]:
        """Return the code and the message of what a subscription's handler of errors is told."""
        error = self("failure")
        return error["code"], error["message"]

    def close(self) -> None:
        if self._open:
            self._open = False
            self("close")


class Sdk:
    """Makes the SDK's clients of one namespace."""

    _numbers = itertools.count()

    def __init__(self, program: Driver, namespace: Namespace) -> None:
        self.program = program
        self.namespace = namespace
        self._made: list[Made] = []

    def producer(self, **how: Any) -> Made:
        return self.make("producer", **self._where(how))

    def consumer(self, **how: Any) -> Made:
        return self.make("consumer", **{"group": "$Default", **self._where(how)})

    def store(self) -> str:
        """Make a store of checkpoints, and return its name."""
        name = f"store-{next(self._numbers)}"
        self.program.ask("store", **{"as": name})
        return name

    def receiving(self, start: Any = None, partition: str | None = "0", **how: Any) -> Made:
        """Receive with a client of its own, from a partition or from all; ``how`` has SubscribeOptions too."""
        consumer = self.consumer(**{name: how.pop(name) for name in OF_CONSUMER if name in how})
        return self.make("subscribe", of=consumer.name, partition=partition, start=start or EARLIEST, options=how)

    def receive(self, count: int, **how: Any) -> list[dict[str, Any]]:
        """Return the first events of a partition."""
        receiving = self.receiving(**how)
        events: list[dict[str, Any]] = receiving("take", count=count)
        receiving.close()
        return events

    def bodies(self, count: int, **how: Any) -> list[Any]:
        """Return the bodies of the first events of a partition."""
        return [event["body"] for event in self.receive(count, **how)]

    def send(self, *bodies: Any, **where: Any) -> None:
        """Send one batch, by a producer of its own."""
        producer = self.producer()
        producer("send", events=events(*bodies), **where)
        producer.close()

    def make(self, what: str, **how: Any) -> Made:
        made = Made(self.program, f"{what}-{next(self._numbers)}")
        self.program.ask(what, **{"as": made.name}, **how)
        self._made.append(made)
        return made

    def _where(self, how: dict[str, Any]) -> dict[str, Any]:
        return {"connection": self.namespace.connection_string, "hub": HUB, **how}

    def close(self) -> None:
        for made in reversed(self._made):
            made.close()


def events(*bodies: Any) -> list[dict[str, Any]]:
    """Return events with these bodies."""
    return [{"body": body} for body in bodies]
