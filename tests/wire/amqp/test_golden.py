"""Bytes that others made, or hands: specification, proton, rhea, RabbitMQ. Provenance heads each file in golden/."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp import sections
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES, decode_columns
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import split_sections
from spark_streams.wire.amqp.values import Array, Described, Float, Symbol, Timestamp, ULong
from tests.wire.amqp.messages import Amqp, Data, Message, Sequence, decode_message, encode_message

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True, scope="module", params=[0, sections.FEW], ids=["lockstep", "one by one"])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode even single messages in lockstep, and small blocks one by one as it is done without this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "FEW", request.param)
        yield


def vectors(name: str) -> dict[str, bytes]:
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return {line.split()[0]: bytes.fromhex(line.split()[1]) for line in lines if not line.startswith("#")}


VALUES = vectors("specification")
MESSAGES = {f"{origin}-{name}": raw for origin in ("proton", "rhea") for name, raw in vectors(origin).items()}
ALL = ["value", "key", "properties", "application_properties", "message_annotations", "message"]


def columns(raw: bytes, *names: str) -> dict[str, Any]:
    """Return one message's row, the message lying between other bytes."""
    block = MessageBlock(b"\xff" + raw + b"\xff\xff", np.array([1]), np.array([1 + len(raw)]))
    return {name: array.to_pylist()[0] for name, array in decode_columns(block, names or ALL).items()}


def test_values_of_the_specification() -> None:
    assert decode_value(VALUES["url"])[0] == Described("URL", "http://example.org/hello-world")
    authors = Array(0xA1, ("Rob J. Godfrey", "Rafael H. Schloming"))
    book = Described("example:book:list", ["AMQP for & by Dummies", authors, None])
    assert decode_value(VALUES["book"])[0] == book
    offset_filter = decode_value(VALUES["filter-offset"])[0]
    assert offset_filter == {"start": Described(ULong(512), {"event-streams-offset": "@earliest"})}
    assert isinstance(next(iter(offset_filter)), Symbol)
    text = "d.[event-streams-timestamp] > 1585672841000"
    assert decode_value(VALUES["filter-sql"])[0] == {"start": Described("amqp:event-streams-sql-filter", text)}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_the_specification_is_encoded_as_it_is_there(name: str) -> None:
    value, end = decode_value(VALUES[name])
    assert end == len(VALUES[name])
    assert encode_value(value) == VALUES[name]


@pytest.mark.parametrize("name", VALUES)
def test_a_value_cut_anywhere_is_refused(name: str) -> None:
    for end in range(len(VALUES[name])):
        with pytest.raises(RemoteProtocolError):
            decode_value(VALUES[name][:end])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_decodes_and_encodes_to_the_same_message(name: str) -> None:
    raw = MESSAGES[name]
    message = decode_message(raw)
    encoded = encode_message(message)
    assert decode_message(encoded) == message
    compound = any(byte >> 4 in (0xD, 0xF) for byte in raw)
    # Both write compound values with 4-byte sizes, which we shorten; the rest is the same byte for byte.
    assert len(encoded) <= len(raw) if compound else encoded == raw


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_cut_anywhere_is_refused_or_has_whole_sections_only(name: str) -> None:
    raw = MESSAGES[name]
    whole = {section.end for section in split_sections(raw)} | {0}
    for end in range(len(raw)):
        if end in whole:
            assert encode_message(decode_message(raw[:end])) is not None
            columns(raw[:end])
            continue
        with pytest.raises(RemoteProtocolError):
            decode_message(raw[:end])
        with pytest.raises(RemoteProtocolError):
            columns(raw[:end])
    with pytest.raises(RemoteProtocolError):
        decode_message(raw + b"\x00")
    with pytest.raises(RemoteProtocolError):
        columns(raw + b"\xff")


