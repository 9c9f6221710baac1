"""An expression on columns says of every row what it says of the row alone."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.filters.evaluate_many import evaluate_columns, mask
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.tree import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    And,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
    all_of,
    any_of,
    property_of,
)
from tests.examples import examples

TEXTS = (property_of("x"), property_of("y"), KEY)
NUMBERS = (EVENT_TIME, BODY_SIZE)
ROWS = 6
MIN, MAX = -(2**63), 2**63 - 1

# Few characters and few numbers, so that values and literals meet.
words = st.text(st.sampled_from("ab%_'\"\\\n\0 ,[]é\uffff\U0001f600"), max_size=4)
whole = st.one_of(st.integers(-3, 3), st.sampled_from([MIN, MAX, MIN + 1, 2**53, 2**53 + 1, -386_380_800_000]))
fractions = st.one_of(
    st.integers(-6, 6).map(lambda n: n / 2), st.sampled_from([0.1, 1e308, -1e308, 5e-324, 2.0**53, 2.0**63, -0.0, 1e22])
)
integer_texts = st.one_of(whole.map(str), st.sampled_from(["00", "-0", "003", "9223372036854775808", "1" * 25]))
decimal_texts = st.one_of(
    integer_texts,
    st.sampled_from(
        ["0.5", "-0.5", "2.50", "3.0", "0.10000000000000000555", "9007199254740992.5", "-1.5", "1." + "0" * 50]
    ),
    fractions.map(repr),
)
odd_numbers = st.sampled_from(
    [
        "1e999999999",
        "-1e999999999",
        "1e-999999999",
        "+3",
        "3e0",
        ".5",
        "5.",
        "1.2.3",
        "1-2",
        "--1",
        "-",
        ".",
        "-.5",
        "0x3",
        "inf",
        "-inf",
        "nan",
        "NaN",
        "Infinity",
        " 3",
        "3 ",
        "٣",
        "1e400",
        "1e99",
        "1" * 400,
        "3e",
        "1_0",
        "1,0",
    ]
)
arrays = st.one_of(
    st.lists(st.one_of(words, decimal_texts, st.none()), max_size=3).map(
        lambda items: (
            "["
            + ",".join("null" if i is None else '"' + i.replace("\\", "").replace('"', "") + '"' for i in items)
            + "]"
        )
    ),
    st.sampled_from(
        ["[]", ' [ "a" , "b" ]\n', "[1,2.0]", '["\\u0061"]', '["a","b"', '[["a"]]', '["a"],"x":["b"]', "[1e400]"]
    ),
    st.sampled_from(['["",","]', '["a" "b"]', '["a",]', "[true,null]", '["a"]x', '["\t"]', '[",",","]', '["",""]']),
)


def column_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str | None]]:
    return st.lists(st.one_of(st.none(), values, values), min_size=ROWS, max_size=ROWS)


text_columns = st.one_of(
    *(column_of(kind) for kind in (words, integer_texts, decimal_texts, arrays)),
    column_of(st.one_of(words, integer_texts, decimal_texts, odd_numbers, arrays)),
)
number_columns = st.lists(st.one_of(st.none(), whole), min_size=ROWS, max_size=ROWS)
tables = st.fixed_dictionaries({**dict.fromkeys(TEXTS, text_columns), **dict.fromkeys(NUMBERS, number_columns)})

patterns = st.text(st.sampled_from("ab%%__\n[]\\é\U0001f600"), max_size=6)
literals: dict[ValueType, st.SearchStrategy[Value]] = {
    ValueType.STRING: st.one_of(words, decimal_texts),
    ValueType.LONG: whole,
    ValueType.DOUBLE: fractions,
}
LISTS = (Operator.IN, Operator.NOT_IN, Operator.CONTAINS_ALL, Operator.CONTAINS_ANY, Operator.CONTAINS_NONE)


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    reference: Reference = draw(st.sampled_from((*TEXTS, *NUMBERS)))
    op = draw(st.sampled_from(Operator))
    if op in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return Predicate(reference, op)
    if op in (Operator.LIKE, Operator.NOT_LIKE):
        return Predicate(reference, op, (draw(st.one_of(patterns, words)),), ValueType.STRING)
    kind = draw(st.sampled_from(ValueType))
    count = (2, 2) if op is Operator.BETWEEN else (1, 6) if op in LISTS else (1, 1)
    values = draw(st.lists(literals[kind], min_size=count[0], max_size=count[1]))
    return Predicate(reference, op, tuple(values), kind)


expressions: st.SearchStrategy[Expression] = st.recursive(
    predicates(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(all_of),
        st.lists(inner, min_size=2, max_size=3).map(any_of),
        inner.map(Not),
    ),
    max_leaves=6,
)
Table = dict[Reference, list[str | None] | list[int | None]]


def row_by_row(expression: Expression, table: Table) -> list[bool | None]:
    return [evaluate(expression, lambda reference, at=at: table[reference][at]) for at in range(ROWS)]


def in_columns(expression: Expression, table: Table, offset: int = 0) -> list[bool | None]:
    def lookup(reference: Reference) -> pa.Array:
        kind = pa.int64() if reference in NUMBERS else pa.string()
        filler = [7] * offset if reference in NUMBERS else ["7.5"] * offset
        return pa.array([*filler, *table[reference], *filler], kind).slice(offset, ROWS)

    answers: list[bool | None] = evaluate_columns(expression, lookup, ROWS).to_pylist()
    assert mask(expression, lookup, ROWS).to_pylist() == [answer is True for answer in answers]
    return answers


@pytest.mark.parametrize("offset", [0, 3])
@settings(max_examples=examples(400), deadline=None)
@given(expression=expressions, table=tables)
def test_columns_say_what_rows_say(offset: int, expression: Expression, table: Table) -> None:
    assert in_columns(expression, table, offset) == row_by_row(expression, table)


@settings(max_examples=examples(800), deadline=None)
@given(predicate=predicates(), values=text_columns)
@example(Predicate(KEY, Operator.CONTAINS_ANY, (",",), ValueType.STRING), ['["a","b"]', *["b"] * 5])
@example(Predicate(KEY, Operator.LIKE, ("%" * 1200 + "a_" * 3,), ValueType.STRING), ["abac", "abacad", *[None] * 4])
@example(Predicate(KEY, Operator.LIKE, ("%\U0001f600_" * 333,), ValueType.STRING), ["\U0001f600" * 1000, *["a"] * 5])
@example(Predicate(KEY, Operator.EQUALS, ("\ud800",), ValueType.STRING), ["", *["a"] * 5])
@example(Predicate(KEY, Operator.EQUALS, (2**53 + 1,), ValueType.LONG), [str(2**53) + ".0", *["0.5"] * 5])
def test_one_predicate_on_one_column(predicate: Predicate, values: list[str | None]) -> None:
    on_key = Predicate(KEY, predicate.operator, predicate.values, predicate.type)
    assert in_columns(on_key, {KEY: values}) == row_by_row(on_key, {KEY: values})


EVERY_LITERALS: dict[ValueType, list[tuple[Value, ...]]] = {
    ValueType.LONG: [(0, 2), (2, 0), (1, 1), (MIN, MAX), (2**53, 2**53 + 1), (0, 1, 2, 3, 4, 5)],
    ValueType.DOUBLE: [(0.5, 2.5), (-0.0, 1.0), (1.5, 1.5), (-1e22, 1e22), (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)],
    ValueType.STRING: [("a", "ab"), ("", "b"), ('"', "a"), ('a","b', "\\"), ("a%", "%b"), ("a_", "_"), tuple("abcdef")],
}
EVERY_COLUMN: dict[str, list[str | None]] = {
    "whole": ["-1", "0", "1", "2", "3", None],
    "whole, none missing": ["-1", "0", "1", "2", "9007199254740993", "9223372036854775807"],
    "too large": ["0", "1", "2", "9223372036854775808", "-9223372036854775809", None],
    "decimal": ["-1.5", "0.5", "1.0", "2", "2.5", None],
    "decimal, none missing": ["-0.0", "0.75", "1.5", "2", "2.50", "3.0"],
    "numbers of all kinds": ["1e0", "0x1", "0.5", "", "+2", None],
    "texts": ["a", "ab", "b", 'a"b', 'a","b', None],
    "arrays": ['["a","b"]', '["a"]', '["\\u0061"]', "[]", "a", None],
    "arrays, none missing": ['["a","ab"]', ' ["b"]', '["a\\"b"]', '["a","b"', "ab", '[""]'],
    "nothing": [None] * 6,
}


@pytest.mark.parametrize("column", EVERY_COLUMN)
@pytest.mark.parametrize("op", Operator)
def test_every_operator_on_every_kind_of_column(op: Operator, column: str) -> None:
    """What is left to luck above, tried out: a form of literals and of columns for every way there is to the answer."""
    values = EVERY_COLUMN[column]
    tried = [(ValueType.STRING, ())] if op in (Operator.IS_NULL, Operator.IS_NOT_NULL) else []
    if not tried:
        size = 2 if op is Operator.BETWEEN else None if op in LISTS else 1
        kinds = [ValueType.STRING] if op in (Operator.LIKE, Operator.NOT_LIKE) else list(ValueType)
        tried = [(kind, literal[:size]) for kind in kinds for literal in EVERY_LITERALS[kind]]
    for kind, literal in tried:
        predicate = Predicate(KEY, op, literal, kind) if literal else Predicate(KEY, op)
        expected = row_by_row(predicate, {KEY: values})
        assert in_columns(predicate, {KEY: values}) == expected, predicate
        assert in_columns(predicate, {KEY: values}, 3) == expected, predicate
        numbers = [MIN, -1, 1, 2, MAX, None]
        on_numbers = Predicate(BODY_SIZE, op, literal, kind) if literal else Predicate(BODY_SIZE, op)
        assert in_columns(on_numbers, {BODY_SIZE: numbers}) == row_by_row(on_numbers, {BODY_SIZE: numbers}), predicate


def test_between_on_decimals_has_both_its_ends() -> None:
    predicate = Predicate(KEY, Operator.BETWEEN, (0.5, 2.5), ValueType.DOUBLE)
    table: Table = {KEY: ["0.4", "0.5", "1.5", "2.5", "2.6", None]}
    assert in_columns(predicate, table) == [False, True, True, True, False, None]


@given(expressions)
def test_no_rows(expression: Expression) -> None:
    assert (
        len(evaluate_columns(expression, lambda r: pa.array([], pa.int64() if r in NUMBERS else pa.string()), 0)) == 0
    )


def test_a_column_is_asked_for_once() -> None:
    asked: list[Reference] = []

    def lookup(reference: Reference) -> pa.Array:
        asked.append(reference)
        return pa.array(["1", "5", None])

    low = Predicate(KEY, Operator.GREATER_THAN, (2,), ValueType.LONG)
    high = Predicate(KEY, Operator.LESS_THAN, (9,), ValueType.LONG)
    text = Predicate(KEY, Operator.NOT_EQUALS, ("1",), ValueType.STRING)
    assert evaluate_columns(And((low, Or((high, text)))), lookup, 3).to_pylist() == [False, True, None]
    assert asked == [KEY]


def test_other_forms_of_text_columns() -> None:
    values = ["a", None, "b"]
    for column in (
        pa.array(values).dictionary_encode(),
        pa.array(values, pa.large_string()),
        pa.array(values, pa.string_view()),
    ):
        predicate = Predicate(KEY, Operator.GREATER_THAN, ("a",), ValueType.STRING)
        assert evaluate_columns(predicate, lambda _, column=column: column, 3).to_pylist() == [False, None, True]
    predicate = Predicate(KEY, Operator.NOT_EQUALS, (1,), ValueType.LONG)
    assert evaluate_columns(predicate, lambda _: pa.nulls(3), 3).to_pylist() == [None] * 3
