"""Events with typed values, as peers store them and as our rows show them; and expressions that are about them.

Values and literals come from one small set of texts, and of each text every AMQP value that our rows show as it: so
they meet often, and a filter that forgets a type loses an event.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from spark_streams.filters.limits import predicate_fault
from spark_streams.filters.tree import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    Expression,
    Not,
    Operator,
    Predicate,
    Reference,
    ReferenceKind,
    ValueType,
    all_of,
    any_of,
    negate,
    place_of,
    property_of,
)
from spark_streams.wire.amqp.canonical_text import canonical_text
from spark_streams.wire.amqp.values import Char, Decimal64, Float, Symbol, Timestamp, UInt, ULong

TEXTS = [
    *("order", "orde", "orders", "test", "eu-1", "eu-west", "eu-", "é", "it's", "a\nb", "", " 5", "A", "5", "-5", "05"),
    *("+5", "5.0", "5.00", "1.5", "0.1", "0.7", "16777217", "1e+16", "1E+3", "1e999", "NaN", "Infinity", "-Infinity"),
    *(
        "true",
        "false",
        "1234",
        "12e4",
        "0",
        "-0",
        "-0.0",
        "0E-7",
        "12345678901234567890",
        "9223372036854775808",
        "1e-40",
    ),
    *("[1]", '["test"]', "{}", "\ue000", "\U0001f600", "%", "_", "\x00", "3.4028235e+38", "99999997952.0", "1e+11"),
    *("00112233-4455-6677-8899-aabbccddeeff", "cafe", "====", "AAAA", "////", "123456789012345678901234567890"),
]
ENDS = [
    "",
    "o",
    "or",
    "ord",
    "eu-",
    "5",
    "-",
    "1",
    "t",
    "e",
    "a",
    "é",
    "it's",
    "[",
    "]",
    "00",
    "N",
    "/",
    "A",
    ".",
    "cafe",
]
TIMES = [-386380800000, -5, -1, 0, 1, 5, 1000, 1585672841000]
OFFSETS = [f"{n:020}" for n in (0, 1, 5, 6, 10, 99, 100)]
PROPERTIES = ("x", "application_properties.x", "x-y", "and", "a.b", "[z]")
"""Names of application properties, one with two spellings."""
FIELDS = ("subject", "content_type", "group_id", "message_id", "to", "group_sequence", "creation_time")


def values_with(text: str) -> list[Any]:
    """Return AMQP values of every type whose canonical text may be ``text``; checked by ``VALUES``."""
    found: list[Any] = [text]
    if text.isascii():
        found.append(Symbol(text))
    if len(text) == 1:
        found.append(Char(text))
    found += {"true": [True], "false": [False]}.get(text, [])
    if re.fullmatch("-?[0-9]{1,20}", text):
        number = int(text)
        found += [number] if -(2**63) <= number < 2**63 else []
        found += [Timestamp(number)] if -(2**63) <= number < 2**63 else []
        found += [ULong(number)] if 0 <= number < 2**64 else []
        found += [UInt(number)] if 0 <= number < 2**32 else []
    for to_float in (float, Float):
        try:
            found.append(to_float(text))
        except ValueError:
            continue
    if re.fullmatch(r"-?[0-9.]+(E[+-]?[0-9]+)?", text):
        found += decimals(text)
    if text == "NaN":
        found.append(Decimal64(bytes([0x7C, *([0] * 7)])))
    if re.fullmatch("[0-9a-f-]{36}", text):
        found.append(uuid.UUID(text))
    with contextlib.suppress(binascii.Error, ValueError):
        found.append(base64.b64decode(text, validate=True))
    found += {"[1]": [[1]], '["test"]': [["test"]], "{}": [{}]}.get(text, [])
    return [value for value in found if canonical_text(value) == text]


def decimals(text: str) -> list[Decimal64]:
    """Return the decimal64 of a text, unless it has too many digits."""
    sign, digits, exponent = Decimal(text).as_tuple()
    if len(digits) > 15 or not isinstance(exponent, int):
        return []
    significand = int("".join(map(str, digits)))
    return [Decimal64(struct.pack(">Q", sign << 63 | (exponent + 398) << 53 | significand))]


VALUES = {text: values_with(text) for text in TEXTS}


@dataclass
class Event:
    """One event: what AMQP has of it."""

    offset: str
    timestamp: int | None
    key: str | None = None
    partition: str = "0"
    body: bytes = b""
    properties: dict[str, Any] = field(default_factory=dict)
    application_properties: dict[str, Any] = field(default_factory=dict)

    def typed(self, section: str, name: str) -> Any:
        """Return what a peer's SQL finds in a section: the AMQP value."""
        if section == "d":
            added = None if self.timestamp is None else Timestamp(self.timestamp)
            return {"event-streams-offset": self.offset, "event-streams-timestamp": added}[name]
        return (self.properties if section == "p" else self.application_properties).get(name)

    def text(self, reference: Reference) -> str | int | None:
        """Return what our rows have of a reference: canonical texts, and numbers."""
        kind = reference.kind
        place = place_of(reference)
        if kind is ReferenceKind.EVENT_TIME:
            created = self.properties.get("creation_time")
            return int(created) if created else None
        if kind is ReferenceKind.PUBLISH_TIME:
            return self.timestamp
        if place is None:
            return {KEY: self.key, PARTITION: self.partition, OFFSET: self.offset, BODY_SIZE: len(self.body)}[reference]
        section, name = place
        value = self.typed("p" if section == "properties" else "a", name)
        return None if value is None else canonical_text(value)


