"""A sink's rows as messages: what qpid-proton and our per-message codec read in them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Message, symbol

from spark_streams import rows
from spark_streams.errors import LocalProtocolError, SchemaError
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_HUBS, EVENT_STREAMS, RABBITMQ
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.values import Symbol, Timestamp
from tests.examples import examples
from tests.wire.amqp.messages import Amqp, Data, decode_message, encode_message

TEXT_MAP = pa.map_(pa.string(), pa.string())


def encoded(**columns: Any) -> list[bytes]:
    arrays = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    payloads = encode_columns(arrays)
    assert payloads.type == pa.large_binary()
    payloads.validate(full=True)
    return payloads.to_pylist()


def by_proton(raw: bytes) -> Message:
    message = Message()
    message.decode(raw)
    return message


def test_a_message_is_the_one_proton_writes() -> None:
    (ours,) = encoded(
        value=[b"body"],
        key=["customer-7"],
        partition=["3"],
        timestamp=pa.array([1585672841000999], rows.TIMESTAMP),
        message_id=["q-1-0-5"],
        properties=pa.array(
            [{"user_id": b"guest", "to": "orders", "subject": "snow", "reply_to": "back", "correlation_id": "c",
              "content_type": "text/plain", "content_encoding": "utf-8", "group_id": "g", "group_sequence": 70000,
              "reply_to_group_id": "r", "absolute_expiry_time": dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)}],
            pa.struct([f for f in rows.PROPERTIES_TYPE if f.name not in ("message_id", "creation_time")]),
        ),
        application_properties=pa.array([[("a", "é"), ("b", None)]], TEXT_MAP),
        message_annotations=pa.array([[("x-opt-a", "b")]], TEXT_MAP),
        stream=["orders"],
        offset=["5"],
    )  # fmt: skip
    theirs = Message(
        body=b"body", inferred=True, id="q-1-0-5", user_id=b"guest", address="orders", subject="snow", reply_to="back",
        correlation_id="c", content_type=symbol("text/plain"), content_encoding=symbol("utf-8"), group_id="g",
        group_sequence=70000, reply_to_group_id="r", creation_time=1585672841.0, expiry_time=1893456000.0,
        properties={"a": "é", "b": None},
        annotations={symbol("event-streams-group-key"): "customer-7", symbol("x-opt-a"): "b"},
        instructions={symbol("event-streams-target-partition"): symbol("3")},
    )  # fmt: skip
    expected = decode_message(bytes(theirs.encode()))
    found = decode_message(ours)
    assert found.header is None and expected.header == []
    for part in ("delivery_annotations", "message_annotations", "properties", "application_properties", "body"):
        assert getattr(found, part) == getattr(expected, part), part
    assert all(type(key) is Symbol for key in found.message_annotations or ())
    assert type((found.delivery_annotations or {})["event-streams-target-partition"]) is Symbol
    assert encode_message(found)[:45] == ours[:45]


def test_value_alone() -> None:
    assert encoded(value=["é", "", None]) == [
        b"\x00\x53\x75\xa0\x02\xc3\xa9",
        b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x77\x40",
    ]
    large = encoded(value=pa.array([b"x" * 256, b""], pa.large_binary()))
    assert large == [b"\x00\x53\x75\xb0\x00\x00\x01\x00" + b"x" * 256, b"\x00\x53\x75\xb0\x00\x00\x00\x00"]
    assert encoded(value=pa.array([], pa.binary())) == []


@pytest.mark.parametrize(("micros", "millis"), [(-1, -1), (-999, -1), (-1000, -1), (-1001, -2), (0, 0), (999, 0)])
def test_microseconds_are_floored(micros: int, millis: int) -> None:
    (raw,) = encoded(value=["x"], timestamp=pa.array([micros], rows.TIMESTAMP))
    assert (decode_message(raw).properties or [])[9] == Timestamp(millis)
    assert round(by_proton(raw).creation_time * 1000) == millis


def test_defaults_fill_only_what_is_null() -> None:
    kind = pa.struct([("message_id", pa.string()), ("creation_time", rows.TIMESTAMP), ("subject", pa.string())])
    raws = encoded(
        value=["a", "b", "c"],
        message_id=["x", "y", None],
        timestamp=pa.array([5000, None, None], rows.TIMESTAMP),
        properties=pa.array([{"message_id": "own", "creation_time": 7000, "subject": None}, {}, None], kind),
    )
    own, default, without = (decode_message(raw).properties for raw in raws)
    assert own is not None and own[0] == "own" and own[9] == 7
    assert default is not None and default[0] == "y" and default[9] is None
    assert without is None


def test_a_partition_is_a_target_partition_only_where_it_is() -> None:
    raws = encoded(value=["a", "b"], partition=["7", None])
    assert raws[0][:3] == b"\x00\x53\x71" and raws[1] == b"\x00\x53\x75\xa0\x01b"
    assert by_proton(raws[0]).instructions == {"event-streams-target-partition": "7"}


def test_key_wins_over_the_annotation_of_that_name() -> None:
    name = "event-streams-group-key"
    annotations = [[(name, "old"), ("a", "1")], [(name, "old")], None, [], [("a", "1"), (name, None)]]
    raws = encoded(
        value=["x"] * 5, key=["new", None, "new", None, "new"], message_annotations=pa.array(annotations, TEXT_MAP)
    )
    found = [decode_message(raw).message_annotations for raw in raws]
    assert found == [{name: "new", "a": "1"}, {name: "old"}, {name: "new"}, {}, {name: "new", "a": "1"}]


def test_slices_and_chunks() -> None:
    n = 20
    maps = pa.array([[(f"k{i}", str(i))] * (i % 3) if i % 4 else None for i in range(n)], TEXT_MAP)
    text = pa.array([f"v{i}" for i in range(n)])
    table = {"value": text, "application_properties": maps, "key": text}
    whole = encode_columns(table).to_pylist()
    assert encode_columns({k: v.slice(7, 5) for k, v in table.items()}).to_pylist() == whole[7:12]
    assert encode_columns({k: pa.chunked_array([v[:3], v[3:]]) for k, v in table.items()}).to_pylist() == whole
    structs = pa.array([{"subject": f"s{i}"} for i in range(n)])
    with_struct = encode_columns({"value": text, "properties": structs}).to_pylist()
    sliced = encode_columns({"value": text.slice(3, 4), "properties": structs.slice(3, 4)}).to_pylist()
    assert sliced == with_struct[3:7]


def test_long_texts_and_maps() -> None:
    long = "é" * 200
    big = [(f"key-{i}", long) for i in range(200)]
    (raw, short) = encoded(
        value=["x", "y"],
        key=[long, "k"],
        partition=["p" * 300, "p"],
        application_properties=pa.array([big, [("a", "b")]], TEXT_MAP),
        properties=[{"subject": long, "content_type": "t" * 300}, {"subject": None, "content_type": None}],
    )
    message = by_proton(raw)
    assert message.properties == dict(big)
    assert message.subject == long and message.content_type == "t" * 300
    assert message.annotations == {"event-streams-group-key": long}
    assert message.instructions == {"event-streams-target-partition": "p" * 300}
    assert by_proton(short).properties == {"a": "b"} and by_proton(short).subject is None


def test_a_raw_message_goes_out_as_it_is() -> None:
    raw = bytes(Message(body="b", id=5, annotations={symbol("x-opt-a"): 1}, properties={"n": 1}).encode())
    with_delivery = bytes(Message(body="b", durable=True, instructions={symbol("x-opt-hop"): 1}).encode())
    irregular = b"\x00\x80" + bytes(7) + b"\x75\xa0\x01z"
    found = encoded(
        message=pa.array([raw, with_delivery, None, irregular, raw], pa.binary()),
        value=["1", "2", "3", "4", "5"],
        key=["k"] * 5,
        partition=["0", "1", "2", "3", None],
    )
    target = [{"event-streams-target-partition": p} for p in "0123"]
    assert [decode_message(r).delivery_annotations for r in found] == [*target, None]
    assert found[0][:4] == b"\x00\x53\x70\x45" and found[0].endswith(raw[4:])
    assert decode_message(found[1]).header == [True] and decode_message(found[1]).body == Amqp("b")
    assert decode_message(found[2]).body == Data((b"3",))
    assert decode_message(found[2]).message_annotations == {"event-streams-group-key": "k"}
    assert found[3].endswith(irregular)
    assert found[4] == raw
    assert encoded(message=[raw]) == [raw]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [1]}, "column 'value': int64, expected string or binary"),
        ({"value": ["a"], "key": [1]}, "column 'key': int64, expected string"),
        ({"value": ["a"], "timestamp": ["now"]}, "column 'timestamp': string, expected timestamp"),
        ({"value": ["a"], "properties": ["p"]}, "column 'properties': string, expected struct"),
        ({"value": ["a"], "properties": [{"colour": "red"}]}, "column 'properties': no field colour"),
        ({"value": ["a"], "properties": [{"to": 5}]}, r"column 'properties.to': int64, expected string"),
        ({"value": ["a"], "properties": [{"group_sequence": "5"}]}, "group_sequence': string, expected bigint"),
        ({"value": ["a"], "properties": [{"group_sequence": -1}]}, "row 0: -1, expected 0 to 4294967295"),
        ({"value": ["a", "a"], "properties": [None, {"group_sequence": 2**32}]}, "row 1: 4294967296, expected 0"),
        ({"value": ["a", "b"], "partition": [None, "é"]}, "column 'partition', row 1: 'é' is no AMQP symbol"),
        ({"value": ["a"], "properties": [{"content_type": "é"}]}, r"'properties.content_type', row 0: 'é' is no AMQP"),
        ({"value": ["a"], "application_properties": ["p"]}, "column 'application_properties': string, expected map"),
        ({"message": [b"a"]}, "column 'message', row 0: not an encoded AMQP message"),
        ({"message": [b""]}, "column 'message', row 0: empty, expected an encoded AMQP message"),
        ({"message": [b"\x00\x53\x75\xa0\x00", None]}, "column 'message', row 1: null, and there is no column 'value'"),
    ],
)
def test_what_cannot_be_said(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        encoded(**columns)


def test_symbols_in_annotation_keys() -> None:
    maps = pa.array([[("ok", "1"), ("nö", "2")]], TEXT_MAP)
    with pytest.raises(SchemaError, match=r"column 'message_annotations \(key\)', row 0: 'nö' is no AMQP symbol"):
        encoded(value=["a"], message_annotations=maps)


@pytest.mark.parametrize("places", [EVENT_STREAMS.places, RABBITMQ.places, EVENT_HUBS.places])
def test_a_null_comes_back_as_null_and_the_text_as_a_text(places: Places) -> None:
    values = [None, b"null", b"", b"x"]
    encoded = encode_columns({"value": pa.array(values, pa.binary())}, places).to_pylist()
    ends = np.cumsum([len(message) for message in encoded])
    block = MessageBlock(b"".join(encoded), np.array([0, *ends[:-1]]), ends)
    assert decode_columns(block, ("value",))["value"].to_pylist() == values


def test_what_columns_say_of_a_row_that_is_sent_whole_is_no_error() -> None:
    odd = b"\x00\x53\x72\xc1\x08\x02\xa3\x02\xc3\xb6\xa1\x01a\x00\x53\x75\xa0\x01o"
    columns = {
        "value": pa.array([b"o", b"p"], pa.binary()),
        "message_annotations": pa.array([[("ö", "a")], [("x-a", "b")]], TEXT_MAP),
        "properties": pa.array([{"content_type": "é"}, {"content_type": "text/plain"}]),
        "message": pa.array([odd, None], pa.binary()),
    }
    sent = encode_columns(columns).to_pylist()
    assert sent[0] == odd and b"x-a" in sent[1] and b"text/plain" in sent[1]
    columns["message"] = pa.array([None, odd], pa.binary())
    with pytest.raises(SchemaError, match=r"column 'message_annotations \(key\)', row 0: 'ö' is no AMQP symbol"):
        encode_columns(columns)


def test_our_own_faults() -> None:
    for columns in ({"key": ["a"]}, {"value": ["a"], "colour": ["red"]}):
        with pytest.raises(LocalProtocolError, match="expected 'value' or 'message'"):
            encoded(**columns)
    with pytest.raises(LocalProtocolError, match="columns of different lengths: value 1, key 2"):
        encoded(value=["a"], key=["a", "b"])


# ------------------------------------------------------------ back again

text = st.one_of(st.none(), st.text(max_size=12))
ascii_text = st.one_of(st.none(), st.text(st.characters(max_codepoint=127), max_size=12))
micros = st.one_of(st.none(), st.integers(-6 * 10**13, 6 * 10**13).map(lambda n: n * 1000))
PROPERTY_VALUES = {
    "user_id": st.one_of(st.none(), st.binary(max_size=5)),
    "content_type": ascii_text,
    "content_encoding": ascii_text,
    "absolute_expiry_time": micros,
    "creation_time": micros,
    "group_sequence": st.one_of(st.none(), st.integers(0, 2**32 - 1)),
}
property_rows = st.one_of(
    st.none(), st.fixed_dictionaries({f.name: PROPERTY_VALUES.get(f.name, text) for f in rows.PROPERTIES_TYPE})
)
map_rows = st.one_of(st.none(), st.dictionaries(st.text(max_size=8), text, max_size=3).map(lambda d: list(d.items())))
annotation_rows = st.one_of(
    st.none(),
    st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=8), text, max_size=3).map(
        lambda d: list(d.items())
    ),
)
row = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=300),
        "key": text,
        "properties": property_rows,
        "application_properties": map_rows,
        "message_annotations": annotation_rows,
    }
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(row, min_size=1, max_size=6), st.sets(st.sampled_from(["key", "properties", "message_annotations"])))
def test_rows_come_back(sent: list[dict[str, Any]], left_out: set[str]) -> None:
    names = [name for name in sent[0] if name not in left_out]
    schema = {field.name: field.type for field in rows.MESSAGE_SCHEMA}
    columns = {name: pa.array([r[name] for r in sent], schema[name]) for name in names}
    payloads = encode_columns(columns)
    for raw in payloads.to_pylist():
        by_proton(raw)
        assert encode_message(decode_message(raw)) is not None
        assert m.split_sections(raw)
    offsets = np.frombuffer(payloads.buffers()[1], np.int64)[: len(sent) + 1]
    back = decode_columns(MessageBlock(memoryview(payloads.buffers()[2]), offsets[:-1], offsets[1:]), names)
    for name in names:
        expected = columns[name].to_pylist()
        if name == "properties":
            expected = [None if p is None or not any(v is not None for v in p.values()) else p for p in expected]
        if name == "message_annotations" and "key" in names:
            keys = columns["key"].to_pylist()
            group = "event-streams-group-key"
            expected = [
                e if k is None else [(group, k), *(pair for pair in e or [] if pair[0] != group)]
                for k, e in zip(keys, expected, strict=True)
            ]
        if name == "key" and "properties" in names:
            groups = [p and p["group_id"] for p in columns["properties"].to_pylist()]
            expected = [g if k is None else k for k, g in zip(expected, groups, strict=True)]
        found = back[name].to_pylist()
        assert found == expected, name


def test_a_rows_key_takes_the_place_of_its_annotation_and_of_no_other_rows() -> None:
    key, other = "event-streams-group-key", "x-opt-a"
    found = encoded(
        value=[b"0", b"1", b"2", b"3", b"4"],
        key=["k0", None, "k2", "k3", None],
        message_annotations=pa.array(
            [[(key, "a0"), (other, "b0")], [(key, "a1")], [(other, "b2"), (key, "a2")], [(other, "b3")], None], TEXT_MAP
        ),
    )
    assert [decode_message(raw).message_annotations for raw in found] == [
        {key: "k0", other: "b0"},
        {key: "a1"},
        {key: "k2", other: "b2"},
        {key: "k3", other: "b3"},
        None,
    ]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("us", tz="Europe/Oslo")])
def test_instants_of_any_kind_are_milliseconds_rounded_down(kind: pa.DataType) -> None:
    scale = 1000 if kind.unit == "us" else 1
    instants = pa.array([1585672841000 * scale, -386380800000 * scale, -1, None], pa.int64()).cast(kind)
    expiry = pa.StructArray.from_arrays([instants], ["absolute_expiry_time"])
    found = [decode_message(raw) for raw in encoded(value=[b""] * 4, timestamp=instants, properties=expiry)]
    places = [each.properties or [] for each in found]
    for place in (8, 9):  # absolute-expiry-time and creation-time
        at = [part[place] if len(part) > place else None for part in places]
        assert at == [Timestamp(1585672841000), Timestamp(-386380800000), Timestamp(-1), None]


def test_an_empty_slice_of_maps_is_no_rows() -> None:
    kind = pa.map_(pa.string(), pa.string())
    sent = {"value": pa.array(["a", "b"]), "application_properties": pa.array([[("k", "v")], [("l", "w")]], kind)}
    assert encode_columns({name: column.slice(2) for name, column in sent.items()}).to_pylist() == []
    (rest,) = encode_columns({name: column.slice(1) for name, column in sent.items()}).to_pylist()
    assert decode_message(rest).application_properties == {"l": "w"}
