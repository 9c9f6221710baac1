"""Whole blocks and single messages give the same columns, whatever the messages; garbage is refused, never worse."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp import sections
from spark_streams.wire.amqp.columns import decode, shaped_rows
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES, IN_MS, decode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.columns.single_message import row_columns
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP
from tests.examples import examples
from tests.wire.amqp.messages import decode_message


@pytest.fixture(autouse=True, scope="module", params=["walk", "shapes"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Decode even single messages in lockstep; or by their shapes, those that have one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "FEW", 0)
        if request.param == "shapes":
            patch.setattr(shaped_rows, "FEW", 0)
            patch.setattr(shaped_rows, "_FEWEST_ALIKE", 1)
            patch.setattr(shaped_rows, "_MOST_MISSES", 99)
        yield request.param


MESSAGE_COLUMNS = ["value", "key", "properties", "application_properties", "message_annotations", "message"]
DELIVERY_COLUMNS = ["offset", "timestamp", "timestamp_ms", "source_partition", "partitions_changed"]

# ------------------------------------------------------------ encoded values of every format code, in every width


def sized(small: int, large: int, content: bytes, wide: bool) -> bytes:
    if wide or len(content) > 255:
        return struct.pack(">BI", large, len(content)) + content
    return bytes((small, len(content))) + content


def counted(small: int, large: int, items: list[bytes], wide: bool) -> bytes:
    content = b"".join(items)
    if wide or len(content) > 254 or len(items) > 255:
        return struct.pack(">BII", large, len(content) + 4, len(items)) + content
    return bytes((small, len(content) + 1, len(items))) + content


wide = st.booleans()
texts = st.text(max_size=20)
ascii_texts = st.text(st.characters(max_codepoint=127), max_size=20)
strings = st.builds(lambda t, w: sized(0xA1, 0xB1, t.encode(), w), texts, wide)
symbols = st.builds(lambda t, w: sized(0xA3, 0xB3, t.encode(), w), ascii_texts, wide)
binaries = st.builds(lambda b, w: sized(0xA0, 0xB0, b, w), st.binary(max_size=20), wide)
timestamps = st.builds(lambda n: struct.pack(">Bq", 0x83, n), st.integers(-(2**52), 2**52))
uints = st.one_of(
    st.just(b"\x43"),
    st.binary(min_size=1, max_size=1).map(lambda b: b"\x52" + b),
    st.binary(min_size=4, max_size=4).map(lambda b: b"\x70" + b),
)
FIXED_CODES = {
    0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
    1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55),
    2: (0x60, 0x61),
    4: (0x70, 0x71, 0x72, 0x74),
    8: (0x80, 0x81, 0x82, 0x83, 0x84),
    16: (0x94, 0x98),
}
scalars = st.one_of(
    strings,
    symbols,
    binaries,
    *(
        st.builds(lambda c, b: bytes((c,)) + b, st.sampled_from(codes), st.binary(min_size=width, max_size=width))
        for width, codes in FIXED_CODES.items()
    ),
    st.sampled_from([b"\x56\x00", b"\x56\x01"]),
    st.characters(exclude_categories=["Cs"]).map(lambda c: struct.pack(">BI", 0x73, ord(c))),
)


def arrays() -> st.SearchStrategy[bytes]:
    ints = st.lists(st.binary(min_size=4, max_size=4), max_size=4).map(lambda items: (b"\x71", items))
    syms = st.lists(ascii_texts, max_size=4).map(lambda ts: (b"\xa3", [bytes((len(t),)) + t.encode() for t in ts]))

    def build(head: tuple[bytes, list[bytes]], described: bool, large: bool) -> bytes:
        constructor = (b"\x00\xa3\x01d" if described else b"") + head[0]
        content = constructor + b"".join(head[1])
        if large:
            return struct.pack(">BII", 0xF0, len(content) + 4, len(head[1])) + content
        return bytes((0xE0, len(content) + 1, len(head[1]))) + content

    return st.builds(build, st.one_of(ints, syms), st.booleans(), wide)


values = st.recursive(
    st.one_of(scalars, arrays()),
    lambda inner: st.one_of(
        st.builds(lambda i, w: counted(0xC0, 0xD0, i, w), st.lists(inner, max_size=3), wide),
        st.builds(
            lambda p, w: counted(0xC1, 0xD1, [x for pair in p for x in pair], w),
            st.lists(st.tuples(st.one_of(strings, scalars), inner), max_size=3),
            wide,
        ),
        st.builds(lambda d, v: b"\x00" + d + v, st.one_of(symbols, st.just(b"\x53\x05")), inner),
    ),
    max_leaves=5,
)
plain_values = st.one_of(strings, st.just(b"\x40"), symbols, scalars)


def maps(keys: st.SearchStrategy[bytes], items: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pairs = st.lists(st.tuples(keys, items), max_size=4)
    return st.builds(lambda p, w: counted(0xC1, 0xD1, [x for pair in p for x in pair], w), pairs, wide)


def symbol(text: str) -> bytes:
    return sized(0xA3, 0xB3, text.encode(), False)


# ------------------------------------------------------------ encoded sections

annotation_keys = st.one_of(
    st.sampled_from([symbol("event-streams-group-key"), symbol("x-opt-a"), symbol("x-opt-partition-key")]), symbols
)
message_annotations = st.one_of(
    maps(annotation_keys, strings),
    maps(annotation_keys, plain_values),
    maps(st.one_of(annotation_keys, scalars), values),
)
application_properties = st.one_of(
    maps(strings, strings), maps(strings, plain_values), maps(st.one_of(strings, scalars), values)
)
null = st.just(b"\x40")
any_id = st.one_of(null, strings, binaries, st.builds(lambda u: b"\x98" + u.bytes, st.uuids()), scalars, values)
FIELDS = [
    any_id,
    st.one_of(null, binaries),
    st.one_of(null, strings),
    st.one_of(null, strings),
    st.one_of(null, strings, scalars),
    any_id,
    st.one_of(null, symbols, strings),
    st.one_of(null, symbols),
    st.one_of(null, timestamps),
    st.one_of(null, timestamps),
    st.one_of(null, strings),
    st.one_of(null, uints),
    st.one_of(null, strings),
]
properties = st.builds(
    lambda fields, n, w: b"\x45" if not n else counted(0xC0, 0xD0, list(fields)[:n], w),
    st.tuples(*FIELDS),
    st.integers(0, 13),
    wide,
)
delivery_pairs = [
    st.tuples(st.just(symbol("event-streams-offset")), st.one_of(symbols, null, strings)),
    st.tuples(st.just(symbol("event-streams-timestamp")), st.one_of(timestamps, null)),
    st.tuples(st.just(symbol("event-streams-source-partition")), symbols),
    st.tuples(
        st.sampled_from([symbol(f"event-streams-{w}-partitions-changed") for w in ("assigned", "associated")]),
        st.lists(ascii_texts, max_size=3).map(
            lambda ts: (
                bytes((0xE0, 2 + sum(len(t) + 1 for t in ts), len(ts), 0xA3))
                + b"".join(bytes((len(t),)) + t.encode() for t in ts)
            )
        ),
    ),
    st.tuples(symbols, values),
]
delivery_annotations = st.builds(
    lambda p, w: counted(0xC1, 0xD1, [x for pair in p for x in pair], w),
    st.lists(st.one_of(delivery_pairs), max_size=4),
    wide,
)

SYMBOLIC = {0x70: "header:list", 0x72: "message-annotations:map", 0x75: "data:binary", 0x77: "amqp-value:*"}


def section(code: int, value: bytes, form: int = 0) -> bytes:
    if form == 1:
        return b"\x00\x80" + struct.pack(">Q", code) + value
    if form == 2 and code in SYMBOLIC:
        return b"\x00" + symbol("amqp:" + SYMBOLIC[code]) + value
    return b"\x00\x53" + bytes((code,)) + value


lists_of_values = st.builds(lambda i, w: counted(0xC0, 0xD0, i, w), st.lists(values, max_size=3), wide)
bodies = st.one_of(
    binaries.map(lambda b: section(0x75, b)),
    binaries.map(lambda b: section(0x75, b)),
    st.lists(binaries, min_size=2, max_size=3).map(lambda bs: b"".join(section(0x75, b) for b in bs)),
    st.lists(lists_of_values, min_size=1, max_size=2).map(lambda ls: b"".join(section(0x76, v) for v in ls)),
    st.one_of(strings, binaries).map(lambda v: section(0x77, v)),
    values.map(lambda v: section(0x77, v)),
    st.just(b""),
)


def optional(code: int, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    forms = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2])
    return st.one_of(st.just(b""), st.builds(lambda v, f: section(code, v, f), content, forms))


def message(delivery: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    header = st.just(counted(0xC0, 0xD0, [b"\x41", b"\x50\x04"], False))
    footer = maps(annotation_keys, values)
    return st.tuples(
        optional(0x70, header),
        optional(0x71, delivery),
        optional(0x72, message_annotations),
        optional(0x73, properties),
        optional(0x74, application_properties),
        bodies,
        optional(0x78, footer),
    ).map(b"".join)


uncommon_messages = message(delivery_annotations)

# What the lockstep walk takes by itself: plain descriptors, text keys that are there once, no described values.
undescribed = values.filter(lambda value: value[0] != 0)
common_map = st.builds(
    lambda p, w: counted(0xC1, 0xD1, [x for key, value in p for x in (symbol(key), value)], w),
    st.lists(
        st.tuples(
            st.sampled_from(["event-streams-offset", "x-opt-partition-key", "x", "", "event-streams-offsets"]),
            st.one_of(strings, undescribed),
        ),
        max_size=5,
        unique_by=lambda pair: pair[0],
    ),
    wide,
)
grouped_map = st.builds(
    lambda key: counted(0xC1, 0xD1, [symbol("event-streams-group-key"), key], False), st.one_of(strings, symbols, null)
)
offset_map = st.builds(
    lambda o, t, w: counted(
        0xC1,
        0xD1,
        [symbol("x-opt-other"), b"\x45", symbol("event-streams-offset"), o, symbol("event-streams-timestamp"), t],
        w,
    ),
    symbols,
    st.one_of(timestamps, null),
    wide,
)
common_messages = st.tuples(
    st.one_of(st.just(b""), st.just(section(0x70, b"\x45"))),
    st.one_of(st.just(b""), offset_map.map(lambda v: section(0x71, v))),
    st.one_of(st.just(b""), st.one_of(common_map, grouped_map).map(lambda v: section(0x72, v))),
    st.one_of(
        st.just(b""),
        st.builds(
            lambda fields, n, w: section(0x73, counted(0xC0, 0xD0, list(fields)[:n], w)),
            st.tuples(
                *(st.one_of(null, strings, scalars) if field is any_id else field for field in FIELDS[:4]),
                st.one_of(null, strings),
                st.one_of(null, strings, scalars),
                *FIELDS[6:],
            ),
            st.integers(0, 13),
            wide,
        ),
    ),
    st.one_of(st.just(b""), common_map.map(lambda v: section(0x74, v))),
    st.one_of(
        binaries.map(lambda b: section(0x75, b)),
        st.one_of(strings, binaries).map(lambda v: section(0x77, v)),
        st.just(b""),
    ),
    st.one_of(st.just(b""), common_map.map(lambda v: section(0x78, v))),
).map(b"".join)
messages = st.one_of(common_messages, uncommon_messages)


def block(raws: list[bytes], gap: bytes = b"") -> MessageBlock:
    ends = np.cumsum([len(raw) + len(gap) for raw in raws], dtype=np.int64)
    starts = ends - np.array([len(raw) for raw in raws], np.int64)
    return MessageBlock(b"".join(gap + raw for raw in raws), starts, ends)


# ------------------------------------------------------------ one message at a time, as Python values


def shown(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value.decode()
    if pa.types.is_timestamp(kind):
        return value * 1_000
    if pa.types.is_struct(kind):
        return {field.name: shown(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key.decode(), None if item is None else item.decode()) for key, item in value]
    return value


def one_by_one(raws: list[bytes], names: list[str]) -> dict[str, list[Any]]:
    rows = [row_columns(raw, [IN_MS.get(name, name) for name in names]) for raw in raws]
    return {name: [shown(row[IN_MS.get(name, name)], COLUMN_TYPES[name]) for row in rows] for name in names}


def plain(array: pa.Array) -> list[Any]:
    """Return an array as Python values, timestamps as microseconds: many of them are beyond datetime."""
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_struct(array.type):
        children = {field.name: plain(array.field(i)) for i, field in enumerate(array.type)}
        return [
            {name: column[i] for name, column in children.items()} if array[i].is_valid else None
            for i in range(len(array))
        ]
    return array.to_pylist()


def in_columns(raws: list[bytes], names: list[str], gap: bytes = b"") -> dict[str, list[Any]]:
    columns = decode_columns(block(raws, gap), names)
    for name, array in columns.items():
        array.validate(full=True)
        assert array.type == COLUMN_TYPES[name]
        assert len(array) == len(raws)
    return {name: plain(array) for name, array in columns.items()}


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(messages, max_size=8), st.sampled_from([b"", b"\x00\x53\x75"]))
def test_a_block_gives_what_its_messages_give(raws: list[bytes], gap: bytes) -> None:
    names = MESSAGE_COLUMNS + DELIVERY_COLUMNS
    assert in_columns(raws, names, gap) == one_by_one(raws, names)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(common_messages, min_size=1, max_size=8))
def test_common_messages_take_the_lockstep_walk_alone(raws: list[bytes]) -> None:
    names = MESSAGE_COLUMNS + DELIVERY_COLUMNS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "row_columns", lambda raw, names, places: pytest.fail(f"fell back for {raw.hex()}"))
        columns = in_columns(raws, names)
    assert columns == one_by_one(raws, names)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(messages, max_size=5), st.sets(st.sampled_from(MESSAGE_COLUMNS + DELIVERY_COLUMNS), min_size=1))
def test_any_subset_of_columns(raws: list[bytes], chosen: set[str]) -> None:
    names = sorted(chosen)
    assert in_columns(raws, names) == one_by_one(raws, names)


@settings(max_examples=examples(60), deadline=None)
@given(messages)
def test_a_message_of_the_property_tests_is_a_message(raw: bytes) -> None:
    decode_message(raw)


# ------------------------------------------------------------ garbage


def outcome(decode: Any, raws: list[bytes], names: list[str]) -> Any:
    try:
        return decode(raws, names)
    except RemoteProtocolError:
        return "refused"


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a message with a few bytes replaced, removed or added, without delivery annotations and header."""
    raw = bytearray(
        draw(
            st.tuples(
                *(
                    [
                        optional(0x72, message_annotations),
                        optional(0x73, properties),
                        optional(0x74, application_properties),
                        bodies,
                    ]
                )
            ).map(b"".join)
        )
    )
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, max(len(raw) - 1, 0)))
        byte = draw(st.one_of(st.integers(0, 255), st.sampled_from([0x00, 0x40, 0x45, 0xA1, 0xC1, 0xD1, 0xFF])))
        match draw(st.integers(0, 3)):
            case 0 if raw:
                del raw[position]
            case 1:
                raw.insert(position, byte)
            case 2:
                del raw[position:]
            case _ if raw:
                raw[position] = byte
    return bytes(raw)


