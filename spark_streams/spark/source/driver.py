"""The driver's connection: one client kept open over triggers, and what it said about the bounds, cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from spark_streams.client.log_client import LogClient, Pushdown, RangeRead, StreamDescription
from spark_streams.client.retry import PATIENT, Attempts
from spark_streams.endpoint import Node
from spark_streams.errors import NotFound, OptionError, SparkStreamsError
from spark_streams.filters import Expression, read_filter
from spark_streams.options import PositionRange, SourceOptions
from spark_streams.position import EARLIEST, After, At, Earliest, Position
from spark_streams.spark.source.offset_counting import Arithmetic, Counting, Walking, sample, split_points
from spark_streams.spark.splitting import block_sizes, split_evenly

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
        self._counting: Counting | None = None
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

    @property
    def counting(self) -> Counting:
        """How events are counted, by arithmetic or by walking: asked once of a client."""
        if self._counting is None:
            numeric = self.ask(lambda client: client.numeric_offsets)
            # What the peer said last, whatever its age: arithmetic asks nothing.
            arithmetic = Arithmetic(lambda: (self._description or self.describe()).partitions)
            self._counting = arithmetic if numeric else Walking(self.options.stream, self.ask)
        return self._counting

    def log_identity(self, positions: Mapping[str, Position]) -> dict[str, str]:
        """Return the identity of each ``After`` position, where the peer has one."""
        offsets = {p: position.offset for p, position in positions.items() if isinstance(position, After)}
        if not offsets:
            return {}
        told = self.ask(lambda client: client.log_identity(self.options.stream, offsets))
        return {p: text for p, text in told.items() if text is not None}

    def split(self, reads: list[RangeRead]) -> list[RangeRead]:
        """Split ranges until there are ``minPartitions`` of them, where the events allow it."""
        wanted = self.options.min_partitions or 0
        if not reads or wanted <= len(reads):
            return reads
        sizes = self.counting.count({r.partition: (r.start, r.end) for r in reads})
        samples: dict[str, list[str]] = {}
        for read in reads:
            if sizes.get(read.partition) is None:
                walk = self.counting.walk(read.partition, read.start)
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
            walk = self.counting.walk(read.partition, read.start)
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
