"""Reading a whole partition back."""

from __future__ import annotations

from spark_streams.log import Partition


def all_values(partition: Partition) -> list[bytes]:
    """Return the values of all retained records, in log order."""
    out: list[bytes] = []
    offset = partition.first_offset
    while (records := partition.read(offset)) is not None:
        out += [records.value(row) for row in range(len(records))]
        offset = int(records.offsets[-1]) + 1
    return out