@settings(max_examples=examples(400), deadline=None)
@given(damaged(), st.lists(messages, max_size=2))
@example(b"\x00\x53\x74\xc1\x00", [])
@example(b"\x00\x53\x74\xd1\x00\x00\x00\x04\xff\xff\xff\xfe", [])
@example(b"\x00\x53\x72\xc1\x07\x02\xa3\x01\xe9\xa1\x01a", [])
@example(b"\x00\x53\x73\xc0\x03\x02\xa1\x09", [])
@example(b"\x00\x53\x75\xb0\xff\xff\xff\xff", [])
@example(b"\x00\x53\x77\xa1\x01\xff", [])
@example(b"\x00\x53\x75\xa0\x01a\x00\x53\x77\x40", [])
@example(b"\x00\x53\x78\xc1\x01\x00\x00\x53\x75\xa0\x00\x00\x53\x78\xc1\x01\x00\x00\x53\x75\xa0\x00", [])
def test_damage_is_refused_by_both_or_by_none(raw: bytes, others: list[bytes]) -> None:
    raws = [*others, raw]
    assert outcome(in_columns, raws, MESSAGE_COLUMNS) == outcome(one_by_one, raws, MESSAGE_COLUMNS)


FULL = section(0x72, counted(0xC1, 0xD1, [symbol("event-streams-group-key"), b"\xa1\x01k"], False))
FULL += section(0x73, counted(0xC0, 0xD0, [b"\x40"] * 9 + [b"\x83" + struct.pack(">q", 7)], False))
FULL += section(0x74, counted(0xC1, 0xD1, [b"\xa1\x06region", b"\xa1\x02eu"], False))


