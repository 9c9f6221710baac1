"""What stored messages say, in columns, also where a door let in one that cannot be read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_streams.errors import RemoteProtocolError
from spark_streams.log.format.records import Records
from spark_streams.wire.amqp.columns import MessageBlock, decode_columns

__all__ = ["message_columns_of"]


def message_columns_of(records: Records, names: tuple[str, ...]) -> dict[str, pa.Array]:
    """Decode columns of stored messages.

    Bodies are not looked at before somebody reads them, so there may be messages that cannot be decoded. The value of
    such a message is its stored bytes, and its other columns are null; so is an instant beyond int64 microseconds.

    Args:
        records: of one partition; their values are AMQP messages.
        names: of ``wire.columns.COLUMN_TYPES``.

    Returns:
        Name to array, in the order of ``names``, each with one row a record.
    """
    try:
        return decode_columns(
            MessageBlock(records.buffer, records.value_starts, records.value_ends), names, overflow="null"
        )
    except RemoteProtocolError:
        half = len(records) // 2
        if half:
            parts = [message_columns_of(cut, names) for cut in (records.slice(0, half), records.slice(half))]
            return {name: pa.concat_arrays([part[name] for part in parts]) for name in names}
        none = np.empty(0, np.int64)
        return {
            name: pa.array([records.value(0)] if name == "value" else [None], column.type)
            for name, column in decode_columns(MessageBlock(b"", none, none), names).items()
        }
