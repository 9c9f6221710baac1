"""Warns of a filter that names a property that no event has, such as a field of the JSON in ``value``.

Such a filter is valid, and lets no event through. In a feed the tasks notice it: a name that the feed checks itself is
one that it offers. A peer of messages checks any name, and does not send what it leaves out, so there the driver looks
at the first events of a query's first batch, without the filter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.log_client import RangeRead
from spark_streams.errors import SparkStreamsError
from spark_streams.filters.row_columns import feed_columns
from spark_streams.filters.tree import Expression, Operator, ReferenceKind, place_of, predicates

if TYPE_CHECKING:
    from spark_streams.options.common import SourceOptions
    from spark_streams.spark.source.driver import Driver

_log = logging.getLogger("spark_streams.spark.filter")

MAPS: Final = ("application_properties", "message_annotations")
"""The columns whose entries differ from message to message; the fields of ``properties`` are known when a filter is
read."""
ENOUGH: Final = 1_000
"""Events of a partition that are examined, of ``PARTITIONS`` partitions at most: this takes a part of a second,
and the warning says how many events it is about."""
PARTITIONS: Final = 8


class UnseenNames:
    """The properties that a filter names and that no event had so far.

    Args:
        stream: the stream's name.
        expression: the filter; None if there is none.
        feed: whether the events are those of a feed, whose properties are members of JSON objects.
    """

    def __init__(self, stream: str, expression: Expression | None, *, feed: bool) -> None:
        self._stream = stream
        self._feed = feed
        self._looked = 0
        self._annotations: set[str] = set()
        named = [] if expression is None else [p for p in predicates(expression) if p.operator is not Operator.IS_NULL]
        self._left = {p.reference for p in named if p.reference.kind is ReferenceKind.PROPERTY}
        if not feed:
            self._left = {each for each in self._left if (place_of(each) or ("",))[0] in MAPS}

    def __bool__(self) -> bool:
        return bool(self._left)

    def look(self, batch: pa.RecordBatch) -> None:
        """Forget the properties that an event of a batch has: of column ``value``, or of the columns in ``MAPS``."""
        self._looked += batch.num_rows
        if self._feed:
            look_up = feed_columns(batch)
            self._left = {each for each in self._left if look_up(each).null_count == batch.num_rows}
        else:
            there = {(column, key) for column in MAPS for key in pc.unique(batch.column(column).keys).to_pylist()}
            self._left = {each for each in self._left if place_of(each) not in there}
            self._annotations |= {key for column, key in there if column == "message_annotations"}

    def warn(self) -> None:
        """Log the warning, if a name is left and there was an event."""
        if not self._left or not self._looked:
            return
        if self._feed:
            meaning = "a name is a member of the event's JSON object here, or a JSON pointer such as [/customer/id]"
        else:
            meaning = (
                "a bare name is an application property here, not a field of the JSON in column value, by which "
                "where(...) after load() filters"
            )
            own = sorted(each.name or "" for each in self._left if each.name in self._annotations)
            meaning += "".join(f"; '{name}' is a message annotation: message_annotations.[{name}]" for name in own)
        names = ", ".join(sorted(f"'{each.name}'" for each in self._left))
        text = "stream '%s': the filter names %s, which none of the first %d events has: %s"
        _log.warning(text, self._stream, names, self._looked, meaning)


def look_at_messages(options: SourceOptions, reads: Iterable[RangeRead], driver: Driver) -> None:
    """Warn if the filter of a query names properties that none of its first messages has; a failed look is ignored.

    Args:
        options: of the query.
        reads: the ranges of its first batch.
        driver: of the query.
    """
    unseen = UnseenNames(options.stream, options.filter, feed=False)
    # A group may have one reader of a partition at a time: a look would take it from another query, or wait for it.
    alone = getattr(options, "consumer_group", None) is not None or getattr(options, "single_active_consumer", False)
    if not unseen or alone:
        return
    for read in list(reads)[:PARTITIONS]:
        try:
            batches = driver.first_events(replace(read, columns=MAPS, filter=None), ENOUGH)
        except SparkStreamsError as fault:
            _log.debug("no look at the names of the filter: %s", fault)
            return
        for batch in batches:
            unseen.look(batch)
        if not unseen:
            return
    unseen.warn()


def looked_at(batches: Iterator[pa.RecordBatch], stream: str, residual: Expression | None) -> Iterator[pa.RecordBatch]:
    """Yield the events of a feed, and warn if none of the first ones has what a filter names.

    Args:
        batches: the events of a task, with column ``value`` if the filter names a member.
        stream: the feed's name.
        residual: the part of the filter that the task checks.
    """
    unseen = UnseenNames(stream, residual, feed=True)
    looked = 0
    for batch in batches:
        if unseen and looked < ENOUGH:
            unseen.look(batch)
            looked += batch.num_rows
            if looked >= ENOUGH:
                unseen.warn()
        yield batch
    if looked < ENOUGH:
        unseen.warn()
