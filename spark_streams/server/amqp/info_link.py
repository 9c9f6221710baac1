"""The information source ``<log>/$info``: one message for each credit, about the log as it is now.

::

    amqp-value map
      "partitions"          list of maps, one for each partition:
          "partition"               symbol
          "earliest-offset"         symbol | null       first retained event
          "latest-offset"           symbol | null       newest retained event (A-18)
          "x-opt-truncated-offset"  symbol | null       newest event that retention removed
          "x-opt-closed"            true                only where it was split and takes no more events
          "x-opt-starts-after"      symbol              the closed partition with what came before its first event
          "x-opt-cursor-from"       list of symbols     partitions that left, whose events were redistributed onto it
                                                        and others; the last two only where there are some
          "x-opt-remaining"         ulong               only for partitions that the attach names, see below
          "x-opt-witness"           string              for these too, where the named event is retained
      "x-opt-incarnation"   string, which differs for each creation of the log

With the link property ``x-opt-positions``, a map of partition to offset or ``@earliest``, a receiver's messages say how
many retained events come after each. With ``x-opt-witnesses``, a map of up to 64 partitions to offsets, they have a
witness of the event at each offset: a text that differs for another event at the same offset, as in an older copy of
the log to which other events were appended. With ``x-opt-named-only``, true, they have only the partitions that one of
these maps names, perhaps none: many requests about thousands of partitions do not each get all of them in answer.

The address ``$streams`` is an information source about the container, an extension: its messages are an amqp-value map
with ``x-opt-streams``, the sorted names, strings, of the streams that the user may read.

Spec: Event Stream Extensions §6 (ES-400 to ES-405); A-29.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary

from spark_streams.errors import CorruptLog
from spark_streams.log import Partition, StoredBatch, Stream, format_offset
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.offsets import equal_range
from spark_streams.server.amqp.attaches import ConsumerResources, MessageLink
from spark_streams.server.amqp.connection_links import LinkConnection
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.server.amqp.link_turns import BYTES_PER_TURN
from spark_streams.server.turns import Timer
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.session import INVALID_FIELD
from spark_streams.wire.amqp.values import Described, Symbol, ULong

POSITIONS: Final = "x-opt-positions"
WITNESSES: Final = "x-opt-witnesses"
NAMED_ONLY: Final = "x-opt-named-only"
MAX_WITNESSES: Final = 64
"""The most witnesses of one message: each is read from the log's files, and a turn of the loop has no time for more."""
STREAMS: Final = "$streams"
"""The address of the information source about the container."""
_AMQP_VALUE: Final = ULong(0x77)
_AMQP_VALUE_SECTION: Final = b"\x00\x53\x77"
_LIST32: Final = b"\xd0"
_MAP32: Final = b"\xd1"
_PARTITIONS: Final = encode_value("partitions")


def read_positions(link: Link, name: str = POSITIONS) -> dict[str, str]:
    """Return a link property that maps partitions to offsets, ``@earliest`` or ``@latest``.

    Args:
        link: the receiver's.
        name: the name of the link property.

    Raises:
        LinkRefused: the property is no map of symbols.
    """
    positions = link.properties.get(name)
    if positions is None:
        return {}
    if not isinstance(positions, Mapping) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in positions.items()
    ):
        raise LinkRefused(INVALID_FIELD, f"link property {name}: expected a map of partition to offset")
    return {str(k): str(v) for k, v in positions.items()}


