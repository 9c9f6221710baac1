"""Ranges of partitions: the order of positions, the resolution of starting positions, and the range of a Spark task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_streams.client.asked_times import Asked, instant_text, warn_of_times
from spark_streams.client.data_loss import LossPolicy, beginning, ending, instead_of
from spark_streams.client.log_client import Bounds, RangeRead, StreamDescription
from spark_streams.endpoint import Node
from spark_streams.errors import OptionError
from spark_streams.options.common import SourceOptions
from spark_streams.options.positions import PositionRange
from spark_streams.position import EARLIEST, LATEST, After, At, AtTime, Earliest, Matching, Position
from spark_streams.redaction import safe_text
from spark_streams.spark.source.driver import Driver, position_in, require_all, require_offsets

Resolved = Earliest | At | After
"""A position that a range can start at."""
Spans = Mapping[str, tuple[Resolved, str]]
"""Partition to the start of what is to be read of it, and the offset of its last event."""


@dataclass(frozen=True)
class PlannedRead:
    """The range that one Spark task reads; picklable.

    Args:
        read: the range.
        until: offset of the first event that the task excludes, or None; then ``read.end`` is part of the range.
        incarnation: the creation of the log to which the offsets belong, or None where the peer does not tell.
        log_identity: an offset of the partition and the result of ``LogClient.log_identity`` for it, or None.
        advertised: nodes that the peer has named to the driver.
    """

    read: RangeRead
    until: str | None = None
    incarnation: str | None = None
    log_identity: tuple[str, str] | None = None
    advertised: tuple[Node, ...] = ()


def order(position: Position) -> tuple[str, int]:
    """Return a sort key of a position of one partition; it compares offsets as strings.

    Raises:
        TypeError: the position is not resolved to an offset.
    """
    if isinstance(position, Earliest):
        return ("", -1)
    if isinstance(position, (At, After)):
        return (position.offset, int(isinstance(position, After)))
    raise TypeError(f"{position} is not resolved")


def span_start(start: Position | None, end: Position) -> Resolved | None:
    """Return where the range (start, end] begins, None when it is empty.

    Args:
        start: the exclusive start; None for a partition that is read from its beginning.
        end: ``After`` the last event; any other position means that there is no event.

    Returns:
        The start of the range. It is ``EARLIEST`` also for a start beyond the end: the offsets went backwards, so they
        belong to another log, and the query has read nothing of that log.
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
    """Return the range of a partition from ``start`` to offset ``end`` (inclusive), with the options' settings."""
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


def checked(
    description: StreamDescription, driver: Driver, policy: LossPolicy, *spans: PositionRange
) -> StreamDescription:
    """Check the positions of a query that starts, and return a description that is certain where one is missing.

    A node that is behind others may have given the description. It stays the same for the other partitions.

    Raises:
        OptionError: the positions do not fit the stream's partitions, or no event can have one of the offsets.
        NotFound: the stream names a partition that is not there, and losses fail the query.
    """
    require_offsets(description, *spans)

    def lacks(wanted: Position, bounds: Bounds) -> bool:
        if driver.counting.is_next(wanted, bounds):
            return False
        return isinstance(wanted, (At, After)) and instead_of(wanted, bounds) is not None

    there = description.partitions
    doubtful = {p for p in there for span in spans if lacks(position_in(span, p), there[p])}
    if doubtful:
        now = driver.describe(certain=doubtful).partitions
        there = {p: now.get(p, there[p]) if p in doubtful else there[p] for p in there}
        description = replace(description, partitions=there)
    policy.require_available(description)
    for span in spans:
        require_all(span, description.partitions, description.unavailable)
    return description


def resolve_starts(description: StreamDescription, driver: Driver, policy: LossPolicy) -> list[Asked]:
    """Return where reading of each partition starts: ``At`` or ``After`` an event, or ``EARLIEST`` if it is empty.

    A partition without events starts at its end, whatever the options say of timestamps and expressions. A warning
    reports times that were likely meant otherwise.

    Raises:
        OptionError: a timestamp is later than every event, and the options do not let it mean the end of the log; or no
            event matches an expression, and the options make this an error.
        PositionLost: the position is no longer there, and losses fail the query.
    """
    starting = driver.options.starting
    starts = []
    for partition, bounds in description.partitions.items():
        wanted = position_in(starting, partition)
        starts.append(Asked(partition, wanted, _resolve_start(wanted, partition, bounds, driver, policy), bounds))
    warn_of_times(driver.options.label, starting.option, starts)
    return starts


def _resolve_start(wanted: Position, partition: str, bounds: Bounds, driver: Driver, policy: LossPolicy) -> Resolved:
    if wanted == LATEST:
        return ending(bounds)
    if isinstance(wanted, (AtTime, Matching)):
        if isinstance(wanted, AtTime):
            offset = driver.first_at_time(partition, wanted.timestamp_ms)
            to_end = driver.options.latest_when_no_event
            event = f"with timestamp {wanted.timestamp_ms} ms or later, which is {instant_text(wanted.timestamp_ms)}"
        else:
            offset = driver.first_matching(partition, wanted.text)
            to_end = driver.options.latest_when_no_match
            event = f"that {wanted.text[:100]!r} is true of"
        if offset is not None:
            return At(offset)
        if to_end or bounds.latest is None:  # no event is too early, or does not match
            return ending(bounds)
        raise OptionError(
            driver.options.starting.option,
            f"partition '{partition}' has no event {event}, up to its newest one at offset "
            f"'{safe_text(bounds.latest)}'; set 'startingOffsetsByTimestampStrategy' to 'latest' to start at its end "
            "then",
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