@settings(max_examples=examples(200), deadline=None)
@given(
    st.one_of(damaged(), messages),
    st.sets(st.sampled_from(MESSAGE_COLUMNS + DELIVERY_COLUMNS), min_size=1),
    st.lists(messages, max_size=2),
)
@example(FULL + b"\x00\x53\x75\xa0\x04good\xff\xfe\xfd", {"key", "value"}, [])
@example(FULL + b"\x00\x53\x77\x73\x00\x11\x00\x00", {"key", "value"}, [])
@example(FULL + b"\x00\x53\x75\xa0\x01a\x00\x53\x77\xa1\x01b", {"properties", "value"}, [])
@example(FULL + b"\x00\x53\x74\xc1\x05\x02\xa1\x00\x56\x02", {"application_properties", "message"}, [])
@example(b"\x00\x53\x72\xc1\x0a\x04\xa3\x01a\x56\x02\xa3\x01b\x45", {"key", "message_annotations", "value"}, [])
@example(section(0x73, counted(0xC0, 0xD0, [b"\x40"] * 9 + [b"\xa1\x01a", b"\xa1\x01g"], False)), {"key", "value"}, [])
def test_a_cell_is_the_same_whatever_is_asked_for_beside_it(raw: bytes, names: set[str], others: list[bytes]) -> None:
    alone = {name: outcome(in_columns, [raw], [name]) for name in MESSAGE_COLUMNS + DELIVERY_COLUMNS}
    for name, cell in alone.items():
        assert cell == outcome(one_by_one, [raw], [name])
    found = outcome(in_columns, [*others, raw], sorted(names))
    if any(alone[name] == "refused" for name in names):
        assert found == "refused"
    else:
        assert {name: column[-1:] for name, column in found.items()} == {n: alone[n][n] for n in sorted(names)}


