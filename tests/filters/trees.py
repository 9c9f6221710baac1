"""Expressions of every sound shape, for property tests; and a second way to write each of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from spark_streams.filters import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    And,
    Expression,
    Not,
    Operator,
    Predicate,
    Reference,
    ReferenceKind,
    ValueType,
    all_of,
    any_of,
    builder,
    negate,
    property_of,
)
from spark_streams.filters.limits import predicate_fault

COMPARISONS = (
    Operator.EQUALS,
    Operator.NOT_EQUALS,
    Operator.GREATER_THAN,
    Operator.GREATER_THAN_EQUALS,
    Operator.LESS_THAN,
    Operator.LESS_THAN_EQUALS,
)
LISTS = (Operator.IN, Operator.NOT_IN, Operator.CONTAINS_ALL, Operator.CONTAINS_ANY, Operator.CONTAINS_NONE)
PATTERNS = (Operator.LIKE, Operator.NOT_LIKE)
NULL_TESTS = (Operator.IS_NULL, Operator.IS_NOT_NULL)
NUMERIC = (EVENT_TIME, PUBLISH_TIME, BODY_SIZE)

NASTY_NAMES = [
    *("a", "d", "a.b", "_", "x1", "not", "any", "not.x", "in.x", "key", "Key", "publish_time", "publishTime", "offset"),
    *("properties.subject", "properties.group_sequence", "application_properties.x", "message_annotations.x-opt-y"),
    *(
        "Properties.subject",
        "d.event-streams-offset",
        "d.x",
        "delivery_annotations.x",
        "a]b",
        "]",
        '"',
        "[",
        "'",
        "a b",
    ),
    *("/a/b", "5", "-5", "1e5", "ı", "größe", "\U0001f600", "\x00", "\n", "a.", ".a", "a..b", "NULL", "%", "="),
]
characters = st.characters(exclude_categories=["Cs"])
texts = st.one_of(
    st.text(characters, max_size=8), st.sampled_from(["", "'", "''", "it's", "%", "_", "\x00", "\U0010ffff"])
)
longs = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -1, 2**63 - 1, -(2**63), -386380800000]))
doubles = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.1, 1e22, 5e-324, -0.5, 3.0]))
values: dict[ValueType, st.SearchStrategy[Any]] = {
    ValueType.STRING: texts,
    ValueType.LONG: longs,
    ValueType.DOUBLE: doubles,
}


def is_name(name: str) -> bool:
    """Say whether a property may have the name."""
    return predicate_fault(Predicate(property_of(name), Operator.IS_NULL)) is None


properties = st.one_of(st.sampled_from(NASTY_NAMES), st.text(characters, min_size=1, max_size=6)).filter(is_name)
references = st.one_of(
    properties.map(property_of),
    st.sampled_from([KEY, PARTITION, OFFSET, EVENT_TIME, PUBLISH_TIME, BODY_SIZE]),
)


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    reference: Reference = draw(references)
    types = [ValueType.LONG, ValueType.DOUBLE] if reference in NUMERIC else list(ValueType)
    of = draw(st.sampled_from(types))
    operators = [*COMPARISONS, *LISTS, *NULL_TESTS, Operator.BETWEEN, *(PATTERNS if of is ValueType.STRING else ())]
    operator = draw(st.sampled_from(operators))
    if operator in NULL_TESTS:
        return Predicate(reference, operator)
    least, most = (1, 4) if operator in LISTS else (2, 2) if operator is Operator.BETWEEN else (1, 1)
    chosen = draw(st.lists(values[of], min_size=least, max_size=most))
    return Predicate(reference, operator, tuple(chosen), of)


def joins(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """Return expressions that join some of ``inner``."""
    parts = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(parts.map(all_of), parts.map(any_of), inner.map(negate))


expressions: st.SearchStrategy[Expression] = st.recursive(predicates(), joins, max_leaves=12)


def by_builder(expression: Expression) -> Expression:
    """Say the same in the builder's calls, and return what it builds."""
    if isinstance(expression, Predicate):
        return tested(builder(), expression).build()
    if isinstance(expression, Not):
        return builder().group(by_builder(expression.operand)).not_().build()
    first, *others = expression.parts
    step = builder().group(by_builder(first))
    for part in others:
        joined = step.and_() if isinstance(expression, And) else step.or_()
        step = tested(joined, part) if isinstance(part, Predicate) else joined.group(by_builder(part))
    return step.build()


