"""What one writes without this project: clients that read a feed line by line, a Python DataSource that yields tuples.

Nothing here is slow on purpose: pages are large, the connection is kept, and a row is a tuple.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import requests
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

PAGE = 10_000


def lines_of(
    url: str, partition: int, loads: Callable[[bytes], Any], cursor: str = "_first", end: str | None = None
) -> Iterator[tuple[bytes, Any, str]]:
    """Read one partition of a version 2 feed with requests, line by line: payload, event and the cursor behind it."""
    session = requests.Session()
    while cursor != end:
        waiting: list[Any] = []
        events = 0
        with session.get(
            url, params={"partition": partition, "cursor": cursor, "pageSizeHint": PAGE}, stream=True, timeout=30
        ) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines(1 << 18, delimiter=b"\n"):
                if not line:
                    continue
                read = loads(line)
                if "event" in read:
                    waiting.append((line, read["event"]))
                elif "cursor" in read:
                    cursor = read["cursor"]
                    events += len(waiting)
                    for raw, event in waiting:
                        yield raw, event, cursor
                    waiting = []
        if not events:
            return


def read_with_requests(url: str, partitions: int, loads: Callable[[bytes], Any]) -> int:
    """Count the events of a feed, read with requests line by line."""
    return sum(1 for partition in range(partitions) for _ in lines_of(url, partition, loads))


async def read_with_zeroeventhub(url: str, partitions: int) -> int:
    """Count the events of a feed, read with the zeroeventhub package's client in version 1 of the protocol."""
    import httpx
    from zeroeventhub import FIRST_CURSOR, Client, Cursor, Event

    count = 0
    async with httpx.AsyncClient(timeout=60) as http:
        client = Client(url, partitions, http)
        for partition in range(partitions):
            cursor, more = FIRST_CURSOR, True
            while more:
                more = False
                async for each in client.fetch_events([Cursor(partition, cursor)], page_size_hint=PAGE):
                    if isinstance(each, Event):
                        count, more = count + 1, True
                    else:
                        cursor = each.cursor
    return count


def zeroeventhub_count(url: str, partitions: int) -> int:
    """Do ``read_with_zeroeventhub`` in an event loop of its own."""
    return asyncio.run(read_with_zeroeventhub(url, partitions))


class Partition(InputPartition):
    """The partition that a task reads."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class PlainFeedReader(DataSourceReader):
    """Reads with requests and json, and yields tuples."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[Partition]:
        return [Partition(n) for n in range(int(self.options["count"]))]

    def read(self, partition: Partition) -> Iterator[tuple[Any, ...]]:
        text = str(partition.number)
        for _, event, cursor in lines_of(self.options["url"], partition.number, json.loads):
            yield json.dumps(event).encode(), text, cursor


class Range(InputPartition):
    """The part of a partition that a task of a stream reads."""

    def __init__(self, number: int, start: str, end: str) -> None:
        super().__init__((number, start, end))
        self.number, self.start, self.end = number, start, end


class PlainFeedStreamReader(DataSourceStreamReader):
    """The same for a stream: the end is where the feed ends now, and tasks fetch."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def initialOffset(self) -> dict[str, str]:
        return {str(n): "_first" for n in range(int(self.options["count"]))}

    def latestOffset(self) -> dict[str, str]:
        return {number: self._end(number) for number in self.initialOffset()}

    def _end(self, number: str) -> str:
        answer = requests.get(self.options["url"], params={"partition": number, "cursor": "_last"}, timeout=30)
        return str(json.loads(answer.content.splitlines()[-1])["cursor"])

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[Range]:
        return [Range(int(n), start[n], end[n]) for n in start]

    def read(self, partition: Range) -> Iterator[tuple[Any, ...]]:
        text = str(partition.number)
        lines = lines_of(self.options["url"], partition.number, json.loads, partition.start, partition.end)
        for _, event, cursor in lines:
            yield json.dumps(event).encode(), text, cursor


class PlainFeedWriter(DataSourceWriter):
    """Posts rows as event lines, a page at a time."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        session = requests.Session()
        lines: list[str] = []
        for row in iterator:
            lines.append(json.dumps({"event": json.loads(row.value)}))
            if len(lines) == PAGE:
                self._post(session, lines)
        self._post(session, lines)
        return WriterCommitMessage()

    def _post(self, session: requests.Session, lines: list[str]) -> None:
        if lines:
            body = "".join(f"{line}\n" for line in lines).encode()
            answer = session.post(
                self.options["url"], data=body, headers={"Content-Type": "application/x-ndjson"}, timeout=60
            )
            answer.raise_for_status()
            lines.clear()


class PlainFeed(DataSource):
    """The DataSource of it."""

    @classmethod
    def name(cls) -> str:
        return "plain-feed"

    def schema(self) -> str:
        return "value BINARY, partition STRING, offset STRING"

    def reader(self, schema: Any) -> DataSourceReader:
        return PlainFeedReader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return PlainFeedStreamReader(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return PlainFeedWriter(dict(self.options))