any_delivery = maps(
    st.sampled_from(
        [
            symbol(f"event-streams-{name}")
            for name in ("offset", "timestamp", "source-partition", "assigned-partitions-changed")
        ]
    ),
    values,
).map(lambda value: section(0x71, value))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(any_delivery, min_size=1, max_size=3))
def test_delivery_annotations_of_any_type(raws: list[bytes]) -> None:
    assert outcome(in_columns, raws, DELIVERY_COLUMNS) == outcome(one_by_one, raws, DELIVERY_COLUMNS)


@settings(max_examples=examples(200), deadline=None)
@given(st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda b: b"\x00\x53\x71\xc1" + b)))
def test_garbage_is_refused_or_decoded_but_nothing_else(raw: bytes) -> None:
    for names in (MESSAGE_COLUMNS + DELIVERY_COLUMNS, DELIVERY_COLUMNS, ["value"], ["key"], ["message"]):
        outcome(in_columns, [raw], names)
    try:
        decode_message(raw)
    except RemoteProtocolError:
        assert outcome(in_columns, [raw], ["message"]) is not None
    incoming = incoming_columns(block([raw]))
    assert incoming.value_starts.size == 1


# ------------------------------------------------------------ what a log node reads


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(messages, st.binary(max_size=20)), max_size=6))
def test_incoming_columns_give_what_the_messages_give(raws: list[bytes]) -> None:
    names = ["group_key", "target_partition", "creation_time_ms"]
    incoming = incoming_columns(block(raws, b"\x70"))
    ends = np.cumsum([len(raw) + 1 for raw in raws], dtype=np.int64)
    for i, raw in enumerate(raws):
        try:
            row = row_columns(raw, names, last=0x78)
            one_by_one([raw], MESSAGE_COLUMNS)
        except RemoteProtocolError:
            # The one-by-one path decodes more than is asked for, so it may refuse what the block's path lets pass.
            continue
        assert not incoming.malformed[i]
        assert incoming.value_starts[i] == ends[i] - len(raw) + row["bare_start"]
        assert incoming.group_key[i].as_py() == shown(row["group_key"], pa.string())
        assert incoming.target_partition[i].as_py() == shown(row["target_partition"], pa.string())
        created = row["creation_time_ms"]
        assert incoming.creation_time_ms[i] == (NO_TIMESTAMP if created is None else created)


