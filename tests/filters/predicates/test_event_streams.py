"""The event stream filters: grammar, where errors point, what matches."""

from __future__ import annotations

import time

import numpy as np
import pytest

from spark_streams.errors import FilterError
from spark_streams.filters.predicates.conditions import NEVER, Condition, bounds, conjunction, freeze, mask
from spark_streams.filters.predicates.event_streams import annotations_predicate, parse_sql
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP

COUNT = 12
TIMESTAMPS = np.array([100, 200, 150, -1, 0, -386380800000, NO_TIMESTAMP, 300, 300, 50, 400, 400], dtype=np.int64)


def offset(number: int) -> str:
    return f"{number:020d}"


def matches(predicate: Condition, next_offset: int = COUNT, partition: str | None = None) -> list[int]:
    frozen = freeze(predicate, next_offset=next_offset, partition=partition)
    found = mask(frozen, np.arange(COUNT, dtype=np.int64), TIMESTAMPS)
    assert found.dtype == np.bool_
    return [int(n) for n in np.flatnonzero(found)]


def sql(text: str, next_offset: int = COUNT, partition: str | None = None) -> list[int]:
    return matches(parse_sql(text), next_offset, partition)


EVERY = list(range(COUNT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRUE", EVERY),
        ("true", EVERY),
        ("FALSE", []),
        (" \t\r\n TRUE \n", EVERY),
        ("TRUE AND FALSE", []),
        ("TRUE OR FALSE", EVERY),
        ("FALSE AND FALSE OR TRUE", EVERY),
        ("TRUE OR FALSE AND FALSE", EVERY),  # AND binds tighter
        ("FALSE OR TRUE AND TRUE", EVERY),
        ("FALSE or TRUE and FALSE", []),
        ("1 = 1", EVERY),
        ("1 <> 1", []),
        ("'a' < 'b'", EVERY),
        ("1 = '1'", []),  # a number and a text: unknown
        ("1 <> '1'", []),
        ("'it''s' = 'it''s'", EVERY),
        ("'' = ''''", []),
        ("'it''s' = \"it's\"", EVERY),  # FILTEX takes either quote
        ('"""" = \'"\'', EVERY),
        (f"d.event-streams-offset = '{offset(3)}'", [3]),
        (f"d.event-streams-offset <> '{offset(3)}'", [n for n in EVERY if n != 3]),
        (f"d.event-streams-offset != '{offset(3)}'", [n for n in EVERY if n != 3]),
        (f"d.event-streams-offset > '{offset(9)}'", [10, 11]),
        (f"d.event-streams-offset >= '{offset(9)}'", [9, 10, 11]),
        (f"d.event-streams-offset < '{offset(2)}'", [0, 1]),
        (f"d.event-streams-offset <= '{offset(2)}'", [0, 1, 2]),
        (f"'{offset(9)}' < d.event-streams-offset", [10, 11]),
        (f"'{offset(9)}' <= d.event-streams-offset", [9, 10, 11]),
        (f"d.[event-streams-offset]>'{offset(9)}'", [10, 11]),
        (f"delivery_annotations.event-streams-offset>'{offset(9)}'", [10, 11]),
        (f"delivery_annotations.[event-streams-offset]>'{offset(9)}'", [10, 11]),
        (f"d.event-streams-offset > '{offset(2)}' AND d.event-streams-offset <= '{offset(4)}'", [3, 4]),
        (f"d.event-streams-offset < '{offset(1)}' OR d.event-streams-offset > '{offset(10)}'", [0, 11]),
        (
            f"d.event-streams-offset = '{offset(1)}' OR d.event-streams-offset > '{offset(5)}' "
            "AND d.event-streams-timestamp >= 300 OR FALSE",
            [1, 7, 8, 10, 11],
        ),
        ("d.event-streams-offset = d.event-streams-offset", EVERY),
        ("d.event-streams-offset < d.event-streams-offset", []),
        ("d.event-streams-offset <> d.event-streams-timestamp", []),  # a text and a number: unknown
        ("d.event-streams-offset > 3", []),
        ("d.event-streams-timestamp > '3'", []),
        ("d.event-streams-timestamp > 300", [10, 11]),
        ("d.event-streams-timestamp >= 300", [7, 8, 10, 11]),
        ("300 = d.event-streams-timestamp", [7, 8]),
        ("d.event-streams-timestamp <> 300", [0, 1, 2, 3, 4, 5, 9, 10, 11]),  # no timestamp: unknown, not different
        ("d.event-streams-timestamp < 0", [3, 5]),
        ("d.event-streams-timestamp <= -1", [3, 5]),
        ("d.event-streams-timestamp = -386380800000", [5]),
        ("d.event-streams-timestamp>=-9223372036854775808", [n for n in EVERY if n != 6]),
        ("d.event-streams-timestamp = -9223372036854775808", []),  # the sentinel in the column is no instant
        ("d.event-streams-timestamp <= 9223372036854775807", [n for n in EVERY if n != 6]),
        ("d.event-streams-timestamp = d.event-streams-timestamp", [n for n in EVERY if n != 6]),
        ("d.event-streams-timestamp <> d.event-streams-timestamp", []),
        ("d.event-streams-timestamp = 000000000000000000000000300", [7, 8]),
        ("d.event-streams-timestamp = -0", [4]),
        ("d.something-else = 1", []),
        ("d.something-else <> 1", []),
        ("d.something-else = d.something-else", []),
        ("d.something-else = 1 OR TRUE", EVERY),
        ("d.something-else = 1 AND TRUE", []),
        ("d.[a ]] name] = 1 OR TRUE", EVERY),
    ],
)
def test_sql_matches(text: str, expected: list[int]) -> None:
    assert sql(text) == expected


