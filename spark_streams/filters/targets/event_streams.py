"""The two filters of AMQP event streams as a target: exclusive lower bounds, and SQL without parentheses.

SQL here is an OR of ANDs of comparisons of ``d.event-streams-offset`` with texts and ``d.event-streams-timestamp`` with
whole numbers from 0 on; an expression is multiplied out into that form as long as it stays small. A time before 1970
can only be a lower bound, in delivery annotations (Z-10): SQL leaves its bound out, or has ``< 0`` instead, and the
predicate remains.

Peers may read ``<>`` with a missing timestamp as true (X-1), so this target writes ``< OR >`` for timestamps. An offset
is never missing.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.2.1, §5.2.2; docs/specifications.md, Z-10,
Z-11, Z-20.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from spark_streams.filters.decimals import MAX_INT64, MIN_INT64
from spark_streams.filters.intervals import Intervals, intervals_of, within
from spark_streams.filters.split import Inexpressible, Split
from spark_streams.filters.targets.sql_text import MAX_CHARACTERS
from spark_streams.filters.tree import COMPARISONS, Operator, Predicate, ReferenceKind, Value, ValueType
from spark_streams.wire.amqp.event_streams import OFFSET_KEY, TIMESTAMP_KEY

Terms: TypeAlias = tuple[tuple[str, ...], ...]
"""An OR of ANDs of comparisons: one inner tuple for each AND. No inner tuple is FALSE; an empty inner tuple is TRUE."""
Bounds: TypeAlias = "dict[str, str | int]"
"""Each delivery annotation to its exclusive lower bound."""

_TRUE: Final[Terms] = ((),)
_FALSE: Final[Terms] = ()
_MAX_COMPARISONS: Final = 50
"""The most comparisons in one text, which makes 199 tokens: RabbitMQ takes 200 of its full SQL. Without this limit,
multiplying out could produce any number."""


class DeliveryAnnotations:
    """Delivery annotations, each with an exclusive lower bound; an event exceeds all of them."""

    def both(self, left: Bounds, right: Bounds) -> Bounds:
        """Return ``left AND right``: the higher bound of each annotation."""
        return {**left, **{name: max(left.get(name, bound), bound) for name, bound in right.items()}}

    def either(self, left: Bounds, right: Bounds) -> Bounds:
        """Refuse: bounds are joined by AND only."""
        raise Inexpressible

    def test(self, predicate: Predicate) -> Split[Bounds]:
        """Return the bound in a predicate, and the rest; an equation stays whole where SQL can express it."""
        kind, op = predicate.reference.kind, predicate.operator
        if kind is ReferenceKind.OFFSET and op is Operator.GREATER_THAN and predicate.type is ValueType.STRING:
            return Split({OFFSET_KEY: _offset(predicate.values[0])}, None)
        intervals = _times(predicate)
        if not intervals or intervals[0][0] is None:
            raise Inexpressible
        first = intervals[0][0]
        bound: Bounds = {TIMESTAMP_KEY: first - 1}
        if intervals == ((first, None),):
            return Split(bound, None)
        if op is Operator.BETWEEN:
            rest = Predicate(predicate.reference, Operator.LESS_THAN_EQUALS, predicate.values[1:], predicate.type)
            return Split(bound, rest)
        if first >= 0:
            raise Inexpressible
        return Split(bound, predicate)


class EventStreams:
    """The SQL subset."""

    def both(self, left: Terms, right: Terms) -> Terms:
        """Return ``left AND right``, multiplied out."""
        if len(left) * len(right) > _MAX_COMPARISONS:
            raise Inexpressible
        return _bounded(tuple(dict.fromkeys((*one, *other)) for one in left for other in right))

    def either(self, left: Terms, right: Terms) -> Terms:
        """Return ``left OR right``."""
        return _TRUE if _TRUE[0] in (*left, *right) else _bounded((*left, *right))

    def test(self, predicate: Predicate) -> Split[Terms]:
        """Return the terms to push for a predicate."""
        if predicate.reference.kind is not ReferenceKind.OFFSET:
            made, exact = _of_times(_times(predicate))
            return Split(_bounded(made), None if exact else predicate)
        if predicate.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
            return Split(_TRUE if predicate.operator is Operator.IS_NOT_NULL else _FALSE, None)
        return Split(_bounded(_of_offset(predicate)), None)


def text_of(terms: Terms) -> str | None:
    """Return the text of the filter; None for a filter that is always true."""
    if _TRUE[0] in terms:
        return None
    return " OR ".join(" AND ".join(term) for term in terms) or "FALSE"


def _bounded(made: tuple[dict[str, None] | tuple[str, ...], ...]) -> Terms:
    terms: Terms = tuple(dict.fromkeys(tuple(term) for term in made))
    if sum(map(len, terms)) > _MAX_COMPARISONS or len(text_of(terms) or "") > MAX_CHARACTERS:
        raise Inexpressible
    return terms


def _offset(value: Value) -> str:
    """Return the text of a value that a filter can use as a literal offset.

    Offsets are symbols, which are ASCII (Z-11); two texts mean the beginning and the end of the peer's log (A-8).
    """
    text = str(value)
    if not text.isascii() or not text.isprintable() or text in ("", "@earliest", "@latest"):
        raise Inexpressible
    return text


def _of_offset(predicate: Predicate) -> Terms:
    if predicate.type is not ValueType.STRING:
        raise Inexpressible
    op = predicate.operator
    texts = ["'{}'".format(_offset(value).replace("'", "''")) for value in dict.fromkeys(predicate.values)]
    if op is Operator.BETWEEN:
        return ((f"d.{OFFSET_KEY} >= {texts[0]}", f"d.{OFFSET_KEY} <= {texts[-1]}"),)
    if op is Operator.NOT_IN:
        return (tuple(f"d.{OFFSET_KEY} <> {text}" for text in texts),)
    if op is Operator.IN:
        return tuple((f"d.{OFFSET_KEY} = {text}",) for text in texts)
    if op not in COMPARISONS:
        raise Inexpressible
    return ((f"d.{OFFSET_KEY} {COMPARISONS[op].sign} {texts[0]}",),)


def _times(predicate: Predicate) -> Intervals:
    """Return the publish times for which a predicate is true."""
    if predicate.reference.kind is not ReferenceKind.PUBLISH_TIME:
        raise Inexpressible
    return within(intervals_of(predicate), MIN_INT64, MAX_INT64)


def _of_times(intervals: Intervals) -> tuple[Terms, bool]:
    """Return the terms for a time in one of the intervals, and whether they are exact."""
    terms: list[tuple[str, ...]] = []
    exact = True
    for low, high in intervals:
        # A missing timestamp is in no interval, but TRUE would let it pass.
        exact = exact and (low is None or low >= 0) and (high is None or high >= 0) and (low, high) != (None, None)
        if high is not None and high < 0:
            terms.append((f"d.{TIMESTAMP_KEY} < 0",))
        elif low is not None and low == high:
            terms.append((f"d.{TIMESTAMP_KEY} = {low}",))
        else:
            lower = () if low is None or low < 0 else (f"d.{TIMESTAMP_KEY} >= {low}",)
            terms.append((*lower, *(() if high is None else (f"d.{TIMESTAMP_KEY} <= {high}",))))
    if _TRUE[0] in terms:
        raise Inexpressible
    return tuple(terms), exact
