"""The driver's connection: one client kept open over triggers, and what it said about the bounds, cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from spark_streams.client.log_client import (
    LogClient,
    OffsetWalk,
    OpaqueLogClient,
    Pushdown,
    RangeRead,
    StreamDescription,
)
from spark_streams.client.retry import PATIENT, Attempts
from spark_streams.endpoint import Node
from spark_streams.errors import NotFound, OptionError, SparkStreamsError
from spark_streams.filters import Expression, read_filter
from spark_streams.options import PositionRange, SourceOptions
from spark_streams.position import EARLIEST, After, At, Earliest, Position
from spark_streams.spark.source.offset_counting import (
    Ahead,
    CountedWalk,
    NumericWalk,
    events_between,
    sample,
    split_points,
)
from spark_streams.spark.splitting import block_sizes, split_evenly

__all__ = ["Connect", "Driver", "position_in", "reaching", "require_all", "require_offsets"]

_T = TypeVar("_T")


class Connect(Protocol):
    """Opens a client; a function of a module, so that it can be pickled by its name."""

    def __call__(self, options: SourceOptions) -> LogClient:
        """Return a new client; the caller closes it."""


class Driver:
    """Asks the peer about one stream; not for several threads.

    Args:
        options: of the reader.
        connect: opens a client.
        clock: seconds, monotonic.
    """

    def __init__(self, options: SourceOptions, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._connect = connect
        self._clock = clock
        self._client: LogClient | None = None
        self._description: StreamDescription | None = None
        self._described_at = 0.0
        self._numeric: bool | None = None
        self.told: tuple[Node, ...] = ()
        """The nodes that the peer has named, for tasks, and for the next connection."""

    def describe(self, *, fresh: bool = False, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions and their bounds, not older than the poll interval.

        Args:
            fresh: asked now.
            certain: partitions that may have lost something. Who cannot be behind other nodes is asked now.
        """
        age_ms = (self._clock() - self._described_at) * 1000
        if fresh or certain or self._description is None or age_ms >= self.options.poll_interval_ms:
            self._description = self.ask(lambda client: client.describe(self.options.stream, certain=certain))
            self._described_at = self._clock()
        return self._description

    def first_at_time(self, partition: str, timestamp_ms: int) -> str | None:
        """Return the offset of the first event that is not earlier, None when there is none."""
        return self.ask(lambda client: client.first_at_time(self.options.stream, partition, timestamp_ms))

    def first_matching(self, partition: str, text: str) -> str | None:
        """Return the offset of the first event that an expression is true of, None when there is none.

        Raises:
            FilterError: the text is no expression.
        """
        expression = read_filter(text)
        return self.ask(lambda client: client.first_matching(self.options.stream, partition, expression))

    def pushdown(self, expression: Expression) -> Pushdown:
        """Return what of a filter the peer checks, and what is left to check."""
        return self.ask(lambda client: client.pushdown(self.options.stream, expression))

    def offsets_are_numbers(self) -> bool:
        """Return whether offsets are numbers, written as decimal digits of a fixed width."""
        if self._numeric is None:
            self._numeric = self.ask(lambda client: client.numeric_offsets)
        return self._numeric

    def count(self, spans: Mapping[str, tuple[Position, str]]) -> dict[str, int | None]:
        """Return how many events each span has.

        Args:
            spans: partition to where it starts and the offset of its last event.

        Returns:
            A number for each partition, exact unless retention is at work; None where the peer does not tell.
        """
        if not spans:
            return {}
        if self.offsets_are_numbers():
            return {p: events_between(start, end, self._earliest(p)) for p, (start, end) in spans.items()}
        after_start = self.remaining({p: start for p, (start, _) in spans.items()})
        after_end = self.remaining({p: After(end) for p, (_, end) in spans.items()})
        counts: dict[str, int | None] = {}
        for partition in spans:
            first, last = after_start[partition], after_end[partition]
            counts[partition] = None if first is None or last is None else max(0, first - last)
        return counts

    def remaining(self, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return how many events there are from each position on, None where the peer does not tell."""
        if self.offsets_are_numbers():
            partitions = self._last_description().partitions
            newest = {p: bounds.latest for p, bounds in partitions.items() if bounds.latest is not None}
            return {
                p: events_between(start, newest[p], self._earliest(p)) if p in newest else 0
                for p, start in positions.items()
            }
        counts = self.ask(lambda client: client.remaining(self.options.stream, positions))
        return {partition: counts.get(partition) for partition in positions}

    def log_identity(self, positions: Mapping[str, Position]) -> dict[str, str]:
        """Return the identity of each ``After`` position, where the peer has one."""
        offsets = {p: position.offset for p, position in positions.items() if isinstance(position, After)}
        if not offsets:
            return {}
        told = self.ask(lambda client: client.log_identity(self.options.stream, offsets))
        return {p: text for p, text in told.items() if text is not None}

    def walk(self, partition: str, start: Position) -> Ahead:
        """Return a new walk over the offsets of a partition; the caller closes it."""
        if self.offsets_are_numbers():
            return NumericWalk(start, lambda: self._earliest(partition))
        return self.ask(lambda client: CountedWalk(self._links(client, partition), start))

    def split(self, reads: list[RangeRead]) -> list[RangeRead]:
        """Split ranges until there are ``minPartitions`` of them, where the events allow it."""
        wanted = self.options.min_partitions or 0
        if not reads or wanted <= len(reads):
            return reads
        sizes = self.count({r.partition: (r.start, r.end) for r in reads})
        samples: dict[str, list[str]] = {}
        for read in reads:
            if sizes.get(read.partition) is None:
                walk = self.walk(read.partition, read.start)
                try:
                    sizes[read.partition], samples[read.partition] = sample(walk, read.end)
                finally:
                    walk.close()
        counts = {partition: size or 0 for partition, size in sizes.items()}
        parts = split_evenly(counts, wanted)
        return [piece for read in reads for piece in self._pieces(read, counts, parts, samples)]

    def _pieces(
        self, read: RangeRead, counts: Mapping[str, int], parts: Mapping[str, int], samples: Mapping[str, list[str]]
    ) -> list[RangeRead]:
        count, wanted = counts[read.partition], parts[read.partition]
        if wanted < 2:
            return [read]
        if read.partition in samples:
            known = samples[read.partition]
            marks = [len(known) * i // wanted for i in range(1, wanted)]
            cuts = [known[mark - 1] for mark in marks if mark]
            cuts = [cut for cut in dict.fromkeys(cuts) if cut < read.end]
        else:
            walk = self.walk(read.partition, read.start)
            try:
                cuts = split_points(walk, read.end, block_sizes(count, wanted))
            finally:
                walk.close()
        starts: list[Earliest | At | After] = [read.start, *(After(cut) for cut in cuts)]
        return [_between(read, start, end) for start, end in zip(starts, [*cuts, read.end], strict=True)]

    def ask(self, question: Callable[[LogClient], _T]) -> _T:
        """Ask the client, which is connected when first needed and tries again by itself where that can help.

        A stream that was there and is not any more is waited for, some 40 seconds: who deletes a stream to empty it
        creates it again.

        Raises:
            SparkStreamsError: whatever the client raises; no connection is left open then.
        """
        attempts = Attempts(PATIENT)
        while True:
            if self._client is None:
                self._client = self._connect(reaching(self.options, self.told)).__enter__()
            try:
                answer = question(self._client)
            except SparkStreamsError as fault:
                self.close()
                if self._description is None or not isinstance(fault, NotFound):
                    raise
                fault.retriable = True
                attempts.after(fault)
                continue
            self.told = self._client.told
            return answer

    def close(self) -> None:
        """Disconnect; the next question connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)

    def _last_description(self) -> StreamDescription:
        """Return what the peer said last, whatever its age: arithmetic asks nothing."""
        return self._description or self.describe()

    def _earliest(self, partition: str) -> str | None:
        bounds = self._last_description().partitions.get(partition)
        return None if bounds is None else bounds.earliest

    def _links(self, client: LogClient, partition: str) -> Callable[[Position], OffsetWalk]:
        walked = cast(OpaqueLogClient, client)
        return lambda start: walked.offsets(self.options.stream, partition, start, None)


