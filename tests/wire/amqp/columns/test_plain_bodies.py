"""Messages of one data section: the columns are those of all other messages; messages are made by qpid-proton."""

from __future__ import annotations

import numpy as np
import pytest
from proton import Message

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES, decode_columns
from spark_streams.wire.amqp.columns.plain_bodies import plain_body_columns

BODIES = (b"", b"a", b"bc", b"def", b"x" * 100, b"y" * 255, b"z" * 256, b"w" * 70_000)


def encoded(body: bytes) -> bytes:
    return bytes(Message(body=body, inferred=True).encode())


def bare(body: bytes) -> bytes:
    """Proton writes a header first: the data section is what lies behind it."""
    raw = encoded(body)
    return raw[raw.rindex(b"\x00\x53\x75", 0, len(raw) - len(body)) :]


def block(*raws: bytes, between: bytes = b"") -> MessageBlock:
    sizes = np.array([len(raw) for raw in raws], np.int64)
    starts = np.cumsum(sizes + len(between)) - sizes
    return MessageBlock(between + between.join(raws), starts, starts + sizes)


@pytest.mark.parametrize("between", [b"", b"\x00\x00\x00\x69"], ids=["side by side", "apart"])
@pytest.mark.parametrize(
    "bodies", [BODIES, BODIES[:4], BODIES[::-1], BODIES[4:5] * 40, BODIES[6:], BODIES[:1], BODIES[6:7]]
)
def test_columns_are_those_of_any_message(bodies: tuple[bytes, ...], between: bytes) -> None:
    messages = block(*map(bare, bodies), between=between)
    names = tuple(COLUMN_TYPES)
    found = plain_body_columns(messages, names)
    assert found is not None
    assert found["value"].to_pylist() == list(bodies)
    expected = decode_columns(messages, names)
    assert list(found) == list(expected)
    for name, column in found.items():
        column.validate(full=True)
        assert column.type == expected[name].type, name
        assert column.to_pylist() == expected[name].to_pylist(), name


@pytest.mark.parametrize(
    "other",
    [
        encoded(b"with a header"),
        bare(b"a") + bare(b"b"),
        bare(b"short")[:-1],
        bare(b"z" * 300)[:-1],
        bare(b"long") + b"\x00",
        b"\x00\x53\x75\xa0",
        b"\x00\x53\x75\xb0\xff\xff\xff\xff",
        b"\x00\x53\x75\xb0\x00\x00\x01",
        b"\x00\x53\x77\xa0\x01x",
        b"\x00\x53\x75\xa1\x01x",
        b"not AMQP at all",
        b"",
    ],
)
def test_one_message_of_another_kind_is_noticed_wherever_it_is(other: bytes) -> None:
    plain = bare(b"x" * 100)
    assert plain_body_columns(block(plain, bare(b"z" * 300)), ["value"]) is not None
    for messages in ((other,), (other, plain), (plain, other), (plain, other, bare(b"z" * 300))):
        assert plain_body_columns(block(*messages), ["value"]) is None


def test_ranges_outside_the_buffer_are_left_to_others() -> None:
    whole = block(bare(b"abc"), bare(b"def"))
    assert plain_body_columns(MessageBlock(whole.buffer, whole.starts, whole.ends + 1), ["value"]) is None
    assert plain_body_columns(MessageBlock(whole.buffer, whole.starts - 1, whole.ends), ["value"]) is None
    assert plain_body_columns(block(), ["value"]) is None
