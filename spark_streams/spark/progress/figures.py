"""The figures of queries that monitoring systems get: a table of their names, and the queries that run.

One table defines the figures for Prometheus and for OpenTelemetry; the table in docs/monitoring.md is the same, and
the dashboard in ``conf/grafana`` has no other names (docs/adr/0058-figures.md).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from spark_streams.spark.progress.listener import Progress

QUERY: Final = ("query", "stream")
"""The labels of every figure."""
PARTITION: Final = (*QUERY, "partition")

Points = Iterable[tuple[tuple[str, ...], float | None]]
"""The partition, or nothing for the whole stream, and the value; None where it is not known."""


@dataclass(frozen=True)
class Figure:
    """One figure of a stream in a query; a counter's values, and a histogram's, are those of one batch.

    Args:
        name: its name in Prometheus.
        instrument: its name in OpenTelemetry.
        unit: UCUM, as OpenTelemetry has units.
        meaning: what it is, in a sentence without its full stop.
        read: returns what a progress says.
        labels: names of the labels in Prometheus.
    """

    name: str
    instrument: str
    unit: str
    meaning: str
    read: Callable[[Progress], Points]
    labels: tuple[str, ...] = QUERY

    def values(self, progress: Progress) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the partition, as ``Points``, and the value, where it is known."""
        for partition, value in self.read(progress):
            if value is not None:
                yield partition, value


def _whole(read: Callable[[Progress], float | None]) -> Callable[[Progress], Points]:
    return lambda progress: [((), read(progress))]


LAG: Final = Figure(
    "spark_streams_query_lag_events",
    "spark_streams.query.lag",
    "{event}",
    "events of a partition after the last batch; no series where the peer does not tell",
    lambda progress: [((name,), each.lag) for name, each in progress.partitions.items()],
    PARTITION,
)
GAUGES: Final = (
    LAG,
    Figure(
        "spark_streams_query_input_events_per_second",
        "spark_streams.query.input.rate",
        "{event}/s",
        "how fast events came in, over the time since the trigger before; 0 while nothing comes",
        _whole(lambda progress: progress.input_events_per_second),
    ),
    Figure(
        "spark_streams_query_processed_events_per_second",
        "spark_streams.query.processing.rate",
        "{event}/s",
        "how fast the last batch was, over the time of processing; 0 while nothing comes",
        _whole(lambda progress: progress.events_per_second),
    ),
    Figure(
        "spark_streams_query_last_trigger_timestamp_seconds",
        "spark_streams.query.last_trigger.time",
        "s",
        "when the trigger of the last batch began, or when the query last found nothing new, since 1970",
        _whole(lambda progress: datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp()),
    ),
)
COUNTERS: Final = (
    Figure(
        "spark_streams_query_events_total",
        "messaging.client.consumed.messages",
        "{message}",
        "events that the tasks read, after the filter",
        _whole(lambda progress: progress.events),
    ),
    Figure(
        "spark_streams_query_bytes_total",
        "spark_streams.query.bytes",
        "By",
        "bytes of these events where they are known: of `observed` streams, and of feeds",
        _whole(lambda progress: progress.bytes),
    ),
    Figure(
        "spark_streams_query_rows_written_total",
        "spark_streams.query.rows_written",
        "{row}",
        "rows that the query's sink took, the same for each of its streams; no series where the sink does not tell",
        _whole(lambda progress: progress.rows_written),
    ),
    Figure(
        "spark_streams_query_losses_total",
        "spark_streams.query.losses",
        "{loss}",
        "losses of events that `failOnDataLoss=false` allowed; how many events each loss had is not known",
        _whole(lambda progress: len(progress.losses) if progress.partitions else None),  # before Spark 4.2: not known
    ),
    Figure(
        "spark_streams_query_retries_total",
        "spark_streams.query.retries",
        "{retry}",
        "requests and connections that the source had to try again on the driver",
        _whole(lambda progress: progress.retries),
    ),
)
DURATION: Final = Figure(
    "spark_streams_query_batch_duration_seconds",
    "messaging.process.duration",
    "s",
    "how long batches took: the whole trigger, planning, reading, writing, committing; the same for each stream",
    _whole(lambda progress: progress.seconds),
)
DURATION_LIMITS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper limits in seconds of the histogram's buckets: micro-batches take from a tenth of a second to minutes."""
FIGURES: Final = (*GAUGES, *COUNTERS, DURATION)


class RunningQueries:
    """The newest progress of each stream in each query that runs; the base of the receivers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = defaultdict[str, dict[str, Progress]](dict)
        """Query to stream to its progress."""

    def __call__(self, progress: Progress) -> None:
        """Take the progress of a batch."""
        with self._lock:
            self._newest[progress.query][progress.stream] = progress

    def query_idle(self, query: str, timestamp: str) -> None:
        """Note that a query looked for events at a time (ISO 8601 in UTC), and found none."""
        with self._lock:
            for stream, each in self._newest.get(query, {}).items():
                idle = replace(each, timestamp=timestamp, events_per_second=0.0, input_events_per_second=0.0)
                self._newest[query][stream] = idle

    def query_ended(self, query: str) -> None:
        """Forget a query, as its last figures no longer hold."""
        with self._lock:
            self._newest.pop(query, None)

    def _running(self) -> list[Progress]:
        with self._lock:
            return [each for streams in self._newest.values() for each in streams.values()]
