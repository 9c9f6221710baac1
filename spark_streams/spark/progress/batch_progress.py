"""The driver's report of each micro-batch and its lag, for a log line and for the progress of the query.

A Python source can add to a query's progress in one way: ``reportLatestOffset`` (Spark 4.2), which Spark calls right
after it has planned a batch. Spark only shows this offset, and neither stores it nor passes it back. So it has the
newest offsets and the result of ``BatchProgress.report`` (docs/adr/0058-figures.md).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.retry import retries
from spark_streams.errors import SparkStreamsError

_log = logging.getLogger("spark_streams.spark.progress")

MAX_SHOWN: Final = 10
"""Most partitions whose lag a line shows, those furthest behind; at DEBUG another line has all of them."""

NOT_COUNTED: Final[Mapping[str, int | None]] = {"": None}
"""The events of a batch whose partitions are not known: its start is unknown, or another run has planned it."""

_Lag = Mapping[str, int | None]


class BatchProgress:
    """Counts the events of each batch and those that are left after it, and logs one line when a batch begins.

    Spark does not tell a source when its batch is done: it only asks for the next one, and may never do that. So the
    line of a batch has its events and the lag after it, and the time that the batch before took. Retries are those of
    this process, whose only stream this is.

    Args:
        policy: has the losses.
        label: who reads what: ``SourceOptions.label``.
        clock: returns seconds, monotonic.
    """

    def __init__(self, policy: LossPolicy, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._label = label
        self._clock = clock
        self._end: object = None
        self._events: dict[str, int | None] = {}
        self._bytes: dict[str, int] = {}
        self._losses_planned = 0
        self._retries_told = self._retries_planned = retries()
        self._planned_at = 0.0
        self._took: float | None = None
        self._begun: object = None
        self._before = ""

    def planned(self, end: object, events: Mapping[str, int | None], sizes: Mapping[str, int] | None = None) -> None:
        """Note that a batch was planned.

        Args:
            end: the end of the batch.
            events: number of events of each partition that it reads; None where the peer does not tell. Or
                ``NOT_COUNTED``, and they are counted when it begins.
            sizes: bytes of each partition, where they are known before the tasks read.
        """
        if self._took is None:
            self._before = ""
        elif any(count != 0 for count in self._events.values()):  # an empty batch has no line, and no report
            self._before = self._rates(self._took)
        self._took = None
        self._end = end
        self._events = dict(events)
        self._bytes = dict(sizes or {})
        self._losses_planned = len(self._policy.losses)
        self._retries_planned = retries()
        self._planned_at = self._clock()

    def reached(self, position: object) -> None:
        """Note that reading continues at ``position``: the batch that ended there is done.

        Args:
            position: an end, as in ``planned``.
        """
        if self._end is None or position != self._end or self._took is not None:
            return  # a batch of another run ended here, or this is a repeated call for the same batch
        # The progress of the batch has the losses and the retries that were known at its plan.
        del self._policy.losses[: self._losses_planned]
        self._losses_planned = 0
        self._retries_told = self._retries_planned
        self._took = max(self._clock() - self._planned_at, 1e-3)

    def begun(self, end: object, count: Callable[[], Mapping[str, int | None]], lag: Callable[[], _Lag]) -> None:
        """Note that Spark asks for the tasks of a batch, and log its line, unless it asks again or nothing is in it.

        A peer's answers to the requests for a line fail no query.

        Args:
            end: the end of the batch: of the one that was planned last, or of one that another run has planned.
            count: returns the number of events of each partition that it reads, as in ``planned``; called only for a
                line whose batch was not counted when it was planned.
            lag: returns the number of events of each partition after it; called only for a line.
        """
        if end == self._begun or not _log.isEnabledFor(logging.INFO):
            return
        self._begun = end
        events: Mapping[str, int | None] = self._events
        if end != self._end or events == NOT_COUNTED:
            try:
                events = count()
            except SparkStreamsError as fault:
                _log.debug("%s: no number of events: %s", self._label, fault)
                events = NOT_COUNTED
        if all(number == 0 for number in events.values()):
            return
        left = lag()
        words = f", lag {shown(left)}" if left else ""  # nothing is known yet of a feed that another run has spooled
        _log.info("%s: batch of %s%s%s", self._label, self._amount(events), words, self._before)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: %s", self._label, json.dumps(self.report(left)))

    def report(self, lag: _Lag) -> dict[str, Any]:
        """Return the report of the last planned batch, for the query's progress.

        Args:
            lag: number of events of each partition after the batch; None where the peer does not tell.

        Returns:
            ``{"lag": {partition: n | null}, "planned": {"events": {partition: n | null}, "bytes": {partition: n}},
            "metrics": {…}, "losses": [{"partition": …, "asked": …, "available": …}, …], "retries": n}``; ``metrics``
            as ``behind_latest``. Losses and retries are those before the plan that no finished batch has reported; the
            next batch reports later ones, such as retries of the request for the lag.
        """
        return {
            "lag": dict(lag),
            "planned": {"events": self._events, "bytes": self._bytes},
            "metrics": behind_latest(lag),
            "losses": [asdict(loss) for loss in self._policy.losses[: self._losses_planned]],
            "retries": self._retries_planned - self._retries_told,
        }

    def _amount(self, events: Mapping[str, int | None]) -> str:
        counts = [count for count in events.values() if count is not None]
        if len(counts) < len(events):
            return "an unknown number of events"
        return f"{sum(counts)} events" + (f", {sum(self._bytes.values())} bytes" if self._bytes else "")

    def _rates(self, seconds: float) -> str:
        """Return the end of a line: how fast the last planned batch was, which had events."""
        counts = [count for count in self._events.values() if count is not None]
        words = f"; the batch before took {seconds:.3f} s"
        if len(counts) < len(self._events):
            return words
        words += f", {sum(counts) / seconds:.0f} events/s"
        return words + (f", {sum(self._bytes.values()) / seconds:.0f} bytes/s" if self._bytes else "")


def behind_latest(lag: _Lag) -> dict[str, str]:
    """Return the metrics of Spark's Kafka source, with its names; none where a partition's lag is unknown."""
    counts = [count for count in lag.values() if count is not None]
    if not counts or len(counts) < len(lag):
        return {}
    return {
        "minOffsetsBehindLatest": str(min(counts)),
        "maxOffsetsBehindLatest": str(max(counts)),
        "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
    }


def shown(lag: _Lag) -> str:
    """Return the lag of partitions as text: all of them, or the sum and the partitions that are furthest behind."""
    most = sorted(lag, key=lambda p: (-(lag[p] if lag[p] is not None else 2**63), p))[:MAX_SHOWN]  # type: ignore[operator]
    furthest = ", ".join(f"{p}: {'?' if lag[p] is None else lag[p]}" for p in sorted(most))
    if len(most) == len(lag):
        return f"{{{furthest}}}"
    return f"{sum(count or 0 for count in lag.values())} in {len(lag)} partitions, most of it {{{furthest}}}"
