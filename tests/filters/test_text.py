"""The language as text: what each form means, what is refused and at which column."""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.errors import FilterError
from spark_streams.filters import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    Expression,
    Operator,
    Predicate,
    Reference,
    ValueType,
    all_of,
    any_of,
    check,
    negate,
    parse,
    property_of,
    to_text,
    to_tree,
)
from spark_streams.filters.limits import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES, MAX_VALUES
from spark_streams.filters.text import MAX_TEXT
from spark_streams.filters.tree import And, Not, Or

TYPES = {str: ValueType.STRING, int: ValueType.LONG, float: ValueType.DOUBLE}


def asked(reference: Reference | str, operator: Operator, *values: Any) -> Predicate:
    """Return a predicate; of a property, where a name is given."""
    named = property_of(reference) if isinstance(reference, str) else reference
    return Predicate(named, operator, values, TYPES[type(values[0])] if values else None)


A, B, C = (asked(name, Operator.EQUALS, 1) for name in "abc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type = 'order'", asked("type", Operator.EQUALS, "order")),
        ("type='order'", asked("type", Operator.EQUALS, "order")),
        (" \t\r\n\f\vtype\n=\n'order' \n", asked("type", Operator.EQUALS, "order")),
        ("a <> 1", asked("a", Operator.NOT_EQUALS, 1)),
        ("a != 1", asked("a", Operator.NOT_EQUALS, 1)),
        ("a < 1", asked("a", Operator.LESS_THAN, 1)),
        ("a <= 1", asked("a", Operator.LESS_THAN_EQUALS, 1)),
        ("a > 1", asked("a", Operator.GREATER_THAN, 1)),
        ("a >= 1", asked("a", Operator.GREATER_THAN_EQUALS, 1)),
        ("1 = a", asked("a", Operator.EQUALS, 1)),
        ("1 <> a", asked("a", Operator.NOT_EQUALS, 1)),
        ("1 < a", asked("a", Operator.GREATER_THAN, 1)),
        ("1 <= a", asked("a", Operator.GREATER_THAN_EQUALS, 1)),
        ("1 > a", asked("a", Operator.LESS_THAN, 1)),
        ("'x' >= a", asked("a", Operator.LESS_THAN_EQUALS, "x")),
        ("a IN (1)", asked("a", Operator.IN, 1)),
        ("a In ( 1 , 2,3 )", asked("a", Operator.IN, 1, 2, 3)),
        ("a not in ('x','')", asked("a", Operator.NOT_IN, "x", "")),
        ("a IN(1)", asked("a", Operator.IN, 1)),
        ("a LIKE 'eu-%'", asked("a", Operator.LIKE, "eu-%")),
        ("a NOT LIKE '_'", asked("a", Operator.NOT_LIKE, "_")),
        ("a BETWEEN 1 AND 5", asked("a", Operator.BETWEEN, 1, 5)),
        ("a between 'x'and'y'", asked("a", Operator.BETWEEN, "x", "y")),
        ("a NOT BETWEEN 1 AND 5", negate(asked("a", Operator.BETWEEN, 1, 5))),
        ("NOT a NOT BETWEEN 1 AND 5", negate(negate(asked("a", Operator.BETWEEN, 1, 5)))),
        ("a BETWEEN 1 AND 5 AND b = 1", all_of([asked("a", Operator.BETWEEN, 1, 5), B])),
        ("a IS NULL", asked("a", Operator.IS_NULL)),
        ("a is not null", asked("a", Operator.IS_NOT_NULL)),
        ("a CONTAINS ALL (1, 2)", asked("a", Operator.CONTAINS_ALL, 1, 2)),
        ("a contains any ('x')", asked("a", Operator.CONTAINS_ANY, "x")),
        ("a Contains None (1.5)", asked("a", Operator.CONTAINS_NONE, 1.5)),
        ("event_time > 1", asked(EVENT_TIME, Operator.GREATER_THAN, 1)),
        ("publish_time >= -386380800000", asked(PUBLISH_TIME, Operator.GREATER_THAN_EQUALS, -386380800000)),
        ("publish_time > 1.5", asked(PUBLISH_TIME, Operator.GREATER_THAN, 1.5)),
        ("key = 'k'", asked(KEY, Operator.EQUALS, "k")),
        ("partition IN ('0', '1')", asked(PARTITION, Operator.IN, "0", "1")),
        ("offset > '00000000000000000005'", asked(OFFSET, Operator.GREATER_THAN, "00000000000000000005")),
        ("offset > 5", asked(OFFSET, Operator.GREATER_THAN, 5)),
        ("body_size <= 1000", asked(BODY_SIZE, Operator.LESS_THAN_EQUALS, 1000)),
        ("d.event-streams-offset = 'x'", asked(OFFSET, Operator.EQUALS, "x")),
        ("delivery_annotations.event-streams-offset = 'x'", asked(OFFSET, Operator.EQUALS, "x")),
        ("d.[event-streams-offset]='x'", asked(OFFSET, Operator.EQUALS, "x")),
        ("5<d.event-streams-timestamp", asked(PUBLISH_TIME, Operator.GREATER_THAN, 5)),
    ],
)
def test_what_a_predicate_means(text: str, expected: Expression) -> None:
    assert parse(text) == expected
    assert parse(to_text(expected)) == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a", "a"),
        ("A", "A"),
        ("_x1", "_x1"),
        ("d", "d"),
        ("a.b.c", "a.b.c"),
        ("key.x", "key.x"),
        ("properties.subject", "properties.subject"),
        ("application_properties.key", "application_properties.key"),
        ("message_annotations.x", "message_annotations.x"),
        ("message_annotations.[x-opt-y]", "message_annotations.x-opt-y"),
        ('application_properties."a b"', "application_properties.a b"),
        ("[key]", "key"),
        ('"key"', "key"),
        ("[PublishTime]", "PublishTime"),
        ("[and]", "and"),
        ("[d.x]", "d.x"),
        ("[a]]b]", "a]b"),
        ("[]]]", "]"),
        ('"a""b"', 'a"b'),
        ('[a"b]', 'a"b'),
        ("[a'b]", "a'b"),
        ("[ ]", " "),
        ("[5]", "5"),
        ("[/a/0/b~1c]", "/a/0/b~1c"),
        ("[größe]", "größe"),
        ("[\x00]", "\x00"),
        ("order", "order"),
        ("timestamp", "timestamp"),
        ("exists", "exists"),
    ],
)
def test_names_of_properties(text: str, name: str) -> None:
    assert parse(f"{text} = 1") == asked(name, Operator.EQUALS, 1)
    assert parse(f"1={text}AND {text}IS NULL" if text[-1] in ']"' else f"1={text} AND {text} IS NULL") == all_of(
        [asked(name, Operator.EQUALS, 1), asked(name, Operator.IS_NULL)]
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("''", ""),
        ("''''", "'"),
        ("'it''s'", "it's"),
        ("'a\nb'", "a\nb"),
        ("'%'", "%"),
        ("'[x]'", "[x]"),
        ("'\U0001f600'", "\U0001f600"),
        ("0", 0),
        ("-0", 0),
        ("+5", 5),
        ("007", 7),
        ("000000000000000000000000005", 5),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("5.0", 5.0),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ("25e-1", 2.5),
        ("1e19", 1e19),
        ("9223372036854775808.0", 2.0**63),
    ],
)
def test_literals(text: str, value: str | int | float) -> None:
    (read,) = parse(f"a = {text}").values  # type: ignore[union-attr]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1 AND b=1 AND c=1", all_of([A, B, C])),
        ("a=1 OR b=1 OR c=1", any_of([A, B, C])),
        ("a=1 OR b=1 AND c=1", any_of([A, all_of([B, C])])),
        ("a=1 AND b=1 OR c=1", any_of([all_of([A, B]), C])),
        ("(a=1 OR b=1) AND c=1", all_of([any_of([A, B]), C])),
        ("a=1 AND (b=1 OR c=1)", all_of([A, any_of([B, C])])),
        ("(a=1 AND b=1) AND c=1", all_of([A, B, C])),
        ("a=1 AND (b=1 AND c=1)", all_of([A, B, C])),
        ("a=1 OR (b=1 OR (c=1))", any_of([A, B, C])),
        ("NOT a=1 AND b=1", all_of([negate(A), B])),
        ("NOT a=1 OR b=1", any_of([negate(A), B])),
        ("NOT (a=1 AND b=1)", negate(all_of([A, B]))),
        ("NOT(a=1)", negate(A)),
        ("NOT NOT a=1", negate(negate(A))),
        ("not(not(a=1))", negate(negate(A))),
        ("((((a=1))))", A),
        ("a=1and b=1or c=1", None),
        ("(a=1)AND(b=1)", all_of([A, B])),
        ("'x'=a AND[b]=1", all_of([asked("a", Operator.EQUALS, "x"), B])),
    ],
)
def test_how_predicates_are_joined(text: str, expected: Expression | None) -> None:
    if expected is None:
        with pytest.raises(FilterError, match="end here"):
            parse(text)
        return
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (any_of([A, all_of([B, C])]), "a = 1 OR b = 1 AND c = 1"),
        (all_of([any_of([A, B]), C]), "(a = 1 OR b = 1) AND c = 1"),
        (negate(all_of([A, negate(B)])), "NOT (a = 1 AND NOT b = 1)"),
        (negate(negate(A)), "NOT NOT a = 1"),
        (asked("key", Operator.EQUALS, "it's"), "[key] = 'it''s'"),
        (asked("a]b", Operator.IN, 1.0, 2.5), "[a]]b] IN (1.0, 2.5)"),
        (asked("a.b", Operator.NOT_LIKE, "%"), "a.b NOT LIKE '%'"),
        (asked("a", Operator.NOT_EQUALS, 1e22), "a <> 1e+22"),
        (asked(EVENT_TIME, Operator.BETWEEN, -1, 5), "event_time BETWEEN -1 AND 5"),
        (asked("a", Operator.CONTAINS_NONE, "x"), "a CONTAINS NONE ('x')"),
        (asked("a", Operator.IS_NOT_NULL), "a IS NOT NULL"),
    ],
)
def test_the_text_of_a_tree(expression: Expression, text: str) -> None:
    assert to_text(expression) == text
    assert parse(text) == expression


