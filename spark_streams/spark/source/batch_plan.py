"""The plan of a batch query: it resolves two positions of each partition, between which the tasks read.

Both are resolved once, from one description of the stream: events that come later are not in the query.
"""

from __future__ import annotations

import logging
from contextlib import closing

from spark_streams.client.asked_times import Asked, warn_of_times
from spark_streams.client.data_loss import LossPolicy
from spark_streams.options.common import SourceOptions
from spark_streams.options.positions import PositionRange
from spark_streams.position import LATEST, After, At, AtTime, Position
from spark_streams.spark.pushdown.pruning import matching_ranges
from spark_streams.spark.pushdown.unseen_names import look_at_messages
from spark_streams.spark.source.driver import Connect, Driver, position_in
from spark_streams.spark.source.ranges import PlannedRead, checked, order, range_read, resolve_starts

_log = logging.getLogger(__name__)


def plan_batch(options: SourceOptions, columns: tuple[str, ...], connect: Connect) -> list[PlannedRead]:
    """Return the ranges that the tasks of a batch query read; empty when there is nothing between the positions.

    Args:
        options: of the query.
        columns: the columns to decode, in the order of the rows.
        connect: opens a client, which is closed at the end.

    Raises:
        OptionError: the positions do not fit the stream's partitions, or a timestamp is later than every event.
        NotFound: the stream names a partition that is not there, and losses fail the query.
        PositionLost: a starting position is no longer there, and losses fail the query.
    """
    ending = options.ending or PositionRange(LATEST)
    policy = LossPolicy(options.stream, options.fail_on_data_loss, options.label)
    with closing(Driver(options, connect)) as driver:
        description = checked(driver.describe(fresh=True), driver, policy, options.starting, ending)
        asked: list[tuple[Asked, Asked]] = []
        reads, until = [], dict[str, str | None]()
        for start in resolve_starts(description, driver, policy):
            partition, _, first, bounds = start
            if bounds.latest is None:
                continue
            wanted = position_in(ending, partition)
            stop = _stop(wanted, partition, After(bounds.latest), driver)
            asked.append((start, Asked(partition, wanted, stop, bounds)))
            if order(first) >= order(stop):
                continue
            until[partition] = stop.offset if isinstance(stop, At) else None
            reads.append(range_read(options, columns, partition, first, stop.offset))
        _tell_odd_ends(options.label, ending.option, asked)
        if options.filter is not None:
            driver.pushdown(options.filter)
            look_at_messages(options, reads, driver)
        last = {read.partition: read.end for read in reads}
        seen = driver.log_identity({p: After(offset) for p, offset in last.items()})
        return [
            PlannedRead(
                r,
                # Only the part with the end of the range has an event to exclude.
                until[r.partition] if r.end == last[r.partition] else None,
                description.incarnation,
                (last[r.partition], seen[r.partition]) if r.partition in seen else None,
                driver.advertised,
            )
            for r in matching_ranges(reads, driver)
        ]


def _stop(wanted: Position, partition: str, newest: After, driver: Driver) -> At | After:
    """Return where reading stops: ``After`` the last event, or ``At`` the first excluded one."""
    if isinstance(wanted, AtTime):
        offset = driver.first_at_time(partition, wanted.timestamp_ms)
        return newest if offset is None else At(offset)
    if isinstance(wanted, (At, After)):
        return min(wanted, newest, key=order)
    return newest


def _tell_odd_ends(who: str, option: str, asked: list[tuple[Asked, Asked]]) -> None:
    """Log a warning about ends that are likely not meant: outside all events, or before the start in each partition."""
    if not warn_of_times(who, option, [stop for _, stop in asked], end=True) and asked:
        start, stop = asked[0]
        if all(_reversed(*each) for each in asked):
            _log.warning("%s: %s: reading ends %s, and starts %s, in %s", who, option, stop, start, start.held)


def _reversed(start: Asked, stop: Asked) -> bool:
    if isinstance(start.wanted, AtTime) and isinstance(stop.wanted, AtTime):
        return stop.wanted.timestamp_ms <= start.wanted.timestamp_ms
    return order(start.found) > order(stop.found)
