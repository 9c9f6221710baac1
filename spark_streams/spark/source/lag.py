"""How many events each partition of a log has after a micro-batch."""

from __future__ import annotations

import logging

from spark_streams.client.log_client import StreamDescription
from spark_streams.errors import SparkStreamsError
from spark_streams.position import EARLIEST, After, Checkpoint, Position
from spark_streams.spark.source.driver import Driver

__all__ = ["Lag"]

_log = logging.getLogger(__name__)


class Lag:
    """Asks the peer how much is left, once for each answer about the log's bounds.

    Args:
        driver: of the query.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._of: tuple[StreamDescription, Checkpoint] | None = None
        self._lag: dict[str, int | None] = {}

    def after(self, end: Checkpoint | None) -> dict[str, int | None]:
        """Return how many events each partition has after ``end``; None where the peer does not tell.

        Args:
            end: of the last planned batch; None when there was none, and nothing is known.
        """
        description = self._driver.describe()
        if end is None:
            return dict.fromkeys(description.partitions)
        if self._of is not None and self._of[0] is description and self._of[1] == end:
            return self._lag
        lag: dict[str, int | None] = {}
        behind: dict[str, Position] = {}
        for partition, bounds in description.partitions.items():
            position = end.partitions.get(partition, EARLIEST)
            if bounds.latest is None or (isinstance(position, After) and position.offset >= bounds.latest):
                lag[partition] = 0
            else:
                behind[partition] = position
        if behind:
            try:
                lag.update(self._driver.counting.remaining(behind))
            except SparkStreamsError as fault:
                _log.debug("no lag: %s", fault)
                lag.update(dict.fromkeys(behind))
        self._of, self._lag = (description, end), lag
        return lag
