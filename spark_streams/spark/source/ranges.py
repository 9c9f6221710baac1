"""Ranges of partitions: the order of positions, where reading starts, and what one Spark task reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_streams.client.data_loss import LossPolicy, beginning, ending, instead_of
from spark_streams.client.log_client import Bounds, RangeRead, StreamDescription
from spark_streams.endpoint import Node
from spark_streams.errors import OptionError
from spark_streams.options import PositionRange, SourceOptions
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Earliest, Matching, Position
from spark_streams.spark.source.driver import Driver, position_in

Resolved = Earliest | At | After
"""A position that a range can start at."""


@dataclass(frozen=True)
class PlannedRead:
    """What one Spark task reads; picklable.

    Args:
        read: the range.
        until: offset of the first event that is not to be read any more, or None; then ``read.end`` is part of it.
        incarnation: the creation of the log that the offsets belong to, or None where the peer does not say.
        log_identity: an offset of the partition and what ``LogClient.log_identity`` says of it, or None.
        told: nodes that the peer has named to the driver.
    """

    read: RangeRead
    until: str | None = None
    incarnation: str | None = None
    log_identity: tuple[str, str] | None = None
    told: tuple[Node, ...] = ()


def order(position: Position) -> tuple[str, int]:
    """Return a key by which positions of one partition are ordered; offsets are compared as they are.

    Raises:
        TypeError: the position is not resolved to an offset.
    """
    if isinstance(position, Earliest):
        return ("", -1)
    if isinstance(position, At):
        return (position.offset, 0)
    if isinstance(position, After):
        return (position.offset, 1)
    raise TypeError(f"{position} is not resolved")


def span_start(start: Position | None, end: Position) -> Resolved | None:
    """Return where the range (start, end] begins, None when it is empty.

    Args:
        start: None for a partition that is read from its beginning.
        end: ``After`` the last event; any other position means that there is none.

    Returns:
        ``EARLIEST`` also for a start beyond the end: offsets went backwards, so they are those of another log, of
        which nothing has been read.
    """
    if not isinstance(end, After):
        return None
    begin = start if isinstance(start, (Earliest, At, After)) else EARLIEST
    if begin == end:
        return None
    return EARLIEST if order(begin) > order(end) else begin


def range_read(
    options: SourceOptions, columns: tuple[str, ...], partition: str, start: Resolved, end: str
) -> RangeRead:
    """Return the range of a partition from ``start`` to offset ``end`` (inclusive), as the options want it read."""
    return RangeRead(
        options.stream,
        partition,
        start,
        end,
        columns,
        options.fail_on_data_loss,
        options.timestamp_overflow,
        options.filter,
    )


def with_certain(description: StreamDescription, driver: Driver, *spans: PositionRange) -> StreamDescription:
    """Return a description that is certain of the partitions in which it lacks a position that a query names.

    A node that is behind others may have told it; what it says of the other partitions stays.
    """

    def lacks(wanted: Position, bounds: Bounds) -> bool:
        if driver.counting.is_next(wanted, bounds):
            return False
        return isinstance(wanted, (At, After)) and instead_of(wanted, bounds) is not None

    told = description.partitions
    doubtful = {p for p in told for span in spans if lacks(position_in(span, p), told[p])}
    if not doubtful:
        return description
    now = driver.describe(certain=doubtful).partitions
    return replace(description, partitions={p: now.get(p, told[p]) if p in doubtful else told[p] for p in told})


def resolve_start(
    wanted: Position, partition: str, description: StreamDescription, driver: Driver, policy: LossPolicy
) -> Resolved:
    """Return where reading of a partition starts: ``At`` or ``After`` an event, or ``EARLIEST`` of an empty one.

    Raises:
        OptionError: a timestamp later than every event, unless the options say that this is the end of the log; an
            expression that none matches, if the options say that this is an error.
        PositionLost: the position is no longer there, and losses are to fail the query.
    """
    bounds = description.partitions[partition]
    if wanted == LATEST:
        return ending(bounds)
    if isinstance(wanted, (AtTime, Matching)):
        if isinstance(wanted, AtTime):
            offset = driver.first_at_time(partition, wanted.timestamp_ms)
            to_end = driver.options.latest_when_no_event
            event = f"with timestamp {wanted.timestamp_ms} ms or later"
        else:
            offset = driver.first_matching(partition, wanted.text)
            to_end = driver.options.latest_when_no_match
            event = f"that {wanted.text[:100]!r} is true of"
        if offset is not None:
            return At(offset)
        if to_end:
            return ending(bounds)
        raise OptionError(
            driver.options.starting.option,
            f"partition '{partition}' has no event {event}; set 'startingOffsetsByTimestampStrategy' to 'latest' to "
            "start at its end then",
        )
    if not isinstance(wanted, (At, After)):
        return beginning(bounds)
    if driver.counting.is_next(wanted, bounds):
        return ending(bounds)
    available = instead_of(wanted, bounds)
    if available is None:
        return wanted
    policy.report(partition, str(wanted), available)
    return beginning(bounds)
