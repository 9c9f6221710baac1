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
from spark_streams.filters.describe import SIGNS
from spark_streams.filters.split import Pushable, pushable
from spark_streams.filters.targets.intervals import Intervals, intervals_of, within
from spark_streams.filters.tree import Operator, Predicate, ReferenceKind, ValueType
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
_MAX_CHARACTERS: Final = 4096
"""The most characters of one text: as many as RabbitMQ takes of its full SQL."""


class EventStreams:
    """The SQL subset.

    Args:
        overflow_is_null: whether an instant beyond int64 microseconds reads as null.
    """

    def __init__(self, *, overflow_is_null: bool) -> None:
        self._overflow_is_null = overflow_is_null

    def both(self, left: Terms, right: Terms) -> Terms | None:
        """Return ``left AND right``, multiplied out."""
        if len(left) * len(right) > _MAX_COMPARISONS:
            return None
        return _bounded(tuple(dict.fromkeys((*one, *other)) for one in left for other in right))

    def either(self, left: Terms, right: Terms) -> Terms | None:
        """Return ``left OR right``."""
        return _TRUE if _TRUE[0] in (*left, *right) else _bounded((*left, *right))

    def test(self, predicate: Predicate) -> Pushable[Terms] | None:
        """Return the terms to push for a predicate; None for nothing."""
        kind, op = predicate.reference.kind, predicate.operator
        if kind is ReferenceKind.OFFSET:
            if op in (Operator.IS_NULL, Operator.IS_NOT_NULL):
                return Pushable(_TRUE if op is Operator.IS_NOT_NULL else _FALSE, exact=True)
            return _of_offset(predicate)
        if kind is not ReferenceKind.PUBLISH_TIME:
            return None
        intervals = intervals_of(predicate)
        if intervals is None:
            return None
        made = _of_times(within(intervals, MIN_INT64, MAX_INT64))
        return Pushable(made.pushed, made.exact and not self._overflow_is_null) if made else None


def bound_of(predicate: Predicate) -> tuple[tuple[str, str | int] | None, Predicate | None]:
    """Return a predicate as an exclusive lower bound, and the rest of it.

    Args:
        predicate: any.

    Returns:
        Delivery annotation and bound, or None; and the rest of the predicate, None for nothing. An equation stays
        whole where SQL can express it.
    """
    kind, op = predicate.reference.kind, predicate.operator
    if kind is ReferenceKind.OFFSET and op is Operator.GREATER_THAN and predicate.type is ValueType.STRING:
        text = str(predicate.values[0])
        return ((OFFSET_KEY, text), None) if _is_literal(text) else (None, predicate)
    intervals = intervals_of(predicate) if kind is ReferenceKind.PUBLISH_TIME else None
    intervals = within(intervals, MIN_INT64, MAX_INT64) if intervals else None
    if not intervals or intervals[0][0] is None:
        return None, predicate
    first = intervals[0][0]
    bound = (TIMESTAMP_KEY, first - 1)
    if intervals == ((first, None),):
        return bound, None
    if op is Operator.BETWEEN:
        return bound, Predicate(predicate.reference, Operator.LESS_THAN_EQUALS, predicate.values[1:], predicate.type)
    return (bound, predicate) if first < 0 else (None, predicate)


def text_of(terms: Terms) -> str | None:
    """Return the text of the filter; None for a filter that is always true."""
    if _TRUE[0] in terms:
        return None
    return " OR ".join(" AND ".join(term) for term in terms) or "FALSE"


def _bounded(made: tuple[dict[str, None] | tuple[str, ...], ...]) -> Terms | None:
    terms: Terms = tuple(dict.fromkeys(tuple(term) for term in made))
    if sum(map(len, terms)) > _MAX_COMPARISONS or len(text_of(terms) or "") > _MAX_CHARACTERS:
        return None
    return terms


def _is_literal(text: str) -> bool:
    """Return whether a filter can use a text as a literal offset.

    Offsets are symbols, which are ASCII (Z-11); two texts mean the beginning and the end of the peer's log (A-8).
    """
    return text.isascii() and text.isprintable() and text not in ("", "@earliest", "@latest")


def _of_offset(predicate: Predicate) -> Pushable[Terms] | None:
    if predicate.type is not ValueType.STRING or not all(_is_literal(str(value)) for value in predicate.values):
        return None
    op = predicate.operator
    texts = ["'{}'".format(str(value).replace("'", "''")) for value in dict.fromkeys(predicate.values)]
    if op is Operator.BETWEEN:
        return Pushable(((f"d.{OFFSET_KEY} >= {texts[0]}", f"d.{OFFSET_KEY} <= {texts[-1]}"),), exact=True)
    if op is Operator.NOT_IN:
        return pushable(_bounded((tuple(f"d.{OFFSET_KEY} <> {text}" for text in texts),)), exact=True)
    if op is Operator.IN:
        return pushable(_bounded(tuple((f"d.{OFFSET_KEY} = {text}",) for text in texts)), exact=True)
    return Pushable(((f"d.{OFFSET_KEY} {SIGNS[op]} {texts[0]}",),), exact=True) if op in SIGNS else None


def _of_times(intervals: Intervals) -> Pushable[Terms] | None:
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
        return None
    return pushable(_bounded(tuple(terms)), exact=exact)
