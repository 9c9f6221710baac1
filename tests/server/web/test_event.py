"""One event in full: its sections with their types, its body in each form, hostile bytes, and events of 10 MB."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from html import unescape
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.server.rabbitmq.stored_form import ESCAPE
from spark_streams.server.web.event_parts import Body, body_bytes, head_size, message_of, type_of
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal64,
    Described,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from tests.server.web.conftest import Window, shown

MOST = 64 << 10
HEADER, ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)


def section(code: int, value: object) -> bytes:
    return bytes([0, 0x53, code]) + encode_value(value)


def body(raw: bytes, most: int = MOST) -> Body:
    found = message_of(raw, most).body
    assert found is not None
    return found


def fields(raw: bytes) -> dict[str, list[tuple[str, str, str]]]:
    return {part.name: [(f.name, f.type, f.text) for f in part.fields] for part in message_of(raw, MOST).parts}


def test_all_sections_with_their_types() -> None:
    raw = (
        section(HEADER, [True, UByte(4), UInt(1000)])
        + section(ANNOTATIONS, {Symbol("x-hop"): Int(-1)})
        + section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): Symbol("s"), Symbol("none"): None})
        + section(PROPERTIES, ["id", b"\x01\xff", None, "subject", *[None] * 5, Timestamp(-386_380_800_000)])
        + section(APPLICATION, {"text": "x", "ulong": ULong(2**64 - 1), "float": Float(0.1), "uuid": uuid.UUID(int=5)})
        + section(DATA, b"body")
        + section(FOOTER, {Symbol("f"): True})
    )
    assert fields(raw) == {
        "header": [("durable", "boolean", "true"), ("priority", "ubyte", "4"), ("ttl", "uint", "1000")],
        "delivery-annotations": [("x-hop", "int", "-1")],
        "message-annotations": [("x-opt-a", "symbol", "s"), ("none", "null", "null")],
        "properties": [
            ("message-id", "string", "id"),
            ("user-id", "binary", "01 ff"),
            ("subject", "string", "subject"),
            ("creation-time", "timestamp", "-386380800000 (1957-10-04 00:00:00.000Z)"),
        ],
        "application-properties": [
            ("text", "string", "x"),
            ("ulong", "ulong", "18446744073709551615"),
            ("float", "float", "0.1"),
            ("uuid", "uuid", "00000000-0000-0000-0000-000000000005"),
        ],
        "footer": [("f", "boolean", "true")],
    }
    assert (body(raw).kind, body(raw).text) == ("data", "body")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "long"),
        (Byte(1), "byte"),
        (1.5, "double"),
        ("x", "string"),
        (Symbol("x"), "symbol"),
        (Char("x"), "char"),
        (b"", "binary"),
        (Decimal64(bytes(8)), "decimal64"),
        ([], "list"),
        ({}, "map"),
        (Array(0x71, ()), "array"),
        (Described(Symbol("d"), UInt(1)), "described uint"),
    ],
)
def test_types_have_their_names_of_amqp(value: object, name: str) -> None:
    assert type_of(value) == name


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (section(VALUE, "text"), ("amqp-value", "string", "text", None)),
        (section(VALUE, Symbol("text")), ("amqp-value", "symbol", "text", None)),
        (section(VALUE, b"bytes"), ("amqp-value", "binary", "bytes", None)),
        (section(VALUE, None), ("amqp-value", "null", "null", None)),
        (section(VALUE, Float(0.1)), ("amqp-value", "float", "0.1", None)),
        (section(VALUE, {"a": Timestamp(-1)}), ("amqp-value", "map", '{"a":-1}', '{\n  "a": -1\n}')),
        (section(SEQUENCE, [1]) + section(SEQUENCE, [2]), ("2 amqp-sequence sections", "", "[1,2]", "[\n  1,\n  2\n]")),
        (section(DATA, b'{"a"') + section(DATA, b":1.50}"), ("2 data sections", "", '{"a":1.50}', '{\n  "a": 1.50\n}')),
        (section(DATA, b""), ("data", "", "", None)),
        (section(DATA, b"\xff\xfe"), ("data", "", None, None)),
        (ESCAPE + b"\0\0\0\x02hi", ("bytes that a RabbitMQ client published, no AMQP message", "", "hi", None)),
    ],
)  # fmt: skip
def test_each_body(raw: bytes, expected: tuple[str, str, str | None, str | None]) -> None:
    found = body(raw)
    assert (found.kind, found.type, found.text, found.json) == expected
    assert not found.cut
    assert not found.fault


def test_no_body_and_no_message() -> None:
    assert message_of(section(PROPERTIES, ["id"]), MOST).body is None
    broken = message_of(b"no message", MOST)
    assert broken.fault.startswith("The stored bytes cannot be read as a message: message at byte 0")
    assert broken.body is not None
    assert broken.body.text == "no message"
    assert message_of(b"", MOST).body is None


def test_a_section_that_cannot_be_decoded_leaves_the_others() -> None:
    bad = bytes([0, 0x53, APPLICATION, 0xC1, 4, 2, 0xA1, 1, 0xFF])  # a key that is no UTF-8, and no value
    message = message_of(section(PROPERTIES, ["id"]) + bad + section(DATA, b"x"), MOST)
    assert [part.name for part in message.parts] == ["properties", "application-properties"]
    assert message.parts[0].fields
    assert "cannot be decoded" in message.parts[1].fault
    assert message.body is not None
    assert message.body.text == "x"


def test_what_is_long_is_not_decoded() -> None:
    many = {str(each): each for each in range(600)}
    part = message_of(section(APPLICATION, many), MOST).parts[0]
    assert len(part.fields) == 500
    assert part.fault == "100 more are not shown."
    part = message_of(section(APPLICATION, {"a": "x" * 70_000}), MOST).parts[0]
    assert (part.fields, part.fault) == ((), "It has 68.4 KiB, and is not shown.")
    found = body(section(VALUE, ["x"] * 50_000))
    assert found.fault.startswith("It has 146.5 KiB")
    assert len(found.content) == MOST
    assert found.cut
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    assert "nests deeper than 32" in message_of(section(VALUE, deep), MOST).body.fault  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (section(DATA, b"ab") + section(DATA, b"c" * 300), b"ab" + b"c" * 300),
        (section(DATA, None), b""),
        (section(VALUE, "ä"), "ä".encode()),
        (section(VALUE, {"a": 1}), encode_value({"a": 1})),
        (section(PROPERTIES, ["id"]), b""),
        (b"no message", b"no message"),
    ],
)
def test_a_saved_body_is_whole(raw: bytes, expected: bytes) -> None:
    assert body_bytes(raw) == expected


# --- over HTTP


def stored(window: Window, *raw: bytes, name: str = "orders") -> None:
    window.log.stream(name).partitions["0"].append(list(raw))


def test_the_page_of_an_event_and_its_neighbours(window: Window) -> None:
    window.create()
    window.append([b'{"n": 10000000000000000000001.50}', b"\x00\x01\xff"], key=pa.array(["alice", None]))
    html = window.get("/event", stream="orders", offset=0).text
    assert "alice" in shown(html)
    assert '"n": 10000000000000000000001.50' in unescape(html)
    assert "event-streams-group-key" in html
    assert "offset=1" in html
    assert 'rel="prev"' not in html
    html = window.get("/event", stream="orders", offset=1).text
    assert "00000000  00 01 ff" in html
    assert 'rel="next"' not in html


@pytest.mark.parametrize(("offset", "status"), [("2", 404), ("x", 400), ("", 400), ("-1", 400), ("9" * 19, 404)])
def test_an_event_that_is_not_there(window: Window, offset: str, status: int) -> None:
    window.create()
    window.append([b"a", b"b"])
    answer = window.get("/event", stream="orders", offset=offset)
    assert answer.status_code == status
    assert ("it has 0 to 1" if status == 404 else "expected a number from 0 on") in answer.text


def test_a_saved_body_is_no_page(window: Window) -> None:
    window.create()
    window.append([b"<script>alert(1)</script>"])
    answer = window.get("/event/body", stream="orders", offset=0)
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="event-0-0.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    whole = window.get("/event/body", stream="orders", offset=0, whole=1)
    assert whole.content == window.log.stream("orders").partitions["0"].read(0).value(0)


def test_a_damaged_event_says_so(window: Window) -> None:
    window.create()
    window.append([b"x" * 100])
    file = next((window.log.data_dir / "streams" / "orders" / "0").glob("*.log"))
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"y")
    answer = window.get("/event", stream="orders", offset=0)
    assert answer.status_code == 500
    assert "damaged" in answer.text
    assert str(file) not in answer.text
    assert window.get("/event/body", stream="orders", offset=0).status_code == 500
    assert "some from offset 0 on cannot be read" in window.text("/events", stream="orders")


def test_an_event_of_10_mb_gives_a_small_page(windows: Callable[..., Window]) -> None:
    window = windows(shown_bytes=4_096)
    window.create()
    document = b'{"big": "' + b"x" * 10_000_000 + b'", "z": 1}'
    window.append([document])
    page = window.get("/event", stream="orders", offset=0).text
    assert len(page) < 40_000
    assert "the first 4.0 KiB are shown" in shown(page)
    assert '{\n  "big": "xxx' in unescape(page)
    assert len(window.get("/events", stream="orders").text) < 10_000
    assert len(window.get("/events", stream="orders", filter="body_size > 5").text) < 12_000
    assert window.get("/event/body", stream="orders", offset=0).content == document


def test_the_loop_answers_while_an_event_is_taken_apart(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event's page is made in a thread: while it waits there, other pages are answered."""
    window.create()
    window.append([b"x"])
    begun, go_on = threading.Event(), threading.Event()

    def slow(raw: bytes, most: int) -> Any:
        begun.set()
        assert go_on.wait(300)
        return message_of(raw, most)

    monkeypatch.setattr("spark_streams.server.web.events.message_of", slow)
    answers: list[int] = []
    asking = threading.Thread(
        target=lambda: answers.append(window.get("/event", stream="orders", offset=0).status_code)
    )
    asking.start()
    try:
        assert begun.wait(300)
        assert Window(window.server, window.log).get("/publish", stream="orders").status_code == 200
        assert answers == []
    finally:
        go_on.set()
        asking.join()
    assert answers == [200]


@pytest.mark.parametrize("section", [b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x76\xc0\x01\x00"])
def test_a_body_of_very_many_sections_is_not_told_apart(section: bytes) -> None:
    head = b"\x00\x53\x73\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
    raw = head + section * 1_000
    message = message_of(raw, 100)
    assert message.body is not None and message.body.fault.startswith("It has very many sections")
    assert message.body.kind.startswith("more than 999 ") and message.body.cut
    assert (message.body.content, message.body.size) == (raw[len(head) :][:100], len(raw) - len(head))
    assert body_bytes(raw) == raw[len(head) :]
    assert [part.name for part in message.parts] == ["properties"]
    fewer = message_of(raw[: -len(section)], 100)
    assert fewer.body is not None and "999" in fewer.body.kind and "very many" not in fewer.body.fault


def test_the_head_of_a_message() -> None:
    head = b"\x00\x53\x73\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
    assert head_size(head + b"\x00\x53\x75\xa0\x01x") == head_size(head) == len(head)
    assert head_size(b"\x00\x53\x75\xa0\x01x") == head_size(b"") == 0
    assert head_size(b"no message") == 10