@pytest.mark.parametrize(
    ("op", "earliest", "latest"),
    [
        (">", EVERY, [7, 8, 9, 10, 11]),
        (">=", EVERY, [7, 8, 9, 10, 11]),
        ("<", [], [0, 1, 2, 3, 4, 5, 6]),
        ("<=", [], [0, 1, 2, 3, 4, 5, 6]),
        ("=", [], []),
        ("<>", EVERY, EVERY),
    ],
)
def test_reserved_offsets_stand_below_and_above_what_there_was(op: str, earliest: list[int], latest: list[int]) -> None:
    """@latest is the end of the log at the moment of freezing (A-8); events from 7 on were added later."""
    assert sql(f"d.event-streams-offset {op} '@earliest'", next_offset=7) == earliest
    assert sql(f"d.event-streams-offset {op} '@latest'", next_offset=7) == latest


def test_reserved_offsets_are_ordinary_texts_beside_anything_but_the_offset() -> None:
    assert sql("'@latest' > '@earliest'") == EVERY
    assert sql("d.event-streams-source-partition < '@latest'", partition="7") == EVERY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d.event-streams-source-partition = '3'", EVERY),
        ("'3' <> d.event-streams-source-partition", []),
        ("d.event-streams-source-partition >= '2'", EVERY),
        ("d.event-streams-source-partition = 3", []),
        ("d.event-streams-source-partition = d.event-streams-source-partition", EVERY),
        ("d.event-streams-offset < d.event-streams-source-partition", EVERY),
        ("d.event-streams-timestamp = d.event-streams-source-partition", []),
    ],
)
def test_source_partition_is_a_constant_of_the_partition(text: str, expected: list[int]) -> None:
    assert sql(text, partition="3") == expected
    assert sql(text, partition=None) == []