def test_incoming_columns_mark_what_is_broken() -> None:
    good = section(0x75, b"\xa0\x01a")
    broken = [
        b"\x00",
        b"\x00\x53\x75\xa0\x05a",
        section(0x72, b"\xc1\x03\x02\xa3\x05") + good,
        b"hello",
        section(0x72, counted(0xC1, 0xD1, [symbol("event-streams-group-key"), b"\xa1\x01\xff"], False)) + good,
    ]
    incoming = incoming_columns(block([good, *broken, good]))
    assert incoming.malformed.tolist() == [False, True, True, True, True, True, False]
    assert incoming.group_key.to_pylist() == [None] * 7


def test_broken_text_in_the_group_key_marks_its_message_only() -> None:
    good = section(0x75, b"\xa0\x01a")
    keys = [b"\xa1\x02\xc3\xa9", b"\xa3\x02\xc3\xa9", b"\xa1\x01\xff", b"\xa3\x01k", b"\x40"]
    group = symbol("event-streams-group-key")
    raws = [section(0x72, counted(0xC1, 0xD1, [group, key], False)) + good for key in keys]
    incoming = incoming_columns(block(raws))
    assert incoming.malformed.tolist() == [False, False, True, False, False]
    assert incoming.group_key.to_pylist() == ["é", "é", None, "k", None]


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.one_of(messages, damaged()), max_size=6))
def test_thorough_marks_what_no_reader_can_decode(raws: list[bytes]) -> None:
    incoming = incoming_columns(block(raws), thorough=True)
    names = ["value", "key", "properties", "application_properties", "message_annotations"]
    assert incoming.malformed.tolist() == [outcome(one_by_one, [raw], names) == "refused" for raw in raws]


