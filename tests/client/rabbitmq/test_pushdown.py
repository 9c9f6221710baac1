"""What a broker leaves out and what is checked here are the whole filter together, whatever the broker lets through."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_streams.client import FilterValues, RangeRead
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
    ReferenceKind,
    ValueType,
    all_of,
    any_of,
    property_of,
)
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.log import ReferenceLog
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from spark_streams.server.rabbitmq.filter_values import Sought
from tests.client.rabbitmq.brokers import Broker, amqp, text
from tests.examples import examples
from tests.filters.trees import joins

STREAM = "mixed"
COUNT = 400
COLORS = ("red", "green", "blue", "5", "", None)
COLOR_NAMES = ("color", "application_properties.color")


def color_of(n: int) -> str | None:
    """Long runs of one color, and stretches that mix them."""
    return COLORS[random.Random(n).randrange(6)] if n // 50 % 2 else COLORS[n // 100]


def body_of(n: int) -> bytes:
    return b"%d" % n + b"." * (n % 7)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("log")
    with ReferenceLog(folder) as log, ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0)) as server:
        broker = Broker(server.rabbit_url, "door")
        with broker.peer() as peer:
            assert peer.create(STREAM) == 1
        for first in range(0, COUNT, 25):
            part = [(color_of(n), amqp(body_of(n), color_of(n))) for n in range(first, first + 25)]
            broker.publish_filtered(STREAM, part)
        yield broker


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    reference: Reference = draw(
        st.sampled_from([*map(property_of, COLOR_NAMES * 3), OFFSET, OFFSET, BODY_SIZE, PUBLISH_TIME, KEY, EVENT_TIME])
    )
    numbers = reference.kind in (ReferenceKind.BODY_SIZE, ReferenceKind.PUBLISH_TIME, ReferenceKind.EVENT_TIME)
    kind = draw(st.sampled_from([ValueType.LONG] if numbers else [ValueType.LONG, ValueType.STRING]))
    if kind is ValueType.LONG:
        value = st.integers(-2, 12) if reference == BODY_SIZE else st.integers(-5, COUNT + 5)
        values: st.SearchStrategy[object] = value
    elif reference == OFFSET:
        values = st.one_of(st.integers(0, COUNT).map(text), st.sampled_from(["", "0", "1", text(7)[:-1], "x"]))
    else:
        values = st.sampled_from(["red", "green", "blue", "5", "", "violet"])
    operators = [
        Operator.EQUALS, Operator.EQUALS, Operator.IN, Operator.IN, Operator.NOT_EQUALS, Operator.NOT_IN,
        Operator.GREATER_THAN, Operator.GREATER_THAN_EQUALS, Operator.LESS_THAN, Operator.BETWEEN, Operator.IS_NULL,
        Operator.IS_NOT_NULL, Operator.CONTAINS_ANY,
    ]  # fmt: skip
    operator = draw(st.sampled_from(operators))
    if operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return Predicate(reference, operator)
    few = operator in (Operator.IN, Operator.NOT_IN, Operator.CONTAINS_ANY)
    least, most = (1, 4) if few else (2, 2) if operator is Operator.BETWEEN else (1, 1)
    return Predicate(reference, operator, tuple(draw(st.lists(values, min_size=least, max_size=most))), kind)


@st.composite
def askable(draw: st.DrawFn) -> Predicate:
    """A predicate that becomes filter values."""
    colors = draw(st.lists(st.sampled_from(["red", "green", "blue", "5", "violet"]), min_size=1, max_size=3))
    name = property_of(draw(st.sampled_from(COLOR_NAMES)))
    if len(colors) == 1:
        return Predicate(name, Operator.EQUALS, tuple(colors), ValueType.STRING)
    return Predicate(name, Operator.IN, tuple(colors), ValueType.STRING)


whatever: st.SearchStrategy[Expression] = st.recursive(predicates(), joins, max_leaves=6)
expressions = st.one_of(
    whatever,
    askable(),
    st.lists(askable(), min_size=2, max_size=3).map(any_of),
    st.tuples(askable(), whatever).map(all_of),
    st.tuples(askable(), whatever).map(any_of),
)
starts = st.one_of(
    st.just(EARLIEST),
    st.integers(0, COUNT - 1).map(lambda n: At(text(n))),
    st.integers(0, 99).map(lambda n: After(text(n))),
)
ends = st.one_of(st.just(COUNT - 1), st.integers(0, COUNT - 1))


def expected(expression: Expression, start: Earliest | At | After, end: int, now: int) -> list[str]:
    """Row by row, of what was published."""

    def passes(n: int) -> bool:
        def lookup(reference: Reference) -> str | int | None:
            if reference.kind is ReferenceKind.PROPERTY:
                return color_of(n) if reference.name in COLOR_NAMES else None
            return {
                OFFSET: text(n), PARTITION: STREAM, BODY_SIZE: len(body_of(n)), PUBLISH_TIME: now,
                KEY: None, EVENT_TIME: None,
            }[reference]  # fmt: skip

        return evaluate(expression, lookup) is True

    first = 0 if isinstance(start, Earliest) else int(start.offset) + isinstance(start, After)
    return [text(n) for n in range(first, end + 1) if passes(n)]


@pytest.mark.parametrize("lets_through", ["what it should", "some more", "everything"])
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expression=expressions, start=starts, end=ends, unfiltered=st.booleans(), data=st.data())
def test_pushed_and_residual_are_the_whole(
    door: Broker,
    monkeypatch: pytest.MonkeyPatch,
    lets_through: str,
    expression: Expression,
    start: Earliest | At | After,
    end: int,
    unfiltered: bool,
    data: st.DataObject,
) -> None:
    if lets_through == "everything":
        monkeypatch.setattr(Sought, "may_match", lambda *_: True)
        monkeypatch.setattr(Sought, "rows", lambda *_: None)
    elif lets_through == "some more":
        chance = np.random.default_rng(data.draw(st.integers(0, 99)))
        original = _ROWS

        def rows(self: Sought, notes: object, count: int) -> object:
            found = original(self, notes, count)  # type: ignore[arg-type]
            return None if found is None else found | (chance.random(count) < 0.2)

        monkeypatch.setattr(Sought, "rows", rows)
    # The time of the chunks: any instant between them would do, as the values are far from it.
    now = 10**12
    place = FilterValues((), unfiltered, "application_properties.color")
    read = RangeRead(STREAM, STREAM, start, text(end), ("offset",), filter=expression)
    wanted = expected(expression, start, end, now)
    for filters in (place, None):
        with door.client(filters=filters) as client:
            batches = list(client.fetch(read))
            found = pa.Table.from_batches(batches)["offset"].to_pylist() if batches else []
            assert found == wanted
            if isinstance(start, Earliest) and end == COUNT - 1:
                assert client.first_matching(STREAM, STREAM, expression) == (wanted[0] if wanted else None)


_ROWS = Sought.rows
