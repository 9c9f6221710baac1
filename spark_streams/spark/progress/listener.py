"""A listener that reports the rate, the lag, the losses and the retries of the session's streaming queries.

::

    spark.streams.addListener(StreamProgressListener(PrometheusMetrics()))

All numbers come from Spark's own progress events, so the listener works wherever Spark delivers these to Python. They
have the report of the source's driver (``batch_progress``), Spark's numbers of rows, and the counts of ``observed``:
the events and bytes that tasks read are nowhere else in a query's progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
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
"""Name of the observation; a blank and the stream's name follow if the stream is given."""


def observation_name(stream: str | None) -> str:
    """Return the name that the observation of a stream has in ``StreamingQueryProgress.observedMetrics``."""
    return OBSERVATION if not stream else f"{OBSERVATION} {stream}"


def observed(frame: DataFrame, stream: str | None = None, partitions: Iterable[str] = ()) -> DataFrame:
    """Return a stream whose progress has the number of events and bytes of each micro-batch.

    It uses ``DataFrame.observe``: Spark's own aggregates over the rows, which cost as much as a ``sum``, in every
    deployment, Spark Connect too. Apply it to the result of ``load()``, before any operation that drops rows.

    Args:
        frame: a stream of any format, with column ``value``; with column ``partition`` if ``partitions`` is given.
        stream: its name, as in column ``stream``; needed only in a query with several streams.
        partitions: the partitions whose bytes are reported separately; the others are in the sum only.
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
        lag: number of events after the batch; None where the peer does not tell.
        events: number of events planned for the batch, before any residual filter; None where the peer does not tell.
        bytes: bytes of the batch, as ``Progress.bytes``; None where they are unknown.
    """

    lag: int | None = None
    events: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Progress:
    """The progress of one micro-batch of one query with one source.

    Args:
        query: the query's name, or its id when it has none.
        batch: number of the micro-batch.
        timestamp: when its trigger began, ISO 8601 in UTC.
        stream: the log's name.
        events: number of rows read.
        events_per_second: rate of processing.
        input_events_per_second: rate of arrival, over the time since the previous trigger; 0.0 where Spark does not
            know it.
        seconds: duration of the whole trigger.
        bytes: bytes of column ``value`` where the stream is ``observed``; else, for feeds, of the lines that were
            fetched; else None.
        bytes_per_second: ``bytes`` over ``seconds``.
        rows_written: number of rows that the query's sink wrote; None where the sink does not tell.
        partitions: partition identifier to the partition's progress; empty before Spark 4.2.
        metrics: ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, as Spark's Kafka
            source has them; empty where a partition's lag is unknown.
        filter: option ``filter`` in our language; None without one.
        pushed_filter: the part of it that the peer checks, in the peer's language; None for nothing.
        residual_filter: the part that the tasks check on the events they read; None for nothing.
        losses: lost events that option ``failOnDataLoss`` tolerated.
        retries: number of requests and connections that the source had to try again since the batch before, on the
            driver; None where the source does not tell.
        format: the format's name; None where the source does not tell.
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
    retries: int | None = None
    format: str | None = None

    @property
    def lag(self) -> dict[str, int | None]:
        """Partition identifier to the number of events after the batch; None where the peer does not tell."""
        return {name: partition.lag for name, partition in self.partitions.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the progress as one JSON object."""
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

    It logs with logger ``spark_streams.monitoring``: one line per batch at INFO, and a warning for each loss of events.

    Args:
        receivers: each is also called with each batch's progress, in one of Spark's threads: functions,
            ``PrometheusMetrics``, ``OpenTelemetryMetrics``. One that has methods ``query_idle(query, timestamp)`` and
            ``query_ended(query)`` is told when a query that had a batch finds nothing new for some seconds, and when
            it ends. The listener logs their exceptions.
    """

    def __init__(self, *receivers: Callable[[Progress], object]) -> None:
        self._receivers = receivers
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no number yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the sources of a batch."""
        for progress in read_progress(event.progress):
            self._names[str(event.progress.id)] = progress.query
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
            for receiver in self._receivers:
                _tell(receiver, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Tell the receivers that have the method: no batch ran."""
        self._tell_of_query("query_idle", self._names.get(str(event.id)), event.timestamp)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Tell the receivers that have the method; the query itself reports how it ended."""
        self._tell_of_query("query_ended", self._names.pop(str(event.id), None))

    def _tell_of_query(self, method: str, query: str | None, *more: object) -> None:
        for receiver in self._receivers:
            if query is not None and hasattr(receiver, method):
                _tell(getattr(receiver, method), query, *more)


def _tell(receive: Callable[..., object], *what: object) -> None:
    try:
        receive(*what)
    except Exception:
        # One function must not keep others, or other listeners, or the next batch, from their reports.
        _log.exception("a function that is told of queries failed")


def read_progress(progress: Any) -> list[Progress]:
    """Return the progress of each source of our formats in a ``StreamingQueryProgress``."""
    ends = [(source, progress_offset(source.endOffset)) for source in progress.sources]
    ours = [(source, end) for source, end in ends if end is not None]
    seconds = progress.batchDuration / 1_000
    written = progress.sink.numOutputRows
    out = []
    for source, end in ours:
        report = progress_offset(source.latestOffset) or {}
        rows = progress.observedMetrics.get(observation_name(end["stream"]))
        if rows is None and len(ours) == 1:
            rows = progress.observedMetrics.get(observation_name(None))
        sizes, size = _sizes(report, None if rows is None else rows.asDict())
        pushdown = report.get("pushdown", {})
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
                partitions=_partitions(report, sizes),
                metrics=report.get("metrics", {}),
                filter=pushdown.get("filter"),
                pushed_filter=pushdown.get("pushed"),
                residual_filter=pushdown.get("residual"),
                losses=tuple(DataLoss(**loss) for loss in report.get("losses", ())),
                retries=report.get("retries"),
                format=report.get("format"),
            )
        )
    return out


def _sizes(report: Mapping[str, Any], seen: Mapping[str, int] | None) -> tuple[Mapping[str, int], int | None]:
    """Return the bytes of each partition and of all: the observed bytes, else the planned ones."""
    if seen is not None:
        word = "bytes of "
        return {name.removeprefix(word): n for name, n in seen.items() if name.startswith(word)}, seen["bytes"]
    planned = report.get("planned", {}).get("bytes", {})
    # A batch without events has no partition with bytes: its bytes are 0 if the source reports bytes at all.
    return planned, sum(planned.values()) if planned or "fetched" in report else None


def _partitions(report: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, PartitionProgress]:
    lag, planned = report.get("lag", {}), report.get("planned", {}).get("events", {})
    return {p: PartitionProgress(lag.get(p), planned.get(p, 0), sizes.get(p)) for p in sorted({*lag, *planned})}


def _rate(value: float) -> float:
    """Return a rate of Spark's, and 0.0 for NaN, which Spark reports for a batch without rows."""
    return value if value == value else 0.0
