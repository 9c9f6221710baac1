"""Event stream filters against a naive, event-by-event reading of the specification."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.errors import FilterError
from spark_streams.filters.predicates.conditions import bounds, freeze, mask
from spark_streams.filters.predicates.conditions import conjunction as of_all
from spark_streams.filters.predicates.event_streams import annotations_predicate, parse_sql
from spark_streams.offsets import equal_range, format_offset
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP

WIDTH = 3
ZEROS = "0" * (20 - WIDTH)
"""The beginning of the offsets of the first events; texts that begin so are tried among their last digits."""
OFFSET = "event-streams-offset"
TIMESTAMP = "event-streams-timestamp"
PARTITION = "event-streams-source-partition"

ends_of_offsets = st.one_of(
    st.integers(0, 999).map(lambda n: f"{n:0{WIDTH}d}"),
    st.sampled_from(["@earliest", "@latest", "", "0", "9", "1", "01", "0011", "00a", "1 ", "1/", "9:", "~", "é", "'"]),
    st.text(alphabet="0159@:/a'", max_size=5),
)
offset_texts = st.one_of(ends_of_offsets, ends_of_offsets.map(lambda text: ZEROS + text))
instants = st.one_of(st.integers(-5, 5), st.sampled_from([NO_TIMESTAMP, NO_TIMESTAMP + 1, 2**63 - 1]))
operands = st.one_of(
    st.tuples(st.just("field"), st.sampled_from([OFFSET, TIMESTAMP, PARTITION, "other"])),
    st.tuples(st.just("text"), offset_texts),
    st.tuples(st.just("integer"), instants),
)
SIGNS = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
atoms = st.one_of(st.booleans(), st.tuples(operands, st.sampled_from(list(SIGNS)), operands))
flat = st.lists(st.lists(atoms, min_size=1, max_size=4), min_size=1, max_size=4)
logs = st.lists(instants, max_size=30)


def render_operand(kind: str, value: Any, delimited: bool) -> str:
    if kind == "field":
        return f"d.[{value}]" if delimited else f"delivery_annotations.{value}"
    return str(value) if kind == "integer" else "'" + value.replace("'", "''") + "'"


def render_atom(atom: Any, delimited: bool) -> str:
    if isinstance(atom, bool):
        return str(atom).upper()
    left, sign, right = atom
    return f"{render_operand(*left, delimited)} {sign}{render_operand(*right, not delimited)}"


def render(terms: Any) -> str:
    return " OR ".join(" and ".join(render_atom(a, i % 2 == 0) for i, a in enumerate(term)) for term in terms)


def value_of(operand: Any, event: dict[str, Any]) -> Any:
    kind, value = operand
    return event.get(value) if kind == "field" else value


def holds(atom: Any, number: int, event: dict[str, Any], end: int) -> bool | None:
    if isinstance(atom, bool):
        return atom
    left, sign, right = atom
    for one, other, test in ((left, right, SIGNS[sign]), (right, left, lambda a, b: SIGNS[sign](b, a))):
        if one == ("field", OFFSET) and other in (("text", "@earliest"), ("text", "@latest")):
            # No offset stands between two events: place the word half a number below the first event above it.
            return bool(test(number, -0.5 if other[1] == "@earliest" else end - 0.5))
    a, b = value_of(left, event), value_of(right, event)
    if a is None or b is None or isinstance(a, str) != isinstance(b, str):
        return None
    return bool(SIGNS[sign](a, b))


def conjunction(values: list[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def disjunction(values: list[bool | None]) -> bool | None:
    if True in values:
        return True
    return None if None in values else False


@given(flat, logs, st.integers(0, 30), st.sampled_from([None, "0", "@latest", "@earliest", ZEROS + "001"]))
def test_mask_is_the_naive_evaluation_and_seek_skips_no_match(
    terms: Any, timestamps: list[int], end: int, partition: str | None
) -> None:
    events = [
        {OFFSET: format_offset(n), TIMESTAMP: None if t == NO_TIMESTAMP else t, PARTITION: partition}
        for n, t in enumerate(timestamps)
    ]
    naive = [
        disjunction([conjunction([holds(a, n, event, end) for a in term]) for term in terms]) is True
        for n, event in enumerate(events)
    ]
    predicate = freeze(parse_sql(render(terms)), next_offset=end, partition=partition)
    numbers = np.arange(len(events), dtype=np.int64)
    assert mask(predicate, numbers, np.array(timestamps, dtype=np.int64)).tolist() == naive
    first, stop = bounds(predicate)
    assert not any(naive[:first])
    assert not any(naive[stop:])


@given(
    st.dictionaries(st.just(OFFSET), offset_texts),
    st.dictionaries(st.just(TIMESTAMP), instants),
    logs,
    st.integers(0, 30),
)
def test_delivery_annotations_filter_is_the_sql_filter_with_strictly_greater(
    offsets: dict[str, str], times: dict[str, int], timestamps: list[int], end: int
) -> None:
    entries = {**offsets, **times}
    written = ["TRUE"] + [
        f"d.{name} > " + (str(v) if isinstance(v, int) else "'" + v.replace("'", "''") + "'")
        for name, v in entries.items()
    ]
    numbers = np.arange(len(timestamps), dtype=np.int64)
    column = np.array(timestamps, dtype=np.int64)
    one = freeze(annotations_predicate(entries), next_offset=end)
    other = freeze(parse_sql(" AND ".join(written)), next_offset=end)
    both = of_all([one, other])
    assert mask(one, numbers, column).tolist() == mask(other, numbers, column).tolist()
    assert mask(both, numbers, column).tolist() == mask(one, numbers, column).tolist()


@given(ends_of_offsets)
def test_texts_stand_where_text_order_puts_them_among_offsets(end: str) -> None:
    text, written = ZEROS + end, [format_offset(n) for n in range(10**WIDTH)]
    assert equal_range(text) == (
        next((n for n, o in enumerate(written) if o >= text), 10**WIDTH),
        next((n for n, o in enumerate(written) if o > text), 10**WIDTH),
    )


@given(ends_of_offsets)
def test_any_text_stands_between_the_offsets_below_and_above_it(text: str) -> None:
    first, end = equal_range(text)
    assert first == 0 or format_offset(first - 1) < text
    assert first == 10**20 or format_offset(first) >= text
    assert end == 0 or format_offset(end - 1) <= text
    assert end == 10**20 or format_offset(end) > text


@given(st.one_of(st.text(max_size=40), st.text(alphabet="dTRUEANDOR .'-=<>()[]1\n", max_size=40)))
def test_any_text_is_read_or_refused_at_a_column_within_it(text: str) -> None:
    try:
        parse_sql(text)
    except FilterError as fault:
        assert 1 <= fault.column <= len(text) + 1
        assert fault.reason
    else:
        assert re.search(r"true|false|[=<>]", text, re.IGNORECASE)
