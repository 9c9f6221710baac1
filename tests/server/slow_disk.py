"""A disk on which nothing is stored until a test lets it go."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_streams.log import Partition
from spark_streams.server.appender import Appender


class SlowDisk:
    """Appends of all partitions, held; and what is handed over to be appended meanwhile.

    Args:
        patch: what it is made with, and ends with.
        guard_s: only against hanging.
    """

    def __init__(self, patch: pytest.MonkeyPatch, guard_s: float) -> None:
        self.handed_over: list[int] = []
        """Bytes of each batch."""
        self.begun, self._go = threading.Event(), threading.Event()
        hand_over, append = Appender.append, Partition.append

        def counted(appender: Appender, partition: Partition, batch: Any) -> None:
            self.handed_over.append(batch.values.nbytes)
            hand_over(appender, partition, batch)

        def slow(partition: Partition, *arguments: Any, **named: Any) -> Any:
            self.begun.set()
            assert self._go.wait(guard_s)
            return append(partition, *arguments, **named)

        patch.setattr(Appender, "append", counted)
        patch.setattr(Partition, "append", slow)

    def let_go(self) -> None:
        self._go.set()
