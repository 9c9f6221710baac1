"""Text, builder and protobuf give the same tree, whatever the tree; whatever is no filter gives FilterError only."""

from __future__ import annotations

import ast
import base64
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import FilterError
from spark_streams.filters import (
    Expression,
    all_of,
    any_of,
    check,
    from_protobuf,
    negate,
    parse,
    read_filter,
    to_protobuf,
    to_text,
    to_tree,
)
from tests.filters.seed import Expr, message_of
from tests.filters.trees import by_builder, carelessly, expressions


@settings(deadline=None)
@given(expressions)
def test_text_builder_and_protobuf_give_the_same_tree(expression: Expression) -> None:
    check(expression)
    text, encoded = to_text(expression), to_protobuf(expression)
    assert parse(text) == expression
    assert from_protobuf(encoded) == expression
    assert by_builder(expression) == expression
    assert read_filter(text) == expression
    for spelled in (base64.b64encode(encoded), base64.urlsafe_b64encode(encoded)):
        assert read_filter(spelled.decode()) == expression
        assert read_filter(spelled.decode().rstrip("=")) == expression


@settings(deadline=None)
@given(st.data())
def test_a_text_means_the_same_however_it_is_spelled(data: st.DataObject) -> None:
    expression = data.draw(expressions)
    assert parse(carelessly(data.draw, expression)) == expression


@settings(deadline=None)
@given(expressions)
def test_the_tree_in_lines_has_a_line_for_each_node(expression: Expression) -> None:
    nodes, waiting = 0, [expression]
    while waiting:
        node: Any = waiting.pop()
        nodes += 1
        waiting.extend(getattr(node, "parts", ()) or ([node.operand] if hasattr(node, "operand") else []))
    assert len(to_tree(expression).split("\n")) == nodes


SEEDS_REFERENCES = {0, 1, 2}


def in_the_seed(expression: Any) -> bool:
    """Say whether an expression has only references that the proposal knows."""
    if hasattr(expression, "reference"):
        return expression.reference.kind in SEEDS_REFERENCES
    return all(map(in_the_seed, getattr(expression, "parts", ()) or (expression.operand,)))


@settings(deadline=None)
@given(expressions.filter(in_the_seed))
def test_the_proposals_own_messages_say_the_same(expression: Expression) -> None:
    """The library, given the proposal's definitions, writes what we read, and reads what we write."""
    message = message_of(expression)
    assert from_protobuf(message.SerializeToString()) == expression
    ours = Expr.FromString(to_protobuf(expression))
    assert not ours.FindInitializationErrors()
    assert from_protobuf(ours.SerializeToString()) == expression
    assert ours.SerializeToString() == to_protobuf(expression), "fields in the same order, none unknown"


boolean_words = st.recursive(
    st.sampled_from("abcde"),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join),
        inner.map(lambda text: f"not {text}"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=12,
)


def as_python_reads_it(node: ast.expr) -> Expression:
    """Return the tree of Python's own parser: its not, and, or bind as SQL's do."""
    if isinstance(node, ast.BoolOp):
        join = all_of if isinstance(node.op, ast.And) else any_of
        return join(as_python_reads_it(value) for value in node.values)
    if isinstance(node, ast.UnaryOp):
        return negate(as_python_reads_it(node.operand))
    assert isinstance(node, ast.Name)
    return parse(f"{node.id} = 1")


@settings(deadline=None)
@given(boolean_words)
def test_not_binds_tighter_than_and_and_that_than_or(text: str) -> None:
    tested = re.sub(r"\b([a-e])\b", r"\1 = 1", text)
    assert parse(tested) == as_python_reads_it(ast.parse(text, mode="eval").body)


PIECES = [
    *(
        "a",
        "x.y",
        "key",
        "publish_time",
        "[a b]",
        '"q"',
        "d.event-streams-offset",
        "properties.subject",
        "d.",
        "[",
        '"',
    ),
    *(
        "=",
        "<>",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "==",
        "(",
        ")",
        ",",
        ".",
        "-",
        "+",
        "1",
        "1.5",
        "1e5",
        "-5",
        "'",
        "'a'",
        "''",
    ),
    *(
        " AND ",
        " OR ",
        "NOT ",
        " IN ",
        " LIKE ",
        " BETWEEN ",
        " IS ",
        "NULL",
        " CONTAINS ",
        "ALL",
        "ANY",
        "NONE",
        "TRUE",
    ),
    *(" ", "\n", "\x00", "é", "%", "9" * 30, "\ud800", "&&", ";", "*"),
]


def parses_or_is_refused(text: str) -> None:
    """Check that a text is a filter, or is refused at one of its columns."""
    try:
        expression = parse(text)
    except FilterError as fault:
        assert fault.text == text
        assert fault.column is not None and 1 <= fault.column <= len(text) + 1
        assert fault.reason and len(str(fault)) < 2_000
    else:
        check(expression)
        assert parse(to_text(expression)) == expression


@settings(deadline=None)
@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    parses_or_is_refused(text)


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_words_parse_or_are_refused(text: str) -> None:
    parses_or_is_refused(text)


@settings(deadline=None)
@given(expressions, st.data())
def test_a_damaged_text_parses_or_is_refused(expression: Expression, data: st.DataObject) -> None:
    text = to_text(expression)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 2))
    parses_or_is_refused(text[:at] + data.draw(st.sampled_from(["", *PIECES])) + text[at + cut :])


@settings(deadline=None)
@given(st.text(alphabet="ABCabc0189+/-_= ", max_size=40))
def test_any_base64_is_read_or_refused(text: str) -> None:
    try:
        check(read_filter(text))
    except FilterError as fault:
        assert fault.text == text
        assert fault.column is not None


def is_read_or_refused(encoded: bytes) -> None:
    """Check that bytes are a message, or are refused."""
    try:
        expression = from_protobuf(encoded)
    except FilterError as fault:
        assert fault.column is None
        assert fault.reason.startswith("protobuf form: ") and len(str(fault)) < 2_000
    else:
        check(expression)
        assert from_protobuf(to_protobuf(expression)) == expression


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(encoded: bytes) -> None:
    is_read_or_refused(encoded)


@settings(deadline=None)
@given(expressions, st.data())
def test_damaged_messages_are_read_or_refused(expression: Expression, data: st.DataObject) -> None:
    encoded = bytearray(to_protobuf(expression))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded)))
        encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    is_read_or_refused(bytes(encoded))


@settings(deadline=None)
@given(expressions, st.data())
def test_messages_that_are_cut_off_are_read_or_refused(expression: Expression, data: st.DataObject) -> None:
    encoded = to_protobuf(expression)
    is_read_or_refused(encoded[: data.draw(st.integers(0, len(encoded)))])
