"""What is pushed and what remains are together the whole filter, whatever the target and however it reads its words.

Every target is played by a model of its own semantics; no model knows anything of the splitter.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.filters.predicates.conditions import fields_of, freeze, mask
from spark_streams.filters.predicates.event_streams import parse_sql
from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp
from spark_streams.filters.targets.feed import split_for_feed
from spark_streams.filters.targets.rabbitmq import split_for_rabbitmq
from spark_streams.filters.text import parse
from spark_streams.filters.tree import (
    KEY,
    Expression,
    Operator,
    Predicate,
    Reference,
    ValueType,
    property_of,
    without_not,
)
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS
from spark_streams.wire.amqp.columns.typed import typed_columns
from spark_streams.wire.amqp.values import ULong
from tests.examples import examples
from tests.filters.events import TEXTS, VALUES, Event, events, expressions
from tests.filters.sql_peers import Parsed, Peer, passes
from tests.wire.amqp.messages import Data, Message, encode_message

EXAMPLES = examples(300)
IDENTIFIERS = (str, ULong, bytes, uuid.UUID)
"""The types of message ids."""


def about(expression: Expression, *, far: bool = False) -> st.SearchStrategy[tuple[Expression, list[Event]]]:
    """Return an expression with events that have to do with it."""
    return st.tuples(st.just(expression), st.lists(events(expression, far=far), min_size=3, max_size=6))


cases = expressions.flatmap(about)
far_cases = expressions.flatmap(lambda expression: about(expression, far=True))
"""The same with instants beyond microseconds: filters compare milliseconds, whatever a row can show."""
Case = tuple[Expression, list[Event]]
readings = st.tuples(
    st.sampled_from([KEY, property_of("application_properties.x"), property_of("properties.subject")]),
    st.sampled_from([0, 2, 1]),
)
"""Where publishers have filter values from; one in how many other values a Bloom filter lets through."""


def same(expression: Expression, residual: Expression | None, event: Event, delivered: bool) -> None:
    """Check that an event is read if and only if the whole filter is true of it."""
    read = delivered and (residual is None or evaluate(residual, event.text) is True)
    assert read is (evaluate(expression, event.text) is True)


@given(cases)
@settings(max_examples=EXAMPLES, deadline=None)
def test_without_not_says_the_same(case: Case) -> None:
    expression, drawn = case
    normal = without_not(expression)
    for event in drawn:
        assert evaluate(normal, event.text) is evaluate(expression, event.text)


@given(far_cases)
@settings(max_examples=EXAMPLES, deadline=None)
def test_event_streams(case: Case) -> None:
    expression, drawn = case
    split = split_for_amqp(expression, AmqpCapability(True, False))
    assert split.sql is None
    sql = None if split.event_streams_sql is None else Parsed(split.event_streams_sql, flat=True)
    if split.event_streams_sql is not None:
        parse_sql(split.event_streams_sql)  # the log's own door takes it too
    for event in drawn:
        beyond = all(above(event, name, bound) for name, bound in (split.annotations or {}).items())
        for peer in Peer:
            delivered = beyond and (sql is None or passes(peer, sql, event.typed))
            same(expression, split.residual, event, delivered)


def above(event: Event, name: str, bound: str | int) -> bool:
    """Play the delivery annotations filter: the value is greater; one that is missing is not."""
    value = event.typed("d", name)
    return value is not None and isinstance(value, str) is isinstance(bound, str) and bool(value > bound)


@pytest.mark.parametrize("as_rabbitmq", [False, True], ids=["types of the draft", "types of RabbitMQ"])
@given(far_cases)
@settings(max_examples=EXAMPLES, deadline=None)
def test_full_sql(as_rabbitmq: bool, case: Case) -> None:
    expression, drawn = case
    split = split_for_amqp(expression, AmqpCapability(False, True, as_rabbitmq))
    assert split.annotations is split.event_streams_sql is None
    sql = None if split.sql is None else Parsed(split.sql)
    for event in drawn:
        for peer in [Peer.RABBITMQ] if as_rabbitmq else Peer:
            same(expression, split.residual, event, sql is None or passes(peer, sql, event.typed))


@given(cases, readings)
@settings(max_examples=EXAMPLES, deadline=None)
def test_rabbitmq_streams(case: Case, reading: tuple[Reference, int]) -> None:
    (expression, drawn), (value_from, false_positives) = case, reading
    split = split_for_rabbitmq(expression, value_from)
    assert split.values is None or (split.values and "" not in split.values)
    for event in drawn:
        delivered = split.first_offset is None or int(event.offset) >= split.first_offset
        if split.values is not None:
            value = event.text(value_from)
            known = value not in (None, "") and value in split.values
            delivered = delivered and (known or by_accident(str(value), false_positives))
        same(expression, split.residual, event, delivered)


def by_accident(value: str, one_in: int) -> bool:
    """Say whether a Bloom filter lets a value through that is not wanted."""
    return one_in > 0 and zlib.crc32(value.encode()) % one_in == 0


@given(cases)
@settings(max_examples=EXAMPLES, deadline=None)
def test_feeds(case: Case) -> None:
    expression, drawn = case
    fields = {"key": KEY, "thing": property_of("x"), "subject": property_of("properties.subject")}
    split = split_for_feed(expression, fields)
    for event in drawn:
        delivered = all(event.text(fields[name]) == value for name, value in split.filters.items())
        same(expression, split.residual, event, delivered)


def predicates_about_texts() -> Iterator[Predicate]:
    """Yield tests of an application property and of a message id with every text, its beginnings and its ends."""
    for name in ("x", "properties.message_id"):
        place = property_of(name)
        for text in TEXTS:
            yield Predicate(place, Operator.EQUALS, (text,), ValueType.STRING)
            yield Predicate(place, Operator.IN, (text, "other"), ValueType.STRING)
            for count in range(min(len(text), 4) + 1):
                for pattern in (text[:count] + "%", "%" + text[len(text) - count :], text[:count] + "_%", text + "%"):
                    yield Predicate(place, Operator.LIKE, (pattern,), ValueType.STRING)
    for number in (0, 1, 5, -5, 9, 1234, 16777217, 10**11, 2**63 - 1, 0.1, 0.7, 1.5, 0.5, 1e16, 1e11, -0.5):
        of = ValueType.LONG if isinstance(number, int) else ValueType.DOUBLE
        for operator in (
            Operator.EQUALS,
            Operator.GREATER_THAN,
            Operator.LESS_THAN_EQUALS,
            Operator.GREATER_THAN_EQUALS,
        ):
            yield Predicate(property_of("x"), operator, (number,), of)


def test_no_value_of_any_type_is_lost() -> None:
    values = [value for text in TEXTS for value in VALUES[text]]
    here = [Event("0", 5, properties={"message_id": value}, application_properties={"x": value}) for value in values]
    asked = 0
    for predicate in dict.fromkeys(predicates_about_texts()):
        matching = [
            event
            for event in here
            if evaluate(predicate, event.text) is True
            and (predicate.reference.name == "x" or type(event.properties["message_id"]) in IDENTIFIERS)
        ]
        for as_rabbitmq in (False, True):
            split = split_for_amqp(predicate, AmqpCapability(False, True, as_rabbitmq))
            if split.sql is None or not matching:
                continue
            asked += 1
            parsed = Parsed(split.sql)
            for event in matching:
                for peer in [Peer.RABBITMQ] if as_rabbitmq else Peer:
                    assert passes(peer, parsed, event.typed), (predicate, split.sql, event, peer)
            if as_rabbitmq:
                assert all(at_our_door(split.sql, matching)), (predicate, split.sql)
    assert asked > 300


def test_a_filter_that_forgets_a_type_is_found_out() -> None:
    event = Event("0", 5, application_properties={"x": 5})
    pushed = passes(Peer.RABBITMQ, Parsed("a.x = '5'"), event.typed)
    with pytest.raises(AssertionError):
        same(parse("x = '5'"), None, event, pushed)


@given(cases)
@settings(max_examples=EXAMPLES, deadline=None)
def test_full_sql_at_the_door_of_our_log(case: Case) -> None:
    expression, drawn = case
    split = split_for_amqp(expression, AmqpCapability(False, True, rabbitmq_types=True))
    delivered = [True] * len(drawn) if split.sql is None else at_our_door(split.sql, drawn)
    for event, passed in zip(drawn, delivered, strict=True):
        same(expression, split.residual, event, passed)


def at_our_door(sql: str, drawn: list[Event]) -> list[bool]:
    """Return what the log's own evaluation of full SQL says of the encoded messages."""
    predicate = freeze(parse_amqp_sql(sql), next_offset=0)
    encoded = [encode_message(message_of(event)) for event in drawn]
    ends = np.cumsum([len(each) for each in encoded]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    columns = typed_columns(MessageBlock(b"".join(encoded), starts, ends), fields_of(predicate))
    numbers = np.zeros(len(drawn), np.int64)
    return list(map(bool, mask(predicate, numbers, numbers, columns)))


def message_of(event: Event) -> Message:
    """Return an event as it is stored."""
    fields = [event.properties.get(name) for name, _ in PROPERTY_FIELDS]
    return Message(properties=fields, application_properties=event.application_properties, body=Data((event.body,)))
