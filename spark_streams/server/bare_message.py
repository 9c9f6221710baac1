"""Where the bare message of a stored one starts: what came through the RabbitMQ door may have sections before it.

Producers of the AMQP door cannot store header and delivery annotations: they are for the node, and left out. A RabbitMQ
stream gives its readers the bytes that were published, so there they are stored. When such a message leaves through
the AMQP door, the door's own delivery annotations take their place.

Spec: AMQP 1.0 part 3 §3.2.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.log import Records
from spark_streams.wire.amqp.columns import MessageBlock, incoming_columns

__all__ = ["bare_starts"]

_SMALL_ULONG: Final = 0x53
_ULONG: Final = 0x80
_SYMBOLS: Final = (0xA3, 0xB3)
_HEADER: Final = 0x70
"""Header; 0x71, delivery annotations, is the other section before the bare message."""

Longs = NDArray[np.int64]


def bare_starts(records: Records) -> Longs:
    """Return the first byte of each record's bare message; the record's end where it has none."""
    starts, ends = records.value_starts, records.value_ends
    if not records.buffer:
        return starts
    raw = np.frombuffer(records.buffer, np.uint8)

    def bytes_at(distance: int) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = raw.take(starts + distance, mode="clip")
        return found

    # Nearly every message begins with a descriptor of one byte, and says something else there.
    form, code = bytes_at(1), bytes_at(2)
    suspect = code & 0xFE == _HEADER
    if not (form == _SMALL_ULONG).all():
        suspect &= form == _SMALL_ULONG
        suspect |= (form == _ULONG) & (bytes_at(9) & 0xFE == _HEADER) | np.isin(form, _SYMBOLS)
    rows = np.flatnonzero(suspect & (ends - starts >= 3))
    if not len(rows):
        return starts
    incoming = incoming_columns(MessageBlock(records.buffer, starts[rows], ends[rows]))
    found: Longs = starts.copy()
    found[rows] = np.where(incoming.malformed, starts[rows], incoming.value_starts)
    return found
