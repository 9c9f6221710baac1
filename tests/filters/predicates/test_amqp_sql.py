"""Full SQL filters: what is read, what is refused and where, and where reading may start and stop."""

from __future__ import annotations

import math
import operator
import re

import numpy as np
import pytest

from spark_streams.errors import FilterError
from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.filters.predicates.conditions import (
    NEVER,
    Always,
    Condition,
    bounds,
    by_cost,
    freeze,
    mask,
)
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.typed import BOOLEAN, FLOAT, INTEGER, NULL, NUMBER, OTHER, TEXT, FieldOfMessage
from spark_streams.wire.amqp.columns.typed import typed_columns as read_typed
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import APPLICATION_PROPERTIES
from spark_streams.wire.amqp.values import Float, ULong


def place(number: int) -> str:
    return f"{number:020d}"


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "empty"),
        ("  ", 3, "empty"),
        ("x", 2, "expected one of ="),
        ("x =", 4, "expected a field"),
        ("x = 'it", 5, "not closed"),
        ('x = "a', 5, "not closed"),
        ("[x = 1", 1, "not closed: expected ]"),
        ("[x[y] = 1", 3, "doubled"),
        ("UPPER(x) = 'A'", 1, "functions"),
        ("x = UTC()", 5, "functions"),
        ("EXISTS(x)", 1, "EXISTS"),
        ("x + 1 = 2", 3, "arithmetic"),
        ("x = 1 + 1", 7, "arithmetic"),
        ("m.x-opt-y = 1", 4, "arithmetic"),
        ("x BETWEEN 1 AND 2", 3, "BETWEEN"),
        ("x NOT BETWEEN 1 AND 2", 7, "BETWEEN"),
        ("x = NULL", 5, "IS NULL"),
        ("x IN (1, NULL)", 10, "IS NULL"),
        ("x IN ()", 7, "expected a field"),
        ("x IN (y)", 7, "expected a field, 'text'"),
        ("x = y", 5, "constant"),
        ("x = NAN", 5, "NAN"),
        ("x = 0xf", 5, "hexadecimal"),
        ("0x61 0x62", 6, "expected one of ="),
        ("x = 'a' 0x62", 9, "expected AND, OR or the end"),
        ("x = 1.5.2", 8, "end here"),
        ("x = 12a", 7, "end here"),
        ("x = 18446744073709551616", 5, "64 bits"),
        ("x = " + "9" * 10_000, 5, "64 bits"),
        ("x = 1E999", 5, "double"),
        ("f.x = 1", 1, "no section"),
        ("footer.x = 1", 1, "no section"),
        ("x.y = 1", 1, "no section"),
        ("a.x.y = 1", 4, "parts of a field"),
        ("a.x[1] = 1", 4, "parts of a field"),
        ("p.nope = 1", 1, "no field 'nope'"),
        ("h.nope = 1", 1, "no field 'nope'"),
        ("x LIKE 5", 8, "pattern"),
        ("x LIKE 'a!' ESCAPE '!'", 8, "escape"),
        ("x LIKE 'a' ESCAPE '!!'", 19, "one character"),
        ("d.event-streams-offset LIKE '1%'", 1, "LIKE"),
        ("5 LIKE 'a'", 3, "expected one of ="),
        ("x IS 5", 6, "expected NULL"),
        ("(x = 1", 7, "expected AND, OR or )"),
        ("x = 1)", 6, "expected AND, OR or the end"),
        ("x = 1 y = 2", 7, "expected AND, OR or the end"),
        ("NOT", 4, "expected a field"),
        ("x = 1 AND", 10, "expected a field"),
        ("x = #", 5, "cannot stand here"),
        ("(" * 65 + "x = 1" + ")" * 65, 65, "64 levels"),
        ("NOT " * 4_000 + "x = 1", 257, "64 levels"),
        ("NOT " * 10_000 + "x = 1", 16_385, "16384"),
        ("x = 1 OR " * 201 + "TRUE", 1801, "200 tests"),
        ("x IN (" + ", ".join(["1"] * 1_001) + ")", None, "1000 constants"),
        ("x LIKE '" + "_" * 1_001 + "'", 8, "1000"),
        ("x = '" + "y" * 1_000_000 + "'", 16_385, "16384"),
        ("x = '\ud800'", 5, "surrogate"),
    ],
)
def test_what_is_refused_is_refused_at_its_column(text: str, column: int | None, words: str) -> None:
    with pytest.raises(FilterError, match=words.replace("(", r"\(").replace(")", r"\)")) as refused:
        parse_amqp_sql(text)
    assert column is None or refused.value.column == column


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 5", "5 = x"),
        ("x < 5", "5 > x"),
        ("x <> 5", "x != 5"),
        ("a.x = 5", "[x] = 5"),
        ("application_properties.x = 5", "application-properties.x = 5"),
        ("p.content_type = 'a'", "properties.[content-type] = 'a'"),
        ("m.[x] = 'a'", "message_annotations.x = 'a'"),
        ("d.event-streams-offset > 'a'", "delivery_annotations.[event-streams-offset] > 'a'"),
        ("NOT x IS NULL", "x IS NOT NULL"),
        ("NOT x IN (1)", "x NOT IN (1)"),
        ("not x like 'a%'", "x NOT LIKE 'a%'"),
        ("NOT NOT x = 1", "x = 1"),
        ("NOT (x = 1 AND y = 2)", "NOT x = 1 OR NOT y = 2"),
        ("NOT (x = 1 OR y = 2)", "NOT x = 1 AND NOT y = 2"),
        ("x = 1 OR y = 2 AND z = 3", "x = 1 OR (y = 2 AND z = 3)"),
        ("NOT x = 1 AND y = 2", "(NOT x = 1) AND y = 2"),
        ("NOT d.event-streams-offset > 'a'", "d.event-streams-offset <= 'a'"),
        ("d.event-streams-offset < 0x61", "d.event-streams-offset < 'a'"),
        ("d.event-streams-source-partition = 0x30", "d.event-streams-source-partition = '0'"),
        ("x IN (1, 1, 2)", "x IN (1, 2)"),
        ("x = 'it''s'", 'x = "it\'s"'),
        ("[a]]b] = 1", "a.[a]]b] = 1"),
    ],
)
def test_two_ways_to_say_the_same(one: str, other: str) -> None:
    assert parse_amqp_sql(one) == parse_amqp_sql(other)


