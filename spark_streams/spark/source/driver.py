"""The driver's connection: one client that stays open between triggers, and a cache of the partitions' bounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from spark_streams import filters
from spark_streams.client.log_client import LogClient, Pushdown, RangeRead, StreamDescription
from spark_streams.client.retry import LONG_BACKOFF, Attempts
from spark_streams.endpoint import Node
from spark_streams.errors import NotFound, OptionError, SparkStreamsError
from spark_streams.filters.tree import Expression
from spark_streams.options.common import SourceOptions
from spark_streams.options.names import MIN_PARTITIONS
from spark_streams.options.positions import PositionRange
from spark_streams.position import EARLIEST, After, At, Checkpoint, Earliest, Position
from spark_streams.spark.pushdown.spark_filters import log_filter
from spark_streams.spark.source.offset_counting import Arithmetic, Counting, Walking, sample, split_points
from spark_streams.spark.splitting import block_sizes, split_evenly

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


Connect = Callable[[SourceOptions], LogClient]
"""Returns a new client, which the caller closes; it is a function of a module, so that pickle stores its name."""


class Driver:
    """Asks the peer about one stream; not thread-safe.

    Args:
        options: of the reader.
        connect: opens a client.
        clock: returns seconds, monotonic.
    """

    def __init__(self, options: SourceOptions, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._connect = connect
        self.clock = clock
        self._client: LogClient | None = None
        self._description: StreamDescription | None = None
        self._described_at = 0.0
        self._pushdown: Pushdown | None = None
        self._lag: tuple[StreamDescription, Checkpoint, dict[str, int | None]] | None = None
        self.advertised: tuple[Node, ...] = ()
        """The nodes that the peer has named; tasks and the next connection use them."""

    def describe(self, *, fresh: bool = False, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions and their bounds, not older than the poll interval.

        Args:
            fresh: whether to ask the peer now, whatever the age of the cached description.
            certain: partitions that may have lost events; for them it asks now, and a node that cannot be behind.
        """
        age_ms = (self.clock() - self._described_at) * 1000
        if fresh or certain or self._description is None or age_ms >= self.options.poll_interval_ms:
            self._description = self.ask(lambda client: client.describe(self.options.stream, certain=certain))
            self._described_at = self.clock()
        return self._description

    def first_at_time(self, partition: str, timestamp_ms: int) -> str | None:
        """Return the offset of the first event at ``timestamp_ms`` or later, None when there is none."""
        return self.ask(lambda client: client.first_at_time(self.options.stream, partition, timestamp_ms))

    def first_matching(self, partition: str, text: str) -> str | None:
        """Return the offset of the first event for which an expression is true, None when there is none.

        Raises:
            FilterError: the text is not an expression.
        """
        expression = filters.read_filter(text)
        return self.ask(lambda client: client.first_matching(self.options.stream, partition, expression))

    def pushdown(self, expression: Expression) -> Pushdown:
        """Return the part of the query's filter that the peer checks, and the part that remains; ask and log once."""
        if self._pushdown is None:
            self._pushdown = self.ask(lambda client: client.pushdown(self.options.stream, expression))
            log_filter(self.options, self._pushdown)
        return self._pushdown

    def first_events(self, read: RangeRead, enough: int) -> list[pa.RecordBatch]:
        """Return the first rows of a range, until there are ``enough`` of them."""

        def ask(client: LogClient) -> list[pa.RecordBatch]:
            found, rows = list[pa.RecordBatch](), 0
            for batch in client.fetch(read, max_rows=enough):
                found.append(batch)
                rows += batch.num_rows
                if rows >= enough:
                    break
            return found

        return self.ask(ask)

    @cached_property
    def counting(self) -> Counting:
        """How events are counted, by arithmetic or by walking; the first use asks the client."""
        if not self.ask(lambda client: client.numeric_offsets):
            return Walking(self.options.stream, self.ask)
        # Arithmetic sends no request: it uses the last description, whatever its age.
        return Arithmetic(lambda: (self._description or self.describe()).partitions)

    def log_identity(self, positions: Mapping[str, Position]) -> dict[str, str]:
        """Return the log's identity at each ``After`` position for which the peer has one."""
        offsets = {p: position.offset for p, position in positions.items() if isinstance(position, After)}
        if not offsets:
            return {}
        identities = self.ask(lambda client: client.log_identity(self.options.stream, offsets))
        return {p: text for p, text in identities.items() if text is not None}

    def lag(self, end: Checkpoint | None) -> dict[str, int | None]:
        """Return the number of events of each partition after ``end``; None where the peer does not tell.

        It asks once for each description of the log.

        Args:
            end: the end of the last planned batch; None without one, and then every lag is None.
        """
        description = self.describe()
        if end is None:
            return dict.fromkeys(description.partitions)
        if self._lag is not None and self._lag[0] is description and self._lag[1] == end:
            return self._lag[2]
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
                lag.update(self.counting.remaining(behind))
            except SparkStreamsError as fault:
                _log.debug("no lag: %s", fault)
                lag.update(dict.fromkeys(behind))
        self._lag = description, end, lag
        return lag

    def split(self, reads: list[RangeRead]) -> list[RangeRead]:
        """Split ranges until there are ``minPartitions`` of them, if the events allow it."""
        wanted = self.options.min_partitions or 0
        if not reads or not wanted:
            return reads
        most = self._readers_of_one()
        if wanted <= len(reads):
            return reads
        sizes = self.counting.count({r.partition: (r.start, r.end) for r in reads})
        samples: dict[str, list[str]] = {}
        for read in reads:
            if sizes.get(read.partition) is None:
                with closing(self.counting.walk(read.partition, read.start)) as walk:
                    sizes[read.partition], samples[read.partition] = sample(walk, read.end)
        counts = {partition: size or 0 for partition, size in sizes.items()}
        parts = {p: min(count, most or count) for p, count in split_evenly(counts, wanted).items()}
        return [part for read in reads for part in self._split_one(read, counts, parts, samples)]

    def _readers_of_one(self) -> int | None:
        """Return how many tasks may read a partition at a time; None for any number.

        Raises:
            OptionError: the peer lets too few read a partition for ``minPartitions``.
        """
        description = self._description or self.describe()
        most, wanted = description.max_readers, self.options.min_partitions or 0
        there = len(description.partitions)
        if most is not None and wanted > most * there:
            raise OptionError(
                MIN_PARTITIONS,
                f"{wanted} tasks are too many for {there} partition{'s' if there != 1 else ''}: the peer lets {most} "
                f"links of a consumer group read a partition at a time; expected up to {most * there}",
            )
        return most

    def _split_one(
        self, read: RangeRead, counts: Mapping[str, int], parts: Mapping[str, int], samples: Mapping[str, list[str]]
    ) -> list[RangeRead]:
        count, wanted = counts[read.partition], parts[read.partition]
        if wanted < 2:
            return [read]
        if read.partition in samples:
            known = samples[read.partition]
            marks = [len(known) * i // wanted for i in range(1, wanted)]
            lasts = [known[mark - 1] for mark in marks if mark]
            lasts = [last for last in dict.fromkeys(lasts) if last < read.end]
        else:
            with closing(self.counting.walk(read.partition, read.start)) as walk:
                lasts = split_points(walk, read.end, block_sizes(count, wanted))
        starts: list[Earliest | At | After] = [read.start, *(After(last) for last in lasts)]
        return [replace(read, start=start, end=end) for start, end in zip(starts, [*lasts, read.end], strict=True)]

    def ask(self, question: Callable[[LogClient], _T]) -> _T:
        """Ask the client, which connects on first use and retries by itself where a retry can help.

        It waits about 40 seconds for a stream that was there and is gone: users delete a stream to empty it, and then
        create it again.

        Raises:
            SparkStreamsError: the client's error; the connection is closed then.
        """
        attempts = Attempts(LONG_BACKOFF)
        while True:
            if self._client is None:
                self._client = self._connect(reaching(self.options, self.advertised)).__enter__()
            try:
                answer = question(self._client)
            except SparkStreamsError as fault:
                self.close()
                if self._description is None or not isinstance(fault, NotFound):
                    raise
                fault.retriable = True
                attempts.after(fault)
                continue
            self.advertised = self._client.advertised
            return answer

    def close(self) -> None:
        """Disconnect; the next question connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)


def reaching(options: SourceOptions, advertised: tuple[Node, ...]) -> SourceOptions:
    """Return options whose endpoint has the nodes that the peer has named."""
    return replace(options, endpoint=options.endpoint.with_advertised(advertised)) if advertised else options


def require_all(span: PositionRange, partitions: Iterable[str], unavailable: Collection[str] = ()) -> None:
    """Check that a span that names partitions names exactly those of the stream.

    Args:
        span: the positions.
        partitions: the partitions of the stream.
        unavailable: partitions that the stream has and that are not there: the span may name them or not.

    Raises:
        OptionError: the span names a partition that the stream does not have, or leaves one out.
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
        left_out = ", ".join(f"'{p}'" for p in absent)
        raise OptionError(
            span.option,
            f"it says nothing of partition {left_out}: the stream has {listing}, and each of them needs a position; "
            f'"earliest" is one',
        )


def require_offsets(description: StreamDescription, *spans: PositionRange) -> None:
    """Check that events of the stream can have the offsets that spans name, where the form of offsets is known.

    Raises:
        OptionError: no event can have one of the offsets.
    """
    for span in spans:
        for partition in description.partitions:
            position = position_in(span, partition)
            fault = description.no_offset(position.offset) if isinstance(position, (At, After)) else None
            if fault is not None:
                raise OptionError(span.option, f"partition '{partition}': {fault}")


def position_in(span: PositionRange, partition: str) -> Position:
    """Return a span's position of a partition (``EARLIEST`` for a partition that the span does not name)."""
    return span.everywhere if span.everywhere is not None else span.each.get(partition, EARLIEST)
