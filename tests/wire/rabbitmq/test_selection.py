"""Selections: some records of a chunk, with their offsets; laid out as written down in ``chunk.py``, byte by byte."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbitmq.chunk import (
    HEADER_BYTES,
    ChunkHeader,
    ChunkRecords,
    ChunkType,
    decode_chunk,
    encode_selection,
)
from tests.wire.rabbitmq.chunks import encode_chunk

DATA = struct.pack(">III", 0, 2, 8) + b"\0\0\0\x01a" + b"\0\0\0\0" + b"\0\0\0\x02bc"
"""Records 0, 2 and 8 of ten: `a`, an empty one, `bc`."""


def by_hand(data: bytes = DATA, **fields: int) -> bytes:
    head = {"entries": 3, "records": 10, "first": 1_000, **fields}
    return (
        struct.pack(
            ">BBHIqQQIII4x", 0x50, 128, head["entries"], head["records"], -5, 1, head["first"],
            zlib.crc32(data), len(data), 0,
        )
        + data
    )  # fmt: skip


def messages(chunk: ChunkRecords) -> list[bytes]:
    return [bytes(chunk.buffer[a:b]) for a, b in zip(chunk.starts.tolist(), chunk.ends.tolist(), strict=True)]


def test_a_selection_by_hand() -> None:
    whole = by_hand()
    for found in (decode_chunk(whole, 0, len(whole)), decode_chunk(b"\xff" + whole + b"\xff", 1, len(whole) + 2)):
        assert (found.header.kind, found.header.next_offset, found.header.timestamp_ms) == (128, 1_010, -5)
        assert found.offsets.tolist() == [1_000, 1_002, 1_008]
        assert messages(found) == [b"a", b"", b"bc"]


def test_a_selection_is_written_as_by_hand() -> None:
    bodies = [b"a", b"?", b"", *[b"??"] * 5, b"bc", b"?"]
    ends = np.cumsum([len(body) for body in bodies])
    starts = ends - [len(body) for body in bodies]
    header = ChunkHeader(0, 10, 10, -5, 1, 1_000, 77, 88)
    assert encode_selection(header, b"".join(bodies), starts, ends, np.array([0, 2, 8])) == by_hand()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(by_hand(struct.pack(">III", 0, 2, 2) + DATA[12:]), id="not-rising"),
        pytest.param(by_hand(struct.pack(">III", 2, 0, 8) + DATA[12:]), id="falling"),
        pytest.param(by_hand(records=8), id="beyond-its-offsets"),
        pytest.param(by_hand(entries=2), id="entries-left-over"),
        pytest.param(by_hand(entries=4), id="entries-missing"),
        pytest.param(by_hand(entries=0), id="no-entries"),
        pytest.param(by_hand(b"", entries=0), id="nothing"),
        pytest.param(by_hand(b"\0\0\0", entries=1), id="no-room-for-indexes"),
        pytest.param(by_hand(DATA + b"\0"), id="bytes-left-over"),
        pytest.param(by_hand(DATA[:12] + b"\x80" + DATA[13:]), id="a-sub-batch"),
        pytest.param(by_hand()[:-1] + b"d", id="crc"),
    ],
)
def test_bad_selections(bad: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_chunk(bad, 0, len(bad))


@pytest.mark.parametrize("cut", range(HEADER_BYTES + len(DATA)))
def test_a_truncated_selection(cut: int) -> None:
    whole = by_hand()
    with pytest.raises(RemoteProtocolError):
        decode_chunk(whole[:cut], 0, cut)
    if cut >= HEADER_BYTES:  # with a head that says so
        data = DATA[: cut - HEADER_BYTES]
        with pytest.raises(RemoteProtocolError):
            decode_chunk(by_hand(data), 0, HEADER_BYTES + len(data))


@given(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), min_size=1, max_size=300), st.integers(0, 2**40))
def test_what_is_selected_comes_back(records: list[tuple[bytes, bool]], first: int) -> None:
    bodies = [body for body, _ in records]
    rows = np.flatnonzero([chosen for _, chosen in records])
    if not len(rows):
        return
    ends = np.cumsum([len(body) for body in bodies])
    starts = ends - [len(body) for body in bodies]
    chunk = encode_chunk(b"".join(bodies) or b"\0", starts, ends, first_offset=first, timestamp_ms=3)
    whole = decode_chunk(chunk, 0, len(chunk))
    selection = encode_selection(whole.header, whole.buffer, whole.starts, whole.ends, rows)
    found = decode_chunk(selection, 0, len(selection))
    assert found.offsets.tolist() == (rows + first).tolist()
    assert messages(found) == [bodies[row] for row in rows]
    assert replace(found.header, kind=ChunkType.USER, entries=len(bodies), crc=0, data_bytes=0) == replace(
        whole.header, crc=0, data_bytes=0
    )


@given(st.binary(max_size=80), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_any_bytes_are_a_selection_or_refused(data: bytes, entries: int, records: int) -> None:
    whole = by_hand(data, entries=entries, records=records)
    try:
        found = decode_chunk(whole, 0, len(whole))
    except RemoteProtocolError:
        return
    assert len(found.offsets) == entries == len(messages(found))
