"""The builder: the proposal's calls, from left to right; what makes no sense fails where it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.errors import FilterError
from spark_streams.filters import Expression, all_of, any_of, builder, negate, parse
from spark_streams.filters.building import OperatorStep
from spark_streams.filters.limits import MAX_NODES


def a() -> OperatorStep:
    """Begin with property ``a``."""
    return builder().property("a")


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (a().equals("x"), "a = 'x'"),
        (a().equals(5), "a = 5"),
        (a().equals(5.0), "a = 5.0"),
        (a().not_equals("x"), "a <> 'x'"),
        (a().in_("x", "y"), "a IN ('x', 'y')"),
        (a().in_(5), "a IN (5)"),
        (a().not_in(1.5, 2.5), "a NOT IN (1.5, 2.5)"),
        (a().greater_than("x"), "a > 'x'"),
        (a().greater_than_equals(5), "a >= 5"),
        (a().less_than(5.5), "a < 5.5"),
        (a().less_than_equals("x"), "a <= 'x'"),
        (a().between(1, 5), "a BETWEEN 1 AND 5"),
        (a().like("x%"), "a LIKE 'x%'"),
        (a().is_null(), "a IS NULL"),
        # what the wire has and the proposal's builder lacks
        (a().is_not_null(), "a IS NOT NULL"),
        (a().not_like("x%"), "a NOT LIKE 'x%'"),
        (a().contains_all("x", "y"), "a CONTAINS ALL ('x', 'y')"),
        (a().contains_any(1, 2), "a CONTAINS ANY (1, 2)"),
        (a().contains_none(1.5), "a CONTAINS NONE (1.5)"),
        # references
        (builder().publish_time().less_than(-5), "publish_time < -5"),
        (builder().event_time().less_than(5.5), "event_time < 5.5"),
        (builder().key().equals("x"), "key = 'x'"),
        (builder().partition().equals("0"), "partition = '0'"),
        (builder().offset().greater_than("x"), "offset > 'x'"),
        (builder().body_size().less_than(5), "body_size < 5"),
        (builder().property("key").equals("x"), "[key] = 'x'"),
        # from left to right, not as SQL binds (E-4)
        (
            a().equals(1).or_().property("b").equals(2).and_().property("c").equals(3),
            "(a = 1 OR b = 2) AND c = 3",
        ),
        (
            a().equals(1).and_().property("b").equals(2).or_().property("c").equals(3),
            "a = 1 AND b = 2 OR c = 3",
        ),
        (a().equals(1).and_().property("b").equals(2).and_().key().equals("k"), "a = 1 AND b = 2 AND key = 'k'"),
        # not_() negates all that stands before it
        (a().equals(1).not_(), "NOT a = 1"),
        (a().equals(1).and_().property("b").equals(2).not_(), "NOT (a = 1 AND b = 2)"),
        (a().equals(1).not_().and_().property("b").equals(2), "NOT a = 1 AND b = 2"),
        (a().equals(1).not_().not_(), "NOT NOT a = 1"),
        # groups
        (a().equals(1).and_().group(parse("b = 2 OR c = 3")), "a = 1 AND (b = 2 OR c = 3)"),
        (builder().group(parse("a = 1 AND b = 2")).and_().property("c").equals(3), "a = 1 AND b = 2 AND c = 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_calls_and_text_give_the_same_tree(built: Any, text: str) -> None:
    assert built.build() == parse(text)


def test_parts_can_be_joined_by_functions() -> None:
    parts = [a().equals(n).build() for n in (1, 2, 3)]
    built = all_of([parts[0], any_of([parts[1], negate(parts[2])])])
    assert built == parse("a = 1 AND (a = 2 OR NOT a = 3)")


def test_a_step_that_is_kept_can_be_gone_on_from_twice() -> None:
    step = a().equals(1)
    both = (step.and_().key().equals("x").build(), step.not_().build(), step.build())
    assert both == (parse("a = 1 AND key = 'x'"), parse("NOT a = 1"), parse("a = 1"))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: builder().publish_time().like("x"), "LIKE compares texts"),
        (lambda: builder().body_size().not_like("x"), "LIKE compares texts"),
        (lambda: builder().event_time().equals("x"), "milliseconds"),
        (lambda: builder().event_time().between("x", "y"), "milliseconds"),
        (lambda: a().like(5), "LIKE compares texts"),  # type: ignore[arg-type]
        (lambda: a().in_(), "at least one value"),
        (lambda: a().contains_any(), "at least one value"),
        (lambda: a().in_(1, "x"), "one type"),
        (lambda: a().between(1, 5.0), "one type"),
        (lambda: a().equals(True), "str, int or float, not bool"),
        (lambda: a().equals(None), "str, int or float, not NoneType"),  # type: ignore[arg-type]
        (lambda: a().equals(b"x"), "str, int or float, not bytes"),  # type: ignore[arg-type]
        (lambda: a().equals(2**63), "64 bits"),
        (lambda: a().equals(float("inf")), "finite"),
        (lambda: a().equals("\ud800"), "surrogate"),
        (lambda: builder().property("").is_null(), "needs a name"),
        (lambda: builder().property(5).is_null(), "needs a name"),  # type: ignore[arg-type]
        (lambda: builder().property("properties.user_id").is_null(), "bytes"),
        (lambda: builder().group("a = 1"), "expected an expression, not str"),  # type: ignore[arg-type]
        (lambda: builder().group(a().equals(1)), "build()"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_fails_where_it_is_called(call: Callable[[], Any], reason: str) -> None:
    with pytest.raises(FilterError) as fault:
        call()
    assert reason in fault.value.reason
    assert fault.value.column is None


def test_more_than_is_allowed_is_refused_when_it_is_built() -> None:
    step = a().is_null()
    for _ in range(MAX_NODES):
        step = step.or_().key().is_null()
    with pytest.raises(FilterError, match="more than 1000 predicates"):
        step.build()
    deep = a().is_null()
    for _ in range(10_000):
        deep = deep.not_()
    with pytest.raises(FilterError, match="more than 64 levels"):
        deep.build()


def test_the_example_of_the_proposal() -> None:
    """Seeking to a message with a property set to some specific value, under Python's names."""
    built: Expression = builder().property("gtid").equals("3E11FA47:23").and_().publish_time().greater_than(0).build()
    assert built == parse("gtid = '3E11FA47:23' AND publish_time > 0")
