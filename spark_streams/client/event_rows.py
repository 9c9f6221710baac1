"""Shared by the row decoders of AMQP and RabbitMQ: columns of the rows that match, and the event that cannot be read.

For a filter, only the columns that it refers to are decoded, and the other columns only for the rows that match: damage
in any other event, or in a part that no column needs, fails no query. Filters compare times in milliseconds, as
messages have them, so that an instant beyond Spark's microseconds fails the rows that show it and no filter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_streams.client.log_client import RangeRead
from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns.decode import IN_MS
from spark_streams.wire.amqp.columns.properties import in_microseconds
from spark_streams.wire.amqp.columns.single_message import TimestampOverflow
from spark_streams.wire.columnar.byte_view import Positions

# glibc takes the arrays of each block from the system, with a page fault for every 4 KiB, and gives them back, until a
# larger piece of memory was freed once (mallopt(3), M_MMAP_THRESHOLD). No code ever touches this piece.
np.empty(24 << 20, np.uint8)

Columns: TypeAlias = dict[str, pa.Array]
ColumnsOf: TypeAlias = Callable[[Positions | None, Sequence[str]], Columns]
"""Decode columns of some rows of a block, None for all; values of ``IN_MS`` are columns with times in milliseconds."""


def matching_columns(
    read: RangeRead,
    names: Sequence[str],
    needed: Collection[str],
    passed: Callable[[Columns], pa.BooleanArray | None],
    columns_of: ColumnsOf,
) -> Columns | None:
    """Return columns of the rows of a block that a filter passes; None for no row.

    Args:
        read: the range.
        names: the columns.
        needed: those that the filter refers to.
        passed: returns which rows pass, given these columns, times in milliseconds; None for all.
        columns_of: decodes columns.

    Raises:
        RemoteProtocolError: ``columns_of`` raised it.
        TimestampOverflow: a time of a row that passes does not fit, and ``read`` makes that an error.
    """
    decoded = columns_of(None, [IN_MS.get(name, name) for name in needed])
    columns = dict(zip(needed, decoded.values(), strict=True))
    mask, rows = passed(columns), None
    if mask is not None and mask.true_count < len(mask):
        if not mask.true_count:
            return None
        rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        columns = {name: column.filter(mask) for name, column in columns.items()}
    for name in columns.keys() & IN_MS.keys() & set(names):
        columns[name] = in_microseconds(columns[name], name, read.timestamp_overflow)
    return columns | columns_of(rows, [name for name in names if name not in columns])


def first_unreadable(count: int, decode: Callable[[slice], object]) -> tuple[int, RemoteProtocolError | None]:
    """Return the first of some rows that cannot be decoded, and why; the number of rows and None where all can.

    Args:
        count: the number of rows.
        decode: decodes some of them, and raises ``RemoteProtocolError`` if one of them cannot be decoded.
    """
    begin = 0
    while True:
        half = max(1, count // 2)
        try:
            decode(slice(begin, begin + half))
        except RemoteProtocolError as fault:
            if count == 1:
                return begin, fault
            count = half
        else:
            begin, count = begin + half, count - half
            if count <= 0:
                return begin, None


def unreadable(read: RangeRead, offset: str | None, fault: RemoteProtocolError) -> RemoteProtocolError:
    """Return the error about an event that cannot be read: which one it is, what is wrong, and how to go on.

    Args:
        read: the range.
        offset: the event's offset; None where that cannot be read either.
        fault: what is wrong.
    """
    where = read.what
    if isinstance(fault, TimestampOverflow):
        way_on = "set option 'timestampOverflow' to 'null' to read such instants as NULL"
    else:
        way_on = "columns that need no broken part of the event can be read, 'message' is the event as it is stored"
    if offset is not None:
        where += f" offset '{offset}'"
        after = json.dumps({read.partition: {"after": offset}}, ensure_ascii=False)
        way_on += (
            f"; or begin after it, with a new checkpoint: startingOffsets {after}; commands: --from after:{offset}"
        )
    return type(fault)(f"{where}: {fault}; {way_on}")
