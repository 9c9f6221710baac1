"""The names under which doors show streams and their partitions: no two streams have one in common.

RabbitMQ's clients know each partition of a stream by a name, ``orders-0`` and so on or one that was given; an AMQP
address may have a leading slash, or be percent-encoded. If a stream could be created under such a name of another one,
whoever may create it would have the other's readers and writers come to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from spark_streams.errors import NameTaken
from spark_streams.log.state_store import StateStore

__all__ = ["Names", "partition_names", "partition_names_before"]

_BEFORE: Final = "rabbitmq-streams"
"""Where the RabbitMQ door of earlier releases kept names of partitions: in its own part of the state store."""


def partition_names(stream: str, count: int, given: Sequence[str] | None) -> dict[str, str]:
    """Return the names of a stream's partitions, name to number; none where the stream's own name is all there is.

    Args:
        stream: its name.
        count: partitions that there are or ever were: readers of one that has left still ask for its name.
        given: names of the first ones, when it was created with some; None: it was not.
    """
    if given is None and count < 2:
        return {}
    numbered = {name: str(number) for number, name in enumerate(given or ())}
    return numbered | {f"{stream}-{number}": str(number) for number in range(len(numbered), count)}


def partition_names_before(state: StateStore) -> dict[str, tuple[str, ...]]:
    """Return the names that earlier releases gave partitions: incarnation of a stream to them."""
    kept: list[Mapping[str, Any]] = [json.loads(stored) for _, stored in state.items(_BEFORE)]
    return {each["incarnation"]: tuple(each["partitions"]) for each in kept if each.get("partitions") is not None}


class Names:
    """All names that are taken."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, str | None]] = {}
        self._meant: dict[str, str] = {}
        """Names as an AMQP address may mean them, to the stream that has them."""
        self._of: dict[str, tuple[str, ...]] = {}

    def find(self, name: str) -> tuple[str, str | None] | None:
        """Return the stream that is shown under a name, and the number of the partition, None for the whole."""
        return self._shown.get(name)

    def check(self, stream: str, partitions: Mapping[str, str]) -> None:
        """See that a stream may have its name, and its partitions theirs.

        Raises:
            NameTaken: another stream has one of them.
        """
        for name in (stream, *partitions):
            other = self._meant.get(_meant(name))
            if other is not None and other != stream:
                theirs = next(shown for shown in self._of[other] if _meant(shown) == _meant(name))
                raise NameTaken(name, _what(stream, partitions.get(name)), theirs, _what(*self._shown[theirs]))

    def keep(self, stream: str, partitions: Mapping[str, str]) -> None:
        """Take down a stream's names, in place of those that it had.

        Others may look meanwhile, from another thread: a name that stays is never missing.
        """
        before = self._of.get(stream, ())
        self._shown |= {stream: (stream, None), **{name: (stream, number) for name, number in partitions.items()}}
        self._of[stream] = (stream, *partitions)
        meant = {_meant(name): stream for name in self._of[stream]}
        self._meant |= meant
        for name in set(before) - {stream, *partitions}:
            del self._shown[name]
            if _meant(name) not in meant:
                del self._meant[_meant(name)]

    def drop(self, stream: str) -> None:
        """Forget a stream's names."""
        for name in self._of.pop(stream, ()):
            self._shown.pop(name, None)  # a partition may have its stream's own name
            self._meant.pop(_meant(name), None)


def _meant(name: str) -> str:
    """Return what all names that one address may mean (``server/amqp/attach_request.py``) have in common.

    That is the name with nothing left to take off: what is percent-encoded may be a name that has a slash or a percent
    sign itself.
    """
    while (plain := unquote(name.removeprefix("/"))) != name:
        name = plain
    return name


def _what(stream: str, partition: str | None) -> str:
    return f"stream '{stream}'" if partition is None else f"partition {partition} of stream '{stream}'"
