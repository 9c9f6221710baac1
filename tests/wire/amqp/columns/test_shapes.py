"""Messages that are read by their shapes give the same columns as one by one, and are refused alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proton import Message, symbol, timestamp

from spark_streams.wire.amqp import sections
from spark_streams.wire.amqp.columns import shaped_rows
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.columns.shaped_rows import by_shape
from spark_streams.wire.amqp.columns.shapes import shape_of
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS
from tests.examples import examples
from tests.wire.amqp.columns.test_columns import (
    DELIVERY_COLUMNS,
    MESSAGE_COLUMNS,
    block,
    counted,
    in_columns,
    one_by_one,
    outcome,
    section,
    sized,
)

ALL = MESSAGE_COLUMNS + DELIVERY_COLUMNS


@pytest.fixture(autouse=True, scope="module")
def every_shape() -> Iterator[None]:
    """Read even single messages by their shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "FEW", 0)
        patch.setattr(shaped_rows, "FEW", 0)
        patch.setattr(shaped_rows, "_FEWEST_ALIKE", 1)
        yield


@contextmanager
def walk() -> Iterator[None]:
    """Leave all messages to the lockstep walk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shaped_rows, "FEW", 99)
        yield


# ------------------------------------------------------------ many messages of one layout

WIDTHS = {0x40: 0, 0x41: 0, 0x43: 0, 0x44: 0, 0x52: 1, 0x54: 1, 0x55: 1, 0x61: 2, 0x71: 4, 0x72: 4, 0x80: 8, 0x81: 8}
WIDTHS |= {0x82: 8, 0x83: 8, 0x98: 16}
TEXTS = (0xA1, 0xA3, 0xB1, 0xB3)
ANY = (*WIDTHS, *TEXTS, 0xA0, 0xB0)
FIELDS = {1: (0x40, 0xA0, 0xB0), 8: (0x40, 0x83), 9: (0x40, 0x83), 11: (0x40, 0x43, 0x52, 0x70)}
"""The format codes of property fields that are neither ids nor strings."""
FIELDS |= {index: (0x40, *TEXTS) for index in (3, 6, 7, 10, 12)}
FIELDS |= {index: ANY for index in (0, 2, 4, 5)}
MAPS = {
    0x71: ["event-streams-offset", "event-streams-source-partition", "event-streams-target-partition", "x-opt-d"],
    0x72: ["event-streams-group-key", "x-opt-a", "x-opt-b", ""],
    0x74: ["kind", "n", "café", ""],
}


class Layout(dict[int, dict[Any, int]]):
    """Section code to the format codes of its values, by key, in lists by number."""

    wide = False


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    found = Layout()
    if draw(st.booleans()):
        found[0x70] = {0: draw(st.sampled_from([0x41, 0x40])), 1: 0x52}
    for code, keys in MAPS.items():
        if draw(st.booleans()):
            kinds = (0x40, *TEXTS) if code == 0x71 else ANY
            found[code] = {
                key: draw(st.sampled_from(kinds)) for key in draw(st.lists(st.sampled_from(keys), unique=True))
            }
    if draw(st.booleans()):
        found[0x73] = {index: draw(st.sampled_from(FIELDS[index])) for index in range(draw(st.integers(0, 13)))}
    if 0x71 in found and draw(st.booleans()):
        found[0x71]["event-streams-timestamp"] = 0x83
    body = draw(st.sampled_from([(0x75, 0xA0), (0x75, 0xB0), (0x77, 0xA1), (0x77, 0xB1), (0x77, 0x40), None]))
    if body is not None:
        found[body[0]] = {0: body[1]}
    found.wide = draw(st.booleans())
    return found


def value(draw: st.DrawFn, code: int) -> bytes:
    if code in WIDTHS or code == 0x70:
        width = WIDTHS.get(code, 4)
        # Timestamps that fit microseconds.
        return (
            bytes((code,))
            + (b"\0\0" if code == 0x83 else b"")
            + draw(st.binary(min_size=width, max_size=width))[(2 if code == 0x83 else 0) :]
        )
    if code in (0xA0, 0xB0):
        content = draw(st.binary(max_size=20))
    elif code in (0xA3, 0xB3):
        content = draw(st.text(st.characters(max_codepoint=127), max_size=20)).encode()
    else:
        content = draw(st.text(max_size=10)).encode()
    return sized(code & 0xEF, code | 0x10, content, bool(code & 0x10))


def drawn(draw: st.DrawFn, layout: Layout) -> bytes:
    raw = b""
    for code, values in sorted(layout.items()):
        encoded = [value(draw, kind) for kind in values.values()]
        if code in MAPS:
            kind = 0xA1 if code == 0x74 else 0xA3
            keys = [sized(kind, kind | 0x10, key.encode(), False) for key in values]
            encoded = [each for pair in zip(keys, encoded, strict=True) for each in pair]
            raw += section(code, counted(0xC1, 0xD1, encoded, layout.wide))
        elif code < 0x75:
            raw += section(code, counted(0xC0, 0xD0, encoded, layout.wide))
        else:
            raw += section(code, encoded[0])
    return raw


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    kinds = draw(st.lists(layouts(), min_size=1, max_size=3))
    return [drawn(draw, draw(st.sampled_from(kinds))) for _ in range(draw(st.integers(1, 10)))]


@st.composite
def damaged_blocks(draw: st.DrawFn) -> list[bytes]:
    raws = draw(blocks())
    for _ in range(draw(st.integers(1, 2))):
        row = draw(st.integers(0, len(raws) - 1))
        raw = bytearray(raws[row])
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        match draw(st.integers(0, 3)):
            case 0 if raw:
                del raw[at]
            case 1:
                raw.insert(at, draw(st.integers(0, 255)))
            case 2:
                del raw[at:]
            case _ if raw:
                raw[at] = draw(st.sampled_from([raw[at] ^ 1, raw[at] ^ 0x80, (raw[at] + 1) % 256, 0, 0xFF]))
        raws[row] = bytes(raw)
    return raws


@settings(max_examples=examples(300), deadline=None)
@given(blocks(), st.sampled_from([b"", b"\x00\x53\x75"]))
def test_shapes_give_what_the_messages_give(raws: list[bytes], gap: bytes) -> None:
    assert not by_shape(block(raws, gap)).rest.size or b"" in raws
    assert in_columns(raws, ALL, gap) == one_by_one(raws, ALL)
    if all(raw.startswith(b"\x00\x53\x71") for raw in raws):
        assert not by_shape(block(raws, gap), DELIVERY_ANNOTATIONS).rest.size
    assert in_columns(raws, ["offset"], gap) == one_by_one(raws, ["offset"])


@settings(max_examples=examples(400), deadline=None)
@given(damaged_blocks())
@example([b"\x00\x53\x01\x75\xa0\x00"])
@example([b"\x00\x53\x75\xa0\x01a", b"\x00\x53\x75\xa0\x02a", b"\x00\x53\x75\xa0\x01ab"])
@example([b"\x00\x53\x75\xb0\x00\x00\x00\x01a", b"\x00\x53\x75\xb0\xff\xff\xff\xffa"])
@example([b"\x00\x53\x74\xc1\x06\x02\xa1\x00\xa1\x01a", b"\x00\x53\x74\xc1\x07\x02\xa1\x00\xa1\x01a"])
def test_damage_is_refused_alike(raws: list[bytes]) -> None:
    assert outcome(in_columns, raws, MESSAGE_COLUMNS) == outcome(one_by_one, raws, MESSAGE_COLUMNS)
    for names in (ALL, DELIVERY_COLUMNS):
        found = outcome(in_columns, raws, names)
        with walk():
            # Like the walk, a shape lets pass a broken text that no named column needs.
            assert found == outcome(in_columns, raws, names)


@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(blocks(), damaged_blocks()))
def test_a_log_node_reads_what_the_walk_does(raws: list[bytes]) -> None:
    for thorough in (True, False):
        found = incoming_columns(block(raws), thorough=thorough)
        with walk():
            wanted = incoming_columns(block(raws), thorough=thorough)
        assert found.malformed.tolist() == wanted.malformed.tolist()
        whole = ~wanted.malformed
        assert found.value_starts[whole].tolist() == wanted.value_starts[whole].tolist()
        assert found.creation_time_ms[whole].tolist() == wanted.creation_time_ms[whole].tolist()
        for name in ("group_key", "target_partition"):
            getattr(found, name).validate(full=True)
            assert getattr(found, name).filter(pa.array(whole)) == getattr(wanted, name).filter(pa.array(whole))


# ------------------------------------------------------------ messages of qpid-proton


def keyed(number: int, **more: Any) -> bytes:
    message = Message(body=b"x" * (number % 300), inferred=True, **more)
    message.annotations = {symbol("event-streams-group-key"): f"k{number % 7}"}
    return bytes(message.encode())


def test_messages_of_one_producer_have_few_shapes() -> None:
    raws = [keyed(i, id=f"m-{i}", creation_time=i, properties={"n": str(i), "at": timestamp(i)}) for i in range(1, 400)]
    parts, rest = by_shape(block(raws))
    assert len(parts) == 2  # proton writes bodies of 256 bytes and more with another format code
    assert not rest.size
    assert in_columns(raws, MESSAGE_COLUMNS) == one_by_one(raws, MESSAGE_COLUMNS)


def test_a_row_of_another_kind_costs_no_other_row_its_shape() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shaped_rows, "FEW", 12)
        patch.setattr(shaped_rows, "_FEWEST_ALIKE", 32)
        raws = [keyed(i % 200) for i in range(100)]
        raws[0], raws[50] = b"\x00\x53\x75\xa0\x01a", b"\x00\x53\x77\x45"
        parts, rest = by_shape(block(raws))
        assert [part.rows.size for part in parts] == [98]
        assert rest.tolist() == [0, 50]
        assert in_columns(raws, MESSAGE_COLUMNS) == one_by_one(raws, MESSAGE_COLUMNS)


def test_many_shapes_are_left_to_the_walk() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shaped_rows, "_FEWEST_ALIKE", 32)
        raws = [keyed(1, properties={f"p{i}": "a"}) for i in range(60)]
        parts, rest = by_shape(block(raws))
        assert not parts
        assert rest.tolist() == list(range(60))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x53\x74\xc1\x09\x04\xa1\x01a\x41\xa3\x01a\x41" + b"\x00\x53\x75\xa0\x00",  # a key twice
        b"\x00\x53\x74\xc1\x04\x02\xa1\x00\x45",  # a list as value
        b"\x00\x53\x74\xc1\x05\x02\xa1\x00\x56\x02",  # a boolean that is none
        b"\x00\x53\x74\xc1\x05\x02\xa3\x01\xe9\x40",  # a symbol that is not ASCII
        b"\x00\x53\x73\xc0\x04\x02\x40\xa1\x00",  # a user-id of another type
        b"\x00\x53\x75\xa0\x00\x00\x53\x75\xa0\x00",  # two data sections
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x00",  # a descriptor in another form
    ],
)
def test_uncommon_messages_have_no_shape(raw: bytes) -> None:
    shape = shape_of(memoryview(raw))
    assert shape is None or not raw


def test_a_block_that_ends_with_its_buffer() -> None:
    raws = [keyed(3)] * 20
    buffer = b"".join(raws)
    ends = np.arange(1, 21) * len(raws[0])
    names = ["key", "value"]
    wanted = decode_columns(MessageBlock(buffer + bytes(99), ends - len(raws[0]), ends), names)
    assert decode_columns(MessageBlock(buffer, ends - len(raws[0]), ends), names) == wanted
    assert wanted["key"].equals(pa.array(["k3"] * 20))
