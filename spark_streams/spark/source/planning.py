"""What changes between the micro-batches of a log, and the decision where the next one ends; pure.

The caller (``MicroBatches``) asks the peer for the description and for what the limit takes, and keeps the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_streams.client.data_loss import DataLoss, ending, instead_of, place
from spark_streams.client.log_client import StreamDescription
from spark_streams.position import EARLIEST, After, Checkpoint, Position
from spark_streams.spark.source.checks import absent, other_log, recreated
from spark_streams.spark.source.ranges import Spans, order, span_start

Taken = Mapping[str, tuple[int | None, str | None]]
"""Partition to the number of events that a micro-batch reads of its span (None: unknown), and the offset of the last of
them (None: there is none)."""


@dataclass(frozen=True)
class PlanState:
    """What a planner keeps between micro-batches.

    Args:
        planned_at: seconds, monotonic: when the last batch was planned, or the query started.
        initial: the JSON of where a new query starts; None until it is resolved.
        described: the log at the first end without a start, for Spark before 4.2; None on a Spark that tells starts.
        end: the end of the last planned batch; None before the first one.
        fixed: the log, at whose end Trigger.AvailableNow stops; None for other triggers.
        left_out: positions of partitions that an end without a start lacks.
        too_few: the spans for which the next batch waits for more events; None if it does not wait.
        waited: how many times in a row a partition got nothing although it had events.
        compared: whether the log's identities were compared since the query was started.
        looked: whether messages were searched for the names in the filter.
    """

    planned_at: float
    initial: dict[str, Any] | None = None
    described: StreamDescription | None = None
    end: Checkpoint | None = None
    fixed: StreamDescription | None = None
    left_out: Checkpoint | None = None
    too_few: Spans | None = None
    waited: Mapping[str, int] = field(default_factory=dict)
    compared: bool = False
    looked: bool = False


@dataclass(frozen=True)
class Unread:
    """What a log has for the next batch, without a limit.

    Args:
        begin: where the batch begins; without positions if the log was created again.
        end: where it ends, without identities.
    """

    begin: Checkpoint
    end: Checkpoint

    @property
    def spans(self) -> Spans:
        """The partitions that have something to read."""
        return {
            p: (start, end.offset)
            for p, end in self.end.partitions.items()
            if isinstance(end, After) and (start := span_start(self.begin.partitions.get(p), end)) is not None
        }


def unread(state: PlanState, begin: Checkpoint, description: StreamDescription) -> tuple[Unread, list[DataLoss]]:
    """Compare where a batch begins with what the log has.

    Returns:
        What is unread and the losses. The end of each present partition, also of a new one, is the position after its
        newest event, or the fixed end if that comes before it. A partition without events keeps its position, and so
        does a partition that is missing: it may come back, and reading continues there.
    """
    losses: list[DataLoss] = []
    if recreated(begin, description):
        losses.append(other_log())
        begin = replace(begin, partitions={})
    known = begin.partitions
    losses += absent(known, description)
    ends = {p: position for p, position in known.items() if p not in description.partitions}
    for p, bounds in description.partitions.items():
        position = known.get(p)
        ends[p] = ending(bounds)
        if position is None:
            continue
        gone = instead_of(position, bounds)
        if gone is not None:
            losses.append(DataLoss(p, place(position), gone))
        elif bounds.latest is None:
            ends[p] = position
    if state.fixed is not None:
        fixed = {} if recreated(state.fixed, description) else state.fixed.partitions
        ends = _not_past({p: ending(bounds) for p, bounds in fixed.items()}, known, ends)
    return Unread(begin, checkpoint(begin.format, description, ends)), losses


def next_end(state: PlanState, there: Unread, taken: Taken) -> tuple[PlanState, Checkpoint]:
    """Decide where the next batch ends.

    Args:
        state: after the last batch.
        there: what is unread.
        taken: what the limit takes of ``there.spans``.

    Returns:
        The state after this batch, and its end, without identities.
    """
    known, ends = there.begin.partitions, dict(there.end.partitions)
    for p, (_, offset) in taken.items():
        if offset is not None:
            ends[p] = After(offset)
        elif p in known:
            ends[p] = known[p]
        else:
            del ends[p]  # a new partition that gets nothing yet stays new
    waited = {p: state.waited.get(p, 0) + 1 for p, (count, _) in taken.items() if count == 0}
    return replace(state, too_few=None, waited=waited), replace(there.end, partitions=ends)


def known_positions(state: PlanState, description: StreamDescription) -> dict[str, Position]:
    """Return the last known positions in the described log, for Spark before 4.2, which does not tell where it is."""
    known = [each for each in (state.left_out, state.end) if each is not None and not recreated(each, description)]
    return {p: position for each in known for p, position in each.partitions.items()}


def end_without_start(state: PlanState, format: str, description: StreamDescription) -> Checkpoint:
    """Return where the log ends, without identities, for Spark before 4.2."""
    last = known_positions(state, description)
    # A missing partition may come back: it keeps its position and continues there.
    ends = {p: position for p, position in last.items() if p not in description.partitions}
    for p, bounds in description.partitions.items():
        # An empty partition has no newest event, so its last known end stays: ``reads`` compares it with the next.
        stays = p in last and bounds.latest is None and bounds.truncated is None
        ends[p] = last[p] if stays else ending(bounds)
    return checkpoint(format, description, ends)


def with_left_out(state: PlanState, begin: Checkpoint, stop: Checkpoint) -> tuple[PlanState, Checkpoint]:
    """Remember positions of partitions that ``stop`` lacks, and add those of partitions that only ``stop`` has.

    Before Spark 4.2 a restart during which a partition is missing makes an end without that partition.
    """
    if state.described is None or stop.incarnation != begin.incarnation:
        return state, begin
    left = {p: at for p, at in begin.partitions.items() if p not in stop.partitions}
    if state.left_out is not None and state.left_out.incarnation == begin.incarnation:
        left = {**state.left_out.partitions, **left}
    known = {p: at for p, at in left.items() if p in stop.partitions}
    return replace(state, left_out=replace(begin, partitions=left)), replace(
        begin, partitions={**known, **begin.partitions}
    )


def checkpoint(format: str, description: StreamDescription, positions: Mapping[str, Position]) -> Checkpoint:
    """Return positions as a checkpoint of the described log, without identities."""
    return Checkpoint(format, description.stream, positions, description.incarnation, dialect=description.dialect)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    """Return whether two checkpoints are equal apart from their identities, which are evidence only."""
    return replace(one, log_identity=other.log_identity) == other


def _not_past(
    fixed: Mapping[str, Position], begin: Mapping[str, Position], ends: Mapping[str, Position]
) -> dict[str, Position]:
    """Return ``ends``, none of them past its fixed end, without partitions that have no fixed end and no position.

    Args:
        fixed: the ends for Trigger.AvailableNow.
        begin: where the batch begins; a partition keeps this position if it has no fixed end, or is past it already.
        ends: where each partition ends now.
    """
    out: dict[str, Position] = {}
    for p, end in ends.items():
        if p not in fixed:
            if p in begin:
                out[p] = begin[p]
        elif order(end) <= order(fixed[p]):
            out[p] = end
        else:
            out[p] = max(fixed[p], begin.get(p, EARLIEST), key=order)
    return out