@pytest.mark.parametrize(
    ("text", "always"),
    [
        ("TRUE", True),
        ("NOT FALSE", True),
        ("FALSE OR TRUE", True),
        ("1 = 1.0", True),
        ("1 = '1'", False),
        ("1 <> '1'", True),
        ("TRUE < FALSE", False),
        ("'a' < 'b'", True),
        ("0x61 = 'a'", True),
        ("h.priority = 4", True),
        ("header.durable = TRUE", False),
        ("h.ttl IS NULL", True),
        ("h.ttl > 0", False),
        ("NOT h.ttl > 0", False),
        ("h.priority LIKE '4'", False),
        ("d.nope IS NULL", True),
        ("d.nope = 1 OR NOT d.nope = 1", False),
        ("d.event-streams-offset IS NULL", False),
        ("d.event-streams-offset = 5", False),
        ("d.event-streams-offset <> 5", True),
    ],
)
def test_what_no_event_changes_is_decided_at_once(text: str, always: bool) -> None:
    assert parse_amqp_sql(text) == Always(always)


def frozen(text: str) -> Condition:
    return freeze(parse_amqp_sql(text), next_offset=50, partition="0")


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("x = 1", 0, NEVER),
        (f"x = 1 AND d.event-streams-offset >= '{place(7)}'", 7, NEVER),
        (f"x = 1 AND d.event-streams-offset > '{place(7)}' AND d.event-streams-offset <= '{place(9)}'", 8, 10),
        (f"x = 1 AND d.event-streams-offset < '{place(9)}'", 0, 9),
        (f"x = 1 OR d.event-streams-offset < '{place(9)}'", 0, NEVER),
        (f"d.event-streams-offset = '{place(3)}' OR d.event-streams-offset = '{place(6)}'", 3, 7),
        (f"d.event-streams-offset IN ('{place(3)}', '{place(6)}') AND x = 1", 3, 7),
        ("x = 1 AND d.event-streams-offset <= '@latest'", 0, 50),
        ("x = 1 AND FALSE", NEVER, 0),
        ("x = 1 AND d.event-streams-timestamp <= 5", 0, NEVER),
        ("x = 1 AND d.event-streams-timestamp > 5", 606, NEVER),
        ("x = 1 AND d.event-streams-timestamp >= 5", 605, NEVER),
        ("x = 1 AND d.event-streams-timestamp = -5", 595, NEVER),
        ("d.event-streams-timestamp > 9223372036854775807", NEVER, NEVER),
        ("x = 1 OR d.event-streams-timestamp > 5", 0, NEVER),
    ],
)
def test_where_reading_may_start_and_stop(text: str, first: int, end: int) -> None:
    predicate = frozen(text)
    assert bounds(predicate, lambda instant: 600 + instant) == (first, end)
    assert bounds(predicate)[1] == end


