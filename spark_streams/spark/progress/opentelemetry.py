"""The figures of queries for OpenTelemetry.

Names, units and attributes are those of its semantic conventions for messaging where these have them: for the number of
messages, the duration of processing, the name of what is read, and its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_streams.errors import PackageMissing
from spark_streams.spark.progress.figures import COUNTERS, DURATION, DURATION_LIMITS, GAUGES, Figure, RunningQueries
from spark_streams.spark.progress.listener import Progress

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

ATTRIBUTES: Final = ("spark_streams.query", "messaging.destination.name", "messaging.destination.partition.id")
"""The attributes for the labels query, stream and partition."""
SYSTEMS: Final = {"rabbitmq-stream": "rabbitmq"}
"""Format to the name that the conventions have for its system; a format without one is its own."""
OPERATIONS: Final = {"messaging.client.consumed.messages": "receive", "messaging.process.duration": "process"}
"""Instruments of the conventions to the operation that they require as an attribute."""


class OpenTelemetryMetrics(RunningQueries):
    """Tells OpenTelemetry the figures of all queries: a receiver of ``StreamProgressListener``.

    The gauges of a query go when it ends; counters stay with the program's OpenTelemetry SDK. Thread-safe.

    Args:
        meter_provider: of the program's OpenTelemetry SDK; None for the one that is set for the whole program.

    Raises:
        PackageMissing: opentelemetry-api is not installed.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        super().__init__()
        try:
            from opentelemetry.metrics import get_meter
        except ModuleNotFoundError as fault:
            raise PackageMissing(
                "OpenTelemetryMetrics needs opentelemetry-api 1.30 or later, which is not installed: pip install "
                "'spark-streams[opentelemetry]'"
            ) from fault
        meter = get_meter("spark_streams", meter_provider=meter_provider)
        for figure in GAUGES:
            meter.create_observable_gauge(
                figure.instrument, [partial(self._observations, figure)], figure.unit, figure.meaning
            )
        self._counters = [
            (figure, meter.create_counter(figure.instrument, figure.unit, figure.meaning)) for figure in COUNTERS
        ]
        self._duration = meter.create_histogram(
            DURATION.instrument,
            DURATION.unit,
            DURATION.meaning,
            explicit_bucket_boundaries_advisory=DURATION_LIMITS,
        )

    def __call__(self, progress: Progress) -> None:
        """Take the progress of a batch."""
        super().__call__(progress)
        for figure, counter in self._counters:
            for partition, value in figure.values(progress):
                counter.add(value, _attributes(figure, progress, partition))
        for partition, seconds in DURATION.values(progress):
            self._duration.record(seconds, _attributes(DURATION, progress, partition))

    def _observations(self, figure: Figure, _: CallbackOptions) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        for progress in self._running():
            for partition, value in figure.values(progress):
                yield Observation(value, _attributes(figure, progress, partition))


def _attributes(figure: Figure, progress: Progress, partition: tuple[str, ...]) -> dict[str, Any]:
    labels = (progress.query, progress.stream, *partition)
    found = dict(zip(ATTRIBUTES, labels, strict=False))
    if progress.format is not None:
        found["messaging.system"] = SYSTEMS.get(progress.format, progress.format)
    if figure.instrument in OPERATIONS:
        found["messaging.operation.name"] = OPERATIONS[figure.instrument]
    return found
