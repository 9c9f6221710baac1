"""The driver's plan of a stream: where it starts, where each micro-batch ends, and the ranges between.

A micro-batch is the range (start, end] of each partition, by comparison of offsets. Its end is ``After`` the newest
event that the peer names, or after fewer events if the batch has a limit. docs/adr/0006-micro-batch-ranges.md has the
decisions: what the first end contains, how losses are detected, how a limit is shared. ADR 0009 has those about
partitions that are missing or were created again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from spark_streams.client.data_loss import DataLoss, LossPolicy, ending
from spark_streams.client.log_client import Pushdown, StreamDescription
from spark_streams.errors import CheckpointError
from spark_streams.options.common import SourceOptions
from spark_streams.position import EARLIEST, After, Checkpoint, Position, position_from_json
from spark_streams.spark.progress.batch_progress import NOT_COUNTED, BatchProgress
from spark_streams.spark.pushdown.pruning import matching_ranges
from spark_streams.spark.pushdown.spark_filters import filter_json, log_filter
from spark_streams.spark.pushdown.unseen_names import look_at_messages
from spark_streams.spark.source.checks import (
    differing,
    differing_at_rest,
    identity_at,
    log_identity,
    new_ends,
    not_past,
    recreated,
    retained_spans,
    without,
)
from spark_streams.spark.source.driver import Connect, Driver
from spark_streams.spark.source.ranges import (
    PlannedRead,
    Resolved,
    checked,
    order,
    range_read,
    resolve_starts,
    span_start,
)
from spark_streams.spark.source.rate_limit import Limiter
from spark_streams.spark.source.stored_offsets import StoredPositions
from spark_streams.spark.source.trigger_gate import TriggerGate

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
        self._options = options
        self._columns = columns
        self._driver = Driver(options, connect, clock)
        self._policy = LossPolicy(options.stream, options.fail_on_data_loss, options.label)
        self._limiter = Limiter(self._driver)
        self._trigger_gate = TriggerGate(self._driver, clock)
        self._progress = BatchProgress(self._policy, options.label, clock)
        self._stored = stored
        self._first: StreamDescription | None = None
        self._initial: dict[str, Any] | None = None
        self._last_end: Checkpoint | None = None
        self._fixed_end: Checkpoint | None = None
        self._knows_starts = True
        self._compared = False
        self._left_out = Checkpoint(options.format, options.stream, {}, None)
        self._pushdown: Pushdown | None = None
        self._looked = options.filter is None

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; each call returns the same positions.

        Raises:
            OptionError: the positions do not fit the stream's partitions, or a timestamp is later than every event.
            NotFound: the stream names a partition that is not there, and losses fail the query.
            PositionLost: a position is no longer there, and losses fail the query.
        """
        if self._initial is None:
            # Before Spark 4.2 Spark requests the first end before the start. Both must come from one description:
            # events between two descriptions would be in a first batch that a restart could not plan again.
            described = self._first or self._driver.describe()
            description = checked(described, self._driver, self._policy, self._options.starting)
            starts = resolve_starts(description, self._driver, self._policy)
            positions: dict[str, Position] = {start.partition: start.found for start in starts}
            self._initial = self._at(positions, description).to_json()
        return self._initial

    def fix_end(self) -> None:
        """Fix the end for Trigger.AvailableNow: the query reads the events that are there now, and no later ones."""
        self._fixed_end = self._end_of(self._driver.describe(fresh=True))

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
        first = start == self._initial
        created_again: list[str] = []
        while True:
            planned = self._plan(begin, limit, may_wait and self._fixed_end is None)
            if planned is None:
                return start
            end, counts = planned
            if _same(end, begin) and not first:
                losses = [] if self._compared else differing_at_rest(self._driver, begin, end.incarnation)
                self._compared = True
                if not losses:
                    return start
            else:
                moved = [p for p, position in end.partitions.items() if begin.partitions.get(p) != position]
                end = replace(end, log_identity=log_identity(self._driver, end, begin))
                # Compare the old end after the new one: if the log is still the same then, both ends are of that log.
                losses = differing(self._driver, begin, moved, end.incarnation)
                self._compared = True
                if not losses:
                    break
            self._report(losses)
            again = _partitions(losses)
            begin = without(begin, again)
            created_again += again
            self._driver.describe(fresh=True)
        self._progress.planned(end, counts)
        self._trigger_gate.planned()
        self._last_end = end
        out = end.to_json()
        if first:
            out[STARTED] = start["partitions"]
        if created_again:
            out[RECREATED] = sorted(created_again)
        return out

    def _plan(
        self, begin: Checkpoint, limit: int | None, may_wait: bool
    ) -> tuple[Checkpoint, Mapping[str, int | None]] | None:
        """Plan the batch that begins at ``begin``.

        Returns:
            Its end, without identities, and the number of events that it has of each partition (None or absent:
            unknown); None if the batch waits.
        """
        description, ends, losses = self._checked(lambda described: new_ends(begin, described))
        self._report(losses)
        kept = {} if recreated(begin, description) else begin.partitions
        if self._fixed_end is not None:
            fixed = {} if recreated(self._fixed_end, description) else self._fixed_end.partitions
            ends = not_past(fixed, kept, ends)
        spans = _spans(kept, ends)
        if spans and may_wait and self._trigger_gate.waits(spans):
            return None
        counts: Mapping[str, int | None] = self._driver.counting.count(spans)
        if spans and limit is not None:
            taken = self._limiter.limited(spans, counts, limit)
            for p, (_, offset) in taken.items():
                if offset is not None:
                    ends[p] = After(offset)
                elif p in kept:
                    ends[p] = kept[p]
                else:
                    del ends[p]  # a new partition that gets nothing yet stays new
            counts = {p: count for p, (count, _) in taken.items()}
        return self._at(ends, description), counts

    def next_end_without_start(self) -> dict[str, Any]:
        """Return where the log ends now, for Spark before 4.2, which does not pass the start of the batch.

        ``reads`` detects losses, when it plans the ranges.
        """
        self._knows_starts = False
        before = self._last_end
        if before is not None:
            self._progress.reached(before)  # Spark calls this again after its batch
        known = [self._left_out] if before is None else [self._left_out, before]
        description = self._description_not_before(_positions(known))
        if self._first is None:
            self._first = description
        last = _positions(each for each in known if not recreated(each, description))
        # A missing partition may come back: it keeps its position and continues there.
        ends: dict[str, Position] = {p: position for p, position in last.items() if p not in description.partitions}
        for p, bounds in description.partitions.items():
            # An empty partition has no newest event, so its last known end stays: ``reads`` compares it with the next.
            stays = p in last and bounds.latest is None and bounds.truncated is None
            ends[p] = last[p] if stays else ending(bounds)
        end = self._at(ends, description)
        if before is not None and _same(end, before):
            return before.to_json()
        self._last_end = replace(end, log_identity=log_identity(self._driver, end, before))
        if before is None and self._initial is not None:
            before = self._checkpoint(self._initial)
        spans = {} if before is None else _spans(before.partitions, ends)
        self._progress.planned(self._last_end, NOT_COUNTED if before is None else self._driver.counting.count(spans))
        return self._last_end.to_json()

    def _description_not_before(self, last: Mapping[str, Position]) -> StreamDescription:
        """Describe the stream so that no partition ends before its last known end, unless events were lost.

        Spark would accept an earlier end, and events would come twice. After a restart the last end is unknown.
        """
        description = self._driver.describe()
        doubtful = [
            p
            for p, bounds in description.partitions.items()
            if self._last_end is None or (p in last and order(ending(bounds)) < order(last[p]))
        ]
        return self._driver.describe(certain=doubtful) if doubtful else description

    def newest(self) -> dict[str, Any]:
        """Return where the log ends now, and the report of the last planned batch (``BatchProgress``).

        A query with a filter has key ``pushdown`` too: the part that the peer checks, and the part that tasks check.
        """
        out = self._end_of(self._driver.describe()).to_json()
        out["format"] = self._options.format
        out.update(self._progress.report(self._driver.lag(self._last_end)))
        if self._options.filter is not None:
            out["pushdown"] = filter_json(self._options.filter, self._pushed())
        return out

    def _pushed(self) -> Pushdown:
        """Return which part of the filter the peer checks; ask and log once."""
        if self._pushdown is None:
            assert self._options.filter is not None
            self._pushdown = self._driver.pushdown(self._options.filter)
            log_filter(self._options, self._pushdown)
        return self._pushdown

    def reads(self, start: dict[str, Any], end: dict[str, Any]) -> list[PlannedRead]:
        """Return the ranges that the tasks of the batch (start, end] read; each call returns the same events.

        Raises:
            PositionLost: events of the batch were lost, and losses fail the query.
            CheckpointError: ``start`` or ``end`` is not a checkpoint of this stream.
        """
        begin, stop = self._checkpoint(start), self._checkpoint(end)
        first = start == self._initial
        if first and STARTED in end:
            # A restart plans batch 0 again: it begins at the positions that the first attempt stored.
            positions = {p: position_from_json(value) for p, value in end[STARTED].items()}
            begin = Checkpoint(begin.format, begin.stream, positions, stop.incarnation)
        begin = self._with_left_out(without(begin, end.get(RECREATED, ())), stop)
        replayed = first and self._last_end is None
        description, spans, losses = self._checked(
            lambda described: retained_spans(begin, stop, described, replayed=replayed)
        )
        spans, strange = self._of_the_same_log(begin, stop, spans)
        self._report(losses + strange)
        ranges = [
            range_read(self._options, self._columns, p, first_at, offset) for p, (first_at, offset) in spans.items()
        ]
        seen = {p: (last, text) for p, (_, last) in spans.items() if (text := identity_at(stop, p, last))}
        if self._options.filter is not None:
            self._pushed()
        if ranges and not self._looked:
            self._looked = True
            look_at_messages(self._options, ranges, self._driver)
        self._progress.begun(stop, lambda: self._driver.counting.count(spans), lambda: self._driver.lag(stop))
        return [
            PlannedRead(r, None, description.incarnation, seen.get(r.partition), self._driver.advertised)
            for r in matching_ranges(ranges, self._driver)
        ]

    def _of_the_same_log(
        self, begin: Checkpoint, stop: Checkpoint, spans: dict[str, tuple[Resolved, str]]
    ) -> tuple[dict[str, tuple[Resolved, str]], list[DataLoss]]:
        """Compare identities, unless the batch was planned just now and compared then.

        Returns:
            The spans and the losses. Partitions that were created again after the plan have no span; those that were
            created again before it have a span from their beginning.
        """
        if self._knows_starts and stop == self._last_end:
            return spans, []
        after = [] if stop == self._last_end else differing(self._driver, stop, spans)
        spans = {p: span for p, span in spans.items() if p not in {loss.partition for loss in after}}
        before = differing(self._driver, begin, spans, stop.incarnation)
        spans.update({loss.partition: (EARLIEST, spans[loss.partition][1]) for loss in before if loss.partition})
        return spans, after + before

    def _with_left_out(self, begin: Checkpoint, stop: Checkpoint) -> Checkpoint:
        """Remember positions of partitions that ``stop`` lacks, and add those of partitions that only ``stop`` has.

        Before Spark 4.2 a restart during which a partition is missing makes an end without that partition.
        """
        if self._knows_starts or stop.incarnation != begin.incarnation:
            return begin
        left = self._left_out.partitions if self._left_out.incarnation == begin.incarnation else {}
        left = {**left, **{p: at for p, at in begin.partitions.items() if p not in stop.partitions}}
        self._left_out = replace(begin, partitions=left)
        known = {p: at for p, at in left.items() if p in stop.partitions and p not in begin.partitions}
        return replace(begin, partitions={**known, **begin.partitions})

    def committed(self, end: dict[str, Any]) -> None:
        """Store the end of a committed batch with the peer, if the query stores positions."""
        if self._stored is not None:
            self._stored.store(Checkpoint.from_json(end, self._options.format), self._driver.advertised)

    def close(self) -> None:
        """Disconnect."""
        self._limiter.close()
        self._trigger_gate.close()
        self._driver.close()
        if self._stored is not None:
            self._stored.close()

    def _checked(
        self, check: Callable[[StreamDescription], tuple[_T, list[DataLoss]]]
    ) -> tuple[StreamDescription, _T, list[DataLoss]]:
        """Check a description of the log; if it shows losses, check a certain one instead.

        Returns:
            The description, the result of the check, and the losses.
        """
        description = self._driver.describe()
        found, losses = check(description)
        if losses:
            # A cached description, or one of a node that is behind, may be older than the position.
            description = self._driver.describe(fresh=True, certain=_partitions(losses))
            found, losses = check(description)
        return description, found, losses

    def _report(self, losses: list[DataLoss]) -> None:
        for loss in losses:
            self._policy.report(loss.partition, loss.asked, loss.available)

    def _at(self, positions: Mapping[str, Position], description: StreamDescription) -> Checkpoint:
        options, log, dialect = self._options, description.incarnation, description.dialect
        return Checkpoint(options.format, options.stream, positions, log, dialect=dialect)

    def _end_of(self, description: StreamDescription) -> Checkpoint:
        return self._at({p: ending(bounds) for p, bounds in description.partitions.items()}, description)

    def _checkpoint(self, value: dict[str, Any]) -> Checkpoint:
        checkpoint = Checkpoint.from_json(value, self._options.format)
        if checkpoint.stream != self._options.stream:
            raise CheckpointError(
                f"the checkpoint is of stream '{checkpoint.stream}', but option 'stream' is '{self._options.stream}': "
                "use another checkpointLocation for another stream"
            )
        return checkpoint


def _positions(checkpoints: Iterable[Checkpoint]) -> dict[str, Position]:
    """Return the positions of several checkpoints; a later one's replaces an earlier one's."""
    return {p: position for checkpoint in checkpoints for p, position in checkpoint.partitions.items()}


def _partitions(losses: list[DataLoss]) -> set[str]:
    return {loss.partition for loss in losses if loss.partition is not None}


def _spans(begins: Mapping[str, Position], ends: Mapping[str, Position]) -> dict[str, tuple[Resolved, str]]:
    """Return the start and the offset of the last event of each partition that has something to read."""
    return {
        p: (start, end.offset)
        for p, end in ends.items()
        if isinstance(end, After) and (start := span_start(begins.get(p), end)) is not None
    }


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    """Return whether two checkpoints are equal apart from their identities, which are evidence only."""
    return replace(one, log_identity=other.log_identity) == other
