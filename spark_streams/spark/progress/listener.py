"""How fast a stream runs, how far it is behind, and what was lost: a listener for the session's queries.

::

    spark.streams.addListener(StreamProgressListener())

Everything comes from Spark's own progress events, so that it works wherever Spark delivers these to Python: what the
source's driver side reports there (``batch_progress``), Spark's numbers of rows, and what ``observed`` has Spark count
of a stream: the events and bytes that tasks read are nowhere else in a query's progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_streams.client.data_loss import DataLoss
from spark_streams.position import progress_offset
from spark_streams.spark.progress.batch_progress import shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OBSERVATION: Final = "spark-streams"
"""Name of the observation, followed by a blank and the stream's name where that is given."""


def observation_name(stream: str | None) -> str:
    """Return the name that the observation of a stream has in ``StreamingQueryProgress.observedMetrics``."""
    return OBSERVATION if not stream else f"{OBSERVATION} {stream}"


def observed(frame: DataFrame, stream: str | None = None, partitions: Iterable[str] = ()) -> DataFrame:
    """Return a stream whose progress tells how many events and bytes each micro-batch had.

    It is ``DataFrame.observe``: Spark's own aggregates over the rows, which cost what a ``sum`` costs, in every
    deployment, Spark Connect too. Apply it to what ``load()`` returns, before anything drops rows.

    Args:
        frame: a stream of any format, with column ``value``; with ``partition`` where partitions are named.
        stream: its name, as in column ``stream``; needed only in a query with several streams.
        partitions: those whose bytes are told one by one; others are in the sum only.
    """
    from pyspark.sql import functions as f

    size = f.octet_length("value")

    def total(of: Column, name: str) -> Column:
        return f.coalesce(f.sum(of), f.lit(0)).alias(name)

    each = [total(f.when(f.col("partition") == name, size), f"bytes of {name}") for name in partitions]
    count = f.count(f.lit(1)).alias("events")
    return frame.observe(observation_name(stream), count, total(size, "bytes"), *each)


_log = logging.getLogger("spark_streams.monitoring")


