"""Full SQL filters (``amqp:sql-filter``) as a target: predicates on the properties section and application properties.

The fields of the properties section have fixed types, so most pushed predicates on them are exact:

=============================================  ======================================================================
field                                          pushed
=============================================  ======================================================================
subject, group_id, reply_to_group_id,          text: exactly; the order of texts only where it is known; LIKE with more
content_type, content_encoding                 than one ``%`` by its ends; else IS NOT NULL
creation_time (also ``event_time``),           numbers of ms, exactly; event_time 0 is unset (Z-15)
absolute_expiry_time
group_sequence                                 numbers: exactly; in the draft a constant is of the smallest type, and
                                               compares within that type's range only: ``=`` and IN
message_id, correlation_id, to, reply_to       string, ulong, uuid or binary: ``=`` and IN with each of them, and the
                                               predicate remains; else IS NOT NULL
application properties                         see ``typed_sql.py``
=============================================  ======================================================================

No section of RabbitMQ's dialect holds offsets, publish times, keys or body sizes.

Spec: AMQP 1.0 part 3 §3.2.4; AMQP Filter Expressions 1.0 wd10 §6.4; docs/specifications.md, X-1 to X-9,
Z-1, Z-15, Z-16.
"""

from __future__ import annotations

from typing import Final

from spark_streams.filters.decimals import MAX_INT64, MIN_INT64
from spark_streams.filters.intervals import EVERYTHING, Intervals, intervals_of, within, without
from spark_streams.filters.split import Inexpressible, Split
from spark_streams.filters.targets import sql_text
from spark_streams.filters.targets.canonical_texts import number_with
from spark_streams.filters.targets.sql_text import Sql, Term
from spark_streams.filters.targets.typed_sql import Alternatives, application_predicate
from spark_streams.filters.tree import COMPARISONS, Operator, Predicate, Reference, ReferenceKind, ValueType, place_of

_TEXTS: Final = frozenset({"subject", "group_id", "reply_to_group_id", "content_type", "content_encoding"})
_TIMES: Final = frozenset({"creation_time", "absolute_expiry_time"})
_MOST_LISTED: Final = 50
"""The most numbers of one range that are listed one by one."""
_UINT32: Final = (0, 2**32 - 1)