def tested(step: Any, predicate: Predicate) -> Any:
    """Call the two methods that say a predicate."""
    reference, operator = predicate.reference, predicate.operator
    if reference.kind is ReferenceKind.PROPERTY:
        step = step.property(reference.name)
    else:
        step = getattr(step, reference.kind.name.lower())()
    name = operator.name.lower()
    return getattr(step, f"{name}_" if name == "in" else name)(*predicate.values)


WORDS = {
    Operator.IN: "in",
    Operator.NOT_IN: "not in",
    Operator.LIKE: "like",
    Operator.NOT_LIKE: "not like",
    Operator.CONTAINS_ALL: "contains all",
    Operator.CONTAINS_ANY: "contains any",
    Operator.CONTAINS_NONE: "contains none",
    Operator.IS_NULL: "is null",
    Operator.IS_NOT_NULL: "is not null",
}
SIGNS = {
    Operator.EQUALS: (["="], ["="]),
    Operator.NOT_EQUALS: (["<>", "!="], ["<>", "!="]),
    Operator.GREATER_THAN: ([">"], ["<"]),
    Operator.GREATER_THAN_EQUALS: ([">="], ["<="]),
    Operator.LESS_THAN: (["<"], [">"]),
    Operator.LESS_THAN_EQUALS: (["<="], [">="]),
}
"""Each comparison's signs, and its signs with the sides exchanged."""


def carelessly(draw: st.DrawFn, expression: Expression) -> str:
    """Write an expression as people might: any case, any blanks, parentheses too many, sides exchanged."""
    blank = st.sampled_from([" ", "\n", "\t ", "  "])

    def words(text: str) -> str:
        cased = [draw(st.sampled_from([word, word.upper(), word.title()])) for word in text.split()]
        return draw(blank) + draw(blank).join(cased) + draw(blank)

    def reference(of: Reference) -> str:
        if of.kind is ReferenceKind.PROPERTY:
            name = str(of.name)
            return draw(st.sampled_from([f"[{name.replace(']', ']]')}]", '"{}"'.format(name.replace('"', '""'))]))
        spellings = [of.kind.name.lower()]
        if of in (OFFSET, PUBLISH_TIME):
            annotation = "event-streams-offset" if of == OFFSET else "event-streams-timestamp"
            spellings += [f"d.{annotation}", f"delivery_annotations.{annotation}", f"d.[{annotation}]"]
        return draw(st.sampled_from(spellings))

    def literal(value: Any) -> str:
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return ("+" if draw(st.booleans()) and not repr(value).startswith("-") else "") + repr(value)

    def predicate(of: Predicate) -> str:
        name, given = reference(of.reference), [literal(value) for value in of.values]
        if of.operator in SIGNS:
            plain, mirrored = SIGNS[of.operator]
            gap = draw(st.sampled_from(["", " ", "\n"]))
            if draw(st.booleans()):
                return f"{given[0]}{gap}{draw(st.sampled_from(mirrored))}{gap}{name}"
            return f"{name}{gap}{draw(st.sampled_from(plain))}{gap}{given[0]}"
        if of.operator is Operator.BETWEEN:
            return f"{name}{words('between')}{given[0]}{words('and')}{given[1]}"
        listed = f"({' , '.join(given)})" if of.operator in LISTS else given[0] if given else ""
        return f"{name}{words(WORDS[of.operator])}{listed}"

    def whole(of: Expression, depth: int) -> str:
        if isinstance(of, Predicate):
            written = predicate(of)
        elif isinstance(of, Not):
            written = f"{words('not')}({whole(of.operand, depth + 1)})"
        else:
            sign = words("and" if isinstance(of, And) else "or")
            written = sign.join(f"({whole(part, depth + 1)})" for part in of.parts)
        return f"({written})" if depth < 20 and draw(st.integers(0, 4)) == 0 else written

    return whole(expression, 0)
