"""How fast a stream runs and how far it is behind: a log line from the source, and a listener for the session.

The source's driver side runs in a Python process of Spark's own. Its log lines, one a batch (``batch_progress``), go to
that process's stderr, which is the driver's. A program that wants the numbers itself adds the listener::

    spark.streams.addListener(StreamProgressListener())
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

__all__ = ["Progress", "StreamProgressListener", "show_log_lines"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """What one micro-batch of one query did with one source.

    Args:
        query: the query's name, or its id when it has none.
        batch: the micro-batch.
        stream: the log's name.
        events: rows read.
        events_per_second: of processing.
        lag: partition identifier to the number of events after the batch; empty before Spark 4.2, None for a partition
            whose peer does not tell.
    """

    query: str
    batch: int
    stream: str
    events: int
    events_per_second: float
    lag: Mapping[str, int | None] = field(default_factory=dict)

    def __str__(self) -> str:
        lag = ", ".join(f"{p}: {'?' if n is None else n}" for p, n in sorted(self.lag.items()))
        return (
            f"query '{self.query}' batch {self.batch}: {self.events} events of stream '{self.stream}', "
            f"{self.events_per_second:.0f} events/s" + (f", lag {{{lag}}}" if lag else "")
        )


class StreamProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Reports each micro-batch of every query that reads one of our formats.

    Args:
        report: is called with each batch's progress, in a thread of Spark's; without it a line is logged.
    """

    def __init__(self, report: Callable[[Progress], None] | None = None) -> None:
        self._report = report or (lambda progress: _log.info("%s", progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no number yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the sources of a batch."""
        progress = event.progress
        for source in progress.sources:
            end = _offset(source.endOffset)
            if end is None:
                continue
            newest = _offset(source.latestOffset) or {}
            rate = source.processedRowsPerSecond
            self._report(
                Progress(
                    progress.name or str(progress.id),
                    progress.batchId,
                    end["stream"],
                    source.numInputRows,
                    rate if rate == rate else 0.0,  # not a number for a batch without rows
                    newest.get("lag", {}),
                )
            )

    def onQueryIdle(self, event: object) -> None:
        """Do nothing: no batch ran."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the query says itself how it ended."""


def _offset(text: str | None) -> dict[str, Any] | None:
    """Return an offset if it is one of ours."""
    try:
        value = json.loads(text or "null")
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and {"version", "stream", "partitions"} <= value.keys() else None


def show_log_lines() -> None:
    """Send this package's log lines, from INFO on, to stderr, if nobody else has set up logging in this process."""
    package = logging.getLogger("spark_streams")
    if logging.getLogger().handlers or package.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)
