"""Spark's own filters, translated into our language where that is exact, and the report of what is pushed down.

==========================  ============================================================================
Spark                       ours
==========================  ============================================================================
``key`` … ``offset``        ``key``, ``partition``, ``offset``: texts, by code points
``properties.<field>``      the property of that name: texts, and numbers for ``group_sequence``
``timestamp``               ``publish_time`` in ms, of literals in µs (Z-17); also the two times of
                            ``properties``
``=``, ``<=>``, ``IN``      EQUALS, IN; ``<=> null`` is IS NULL
``>``, ``>=``, ``<``, ``<=``  the same
``IS [NOT] NULL``           the same, but not of times
``startsWith`` …            LIKE, of texts without ``%`` and ``_``
``NOT`` of one of these     the opposite; of ``<=>``: IS NULL OR the opposite
==========================  ============================================================================

Spark itself evaluates every filter that is not in the table: filters on other columns, with literals of another type,
with null among the values (Z-7), with lists longer than the language takes, or with text that cannot be UTF-8. Spark
does not check the filters that we take, so a translation is true for exactly the rows for which the filter is true.

Spec: pyspark.sql.datasource.DataSourceReader.pushFilters; docs/specifications.md, Z-1, Z-7, Z-13, Z-15,
Z-17.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeVar

import pyarrow as pa

from spark_streams.client.asked_times import warn_of_filter
from spark_streams.client.log_client import Pushdown
from spark_streams.errors import FilterError
from spark_streams.filters import (
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    Expression,
    Operator,
    Predicate,
    Reference,
    Value,
    ValueType,
    all_of,
    any_of,
    check,
    negate,
    property_of,
    to_text,
)
from spark_streams.filters.describe import shorten
from spark_streams.filters.limits import is_unicode
from spark_streams.filters.split import Inexpressible
from spark_streams.filters.tree import without_not
from spark_streams.options.common import SourceOptions
from spark_streams.rows import PROPERTIES_TYPE, TIMESTAMP
from spark_streams.spark.log_lines import show_log_lines

_log = logging.getLogger(__name__)
_Options = TypeVar("_Options", bound=SourceOptions)

_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The worker of Spark 4.1 and later that plans a read with pushed filters; any other worker refuses ``pushFilters``
while ``spark.sql.python.filterPushdown.enabled`` is off."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)
_TYPES: Final = {pa.string(): ValueType.STRING, pa.int64(): ValueType.LONG, TIMESTAMP: ValueType.LONG}
"""Types of the columns whose filters are translated, to the types by which their values compare."""

_COMPARISONS: Final = {
    "EqualTo": Operator.EQUALS,
    "EqualNullSafe": Operator.EQUALS,
    "GreaterThan": Operator.GREATER_THAN,
    "GreaterThanOrEqual": Operator.GREATER_THAN_EQUALS,
    "LessThan": Operator.LESS_THAN,
    "LessThanOrEqual": Operator.LESS_THAN_EQUALS,
}
_PATTERNS: Final = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}


@dataclass(frozen=True)
class _Column:
    """A column whose filters are translated.

    Args:
        reference: its reference in our language.
        type: the type by which its values compare; LONG also for times.
        time: whether it is a time: microseconds in Spark, milliseconds in our language.
    """

    reference: Reference
    type: ValueType = ValueType.STRING
    time: bool = False


Columns = dict[tuple[str, ...], _Column]
"""The columns of a format whose filters are translated, by their paths in a row."""


def translated_columns(*, message: bool = True, times: bool = True) -> Columns:
    """Return the columns of a format whose filters are translated.

    Args:
        message: whether rows have the sections of a message, and times are whole milliseconds; False for feeds, whose
            times have microseconds, so that no comparison in milliseconds is equivalent.
        times: whether a time in a row is always the one that the peer compares; False where an instant that does not
            fit becomes NULL (option ``timestampOverflow``).
    """
    texts: Columns = {("key",): _Column(KEY), ("partition",): _Column(PARTITION), ("offset",): _Column(OFFSET)}
    if not message:
        return texts
    parts: dict[tuple[str, ...], Any] = {("timestamp",): (PUBLISH_TIME, TIMESTAMP)}
    parts |= {("properties", f.name): (property_of(f"properties.{f.name}"), f.type) for f in PROPERTIES_TYPE}
    return texts | {
        path: _Column(reference, _TYPES[kind], kind == TIMESTAMP)
        for path, (reference, kind) in parts.items()
        if kind in _TYPES and (times or kind != TIMESTAMP)
    }


def translate(condition: Any, columns: Columns) -> Expression | None:
    """Return the expression that is true for the same rows as a Spark filter, None when there is no such expression.

    Args:
        condition: an instance of ``pyspark.sql.datasource.Filter``, recognised by its class's name, as these classes do
            not exist before Spark 4.1.
        columns: the columns of the format.
    """
    try:
        if type(condition).__name__ == "Not":
            return _opposite(condition.child, columns)
        return _translated(condition, columns)
    except Inexpressible:
        return None


def push(options: _Options, filters: Sequence[Any], *, message: bool) -> tuple[_Options, list[Any]]:
    """Add those of Spark's filters that have a translation to the filter of the options.

    Args:
        options: of the query.
        filters: instances of ``pyspark.sql.datasource.Filter``, joined by AND.
        message: whether rows have the sections of a message; see ``translated_columns``.

    Returns:
        The options with the new filter, and the same objects of the filters that Spark must evaluate.
    """
    columns = translated_columns(message=message, times=options.timestamp_overflow == "fail")
    whole = options.filter
    left = []
    for condition in filters:
        expression = translate(condition, columns)
        try:
            if expression is None:
                left.append(condition)
            else:
                joined = expression if whole is None else all_of([whole, expression])
                check(joined)
                whole = joined
        except FilterError:  # larger than the language allows
            left.append(condition)
    return replace(options, filter=whole), left


def wants_filters(options: SourceOptions) -> bool:
    """Return whether the reader must take Spark's filters.

    It must if the user sets option ``pushdown`` and this process is the one in which Spark pushes filters. In another
    process the reader must have no ``pushFilters``; a log line then says what is missing.
    """
    if not options.pushdown:
        return False
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if _PUSHING_WORKER in sys.modules or getattr(main, "name", None) == _PUSHING_WORKER:
        return True
    show_log_lines(options.log_level)
    _log.warning(
        "%s: option 'pushdown' has no effect on this read, as Spark hands over no filter: that takes Spark "
        "4.1 or later, spark.sql.python.filterPushdown.enabled set to true, and a filter of the query that Spark can "
        "hand over; the rows are the same, and option 'filter' works without any of that",
        options.label,
    )
    return False


def _translated(condition: Any, columns: Columns) -> Expression:
    column = columns.get(getattr(condition, "attribute", ()))
    kind = type(condition).__name__
    if column is None:
        raise Inexpressible
    if kind in ("IsNull", "IsNotNull"):
        return _null(column, kind == "IsNull")
    if kind == "EqualNullSafe" and condition.value is None:
        return _null(column, True)
    if kind in _PATTERNS:
        return _pattern(column, _PATTERNS[kind], condition.value)
    if kind == "In":
        return _among(column, condition.value)
    if kind not in _COMPARISONS:
        raise Inexpressible
    return _comparison(column, _COMPARISONS[kind], condition.value)


def _opposite(condition: Any, columns: Columns) -> Expression:
    """Return an expression that is true where a filter is false; unknown stays unknown, and passes neither."""
    if type(condition).__name__ == "In" and None in condition.value:
        raise Inexpressible  # never true (Z-7)
    opposite = without_not(negate(_translated(condition, columns)))
    if type(condition).__name__ == "EqualNullSafe" and condition.value is not None:
        return any_of([_null(columns[condition.attribute], True), opposite])
    return opposite


def _null(column: _Column, null: bool) -> Expression:
    if column.time:
        raise Inexpressible  # a publish time is never NULL (E-5), and a row may lack it
    return Predicate(column.reference, Operator.IS_NULL if null else Operator.IS_NOT_NULL)


def _pattern(column: _Column, shape: str, value: object) -> Expression:
    text = _value(column, value)
    if not isinstance(text, str) or "%" in text or "_" in text:  # a LIKE has no escape (E-11)
        raise Inexpressible
    return Predicate(column.reference, Operator.LIKE, (shape.format(text),), ValueType.STRING)


def _among(column: _Column, values: Sequence[object]) -> Expression:
    wanted = tuple(_value(column, value) for value in values if value is not None)
    if not wanted or column.time:
        raise Inexpressible
    if len(wanted) == 1:
        return Predicate(column.reference, Operator.EQUALS, wanted, column.type)
    return Predicate(column.reference, Operator.IN, wanted, column.type)


def _comparison(column: _Column, operator: Operator, value: object) -> Expression:
    if not column.time:
        return Predicate(column.reference, operator, (_value(column, value),), column.type)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Inexpressible  # one without a zone is no TIMESTAMP
    whole, rest = divmod((value - _EPOCH) // _MICROSECOND, 1000)
    if operator is Operator.EQUALS and rest:
        raise Inexpressible  # never true
    if rest and operator in (Operator.GREATER_THAN_EQUALS, Operator.LESS_THAN):
        whole += 1
    return Predicate(column.reference, operator, (whole,), ValueType.LONG)


def _value(column: _Column, value: object) -> Value:
    if column.type is ValueType.STRING:
        if type(value) is str and is_unicode(value):
            return value
    elif type(value) is int and not column.time and -(2**63) <= value < 2**63:
        return value
    raise Inexpressible


_filter_log = logging.getLogger("spark_streams.spark.filter")

MAX_SHOWN: Final = 1_000
"""Most characters of an expression that a line shows: nobody reads a list of a thousand values."""


def log_filter(options: SourceOptions, pushdown: Pushdown) -> None:
    """Log one line for a query that has a filter, and warn of times in it that are likely in another unit.

    Args:
        options: of the query.
        pushdown: the pushed and the residual part of its filter.
    """
    if options.filter is not None:
        _filter_log.info("%s", filter_line(options.label, options.filter, pushdown))
        warn_of_filter(options.label, options.filter)


def filter_json(expression: Expression, pushdown: Pushdown) -> dict[str, str | None]:
    """Return the filter for a query's progress, with keys ``filter``, ``pushed`` and ``residual``.

    Args:
        expression: the whole filter.
        pushdown: its pushed and its residual part.
    """
    residual = None if pushdown.residual is None else shorten(to_text(pushdown.residual), MAX_SHOWN)
    pushed = None if pushdown.pushed is None else shorten(pushdown.pushed, MAX_SHOWN)
    return {"filter": shorten(to_text(expression), MAX_SHOWN), "pushed": pushed, "residual": residual}


def filter_line(label: str, expression: Expression, pushdown: Pushdown) -> str:
    """Return the log line of a filter.

    Args:
        label: who reads what: ``SourceOptions.label``.
        expression: the whole filter.
        pushdown: its pushed and its residual part.
    """
    parts = filter_json(expression, pushdown)
    pushed, residual = parts["pushed"] or "nothing", parts["residual"] or "nothing"
    return f"{label}: filter {parts['filter']}: pushed: {pushed}; checked by the tasks: {residual}"
