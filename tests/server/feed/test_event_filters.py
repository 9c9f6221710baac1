"""A feed's pointer filters over messages of every form: a search in their bytes finds what reading finds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_streams.log import Records, ReferenceLog
from spark_streams.log.format.records import message_columns_of
from spark_streams.server.feed.event_filters import may_hold, wanted
from spark_streams.wire.feed.json_pointer import extract_text

Chance = random.Random
VALUES = ("order", "or", "5", "true", "x", "Oslo-ø", "rder")


def sized(code: int, body: bytes, *, wide: bool) -> bytes:
    """Return a variable-width primitive: ``code`` with one byte of length, or the wide one with four."""
    return bytes([code + 0x10]) + len(body).to_bytes(4, "big") + body if wide else bytes([code, len(body)]) + body


def section(descriptor: int, body: bytes) -> bytes:
    return bytes([0x00, 0x53, descriptor]) + body


def compound(code: int, count: int, items: bytes, *, wide: bool) -> bytes:
    """Return a list or map."""
    if wide:
        return bytes([code + 0x10]) + (len(items) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + items
    return bytes([code]) + bytes([len(items) + 1, count]) + items


def text(value: str) -> bytes:
    return sized(0xA1, value.encode(), wide=False)


def body_of(event: bytes, chance: Chance) -> bytes:
    """Return the body sections of an event in one of the forms that there are."""
    wide = len(event) > 200 or chance.random() < 0.3
    kind = chance.randrange(8)
    if kind == 0:
        return section(0x77, sized(0xA1, event, wide=wide))
    if kind == 1:  # the event's text is cut in the middle
        at = event.find(b"order") + 2 if b"order" in event else chance.randint(0, len(event))
        return b"".join(section(0x75, sized(0xA0, part, wide=wide)) for part in (event[:at], event[at:]))
    if kind == 2:  # what is no text: rendered as JSON
        items = text("type") + text(chance.choice(VALUES))
        return section(0x77, compound(0xC1, 2, items, wide=wide))
    if kind == 3:
        number = chance.choice([5, 7])
        return section(0x77, compound(0xC1, 2, text("type") + bytes([0x54, number]), wide=False))
    whole = section(0x75, sized(0xA0, event, wide=wide))
    if kind == 4:
        return whole + section(0x78, compound(0xC1, 2, text("order") + text("x"), wide=False))
    return whole


def message(event: bytes, chance: Chance) -> bytes:
    before = b""
    if chance.random() < 0.4:
        items = sized(0xA3, b"event-streams-group-key", wide=False) + text(chance.choice(VALUES))
        before += section(0x72, compound(0xC1, 2, items, wide=chance.random() < 0.3))
    if chance.random() < 0.3:
        before += section(
            0x73, chance.choice([b"\x45", compound(0xC0, 4, b"\x40\x40\x40" + text("order"), wide=False)])
        )
    if chance.random() < 0.3:
        before += section(0x74, compound(0xC1, 2, text("type") + text("order"), wide=chance.random() < 0.5))
    return before + body_of(event, chance)


def event(chance: Chance) -> bytes:
    kind = chance.random()
    value = chance.choice(["view", "other"]) if kind < 0.8 else chance.choice(VALUES)
    written: dict[str, object] = {"n": chance.randrange(10), "type": value, "pad": "p" * chance.randrange(300)}
    if kind > 0.97:
        written["type"] = chance.choice([5, True, None, ["order"], {"a": "order"}])
    whole = json.dumps(written, ensure_ascii=chance.random() < 0.5)
    if kind > 0.9:
        whole = whole.replace("order", "\\u006frder")
    form = "utf-16-le" if kind > 0.99 else "utf-16" if kind > 0.98 else "utf-8"
    return b"" if 0.96 < kind < 0.965 else whole.encode(form)


def stored(messages: list[bytes], folder: Path) -> Records:
    with ReferenceLog(folder) as log:
        log.create_stream("s", 1)
        partition = log.stream("s").partitions["0"]
        partition.append(pa.array(messages, pa.large_binary()))
        records = partition.read(0, 1 << 30, whole=True)
    assert records is not None and len(records) == len(messages)
    return records


def values_of(records: Records) -> pa.Array:
    return pc.fill_null(message_columns_of(records, ("value",))["value"], b"")


@pytest.mark.parametrize("seed", range(12))
def test_what_is_searched_for_is_what_decoding_finds(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    plain = (0.0, 0.9, 0.97)[seed % 3]  # the share of messages of the usual form
    messages = [
        section(0x75, sized(0xA0, one, wide=len(one) > 255)) if chance.random() < plain else message(one, chance)
        for one in (event(chance) for _ in range(800))
    ]
    records = stored(messages, tmp_path)
    values = values_of(records)
    found = searched = 0
    for value in VALUES:
        searched += may_hold(values, value) is not None
        expected = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(extract_text(values, "/type"), value), False)))
        assert wanted(records, {"/type": value}).tolist() == expected.tolist(), value
        found += len(expected)
    assert found > 50 and searched > 0


def test_it_is_a_search_where_few_hold_the_text(tmp_path: Path) -> None:
    events = [
        b'{"type":"%b","pad":"%b"}' % (b"order" if n % 50 == 7 else b"view", b"x" * (n % 300)) for n in range(500)
    ]
    bodies = [section(0x75, sized(0xA0, each, wide=len(each) > 255)) for each in events]
    key = section(0x72, compound(0xC1, 2, sized(0xA3, b"event-streams-group-key", wide=False) + text("k"), wide=False))
    for number, messages in enumerate((bodies, [key + body for body in bodies])):
        near = may_hold(values_of(stored(messages, tmp_path / str(number))), "order")
        assert near is not None and {n for n in range(500) if n % 50 == 7} <= set(near.tolist())
        assert len(near) < 30
    assert may_hold(values_of(stored(bodies, tmp_path / "2")), "view") is None


def test_zero_bytes_in_the_middle_of_bodies_are_no_reason_to_read_them_as_json() -> None:
    bodies = [b"\x08\x96\0\0%d" % n for n in range(400)]
    wide = ['{"type":"order"}'.encode(code) for code in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")]
    near = may_hold(pa.array([*bodies, *wide, b"", b"\0", b'{"type":"order"}'], pa.binary()), "order")
    assert near is not None and near.tolist() == [400, 401, 402, 403, 404, 407]


@pytest.mark.parametrize("wide", [False, True])
def test_a_text_that_is_cut_between_two_sections_is_found(wide: bool, tmp_path: Path) -> None:
    plain = section(0x75, sized(0xA0, b'{"type":"view"}', wide=False))
    parts = (b'{"type":"or', b'der"}')
    cut = b"".join(section(0x75, sized(0xA0, part, wide=wide)) for part in parts)
    records = stored([plain] * 40 + [cut] + [plain] * 40, tmp_path)
    assert may_hold(values_of(records), "order") is not None
    assert wanted(records, {"/type": "order"}).tolist() == [40]
