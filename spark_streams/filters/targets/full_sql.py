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
from spark_streams.filters.describe import SIGNS
from spark_streams.filters.split import Pushable, pushable
from spark_streams.filters.targets import sql_text
from spark_streams.filters.targets.canonical_texts import types_with_text
from spark_streams.filters.targets.intervals import EVERYTHING, Intervals, intervals_of, within, without
from spark_streams.filters.targets.sql_text import Sql, Term
from spark_streams.filters.targets.typed_sql import Alternatives, application_predicate
from spark_streams.filters.tree import Operator, Predicate, ReferenceKind, ValueType, place_of

_TEXTS: Final = frozenset({"subject", "group_id", "reply_to_group_id", "content_type", "content_encoding"})
_TIMES: Final = frozenset({"creation_time", "absolute_expiry_time"})
_MOST_LISTED: Final = 50
"""The most numbers of one range that are listed one by one."""
_UINT32: Final = (0, 2**32 - 1)


class FullSql:
    """Full SQL as a target.

    Args:
        as_rabbitmq: whether the peer compares typed values, and orders texts, as RabbitMQ does.
        overflow_is_null: whether an instant beyond int64 microseconds reads as null.
    """

    def __init__(self, *, as_rabbitmq: bool, overflow_is_null: bool) -> None:
        self._as_rabbitmq = as_rabbitmq
        self._overflow_is_null = overflow_is_null

    def both(self, left: Sql, right: Sql) -> Sql | None:
        """Return ``left AND right``."""
        return sql_text.join("AND", [left, right])

    def either(self, left: Sql, right: Sql) -> Sql | None:
        """Return ``left OR right``."""
        return sql_text.join("OR", [left, right])

    def test(self, predicate: Predicate) -> Pushable[Sql] | None:
        """Return the SQL to push for a predicate; None for nothing."""
        made = self._made(predicate)
        return made if made is not None and sql_text.is_taken(made.pushed) else None

    def _made(self, predicate: Predicate) -> Pushable[Sql] | None:
        if predicate.reference.kind is ReferenceKind.EVENT_TIME:
            return self._time(Term("p.creation_time"), predicate, zero_is_null=True)
        place = place_of(predicate.reference)
        if place is None:
            return None
        section, name = place
        if section == "application_properties":
            field = sql_text.application_property(name)
            made = field and application_predicate(field, predicate, as_rabbitmq=self._as_rabbitmq)
            return Pushable(made, exact=False) if made else None
        if section != "properties":
            return None
        field = Term(f"p.{name}")
        if name in _TIMES:
            return self._time(field, predicate, zero_is_null=False)
        if predicate.operator is Operator.IS_NULL:
            return Pushable(sql_text.is_null(field), exact=True)
        if predicate.operator is Operator.IS_NOT_NULL:
            return Pushable(sql_text.is_not_null(field), exact=True)
        found = (
            self._text(field, predicate)
            if name in _TEXTS
            else self._count(field, predicate)
            if name == "group_sequence"
            else self._identifier(field, predicate)
        )
        # Whatever the test, it is true for no message without the field.
        return found or Pushable(sql_text.is_not_null(field), exact=False)

    def _time(self, field: Term, predicate: Predicate, *, zero_is_null: bool) -> Pushable[Sql] | None:
        exact = not self._overflow_is_null
        if predicate.operator is Operator.IS_NULL:
            if self._overflow_is_null:
                return None
            unset = [sql_text.is_null(field)]
            if zero_is_null:
                unset.append(sql_text.compare(field, "=", sql_text.integer(0)))
            return pushable(sql_text.join("OR", unset), exact=True)
        found = EVERYTHING if predicate.operator is Operator.IS_NOT_NULL else intervals_of(predicate)
        if found is None:
            found, exact = EVERYTHING, False
        found = within(without(found, 0) if zero_is_null else found, MIN_INT64, MAX_INT64)
        return pushable(_among(field, found), exact=exact)

    def _count(self, field: Term, predicate: Predicate) -> Pushable[Sql] | None:
        found = intervals_of(predicate)
        if found is None:
            return None
        found = within(found, *_UINT32)
        if not self._as_rabbitmq:
            numbers = _listed(found)
            return None if numbers is None else pushable(_among(field, numbers), exact=True)
        return pushable(_among(field, found), exact=True)

    def _text(self, field: Term, predicate: Predicate) -> Pushable[Sql] | None:
        if predicate.type is not ValueType.STRING:
            return None
        op, texts = predicate.operator, [str(value) for value in predicate.values]
        if op in (Operator.LIKE, Operator.NOT_LIKE):
            return _like(field, op, texts[0])
        terms = [term for term in map(sql_text.string, texts) if term is not None]
        if len(terms) < len(texts):
            return None
        if op in (Operator.EQUALS, Operator.IN):
            return Pushable(sql_text.is_in(field, terms), exact=True)
        if op in (Operator.NOT_EQUALS, Operator.NOT_IN):
            return pushable(_guarded(field, sql_text.is_in(field, terms, negated=True)), exact=True)
        if not self._as_rabbitmq:
            return None
        if op is Operator.BETWEEN:
            edges = [sql_text.compare(field, ">=", terms[0]), sql_text.compare(field, "<=", terms[1])]
            return pushable(sql_text.join("AND", edges), exact=True)
        return Pushable(sql_text.compare(field, SIGNS[op], terms[0]), exact=True) if op in SIGNS else None

    def _identifier(self, field: Term, predicate: Predicate) -> Pushable[Sql] | None:
        if predicate.type is not ValueType.STRING or predicate.operator not in (Operator.EQUALS, Operator.IN):
            return None
        made = Alternatives(field, as_rabbitmq=self._as_rabbitmq)
        for value in predicate.values:
            text = str(value)
            made.string(text)
            others = types_with_text(text)
            if text.isascii() and text.isdigit() and others.number is not None and others.number < 2**64:
                made.equals(sql_text.integer(int(text)))
            made.identifier_types(others.uuid, others.binary)
        return pushable(made.sql(), exact=False)


