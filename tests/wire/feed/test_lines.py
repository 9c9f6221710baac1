"""Lines of feeds: golden ones of others, every rule, malformed ones, blocks of whole lines.

Provenance of the golden lines: ``SEED`` is the example of the specification (feedapi-spec SPEC.md of 2023-05,
"Response"), its comments filled in; ``GO`` is what the Go library writes; v1's are written by the server
parts of the PyPI package ``zeroeventhub`` while the test runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import LineBlocks, Lines, parse_lines
from spark_streams.wire.feed.strict_json import MAX_DEPTH
from tests.server.foreign_programs import Driver
from tests.wire.feed.single_lines import parse_singly

SEED = (
    b'{"event": {"id": 1, "type": "created"}}\n'
    b'{"cursor": "2394r7a98a7342qw34r2412rwa"}\n'
    b'{"event": {"id": 2, "type": "changed"}}\n'
    b'{"cursor": "24rw3afawowraqwl2ijur3lakj"}\n'
)
GO = b'{"data":{"id":1,"name":"a"}}\n{"cursor":"1"}\n{"data":{"id":2,"name":"b"}}\n{"cursor":"2"}\n'

Parse = Callable[..., Lines]


@pytest.fixture(params=[parse_lines, parse_singly], ids=["together", "singly"])
def parse(request: pytest.FixtureRequest) -> Parse:
    found: Parse = request.param
    return found


def events(lines: Lines) -> list[bytes]:
    assert lines.values.type == pa.binary()
    assert lines.count == len(lines.values)
    found: list[bytes] = lines.values.to_pylist()
    return found


def test_golden_the_specifications_example(parse: Parse) -> None:
    lines = parse(SEED, Dialect.V2A)
    assert events(lines) == [b'{"id": 1, "type": "created"}', b'{"id": 2, "type": "changed"}']
    assert lines.cursors.to_pylist() == ["2394r7a98a7342qw34r2412rwa", "24rw3afawowraqwl2ijur3lakj"]
    assert lines.covered.tolist() == [1, 2]
    assert [SEED[:end].count(b"\n") for end in lines.ends] == [2, 4]
    assert lines.keys.null_count == 2


def test_golden_the_go_librarys(parse: Parse) -> None:
    lines = parse(GO, Dialect.V2B)
    assert events(lines) == [b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}']
    assert lines.cursors.to_pylist() == ["1", "2"]


def test_golden_zeroeventhubs_server(parse: Parse, zeroeventhub: Driver) -> None:
    records: list[dict[str, Any]] = []
    for number in range(500):
        records.append(
            {"partition": number % 2, "headers": {"ce_id": str(number)}, "data": {"n": number, "text": "é\n\u2028"}}
        )
        if number % 100 == 99:
            records.extend({"partition": partition, "cursor": f"c{number}"} for partition in (0, 1))

    block = zeroeventhub.ask("lines", records=records).encode()
    for partition in (0, 1):
        lines = parse(block, Dialect.V1, partition)
        assert [json.loads(event)["n"] for event in events(lines)] == list(range(partition, 500, 2))
        assert lines.cursors.to_pylist() == ["c99", "c199", "c299", "c399", "c499"]
        assert lines.covered.tolist() == [50, 100, 150, 200, 250]
    assert parse(block, Dialect.V1).count == 500


@pytest.mark.parametrize("line", [b'{"ping":1}', b"{}", b'{"partitions-changed":true}', b'{"cursor":null}', b" ", b""])
def test_c05_unknown_lines_and_members_are_passed_over(parse: Parse, line: bytes) -> None:
    block = b'{"more":[1],"event":{"a":1},"id":"x"}\n' + line + b'\n{"cursor":"c","at":5}\n' + line
    lines = parse(block, Dialect.V2A)
    assert events(lines) == [b'{"a":1}']
    assert lines.cursors.to_pylist() == ["c"]
    assert lines.ends.tolist() == [len(block) - len(line)]


@pytest.mark.parametrize("line", [b'{"event":{"a":1},"cursor":"c"}', b'{"cursor":"c","event":{"a":1}}'])
def test_c06_an_event_and_then_its_checkpoint_in_one_line(parse: Parse, line: bytes) -> None:
    lines = parse(line + b"\n" + line, Dialect.V2A)
    assert events(lines) == [b'{"a":1}'] * 2
    assert lines.covered.tolist() == [1, 2]
    assert lines.ends.tolist() == [len(line) + 1, 2 * len(line) + 1]


def test_c17_lines_end_with_newline_bytes_alone(parse: Parse) -> None:
    text = "a\u2028b\u2029c\u0085d\x7f".encode()
    lines = parse(
        b'{"event":"' + text + b'"}\r\n\r\n\n{"event":{"t":"' + text + b'"}}\r\n{"cursor":"c"}\r\n', Dialect.V2A
    )
    assert events(lines) == [text, b'{"t":"' + text + b'"}']
    assert lines.cursors.to_pylist() == ["c"]


def test_c17_a_line_of_five_megabytes(parse: Parse) -> None:
    big = b'{"text":"' + b"x" * 5_000_000 + b'"}'
    lines = parse(b'{"event":' + big + b'}\n{"cursor":"c"}\n', Dialect.V2A)
    assert events(lines) == [big]
    assert lines.cursors.to_pylist() == ["c"]


@pytest.mark.parametrize("text", ["k", "ü", '\\"', "\\ud83d\\ude00"])
def test_a_key_of_megabytes(parse: Parse, text: str) -> None:
    line = '{"event":"","key":"' + text * 1_000_000 + '"}'
    lines = parse((line + '\n{"event":{"a":1}}\n' + line + "\n").encode(), Dialect.V2A)
    key = json.loads(line)["key"]
    assert events(lines) == [b"", b'{"a":1}', b""]
    assert lines.keys.to_pylist() == [key, None, key]


def test_a_long_key_that_is_half_a_pair_is_named(parse: Parse) -> None:
    line = '{"event":"","key":"' + "k" * 100_000 + '\\ud83d"}'
    with pytest.raises(RemoteProtocolError, match=r"line 2 .*'key' holds half of a surrogate pair"):
        parse(b'{"event":""}\n' + line.encode(), Dialect.V2A)


def test_c21_partition_is_taken_from_the_line(parse: Parse) -> None:
    block = (
        b"".join(b'{"partition":%d,"data":{"n":%d}}\n' % (n % 3, n) for n in range(90))
        + b'{"partition":"1","cursor":"c"}'
    )
    assert events(parse(block, Dialect.V1, 1)) == [b'{"n":%d}' % n for n in range(1, 90, 3)]
    assert parse(block, Dialect.V1, 1).cursors.to_pylist() == ["c"]
    assert parse(block, Dialect.V1, 2).cursors.to_pylist() == []
    with pytest.raises(RemoteProtocolError, match=r"line 1 .*'partition' is missing"):
        parse(b'{"data":{}}', Dialect.V1, 1)


def test_members_of_the_other_dialect_count_where_there_is_nothing_else(parse: Parse) -> None:
    block = b'{"data":{"a":1}}\n{"event":{"b":1},"data":{"c":1}}\n{"data":{"d":1},"cursor":"c"}\n'
    assert events(parse(block, Dialect.V2A)) == [b'{"a":1}', b'{"b":1}']
    assert events(parse(block, Dialect.V2B)) == [b'{"a":1}', b'{"c":1}', b'{"d":1}']
    both = b'{"event":{"a":1},"cursor":"c"}\n{"data":{"b":1}}\n'
    assert events(parse(both, Dialect.V2A)) == [b'{"a":1}', b'{"b":1}']


def test_an_event_that_is_null_beside_a_cursor_is_none(parse: Parse) -> None:
    lines = parse(b'{"partition":0,"headers":null,"data":null,"cursor":"c"}', Dialect.V1, 0)
    assert (lines.count, lines.cursors.to_pylist()) == (0, ["c"])


def test_strings_are_text_and_base64_is_bytes(parse: Parse) -> None:
    block = (
        rb'{"event":"plain"}'
        b"\n"
        rb'{"event":"q\"\u00e9\ud83d\ude00\n\/"}'
        b"\n"
        rb'{"event":""}'
        b"\n"
        rb'{"event":"//4=","encoding":"base64"}'
        b"\n"
        rb'{"encoding":"base64","event":"AAEC"}'
        b"\n"
        rb'{"event":"//4=","encoding":"hex"}'
        b"\n"
    )
    assert events(parse(block, Dialect.V2A)) == [b"plain", 'q"é😀\n/'.encode(), b"", b"\xff\xfe", b"\0\1\2", b"//4="]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"event":"a longer text"}', b"a longer text"),
        ('{"event":"a text, kött"}'.encode(), "a text, kött".encode()),
        (rb'{"event":"a \"text\""}', b'a "text"'),
        (b'{"event":"text","key":"k"}', b"text"),
        (b'{"event":""}', b""),
        (b'{"event":{"a":"b"}}', b'{"a":"b"}'),
    ],
)
def test_texts_among_plain_texts(parse: Parse, line: bytes, expected: bytes) -> None:
    block = b'{"event":"plain text"}\n' * 3 + b'{"cursor":"c"}\r\n' + line + b'\n{"cursor":"d"}'
    lines = parse(block, Dialect.V2A)
    assert events(lines) == [b"plain text"] * 3 + [expected]
    assert (lines.cursors.to_pylist(), lines.covered.tolist()) == (["c", "d"], [3, 4])
    assert lines.ends.tolist() == [block.index(b"\r\n") + 2, len(block)]


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"event":"a"b"c"}', b'{"event":"}'],
        [b'{"event":","encoding":"base64"}', b'{"event":"a"b"}'],
        [b'{"key":"a","event":"b"c"}', b'{"key":"a","event":"}'],
        [b'{"key":"a":"event":"b"}', b'{"key":"a","event":"b"}'],
        [b'{"event":"A===","encoding":"base64"}'],
        [b'{"event":"=QQ=","encoding":"base64"}', b'{"event":"QQ==","encoding":"base64"}'],
        [b'{"event":"abc\rdef"}'],
        [b'{"event":"abc\x01"}'],
        [b'{"event":"ab\xff"}'],
    ],
)
def test_texts_that_are_none_among_plain_texts(parse: Parse, lines: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError, match="line 2 of the response"):
        parse(b"\n".join([b'{"event":"plain text"}', *lines, b'{"cursor":"c"}']), Dialect.V2A)


def test_keys_are_our_servers_extension(parse: Parse) -> None:
    block = b'{"key":"k1","event":{}}\n{"event":{}}\n{"key":null,"event":{}}\n'
    block += b'{"event":{},"key":"a\\"b"}\n{"key":5,"event":{}}\n'
    keys = parse(block, Dialect.V2A).keys
    assert keys.to_pylist() == ["k1", None, None, 'a"b', "5"]


def test_duplicate_members_count_as_the_last(parse: Parse) -> None:
    lines = parse(
        b'{"event":{"a":1},"event":{"b":1}}\n{"cursor":"c","cursor":"d"}\n{"event":{"a":1,"a":2}}', Dialect.V2A
    )
    assert events(lines) == [b'{"b":1}', b'{"a":1,"a":2}']
    assert lines.cursors.to_pylist() == ["d"]


def test_escaped_names_are_names(parse: Parse) -> None:
    lines = parse(rb'{"\u0065vent":{"a":1}}' b"\n" rb'{"cur\u0073or":"\u0063"}', Dialect.V2A)
    assert events(lines) == [b'{"a":1}']
    assert lines.cursors.to_pylist() == ["c"]


def test_numbers_beyond_a_double_and_halves_of_pairs_stay_as_they_stand(parse: Parse) -> None:
    irregular = [
        b'{"n":1e999}',
        b'{"n":' + b"9" * 5000 + b"}",
        rb'{"s":"\ud800"}',
        rb'{"s":"\udc00"}',
        b'{"s":"Na, Infinity, NaN"}',
    ]
    block = b"".join(b'{"event":' + event + b"}\n" for event in irregular)
    assert events(parse(block, Dialect.V2A)) == irregular


MALFORMED = {
    "truncated": b'{"event":{"a":1}',
    "truncated string": b'{"event":{"a":"b',
    "text": b"Internal server error",
    "array": b"[1]",
    "two objects": b'{"event":{}}{"event":{}}',
    "two events for one": b'{"event":{"a":1}{"b":2}}',
    "byte order mark": b'\xef\xbb\xbf{"event":{}}',
    "not UTF-8": b'{"event":{"a":"\xff"}}',
    "surrogate in UTF-8": b'{"event":{"a":"\xed\xa0\x80"}}',
    "list": b'{"event":[1]}',
    "number": b'{"event":1}',
    "true": b'{"event":true}',
    "cursor is a number": b'{"cursor":5}',
    "NaN": b'{"event":{"a":NaN}}',
    "infinity": b'{"event":{"a":[-Infinity]}}',
    "comment": b'{"event":{"a":1 /* one */}}',
    "comma": b'{"event":{"a":1,}}',
    "leading zero": b'{"event":{"a":01}}',
    "control character": b'{"event":{"a":"\x01"}}',
    "control character in a cursor": b'{"cursor":"\x01"}',
    "NUL": b'{"event":{"a":1}\x00}',
    "NUL after": b'{"event":{"a":1}}\x00',
    "bad escape": rb'{"event":{"a":"\x41"}}',
    "half a pair as text": rb'{"event":"\ud800"}',
    "half a pair as cursor": rb'{"cursor":"\ud800"}',
    "no base64": b'{"event":"A===","encoding":"base64"}',
    "too deep": b'{"event":{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}}",
    "far too deep": b'{"event":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_lines_are_named(parse: Parse, line: bytes) -> None:
    good = b'{"event":{"a":1}}\n{"event":{"a":"%b"}}\n' % (b"x" * 300) * 20
    block = good + line + b"\n" + good
    with pytest.raises(RemoteProtocolError, match=f"line {good.count(bytes([10])) + 1} of the response") as caught:
        parse(block, Dialect.V2A)
    assert len(str(caught.value)) < 700
    if line[:1] in b"{[I":
        assert line[:10].decode("ascii", "replace") in str(caught.value)


def test_as_deep_as_allowed(parse: Parse) -> None:
    event = b'{"a":' + b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2) + b"}"
    text = b'{"a":"' + b"[" * 5000 + b'"}'
    lines = parse(b'{"event":' + event + b'}\n{"event":' + text + b"}\n", Dialect.V2A)
    assert events(lines) == [event, text]


def test_nothing_has_nothing() -> None:
    lines = parse_lines(b"", Dialect.V2A)
    assert (lines.count, len(lines.cursors), lines.covered.size, lines.ends.size) == (0, 0, 0, 0)
    assert events(lines) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_bytes_will_do(kind: Callable[[bytes], Any]) -> None:
    assert parse_lines(kind(SEED * 100), Dialect.V2A).count == 200


class TestLineBlocks:
    @pytest.mark.parametrize("size", [1, 2, 7, 1000])
    def test_whole_lines_whatever_arrives_together(self, size: int) -> None:
        response = SEED + "é\u2028".encode() * 5 + b"\n\n{}"
        blocks = LineBlocks()
        got: list[bytes] = []
        for start in range(0, len(response), size):
            got.extend(blocks.feed(response[start : start + size]))
        assert all(block.endswith(b"\n") for block in got)
        assert b"".join(got) + blocks.tail == response
        assert blocks.tail == b"{}"

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_f24_a_byte_order_mark_is_stripped_at_the_start_alone(self, size: int) -> None:
        mark = "\ufeff".encode()
        response = mark + b'{"cursor":"c"}\n' + mark + b"\n"
        blocks = LineBlocks()
        got = [
            block for start in range(0, len(response), size) for block in blocks.feed(response[start : start + size])
        ]
        assert b"".join(got) == response[3:]

    @pytest.mark.parametrize("size", [1, 5, 100])
    def test_lines_too_long_are_refused(self, size: int) -> None:
        for response, fits in ((b"x" * 10 + b"\n" + b"y" * 10 + b"\n", True), (b"a\n" + b"x" * 11 + b"\nb\n", False)):
            blocks = LineBlocks(max_line_bytes=10)

            def feed(blocks: LineBlocks = blocks, response: bytes = response) -> None:
                for start in range(0, len(response), size):
                    blocks.feed(response[start : start + size])

            if fits:
                feed()
            else:
                with pytest.raises(RemoteProtocolError, match="maxLineBytes"):
                    feed()
