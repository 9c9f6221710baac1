"""A log in memory and a client of it with the interface of ``AmqpClient``: for the driver's side, without sockets."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterator, Mapping

import pyarrow as pa

from spark_streams.client.log_client import Bounds, Pushdown, RangeRead, StreamDescription
from spark_streams.errors import ConnectionLost, NotFound
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.tree import Expression, Reference, ReferenceKind
from spark_streams.options.common import SourceOptions
from spark_streams.position import EARLIEST, After, At, Position


def name(number: int) -> str:
    """The offset of an event: opaque, ordered, and not a number."""
    return f"e{number:06d}"


def digits(number: int) -> str:
    """The offset of an event where offsets are numbers."""
    return f"{number:020d}"


class FakePartition:
    """One partition.

    Args:
        spell: how an offset is written.
        created: what tells this creation of it from another, where the log has identities.
    """

    def __init__(self, spell: Callable[[int], str] = name, created: str = "one") -> None:
        self.first, self.next, self.timestamps = 0, 0, list[int]()
        self.spell, self.created = spell, created
        self.blanks: set[int] = set()
        """Offsets that hold no event."""

    def append(self, count: int, timestamp: int = 0) -> None:
        self.timestamps += [timestamp] * count
        self.next += count

    def append_blank(self, count: int = 1) -> None:
        """Use up offsets without an event, as a tracking chunk does."""
        self.blanks |= set(range(self.next, self.next + count))
        self.append(count)

    def truncate(self, first: int) -> None:
        self.first = min(first, self.next)

    def offsets(self, start: Position, end: str | None = None) -> list[str]:
        every = [self.spell(n) for n in range(self.first, self.next) if n not in self.blanks]
        low = 0
        if isinstance(start, At):
            low = bisect.bisect_left(every, start.offset)
        elif isinstance(start, After):
            low = bisect.bisect_right(every, start.offset)
        else:
            assert start == EARLIEST
        return every[low : len(every) if end is None else bisect.bisect_right(every, end)]

    def matching(self, offsets: list[str], expression: Expression, partition: str) -> list[str]:
        """Those of some offsets whose events an expression is true of.

        The key of an event is its number modulo 10, its body is its offset, and its property ``n`` is its number.
        """
        numbers = {self.spell(n): n for n in range(self.first, self.next)}

        def look_up(offset: str) -> Callable[[Reference], str | int | None]:
            number = numbers[offset]
            values: dict[ReferenceKind, str | int] = {
                ReferenceKind.PUBLISH_TIME: self.timestamps[number],
                ReferenceKind.KEY: str(number % 10),
                ReferenceKind.PARTITION: partition,
                ReferenceKind.OFFSET: offset,
                ReferenceKind.BODY_SIZE: len(offset),
            }
            return lambda part: str(number) if part.name == "n" else values.get(part.kind)

        return [offset for offset in offsets if evaluate(expression, look_up(offset)) is True]

    def identity_at(self, offset: str) -> str | None:
        return self.created if self.spell(self.first) <= offset < self.spell(self.next) else None


class FakeLog:
    """One stream.

    Args:
        partitions: identifiers.
        tells: whether the peer has our extensions: incarnation, newest removed offset, events remaining.
        numeric: whether it is like RabbitMQ's: offsets are numbers, identities instead of an incarnation, and what was
            removed is told.
    """

    def __init__(self, *partitions: str, tells: bool = True, stream: str = "orders", numeric: bool = False) -> None:
        self.stream = stream
        self.tells = tells
        self.numeric = numeric
        self.incarnation = "one"
        self.has_log_identity = numeric
        """Whether it tells identities; the reference log's AMQP door does, beside its incarnation."""
        self.partitions = {p: FakePartition(digits if numeric else name) for p in partitions or ("0",)}
        self.described = self.counted = self.connected = self.walks = self.walked = self.identified = self.fetched = 0
        self.asked_pushdown = 0
        self.max_readers: int | None = None
        """How many links may read a partition at a time."""
        self.hidden: set[str] = set()
        """Partitions that are missing for a moment."""
        self.unavailable: set[str] = set()
        """Partitions that the stream names, and that are not there."""
        self.stored: list[tuple[str, dict[str, str]]] = []
        """Positions stored with the log, each with its reference."""
        self.behind = 0
        """How many of the newest events of each partition the nodes that follow do not have yet."""
        self.broken = 0
        """How many of the next questions find the connection broken."""
        self.advertised: tuple[tuple[str, int], ...] = ()
        """The nodes that the log names."""
        self.reached_by: list[tuple[tuple[str, int], ...]] = []
        """The nodes that those who connected had been told of."""

    def connect(self, options: SourceOptions) -> FakeClient:
        self.connected += 1
        self.reached_by.append(options.endpoint.advertised)
        return FakeClient(self)

    def connect_store(self, options: SourceOptions) -> FakeClient:
        """A client that stores positions under the name ``tools``."""
        self.connected += 1
        self.reached_by.append(options.endpoint.advertised)
        return FakeClient(self, "tools")


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
    def __init__(self, log: FakeLog, reference: str | None = None) -> None:
        self.log, self.reference = log, reference

    @property
    def numeric_offsets(self) -> bool:
        return self.log.numeric

    @property
    def advertised(self) -> tuple[tuple[str, int], ...]:
        return self.log.advertised

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *fault: object) -> None:
        self.log = self.log

    def describe(self, stream: str, *, certain: Collection[str] = ()) -> StreamDescription:
        self.log.described += 1
        if stream != self.log.stream:
            raise NotFound("amqp:not-found", "no such log", f"attach to '{stream}/$info'")
        bounds = {}
        tells = self.log.tells or self.log.numeric
        for p, held in self.log.partitions.items():
            if p in self.log.hidden | self.log.unavailable:
                continue
            end = held.next if p in certain else held.next - self.log.behind
            some = held.first < end
            bounds[p] = Bounds(
                held.spell(held.first) if some else None,
                held.spell(end - 1) if some else None,
                held.spell(held.first - 1) if tells and held.first else None,
                tells,
            )
        identity = self.log.incarnation if self.log.tells and not self.log.numeric else None
        gone = dict.fromkeys(self.log.unavailable, "gone (0x02)")
        return StreamDescription(stream, identity, bounds, gone, max_readers=self.log.max_readers)

    def log_identity(self, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        if not self.log.has_log_identity:
            return {}
        self.log.identified += 1
        assert not self.log.unavailable & set(offsets), "nobody asks about what is not there"
        there = {p: held for p, held in self.log.partitions.items() if p not in self.log.hidden}
        return {p: there[p].identity_at(offset) if p in there else None for p, offset in offsets.items()}

    def store_offsets(self, positions: Mapping[str, str]) -> None:
        assert self.reference is not None
        if self.log.broken:
            self.log.broken -= 1
            raise ConnectionLost("h:5552 closed the connection")
        self.log.stored.append((self.reference, dict(positions)))
        for partition in positions:
            self.log.partitions[partition].append_blank()  # a tracking chunk

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        assert not self.log.numeric, "numbers need no question"
        self.log.counted += 1
        return {
            p: len(self.log.partitions[p].offsets(position)) if self.log.tells else None
            for p, position in positions.items()
        }

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        held = self.log.partitions[partition]
        for number in range(held.first, held.next):
            if held.timestamps[number] >= timestamp_ms:
                return held.spell(number)
        return None

    def first_matching(self, stream: str, partition: str, expression: Expression) -> str | None:
        held = self.log.partitions[partition]
        return next(iter(held.matching(held.offsets(EARLIEST), expression, partition)), None)

    def pushdown(self, stream: str, expression: Expression) -> Pushdown:
        """Nothing is pushed: the client checks it all."""
        self.log.asked_pushdown += 1
        return Pushdown(None, expression)

    def offsets(self, stream: str, partition: str, start: Position, end: str | None) -> FakeWalk:
        assert not self.log.numeric, "numbers need no walk"
        self.log.walks += 1
        return FakeWalk(self.log, partition, start, end)

    @staticmethod
    def _properties(of_each: list[dict[str, str]]) -> pa.MapArray:
        return pa.array(of_each, pa.map_(pa.string(), pa.string()))

    def fetch(self, read: RangeRead, *, max_rows: int = 1000, max_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
        self.log.fetched += 1
        held = self.log.partitions[read.partition]
        offsets = held.offsets(read.start, read.end)
        if read.filter is not None:
            offsets = held.matching(offsets, read.filter, read.partition)
        columns = {
            "offset": pa.array(offsets, pa.string()),
            "value": pa.array([o.encode() for o in offsets], pa.binary()),
            "stream": pa.array([read.stream] * len(offsets), pa.string()),
            "partition": pa.array([read.partition] * len(offsets), pa.string()),
            "application_properties": self._properties([{"n": each} for each in offsets]),
            "message_annotations": self._properties([{} for _ in offsets]),
        }
        for low in range(0, len(offsets), max_rows):
            yield pa.RecordBatch.from_pydict({c: columns[c].slice(low, max_rows) for c in read.columns})