def _guarded(field: Term, made: Sql) -> Sql | None:
    return sql_text.join("AND", [sql_text.is_not_null(field), made])


def _like(field: Term, op: Operator, pattern: str) -> Pushable[Sql] | None:
    head, wild, tail = sql_text.outline(pattern)
    exact, negated = sql_text.is_outline(pattern), op is Operator.NOT_LIKE
    value = sql_text.string(f"{head}%{tail}" if wild else pattern)
    if value is None or not (exact or (not negated and (head or tail))):
        return None
    made = sql_text.like(field, value, negated=negated) if wild else sql_text.is_in(field, [value], negated=negated)
    return pushable(_guarded(field, made) if negated else made, exact=exact)


def _among(field: Term, intervals: Intervals) -> Sql | None:
    """Return the SQL for a number in one of the intervals; a missing number is in none."""
    if not intervals:
        return sql_text.FALSE
    if intervals == EVERYTHING:
        return sql_text.is_not_null(field)
    points = [low for low, high in intervals if low is not None and low == high]
    if len(points) == len(intervals):
        return sql_text.is_in(field, [sql_text.integer(point) for point in points])
    parts = [_within(field, low, high) for low, high in intervals]
    written = [part for part in parts if part is not None]
    # Do not leave out an interval that SQL cannot express: the peer would leave out its events.
    return sql_text.join("OR", written) if len(written) == len(parts) else None


def _listed(intervals: Intervals) -> Intervals | None:
    """Return an interval for each number; None if an interval has no end or is too long (``_MOST_LISTED``)."""
    numbers: list[tuple[int, int]] = []
    for low, high in intervals:
        if low is None or high is None or high - low > _MOST_LISTED:
            return None
        numbers.extend((number, number) for number in range(low, high + 1))
    return tuple(numbers)


def _within(field: Term, low: int | None, high: int | None) -> Sql | None:
    if low is not None and low == high:
        return sql_text.compare(field, "=", sql_text.integer(low))
    edges = [
        sql_text.compare(field, sign, sql_text.integer(edge))
        for sign, edge in ((">=", low), ("<=", high))
        if edge is not None
    ]
    return sql_text.join("AND", edges)