@dataclass(frozen=True)
class PartitionProgress:
    """One partition after one micro-batch.

    Args:
        lag: events that are there after the batch; None where the peer does not tell.
        events: that were planned for the batch, before any residual filter; None where the peer does not tell.
        bytes: of the batch, as ``Progress.bytes``; None where they are not known.
    """

    lag: int | None = None
    events: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Progress:
    """What one micro-batch of one query did with one source.

    Args:
        query: the query's name, or its id when it has none.
        batch: number of the micro-batch.
        timestamp: when its trigger began, ISO 8601 in UTC.
        stream: the log's name.
        events: rows read.
        events_per_second: of processing.
        input_events_per_second: of arrival, over the time since the trigger before; 0.0 where Spark does not know.
        seconds: the whole trigger.
        bytes: of column ``value`` where the stream is ``observed``; else, for feeds, of the lines that were fetched;
            else None.
        bytes_per_second: ``bytes`` over ``seconds``.
        rows_written: by the query's sink; None where the sink does not tell.
        partitions: partition identifier to what is known of it; empty before Spark 4.2.
        metrics: ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, as Spark's Kafka
            source has them; empty where a partition's lag is unknown.
        filter: option ``filter`` in our language; None without one.
        pushed_filter: what of it the peer checks, in its own words; None for nothing.
        residual_filter: what the tasks check on what comes; None for nothing.
        losses: events that were gone, and that option ``failOnDataLoss`` let pass.
    """

    query: str
    batch: int
    timestamp: str
    stream: str
    events: int
    events_per_second: float = 0.0
    input_events_per_second: float = 0.0
    seconds: float = 0.0
    bytes: int | None = None
    bytes_per_second: float | None = None
    rows_written: int | None = None
    partitions: Mapping[str, PartitionProgress] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    filter: str | None = None
    pushed_filter: str | None = None
    residual_filter: str | None = None
    losses: tuple[DataLoss, ...] = ()

    @property
    def lag(self) -> dict[str, int | None]:
        """Partition identifier to the number of events after the batch; None where the peer does not tell."""
        return {name: partition.lag for name, partition in self.partitions.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        found = asdict(self)
        return {**found, "losses": list(found["losses"])}

    def __str__(self) -> str:
        size = "" if self.bytes is None else f", {self.bytes} bytes, {self.bytes_per_second or 0.0:.0f} bytes/s"
        return (
            f"query '{self.query}' batch {self.batch}: {self.events} events of stream '{self.stream}', "
            f"{self.events_per_second:.0f} events/s{size}" + (f", lag {shown(self.lag)}" if self.partitions else "")
        )


class StreamProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Reports each micro-batch of every query that reads one of our formats.

    It logs with logger ``spark_streams.monitoring``: a line a batch at INFO, and a warning for each loss of events.

    Args:
        report: is called with each batch's progress as well, in a thread of Spark's. What it raises is logged.
    """

    def __init__(self, report: Callable[[Progress], None] | None = None) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no number yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the sources of a batch."""
        for progress in read_progress(event.progress):
            _log.info("%s", progress)
            for loss in progress.losses:
                where = f"stream '{progress.stream}'" + ("" if loss.partition is None else f" '{loss.partition}'")
                context = {"stream": progress.stream, **asdict(loss)}
                _log.warning(
                    "query '%s' batch %d: %s: reading was to go on %s, but %s",
                    progress.query,
                    progress.batch,
                    where,
                    loss.asked,
                    loss.available,
                    extra={"context": context},
                )
            if self._report is not None:
                try:
                    self._report(progress)
                except Exception:
                    # The user's function must not keep other listeners, or the next batch, from being told.
                    _log.exception("the function that is told of each batch failed")

    def onQueryIdle(self, event: object) -> None:
        """Do nothing: no batch ran."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the query says itself how it ended."""


def read_progress(progress: Any) -> list[Progress]:
    """Return what a ``StreamingQueryProgress`` tells of the sources that are ours."""
    ends = [(source, progress_offset(source.endOffset)) for source in progress.sources]
    ours = [(source, end) for source, end in ends if end is not None]
    seconds = progress.batchDuration / 1_000
    written = progress.sink.numOutputRows
    out = []
    for source, end in ours:
        told = progress_offset(source.latestOffset) or {}
        rows = progress.observedMetrics.get(observation_name(end["stream"]))
        if rows is None and len(ours) == 1:
            rows = progress.observedMetrics.get(observation_name(None))
        sizes, size = _sizes(told, None if rows is None else rows.asDict())
        pushdown = told.get("pushdown", {})
        out.append(
            Progress(
                query=progress.name or str(progress.id),
                batch=progress.batchId,
                timestamp=progress.timestamp,
                stream=end["stream"],
                events=source.numInputRows,
                events_per_second=_rate(source.processedRowsPerSecond),
                input_events_per_second=_rate(source.inputRowsPerSecond),
                seconds=seconds,
                bytes=size,
                bytes_per_second=size / seconds if size is not None and seconds > 0 else None,
                rows_written=written if written >= 0 else None,
                partitions=_partitions(told, sizes),
                metrics=told.get("metrics", {}),
                filter=pushdown.get("filter"),
                pushed_filter=pushdown.get("pushed"),
                residual_filter=pushdown.get("residual"),
                losses=tuple(DataLoss(**loss) for loss in told.get("losses", ())),
            )
        )
    return out


def _sizes(told: Mapping[str, Any], seen: Mapping[str, int] | None) -> tuple[Mapping[str, int], int | None]:
    """Return the bytes of partitions and of all, as they were observed, else as they were planned."""
    if seen is not None:
        word = "bytes of "
        return {name.removeprefix(word): n for name, n in seen.items() if name.startswith(word)}, seen["bytes"]
    planned = told.get("planned", {}).get("bytes", {})
    # A batch without events has no partition to tell bytes of: none were read, if bytes are told at all.
    return planned, sum(planned.values()) if planned or "fetched" in told else None


def _partitions(told: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, PartitionProgress]:
    lag, planned = told.get("lag", {}), told.get("planned", {}).get("events", {})
    return {p: PartitionProgress(lag.get(p), planned.get(p, 0), sizes.get(p)) for p in sorted({*lag, *planned})}


def _rate(value: float) -> float:
    """Return a rate of Spark's, which is not a number for a batch without rows."""
    return value if value == value else 0.0