@pytest.mark.parametrize("partition", ["@latest", "@earliest"])
def test_a_partition_may_be_called_like_a_reserved_offset(partition: str) -> None:
    """Digits are below '@': as a text each offset is below the partition's name, whatever the reserved word means."""
    assert sql("d.event-streams-offset < d.event-streams-source-partition", next_offset=3, partition=partition) == EVERY
    assert sql("d.event-streams-source-partition < d.event-streams-offset", next_offset=3, partition=partition) == []
    assert sql(f"d.event-streams-source-partition = '{partition}'", partition=partition) == EVERY


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "empty"),
        ("   ", 4, "empty"),
        ("(TRUE)", 1, "parentheses"),
        ("TRUE AND (FALSE OR TRUE)", 10, "parentheses"),
        ("TRUE )", 6, "parentheses"),
        ("NOT TRUE", 1, "NOT"),
        ("d.x IN (1)", 5, "IN"),
        ("d.x LIKE 'a'", 5, "LIKE"),
        ("d.x IS NULL", 5, "IS"),
        ("d.x = NULL", 7, "NULL"),
        ("d.x = 1.5", 8, "decimal"),
        ("d.x = 0x1f", 8, "decimal"),
        ("d.x = 1e5", 8, "decimal"),
        ("d.x = 1 + 1", 9, "arithmetic"),
        ("d.x = +1", 7, "arithmetic"),
        ("d.x = - 1", 7, "digits"),
        ("d.x = UTC()", 7, "expected"),
        ("d.x", 4, "expected one of"),
        ("d.x =", 6, "expected"),
        ("d.x == 1", 6, "expected"),
        ("d.x =! 1", 6, "expected"),
        ("d.x = 1 AND", 12, "expected"),
        ("d.x = 1 AND AND TRUE", 13, "expected"),
        ("OR TRUE", 1, "expected"),
        ("TRUE TRUE", 6, "AND, OR"),
        ("TRUEAND FALSE", 1, "expected"),
        ("TRUE = TRUE", 6, "AND, OR"),
        ("1 = TRUE", 5, "expected"),
        ("d.x = 'abc", 7, "not closed"),
        ("d.x = 'abc''", 7, "not closed"),
        ("d.x = 'a' AND d.x = 'it''s ''", 21, "not closed"),
        ("d.[x = 1", 3, "not closed"),
        ('d.x = "abc', 7, "not closed"),
        ("d.x = 'abc\"", 7, "not closed"),
        ("d x", 2, "expected '.'"),
        ("d. x = 1", 3, "name"),
        ("d.5 = 1", 3, "name"),
        ("event-streams-offset > 'x'", 1, "expected"),
        ("p.subject = 'x'", 1, "only delivery annotations"),
        ("m.event-streams-group-key = 'x'", 1, "only delivery annotations"),
        ("d.x = 9223372036854775808", 7, "64 bits"),
        ("d.x = -9223372036854775809", 7, "64 bits"),
        ("d.x = " + "9" * 5000, 7, "64 bits"),
        ("d.x = '1' ; DROP", 11, "AND, OR"),
        ("d.x\u00a0= 1", 4, "expected one of"),
        ("TRUE\x00", 5, "AND, OR"),
        ("d.x = \u0661", 7, "expected"),
    ],
)
def test_sql_errors_point_at_the_fault(text: str, column: int, reason: str) -> None:
    with pytest.raises(FilterError) as fault:
        parse_sql(text)
    assert fault.value.column == column
    assert reason in fault.value.reason
    assert fault.value.text == text


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "TRUE AND " * 10_000 + "TRUE",
        "FALSE OR TRUE AND " * 10_000 + "TRUE",
        " OR ".join(f"d.event-streams-offset = '{offset(n)}'" for n in range(MEGABYTE // 60)),
        " AND ".join(f"d.event-streams-timestamp <> {n}" for n in range(MEGABYTE // 45)),
        "d.x = '" + "''" * (MEGABYTE // 2) + "'",
        "d.[" + "]]" * (MEGABYTE // 2) + "] = 1",
        " " * MEGABYTE + "TRUE",
        "d.event-streams-timestamp = " + "0" * MEGABYTE,
    ],
    ids=["and", "or-and", "offsets", "timestamps", "quotes", "brackets", "blanks", "zeros"],
)
def test_a_megabyte_is_read_quickly(text: str) -> None:
    begun = time.process_time()
    predicate = parse_sql(text)
    assert time.process_time() - begun < 15
    begun = time.process_time()
    matches(predicate)
    assert time.process_time() - begun < 15


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "d.x = '" + "''" * (MEGABYTE // 2),
        "d.x = '" + "a" * MEGABYTE,
        "d.[" + "]]" * (MEGABYTE // 2),
        "d.x = " + "9" * MEGABYTE,
        "d." + "x" * MEGABYTE,
        "-" * MEGABYTE,
        "TRUE AND " * 100_000,
        " " * MEGABYTE,
    ],
    ids=["parens", "quotes", "text", "brackets", "nines", "name", "minus", "and", "blanks"],
)
def test_a_hostile_megabyte_is_refused_quickly(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(FilterError) as fault:
        parse_sql(text)
    assert time.process_time() - begun < 15
    assert len(str(fault.value)) < 1000


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, EVERY),
        ({"event-streams-offset": "@earliest"}, EVERY),
        ({"event-streams-offset": "@latest"}, []),
        ({"event-streams-offset": offset(9)}, [10, 11]),  # strictly greater
        ({"event-streams-timestamp": 300}, [10, 11]),
        ({"event-streams-timestamp": -2}, [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]),  # -1 ms is an instant, "none" is not
        ({"event-streams-offset": offset(7), "event-streams-timestamp": 299}, [8, 10, 11]),
    ],
)
def test_delivery_annotations_filter(entries: dict[str, object], expected: list[int]) -> None:
    assert matches(annotations_predicate(entries)) == expected


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"event-streams-source-partition": "0"}, "cannot be filtered on"),
        ({"x-opt-offset": "0"}, "cannot be filtered on"),
        ({"event-streams-offset": 5}, "symbol"),
        ({"event-streams-offset": None}, "symbol"),
        ({"event-streams-timestamp": "5"}, "timestamp"),
        ({"event-streams-timestamp": True}, "timestamp"),
        ({"event-streams-timestamp": 2**63}, "timestamp"),
        ({"event-streams-timestamp": None}, "timestamp"),
    ],
)
def test_delivery_annotations_filter_refuses(entries: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        annotations_predicate(entries)


def test_filters_of_one_link_are_anded() -> None:
    both = conjunction(
        [annotations_predicate({"event-streams-offset": offset(2)}), parse_sql("d.event-streams-timestamp < 60")]
    )
    assert matches(both) == [3, 4, 5, 9]
    assert matches(conjunction([])) == EVERY


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("TRUE", 0),
        ("FALSE", NEVER),
        (f"d.event-streams-offset > '{offset(41)}'", 42),
        (f"d.event-streams-offset >= '{offset(41)}'", 41),
        (f"d.event-streams-offset = '{offset(41)}'", 41),
        (f"d.event-streams-offset < '{offset(41)}'", 0),
        (f"d.event-streams-offset <> '{offset(41)}'", 0),
        ("d.event-streams-offset > '@latest'", COUNT),
        ("d.event-streams-offset <= '@latest'", 0),
        ("d.event-streams-offset > '@earliest'", 0),
        ("d.event-streams-offset > 'a4c5'", NEVER),  # above all digits
        ("d.event-streams-timestamp > 5", 0),  # time is never a reason to seek
        (f"d.event-streams-offset > '{offset(41)}' AND d.event-streams-timestamp > 5", 42),
        (f"d.event-streams-offset > '{offset(41)}' OR d.event-streams-timestamp > 5", 0),
        (f"d.event-streams-offset > '{offset(41)}' OR d.event-streams-offset > '{offset(7)}'", 8),
        (f"d.event-streams-offset > '{offset(41)}' AND d.event-streams-offset > '{offset(7)}'", 42),
    ],
)
def test_seek(text: str, first: int) -> None:
    assert bounds(freeze(parse_sql(text), next_offset=COUNT))[0] == first


def test_what_depends_on_the_attach_is_refused_until_frozen() -> None:
    numbers = np.arange(3, dtype=np.int64)
    for text in ("d.event-streams-offset > '@latest'", "d.event-streams-source-partition = '0'"):
        with pytest.raises(ValueError, match="freeze it first"):
            mask(parse_sql(text), numbers, numbers)
        assert bounds(parse_sql(text))[0] == 0


def test_no_events_no_matches() -> None:
    none = np.empty(0, dtype=np.int64)
    for text in ("TRUE", f"d.event-streams-offset > '{offset(1)}' OR d.event-streams-timestamp = 1 AND FALSE"):
        assert mask(parse_sql(text), none, none).tolist() == []
