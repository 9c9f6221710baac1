"""One expression on one event: operators with a value, with NULL, with what is no number; the logic."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_streams.filters.decimals import numeral, numeral_of_text
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.text_matching import like, members
from spark_streams.filters.tree import (
    PUBLISH_TIME,
    And,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    property_of,
)

STRING, LONG, DOUBLE = ValueType.STRING, ValueType.LONG, ValueType.DOUBLE
X = property_of("x")


def answer(op: Operator, value: str | int | None, *values: Value, kind: ValueType | None = STRING) -> bool | None:
    return evaluate(Predicate(X, op, values, kind), lambda _: value)


# --- operators

TABLE: list[tuple[Operator, ValueType, tuple[Value, ...], dict[str, bool | None]]] = [
    (Operator.EQUALS, STRING, ("b",), {"b": True, "a": False, "B": False, "": False, "b ": False}),
    (Operator.EQUALS, STRING, ("",), {"": True, " ": False}),
    (Operator.EQUALS, STRING, ("3",), {"3": True, "3.0": False}),
    (Operator.NOT_EQUALS, STRING, ("b",), {"b": False, "a": True, "": True}),
    (Operator.GREATER_THAN, STRING, ("b",), {"a": False, "b": False, "c": True, "ba": True, "": False, "B": False}),
    (Operator.GREATER_THAN_EQUALS, STRING, ("b",), {"a": False, "b": True, "c": True}),
    (Operator.LESS_THAN, STRING, ("b",), {"a": True, "b": False, "": True, "B": True}),
    (Operator.LESS_THAN_EQUALS, STRING, ("b",), {"a": True, "b": True, "ba": False}),
    (Operator.LESS_THAN, STRING, ("\U0001f600",), {"\uffff": True, "\U0001f601": False}),
    (Operator.IN, STRING, ("a", "b"), {"a": True, "b": True, "c": False, "": False}),
    (Operator.NOT_IN, STRING, ("a", "b"), {"a": False, "b": False, "c": True}),
    (Operator.LIKE, STRING, ("eu-%",), {"eu-north": True, "eu-": True, "EU-north": False, "xeu-": False}),
    (Operator.LIKE, STRING, ("a_c",), {"abc": True, "a\U0001f600c": True, "a\nc": True, "ac": False, "abbc": False}),
    (Operator.LIKE, STRING, ("%b%",), {"b": True, "abc": True, "a\nb\n": True, "ac": False}),
    (Operator.LIKE, STRING, ("a\\%",), {"a\\": True, "a\\b": True, "a%": False}),
    (Operator.LIKE, STRING, ("",), {"": True, "a": False}),
    (Operator.LIKE, STRING, ("%",), {"": True, "a": True}),
    (Operator.LIKE, STRING, ("a.*[",), {"a.*[": True, "abc[": False}),
    (Operator.NOT_LIKE, STRING, ("eu-%",), {"eu-north": False, "us": True, "": True}),
    (Operator.BETWEEN, STRING, ("b", "d"), {"a": False, "b": True, "c": True, "d": True, "da": False}),
    (Operator.BETWEEN, STRING, ("d", "b"), {"b": False, "c": False}),
    (
        Operator.EQUALS,
        LONG,
        (3,),
        {"3": True, "3.0": True, "+3": True, "003": True, "30e-1": True, "0.3E+1": True, "4": False, "-3": False}
        | {"3.00000000000000000000000001": False},
    ),
    (Operator.EQUALS, LONG, (0,), {"0": True, "-0": True, "0.0": True, "0e999999999": True, "1e-999999999": False}),
    (
        Operator.EQUALS,
        LONG,
        (3,),
        dict.fromkeys(["", " 3", "3 ", "three", "0x3", "3.", ".3", "1_0", "NaN", "inf", "٣", "3e", "--3", "3\n"]),
    ),
    (Operator.EQUALS, LONG, (2**53 + 1,), {str(2**53 + 1): True, str(2**53): False, f"{2**53}.0": False}),
    (Operator.NOT_EQUALS, LONG, (3,), {"3": False, "3.0": False, "4": True, "x": None}),
    (Operator.GREATER_THAN, LONG, (3,), {"3": False, "4": True, "1e999999999": True, "-1e999999999": False, "x": None}),
    (Operator.GREATER_THAN_EQUALS, LONG, (3,), {"3": True, "2.99999999999999999999": False, "": None}),
    (Operator.LESS_THAN, LONG, (3,), {"2": True, "3": False, "1e-999999999": True, "x": None}),
    (Operator.LESS_THAN, LONG, (-3,), {"-4": True, "-3": False, "-3.1": True, "-30": True, "-2": False}),
    (Operator.LESS_THAN_EQUALS, LONG, (3,), {"3": True, "3.1": False, "x": None}),
    (Operator.IN, LONG, (1, 2), {"1": True, "2.0": True, "3": False, "x": None}),
    (Operator.NOT_IN, LONG, (1, 2), {"1.0": False, "3": True, "x": None}),
    (Operator.BETWEEN, LONG, (1, 3), {"1": True, "3": True, "3.5": False, "x": None}),
    (Operator.BETWEEN, LONG, (3, 1), {"2": False, "x": None}),
    (Operator.EQUALS, DOUBLE, (0.1,), {"0.1": True, "1e-1": True, "0.1000000000000000055511151231257827": False}),
    (Operator.GREATER_THAN, DOUBLE, (1e308,), {"1e309": True, "1e308": False, "9": False, "x": None}),
    (Operator.EQUALS, DOUBLE, (5e-324,), {"5e-324": True, "4.9406564584124654e-324": False, "0": False}),
    (
        Operator.CONTAINS_ANY,
        STRING,
        ("a", "b"),
        {'["x","b"]': True, "b": True, '["x"]': False, "x": False, "[]": False},
    ),
    (Operator.CONTAINS_ALL, STRING, ("a", "b"), {'["b","a","x"]': True, '["a"]': False, "a": False, "[]": False}),
    (Operator.CONTAINS_NONE, STRING, ("a", "b"), {'["x"]': True, "[]": True, '["a"]': False, "a": False, "x": True}),
    (
        Operator.CONTAINS_ANY,
        STRING,
        ("3",),
        {"[3]": True, '["3"]': True, "[3.0]": False, " [ 3 ] ": True, "[3": False, "[NaN,3]": False, "[3]x": False},
    ),
    (Operator.CONTAINS_ANY, STRING, ("a",), {'[null,"a"]': True, "[null]": None, '[["a"]]': False}),
    (Operator.CONTAINS_ANY, STRING, ('["a",1.50]',), {'[["a", 1.50]]': True, '["a",1.50]': False}),
    (Operator.CONTAINS_ANY, STRING, ("é\U0001f600",), {'["\\u00e9\\ud83d\\ude00"]': True, '["é\U0001f600"]': True}),
    (Operator.CONTAINS_ANY, STRING, ("true",), {"[true]": True, "true": True, "[false]": False}),
    (Operator.CONTAINS_ALL, STRING, ("a", "b"), {'[null,"a"]': None, '["a",null,"b"]': True}),
    (Operator.CONTAINS_NONE, STRING, ("a",), {'[null,"a"]': False, '[null,"b"]': None}),
    (
        Operator.CONTAINS_ANY,
        LONG,
        (3,),
        {"[1,3.0]": True, '["3"]': True, "3": True, "[4]": False, "x": None, '["x"]': None},
    ),
    (Operator.CONTAINS_ANY, LONG, (3,), {'["x",3]': True, "[1e999999999]": False, "[]": False}),
    (Operator.CONTAINS_ALL, DOUBLE, (0.5, 2.0), {"[2,0.5]": True, "[2]": False, '[2,"x"]': None}),
    (Operator.CONTAINS_NONE, LONG, (3,), {"[3]": False, "[4]": True, '[4,"x"]': None, "[]": True}),
]


@pytest.mark.parametrize(
    ("op", "kind", "values", "value", "expected"),
    [(op, kind, values, value, expected) for op, kind, values, row in TABLE for value, expected in row.items()],
)
def test_an_operator(
    op: Operator, kind: ValueType, values: tuple[Value, ...], value: str, expected: bool | None
) -> None:
    assert answer(op, value, *values, kind=kind) is expected


VALUES: dict[ValueType, tuple[Value, Value]] = {STRING: ("a", "b"), LONG: (1, 2), DOUBLE: (1.5, 2.5)}
COUNT = {Operator.BETWEEN: 2, Operator.IN: 2, Operator.NOT_IN: 2}
LIKES = (Operator.LIKE, Operator.NOT_LIKE)
NULLS = (Operator.IS_NULL, Operator.IS_NOT_NULL)
EVERY = [
    Predicate(X, op, VALUES[kind][: COUNT.get(op, 1)], kind)
    for op, kind in itertools.product(Operator, ValueType)
    if op not in NULLS and (op not in LIKES or kind is STRING)
]


@pytest.mark.parametrize("predicate", EVERY, ids=lambda p: f"{p.operator.name} {p.type.name}")
def test_null_and_what_is_no_number_are_unknown(predicate: Predicate) -> None:
    assert evaluate(predicate, lambda _: None) is None
    assert evaluate(Not(predicate), lambda _: None) is None
    if predicate.type is not STRING:
        for text in ("", "x", "0x1", "1.", "NaN", " 1"):
            assert evaluate(predicate, lambda _, text=text: text) is None
    assert evaluate(predicate, lambda _: "1") is not None


def test_null_is_known_to_be_null() -> None:
    assert [answer(op, value, kind=None) for op in NULLS for value in (None, "", "x", 0)] == [
        *(True, False, False, False),
        *(False, True, True, True),
    ]


@pytest.mark.parametrize(("value", "expected"), [(-1, True), (0, False), (-386380800000, True), (None, None)])
def test_times_are_numbers(value: int | None, expected: bool | None) -> None:
    predicate = Predicate(PUBLISH_TIME, Operator.LESS_THAN, (0,), LONG)
    assert evaluate(predicate, lambda _: value) is expected
    assert evaluate(Predicate(PUBLISH_TIME, Operator.LESS_THAN, (-0.5,), DOUBLE), lambda _: value) is expected


# --- logic

LOGIC = {True: Predicate(property_of("t"), Operator.EQUALS, ("t",), STRING)}
LOGIC[False] = Predicate(property_of("t"), Operator.NOT_EQUALS, ("t",), STRING)
UNKNOWN = Predicate(property_of("n"), Operator.EQUALS, ("t",), STRING)


def constant(value: bool | None) -> Expression:
    return UNKNOWN if value is None else LOGIC[value]


def logic(expression: Expression) -> bool | None:
    return evaluate(expression, lambda reference: "t" if reference.name == "t" else None)


T, U, F = True, None, False


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        *((T, T, T, T), (T, U, U, T), (T, F, F, T)),
        *((U, T, U, T), (U, U, U, U), (U, F, F, U)),
        *((F, T, F, T), (F, U, F, U), (F, F, F, F)),
    ],
)
def test_three_valued_logic(left: bool | None, right: bool | None, both: bool | None, either: bool | None) -> None:
    parts = (constant(left), constant(right))
    assert logic(And(parts)) is both
    assert logic(Or(parts)) is either
    assert logic(Not(parts[0])) is {T: F, U: U, F: T}[left]


def test_a_part_that_decides_ends_the_question() -> None:
    asked: list[Reference] = []

    def lookup(reference: Reference) -> str | None:
        asked.append(reference)
        return None if reference.name == "n" else "t"

    evaluate(And((LOGIC[False], UNKNOWN)), lookup)
    evaluate(Or((LOGIC[True], UNKNOWN)), lookup)
    assert [reference.name for reference in asked] == ["t", "t"]


# --- numbers, against the standard library's


DIGITS = st.text("0123456789", min_size=1, max_size=25)
NUMBERS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "+", "-"]),
        DIGITS,
        st.one_of(st.just(""), DIGITS.map(".{}".format)),
        st.one_of(st.just(""), st.integers(-30, 30).map("e{}".format), st.integers(0, 30).map("E+0{}".format)),
    ),
)


@given(NUMBERS, NUMBERS)
@example("-0.12", "-0.123")
@example("0", "-0.000e7")
def test_numbers_compare_as_fractions_do(left: str, right: str) -> None:
    mine, theirs = (numeral_of_text(left), numeral_of_text(right)), (Fraction(left), Fraction(right))
    assert mine[0] is not None and mine[1] is not None
    assert (mine[0] < mine[1], mine[0] == mine[1]) == (theirs[0] < theirs[1], theirs[0] == theirs[1])


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))
def test_literals_are_their_shortest_decimal(double: float, long: int) -> None:
    assert (numeral(double) < numeral(long)) == (Decimal(repr(double)) < long)
    assert numeral(double) == numeral_of_text(repr(double))


def test_no_literal_that_is_not_finite() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="finite"):
            numeral(value)


def test_numbers_are_not_written_out() -> None:
    # int() of such an exponent would take hours.
    huge = [
        "1e" + "9" * 1_000_000,
        "-1e" + "9" * 1_000_000,
        "9" * 1_000_000,
        "1e-" + "9" * 1_000_000,
        "0." + "0" * 10**6 + "1",
    ]
    assert [answer(Operator.GREATER_THAN, text, 0, kind=LONG) for text in huge] == [True, False, True, True, True]
    assert [answer(Operator.LESS_THAN, text, 1, kind=LONG) for text in huge] == [False, True, False, True, True]


# --- LIKE


def like_by_the_book(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like_by_the_book(pattern[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and like_by_the_book(pattern[1:], text[1:])


@given(st.text("%_ab\n.\U0001f600", max_size=7), st.text("ab%_\n.\U0001f600", max_size=8))
def test_like_as_the_book_has_it(pattern: str, text: str) -> None:
    assert like(pattern)(text) is like_by_the_book(pattern, text)


def test_no_pattern_goes_backwards() -> None:
    # It would not end at all.
    assert not like("%a" * 500 + "%b")("a" * 100_000)
    assert not like("%a_" * 300 + "b%c")("a" * 100_000)


# --- members


def test_members() -> None:
    assert members('["a",1.50,true,null,{"b": [1e3, "\\u00e9"]},[]]') == [
        "a",
        "1.50",
        "true",
        None,
        '{"b":[1e3,"é"]}',
        "[]",
    ]
    assert members("a") == ["a"]
    assert members("") == [""]
    assert members('["a"') == ['["a"']
    assert members('{"a":1}') == ['{"a":1}']
    deep = "[" * 100_000 + "]" * 100_000
    assert members(deep) == [deep]
    assert members("[" + "1" * 1_000_000 + "]") == ["1" * 1_000_000]


def test_a_predicate_without_a_type_is_none_of_null() -> None:
    """``check`` refuses it; evaluated all the same it compares, and is not taken for IS NOT NULL."""
    assert evaluate(Predicate(property_of("x"), Operator.EQUALS, ("x",)), lambda reference: "y") is not True
