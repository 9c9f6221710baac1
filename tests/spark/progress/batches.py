"""Progress of batches as the listener tells it, for the receivers."""

from __future__ import annotations

from spark_streams.monitoring import DataLoss, PartitionProgress, Progress

LOSS = DataLoss("1", "after 'e4'", "the earliest event there is has offset 'e7'")


def batch(
    query: str = "q",
    stream: str = "orders",
    *,
    lag: dict[str, int | None] | None = None,
    events: int = 90,
    seconds: float = 2.0,
    bytes: int | None = None,
    rows_written: int | None = None,
    losses: int = 0,
    retries: int | None = 0,
    format: str | None = "rabbitmq-stream",
) -> Progress:
    """Return the progress of a batch."""
    partitions = {"0": 12, "1": None} if lag is None else lag
    return Progress(
        query=query,
        batch=7,
        timestamp="1970-01-01T00:01:40.500Z",
        stream=stream,
        events=events,
        events_per_second=45.0,
        input_events_per_second=30.0,
        seconds=seconds,
        bytes=bytes,
        rows_written=rows_written,
        partitions={name: PartitionProgress(left) for name, left in partitions.items()},
        losses=(LOSS,) * losses,
        retries=retries,
        format=format,
    )
