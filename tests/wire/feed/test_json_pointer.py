"""JSON pointers into events; the examples are those of RFC 6901, section 5."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from math import floor

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns.single_message import TimestampOverflow
from spark_streams.wire.feed.json_encode import encode_objects
from spark_streams.wire.feed.json_pointer import extract_text, extract_timestamp, parse_pointer
from tests.examples import examples

# The newline between two members is not the RFC's.
RFC_6901 = rb"""{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5,
 "k\"l": 6, " ": 7, "m~n": 8}"""


def column(*events: bytes) -> pa.BinaryArray:
    return pa.array(events, pa.binary())


@pytest.mark.parametrize(
    ("pointer", "text"),
    [
        ("/foo", '["bar","baz"]'),
        ("/foo/0", "bar"),
        ("/foo/1", "baz"),
        ("/foo/2", None),
        ("/foo/01", None),
        ("/foo/-", None),
        ("/", "0"),
        ("/a~1b", "1"),
        ("/c%d", "2"),
        ("/e^f", "3"),
        ("/g|h", "4"),
        ("/i\\j", "5"),
        ('/k"l', "6"),
        ("/ ", "7"),
        ("/m~0n", "8"),
        ("/m~0n/x", None),
        ("/nothing", None),
    ],
)
def test_golden_the_rfcs_examples(pointer: str, text: str | None) -> None:
    assert extract_text(column(RFC_6901, RFC_6901), pointer).to_pylist() == [text, text]


@pytest.mark.parametrize("pointer", ["foo", "/a~", "/a~2", "/~~01"])
def test_what_is_no_pointer(pointer: str) -> None:
    with pytest.raises(ValueError, match="no JSON pointer"):
        parse_pointer(pointer)


def test_text_of_any_value() -> None:
    events = [
        rb'{"o":{"k":"plain"}}',
        rb'{"o":{"k":"\u00e9\n"}}',
        rb'{"o":{"k":null}}',
        rb'{"o":{}}',
        rb'{"o":5}',
        rb'{"o":{"k":1.50}}',
        rb'{"o":{"k":12345678901234567890123}}',
        rb'{"o":{"k":1e999}}',
        rb'{"o":{"k":true}}',
        rb'{"o":{"k":{"a": [1, 2.0]}}}',
        rb'{"o":{"k":1},"o":{"k":2}}',
        rb'{"o":{"k":"\ud800"}}',
        b"a text event",
        b"",
        b"\xff",
    ]
    expected = [
        "plain",
        "é\n",
        None,
        None,
        None,
        "1.50",
        "12345678901234567890123",
        "1e999",
        "true",
        '{"a":[1,2.0]}',
        "2",
    ]
    expected += [None] * 4
    assert extract_text(column(*events), "/o/k").to_pylist() == expected
    for event, text in zip(events, expected, strict=True):
        assert extract_text(column(event), "/o/k").to_pylist() == [text]


NUMBERS = [
    "0",
    "-0",
    "1",
    "1.50",
    "-0.0",
    "1e3",
    "1E+05",
    "12345678901234567890",
    "0.1000000000000000055511151231257827",
]
members = st.tuples(
    st.sampled_from(['"k"', '"k" ', '"k2"', '"\\u006b"', '"o"']),
    st.sampled_from([*NUMBERS, "true", "false", "null", '"k"', '"k\\"', '{"k": 7.5}', "[1.5]", '"\\"k\\":9.5"']),
).map(lambda pair: f"{pair[0]}: {pair[1]}")


def events_of(kinds: list[str]) -> st.SearchStrategy[list[str]]:
    """Events whose member is of these kinds, as Arrow reads whole columns, some with other members."""
    own = st.one_of(st.sampled_from(kinds).map('"k":{}'.format), st.sampled_from(kinds).map(' "k" : {} '.format))
    return st.lists(
        st.tuples(st.lists(members, max_size=2), st.lists(own, max_size=1), st.lists(members, max_size=1)).map(
            lambda parts: "{" + ",".join([*parts[0], *parts[1], *parts[2]]) + "}"
        ),
        min_size=1,
        max_size=4,
    )


@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(events_of([*NUMBERS, "null"]), events_of(["true", "false", "null"]), events_of(["1.5", '"a"'])))
@example(['{"k":1.5,"x":{"k":2.5}}', '{"x":{"k":2.5}}'])
@example(['{"x":"\\"k\\":2.5","k":1.50}'])
@example(['{"k":1.50}', '{"k":2}', "{}"])
def test_columns_of_numbers_and_booleans_are_read_as_single_events_are(events: list[str]) -> None:
    together = [event.encode() for event in events]
    alone = extract_text(column(*together, b""), "/k")  # what is no object has every event read by itself
    assert extract_text(pa.array(["{", *together, "}"], pa.binary())[1:-1], "/k").to_pylist() == alone.to_pylist()[:-1]
    assert extract_text(column(*together), "/k").to_pylist() == alone.to_pylist()[:-1]
    assert extract_text(pa.array([None, *together], pa.binary()), "/k").to_pylist() == [None, *alone.to_pylist()[:-1]]


def test_columns_may_be_slices_and_have_nulls() -> None:
    events = pa.array([b"{}", b'{"k":"a"}', b'{"k":"b"}', None], pa.binary())
    assert extract_text(events[1:3], "/k").to_pylist() == ["a", "b"]
    assert extract_text(events, "/k").to_pylist() == [None, "a", "b", None]
    assert extract_text(events[:0], "/k").to_pylist() == []


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        (b"0", datetime(1970, 1, 1)),
        (b"-386380800000", datetime(1957, 10, 4)),
        (b"-1", datetime(1969, 12, 31, 23, 59, 59, 999000)),
        (b"1.5", datetime(1970, 1, 1, 0, 0, 0, 1500)),
        (b"1.7e12", datetime(2023, 11, 14, 22, 13, 20)),
        (b'"1957-10-04T19:28:34Z"', datetime(1957, 10, 4, 19, 28, 34)),
        (b'"2024-02-29T12:00:00.123456Z"', datetime(2024, 2, 29, 12, 0, 0, 123456)),
        (b'"2024-02-29T12:00:00.1Z"', datetime(2024, 2, 29, 12, 0, 0, 100000)),
        (b'"2024-02-29T12:00:00.123456789Z"', datetime(2024, 2, 29, 12, 0, 0, 123456)),
        (b'"2024-02-29T12:00:00+02:00"', datetime(2024, 2, 29, 10)),
        (b'"2024-02-29T12:00:00.5-00:30"', datetime(2024, 2, 29, 12, 30, 0, 500000)),
        (b'"2024-02-29T12:00:00"', datetime(2024, 2, 29, 12)),
        (b'"2024-02-29"', datetime(2024, 2, 29)),
        (b'"2026-332"', datetime(2026, 11, 28)),
        (b'"2024-366T24:00:00Z"', datetime(2025, 1, 1)),
        (b'"2024-02-29T24:00:00"', datetime(2024, 3, 1)),
        (b'"2024-W09-4"', datetime(2024, 2, 29)),
        (b'"20240229T120000.5Z"', datetime(2024, 2, 29, 12, 0, 0, 500000)),
        (b'"+002024-02-29"', datetime(2024, 2, 29)),
        (b'"1883-11-18T12:03:58-04:56:02"', datetime(1883, 11, 18, 17)),
        (b'"1969-12-31T23:59:59.9999999Z"', datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (b"-0.0001", datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (b"1700000000123.4567", datetime(2023, 11, 14, 22, 13, 20, 123456)),
        (b"-5e-1234567890123456789012", datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (b"-0e99999999999999999999", datetime(1970, 1, 1)),
        (b"null", None),
    ],
)
def test_instants(value: bytes, instant: datetime | None) -> None:
    expected = None if instant is None else instant.replace(tzinfo=timezone.utc)
    event = b'{"a":{"t":%b}}' % value
    for events in (
        [event],
        [event] * 3,
        [event, b'{"a":{"t":5}}'],
        [event, b'{"a":{"t":"2020-01-01T00:00:00+01:00"}}'],
    ):
        found = extract_timestamp(column(*events), "/a/t")
        assert found.type == pa.timestamp("us", tz="UTC")
        assert found[0].as_py() == expected


@pytest.mark.parametrize(
    "value",
    [
        b'"yesterday"',
        b'""',
        b"true",
        b"[]",
        b"{}",
        b'"12"',
        *(
            b'"%b"' % text
            for text in (
                b"2024-13-01T00:00:00Z",
                b"2023-366",
                b"2024-000",
                b"2023-W53-1",
                b"2024-02-29T24:00:01",
                b"2024-02-29T12:60Z",
                b"2024-02-29T12:00+24:00",
                b"12024-02-29",
                b"+20240229",
                b"2024-0229",
                "٢٠٢٤-02-29".encode(),
            )
        ),
    ],
)
def test_what_is_no_instant_is_told(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"'/t' of an event is .* ISO 8601"):
        extract_timestamp(column(b'{"t":5}', b'{"t":%b}' % value), "/t")


@pytest.mark.parametrize("value", [
    b"9223372036854776", b"-9223372036854776", b"9223372036854775.808", b"1e999", b"-1e40", b"9" * 30,
    b"1e99999999999999999999", b'"+294248-01-01T00:00:00Z"', b'"-9999999-001"',
])  # fmt: skip
def test_instants_that_do_not_fit(value: bytes) -> None:
    events = column(b'{"t":5}', b'{"t":%b}' % value)
    with pytest.raises(TimestampOverflow):
        extract_timestamp(events, "/t")
    assert extract_timestamp(events, "/t", overflow="null").cast(pa.int64()).to_pylist() == [5000, None]


# --- every instant, by references of others


@settings(max_examples=examples(400), deadline=None)
@given(st.datetimes(timezones=st.timezones() | st.just(timezone.utc)), st.sampled_from(["T", " "]))
def test_texts_are_read_as_python_reads_them(moment: datetime, separator: str) -> None:
    event = json.dumps({"t": moment.isoformat(separator)}).encode()
    micros = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    assert extract_timestamp(column(event), "/t").cast(pa.int64()).to_pylist() == [micros]


@settings(max_examples=examples(400), deadline=None)
@given(
    st.decimals(-(2**63) // 1000 + 1, 2**63 // 1000 - 1, places=6)
    | st.floats(-1e15, 1e15).map(repr)
    | st.integers(-9, 9),
)
@example("-1e-400")
@example("-0.0010000000000000000000000000000001")
def test_numbers_are_exact(number: object) -> None:
    expected = floor(Fraction(str(number)) * 1000)
    for events in ([b'{"t":%b}' % str(number).encode()], [b'{"t":%b}' % str(number).encode(), b'{"t":"1970-01-01"}']):
        assert extract_timestamp(column(*events), "/t").cast(pa.int64())[0].as_py() == expected


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
def test_what_the_sink_writes_is_read_again(micros: int) -> None:
    """Its texts are compared with those of Spark in tests/e2e/feed/test_sink.py."""
    written = encode_objects({"t": pa.array([micros]).cast(pa.timestamp("us", "UTC"))}, 1).cast(pa.binary())
    assert extract_timestamp(written, "/t").cast(pa.int64()).to_pylist() == [micros]
