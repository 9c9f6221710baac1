"""Canonical text and JSON: the table of wire/amqp/canonical_text.py, row by row."""

from __future__ import annotations

import base64
import json
import random
import uuid
from typing import Any

import pytest

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.canonical_text import canonical_bytes, canonical_json, canonical_text
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.values import (
    Array,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Pairs,
    Symbol,
    Timestamp,
    UByte,
    ULong,
)

# Decimals by IEEE 754-2008 §3.5.2, binary encoding: exponent bias 101, 398, 6176.
TABLE: list[tuple[Any, str, str]] = [
    (None, "null", "null"),
    (True, "true", "true"),
    (False, "false", "false"),
    (UByte(255), "255", "255"),
    (ULong(2**64 - 1), "18446744073709551615", "18446744073709551615"),
    (-5, "-5", "-5"),
    (Timestamp(-386380800000), "-386380800000", "-386380800000"),
    (1.5, "1.5", "1.5"),
    (1e300, "1e+300", "1e+300"),
    (-0.0, "-0.0", "-0.0"),
    (float("nan"), "NaN", '"NaN"'),
    (float("inf"), "Infinity", '"Infinity"'),
    (float("-inf"), "-Infinity", '"-Infinity"'),
    (Float(0.10000000149011612), "0.1", "0.1"),
    (Float("nan"), "NaN", '"NaN"'),
    (Decimal32((101 << 23 | 1234567).to_bytes(4, "big")), "1234567", '"1234567"'),
    (Decimal32((1 << 31 | 99 << 23 | 150).to_bytes(4, "big")), "-1.50", '"-1.50"'),
    (Decimal32((0b11 << 29 | 101 << 21 | 9999999 & 0x1FFFFF).to_bytes(4, "big")), "9999999", '"9999999"'),
    (Decimal32((0x7C000000).to_bytes(4, "big")), "NaN", '"NaN"'),
    (Decimal32((0xF8000000).to_bytes(4, "big")), "-Infinity", '"-Infinity"'),
    (Decimal64((396 << 53 | 12345).to_bytes(8, "big")), "123.45", '"123.45"'),
    (Decimal128((6176 << 113 | 7).to_bytes(16, "big")), "7", '"7"'),
    (Char("☃"), "☃", '"☃"'),
    ('a"b\n', 'a"b\n', '"a\\"b\\n"'),
    (Symbol("s"), "s", '"s"'),
    (uuid.UUID(int=0xAB), "00000000-0000-0000-0000-0000000000ab", '"00000000-0000-0000-0000-0000000000ab"'),
    (b"\x00\xff", "AP8=", '"AP8="'),
    ([1, None, [True]], "[1,null,[true]]", "[1,null,[true]]"),
    (Array(0xA3, (Symbol("a"), Symbol("b"))), '["a","b"]', '["a","b"]'),
    ({"b": 1, Symbol("a"): {5: None}}, '{"b":1,"a":{"5":null}}', '{"b":1,"a":{"5":null}}'),
    (Pairs([([], 1), (None, 2)]), '{"[]":1,"null":2}', '{"[]":1,"null":2}'),
    (Described(Symbol("d"), b"x"), '{"descriptor":"d","value":"eA=="}', '{"descriptor":"d","value":"eA=="}'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text", "as_json"), TABLE, ids=lambda v: repr(v)[:40])
def test_the_table(value: Any, text: str, as_json: str) -> None:
    assert canonical_text(value) == text
    assert canonical_json(value) == as_json
    json.loads(as_json)


def test_what_has_no_amqp_type_is_our_own_fault() -> None:
    for value in (object(), {1, 2}, 2**70, Symbol("é"), "\ud800"):
        with pytest.raises(LocalProtocolError):
            encode_value(value)
    with pytest.raises(ValueError, match="256 is outside ubyte: expected 0 to 255"):
        UByte(256)
    with pytest.raises(ValueError, match="decimal32 takes 4 bytes, not 3"):
        Decimal32(b"abc")


@pytest.mark.parametrize("size", [0, 1, 786_431, 786_432, 786_433, 2_000_000])
def test_long_binaries_are_one_base64(size: int) -> None:
    content = random.Random(size).randbytes(size)
    expected = base64.b64encode(content)
    assert canonical_bytes(content) == canonical_bytes(memoryview(content)) == expected
    assert canonical_text(content).encode() == expected


def test_bytes_are_the_text_as_utf8() -> None:
    for value, text, _ in TABLE:
        assert canonical_bytes(value) == text.encode()