class Descriptions:
    """Encodes the descriptions of partitions and caches them, since few of many partitions change between messages."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Partition, tuple[tuple[int, int, bool], int, bytes]] = WeakKeyDictionary()

    def describe(
        self, stream: Stream, positions: Mapping[str, str], witnessed: Mapping[str, str], *, named_only: bool = False
    ) -> bytes:
        """Return the encoded message.

        Args:
            stream: the log.
            positions: partition to the offset after which events are counted.
            witnessed: partition to the offset of an event whose witness is requested; the first ``MAX_WITNESSES``
                count.
            named_only: whether to leave out the partitions that neither of them names.
        """
        witnessed = dict(islice(witnessed.items(), MAX_WITNESSES))
        there = stream.partitions
        items = [
            self._partition(there[name], positions.get(name), witnessed.get(name))
            for name in (dict.fromkeys((*positions, *witnessed)) if named_only else there)
            if name in there
        ]
        listed = _PARTITIONS + _compound(_LIST32, len(items), b"".join(items))
        content = listed + _pairs({"x-opt-incarnation": stream.incarnation})
        return _AMQP_VALUE_SECTION + _compound(_MAP32, 4, content)

    def _partition(self, partition: Partition, after: str | None, witnessed: str | None) -> bytes:
        # Both offsets only rise: with the end read first, no event that retention removed before the second read is
        # described. Where retention has passed the end meanwhile, the partition is described as empty.
        end, first = partition.next_offset, partition.first_offset
        state = (first, end, partition.closed)
        known = self._known.get(partition)
        if known is None or known[0] != state:
            entry = _entry(partition, first, end)
            known = self._known[partition] = (state, 2 * len(entry), _pairs(entry))
        _, count, pairs = known
        requested: dict[str, object] = {}
        if after is not None:
            begin = first if after == "@earliest" else end if after == "@latest" else max(first, equal_range(after)[1])
            requested["x-opt-remaining"] = ULong(max(0, end - begin))
        batch = None if witnessed is None else _batch(partition, witnessed)
        if batch is not None:
            requested["x-opt-witness"] = batch.witness
        return _compound(_MAP32, count + 2 * len(requested), pairs + _pairs(requested))


def _pairs(entries: Mapping[str, object]) -> bytes:
    return b"".join(encode_value(name) + encode_value(value) for name, value in entries.items())


def _compound(constructor: bytes, count: int, content: bytes) -> bytes:
    """Return a list or a map of four-byte sizes (AMQP 1.0 §1.6.22, §1.6.23)."""
    return constructor + struct.pack(">II", 4 + len(content), count) + content


def list_streams(names: Iterable[str]) -> bytes:
    """Return the encoded message about the container."""
    return encode_value(Described(_AMQP_VALUE, {"x-opt-streams": sorted(names)}))


def _entry(partition: Partition, first: int, end: int) -> dict[str, object]:
    """Return the description of a partition without what an attach requests."""
    entry: dict[str, object] = {
        "partition": Symbol(partition.id),
        "earliest-offset": Symbol(format_offset(first)) if first < end else None,
        "latest-offset": Symbol(format_offset(end - 1)) if first < end else None,
        "x-opt-truncated-offset": Symbol(format_offset(first - 1)) if first else None,
    }
    if partition.closed:
        entry["x-opt-closed"] = True
    if partition.starts_after is not None:
        entry["x-opt-starts-after"] = Symbol(partition.starts_after)
    if partition.cursor_from:
        entry["x-opt-cursor-from"] = [Symbol(name) for name in partition.cursor_from]
    return entry


def _batch(partition: Partition, offset: str) -> StoredBatch | None:
    number = equal_range(offset)[1] - 1  # of the last event there can be up to it
    if number < 0 or format_offset(number) != offset:
        return None
    try:
        return partition.batch_with(number)
    except (CorruptLog, PartitionClosed):
        return None  # a receiver of the partition gets the error


class InfoLink(MessageLink):
    """A sending link of the information source.

    Args:
        connection, link: see ``AttachedLink``.
        stream: the log; None: the source is about the container.
        message: returns the encoded message about the present state.

    Messages are sent settled where the receiver requests it. Otherwise each is settled when the receiver gives it any
    outcome: a description of the moment is not sent again.
    """

    node: ConsumerResources

    def __init__(
        self, connection: LinkConnection, link: Link, stream: Stream | None, message: Callable[[], bytes]
    ) -> None:
        super().__init__(connection, link, stream)
        self._message = message
        self._timer = Timer(asyncio.get_running_loop())

    def serve(self) -> bool:
        """Send one message; further ones that credit allows follow at intervals. A draining receiver gets one."""
        if self.ended or self._timer.due:
            return False
        deliveries = self._deliveries
        if not self.connection.turns.paused:
            if not deliveries.is_begun and self._may_send():
                self._send(self._message())
            deliveries.go_on(BYTES_PER_TURN)
        if self.connection.turns.paused or deliveries.is_begun:
            self.connection.turns.block(self)
        elif deliveries.draining:
            deliveries.give_back()
        elif self._may_send():
            self._timer.start(self.node.config.info_interval_ms / 1000, self.connection.turns.wake, self)
        return False

    def _may_send(self) -> bool:
        return self._deliveries.credit > 0 and self._deliveries.unsettled < self.node.config.max_unsettled

    def _released(self, *, closed: bool) -> None:
        self._timer.stop()
        super()._released(closed=closed)
