"""Makes the deliveries of a publisher, each of them one event or a batch of several, and knows the rows of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.batch_encode import join_batches
from spark_streams.wire.amqp.dialects.dialect import Dialect
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Positions, run_ends

MAX_BATCH_BYTES: Final = 256 << 10
"""Bytes of a batch, at most: what every tier of Event Hubs takes. Larger ones would save nothing more, while events
without a key spread over the partitions by batches, and a busy peer rejects whole batches."""
FEWEST_EVENTS: Final = 8
"""Events of a batch, at least: with fewer, batches save the sender nothing, and the peer unpacks each on its own."""
JOINED_BYTES: Final = 8 << 20
"""About how many bytes of events are grouped by key at once; a second copy of them exists meanwhile."""


@dataclass(frozen=True)
class OutgoingEvents:
    """Deliveries, in the order in which they are sent.

    Args:
        payloads: the payload of each: a message, or a batch.
        first_row: the number of row 0 of ``rows``.
        formats: the message-format of each; None for 0.
        rows: the rows of all deliveries, one delivery after the other; None where each delivery is the next row.
        bounds: where the rows of each delivery begin in ``rows``, and the end of the last one's.
    """

    payloads: pa.LargeBinaryArray
    first_row: int
    formats: NDArray[np.uint32] | None = None
    rows: Positions | None = None
    bounds: Positions | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def events(self) -> int:
        """How many events the deliveries have."""
        return len(self) if self.bounds is None else int(self.bounds[-1] - self.bounds[0])

    @property
    def size(self) -> int:
        """Bytes of the payloads."""
        return len(layout(self.payloads)[1])

    def slice(self, start: int, count: int | None = None) -> OutgoingEvents:
        """Return ``count`` deliveries from ``start`` on, all by default."""
        stop = len(self) if count is None else start + count
        payloads = self.payloads.slice(start, count)
        if self.bounds is None or self.formats is None:
            return OutgoingEvents(payloads, self.first_row + start)
        bounds, formats = self.bounds[start : stop + 1], self.formats[start:stop]
        return OutgoingEvents(payloads, self.first_row, formats, self.rows, bounds)

    def rows_of(self, delivery: int) -> tuple[int, int]:
        """Return the number of a delivery's first row, and how many rows it has."""
        if self.bounds is None or self.rows is None:
            return self.first_row + delivery, 1
        first, stop = self.bounds[delivery : delivery + 2].tolist()
        return self.first_row + int(self.rows[first]), stop - first


def outgoing_events(
    payloads: pa.LargeBinaryArray, first_row: int, dialect: Dialect, max_bytes: int
) -> Iterator[OutgoingEvents]:
    """Yield events as a peer takes them: in batches where its dialect has them, about ``JOINED_BYTES`` at a time.

    Args:
        payloads: an encoded message for each event, without nulls.
        first_row: the number of the first event's row.
        dialect: the peer's.
        max_bytes: the largest message that the peer takes; 0 for any.
    """
    if dialect.batch_format is None or not len(payloads):
        yield OutgoingEvents(payloads, first_row)
        return
    most, bounds = min(max_bytes or MAX_BATCH_BYTES, MAX_BATCH_BYTES), layout(payloads)[0]
    for at, stop in pairwise([0, *run_ends(bounds[1:], JOINED_BYTES)]):
        some = payloads.slice(at, stop - at)
        joined = join_batches(some, dialect.places, most, FEWEST_EVENTS)
        if joined is None:
            yield OutgoingEvents(some, first_row + at)
        else:
            formats = np.where(joined.batched, dialect.batch_format, 0).astype(np.uint32)
            yield OutgoingEvents(joined.payloads, first_row + at, formats, joined.rows, joined.bounds)