def test_the_tree_in_lines() -> None:
    text = "type = 'order' AND (subject LIKE 'eu-%' OR NOT (a = 1 OR b = 'x\ny')) AND key IS NULL"
    assert to_tree(parse(text)) == (
        "AND\n"
        "├ type = 'order'\n"
        "├ OR\n"
        "│ ├ subject LIKE 'eu-%'\n"
        "│ └ NOT\n"
        "│   └ OR\n"
        "│     ├ a = 1\n"
        "│     └ b = 'x\\ny'\n"
        "└ key IS NULL"
    )
    assert to_tree(A) == "a = 1"


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        # nothing, or too little
        ("", 1, "empty"),
        ("  ", 3, "empty"),
        ("a", 2, "expected one of ="),
        ("a =", 4, "expected a text in single quotes or a number"),
        ("a = 1 AND", 10, "expected a test"),
        ("a = 1 OR", 9, "expected a test"),
        ("NOT", 4, "expected a test"),
        ("a IS", 5, "NULL"),
        ("a IS NOT", 9, "NULL"),
        ("a NOT", 6, "IN, LIKE or BETWEEN"),
        ("a BETWEEN 1", 12, "AND"),
        ("a BETWEEN 1 AND", 16, "expected a text"),
        ("a CONTAINS", 11, "ALL, ANY or NONE"),
        ("a IN", 5, "expected ("),
        ("5 <", 4, "expected a test"),
        # unclosed, or closed too often
        ("(a = 1", 1, "not closed"),
        ("a = 1 AND ((b = 1)", 11, "not closed"),
        ("a = 1)", 6, "no ( that"),
        ("()", 2, "expected a test"),
        ("a = 'abc", 5, "not closed"),
        ("a = 'abc''", 5, "not closed"),
        ("a = 'x' AND b = 'it''s ''", 17, "not closed"),
        ("[a = 1", 1, "not closed"),
        ('"a = 1', 1, "not closed"),
        ("[a]] = 1", 1, "not closed"),
        ("a IN (1, 2", 6, "not closed"),
        # unknown references
        ("publishTime > 1", 1, "expected publish_time"),
        ("EVENT_TIME > 1", 1, "expected event_time"),
        ("Key = 'x'", 1, "expected key"),
        ("bodysize > 1", 1, "expected body_size"),
        ("a = 1 AND d.x = 1", 11, "d.event-streams-offset or d.event-streams-timestamp"),
        ("d.event-streams-partition = '1'", 1, "d.event-streams-offset or"),
        ("d. = 1", 1, "d.event-streams-offset or"),
        ("properties.topic = 'x'", 1, "expected one of message_id, to, subject"),
        ("properties.user_id = 'x'", 1, "bytes"),
        ("'x' = properties.user_id", 7, "bytes"),
        ("[properties.x] = 'x'", 1, "expected one of message_id"),
        ("properties = 1 AND properties. = 1", 20, "delimited"),
        ("application_properties.[] = 1", 1, "expected a name after"),
        ("Application_Properties.x = 1", 1, "expected application_properties.x"),
        ("Properties.[subject] = 'x'", 1, "expected properties."),
        ("[] = 1", 1, "needs a name"),
        ("x-y = 1", 1, "[x-y]"),
        ("größe = 1", 1, "[größe]"),
        ("ärger = 1", 1, "[ärger]"),
        ("a.5 = 1", 1, "[a.5]"),
        ("upper(a) = 'X'", 1, "no function upper"),
        ("and = 1", 1, "[and]"),
        ("a = 1 AND like = 1", 11, "[like]"),
        ("in.x = 1", 1, "[in.x]"),
        # unknown operators
        ("a == 1", 3, "expected one of ="),
        ("a =< 1", 3, "expected one of ="),
        ("a <=> 1", 3, "expected one of ="),
        ("a ~ 'x'", 3, "LIKE"),
        ("a RLIKE 'x'", 3, "LIKE"),
        ("a = 1 && b = 1", 7, "write AND"),
        ("a = 1 || b = 1", 7, "write OR"),
        ("!a = 1", 1, "write NOT"),
        ("a = 1 XOR b = 1", 7, "expected AND, OR"),
        ("a + 1 = 2", 3, "arithmetic"),
        ("a = 1 + 1", 7, "arithmetic"),
        ("a LIKE 'x' ESCAPE '\\'", 12, "no ESCAPE"),
        ("a = 1; b = 1", 6, "one expression"),
        ("a NOT = 1", 7, "IN, LIKE or BETWEEN"),
        ("a NOT CONTAINS ANY (1)", 7, "IN, LIKE or BETWEEN"),
        ("a CONTAINS (1)", 12, "ALL, ANY or NONE"),
        ("a IS 5", 6, "NULL"),
        ("EXISTS a", 8, "expected one of ="),
        # literals
        ("a = b", 5, "'b'"),
        ('a = "b"', 5, "'b'"),
        ("a = NULL", 5, "IS NULL"),
        ("a <> null", 6, "IS NULL"),
        ("a = TRUE", 5, "'true'"),
        ("TRUE", 1, "no TRUE"),
        ("a = 1 OR false", 10, "no FALSE"),
        ("1 = 1", 5, "literal beside a literal"),
        ("'a' = 'b'", 7, "literal beside a literal"),
        ("5 IN (1)", 3, "after a literal"),
        ("'x' LIKE a", 5, "after a literal"),
        ("a = - 5", 5, "digits"),
        ("a = --5", 5, "digits"),
        ("a = 5x", 6, "end here"),
        ("a = 0x1f", 6, "end here"),
        ("a = 1.", 6, "end here"),
        ("a = .5", 5, "expected a text"),
        ("a = 1.5.5", 8, "end here"),
        ("a = 1e", 6, "end here"),
        ("a = 1_000", 6, "end here"),
        ("a = NaN", 5, "expected a text"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a = -9223372036854775809", 5, "64 bits"),
        ("a = 10000000000000000000", 5, "64 bits"),
        ("a = 00000000000000000000010000000000000000000", 5, "64 bits"),
        ("a = " + "9" * 100_000, 5, "64 bits"),
        ("a = 1e309", 5, "DOUBLE"),
        ("a = " + "9" * 100_000 + ".0", 5, "DOUBLE"),
        ("a = \u0661", 5, "expected a text"),
        ("a = '\ud800'", 5, "surrogate"),
        ("[\udfff] = 1", 1, "surrogate"),
        ("a = 1\u00a0AND b = 1", 6, "expected AND, OR"),
        ("a = 1\x00", 6, "expected AND, OR"),
        # lists
        ("a IN ()", 7, "expected a text"),
        ("a IN (1,)", 9, "expected a text"),
        ("a IN (1 2)", 9, "expected , or )"),
        ("a IN 1", 6, "expected ("),
        ("a IN (b)", 7, "'b'"),
        # type clashes
        ("a IN ('x', 5)", 12, "one type"),
        ("a IN (1, 2, 2.5)", 13, "one type"),
        ("a BETWEEN 1 AND 5.0", 17, "one type"),
        ("a BETWEEN 'x' AND 5", 19, "one type"),
        ("a CONTAINS ALL (1, 'x')", 20, "one type"),
        ("publish_time > '2024-01-01'", 16, "milliseconds"),
        ("'x' < event_time", 1, "milliseconds"),
        ("event_time IN ('x')", 16, "milliseconds"),
        ("event_time BETWEEN 'a' AND 'b'", 20, "milliseconds"),
        ("body_size = 'x'", 13, "bytes"),
        ("d.event-streams-timestamp = 'x'", 29, "milliseconds"),
        # LIKE where there is no text
        ("a LIKE 5", 8, "LIKE compares texts"),
        ("a NOT LIKE 5.5", 12, "LIKE compares texts"),
        ("publish_time LIKE '1%'", 14, "LIKE compares texts"),
        ("event_time NOT LIKE '1%'", 12, "LIKE compares texts"),
        ("body_size LIKE '1%'", 11, "LIKE compares texts"),
        ("publish_time LIKE 5", 19, "LIKE compares texts"),
    ],
)
def test_errors_point_at_the_fault(text: str, column: int, reason: str) -> None:
    with pytest.raises(FilterError) as fault:
        parse(text)
    assert reason in fault.value.reason
    assert fault.value.column == column
    assert fault.value.text == text
    assert f"column {column}: " in str(fault.value)
    assert len(str(fault.value)) < 1_000


