"""Storage of committed positions with the peer, for tools that show a consumer's lag; queries never read them back.

No guarantee depends on it: a query continues from Spark's checkpoint, Spark reports a commit one batch late, and a
failure to store is only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

from spark_streams.client.log_client import LogClient, RangeRead
from spark_streams.endpoint import Node
from spark_streams.errors import SparkStreamsError
from spark_streams.options.common import SourceOptions
from spark_streams.position import After, Checkpoint
from spark_streams.spark.source.driver import Driver

_log = logging.getLogger(__name__)

FEW_OFFSETS: Final = 64
"""Largest advance, in offsets, that is read to find out whether it has an event."""


class OffsetStore(LogClient, Protocol):
    """A client that stores positions with the peer, under the name with which it was opened."""

    def store_offsets(self, offsets: Mapping[str, str]) -> None:
        """Store the offset of the last event that was read (inclusive), for each partition."""


ConnectStore = Callable[[SourceOptions], OffsetStore]
"""Returns a new client, which reads without filters and in no group, and which the caller closes; it is a function of a
module, so that pickle stores its name."""


class StoredPositions:
    """Stores the ends of a query's committed batches, over its own connection.

    A broker may write the stored position into the stream itself, as RabbitMQ does. The stream grows then, which makes
    an empty micro-batch. If the end of that batch were stored too, batches would follow each other for ever. So an
    advance of a few offsets since the last stored position is stored only if it has an event.

    Args:
        options: of the query.
        connect: opens the client.
    """

    def __init__(self, options: SourceOptions, connect: ConnectStore) -> None:
        self._driver = Driver(options, connect)
        self._stored: dict[str, str] = {}
        self._failing = False

    def store(self, end: Checkpoint, advertised: tuple[Node, ...] = ()) -> None:
        """Store the end of a committed batch; log errors of the peer or the network instead of raising them.

        Args:
            end: the end of the batch.
            advertised: nodes that the peer has named to the query.
        """
        offsets = {p: position.offset for p, position in end.partitions.items() if isinstance(position, After)}
        self._driver.advertised = advertised
        try:
            self._driver.ask(lambda client: self._store(cast(OffsetStore, client), offsets))
            self._failing = False
        except SparkStreamsError as fault:
            if not self._failing:
                self._failing = True
                _log.warning("%s: positions could not be stored: %s", self._driver.options.label, fault)

    def close(self) -> None:
        """Disconnect; the next position connects again."""
        self._driver.close()

    def _store(self, client: OffsetStore, offsets: Mapping[str, str]) -> None:
        wanted = {p: offset for p, offset in offsets.items() if self._has_advanced(client, p, offset)}
        if wanted:
            client.store_offsets(wanted)
            self._stored.update(wanted)

    def _has_advanced(self, client: OffsetStore, partition: str, offset: str) -> bool:
        last = self._stored.get(partition)
        if last is None or offset < last:  # the first position, or the partition was created again
            return True
        if offset == last:
            return False
        if client.numeric_offsets and int(offset) - int(last) > FEW_OFFSETS:
            return True
        advance = RangeRead(
            self._driver.options.stream, partition, After(last), offset, ("offset",), fail_on_data_loss=False
        )
        return any(batch.num_rows for batch in client.fetch(advance))
