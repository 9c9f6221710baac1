"""``@earliest`` and ``@latest`` are positions to a peer and plain texts to the language: they never meet."""

from __future__ import annotations

import pytest

from spark_streams.filters import parse
from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp


@pytest.mark.parametrize("word", ["@earliest", "@latest"])
@pytest.mark.parametrize("test", ["> {}", ">= {}", "< {}", "= {}", "<> {}", "IN ('x', {})", "BETWEEN {} AND 'x'"])
def test_reserved_words_are_not_pushed_as_offsets(word: str, test: str) -> None:
    expression = parse(f"offset {test.format(repr(word))}")
    split = split_for_amqp(expression, AmqpCapability(event_streams=True, filtex_sql=True))
    assert (split.annotations, split.event_streams_sql, split.sql) == (None, None, None)
    assert split.residual == expression


def test_another_text_is_pushed() -> None:
    split = split_for_amqp(parse("offset > '@later'"), AmqpCapability(event_streams=True, filtex_sql=False))
    assert split.annotations == {"event-streams-offset": "@later"}
    assert split.residual is None
