"""Many encoded messages to Arrow columns: what ``single_message.py`` defines, a whole block at a time.

A block is walked in lockstep (``wire/amqp/sections.py``); ranges of bytes are then gathered into Arrow arrays
(``canonical.py``). Messages marked odd on the way are decoded one by one and put in their places, so the answer does
not depend on the path. A part of a message that no named column needs is not decoded, and damage there is not noticed.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.columns.lockstep import COLUMN_TYPES, Lockstep, MessageBlock
from spark_streams.wire.amqp.columns.single_message import Overflow, TimestampOverflow, row_columns

__all__ = ["COLUMN_TYPES", "MessageBlock", "Overflow", "TimestampOverflow", "decode_columns"]


def decode_columns(block: MessageBlock, names: Collection[str], *, overflow: Overflow = "fail") -> dict[str, pa.Array]:
    """Decode the named columns of all messages of a block.

    Args:
        block: the messages.
        names: of ``COLUMN_TYPES``; nothing else is decoded.
        overflow: what becomes of an instant that does not fit int64 microseconds: ``fail`` raises, ``null`` makes the
            cell null. It never wraps.

    Returns:
        Name to array, in the order of ``names``, each with one row a message.

    Raises:
        RemoteProtocolError: a message is broken in a part that a named column needs. Nothing is answered for the
            other messages of the block.
        TimestampOverflow: a timestamp does not fit microseconds, and ``overflow`` is ``fail``.
        LocalProtocolError: an unknown name, or ranges outside the buffer.
    """
    unknown = set(names) - COLUMN_TYPES.keys()
    if unknown:
        raise LocalProtocolError(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(COLUMN_TYPES)}")
    walk = Lockstep(block, frozenset(names))
    for row in np.flatnonzero(walk.odd).tolist():
        walk.place(row, row_columns(walk.raw(row), names, overflow))
    return {name: walk.array(name, overflow) for name in names}