texts = st.sampled_from(TEXTS)
instants = st.sampled_from(TIMES)
far_instants = st.one_of(instants, st.sampled_from([-(2**63), 2**63 - 1, 2**62, 9_223_372_036_854_775]))
field_values: dict[str, st.SearchStrategy[Any]] = {
    "content_type": st.sampled_from([Symbol(text) for text in TEXTS if text.isascii() and text.isprintable()]),
    "group_sequence": st.sampled_from([UInt(n) for n in (0, 1, 5, 300, 2**32 - 1)]),
}
NUMBER_TEXTS = [text for text in TEXTS if re.fullmatch("[+-]?[0-9].*", text)]
CREATED = "creation_time"


@st.composite
def events(draw: st.DrawFn, about: Expression, *, far: bool = False) -> Event:
    """Draw an event that has something to do with an expression.

    Args:
        draw: Hypothesis's.
        about: its parts are what the event has; the texts of its literals are among its values.
        far: whether there are instants beyond microseconds too.
    """
    found = list(predicates_of(about))
    numbers = [value for predicate in found for value in predicate.values if isinstance(value, int)]
    sane = [number for number in numbers if -(2**63) <= number * 1000 < 2**63]
    times = far_instants if far else instants
    times = st.one_of(times, st.sampled_from(sane or TIMES).flatmap(lambda n: st.sampled_from([n, n, n - 1, n + 1])))
    literals = [str(value) for predicate in found for value in predicate.values]
    same = [text for text in literals if text in VALUES]
    any_text = st.one_of(st.sampled_from(same or TEXTS), st.sampled_from(NUMBER_TEXTS if literals else TEXTS), texts)
    any_value = any_text.flatmap(lambda text: st.sampled_from(VALUES[text]))
    properties: dict[str, Any] = {}
    applications: dict[str, Any] = {}
    for reference in dict.fromkeys(predicate.reference for predicate in found):
        place = ("properties", CREATED) if reference.kind is ReferenceKind.EVENT_TIME else place_of(reference)
        if place is None or not draw(st.integers(0, 4)):
            continue
        section, name = place
        if section != "properties":
            applications[name] = draw(any_value)
        elif name == CREATED:
            properties[name] = Timestamp(draw(times))
        elif name in ("subject", "group_id", "to"):
            properties[name] = draw(any_text)
        elif name == "message_id":
            properties[name] = draw(any_value.filter(lambda value: type(value) in (str, ULong, bytes, uuid.UUID)))
        else:
            properties[name] = draw(field_values[name])
    return Event(
        draw(st.sampled_from(OFFSETS)),
        draw(st.one_of(st.none(), times, times)),
        draw(st.one_of(st.none(), any_text)),
        draw(st.sampled_from(["0", "1"])),
        b"." * draw(st.integers(0, 3)),
        properties,
        applications,
    )


def predicates_of(expression: Expression) -> Iterator[Predicate]:
    """Yield an expression's predicates."""
    if isinstance(expression, Predicate):
        yield expression
        return
    for part in (expression.operand,) if isinstance(expression, Not) else expression.parts:
        yield from predicates_of(part)


references = st.one_of(
    st.sampled_from(PROPERTIES).map(property_of),
    st.sampled_from(FIELDS).map(lambda name: property_of(f"properties.{name}")),
    st.sampled_from([EVENT_TIME, PUBLISH_TIME, PUBLISH_TIME, PUBLISH_TIME, OFFSET, OFFSET, KEY, PARTITION, BODY_SIZE]),
)
patterns = st.builds(
    lambda head, wild, tail: head + wild + tail,
    st.sampled_from(ENDS),
    st.sampled_from(["%", "%", "_", "%%", "_%", "%a%", ""]),
    st.sampled_from(ENDS),
)
longs = st.one_of(
    st.sampled_from([*TIMES, 4, 6, 300, 16777217, 1234, -(2**63), 2**63 - 1, 10**10]), st.integers(-2, 11)
)
doubles = st.sampled_from([0.5, 1.5, -0.5, 0.1, 0.7, 5.0, 4.999999999, 1e16, 1e11, 1e-40, 1e300, -5.5, 99.5, 120000.0])
LISTS = (Operator.IN, Operator.NOT_IN, Operator.CONTAINS_ALL, Operator.CONTAINS_ANY, Operator.CONTAINS_NONE)


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    """Draw a predicate that makes sense."""
    reference = draw(references)
    operator = draw(st.sampled_from([*Operator, Operator.EQUALS, Operator.IN, Operator.LIKE]))
    if operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return Predicate(reference, operator)
    numeric = reference in (EVENT_TIME, PUBLISH_TIME, BODY_SIZE)
    of = draw(st.sampled_from([ValueType.LONG, ValueType.DOUBLE, *([] if numeric else [ValueType.STRING] * 3)]))
    of = ValueType.STRING if operator in (Operator.LIKE, Operator.NOT_LIKE) else of
    known = {ValueType.STRING: texts, ValueType.LONG: longs, ValueType.DOUBLE: doubles}[of]
    known = st.sampled_from([*OFFSETS, "", "0", "00000000000000000005x", "é"]) if reference == OFFSET else known
    known = patterns if operator in (Operator.LIKE, Operator.NOT_LIKE) else known
    known = {ValueType.LONG: longs, ValueType.DOUBLE: doubles}.get(of, known)
    count = draw(st.integers(1, 3)) if operator in LISTS else 2 if operator is Operator.BETWEEN else 1
    return Predicate(reference, operator, tuple(draw(known) for _ in range(count)), of)


sound = predicates().filter(lambda predicate: predicate_fault(predicate) is None)


def joins(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """Return expressions that join some of ``inner``."""
    parts = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(parts.map(all_of), parts.map(any_of), inner.map(negate))


expressions: st.SearchStrategy[Expression] = st.one_of(sound, st.recursive(sound, joins, max_leaves=6))
