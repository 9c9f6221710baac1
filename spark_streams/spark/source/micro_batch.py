"""The driver's plan of a stream: where it starts, where each micro-batch ends, and the ranges between.

A micro-batch is the range (start, end] of each partition, by comparison of offsets. Its end is ``After`` the newest
event that the peer names, or after fewer events if the batch has a limit. docs/adr/0006-micro-batch-ranges.md has the
decisions: what the first end contains, how losses are detected, how a limit is shared. ADR 0009 has those about
partitions that are missing or were created again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from spark_streams.client.data_loss import DataLoss, LossPolicy, ending
from spark_streams.client.log_client import StreamDescription
from spark_streams.errors import CheckpointError
from spark_streams.options.common import SourceOptions
from spark_streams.position import EARLIEST, Checkpoint, Position, position_from_json
from spark_streams.spark.progress.batch_progress import NOT_COUNTED, BatchProgress
from spark_streams.spark.pushdown.pruning import matching_ranges
from spark_streams.spark.pushdown.spark_filters import filter_json
from spark_streams.spark.pushdown.unseen_names import look_at_messages
from spark_streams.spark.source.checks import (
    differing,
    differing_at_rest,
    identity_at,
    log_identity,
    retained_spans,
    without,
)
from spark_streams.spark.source.driver import Connect, Driver
from spark_streams.spark.source.planning import (
    PlanState,
    Taken,
    Unread,
    checkpoint,
    end_without_start,
    known_positions,
    next_end,
    same,
    unread,
    with_left_out,
)
from spark_streams.spark.source.ranges import PlannedRead, Spans, checked, order, range_read, resolve_starts
from spark_streams.spark.source.rate_limit import RateLimit
from spark_streams.spark.source.stored_offsets import StoredPositions

_T = TypeVar("_T")

STARTED = "started"
"""Key of the first end's JSON: the stream's starting positions, so that a restart in batch 0 starts there again."""
RECREATED = "anew"
"""Key of an end's JSON: partitions that were created again, which this batch reads from their beginning."""


