"""The model of RabbitMQ's SQL filters is RabbitMQ: its own code says the same of what the splitter writes.

The broker's own modules parse each text and evaluate it on each encoded message, in ``rabbitmqctl eval``; so one run
looks at thousands of messages, with values of types that cannot be delivered too.
"""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp
from tests.filters.sql_peers import Parsed, Peer, passes
from tests.filters.test_split import Case, cases, message_of
from tests.real_rabbitmq.conftest import kept, shared
from tests.wire.amqp.messages import encode_message

pytestmark = pytest.mark.rabbitmq

BATCH_CHARACTERS = 60_000
"""Of one command line; Linux takes 128 KiB in one argument."""
ASK = """
Ask = fun([Sql | Messages]) ->
    {ok, Parsed} = rabbit_amqp_filter_sql:parse(
        {described, {symbol, <<"amqp:sql-filter">>}, {utf8, base64:decode(Sql)}}),
    [case rabbit_amqp_filter:eval({sql, Parsed}, mc_amqp:init_from_stream(base64:decode(Each), #{})) of
        true -> $T; false -> $F end || Each <- Messages] end,
lists:append(lists:map(Ask, [%s])).
"""


@pytest.fixture(autouse=True)
def knows_sql(rabbitmq_url: str) -> None:
    """Skip where the broker is another's, or too old."""
    version = kept(shared().folder)["version"]
    if tuple(int(part) for part in version.split(".")[:2]) < (4, 2):
        pytest.skip(f"RabbitMQ {version} has no SQL filters: they came with 4.2")


@pytest.mark.parametrize("examples", [40, pytest.param(700, marks=pytest.mark.nightly)])
def test_rabbitmq_says_what_its_model_says_and_nothing_is_lost(examples: int) -> None:
    asked: list[str] = []
    expected: list[tuple[str, object, bool, bool, bool]] = []

    @given(cases)
    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def collect(case: Case) -> None:
        expression, drawn = case
        for as_rabbitmq in (False, True):
            split = split_for_amqp(expression, AmqpCapability(False, True, as_rabbitmq))
            if split.sql is None:
                continue
            parsed = Parsed(split.sql)
            asked.append(", ".join(quoted(each) for each in (split.sql.encode(), *map(encoded, drawn))))
            for event in drawn:
                remains = split.residual is None or evaluate(split.residual, event.text) is True
                whole = evaluate(expression, event.text) is True
                expected.append((split.sql, event, passes(Peer.RABBITMQ, parsed, event.typed), remains, whole))

    collect()
    answers = "".join(map(answer, batches(asked)))
    assert len(answers) == len(expected) > examples
    for said, (sql, event, model, remains, whole) in zip(answers, expected, strict=True):
        assert (said == "T") is model, (sql, event)
        assert (said == "T" and remains) is whole, (sql, event)
    assert {"T", "F"} == set(answers)


def encoded(event: object) -> bytes:
    return encode_message(message_of(event))  # type: ignore[arg-type]


def quoted(content: bytes) -> str:
    return f'<<"{base64.b64encode(content).decode()}">>'


def batches(asked: list[str]) -> list[list[str]]:
    """Return what is asked in lists that fit a command line."""
    found: list[list[str]] = [[]]
    length = 0
    for each in asked:
        if length + len(each) > BATCH_CHARACTERS:
            found.append([])
            length = 0
        found[-1].append(f"[{each}]")
        length += len(each) + 4
    return found


def answer(batch: list[str]) -> str:
    """Have the broker evaluate; return T or F for each message."""
    said = shared().control("eval", ASK % ", ".join(batch))
    return "".join(re.findall("[TF]", "".join(re.findall('"([TF]*)"', said))))
