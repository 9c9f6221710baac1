"""Events written as lines: what others would read in them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import parse_lines
from spark_streams.wire.feed.lines_encode import encode_lines
from spark_streams.wire.feed.strict_json import MAX_DEPTH


def written(*values: bytes, dialect: Dialect = Dialect.V2A) -> list[bytes]:
    lines = encode_lines(pa.array(values, pa.binary()), dialect).split(b"\n")
    assert lines.pop() == b""
    return lines


def test_golden_the_specifications_lines() -> None:
    column = pa.array([b'{"a": 1}', b'{"b": 2}'], pa.binary())
    lines = encode_lines(column, Dialect.V2A).splitlines()
    assert [json.loads(line) for line in lines] == [{"event": {"a": 1}}, {"event": {"b": 2}}]


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (Dialect.V1, b'{"partition":7,"data":{}}'),
        (Dialect.V2A, b'{"event":{}}'),
        (Dialect.V2B, b'{"data":{}}'),
    ],
)
def test_each_dialect_has_its_members(dialect: Dialect, event: bytes) -> None:
    block = encode_lines(pa.array([b"{}"], pa.binary()), dialect, 7)
    assert block.split(b"\n") == [event, b""]


def test_p21_objects_are_sent_byte_for_byte_without_line_breaks() -> None:
    given = b'{"b": 1.50,\r\n "a":"\\u00e9 \xc3\xa9 \xe2\x80\xa8"}'
    assert written(given) == [b'{"event":' + given.replace(b"\r\n", b"  ") + b"}"]
    assert written(b' {"a":\n1}\n') == [b'{"event":{"a": 1}}']


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b"[1]", b"5", b"null", b'"quoted"', b'{"a":1', b'{"a":1}{"b":2}', b'{"a":1},"b":{}', b'{"a":NaN}'],
)
def test_p25_other_text_is_sent_as_a_string(value: bytes) -> None:
    for values in ([value], [b'{"a":1}'] * 3 + [value]):
        assert json.loads(written(*values)[-1]) == {"event": value.decode()}


@pytest.mark.parametrize("text", ['a"b\\c', "line\nbreak\r\ttab", "\x00\x01\x1f\x7f", "é€😀\u2028\u0085", "/"])
def test_strings_are_escaped(text: str) -> None:
    for values in ([text], [text, "plain"], [text, "\x02"]):
        lines = written(*(value.encode() for value in values))
        assert [json.loads(line) for line in lines] == [{"event": value} for value in values]


def test_other_bytes_are_base64_and_say_so() -> None:
    lines = [json.loads(line) for line in written(b"\xff\xfe", b"{}", b"text", b'{"a":"\xff"}')]
    assert lines == [
        {"event": "//4=", "encoding": "base64"},
        {"event": {}},
        {"event": "text"},
        {"event": "eyJhIjoi/yJ9", "encoding": "base64"},
    ]


def test_objects_are_nested_as_deep_as_a_line_may_be() -> None:
    fits, deeper = (b'{"a":' + b"[" * depth + b"]" * depth + b"}" for depth in (MAX_DEPTH - 2, MAX_DEPTH - 1))
    lines = written(fits, deeper)
    assert lines[0] == b'{"event":' + fits + b"}"
    assert isinstance(json.loads(lines[1])["event"], str)
    block = encode_lines(pa.array([fits, deeper], pa.binary()), Dialect.V2A)
    values = parse_lines(block, Dialect.V2A).values
    assert values is not None
    assert values.to_pylist() == [fits, deeper]


def test_numbers_that_are_no_doubles_and_halves_of_pairs_are_json() -> None:
    assert written(b'{"n":1e999}', b'{"s":"\\ud800"}') == [b'{"event":{"n":1e999}}', b'{"event":{"s":"\\ud800"}}']


def test_keys_go_with_their_events() -> None:
    values = pa.array([b"x", b"{}", b'{"b":1}', b"y"], pa.binary())[1:]
    keys = pa.array(["k", None, 'a"b\n'])
    block = encode_lines(values, Dialect.V2A, keys=keys)
    assert [json.loads(line) for line in block.splitlines()] == [
        {"key": "k", "event": {}},
        {"event": {"b": 1}},
        {"key": 'a"b\n', "event": "y"},
    ]


def test_no_events_are_no_lines() -> None:
    assert encode_lines(pa.array([], pa.binary()), Dialect.V2A) == b""


def test_null_is_null_and_its_text_a_string() -> None:
    values = pa.array([None, b"null", b"", b"{}", None], pa.binary())
    lines = b'{"event":null}\n{"event":"null"}\n{"event":""}\n{"event":{}}\n'
    assert encode_lines(values[:4], Dialect.V2A) == lines
    keyed = encode_lines(values[3:], Dialect.V1, 7, keys=pa.array([None, "k"]))
    assert keyed == b'{"partition":7,"data":{}}\n{"partition":7,"key":"k","data":null}\n'


def test_what_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_lines(pa.array([b"{}"], pa.binary()), Dialect.V2A, keys=pa.array(["a", "b"]))
