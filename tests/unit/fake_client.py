"""A log in memory and a client of it with the interface of ``AmqpClient``: for the driver's side, without sockets."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from spark_streams.client.model import Bounds, RangeRead, StreamDescription
from spark_streams.errors import NotFound
from spark_streams.filters.event_streams import PaddedDecimalOrder, mask, parse_sql
from spark_streams.options import SourceOptions
from spark_streams.position import EARLIEST, After, At, Position


def name(number: int) -> str:
    """The offset of an event: opaque, ordered, and not a number."""
    return f"e{number:06d}"


class FakePartition:
    def __init__(self) -> None:
        self.first, self.next, self.timestamps = 0, 0, list[int]()

    def append(self, count: int, timestamp: int = 0) -> None:
        self.timestamps += [timestamp] * count
        self.next += count

    def truncate(self, first: int) -> None:
        self.first = min(first, self.next)

    def offsets(self, start: Position, end: str | None = None) -> list[str]:
        every = [name(n) for n in range(self.first, self.next)]
        low = 0
        if isinstance(start, At):
            low = bisect.bisect_left(every, start.offset)
        elif isinstance(start, After):
            low = bisect.bisect_right(every, start.offset)
        else:
            assert start == EARLIEST
        return every[low : len(every) if end is None else bisect.bisect_right(every, end)]


class FakeLog:
    """One stream.

    Args:
        partitions: identifiers.
        tells: whether the peer has our extensions: incarnation, newest removed offset, events remaining.
    """

    def __init__(self, *partitions: str, tells: bool = True, stream: str = "orders") -> None:
        self.stream = stream
        self.tells = tells
        self.incarnation = "one"
        self.partitions = {p: FakePartition() for p in partitions or ("0",)}
        self.described = self.counted = self.connected = self.walks = self.walked = 0

    def connect(self, options: SourceOptions) -> FakeClient:
        self.connected += 1
        return FakeClient(self)


class FakeWalk:
    def __init__(self, log: FakeLog, partition: str, start: Position, end: str | None) -> None:
        self.log, self.partition, self.start, self.end = log, partition, start, end

    def take(self, n: int) -> list[str]:
        taken = self.log.partitions[self.partition].offsets(self.start, self.end)[:n]
        self.log.walked += len(taken)
        if taken:
            self.start = After(taken[-1])
        return taken

    def close(self) -> None:
        self.log.walks -= 1


class FakeClient:
    def __init__(self, log: FakeLog) -> None:
        self.log = log

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *fault: object) -> None:
        self.log = self.log

    def describe(self, stream: str) -> StreamDescription:
        self.log.described += 1
        if stream != self.log.stream:
            raise NotFound("amqp:not-found", "no such log", f"attach to '{stream}/$info'")
        bounds = {}
        for p, held in self.log.partitions.items():
            some = held.first < held.next
            bounds[p] = Bounds(
                name(held.first) if some else None,
                name(held.next - 1) if some else None,
                name(held.first - 1) if self.log.tells and held.first else None,
                self.log.tells,
            )
        return StreamDescription(stream, self.log.incarnation if self.log.tells else None, bounds)

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        self.log.counted += 1
        return {
            p: len(self.log.partitions[p].offsets(position)) if self.log.tells else None
            for p, position in positions.items()
        }

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        held = self.log.partitions[partition]
        for number in range(held.first, held.next):
            if held.timestamps[number] >= timestamp_ms:
                return name(number)
        return None

    def first_matching(self, stream: str, partition: str, text: str) -> str | None:
        held = self.log.partitions[partition]
        numbers = np.arange(held.first, held.next)
        instants = np.array([held.timestamps[number] for number in numbers], np.int64)
        matching = mask(parse_sql(text), numbers, instants, PaddedDecimalOrder())
        return name(int(numbers[matching][0])) if matching.any() else None

    def offsets(self, stream: str, partition: str, start: Position, end: str | None) -> FakeWalk:
        self.log.walks += 1
        return FakeWalk(self.log, partition, start, end)

    def fetch(self, read: RangeRead, *, max_rows: int = 1000, max_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
        offsets = self.log.partitions[read.partition].offsets(read.start, read.end)
        columns = {
            "offset": pa.array(offsets, pa.string()),
            "value": pa.array([o.encode() for o in offsets], pa.binary()),
            "stream": pa.array([read.stream] * len(offsets), pa.string()),
            "partition": pa.array([read.partition] * len(offsets), pa.string()),
        }
        for low in range(0, len(offsets), max_rows):
            yield pa.RecordBatch.from_pydict({c: columns[c].slice(low, max_rows) for c in read.columns})
