"""NOT moves down to the predicates; three-valued logic keeps what the expression says (see also the property tests)."""

from __future__ import annotations

import pytest

from spark_streams.filters.describe import to_text
from spark_streams.filters.text import parse
from spark_streams.filters.tree import Not, Operator, Predicate, without_not


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("NOT a = '1'", "a <> '1'"),
        ("NOT a <> '1'", "a = '1'"),
        ("NOT a > 1", "a <= 1"),
        ("NOT a >= 1", "a < 1"),
        ("NOT a < 1", "a >= 1"),
        ("NOT a <= 1", "a > 1"),
        ("NOT a IN (1, 2)", "a NOT IN (1, 2)"),
        ("NOT a NOT IN (1, 2)", "a IN (1, 2)"),
        ("NOT a LIKE 'x%'", "a NOT LIKE 'x%'"),
        ("NOT a NOT LIKE 'x%'", "a LIKE 'x%'"),
        ("NOT a BETWEEN 1 AND 5", "a < 1 OR a > 5"),
        ("NOT a IS NULL", "a IS NOT NULL"),
        ("NOT a IS NOT NULL", "a IS NULL"),
        ("NOT a CONTAINS ANY ('x')", "a CONTAINS NONE ('x')"),
        ("NOT a CONTAINS NONE ('x')", "a CONTAINS ANY ('x')"),
        ("NOT a CONTAINS ALL ('x')", "NOT a CONTAINS ALL ('x')"),
        ("NOT NOT a CONTAINS ALL ('x')", "a CONTAINS ALL ('x')"),
        ("NOT (a = 1 AND b = 2)", "a <> 1 OR b <> 2"),
        ("NOT (a = 1 OR b = 2)", "a <> 1 AND b <> 2"),
        ("NOT (a = 1 AND NOT (b = 2 AND c = 3))", "a <> 1 OR b = 2 AND c = 3"),
        ("NOT (a = 1 AND b = 2) OR c = 3", "a <> 1 OR b <> 2 OR c = 3"),
        ("NOT (a BETWEEN 1 AND 2 AND b = 3)", "a < 1 OR a > 2 OR b <> 3"),
    ],
)
def test_every_operator_has_its_opposite(text: str, normal: str) -> None:
    assert to_text(without_not(parse(text))) == normal


def test_all_operators_are_in_the_table() -> None:
    known = {operator for operator in Operator if operator is not Operator.CONTAINS_ALL}
    for operator in known:
        values = {Operator.BETWEEN: 2, Operator.IS_NULL: 0, Operator.IS_NOT_NULL: 0}.get(operator, 1)
        predicate = parse("a = 'x'")
        assert isinstance(predicate, Predicate)
        negated = Not(Predicate(predicate.reference, operator, ("x",) * values, predicate.type if values else None))
        assert not isinstance(without_not(negated), Not)


def test_what_is_there_already_stays() -> None:
    expression = parse("(a = 1 OR b = 2) AND c = 3")
    assert without_not(expression) == expression