class FullSql:
    """Full SQL as a target.

    Args:
        as_rabbitmq: whether the peer compares typed values, and orders texts, as RabbitMQ does.
    """

    def __init__(self, *, as_rabbitmq: bool) -> None:
        self._as_rabbitmq = as_rabbitmq

    def both(self, left: Sql, right: Sql) -> Sql:
        """Return ``left AND right``."""
        return sql_text.join("AND", [left, right])

    def either(self, left: Sql, right: Sql) -> Sql:
        """Return ``left OR right``."""
        return sql_text.join("OR", [left, right])

    def test(self, predicate: Predicate) -> Split[Sql]:
        """Return the SQL to push for a predicate."""
        made, exact = self._made(predicate)
        return Split(sql_text.checked(made), None if exact else predicate)

    def _made(self, predicate: Predicate) -> tuple[Sql, bool]:
        """Return the SQL, and whether it is exact."""
        if predicate.reference.kind is ReferenceKind.EVENT_TIME:
            return self._time(Term("p.creation_time"), predicate, zero_is_null=True)
        section, name = place_of(predicate.reference) or ("", "")
        if section == "application_properties":
            field = sql_text.application_property(name)
            return application_predicate(field, predicate, as_rabbitmq=self._as_rabbitmq), False
        if section != "properties":
            raise Inexpressible
        field = Term(f"p.{name}")
        if name in _TIMES:
            return self._time(field, predicate, zero_is_null=False)
        if predicate.operator is Operator.IS_NULL:
            return sql_text.is_null(field), True
        if predicate.operator is Operator.IS_NOT_NULL:
            return sql_text.is_not_null(field), True
        try:
            if name in _TEXTS:
                return self._text(field, predicate)
            return self._count(field, predicate) if name == "group_sequence" else self._identifier(field, predicate)
        except Inexpressible:
            # Whatever the test, it is true for no message without the field.
            return sql_text.is_not_null(field), False

    def _time(self, field: Term, predicate: Predicate, *, zero_is_null: bool) -> tuple[Sql, bool]:
        if predicate.operator is Operator.IS_NULL:
            unset = [sql_text.is_null(field)]
            if zero_is_null:
                unset.append(sql_text.compare(field, "=", sql_text.integer(0)))
            return sql_text.join("OR", unset), True
        try:
            found, exact = intervals_of(predicate), True
        except Inexpressible:
            found, exact = EVERYTHING, predicate.operator is Operator.IS_NOT_NULL
        return _among(field, within(without(found, 0) if zero_is_null else found, MIN_INT64, MAX_INT64)), exact

    def _count(self, field: Term, predicate: Predicate) -> tuple[Sql, bool]:
        found = within(intervals_of(predicate), *_UINT32)
        return _among(field, found if self._as_rabbitmq else _listed(found)), True

    def _text(self, field: Term, predicate: Predicate) -> tuple[Sql, bool]:
        if predicate.type is not ValueType.STRING:
            raise Inexpressible
        op, texts = predicate.operator, [str(value) for value in predicate.values]
        if op in (Operator.LIKE, Operator.NOT_LIKE):
            return _like(field, op, texts[0])
        terms = [sql_text.string(text) for text in texts]
        if op in (Operator.EQUALS, Operator.IN):
            return sql_text.is_in(field, terms), True
        if op in (Operator.NOT_EQUALS, Operator.NOT_IN):
            return _guarded(field, sql_text.is_in(field, terms, negated=True)), True
        if not self._as_rabbitmq or (op is not Operator.BETWEEN and op not in COMPARISONS):
            raise Inexpressible
        if op is Operator.BETWEEN:
            return sql_text.between(field, *terms, below=False), True
        return sql_text.compare(field, COMPARISONS[op].sign, terms[0]), True

    def _identifier(self, field: Term, predicate: Predicate) -> tuple[Sql, bool]:
        if predicate.type is not ValueType.STRING or predicate.operator not in (Operator.EQUALS, Operator.IN):
            raise Inexpressible
        made = Alternatives(field, as_rabbitmq=self._as_rabbitmq)
        for value in predicate.values:
            text = str(value)
            made.string(text)
            number = number_with(text)
            if text.isascii() and text.isdigit() and number is not None and number < 2**64:
                made.equals(sql_text.integer(int(text)))
            made.identifier_types(text)
        return made.sql(), False


def is_time(reference: Reference) -> bool:
    """Return whether a part of an event is an instant."""
    section, name = place_of(reference) or ("", "")
    named = section == "properties" and name in _TIMES
    return named or reference.kind in (ReferenceKind.EVENT_TIME, ReferenceKind.PUBLISH_TIME)


def _guarded(field: Term, made: Sql) -> Sql:
    return sql_text.join("AND", [sql_text.is_not_null(field), made])


def _like(field: Term, op: Operator, pattern: str) -> tuple[Sql, bool]:
    head, wild, tail = sql_text.outline(pattern)
    exact, negated = sql_text.is_outline(pattern), op is Operator.NOT_LIKE
    value = sql_text.string(f"{head}%{tail}" if wild else pattern)
    if not exact and (negated or not (head or tail)):
        raise Inexpressible
    made = sql_text.like(field, value, negated=negated) if wild else sql_text.is_in(field, [value], negated=negated)
    return (_guarded(field, made) if negated else made), exact


def _among(field: Term, intervals: Intervals) -> Sql:
    """Return the SQL for a number in one of the intervals; a missing number is in none."""
    if not intervals:
        return sql_text.FALSE
    if intervals == EVERYTHING:
        return sql_text.is_not_null(field)
    points = [low for low, high in intervals if low is not None and low == high]
    if len(points) == len(intervals):
        return sql_text.is_in(field, [sql_text.integer(point) for point in points])
    return sql_text.join("OR", [_within(field, low, high) for low, high in intervals])


def _listed(intervals: Intervals) -> Intervals:
    """Return an interval for each number, unless an interval has no end or is too long (``_MOST_LISTED``)."""
    numbers: list[tuple[int, int]] = []
    for low, high in intervals:
        if low is None or high is None or high - low > _MOST_LISTED:
            raise Inexpressible
        numbers.extend((number, number) for number in range(low, high + 1))
    return tuple(numbers)


def _within(field: Term, low: int | None, high: int | None) -> Sql:
    if low is not None and low == high:
        return sql_text.compare(field, "=", sql_text.integer(low))
    first, last = (None if edge is None else sql_text.integer(edge) for edge in (low, high))
    return sql_text.between(field, first, last, below=False)
