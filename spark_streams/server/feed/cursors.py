"""Cursors: a place in a partition, as text that clients hand back.

::

    1 PPPP SSSSSSSS FFFFFFFF OOOOOOOOOOOOOOOO      hexadecimal, without the spaces
    │ │    │        │        └ the next event to read
    │ │    │        └ digest of the set of filters, 00000000 without any
    │ │    └ digest of the stream's incarnation: a stream that was made anew is another one
    │ └ partition
    └ version

One place has one text under one set of filters, so that clients can tell by equality whether they have got on. Nothing
else is promised about it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2s
from typing import Final, NamedTuple

from spark_streams.server.feed.refusals import Refusal

__all__ = ["Cursors", "Place"]

_SHAPE: Final = re.compile(r"1([0-9a-f]{4})([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{16})")
_NO_FILTERS: Final = "0" * 8


class Place(NamedTuple):
    """Where reading goes on.

    Args:
        partition: the partition's number.
        offset: the next event to read.
    """

    partition: int
    offset: int


class Cursors:
    """Cursors of one stream under one set of filters.

    Args:
        incarnation: the stream's.
        filters: name to value.
    """

    def __init__(self, incarnation: str, filters: Mapping[str, str]) -> None:
        self._stream = _digest(incarnation)
        pairs = [f"{len(name)}:{name}{len(value)}:{value}" for name, value in sorted(filters.items())]
        self._filters = _digest("".join(pairs)) if filters else _NO_FILTERS

    def encode(self, partition: int, offset: int) -> str:
        """Return the cursor after which event ``offset`` is the next."""
        return f"1{partition:04x}{self._stream}{self._filters}{offset:016x}"

    def decode(self, cursor: str) -> Place:
        """Return what a cursor says.

        Raises:
            Refusal: it is none, another stream's, or belongs to other filters.
        """
        shape = _SHAPE.fullmatch(cursor)
        if shape is None:
            raise Refusal(400, f"'{cursor:.80}' is no cursor of this feed: expected one that it gave, _first or _last")
        partition, stream, filters, offset = shape.groups()
        if stream != self._stream:
            raise Refusal(400, "the cursor is another feed's, or of one of this name that was deleted: start anew")
        if filters != self._filters:
            raise Refusal(
                400,
                "the cursor belongs to another set of filters: cursors are only valid for the identical set, so go on "
                "with that one, or start anew with _first",
            )
        return Place(int(partition, 16), int(offset, 16))


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=4).hexdigest()
