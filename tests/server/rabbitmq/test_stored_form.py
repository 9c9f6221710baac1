"""What published bytes become in the log: an AMQP reader finds sections in all of it, and nothing is lost."""

from __future__ import annotations

import numpy as np
import proton
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.log import NO_TIMESTAMP
from spark_streams.server.rabbitmq.stored_form import ESCAPE, Stored, stored_steps, unescape
from spark_streams.wire.amqp.decode import finished
from tests.examples import examples

DATA = b"\x00Su\xa0\x05hello"
HEADER = b"\x00Sp\xc0\x02\x01A"

fragments = st.sampled_from(
    [
        b"",
        b"\x00",
        b"\x00S",
        DATA,
        HEADER,
        ESCAPE,
        ESCAPE[:10],
        ESCAPE[:-1],
        ESCAPE + b"\0\0\0\2ab",
        b"\x00\x80",
        b"abc",
    ]
)
messages = st.lists(st.one_of(st.binary(max_size=40), st.lists(fragments, max_size=4).map(b"".join)), max_size=12)


def laid_out(rows: list[bytes], gap: bytes) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Rows in one buffer, with other bytes between them, as in a Publish frame."""
    buffer, starts, ends = bytearray(), [], []
    for row in rows:
        buffer += gap
        starts.append(len(buffer))
        buffer += row
        ends.append(len(buffer))
    return bytes(buffer + gap), np.array(starts, np.int64), np.array(ends, np.int64)


def stored_form(buffer: bytes, starts: np.ndarray, ends: np.ndarray) -> Stored:
    return finished(stored_steps(buffer, starts, ends))


def published_again(values: pa.LargeBinaryArray) -> list[bytes]:
    rows = values.to_pylist()
    buffer, starts, ends = laid_out(rows, b"")
    return [
        buffer[start:end] for start, end in zip(unescape(buffer, starts, ends).tolist(), ends.tolist(), strict=True)
    ]


@settings(deadline=None, max_examples=examples(400))
@given(rows=messages.filter(bool), gap=st.sampled_from([b"", b"\0\0\0\x07", b"\x00Su"]))
@example(rows=[ESCAPE], gap=b"")
@example(rows=[ESCAPE + ESCAPE], gap=b"")
@example(rows=[b""], gap=b"")
@example(rows=[DATA, b"", DATA[:-1]], gap=b"")
def test_what_was_published_comes_back_byte_for_byte(rows: list[bytes], gap: bytes) -> None:
    stored = stored_form(*laid_out(rows, gap))
    assert len(stored.values) == len(rows)
    assert published_again(stored.values) == rows


@settings(deadline=None, max_examples=examples(200))
@given(rows=messages.filter(bool))
def test_another_implementation_reads_whatever_was_escaped_as_one_data_section(rows: list[bytes]) -> None:
    stored = stored_form(*laid_out(rows, b""))
    for row, value in zip(rows, stored.values.to_pylist(), strict=True):
        if value != row:
            message = proton.Message()
            message.decode(value)
            assert (message.inferred, bytes(message.body)) == (True, row)


def test_only_what_is_no_amqp_or_looks_escaped_is_changed() -> None:
    null, odd = b"\x00Su\x40", b"\x00Ss\xc0\x0b\x07" + b"\x40" * 6 + b"\xa3\x02\xc3\xa9" + DATA
    assert stored_form(*laid_out([null, odd], b"")).values.to_pylist() == [null, odd]
    rows = [DATA, HEADER + DATA, b"plain text", b"\x00Su\xa0\x09cut", ESCAPE + b"\0\0\0\1x", b"\x01" + DATA]
    stored = stored_form(*laid_out(rows, b""))
    changed = [value != row for row, value in zip(rows, stored.values.to_pylist(), strict=True)]
    assert changed == [False, False, True, True, True, True]


def test_keys_and_creation_times_belong_to_their_rows() -> None:
    keyed = proton.Message(body=b"x", inferred=True, creation_time=1.5)
    keyed.annotations = {proton.symbol("event-streams-group-key"): "k"}
    plain = proton.Message(body=b"x", inferred=True)
    plain.properties = {"a": "1"}
    rows = [b"no amqp", keyed.encode(), DATA, plain.encode(), keyed.encode()]
    stored = stored_form(*laid_out(rows, b""))
    assert stored.keys.to_pylist() == [None, b"k", None, None, b"k"]
    assert stored.timestamps.tolist() == [NO_TIMESTAMP, 1_500, NO_TIMESTAMP, NO_TIMESTAMP, 1_500]


def test_data_sections_alone_have_neither() -> None:
    stored = stored_form(*laid_out([DATA, b"\x00Su\xb0\x00\x00\x00\x01x"], b""))
    assert (stored.keys.to_pylist(), stored.timestamps.tolist()) == ([None, None], [NO_TIMESTAMP, NO_TIMESTAMP])