def test_only_lower_bounds_of_time_move_the_start_and_only_with_an_index() -> None:
    assert bounds(frozen("x = 1 AND d.event-streams-timestamp > 5"))[0] == 0


def test_the_bounds_are_the_cheap_part() -> None:
    quick, deep = by_cost(
        frozen("x = 1 AND d.event-streams-timestamp > 5 AND (y = 2 OR d.event-streams-timestamp < 9)")
    )
    assert quick == frozen("d.event-streams-timestamp > 5")
    assert deep == frozen("x = 1 AND (y = 2 OR d.event-streams-timestamp < 9)")
    assert by_cost(frozen("d.event-streams-timestamp > 5")) == (quick, Always(True))


def test_a_predicate_over_messages_needs_their_columns() -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(KeyError):
        mask(frozen("x = 1"), one, one)


# --- typed columns; every encoding of AMQP 1.0 part 1 §1.6, by hand

ENCODINGS = [
    (b"\x40", NULL, None),
    (b"\x41", BOOLEAN, 1),
    (b"\x42", BOOLEAN, 0),
    (b"\x56\x01", BOOLEAN, 1),
    (b"\x56\x00", BOOLEAN, 0),
    (b"\x50\xff", INTEGER, 255),
    (b"\x60\xff\xfe", INTEGER, 65_534),
    (b"\x70\xff\xff\xff\xff", INTEGER, 2**32 - 1),
    (b"\x52\x07", INTEGER, 7),
    (b"\x43", INTEGER, 0),
    (b"\x80" + b"\x7f" + b"\xff" * 7, INTEGER, 2**63 - 1),
    (b"\x80" + b"\x80" + b"\x00" * 7, NUMBER, 2**63),
    (b"\x53\xc8", INTEGER, 200),
    (b"\x44", INTEGER, 0),
    (b"\x51\xff", INTEGER, -1),
    (b"\x61\x80\x00", INTEGER, -32_768),
    (b"\x71\xff\xff\xff\xff", INTEGER, -1),
    (b"\x54\xff", INTEGER, -1),
    (b"\x81" + b"\xff" * 8, INTEGER, -1),
    (b"\x55\xfe", INTEGER, -2),
    (b"\x72\x3f\x80\x00\x00", FLOAT, 1.0),
    (b"\x82\xbf\xf0\x00\x00\x00\x00\x00\x00", FLOAT, -1.0),
    (b"\x73\x00\x01\xf6\x00", INTEGER, 0x1F600),
    (b"\x83" + b"\xff" * 8, INTEGER, -1),
    (b"\x98" + b"0123456789abcdef", TEXT, b"0123456789abcdef"),
    (b"\xa0\x02\x00\xff", TEXT, b"\x00\xff"),
    (b"\xa1\x02ab", TEXT, b"ab"),
    (b"\xa3\x02ab", TEXT, b"ab"),
    (b"\xb0\x00\x00\x00\x01a", TEXT, b"a"),
    (b"\xb1\x00\x00\x00\x01a", TEXT, b"a"),
    (b"\xb3\x00\x00\x00\x01a", TEXT, b"a"),
    (b"\x45", OTHER, None),
    (b"\xc0\x01\x00", OTHER, None),
    (b"\xc1\x01\x00", OTHER, None),
    (b"\xe0\x03\x01\x54\x01", OTHER, None),
]


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(("value", "kind", "content"), ENCODINGS, ids=lambda each: repr(each)[:30])
def test_every_encoding_has_its_kind(value: bytes, kind: int, content: object, rows: int) -> None:
    pair = b"\xa1\x01x" + value
    message = b"\x00\x53\x74\xc1" + bytes([len(pair) + 1, 2]) + pair + b"\x00\x53\x75\xa0\x00"
    starts = np.arange(rows) * len(message)
    place = FieldOfMessage(APPLICATION_PROPERTIES, "x")
    column = read_typed(MessageBlock(message * rows, starts, starts + len(message)), [place])[place]
    assert column.kind.tolist() == [kind] * rows
    if kind in (INTEGER, BOOLEAN):
        assert column.integers.tolist() == [content] * rows
    elif kind == FLOAT:
        assert column.floats.tolist() == [content] * rows
    elif kind == NUMBER:
        assert [column.numbers[row] for row in range(rows)] == [content] * rows
    elif kind == TEXT:
        assert isinstance(content, bytes)
        assert column.raw.to_pylist() == [content] * rows
        assert column.equals(content).all() and not column.equals(content + b"x").any()


