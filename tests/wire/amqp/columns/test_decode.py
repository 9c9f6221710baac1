"""What the columns mean: nulls, duplicates, overflow, order of precedence; messages are made by qpid-proton."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from proton import UNDESCRIBED, Array, Data, Message, int32, symbol, timestamp

from spark_streams import rows
from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.amqp import sections
from spark_streams.wire.amqp.columns import decode, typed
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES, decode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP


@pytest.fixture(autouse=True, scope="module", params=[0, sections.FEW], ids=["lockstep", "one by one"])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode even single messages in lockstep, and small blocks one by one as it is done without this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "FEW", request.param)
        yield


LAST_MS = 9_223_372_036_854_775  # N-06


def block(*messages: Message | bytes) -> MessageBlock:
    raws = [m if isinstance(m, bytes) else bytes(m.encode()) for m in messages]
    ends = np.cumsum([len(raw) for raw in raws], dtype=np.int64)
    return MessageBlock(b"".join(raws), ends - np.array([len(raw) for raw in raws], np.int64), ends)


def column(name: str, *messages: Message | bytes) -> list[Any]:
    return decode_columns(block(*messages), [name])[name].to_pylist()


def test_types_are_those_of_the_rows() -> None:
    for field in rows.FULL_MESSAGE_SCHEMA:
        if field.name not in ("stream", "partition"):
            assert COLUMN_TYPES[field.name] == field.type, field.name
    assert COLUMN_TYPES["properties"] == rows.PROPERTIES_TYPE


def test_columns_come_as_named() -> None:
    names = ["timestamp", "value", "offset"]
    columns = decode_columns(block(Message(body=b"x", inferred=True)), names)
    assert list(columns) == names
    with pytest.raises(LocalProtocolError, match="no such column: colour; there are value, key"):
        decode_columns(block(), ["colour"])


@pytest.mark.parametrize("name", COLUMN_TYPES)
def test_a_block_without_messages(name: str) -> None:
    array = decode_columns(MessageBlock(b"", np.zeros(0, np.int64), np.zeros(0, np.int64)), [name])[name]
    assert len(array) == 0 and array.type == COLUMN_TYPES[name]


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (0, 99), (3, 1)])
def test_ranges_outside_the_buffer_are_our_own_fault(start: int, end: int) -> None:
    with pytest.raises(LocalProtocolError, match="do not lie in its buffer"):
        decode_columns(MessageBlock(b"\x00\x53\x75\xa0\x00", np.array([start]), np.array([end])), ["value"])


def test_a_block_is_freed_as_soon_as_it_is_decoded() -> None:
    messages = block(*(Message(properties={"a": "b"}, annotations={symbol("c"): "d"}, subject="e") for _ in range(20)))
    buffer = np.frombuffer(bytes(messages.buffer) + bytes(64), np.uint8).copy()  # as padded, it is not copied
    names = ["properties", "application_properties", "message_annotations", "key"]
    arrays = decode_columns(MessageBlock(buffer, messages.starts, messages.ends), names)
    incoming = incoming_columns(MessageBlock(buffer, messages.starts, messages.ends), thorough=True)
    alive = weakref.ref(buffer)
    del buffer
    assert alive() is None and len(arrays["key"]) == len(incoming.group_key) == 20


def test_key_is_the_group_key_else_the_group_id() -> None:
    key = symbol("event-streams-group-key")
    assert column(
        "key",
        Message(annotations={key: "a"}, group_id="b"),
        Message(annotations={key: None}, group_id="b"),
        Message(annotations={symbol("x-opt-a"): "z"}, group_id="c"),
        Message(group_id="d"),
        Message(annotations={key: ""}),
        Message(annotations={key: 5}),
        Message(annotations={key: symbol("s")}),
        Message(),
    ) == ["a", "b", "c", "d", "", "5", "s", None]


def test_ids_as_text() -> None:
    import uuid

    from proton import ulong

    ids = ["m-1", ulong(2**64 - 1), ulong(0), uuid.UUID(int=255), b"\x00\xff", None]
    messages = [Message(id=i, correlation_id=i, subject="s") for i in ids]
    found = column("properties", *messages)
    expected = ["m-1", "18446744073709551615", "0", "00000000-0000-0000-0000-0000000000ff", "AP8=", None]
    assert [row["message_id"] for row in found] == [row["correlation_id"] for row in found] == expected


def test_nulls() -> None:
    bare = Message(body=b"", inferred=True)
    assert column("value", bare, Message(), Message(body=None, subject="x")) == [b"", None, None]
    assert column("value", b"\x00\x53\x77\x40", b"\x00\x53\x75\x40") == [None, None]
    two = b"\x00\x53\x75\x40\x00\x53\x75\xa0"
    assert column("value", two + b"\x00", two + b"\x01a", b"\x00\x53\x77\xa1\x04null") == [b"", b"a", b"null"]
    assert column(
        "application_properties", b"\x00\x53\x75\xa0\x00", b"\x00\x53\x74\xc1\x01\x00\x00\x53\x75\xa0\x00"
    ) == [
        None,
        [],
    ]
    assert column("message_annotations", Message(), Message(annotations={symbol("a"): None})) == [None, [("a", None)]]
    assert column("properties", b"\x00\x53\x75\xa0\x00") == [None]
    (empty,) = column("properties", b"\x00\x53\x73\x45\x00\x53\x75\xa0\x00")
    assert set(empty) == {name.name for name in rows.PROPERTIES_TYPE} and not any(empty.values())


def test_of_equal_keys_the_last_stays() -> None:
    def entries(*pairs: tuple[bytes, bytes]) -> bytes:
        content = b"".join(k + v for k, v in pairs)
        return b"\x00\x53\x74\xc1" + bytes((len(content) + 1, 2 * len(pairs))) + content + b"\x00\x53\x75\xa0\x00"

    a, b, long = b"\xa1\x01a", b"\xa1\x01b", b"\xa1\x1e" + b"k" * 30
    one, two, three = b"\x54\x01", b"\x54\x02", b"\x54\x03"
    assert column(
        "application_properties",
        entries((a, one), (b, two), (a, three)),
        entries((long, one), (long, two)),
        entries((a, one), (b"\xa3\x01a", two)),
        entries((a, one), (b, one)),
    ) == [[("a", "3"), ("b", "2")], [("k" * 30, "2")], [("a", "2")], [("a", "1"), ("b", "1")]]


def test_a_message_with_a_key_twice_must_be_sound_for_filters() -> None:
    a, wrong = b"\xa1\x01a\x54\x01", b"\xa1\x01s\xa3\x01\xff"
    field = typed.FieldOfMessage(0x74, "a")
    raws = [b"\x00\x53\x74\xc1" + bytes((len(each) + 1, 2 * n)) + each for n, each in ((2, a + a), (3, a + wrong + a))]
    assert typed.typed_columns(block(*raws), [field])[field].kind.tolist() == [typed.INTEGER, typed.BROKEN]


def test_map_values_as_text() -> None:
    message = Message(
        properties={
            "int": 5, "negative": int32(-70000), "float": 1.5, "yes": True, "text": "é", "none": None,
            "instant": timestamp(-1), "list": [1, {"a": None}], "bytes": b"\x01",
            "array": Array(UNDESCRIBED, Data.SYMBOL, symbol("a"), symbol("b")),
        }
    )  # fmt: skip
    assert column("application_properties", message) == [
        [
            ("int", "5"), ("negative", "-70000"), ("float", "1.5"), ("yes", "true"), ("text", "é"), ("none", None),
            ("instant", "-1"), ("list", '[1,{"a":null}]'), ("bytes", "AQ=="), ("array", '["a","b"]'),
        ]
    ]  # fmt: skip


def delivered(instant: int | None, **more: Any) -> Message:
    instructions = {symbol("event-streams-offset"): symbol("1")}
    if instant is not None:
        instructions[symbol("event-streams-timestamp")] = timestamp(instant)
    return Message(body="x", instructions={**instructions, **{symbol(k.replace("_", "-")): v for k, v in more.items()}})


def test_delivery_timestamps() -> None:
    instants = [0, -1, -386380800000, LAST_MS, -LAST_MS, None]
    messages = [delivered(i) for i in instants]
    columns = decode_columns(block(*messages), ["timestamp", "timestamp_ms"])
    assert columns["timestamp_ms"].to_pylist() == instants
    expected = [None if i is None else i * 1000 for i in instants]
    assert columns["timestamp"].cast(pa.int64()).to_pylist() == expected


@pytest.mark.parametrize("instant", [LAST_MS + 1, -LAST_MS - 1, 2**63 - 1, -(2**63)])
def test_timestamps_beyond_microseconds_are_refused(instant: int) -> None:
    message = delivered(instant)
    with pytest.raises(RemoteProtocolError, match=f"event-streams-timestamp: {instant} ms does not fit"):
        column("timestamp", delivered(0), message)
    assert column("timestamp_ms", message) == [instant]
    created = b"\x00\x53\x73\xc0\x13\x0a" + b"\x40" * 9 + b"\x83" + instant.to_bytes(8, "big", signed=True)
    for raw in (created, created.replace(b"\x00\x53\x73", b"\x00\x80" + bytes(7) + b"\x73")):
        with pytest.raises(RemoteProtocolError, match=f"property creation-time: {instant} ms does not fit"):
            column("properties", raw)
        assert incoming_columns(block(raw)).creation_time_ms.tolist() == [instant]


@pytest.mark.parametrize("instant", [LAST_MS + 1, -LAST_MS - 1, 2**63 - 1, -(2**63)])
def test_timestamps_beyond_microseconds_become_null_where_that_is_wanted(instant: int, few: None) -> None:
    names = ["timestamp", "timestamp_ms"]
    columns = decode_columns(block(delivered(0), delivered(instant), delivered(LAST_MS)), names, overflow="null")
    assert columns["timestamp"].cast(pa.int64()).to_pylist() == [0, None, LAST_MS * 1000]
    assert columns["timestamp_ms"].to_pylist() == [0, instant, LAST_MS]
    created = b"\x00\x53\x73\xc0\x13\x0a" + b"\x40" * 9 + b"\x83" + instant.to_bytes(8, "big", signed=True)
    for raw in (created, created.replace(b"\x00\x53\x73", b"\x00\x80" + bytes(7) + b"\x73")):
        properties = decode_columns(block(raw, raw), ["properties"], overflow="null")["properties"]
        assert [row["creation_time"] for row in properties.to_pylist()] == [None, None]


def test_partitions_and_their_changes() -> None:
    partitions = Array(UNDESCRIBED, Data.SYMBOL, symbol("0"), symbol("1"))
    messages = [
        delivered(1, event_streams_source_partition=symbol("7")),
        delivered(2, event_streams_associated_partitions_changed=partitions),
        delivered(3, event_streams_assigned_partitions_changed=partitions),
        Message(),
    ]
    columns = decode_columns(block(*messages), ["source_partition", "partitions_changed", "offset"])
    assert columns["source_partition"].to_pylist() == ["7", None, None, None]
    assert columns["partitions_changed"].to_pylist() == [None, ["0", "1"], ["0", "1"], None]
    assert columns["offset"].to_pylist() == ["1", "1", "1", None]
    wrong = delivered(1, event_streams_assigned_partitions_changed=5)
    with pytest.raises(RemoteProtocolError, match="expected an array of symbols"):
        column("partitions_changed", wrong)


def test_text_that_is_not_utf8_is_refused_with_its_column() -> None:
    body = b"\x00\x53\x75\xa0\x00"
    key = b"\x00\x53\x72\xc1\x1d\x02\xa3\x17event-streams-group-key\xa1\x01\xff" + body
    with pytest.raises(RemoteProtocolError, match=r"(column 'key'|message-annotations section): .*not UTF-8"):
        column("key", key)
    subject = b"\x00\x53\x73\xc0\x07\x04\x40\x40\x40\xa1\x01\xff" + body
    with pytest.raises(RemoteProtocolError, match=r"(column 'properties.subject'|properties section): .*not UTF-8"):
        column("properties", subject)
    assert column("value", subject) == [b""]


def test_incoming_columns() -> None:
    plain = Message(body=b"a", inferred=True)
    target = Message(
        body="b",
        durable=True,
        instructions={symbol("event-streams-target-partition"): symbol("2")},
        annotations={symbol("event-streams-group-key"): "k"},
        creation_time=-1.5,
    )
    b = block(plain, target, b"\x00\x53\x75\xa0\x05")
    incoming = incoming_columns(b)
    assert incoming.malformed.tolist() == [False, False, True]
    assert incoming.group_key.to_pylist() == [None, "k", None]
    assert incoming.target_partition.to_pylist() == [None, "2", None]
    assert incoming.creation_time_ms.tolist()[:2] == [NO_TIMESTAMP, -1500]
    stored = [bytes(b.buffer)[s:e] for s, e in zip(incoming.value_starts, b.ends, strict=True)][:2]
    assert stored[0] == bytes(plain.encode())[4:]  # the header is 00 53 70 45
    assert stored[1].startswith(b"\x00\x53\x72")


def test_a_large_block_in_the_middle_of_a_larger_buffer() -> None:
    n = 3000
    raws = [bytes(Message(body=f"body {i}" * (i % 5), id=f"m{i}", inferred=False).encode()) for i in range(n)]
    ends = np.cumsum([len(raw) for raw in raws], dtype=np.int64) + 10_000
    starts = ends - np.array([len(raw) for raw in raws], np.int64)
    buffer = np.frombuffer(b"\x99" * 10_000 + b"".join(raws) + b"\x99" * 5000, np.uint8)
    order = np.random.default_rng(5).permutation(n)
    columns = decode_columns(
        MessageBlock(memoryview(buffer), starts[order], ends[order]), ["value", "properties", "message"]
    )
    assert columns["value"].to_pylist() == [(f"body {i}" * (i % 5)).encode() for i in order]
    assert [row["message_id"] for row in columns["properties"].to_pylist()] == [f"m{i}" for i in order]
    assert columns["message"][0].as_py() == raws[order[0]][4:]


def two_sections(first: bytes, second: bytes) -> bytes:
    """A message that is decoded one by one."""
    return b"".join(b"\0Su\xa0" + bytes([len(data)]) + data for data in (first, second))


@pytest.mark.parametrize("mixed", [False, True])
def test_text_that_is_too_much_for_one_array_is_refused(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [two_sections(b"a" * 40, b"b" * 40)] * 2 + [b"\0Su\xa0\x28" + b"c" * 40] * mixed
    assert column("value", *messages) == [b"a" * 40 + b"b" * 40] * 2 + [b"c" * 40] * mixed
    most = 190 if mixed else 150  # of the bytes and offsets of the irregular ones, and of all
    monkeypatch.setattr(decode, "MAX_BLOCK_BYTES", most)
    with pytest.raises(LocalProtocolError, match=f"grew past {most} bytes: decode smaller blocks"):
        column("value", *messages)


def test_rows_of_both_ways_keep_their_places() -> None:
    plain = [b"\0Su\xa0\x01%d" % n for n in range(6)]
    for places in ((0,), (5,), (2, 3), (0, 2, 5), range(6)):
        messages: list[bytes] = [two_sections(b"x", b"%d" % n) if n in places else plain[n] for n in range(6)]
        expected = [b"x%d" % n if n in places else b"%d" % n for n in range(6)]
        assert column("value", *messages) == expected
        assert column("key", *messages) == [None] * 6