def test_small_blocks_are_decoded_one_by_one() -> None:
    raws = [section(0x75, b"\xa0\x01" + bytes((i,))) for i in range(20)]
    alone: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "FEW", 12)
        patch.setattr(shaped_rows, "FEW", 12)
        patch.setattr(
            decode,
            "row_columns",
            lambda raw, names, places: alone.append(raw) or row_columns(raw, names, places),
        )
        for n, one_by_one_count in ((12, 12), (13, 0)):
            alone.clear()
            assert in_columns(raws[:n], ["value"]) == {"value": [bytes((i,)) for i in range(n)]}
            assert len(alone) == one_by_one_count


def test_uuid_text_is_lower_case() -> None:
    u = uuid.UUID("00112233-4455-6677-8899-AABBCCDDEEFF")
    raw = section(0x73, counted(0xC0, 0xD0, [b"\x98" + u.bytes], False)) + section(0x75, b"\xa0\x00")
    assert in_columns([raw], ["properties"])["properties"][0]["message_id"] == str(u)


@pytest.mark.parametrize("name", ["offset", "timestamp", "source_partition"])
def test_a_delivery_annotation_of_another_type_is_refused(name: str) -> None:
    raw = section(0x71, counted(0xC1, 0xD1, [symbol(f"event-streams-{name.replace('_', '-')}"), b"\x54\x05"], False))
    with pytest.raises(RemoteProtocolError, match=f"event-streams-{name.replace('_', '-')}: Int\\(5\\), expected a"):
        in_columns([raw + section(0x75, b"\xa0\x00")], [name])
