"""The plan of a batch query: it resolves two positions of each partition, between which the tasks read.

Both are resolved once, from one description of the stream: events that come later are not in the query.
"""

from __future__ import annotations

from contextlib import closing

from spark_streams.client.data_loss import LossPolicy
from spark_streams.client.log_client import Bounds
from spark_streams.options.common import SourceOptions
from spark_streams.options.positions import PositionRange
from spark_streams.position import LATEST, After, At, AtTime, Position
from spark_streams.spark.pushdown.pruning import matching_ranges
from spark_streams.spark.pushdown.spark_filters import log_filter
from spark_streams.spark.pushdown.unseen_names import look_at_messages
from spark_streams.spark.source.driver import Connect, Driver, position_in
from spark_streams.spark.source.ranges import PlannedRead, checked, order, range_read, resolve_start


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
        reads, until = [], dict[str, str | None]()
        for partition, bounds in description.partitions.items():
            start = resolve_start(position_in(options.starting, partition), partition, description, driver, policy)
            stop = _stop(position_in(ending, partition), partition, bounds, driver)
            if bounds.latest is None or stop is None or order(start) >= order(stop):
                continue
            until[partition] = stop.offset if isinstance(stop, At) else None
            reads.append(range_read(options, columns, partition, start, stop.offset))
        if options.filter is not None:
            log_filter(options, driver.pushdown(options.filter))
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


def _stop(wanted: Position, partition: str, bounds: Bounds, driver: Driver) -> At | After | None:
    """Return where reading stops: ``After`` the last event, or ``At`` the first excluded one; None without events."""
    if bounds.latest is None:
        return None
    newest = After(bounds.latest)
    if isinstance(wanted, AtTime):
        offset = driver.first_at_time(partition, wanted.timestamp_ms)
        return newest if offset is None else At(offset)
    if isinstance(wanted, (At, After)):
        return min(wanted, newest, key=order)
    return newest