def test_a_message_that_cannot_be_decoded_matches_nothing() -> None:
    broken = b"\x00\x53\x74\xc1\x05\x02\xa1\x01x\x54"  # the value is not there
    good = b"\x00\x53\x74" + encode_value({"x": 1})
    starts = np.array([0, len(broken)])
    place = FieldOfMessage(APPLICATION_PROPERTIES, "x")
    columns = read_typed(MessageBlock(broken + good, starts, starts + np.array([len(broken), len(good)])), [place])
    for text in ("x IS NULL", "x IS NOT NULL", "x <> 2", "NOT x = 2", "x NOT IN (2)"):
        found = mask(frozen(text), np.arange(2), np.zeros(2, np.int64), columns)
        assert found.tolist() == [False, text != "x IS NULL"]


NUMBERS = [
    *(0, 1, -1, 5, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)),
    *(ULong(2**63), ULong(2**64 - 1), 0.0, 0.5, -0.5, 5.0, 2.0**53, 2.0**63, 2.0**64, -(2.0**63), 1e300, -1e300),
    *(math.nan, math.inf, -math.inf, Float(0.1), Float(0.5)),
]
CONSTANTS = [
    *("0", "5", "-1", "9007199254740993", "9223372036854775807", "-9223372036854775808", "18446744073709551615"),
    *("9007199254740992", "9007199254740991", "0.5", "-0.5", "4.5", "5.0", "1E300", "-1E300", "0.1"),
    *("9223372036854775808", "-9223372036854775809", "18446744073709551614"),
]


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
def test_numbers_are_compared_exactly(sign: str, constant: str) -> None:
    """Against Python's own comparison of int and float, which is exact."""
    exact = float(constant) if re.search("[.E]", constant) else int(constant)
    raw = [b"\x00\x53\x74" + encode_value({"x": number}) for number in NUMBERS]
    ends = np.array([len(each) for each in raw]).cumsum()
    starts = ends - np.array([len(each) for each in raw])
    place = FieldOfMessage(APPLICATION_PROPERTIES, "x")
    columns = read_typed(MessageBlock(b"".join(raw), starts, ends), [place])
    values = [float(np.float32(n)) if isinstance(n, Float) else n for n in NUMBERS]
    expected = [SIGNS[sign](value, exact) for value in values]
    offsets, instants = np.arange(len(raw)), np.zeros(len(raw), np.int64)
    assert mask(frozen(f"x {sign} {constant}"), offsets, instants, columns).tolist() == expected
    negated = mask(frozen(f"NOT x {sign} {constant}"), offsets, instants, columns)
    assert negated.tolist() == [not each for each in expected]
    if sign == "=":
        among = mask(frozen(f"x IN ('a', {constant}, 1234567)"), offsets, instants, columns)
        assert among.tolist() == expected


@pytest.mark.parametrize("more", [0, 9], ids=["few texts", "many texts"])
def test_in_takes_constants_of_all_kinds_beside_each_other(more: int) -> None:
    values = ["a", "b", "a ", 5, 5.0, 6, 0.5, 1.5, ULong(2**64 - 1), ULong(2**64 - 2), True, False, None]
    taken = [True, False, False, True, True, False, True, False, True, False, True, False, False]
    raw = [b"\x00\x53\x74" + encode_value({"x": value}) for value in values]
    ends = np.array([len(each) for each in raw]).cumsum()
    starts = ends - np.array([len(each) for each in raw])
    columns = read_typed(MessageBlock(b"".join(raw), starts, ends), [FieldOfMessage(APPLICATION_PROPERTIES, "x")])
    texts = "".join(f"'t{n}', " for n in range(more))
    among = f"IN ({texts}'a', 5, 0.5, {2**64 - 1}, TRUE)"
    offsets, instants = np.arange(len(raw)), np.zeros(len(raw), np.int64)
    assert mask(frozen(f"x {among}"), offsets, instants, columns).tolist() == taken
    negated = mask(frozen(f"x NOT {among}"), offsets, instants, columns).tolist()
    assert negated == [value is not None and not each for value, each in zip(values, taken, strict=True)]


SIGNS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
