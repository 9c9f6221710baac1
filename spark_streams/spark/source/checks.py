"""Checks of stored positions: whether their events are still there, and whether the log is still the same.

The functions compare offsets with a new description of the log. Each returns the positions or ranges to continue with,
and the losses that it found; the caller reports the losses.

``differing`` detects that a partition has other events than those that were read: its log was created again, or it is
an older copy. A description's ``incarnation`` shows the first and never the second, as a copy has the same incarnation.
So the peer is asked for the identity of an offset (``LogClient.log_identity``), which differs in another log. The
checkpoint has the identities of a batch's end under key ``witnesses``; a plan compares them before reading goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_streams.client.data_loss import DataLoss, beginning, instead_of, is_past_end, place
from spark_streams.client.log_client import StreamDescription
from spark_streams.errors import CheckpointError
from spark_streams.position import EARLIEST, After, Checkpoint, Position
from spark_streams.spark.source.driver import Driver
from spark_streams.spark.source.ranges import Resolved, Spans, order, span_start


def recreated(checkpoint: Checkpoint | StreamDescription, description: StreamDescription) -> bool:
    """Return whether the log was deleted and created again since; False where either side has no incarnation.

    Raises:
        CheckpointError: it was read in another dialect then, in which logs have other incarnations and identities.
    """
    if _differ(checkpoint.dialect, description.dialect):
        raise CheckpointError(
            f"the checkpoint was written in dialect '{checkpoint.dialect}', but the stream is read in dialect "
            f"'{description.dialect}', whose offsets and identities are others: go back to the option 'url', "
            "'connectionString' or 'dialect' that the query had, or use another checkpointLocation and say with "
            "'startingOffsets' where to begin"
        )
    return _differ(checkpoint.incarnation, description.incarnation)


def retained_spans(
    begin: Checkpoint, stop: Checkpoint, description: StreamDescription, *, replayed: bool
) -> tuple[Spans, list[DataLoss]]:
    """Return the part of the range (begin, stop] of each partition that is still there.

    Args:
        begin: where the batch begins.
        stop: where it ends.
        description: the current description; the plan of the batch may be much older.
        replayed: whether ``begin`` was resolved again for a batch that was planned before; a start past the batch's end
            is no loss then.

    Returns:
        The start and the offset of the last event of each partition that has events; and the losses.
    """
    if recreated(stop, description):
        return {}, [other_log()]
    losses: list[DataLoss] = []
    known = begin.partitions
    if _differ(begin.incarnation, stop.incarnation):
        losses.append(other_log())
        known = {}
    losses += absent(known, description)
    spans: dict[str, tuple[Resolved, str]] = {}
    for p, end in stop.partitions.items():
        start, bounds = known.get(p), description.partitions.get(p)
        first = span_start(start, end)
        if bounds is None or first is None or not isinstance(end, After):
            continue
        asked, last = place(start), end.offset
        gone = None if start is None else instead_of(start, bounds)
        if start is not None and order(start) > order(end):
            if replayed:
                continue
            gone = gone or (
                f"the partition ended at offset '{last}' when the batch was planned: the log was restored from an "
                "older copy and has grown since, or a node that is behind the others described it"
            )
        if is_past_end(end, bounds):
            if gone is None:
                asked, gone = f"up to offset '{last}'", instead_of(end, bounds)
            last = bounds.latest or ""
        if bounds.earliest is not None and bounds.earliest <= last and span_start(first, After(last)) == first:
            # If events are removed before a task reads, a definite first event reveals it, and EARLIEST does not. Where
            # they are gone already, the task begins after them; otherwise it would report the same loss again.
            spans[p] = (max(first, beginning(bounds), key=order) if first == EARLIEST or gone else first, last)
        elif gone is None:
            gone = "its events were removed"
        if gone is not None:
            losses.append(DataLoss(p, asked, gone))
    return spans, losses


def absent(known: Mapping[str, Position], description: StreamDescription) -> list[DataLoss]:
    """Return a loss for each missing partition, whether the stream still names it or not."""
    losses = [
        DataLoss(p, place(at), "the partition is no longer there")
        for p, at in known.items()
        if p not in description.partitions and p not in description.unavailable
    ]
    losses += [
        DataLoss(p, place(known.get(p)), f"the partition is not there: {why}")
        for p, why in description.unavailable.items()
    ]
    return losses


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


def other_log() -> DataLoss:
    """Return the loss of a whole log, which is another one now."""
    again = "it was deleted and created again, as a log that is temporary is at each start"
    return DataLoss(None, "in the log that the checkpoint is of", again)


CREATED_AGAIN = "the stream was deleted and created again, or restored from an older copy"
"""The text for ``DataLoss.available`` when the log is another one."""


def log_identity(driver: Driver, end: Checkpoint, before: Checkpoint | None) -> dict[str, str]:
    """Return the identities of a newly planned end.

    Args:
        driver: asks the peer.
        end: the end of a batch.
        before: where the batch begins; a partition of the same log that ends there keeps its identity without a
            request.
    """
    known: dict[str, str] = {}
    ends = end.partitions
    if before is not None and not _differ(before.incarnation, end.incarnation):
        known = {p: text for p, text in before.log_identity.items() if p in ends and before.partitions[p] == ends[p]}
        ends = {p: position for p, position in ends.items() if before.partitions.get(p) != position}
    return {**known, **driver.log_identity(ends)} if ends else known


def differing(
    driver: Driver, checkpoint: Checkpoint, partitions: Iterable[str], incarnation: str | None = None
) -> list[DataLoss]:
    """Return a loss for each partition whose identity differs from the checkpoint's.

    A partition whose position is no longer there has no identity any more: the other checks detect this.

    Args:
        driver: asks the peer.
        checkpoint: the stored positions and identities.
        partitions: the partitions to check.
        incarnation: the log's current incarnation, None where it has none. If it differs from the checkpoint's, it
            shows already that all partitions are others, and the peer is not asked.
    """
    if _differ(checkpoint.incarnation, incarnation):
        return []
    known = {p: checkpoint.log_identity[p] for p in partitions if p in checkpoint.log_identity}
    if not known:
        return []
    now = driver.log_identity({p: checkpoint.partitions[p] for p in known})
    return [
        DataLoss(p, str(checkpoint.partitions[p]), CREATED_AGAIN)
        for p, text in known.items()
        if now.get(p, text) != text
    ]


def differing_at_rest(driver: Driver, checkpoint: Checkpoint, incarnation: str | None) -> list[DataLoss]:
    """Return what ``differing`` does of all partitions, for a query that is started again and has nothing to read yet.

    A log that was created again with as many events as before looks like one without new events. One partition is asked
    about first, to spare a log that is merely at rest the requests about all of its partitions.
    """
    sample = sorted(checkpoint.log_identity)[:1]
    if not differing(driver, checkpoint, sample, incarnation):
        return []
    return differing(driver, checkpoint, checkpoint.partitions, incarnation)


def identity_at(checkpoint: Checkpoint, partition: str, offset: str) -> str | None:
    """Return the identity that a checkpoint has for an offset of a partition, None without one."""
    return checkpoint.log_identity.get(partition) if checkpoint.partitions.get(partition) == After(offset) else None


def without(checkpoint: Checkpoint, partitions: Iterable[str]) -> Checkpoint:
    """Return a checkpoint without some partitions, as if these were new."""
    gone = set(partitions)
    return replace(
        checkpoint,
        partitions={p: position for p, position in checkpoint.partitions.items() if p not in gone},
        log_identity={p: text for p, text in checkpoint.log_identity.items() if p not in gone},
    )