def test_the_part_of_a_long_text_that_is_at_fault_is_shown() -> None:
    text = " OR ".join(f"a = {number}" for number in range(500)) + " OR a == 7 OR b = 1"
    with pytest.raises(FilterError) as fault:
        parse(text)
    assert "a == 7" in str(fault.value)
    assert "a = 499" in str(fault.value)
    assert "a = 1 OR" not in str(fault.value)


NESTED = 10_000
MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("(" * NESTED + "a = 1" + ")" * NESTED, 65, "nested more than 64"),
        ("(" * NESTED, 65, "nested more than 64"),
        ("NOT " * NESTED + "a = 1", 4 * 65 - 1, "nested more than 64"),
        ("NOT(" * NESTED + "a = 1" + ")" * NESTED, 4 * 32 + 3, "nested more than 64"),
        ("(a = 1 AND " * NESTED + "a = 1" + ")" * NESTED, 11 * 64 + 1, "nested more than 64"),
        ("a = 1 AND " * NESTED + "a = 1", 10 * MAX_VALUES + 5, "more than 1000 values"),
        ("a IS NULL OR " * NESTED + "a = 1", 13 * MAX_NODES + 1, "more than 1000 predicates"),
        ("a IN (" + "1," * NESTED + "1)", 7 + 2 * MAX_VALUES, "more than 1000 values"),
        ("a = 1" + " OR NOT a = 1" * (MAX_NODES // 2 + 1), 13 * MAX_NODES // 2 + 1, "more than 1000"),
        (" OR ".join(f"offset = '{number:020d}'" for number in range(MEGABYTE // 37)), MAX_TEXT + 1, "longer than"),
        ("a = '" + "x" * MEGABYTE + "'", MAX_TEXT + 1, "longer than"),
        ("a = '" + "x" * MAX_CHARACTERS + "'", 1, "131072 characters"),
        ("a = '" + "''" * (MAX_TEXT // 2 - 5), 5, "not closed"),
        ("[" + "]]" * (MAX_TEXT // 2 - 5), 1, "not closed"),
        ("x" * MEGABYTE, MAX_TEXT + 1, "longer than"),
        ("x" * MAX_TEXT, MAX_TEXT + 1, "expected one of ="),
        ("x." * (MAX_TEXT // 2), 1, "delimited"),
        ("-" * MAX_TEXT, 1, "digits"),
        ("a = " + "9" * (MAX_TEXT - 4), 5, "64 bits"),
        (" " * MAX_TEXT, MAX_TEXT + 1, "empty"),
        ("=" * MAX_TEXT, 1, "expected a test"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_hostile_texts_are_refused(text: str, column: int, reason: str) -> None:
    """Within pytest's own limit of stack and of time; nothing is timed."""
    with pytest.raises(FilterError, match=reason) as fault:
        parse(text)
    assert fault.value.column == column
    assert len(str(fault.value)) < 1_000


def test_what_is_just_within_the_limits_is_taken() -> None:
    assert parse("(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH) == A
    deepest = "NOT " * (MAX_DEPTH - 1) + "a = 1"
    assert to_text(parse(deepest)) == deepest
    with pytest.raises(FilterError, match="more than 64 levels deep") as fault:
        parse(f"NOT {deepest}")
    assert fault.value.column == 4 * MAX_DEPTH + 1
    assert len(parse(f"a IN ({', '.join(map(str, range(MAX_VALUES)))})").values) == MAX_VALUES  # type: ignore[union-attr]
    assert len(parse(" OR ".join(["a IS NULL"] * (MAX_NODES - 1))).parts) == MAX_NODES - 1  # type: ignore[union-attr]
    longest = "x" * (MAX_CHARACTERS - 1)
    assert parse(f"a = '{longest}'") == asked("a", Operator.EQUALS, longest)


@pytest.mark.parametrize(
    "expression", [asked("]" * MAX_CHARACTERS, Operator.IS_NULL), asked("a", Operator.EQUALS, "'" * 131_071)]
)
def test_the_text_of_a_tree_within_the_limits_is_never_too_long(expression: Expression) -> None:
    assert parse(to_text(expression)) == expression


def test_what_is_closed_does_not_count_as_nesting() -> None:
    for part in ("(a = 1)", "NOT a = 1", "NOT (NOT a = 1)", "(a = 1 OR (NOT b = 1))"):
        assert len(parse(" AND ".join([part] * 100)).parts) == 100  # type: ignore[union-attr]
        assert parse(f"({part} AND {part}) OR {' OR '.join([part] * 70)}")


def test_a_tree_that_was_made_by_hand_may_be_as_large_as_a_text() -> None:
    check(any_of([A] * (MAX_NODES - 1)))
    with pytest.raises(FilterError, match="more than 1000 predicates"):
        check(any_of([A] * MAX_NODES))
    check(asked("a", Operator.IN, *range(MAX_VALUES)))
    with pytest.raises(FilterError, match="more than 1000 values"):
        check(asked("a", Operator.IN, *range(MAX_VALUES + 1)))
    check(asked("a", Operator.EQUALS, "x" * (MAX_CHARACTERS - 1)))
    with pytest.raises(FilterError, match="131072 characters"):
        check(asked("a", Operator.EQUALS, "x" * MAX_CHARACTERS))


def test_limits_count_the_tree_and_not_the_parentheses() -> None:
    tree: Expression = A
    for number in range((MAX_DEPTH - 1) // 3):
        tree = negate(any_of([B, all_of([tree, asked("n", Operator.EQUALS, number)])]))
    assert parse(to_text(tree)) == tree
    with pytest.raises(FilterError, match="more than 64 levels deep") as fault:
        parse(to_text(negate(tree)))
    assert fault.value.text[fault.value.column - 1 :].startswith("a = 1")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (asked("a", Operator.LIKE, 5), "LIKE compares texts"),
        (asked(EVENT_TIME, Operator.EQUALS, "x"), "milliseconds"),
        (asked("a", Operator.BETWEEN, 1), "two values, not 1"),
        (asked("a", Operator.EQUALS, 1, 2), "one value, not 2"),
        (asked("a", Operator.EQUALS, 2**63), "64 bits"),
        (asked("a", Operator.EQUALS, 10**5000), "64 bits"),
        (asked("a", Operator.EQUALS, float("nan")), "finite"),
        (asked("a", Operator.EQUALS, float("inf")), "finite"),
        (asked("a", Operator.IN, 1, 2.5), "one type"),
        (asked("a", Operator.EQUALS, "\ud800"), "surrogate"),
        (asked("", Operator.IS_NULL), "needs a name"),
        (asked("properties.user_id", Operator.IS_NULL), "bytes"),
        (Predicate(property_of("a"), Operator.IN, (), ValueType.LONG), "at least one value"),
        (Predicate(property_of("a"), Operator.IS_NULL, (1,), ValueType.LONG), "no value"),
        (Predicate(property_of("a"), Operator.EQUALS, (True,), ValueType.LONG), "not bool"),
        (Predicate(property_of("a"), Operator.EQUALS, ("x",)), "their type"),
        (Predicate(Reference(KEY.kind, "x"), Operator.IS_NULL), "key has no name"),
        (And((A,)), "two or more parts"),
        (Or((A, Or((B, C)))), "all_of or any_of"),
        (Not(And((A, And((B, C))))), "all_of or any_of"),
    ],
)
def test_a_tree_that_was_made_by_hand_is_checked(expression: Expression, reason: str) -> None:
    with pytest.raises(FilterError) as fault:
        check(expression)
    assert reason in fault.value.reason
    assert fault.value.column is None
    assert len(str(fault.value)) < 1_000


def test_a_tree_that_is_deeper_than_the_stack_is_refused_and_can_be_shown() -> None:
    tree: Expression = A
    for _ in range(100_000):
        tree = Not(tree)
    with pytest.raises(FilterError, match="more than 64 levels deep"):
        check(tree)
    assert to_text(tree).endswith("NOT a = 1")


def test_a_tree_whose_parts_are_shared_is_refused_before_it_is_walked() -> None:
    tree: Expression = A
    for _ in range(30):
        tree = all_of([any_of([tree, B]), any_of([tree, C])])
    with pytest.raises(FilterError, match="more than 1000 predicates"):
        check(tree)
