"""Encodes and decodes cursors of feeds: text for a position in a partition, which clients send back.

::

    2 PPPP SSSSSSSS FFFFFFFF WWWWWWWW OOOOOOOOOOOOOOOO      hexadecimal, without the spaces
    │ │    │        │        │        └ the next event to read
    │ │    │        │        └ digest of the witness of the event before that, 00000000 when it is no longer retained
    │ │    │        └ digest of the set of filters, 00000000 without any
    │ │    └ digest of the stream's incarnation: a stream that was deleted and created again is another one
    │ └ partition
    └ version

One position has one text under one set of filters, so that clients see by equality whether they have advanced. Nothing
else is promised about the text.

An older copy of a log has the incarnation of the original. Once it takes new events, the witness
(``StoredBatch.witness``) distinguishes them from those that the cursor's client has read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2s
from typing import Final, NamedTuple

from spark_streams.log import Partition, StoredBatch
from spark_streams.server.http.requests import HttpError

_SHAPE: Final = re.compile(r"2([0-9a-f]{4})([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{16})")
_NONE: Final = "0" * 8
OLDER: Final = "the log's data was replaced by an older copy, or lost its newest events: start again"


class CursorTarget(NamedTuple):
    """The position of a cursor.

    Args:
        partition: the partition's number.
        offset: the next event to read.
        witness: digest of the witness of the event before it; zeros without one.
    """

    partition: int
    offset: int
    witness: str = _NONE


class Cursors:
    """Cursors of one stream under one set of filters.

    Args:
        incarnation: the stream's incarnation.
        filters: the filters, name to value.
    """

    def __init__(self, incarnation: str, filters: Mapping[str, str]) -> None:
        self._stream = _digest(incarnation)
        pairs = [f"{len(name)}:{name}{len(value)}:{value}" for name, value in sorted(filters.items())]
        self._filters = _digest("".join(pairs)) if filters else _NONE
        self._batch: tuple[Partition, StoredBatch] | None = None

    def encode(self, partition: Partition, offset: int) -> str:
        """Return the cursor after which event ``offset`` is the next.

        Raises:
            CorruptLog: the event before it cannot be read.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        witness = self._witness(partition, offset)
        return f"2{int(partition.id):04x}{self._stream}{self._filters}{witness}{offset:016x}"

    def decode(self, cursor: str) -> CursorTarget:
        """Return the position of a cursor.

        Raises:
            HttpError: 400, the text is no cursor, or it is a cursor of another stream or of other filters.
        """
        shape = _SHAPE.fullmatch(cursor)
        if shape is None:
            raise HttpError(
                400, f"'{cursor:.80}' is no cursor of this feed: expected one that it gave, _first or _last"
            )
        partition, stream, filters, witness, offset = shape.groups()
        if stream != self._stream:
            raise HttpError(
                400,
                "the cursor is another feed's, or of one of this name that is gone, as of a temporary log: start again",
            )
        if filters != self._filters:
            raise HttpError(
                400,
                "the cursor belongs to another set of filters: cursors are only valid for the identical set, so go on "
                "with that one, or start again with _first",
            )
        return CursorTarget(int(partition, 16), int(offset, 16), witness)

    def check(self, target: CursorTarget, partition: Partition) -> None:
        """Check that the event before a position is the same as when the cursor was made, if it is still there.

        Raises:
            HttpError: 400, the partition has another event there.
        """
        if target.witness != _NONE and self._witness(partition, target.offset) not in (_NONE, target.witness):
            raise HttpError(400, f"the feed has other events than those before the cursor: {OLDER}")

    def _witness(self, partition: Partition, offset: int) -> str:
        batch = None if self._batch is None or self._batch[0] is not partition else self._batch[1]
        if batch is None or not batch.first_offset < offset <= batch.next_offset:
            batch = partition.batch_with(offset - 1)
            if batch is None:
                return _NONE
            self._batch = partition, batch
        return _digest(batch.witness)


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=4).hexdigest()
