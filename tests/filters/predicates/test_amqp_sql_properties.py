"""Full SQL filters in columns, against a slow model that looks at one value at a time and never moves a NOT."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.filters.predicates.conditions import by_cost, fields_of, freeze, mask
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.typed import timestamp_column, typed_columns
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS
from spark_streams.wire.amqp.values import (
    Byte,
    Char,
    Described,
    Float,
    Int,
    Pairs,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.examples import examples
from tests.wire.amqp.messages import Data, Message, encode_message

TEXTS = [
    "",
    "a",
    "b",
    "eu-west",
    "EU",
    "it's",
    "5",
    "5.0",
    "100%",
    "a_b",
    "ä",
    "\U0001f600",
    "a\nb",
    "x" * 300,
    "12345678",
]
NUMBERS = [0, 1, -1, 5, 2**31, -(2**31), 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 255, 97]
FLOATS = [0.0, -0.0, 0.5, 5.0, 2.0**53, 2.0**63, 1e300, -1e300, 5e-324]

texts = st.sampled_from(TEXTS)
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    texts,
    st.sampled_from([t for t in TEXTS if t.isascii()]).map(Symbol),
    st.sampled_from(NUMBERS),
    st.sampled_from([Byte(5), UByte(255), Short(-1), UShort(5), Int(-(2**31)), UInt(2**31), UInt(0), ULong(5)]),
    st.sampled_from([ULong(2**63 - 1), ULong(2**63), ULong(2**64 - 1), Timestamp(5), Timestamp(-1)]),
    st.sampled_from([*FLOATS, math.nan, math.inf, -math.inf]),
    st.sampled_from([Float(0.5), Float(0.1), Float(5)]),
    st.booleans(),
    st.sampled_from([b"", b"a", b"\xff\x00", b"eu-west"]),
    st.sampled_from([Char("a"), Char("\U0001f600"), uuid.UUID(int=7), uuid.UUID(bytes=b"eu-westeu-westab")]),
    st.sampled_from([[1, "a"], {"a": 1}, Described(Symbol("d"), "a")]),
)
NAMES = ["x", "kind", "a long name", "p]q", "[", "größe", "x.y", "12345678"]
names = st.sampled_from(NAMES)
FIELDS = ["message_id", "user_id", "subject", "creation_time", "group_sequence"]
PLACES = {"message_id": 0, "user_id": 1, "subject": 3, "creation_time": 9, "group_sequence": 11}


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """One event: what its sections hold, its number and its instant."""
    application = draw(st.one_of(st.none(), st.dictionaries(names, scalars, max_size=5)))
    annotations = draw(st.one_of(st.none(), st.dictionaries(st.sampled_from(["x", "x-opt-y"]), scalars, max_size=2)))
    properties = {
        "message_id": draw(st.sampled_from([None, "a", ULong(5), uuid.UUID(int=7), b"a"])),
        "user_id": draw(st.sampled_from([None, b"a", b"eu-west"])),
        "subject": draw(st.one_of(st.none(), texts)),
        "creation_time": draw(st.sampled_from([None, Timestamp(5), Timestamp(-1)])),
        "group_sequence": draw(st.sampled_from([None, UInt(5), UInt(0), UInt(2**32 - 1)])),
    }
    return {
        "a": application or {},
        "a_there": application is not None,
        "m": annotations or {},
        "p": properties,
        "p_there": draw(st.booleans()),
        "d": draw(st.sampled_from([NO_TIMESTAMP, -1, 0, 5, 2**53 + 1])),
        "twice": draw(st.integers(0, 9)) == 0,
    }


def encoded(event: dict[str, Any]) -> bytes:
    fields: list[Any] = [None] * 13
    for name, value in event["p"].items():
        fields[PLACES[name]] = value
    application: Any = event["a"] if event["a_there"] else None
    if application and event["twice"]:  # of equal keys the last one counts
        application = Pairs([(next(iter(application)), "first"), *application.items()])
    return encode_message(
        Message(
            message_annotations={Symbol(k): v for k, v in event["m"].items()} or None,
            properties=fields if event["p_there"] else None,
            application_properties=application,
            body=Data((b"body",)),
        )
    )


# --- the model: a condition is a function from an event to True, False or None

Condition = Callable[[dict[str, Any], int], Any]


def kind_of(value: Any) -> tuple[str, Any]:
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, Char):
        return "number", Fraction(ord(value))
    if isinstance(value, str):
        return "text", value.encode()
    if isinstance(value, bytes):
        return "text", bytes(value)
    if isinstance(value, uuid.UUID):
        return "text", value.bytes
    if isinstance(value, float) and not math.isfinite(value):
        return "number", float(value)
    if isinstance(value, Float):
        return "number", Fraction(float(np.float32(value)))
    if isinstance(value, (int, float)):
        return "number", Fraction(value)
    return "other", None


def compared(left: Any, sign: str, right: Any) -> Any:
    if left is None or right is None:
        return None
    (one, a), (two, b) = kind_of(left), kind_of(right)
    if one != two or one == "other" or (one == "boolean" and sign not in ("=", "<>")):
        return sign == "<>"
    if one == "number" and any(isinstance(n, float) for n in (a, b)):
        a, b = float(a), float(b)
    signs: dict[str, Callable[[], bool]] = {
        "=": lambda: a == b,
        "<>": lambda: not a == b,  # noqa: SIM201 - of NaN too
        "<": lambda: a < b,
        "<=": lambda: a <= b,
        ">": lambda: a > b,
        ">=": lambda: a >= b,
    }
    return signs[sign]()


def negated(answer: Any) -> Any:
    return None if answer is None else not answer


def both(answers: list[Any]) -> Any:
    return "undecodable" if "undecodable" in answers else False if False in answers else None not in answers or None


def either(answers: list[Any]) -> Any:
    return "undecodable" if "undecodable" in answers else True in answers or (None if None in answers else False)


def is_like(value: Any, pattern: str, escape: str | None) -> Any:
    if value is None or kind_of(value)[0] != "text":
        return None
    parts, at = [], 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": "(?:.|\n)*", "_": "(?:.|\n)"}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    raw = kind_of(value)[1]
    try:
        return re.fullmatch("".join(parts), raw.decode()) is not None
    except UnicodeDecodeError:
        return "undecodable"  # by bytes, or unknown: not compared


# --- texts of filters, each with its model

literals: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    texts.map(lambda t: ("'" + t.replace("'", "''") + "'", t)),
    texts.map(lambda t: ('"' + t.replace('"', '""') + '"', t)),
    st.sampled_from(NUMBERS).map(lambda n: (str(n), n)),
    st.sampled_from([f for f in FLOATS if f in (0.0, 0.5, 5.0, 2.0**53)]).map(lambda f: (f"{f:.1f}", f)),
    st.sampled_from([("1.5E2", 150.0), ("5E-1", 0.5), ("18446744073709551615", 2**64 - 1), ("+5", 5)]),
    st.sampled_from([("TRUE", True), ("false", False), ("0x61", b"a"), ("0xff00", b"\xff\x00")]),
)


@st.composite
def fields(draw: st.DrawFn) -> tuple[str, Callable[[dict[str, Any], int], Any]]:
    section = draw(st.sampled_from(["a", "a", "a", "m", "p", "d", "h"]))
    if section == "a":
        name = draw(names)
        delimited = "[" + name.replace("[", "[[").replace("]", "]]") + "]"
        plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None
        spellings = [delimited, f"a.{delimited}", f"application_properties.{delimited}"]
        text = draw(st.sampled_from([*spellings, *([name, f"a.{name}"] if plain else [])]))
        return text, lambda event, n: event["a"].get(name)
    if section == "m":
        name = draw(st.sampled_from(["x", "x-opt-y", "nope"]))
        return f"m.[{name}]", lambda event, n: event["m"].get(name)
    if section == "p":
        name = draw(st.sampled_from(FIELDS))
        text = draw(st.sampled_from([f"p.{name}", f"properties.[{name.replace('_', '-')}]"]))
        return text, lambda event, n: event["p"][name] if event["p_there"] else None
    if section == "d":
        return draw(
            st.sampled_from(
                [
                    ("d.event-streams-timestamp", lambda event, n: None if event["d"] == NO_TIMESTAMP else event["d"]),
                    ("d.[event-streams-offset]", lambda event, n: f"{n:020d}"),
                    ("d.event-streams-source-partition", lambda event, n: "0"),
                    ("delivery_annotations.nope", lambda event, n: None),
                ]
            )
        )
    return draw(st.sampled_from([("h.priority", lambda event, n: 4), ("header.ttl", lambda event, n: None)]))


MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@st.composite
def single(draw: st.DrawFn) -> tuple[str, Condition]:
    text, value = draw(fields())
    shape = draw(st.sampled_from(["compare", "mirrored", "null", "in", "like", "constants"]))
    if shape == "null":
        wanted = draw(st.booleans())
        return f"{text} IS {'' if wanted else 'NOT '}NULL", lambda e, n: (value(e, n) is None) is wanted
    if shape == "in":
        chosen = draw(st.lists(literals, min_size=1, max_size=12))
        wanted = draw(st.booleans())
        word = "IN" if wanted else "NOT IN"
        return (
            f"{text} {word} ({', '.join(t for t, _ in chosen)})",
            lambda e, n: keep(either([compared(value(e, n), "=", v) for _, v in chosen]), wanted),
        )
    if shape == "like" and not text.startswith("d"):
        pattern = draw(
            st.sampled_from(["%", "_", "eu%", "%west", "%-%", "a_b", "eu-west", "", "%e%w%", "100!%", "!_%"])
        )
        escape = draw(st.sampled_from(["!"])) if "!" in pattern else draw(st.sampled_from([None, "!"]))
        wanted = draw(st.booleans())
        ending = f" ESCAPE '{escape}'" if escape else ""
        return (
            f"{text} {'' if wanted else 'NOT '}LIKE '{pattern}'{ending}",
            lambda e, n: keep(is_like(value(e, n), pattern, escape), wanted),
        )
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    written = "!=" if sign == "<>" and draw(st.booleans()) else sign
    right, constant = draw(literals)
    if shape == "constants":
        left, other = draw(literals)
        return f"{left} {written} {right}", lambda e, n: compared(other, sign, constant)
    if shape == "mirrored":
        return f"{right}{written}{text}", lambda e, n: compared(value(e, n), MIRRORED[sign], constant)
    return f"{text} {written} {right}", lambda e, n: compared(value(e, n), sign, constant)


def keep(answer: Any, wanted: bool) -> Any:
    return answer if wanted or answer == "undecodable" else negated(answer)


def joined(inner: st.SearchStrategy[tuple[str, Condition]]) -> st.SearchStrategy[tuple[str, Condition]]:
    def join(word: str, combine: Callable[[list[Any]], Any]) -> st.SearchStrategy[tuple[str, Condition]]:
        return st.lists(inner, min_size=2, max_size=3).map(
            lambda parts: (
                f" {word} ".join(f"({text})" for text, _ in parts),
                lambda e, n: combine([condition(e, n) for _, condition in parts]),
            )
        )

    def negate(part: tuple[str, Condition]) -> tuple[str, Condition]:
        return f"not ({part[0]})", lambda e, n: keep(part[1](e, n), False)

    return st.one_of(join("AND", both), join("or", either), inner.map(negate))


filters = st.recursive(single(), joined, max_leaves=6)


def matching(text: str, events: list[dict[str, Any]]) -> list[bool]:
    """Evaluate as a cursor of the door does."""
    raw = [encoded(event) for event in events]
    ends = np.cumsum([len(each) for each in raw])
    starts = ends - np.array([len(each) for each in raw])
    offsets, instants = np.arange(len(events)), np.array([event["d"] for event in events], np.int64)
    predicate = freeze(parse_amqp_sql(text), next_offset=len(events), partition="0")
    wanted = fields_of(predicate)
    columns = typed_columns(
        MessageBlock(b"".join(raw), starts, ends), [f for f in wanted if f.section != DELIVERY_ANNOTATIONS]
    )
    columns |= {field: timestamp_column(instants) for field in wanted - columns.keys()}
    whole = mask(predicate, offsets, instants, columns)
    quick, deep = (mask(part, offsets, instants, columns) for part in by_cost(predicate))
    assert (whole == (quick & deep)).all()
    return list(whole)


@settings(max_examples=examples(400), deadline=None)
@given(filters, st.lists(messages(), min_size=1, max_size=8), st.booleans())
def test_columns_agree_with_the_model(
    condition: tuple[str, Condition], events: list[dict[str, Any]], many: bool
) -> None:
    text, model = condition
    events = events * 4 if many else events  # few messages are decoded one by one, many in lockstep
    found = matching(text, events)
    for number, event in enumerate(events):
        expected = model(event, number)
        if expected != "undecodable":
            assert bool(found[number]) is (expected is True), (text, event)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from("ax.p[]()'\"=<>!%_,-+5 \n"), max_size=30) | st.text(max_size=20))
def test_any_text_is_read_or_refused_with_a_column(text: str) -> None:
    from spark_streams.errors import FilterError

    try:
        parse_amqp_sql(text)
    except FilterError as fault:
        assert fault.column is not None and 1 <= fault.column <= len(text) + 1
