"""What the plain formats share: Spark formats that one writes without this project, on a client and with tuples.

Nothing in them is slow on purpose: windows and pages are large, connections are kept, whole batches are sent.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition, WriterCommitMessage

Row = tuple[bytes, str]


class Plain(DataSource):  # type: ignore[misc]
    """A source of bodies with their offsets, and a sink of column ``value``."""

    parts = 1
    """Tasks that read."""

    def schema(self) -> str:
        return "value BINARY, offset STRING"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return _Writer(self)

    def read(self, partition: int) -> Iterator[Row]:
        raise NotImplementedError

    def write(self, bodies: Iterator[bytes]) -> None:
        raise NotImplementedError


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, source: Plain) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._source.parts)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        return self._source.read(partition.value)


class _Writer(DataSourceWriter):  # type: ignore[misc]
    def __init__(self, source: Plain) -> None:
        self._source = source

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._source.write(bytes(row.value) for row in iterator)
        return WriterCommitMessage()


class Batches:
    """Rows from the thread of a client to that of the task, a thousand at a time."""

    def __init__(self, rows: int) -> None:
        self._left = rows
        self._some: list[Row] = []
        self._queue: queue.Queue[list[Row] | Exception] = queue.Queue(100)

    def add(self, row: Row) -> bool:
        """Take a row; return whether it was the last one."""
        self._some.append(row)
        self._left -= 1
        if len(self._some) == 1_000 or not self._left:
            self._queue.put(self._some)
            self._some = []
        return not self._left

    def of(self, client: Callable[[], None]) -> Iterator[Row]:
        """Run a client that adds rows, and yield them; raise what it raises."""
        threading.Thread(target=self._run, args=[client], daemon=True).start()
        while some := self._queue.get():
            if isinstance(some, Exception):
                raise some
            yield from some

    def _run(self, client: Callable[[], None]) -> None:
        try:
            client()
            self._queue.put([])
        except Exception as error:
            self._queue.put(error)
