"""Keeps the names of streams and partitions at the doors: no two streams share a name.

RabbitMQ's clients know each partition of a stream by a name, ``orders-0`` and so on or a given one; an AMQP address may
have a leading slash, or be percent-encoded. If a new stream could take such a name of another stream, readers and
writers of the other stream would reach the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from spark_streams.errors import NameTaken


def partition_names(stream: str, count: int, given: Sequence[str] | None) -> dict[str, str]:
    """Return the names of a stream's partitions, name to number; none when the stream's own name is the only one.

    Args:
        stream: the stream's name.
        count: how many partitions there are or were: readers of a redistributed partition still use its name.
        given: the names that the first partitions were created with; None without such names.
    """
    if given is None and count < 2:
        return {}
    numbered = {name: str(number) for number, name in enumerate(given or ())}
    return numbered | {f"{stream}-{number}": str(number) for number in range(len(numbered), count)}


class Names:
    """All names of the log that are in use."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, str | None]] = {}
        self._meant: dict[str, str] = {}
        """Names in the form of ``_meant``, to the stream that has them."""
        self._of: dict[str, tuple[str, ...]] = {}

    def find(self, name: str) -> tuple[str, str | None] | None:
        """Return the stream of a name, and the partition's number (None: all of it); None for an unknown name."""
        return self._shown.get(name)

    def check(self, stream: str, partitions: Mapping[str, str]) -> None:
        """Check that a stream may have its name, and its partitions theirs.

        Raises:
            NameTaken: another stream has one of these names.
        """
        for name in (stream, *partitions):
            other = self._meant.get(_meant(name))
            if other is not None and other != stream:
                theirs = next(shown for shown in self._of[other] if _meant(shown) == _meant(name))
                raise NameTaken(name, _what(stream, partitions.get(name)), theirs, _what(*self._shown[theirs]))

    def keep(self, stream: str, partitions: Mapping[str, str]) -> None:
        """Replace a stream's names.

        Other threads may look names up meanwhile: a name that stays is never missing.
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
    """Return the one form of all names that the same AMQP address may mean (``server/amqp/attaches.py``).

    Leading slashes and percent-encoding are removed until nothing changes, as a decoded name may itself have a slash or
    a percent sign.
    """
    while (plain := unquote(name.removeprefix("/"))) != name:
        name = plain
    return name


def _what(stream: str, partition: str | None) -> str:
    return f"stream '{stream}'" if partition is None else f"partition {partition} of stream '{stream}'"
