"""``plain-feed``: feeds by requests, line by line; ``plain-zeroeventhub``: by that package's client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import requests
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tests.bench.harness.peers import PARTITIONS
from tests.bench.plain.source import Plain, Row

PAGE = 10_000
START = "_first"


def lines_of(url: str, partition: int, cursor: str = START, end: str | None = None) -> Iterator[Row]:
    """Read one partition of a version 2 feed: payloads, each with the cursor behind it."""
    session = requests.Session()
    while cursor != end:
        waiting: list[Any] = []
        events = 0
        asked = {"partition": str(partition), "cursor": cursor, "pageSizeHint": str(PAGE)}
        with session.get(url, params=asked, stream=True, timeout=30) as answer:
            answer.raise_for_status()
            for line in filter(None, answer.iter_lines(1 << 18, delimiter=b"\n")):
                read = json.loads(line)
                if "event" in read:
                    waiting.append(read["event"])
                elif "cursor" in read:
                    cursor = read["cursor"]
                    events += len(waiting)
                    yield from ((json.dumps(event).encode(), cursor) for event in waiting)
                    waiting = []
        if not events:
            return


class PlainFeed(Plain):
    """Option: ``url`` of the feed."""

    parts = PARTITIONS

    @classmethod
    def name(cls) -> str:
        return "plain-feed"

    def read(self, partition: int) -> Iterator[Row]:
        return lines_of(self.options["url"], partition)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _StreamReader(self.options["url"])

    def write(self, bodies: Iterator[bytes]) -> None:
        session = requests.Session()
        headers = {"Content-Type": "application/x-ndjson"}
        while lines := [json.dumps({"event": body.decode()}) + "\n" for body in islice(bodies, PAGE)]:
            page = "".join(lines).encode()
            session.post(self.options["url"], data=page, headers=headers, timeout=60).raise_for_status()


class _Range(InputPartition):  # type: ignore[misc]
    """The part of a partition that a task of a stream reads."""

    def __init__(self, number: int, start: str, end: str) -> None:
        super().__init__((number, start, end))


class _StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """The end is where the feed ends now, and tasks fetch (ADR 44 has the driver fetch)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def initialOffset(self) -> dict[str, str]:
        return {str(number): START for number in range(PARTITIONS)}

    def latestOffset(self) -> dict[str, str]:
        return {number: self._end(number) for number in self.initialOffset()}

    def _end(self, number: str) -> str:
        answer = requests.get(self._url, params={"partition": number, "cursor": "_last"}, timeout=30)
        return str(json.loads(answer.content.splitlines()[-1])["cursor"])

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        return [_Range(int(number), start[number], end[number]) for number in start]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        return lines_of(self._url, *partition.value)


class PlainZeroEventHub(Plain):
    """Reads a feed in version 1 of the protocol, all partitions by one client.

    Options: ``url`` of the feed; ``packages``, the folder with the client and what it needs, an environment of its own.
    """

    @classmethod
    def name(cls) -> str:
        return "plain-zeroeventhub"

    def read(self, partition: int) -> Iterator[Row]:
        rows: list[Row] = []
        asyncio.run(self._fetch(rows))
        return iter(rows)

    async def _fetch(self, rows: list[Row]) -> None:
        sys.path.insert(0, self.options["packages"])
        import httpx
        from zeroeventhub import FIRST_CURSOR, Client, Cursor, Event

        async with httpx.AsyncClient(timeout=60) as http:
            client = Client(self.options["url"], PARTITIONS, http)
            for partition in range(PARTITIONS):
                cursor, more = FIRST_CURSOR, True
                while more:
                    more = False
                    async for each in client.fetch_events([Cursor(partition, cursor)], page_size_hint=PAGE):
                        if isinstance(each, Event):
                            rows.append((json.dumps(each.data).encode(), ""))
                            more = True
                        else:
                            cursor = each.cursor
