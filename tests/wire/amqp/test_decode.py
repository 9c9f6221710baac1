"""AMQP values: encode and decode are inverse, qpid-proton reads and writes the same, garbage is refused."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proton import Data

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Pairs,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.examples import examples

INTEGERS = (UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp)
float32s = st.floats(width=32, allow_nan=False).map(Float)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    *(st.integers(kind.low, kind.high).map(kind) for kind in INTEGERS),
    *(st.sampled_from([kind.low, 0, 127, -128 if kind.low < 0 else 128, kind.high]).map(kind) for kind in INTEGERS),
    float32s,
    st.floats(allow_nan=False),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.text(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
    st.binary(max_size=300),
    st.uuids(),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
)
descriptors = st.one_of(st.integers(0, 2**64 - 1).map(ULong), st.just(Symbol("my:type")))
arrays = st.one_of(
    st.builds(Array, st.just(0x71), st.lists(st.integers(-5, 5).map(Int), max_size=300), st.none()),
    st.builds(Array, st.just(0xA3), st.lists(st.just(Symbol("p")), max_size=3), st.one_of(st.none(), descriptors)),
    st.builds(Array, st.just(0xB1), st.lists(st.text(max_size=300), max_size=3), st.none()),
    st.builds(Array, st.just(0x83), st.lists(st.integers(-5, 5).map(Timestamp), max_size=3), descriptors),
    st.builds(Array, st.just(0x98), st.lists(st.uuids(), max_size=3), st.none()),
    st.builds(Array, st.just(0x56), st.lists(st.booleans(), max_size=3), st.none()),
    st.builds(Array, st.just(0xD0), st.lists(st.lists(scalars, max_size=3), max_size=3), st.none()),
    st.builds(Array, st.just(0xD1), st.lists(st.dictionaries(st.text(), scalars, max_size=3), max_size=3), st.none()),
)
values = st.recursive(
    st.one_of(scalars, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.builds(Described, descriptors, inner),
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """Return a value with the types that equality does not see."""
    if isinstance(value, (list, tuple)):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, Described):
        return ("described", typed(value.descriptor), typed(value.value))
    if isinstance(value, Array):
        return ("array", value.code, typed(value.items), typed(value.descriptor))
    if isinstance(value, float):
        return (type(value), struct.pack(">d", value))
    return (type(value), value)


@settings(max_examples=examples(300), deadline=None)
@given(values, st.binary(max_size=3))
def test_what_is_encoded_decodes_to_itself(value: Any, after: bytes) -> None:
    raw = encode_value(value)
    decoded, end = decode_value(b"\x40" + raw + after, 1)
    assert end == 1 + len(raw)
    assert typed(decoded) == typed(value)


@settings(max_examples=examples(200), deadline=None)
@given(values.filter(lambda value: not described_twice(value)))
def test_proton_reads_it_and_we_read_what_proton_writes(value: Any) -> None:
    raw = encode_value(value)
    peer = Data()
    assert peer.decode(raw) == len(raw)
    again, end = decode_value(peer.encode())
    assert end == len(peer.encode())
    assert widened(again) == widened(value)


def described_twice(value: Any) -> bool:
    """Whether a described value is itself described: proton 0.40 miscounts the list or map that holds it."""
    if isinstance(value, Described):
        return isinstance(value.value, Described) or described_twice(value.value)
    if isinstance(value, (dict, list)):
        return any(described_twice(item) for item in (value.values() if isinstance(value, dict) else value))
    return False


def widened(value: Any) -> Any:
    """Return ``typed``, but arrays of either width alike: proton writes 4-byte sizes only."""
    if isinstance(value, Array):
        return ("array", value.code | 0x10 if value.code >= 0xA0 else value.code, widened(list(value.items)))
    if isinstance(value, (list, tuple)):
        return [widened(item) for item in value]
    if isinstance(value, dict):
        return [(widened(key), widened(item)) for key, item in value.items()]
    if isinstance(value, Described):
        return ("described", widened(value.descriptor), widened(value.value))
    return typed(value)


@settings(max_examples=examples(500), deadline=None)
@given(st.one_of(st.binary(max_size=40), st.builds(lambda v, n: encode_value(v)[:n], values, st.integers(0, 60))))
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")
@example(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff")
@example(b"\xe0\x02\xff\x45")
@example(b"\xe0\x03\x01\x00\x00")
@example(b"\x00" * 5000)
@example(b"\x00\x40" * 5000)
@example(b"\xc0\xff\x01" * 300)
def test_garbage_gives_a_value_or_a_protocol_error(raw: bytes) -> None:
    try:
        _, end = decode_value(raw)
    except RemoteProtocolError:
        return
    assert 0 < end <= len(raw)


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        raw = b"\x45"
        for _ in range(depth):
            raw = struct.pack(">BII", 0xD0, len(raw) + 4, 1) + raw
        return raw

    decode_value(nested(30))
    with pytest.raises(RemoteProtocolError, match="nests deeper than 32"):
        decode_value(nested(40))


def test_maps_that_no_dict_can_hold_are_pairs() -> None:
    two_ones = b"\xc1\x08\x04\x50\x01\xa1\x01a\x41\x40"
    decoded, _ = decode_value(two_ones)
    assert isinstance(decoded, Pairs) and decoded == [(1, "a"), (True, None)]
    assert encode_value(decoded) == two_ones
    list_key = b"\xc1\x03\x02\x45\x40"
    assert decode_value(list_key)[0] == Pairs([([], None)])
    assert encode_value(decode_value(list_key)[0]) == list_key


def test_of_equal_keys_the_last_stays() -> None:
    raw = b"\xc1\x0d\x04\xa1\x01a\xa1\x01x\xa1\x01a\xa1\x01y"
    assert decode_value(raw)[0] == {"a": "y"}


def test_small_values_are_small() -> None:
    small = [
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(1), "5301"),
        (Int(-128), "5480"),
        (Int(128), "7100000080"),
        (Long(5), "5505"),
        (Long(-129), "81ffffffffffffff7f"),
    ]
    for value, expected in small:
        assert encode_value(value).hex() == expected
    assert encode_value(uuid.UUID(int=1)).hex() == "98" + "00" * 15 + "01"