def _between(read: RangeRead, start: Earliest | At | After, end: str) -> RangeRead:
    return replace(read, start=start, end=end)


def reaching(options: SourceOptions, told: tuple[Node, ...]) -> SourceOptions:
    """Return options by which a peer is found also where it has said that it is."""
    return replace(options, endpoint=options.endpoint.with_told(told)) if told else options


def require_all(span: PositionRange, partitions: Iterable[str], unavailable: Collection[str] = ()) -> None:
    """Check that a span that names partitions names exactly those of the stream.

    Args:
        span: the positions.
        partitions: those of the stream.
        unavailable: those that the stream has and that are not there: they may be named or not.

    Raises:
        OptionError: it names one that the stream does not have, or leaves one out.
    """
    if span.everywhere is not None:
        return
    there = list(partitions)
    unknown = [p for p in span.each if p not in there and p not in unavailable]
    absent = [p for p in there if p not in span.each]
    listing = ", ".join(f"'{p}'" for p in there)
    if unknown:
        raise OptionError(span.option, f"there is no partition '{unknown[0]}'; the stream has {listing}")
    if absent:
        raise OptionError(
            span.option, f"partition '{absent[0]}' is not there, expected a position for each of {listing}"
        )


def require_offsets(description: StreamDescription, *spans: PositionRange) -> None:
    """Check that the offsets that spans name are such as events of the stream can have, where their form is known.

    Raises:
        OptionError: one is not.
    """
    for span in spans:
        for partition in description.partitions:
            position = position_in(span, partition)
            fault = description.no_offset(position.offset) if isinstance(position, (At, After)) else None
            if fault is not None:
                raise OptionError(span.option, f"partition '{partition}': {fault}")


def position_in(span: PositionRange, partition: str) -> Position:
    """Return the position that a span says for a partition (``EARLIEST`` for one that it cannot know)."""
    return span.everywhere if span.everywhere is not None else span.each.get(partition, EARLIEST)
