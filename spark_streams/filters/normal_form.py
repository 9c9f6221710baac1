"""An expression without NOT: negations are moved down to the predicates, which have opposites.

De Morgan's laws and the opposite operators are exact in three-valued logic: the result is true, false and unknown of
the same events. ``NOT (x BETWEEN a AND b)`` becomes ``x < a OR x > b``. CONTAINS ALL alone has no opposite: its NOT
stays, so ``Not`` stands nowhere but around it.

A target needs no care for what its NOT makes of a missing value, or of two types that do not compare (Z-1).

Spec: docs/specifications.md, E-6.
"""

from __future__ import annotations

from typing import Final

from spark_streams.filters.tree import And, Expression, Not, Operator, Or, Predicate, all_of, any_of, negate

__all__ = ["conjuncts", "without_not"]

_PAIRS: Final = (
    (Operator.EQUALS, Operator.NOT_EQUALS),
    (Operator.IN, Operator.NOT_IN),
    (Operator.GREATER_THAN, Operator.LESS_THAN_EQUALS),
    (Operator.GREATER_THAN_EQUALS, Operator.LESS_THAN),
    (Operator.LIKE, Operator.NOT_LIKE),
    (Operator.CONTAINS_ANY, Operator.CONTAINS_NONE),
    (Operator.IS_NULL, Operator.IS_NOT_NULL),
)
_OPPOSITES: Final = {**dict(_PAIRS), **{right: left for left, right in _PAIRS}}


def without_not(expression: Expression) -> Expression:
    """Return an expression that says the same, with ``Not`` only around CONTAINS ALL.

    Args:
        expression: within the limits of the language, which bound its depth (E-17).
    """
    return _normal(expression, negated=False)


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions all of which are true when this one is: the parts of an AND, or the expression itself."""
    return expression.parts if isinstance(expression, And) else (expression,)


def _normal(expression: Expression, *, negated: bool) -> Expression:
    if isinstance(expression, Not):
        return _normal(expression.operand, negated=not negated)
    if isinstance(expression, Predicate):
        return _opposite(expression) if negated else expression
    parts = [_normal(part, negated=negated) for part in expression.parts]
    return all_of(parts) if isinstance(expression, And) != negated else any_of(parts)


def _opposite(predicate: Predicate) -> Expression:
    reference, values, of = predicate.reference, predicate.values, predicate.type
    if predicate.operator is Operator.BETWEEN:
        low, high = values
        return Or(
            (
                Predicate(reference, Operator.LESS_THAN, (low,), of),
                Predicate(reference, Operator.GREATER_THAN, (high,), of),
            )
        )
    opposite = _OPPOSITES.get(predicate.operator)
    return negate(predicate) if opposite is None else Predicate(reference, opposite, values, of)
