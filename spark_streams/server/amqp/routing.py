"""Routes a producer's events: decides the partition of each event.

In this order (Event Stream Extensions §4.2, §4.6.6, §4.6.7):

1. event-streams-target-partition: exactly that partition; the event is rejected where no partition has this name, where
   the link is bound to another one (ES-111 to ES-113), and where the partition was split and takes no more events.
2. the partition that the link is bound to; the event is rejected where it was split and takes no more events.
3. event-streams-group-key: CRC-32 (zlib's, of the key's UTF-8 bytes) modulo the number of partitions, in the order of
   the log's partitions; where that partition was split, one of its children (``log/partition_tree.py``). A key stays
   with its partition as long as the number of partitions does (ES-115), across connections, restarts and machines.
4. in turn (ES-015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.log import Stream
from spark_streams.server.amqp.error_conditions import NOT_FOUND, LinkRefused
from spark_streams.server.amqp.placement import split_refusal
from spark_streams.wire.amqp.columns.from_producers import Incoming
from spark_streams.wire.amqp.engine.session import DECODE_ERROR, NOT_ALLOWED
from spark_streams.wire.columnar.arrays import distinct

REJECTED = -1


@dataclass(frozen=True)
class Routed:
    """The routes of a block of events.

    Args:
        partitions: int64[n], for each event an index into the given partitions, or -1 for a rejected event.
        rejections: row to refusal, for each event with -1.
        turn: how many events of the link were routed in turn so far.
    """

    partitions: NDArray[np.int64]
    rejections: dict[int, LinkRefused]
    turn: int


def route(incoming: Incoming, stream: Stream, partitions: Sequence[str], bound: str | None, turn: int) -> Routed:
    """Route a block of events.

    Args:
        incoming: the events in columns.
        stream: the log.
        partitions: identifiers of the partitions that take events.
        bound: the partition of the link, or None.
        turn: how many events of the link were routed in turn before.
    """
    index = {name: at for at, name in enumerate(partitions)}
    whole = ~incoming.malformed
    places = np.full(len(whole), REJECTED, np.int64)
    rejections: dict[int, LinkRefused] = {}
    if not whole.all():
        malformed = LinkRefused(DECODE_ERROR, "the message cannot be decoded as AMQP 1.0 sections")
        rejections.update(dict.fromkeys(np.flatnonzero(~whole).tolist(), malformed))
    codes, targets = distinct(incoming.target_partition)
    names = targets.to_pylist()
    if bound is not None:  # an event without a target goes to the link's partition as if it named it
        codes = np.where(codes < 0, len(names), codes)
        names.append(bound)
    for code, name in enumerate(names):
        rows = np.flatnonzero((codes == code) & whole)
        refusal = target_refusal(stream, name, index, bound)
        if refusal is None:
            places[rows] = index[name]
        else:
            rejections.update(dict.fromkeys(rows.tolist(), refusal))
    open_rows = (codes < 0) & whole
    if open_rows.any() and incoming.group_key.null_count < len(whole):
        codes, keys = distinct(incoming.group_key.cast(pa.binary()))
        there = stream.homes_among(partitions).homes(keys.to_pylist())
        homes = np.array([index[home] for home in there], np.int64)
        rows = np.flatnonzero(open_rows & (codes >= 0))
        places[rows] = homes[codes[rows]]
        open_rows[rows] = False
    rest = np.flatnonzero(open_rows)
    places[rest] = (turn + np.arange(len(rest))) % len(partitions)
    return Routed(places, rejections, turn + len(rest))


def target_refusal(stream: Stream, name: str, index: dict[str, int], bound: str | None) -> LinkRefused | None:
    """Return why events of a link may not go to a partition, or None."""
    if name not in index:
        partition = stream.partitions.get(name)
        if partition is not None and partition.closed:
            return split_refusal(partition)
        return LinkRefused(NOT_FOUND, f"the event's target partition '{name}' does not exist")
    if bound is not None and name != bound:
        return LinkRefused(
            NOT_ALLOWED, f"the event's target partition is '{name}', and its link is bound to partition '{bound}'"
        )
    return None