class MicroBatches:
    """Plans the micro-batches of one query; its methods take and return offsets as JSON objects (``Checkpoint``).

    Args:
        options: of the stream.
        columns: the columns to decode, in the order of the rows.
        connect: opens a client.
        clock: returns seconds, monotonic.
        stored: stores committed positions with the peer; None to store none.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        connect: Connect,
        clock: Callable[[], float] = time.monotonic,
        stored: StoredPositions | None = None,
    ) -> None:
        self._columns = columns
        self._driver = Driver(options, connect, clock)
        self._policy = LossPolicy(options.stream, options.fail_on_data_loss, options.label)
        self._rate_limit = RateLimit(self._driver)
        self._progress = BatchProgress(self._policy, options.label, clock)
        self._stored = stored
        self._state = PlanState(clock())

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; each call returns the same positions.

        Raises:
            OptionError: the positions do not fit the stream's partitions, or a timestamp is later than every event.
            NotFound: the stream names a partition that is not there, and losses fail the query.
            PositionLost: a position is no longer there, and losses fail the query.
        """
        initial, options = self._state.initial, self._driver.options
        if initial is None:
            # Before Spark 4.2 Spark requests the first end before the start. Both must come from one description:
            # events between two descriptions would be in a first batch that a restart could not plan again.
            described = self._state.described or self._driver.describe()
            description = checked(described, self._driver, self._policy, options.starting)
            starts = resolve_starts(description, self._driver, self._policy)
            positions: dict[str, Position] = {start.partition: start.found for start in starts}
            initial = checkpoint(options.format, description, positions).to_json()
            self._state = replace(self._state, initial=initial)
        return initial

    def fix_end(self) -> None:
        """Fix the end for Trigger.AvailableNow: the query reads the events that are there now, and no later ones."""
        self._state = replace(self._state, fixed=self._driver.describe(fresh=True))

    def next_end(self, start: dict[str, Any], limit: int | None, *, may_wait: bool = True) -> dict[str, Any]:
        """Return where the batch that starts at ``start`` ends; ``start`` itself when there is nothing to read yet.

        Args:
            start: the end of the previous batch, or the initial offset.
            limit: maximum number of events in the batch; None for no limit.
            may_wait: whether the batch may wait for ``minOffsetsPerTrigger``; with Trigger.AvailableNow it never waits.

        Raises:
            PositionLost: events were lost, and losses fail the query.
            CheckpointError: ``start`` is not a checkpoint of this stream.
        """
        begin = self._checkpoint(start)
        self._progress.reached(begin)
        first = start == self._state.initial
        created_again: set[str] = set()
        while True:
            _, there = self._checked(partial(unread, self._state, begin))
            taken = self._taken(there.spans, limit, may_wait)
            if taken is None:
                self._state = replace(self._state, too_few=there.spans)
                return start
            self._state, end = next_end(self._state, there, taken)
            end = replace(end, log_identity=log_identity(self._driver, end, begin))
            # Compare the old end after the new one: if the log is still the same then, both ends are of that log.
            moved = [p for p, position in end.partitions.items() if begin.partitions.get(p) != position]
            if moved or self._state.compared:
                losses = differing(self._driver, begin, moved, end.incarnation)
            else:
                losses = differing_at_rest(self._driver, begin, end.incarnation)
            self._state = replace(self._state, compared=True)
            if not losses:
                break
            self._report(losses)
            begin = without(begin, _partitions(losses))
            created_again |= _partitions(losses)
            self._driver.describe(fresh=True)
        if same(end, begin) and not first:
            return start
        self._progress.planned(end, {p: count for p, (count, _) in taken.items()})
        self._state = replace(self._state, end=end, planned_at=self._driver.clock())
        out = end.to_json()
        if first:
            out[STARTED] = start["partitions"]
        if created_again:
            out[RECREATED] = sorted(created_again)
        return out

    def _taken(self, spans: Spans, limit: int | None, may_wait: bool) -> Taken | None:
        """Return what the limit takes of spans; None if the batch waits for ``minOffsetsPerTrigger``."""
        state, least = self._state, None
        if spans and may_wait and state.fixed is None:
            least = self._driver.options.least_events(self._driver.clock() - state.planned_at)
        if least is not None and spans == state.too_few:
            return None
        return self._rate_limit.taken(spans, limit, state.waited, least)

    def next_end_without_start(self) -> dict[str, Any]:
        """Return where the log ends now, for Spark before 4.2, which does not pass the start of the batch.

        ``reads`` detects losses, when it plans the ranges.
        """
        before = self._state.end
        if before is not None:
            self._progress.reached(before)  # Spark calls this again after its batch
        description = self._description_not_before()
        self._state = state = replace(self._state, described=self._state.described or description)
        end = end_without_start(state, self._driver.options.format, description)
        if before is not None and same(end, before):
            return before.to_json()
        end = replace(end, log_identity=log_identity(self._driver, end, before))
        self._state = replace(state, end=end)
        if before is None and state.initial is not None:
            before = self._checkpoint(state.initial)
        counts = NOT_COUNTED if before is None else self._driver.counting.count(Unread(before, end).spans)
        self._progress.planned(end, counts)
        return end.to_json()

    def _description_not_before(self) -> StreamDescription:
        """Describe the stream so that no partition ends before its last known end, unless events were lost.

        Spark would accept an earlier end, and events would come twice. After a restart the last end is unknown.
        """
        description = self._driver.describe()
        last = known_positions(self._state, description)
        doubtful = [
            p
            for p, bounds in description.partitions.items()
            if self._state.end is None or (p in last and order(ending(bounds)) < order(last[p]))
        ]
        return self._driver.describe(certain=doubtful) if doubtful else description

    def newest(self) -> dict[str, Any]:
        """Return where the log ends now, and the report of the last planned batch (``BatchProgress``).

        A query with a filter has key ``pushdown`` too: the part that the peer checks, and the part that tasks check.
        """
        options, description = self._driver.options, self._driver.describe()
        ends = {p: ending(bounds) for p, bounds in description.partitions.items()}
        out = checkpoint(options.format, description, ends).to_json()
        out.update(self._progress.report(self._driver.lag(self._state.end)))
        if options.filter is not None:
            out["pushdown"] = filter_json(options.filter, self._driver.pushdown(options.filter))
        return out

    def reads(self, start: dict[str, Any], end: dict[str, Any]) -> list[PlannedRead]:
        """Return the ranges that the tasks of the batch (start, end] read; each call returns the same events.

        Raises:
            PositionLost: events of the batch were lost, and losses fail the query.
            CheckpointError: ``start`` or ``end`` is not a checkpoint of this stream.
        """
        begin, stop = self._checkpoint(start), self._checkpoint(end)
        first = start == self._state.initial
        if first and STARTED in end:
            # A restart plans batch 0 again: it begins at the positions that the first attempt stored.
            positions = {p: position_from_json(value) for p, value in end[STARTED].items()}
            begin = Checkpoint(begin.format, begin.stream, positions, stop.incarnation)
        self._state, begin = with_left_out(self._state, without(begin, end.get(RECREATED, ())), stop)
        replayed = first and self._state.end is None
        description, spans = self._checked(lambda described: retained_spans(begin, stop, described, replayed=replayed))
        spans, strange = self._of_the_same_log(begin, stop, spans)
        self._report(strange)
        options = self._driver.options
        ranges = [range_read(options, self._columns, p, first_at, offset) for p, (first_at, offset) in spans.items()]
        seen = {p: (last, text) for p, (_, last) in spans.items() if (text := identity_at(stop, p, last))}
        if options.filter is not None:
            self._driver.pushdown(options.filter)
        if ranges and not self._state.looked:
            self._state = replace(self._state, looked=True)
            look_at_messages(options, ranges, self._driver)
        self._progress.begun(stop, lambda: self._driver.counting.count(spans), lambda: self._driver.lag(stop))
        return [
            PlannedRead(r, None, description.incarnation, seen.get(r.partition), self._driver.advertised)
            for r in matching_ranges(ranges, self._driver)
        ]

    def _of_the_same_log(self, begin: Checkpoint, stop: Checkpoint, spans: Spans) -> tuple[Spans, list[DataLoss]]:
        """Compare identities, unless the batch was planned just now and compared then.

        Returns:
            The spans and the losses. Partitions that were created again after the plan have no span; those that were
            created again before it have a span from their beginning.
        """
        planned_now = stop == self._state.end
        if planned_now and self._state.described is None:
            return spans, []
        after = [] if planned_now else differing(self._driver, stop, spans)
        spans = {p: span for p, span in spans.items() if p not in {loss.partition for loss in after}}
        before = differing(self._driver, begin, spans, stop.incarnation)
        again = {p: (EARLIEST, spans[p][1]) for p in _partitions(before)}
        return {**spans, **again}, after + before

    def committed(self, end: dict[str, Any]) -> None:
        """Store the end of a committed batch with the peer, if the query stores positions."""
        if self._stored is not None:
            self._stored.store(Checkpoint.from_json(end, self._driver.options.format), self._driver.advertised)

    def close(self) -> None:
        """Disconnect."""
        self._rate_limit.close()
        self._driver.close()
        if self._stored is not None:
            self._stored.close()

    def _checked(self, check: Callable[[StreamDescription], tuple[_T, list[DataLoss]]]) -> tuple[StreamDescription, _T]:
        """Check a description of the log; if it shows losses, check a certain one instead, and report them.

        Returns:
            The description and the result of the check.
        """
        description = self._driver.describe()
        found, losses = check(description)
        if losses:
            # A cached description, or one of a node that is behind, may be older than the position.
            description = self._driver.describe(fresh=True, certain=_partitions(losses))
            found, losses = check(description)
        self._report(losses)
        return description, found

    def _report(self, losses: list[DataLoss]) -> None:
        for loss in losses:
            self._policy.report(loss.partition, loss.asked, loss.available)

    def _checkpoint(self, value: dict[str, Any]) -> Checkpoint:
        options = self._driver.options
        read = Checkpoint.from_json(value, options.format)
        if read.stream != options.stream:
            raise CheckpointError(
                f"the checkpoint is of stream '{read.stream}', but option 'stream' is '{options.stream}': "
                "use another checkpointLocation for another stream"
            )
        return read


def _partitions(losses: list[DataLoss]) -> set[str]:
    return {loss.partition for loss in losses if loss.partition is not None}
