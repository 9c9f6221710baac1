"""The filter language as calls in Python: the builder of the Pulsar proposal, under Python's names.

::

    builder()              ReferenceStep    the tested part: property(name), publish_time(), event_time(), key(), ...
      .property("type")    OperatorStep     test: equals, in_, greater_than, like, between, is_null, contains_any, ...
      .equals("order")     ExpressionStep   and_(), or_(): a ReferenceStep again; not_(): all of it negated; build()
      .and_().publish_time().greater_than_equals(-386380800000)
      .build()             Expression

Calls join from left to right, unlike SQL: ``a.or_().b.and_().c`` is ``(a OR b) AND c``, and ``not_()`` negates
everything before it (E-4). ``group(expression)`` takes an expression that was built separately; ``all_of``, ``any_of``
and ``negate`` join such expressions, too.

The type of the values is the type of the Python values: str is STRING, int is LONG, float is DOUBLE. Steps are frozen,
so a caller may continue from the same step many times. A test that makes no sense fails where it is called.

Spec: Pulsar proposal, "Client API"; docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_streams.errors import FilterError
from spark_streams.filters.describe import shorten
from spark_streams.filters.limits import check
from spark_streams.filters.tree import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    And,
    Expression,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    all_of,
    any_of,
    negate,
    property_of,
)

_TYPES: Final[dict[type, ValueType]] = {str: ValueType.STRING, int: ValueType.LONG, float: ValueType.DOUBLE}


def builder() -> ReferenceStep:
    """Begin an expression."""
    return ReferenceStep()


@dataclass(frozen=True)
class ReferenceStep:
    """The step that chooses the part of an event to test.

    Args:
        left: the expression before it; None at the beginning.
        join: how it joins the next test with ``left``.
    """

    left: Expression | None = None
    join: type[And] | type[Or] = And

    def property(self, name: str) -> OperatorStep:
        """Test a property; ``tree.property_of`` describes its name."""
        return OperatorStep(self, property_of(name))

    def event_time(self) -> OperatorStep:
        """Test the time at which the event happened, in ms since the epoch."""
        return OperatorStep(self, EVENT_TIME)

    def publish_time(self) -> OperatorStep:
        """Test the time at which the event was added to the log, in ms since the epoch."""
        return OperatorStep(self, PUBLISH_TIME)

    def key(self) -> OperatorStep:
        """Test the event's key."""
        return OperatorStep(self, KEY)

    def partition(self) -> OperatorStep:
        """Test the identifier of the event's partition."""
        return OperatorStep(self, PARTITION)

    def offset(self) -> OperatorStep:
        """Test the event's offset."""
        return OperatorStep(self, OFFSET)

    def body_size(self) -> OperatorStep:
        """Test the size of the event's body in bytes."""
        return OperatorStep(self, BODY_SIZE)

    def group(self, expression: Expression) -> ExpressionStep:
        """Take an expression that was built separately, as one operand.

        Raises:
            FilterError: ``expression`` is not an expression, or is larger than the language allows.
        """
        check(expression)
        if self.left is None:
            return ExpressionStep(expression)
        join = all_of if self.join is And else any_of
        return ExpressionStep(join((self.left, expression)))


@dataclass(frozen=True)
class OperatorStep:
    """The step that chooses the test of that part; each call raises ``FilterError`` where it makes no sense.

    Args:
        before: the previous step.
        reference: the part of the event.
    """

    before: ReferenceStep
    reference: Reference

    def is_null(self) -> ExpressionStep:
        """Test that it is missing."""
        return self.before.group(Predicate(self.reference, Operator.IS_NULL))

    def is_not_null(self) -> ExpressionStep:
        """Test that it is not missing."""
        return self.before.group(Predicate(self.reference, Operator.IS_NOT_NULL))

    def equals(self, value: Value) -> ExpressionStep:
        """Test that it equals the value."""
        return self._test(Operator.EQUALS, value)

    def not_equals(self, value: Value) -> ExpressionStep:
        """Test that it is not missing and differs from the value."""
        return self._test(Operator.NOT_EQUALS, value)

    def in_(self, *values: Value) -> ExpressionStep:
        """Test that it equals one of the values, of which there is at least one."""
        return self._test(Operator.IN, *values)

    def not_in(self, *values: Value) -> ExpressionStep:
        """Test that it is not missing and differs from all values; there is at least one."""
        return self._test(Operator.NOT_IN, *values)

    def greater_than(self, value: Value) -> ExpressionStep:
        """Test that it is greater than the value."""
        return self._test(Operator.GREATER_THAN, value)

    def greater_than_equals(self, value: Value) -> ExpressionStep:
        """Test that it is greater than the value, or equal to it."""
        return self._test(Operator.GREATER_THAN_EQUALS, value)

    def less_than(self, value: Value) -> ExpressionStep:
        """Test that it is less than the value."""
        return self._test(Operator.LESS_THAN, value)

    def less_than_equals(self, value: Value) -> ExpressionStep:
        """Test that it is less than the value, or equal to it."""
        return self._test(Operator.LESS_THAN_EQUALS, value)

    def between(self, low: Value, high: Value) -> ExpressionStep:
        """Test that it is between the two values, both inclusive."""
        return self._test(Operator.BETWEEN, low, high)

    def like(self, pattern: str) -> ExpressionStep:
        """Test that it is a text that matches: ``%`` is any run of characters, ``_`` is one, and there is no escape."""
        return self._test(Operator.LIKE, pattern)

    def not_like(self, pattern: str) -> ExpressionStep:
        """Test that it is not missing and does not match the pattern."""
        return self._test(Operator.NOT_LIKE, pattern)

    def contains_all(self, *values: Value) -> ExpressionStep:
        """Test that it is a list that has all of the values; there is at least one."""
        return self._test(Operator.CONTAINS_ALL, *values)

    def contains_any(self, *values: Value) -> ExpressionStep:
        """Test that it is a list that has at least one of the values."""
        return self._test(Operator.CONTAINS_ANY, *values)

    def contains_none(self, *values: Value) -> ExpressionStep:
        """Test that it is a list that has none of the values; there is at least one."""
        return self._test(Operator.CONTAINS_NONE, *values)

    def _test(self, operator: Operator, *values: Value) -> ExpressionStep:
        of = _TYPES.get(type(values[0])) if values else ValueType.STRING
        if of is None:
            reason = f"expected values that are str, int or float, not {type(values[0]).__name__}"
            raise FilterError(shorten(repr(values)), None, reason)
        return self.before.group(Predicate(self.reference, operator, values, of))


@dataclass(frozen=True)
class ExpressionStep:
    """The step after a test: it adds another test, or ends the expression.

    Args:
        expression: the expression so far.
    """

    expression: Expression

    def and_(self) -> ReferenceStep:
        """Join everything before, as one operand, with the next test by AND."""
        return ReferenceStep(self.expression, And)

    def or_(self) -> ReferenceStep:
        """Join everything before, as one operand, with the next test by OR."""
        return ReferenceStep(self.expression, Or)

    def not_(self) -> ExpressionStep:
        """Negate everything before."""
        return ExpressionStep(negate(self.expression))

    def build(self) -> Expression:
        """Return the expression.

        Raises:
            FilterError: the expression is larger than the language allows.
        """
        check(self.expression)
        return self.expression