BODIES = {
    "proton-empty": None,
    "proton-data": Data((b"hello",)),
    "proton-binary-value": Amqp(b"\x00\xff"),
    "proton-string": Amqp("grüße ☃"),
    "proton-sequence": Sequence(([1, "two", True, None],)),
    "proton-value-list": Amqp([1, "two", True, None]),
    "proton-array-symbol": Amqp(Array(0xB3, (Symbol("p0"), Symbol("p1")))),
    "proton-array-described": Amqp(Array(0x71, (1, 2), Symbol("my:int"))),
    "proton-array-long-strings": Amqp(Array(0xB1, ("a" * 300, "b"))),
    "proton-map-nested": Amqp({"a": {"b": [1, {"c": None}]}, Symbol("s"): b"x", 5: 1.25}),
    "proton-described": Amqp(Described(Symbol("my:descriptor"), ["x", 3])),
    "proton-big-body": Data((b"z" * 300,)),
    "rhea-several-data": Data((b"ab", b"cd")),
    "rhea-sequence": Sequence(([1, "two", True, None],)),
    "rhea-value-map": Amqp({"a": 1, "b": [1, 2, 3], "c": {"d": "e"}}),
    "rhea-array": Amqp(Array(0xA3, (Symbol("p0"), Symbol("p1")))),
    "rhea-list": Amqp(["x", 3]),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    assert decode_message(MESSAGES[name]).body == BODIES[name]


VALUE_COLUMN = {
    "proton-empty": None,
    "proton-data": b"hello",
    "proton-binary-value": b"\x00\xff",
    "proton-string": "grüße ☃".encode(),
    "proton-sequence": b'[1,"two",true,null]',
    "proton-value-list": b'[1,"two",true,null]',
    "proton-array-symbol": b'["p0","p1"]',
    "proton-array-described": b'[{"descriptor":"my:int","value":1},{"descriptor":"my:int","value":2}]',
    "proton-map-nested": b'{"a":{"b":[1,{"c":null}]},"s":"eA==","5":1.25}',
    "proton-described": b'{"descriptor":"my:descriptor","value":["x",3]}',
    "proton-big-body": b"z" * 300,
    "proton-all-sections": b"body",
    "rhea-several-data": b"abcd",
    "rhea-value-map": b'{"a":1,"b":[1,2,3],"c":{"d":"e"}}',
    "rhea-annotations": b"body",
    "rhea-typed": b'[5,0,-386380800000,1.5,0.1,"sym",255,-3,-5000000000,"AP8="]',
    "proton-typed": (
        b"[255,65535,0,255,70000,0,18446744073709551615,-128,-3,-5,70000,5,-5000000000,true,false,null,"
        b'"\xe2\x98\x83",0.5,1.5,-386380800000,"00112233-4455-6677-8899-aabbccddeeff","AQ==","s","sym",'
        b'"1","5E-398","7"]'
    ),
}


@pytest.mark.parametrize("name", VALUE_COLUMN)
def test_the_value_column(name: str) -> None:
    assert columns(MESSAGES[name], "value") == {"value": VALUE_COLUMN[name]}


@pytest.mark.parametrize("name", ["proton-all-sections", "rhea-annotations"])
def test_all_columns_of_a_message_with_all_sections(name: str) -> None:
    raw = MESSAGES[name]
    by_proton = name.startswith("proton")
    row = columns(raw, *COLUMN_TYPES)
    created = dt.datetime(2020, 3, 31, 16, 40, 41, tzinfo=dt.timezone.utc)
    assert row["value"] == b"body"
    assert row["key"] == "customer-7"
    assert row["offset"] == "00000000000000000042"
    assert row["timestamp"] == created
    assert row["timestamp_ms"] == 1585672841000
    assert row["source_partition"] is None and row["partitions_changed"] is None
    assert row["message_annotations"] == [("event-streams-group-key", "customer-7"), ("x-opt-n", "5")]
    assert row["application_properties"] == [
        ("kind", "order"),
        ("amount", "12.5"),
        ("count", "3"),
        ("flag", "true"),
        ("none", None),
    ]
    assert row["properties"] == {
        "message_id": str(uuid.UUID(int=5)) if by_proton else None,
        "user_id": b"guest",
        "to": "orders" if by_proton else None,
        "subject": "snow" if by_proton else None,
        "reply_to": "back",
        "correlation_id": "AQI=" if by_proton else None,
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "absolute_expiry_time": created + dt.timedelta(seconds=1),
        "creation_time": created,
        "group_id": "g",
        "group_sequence": 9,
        "reply_to_group_id": "r",
    }
    assert row["message"] == raw[raw.index(b"\x00\x53\x72") :]


def test_a_message_of_rhea_as_values() -> None:
    message = decode_message(MESSAGES["rhea-annotations"])
    assert message == Message(
        header=[True, 7, 60000],
        delivery_annotations={
            "event-streams-offset": "00000000000000000042",
            "event-streams-timestamp": Timestamp(1585672841000),
        },
        message_annotations={"event-streams-group-key": "customer-7", "x-opt-n": 5},
        properties=[
            None,
            b"guest",
            None,
            None,
            "back",
            None,
            "text/plain",
            "utf-8",
            Timestamp(1585672842000),
            Timestamp(1585672841000),
            "g",
            9,
            "r",
        ],
        application_properties={"kind": "order", "amount": 12.5, "count": 3, "flag": True, "none": None},
        body=Data((b"body",)),
        footer={"x-opt-crc": 99},
    )
    floats = decode_message(MESSAGES["rhea-typed"]).body
    assert isinstance(floats, Amqp) and type(floats.value[4]) is Float


def test_what_rabbitmq_stores_of_amqp_0_9_1() -> None:
    stored = vectors("rabbitmq-0-9-1")
    for name, raw in stored.items():
        assert columns(raw, "value")["value"] == (b"" if name == "empty" else b"odd")
    header = columns(stored["header"], "message_annotations", "application_properties")
    assert header["message_annotations"][-1] == ("x-größe", "L")
    assert header["application_properties"] == [("region", "eu")]
    assert columns(stored["content-type"], "properties")["properties"]["content_type"] == "text/plain; name=größe"
    assert columns(stored["content-encoding"], "properties")["properties"]["content_encoding"] == "é"
    times = [columns(raw, "properties_ms")["properties_ms"] for name, raw in stored.items() if "timestamp" in name]
    n = 1_700_000_000_000
    wrapped = [138_000_000_000_000_000_000 % 2**64, -1_000]
    assert [time["creation_time"] for time in times] == [n, n * 1_000, n * 10**6, n * 10**9 % 2**64, *wrapped]
