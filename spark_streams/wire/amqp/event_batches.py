"""Splits a batch of Event Hubs: a message each of whose data sections is a whole encoded message.

::

    [message annotations: x-opt-partition-key]  00 53 75 a0 n message  00 53 75 a0 n message ...

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.dialects.event_hubs import PARTITION_KEY
from spark_streams.wire.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    each_entry,
    skip_value,
    split_sections,
)
from spark_streams.wire.columnar.byte_view import Positions

_DATA_SECTION: Final = bytes((0, 0x53, DATA))
_FOOTER_SECTION: Final = bytes((0, 0x53, FOOTER))
_FEWEST_ALIKE: Final = 16
"""The fewest events of equal size in a batch for which comparing their heads in one operation pays."""


class Batch(NamedTuple):
    """The events of a batch.

    Args:
        key: the partition key of all of them, or None.
        starts, ends: where each event's message lies in the batch, the end exclusive.
    """

    key: str | None
    starts: Positions
    ends: Positions


def split_batch(raw: bytes) -> Batch:
    """Return where the events of a batch are: each of its data sections is a whole encoded message.

    Args:
        raw: a message of ``BATCH_FORMAT``.

    Raises:
        RemoteProtocolError: it has no such sections.
    """
    before = split_sections(raw, APPLICATION_PROPERTIES)
    at = before[-1].end if before else 0
    key = None
    for section in before:
        if section.code == MESSAGE_ANNOTATIONS:
            values = (
                decode_value(raw, each.value)[0] for each in each_entry(raw, section.value) if each.key == PARTITION_KEY
            )
            key = next((str(value) for value in values if isinstance(value, str)), None)
    starts, ends, at = _alike(raw, at)
    more_starts: list[int] = []
    more_ends: list[int] = []
    while at < len(raw):
        if raw[at : at + 3] != _DATA_SECTION:
            if raw[at : at + 3] == _FOOTER_SECTION and (more_starts or len(starts)):
                break
            raise RemoteProtocolError(f"a batch of events at byte {at}: expected a data section")
        start, end = _data(raw, at)
        more_starts.append(start)
        more_ends.append(end)
        at = end
    if not more_starts and not len(starts):
        raise RemoteProtocolError("a batch without events")
    return Batch(
        key,
        np.concatenate((starts, np.array(more_starts, np.int64))),
        np.concatenate((ends, np.array(more_ends, np.int64))),
    )


def _data(raw: bytes, at: int) -> tuple[int, int]:
    """Return where the content of a data section lies."""
    end = skip_value(raw, at + 3)
    if raw[at + 3] not in (0xA0, 0xB0):
        raise RemoteProtocolError(f"data section: holds format code 0x{raw[at + 3]:02x}")
    return at + (5 if raw[at + 3] == 0xA0 else 8), end


def _alike(raw: bytes, at: int) -> tuple[Positions, Positions, int]:
    """Return the first events of a batch if they have one size, as nearly always, and the place after them."""
    none = np.zeros(0, np.int64)
    if raw[at : at + 3] != _DATA_SECTION:
        return none, none, at
    start, end = _data(raw, at)
    head, size = start - at, end - at
    count = (len(raw) - at) // size
    if count < _FEWEST_ALIKE:
        return none, none, at
    heads = np.ndarray((count, head), np.uint8, raw, at, (size, 1))
    same = (heads == heads[0]).all(axis=1)
    count = count if same.all() else int(same.argmin())
    begins = at + size * np.arange(count, dtype=np.int64)
    return begins + head, begins + size, at + size * count
