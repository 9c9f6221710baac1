"""Chunks and Publish frames: there and back, against a reading entry by entry, and whatever bytes a peer may send."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.interleave import Ranges, interleave
from spark_streams.wire.rabbitmq.chunk import HEADER_BYTES, ChunkHeader, decode_chunk
from spark_streams.wire.rabbitmq.compression import Compression, compress, decompress
from spark_streams.wire.rabbitmq.entries import SPECIAL, read_entries
from spark_streams.wire.rabbitmq.hashes import BloomProbe, bloom_of
from spark_streams.wire.rabbitmq.publish_decode import decode_confirm, decode_publish, decode_publish_error
from spark_streams.wire.rabbitmq.publish_encode import encode_publish, encode_sub_batches
from spark_streams.wire.rabbitmq.sub_batches import pack_sub_batch
from tests.examples import examples
from tests.wire.rabbitmq.chunks import encode_chunk

bodies = st.one_of(
    st.lists(st.binary(max_size=40)),
    st.builds(lambda body, n: [body] * n, st.binary(max_size=20), st.integers(0, 300)),
    # Lengths around 256, where a guess at the lowest byte alone goes wrong, among alike ones.
    st.lists(st.integers(250, 260).map(lambda n: bytes(n)), max_size=30).flatmap(
        lambda some: st.integers(0, 90).map(lambda n: some + [b"x" * 255] * n + some)
    ),
)
offsets = st.integers(0, 2**62)
milliseconds = st.integers(-(2**63), 2**63 - 1)
compressions = st.sampled_from(Compression)


untimed = settings(deadline=None)


def chain(messages: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


def laid_out(messages: list[bytes], gap: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.array([len(message) for message in messages], np.int64)
    ends = np.cumsum(lengths + gap)
    return b"".join(b"\xa5" * gap + message for message in messages), ends - lengths, ends


def cut_out(buffer: bytes, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
    assert starts.dtype == ends.dtype == np.int64
    return [bytes(buffer[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


@untimed
@given(messages=bodies.filter(bool), gap=st.integers(0, 3), first=offsets, ms=milliseconds, pad=st.binary(max_size=3))
def test_plain_entries_there_and_back(messages: list[bytes], gap: int, first: int, ms: int, pad: bytes) -> None:
    raw = encode_chunk(*laid_out(messages, gap), first_offset=first, timestamp_ms=ms)
    assert raw[HEADER_BYTES:] == chain(messages)
    found = decode_chunk(pad + raw + pad, len(pad), 2 * len(pad) + len(raw))
    assert cut_out(found.buffer, found.starts, found.ends) == messages
    assert found.offsets.tolist() == list(range(first, first + len(messages)))
    assert (found.header.timestamp_ms, found.header.next_offset) == (ms, first + len(messages))


entries = st.lists(
    st.one_of(
        st.binary(max_size=20).map(lambda body: ([body], None)),
        st.tuples(st.lists(st.binary(max_size=20), min_size=1, max_size=5), compressions),
    ),
    max_size=20,
)


@untimed
@given(entries=entries)
def test_entries_of_both_kinds(entries: list[tuple[list[bytes], Compression | None]]) -> None:
    data, messages, published = b"", [], b""
    for number, (some, compression) in enumerate(entries):
        entry = chain(some) if compression is None else pack_sub_batch(compression, len(some), chain(some))
        data += entry
        published += struct.pack(">Q", number) + entry
        messages += some
    header = ChunkHeader(0, len(entries), len(messages), 0, 1, 9, zlib.crc32(data), len(data), 77, 33)
    raw = header.encode() + data
    chunk = decode_chunk(raw, 0, len(raw))
    assert cut_out(chunk.buffer, chunk.starts, chunk.ends) == messages
    frame = struct.pack(">BI", 4, len(entries)) + published
    found = decode_publish(frame, 0, len(frame), 1)
    assert cut_out(found.buffer, found.starts, found.ends) == messages
    assert found.ids.tolist() == list(range(len(entries))) and found.bad_from is None
    assert found.counts.tolist() == [len(some) for some, _ in entries]


@untimed
@given(
    messages=bodies,
    limit=st.integers(307, 2000),  # the largest entry: 13 + 12 + 2 + 20 + 260 bytes
    words=st.none() | st.lists(st.none() | st.text(max_size=5), min_size=1),
    last=st.integers(0, 2**63),
)
def test_published_there_and_back(messages: list[bytes], limit: int, words: list[str | None] | None, last: int) -> None:
    n = len(messages)
    ids = np.arange(n, dtype=np.uint64) + np.uint64(last)
    some = None if words is None else [words[row % len(words)] for row in range(n)]
    column = None if some is None else pa.array(some, pa.string())
    found, found_ids, found_words = [], [], []
    for frame in encode_publish(200, ids, pa.array(messages, pa.large_binary()), column, limit):
        assert len(frame) <= limit
        part = decode_publish(frame, 8, len(frame), frame[7])
        found += cut_out(part.buffer, part.starts, part.ends)
        found_ids += part.ids.tolist()
        if part.filter_starts is None or part.filter_ends is None:
            found_words += [None] * part.ids.size
        else:
            ranges = zip(part.filter_starts.tolist(), part.filter_ends.tolist(), strict=True)
            found_words += [None if a < 0 else part.buffer[a:b].decode() for a, b in ranges]
    assert (found, found_ids, found_words) == (messages, ids.tolist(), some or [None] * n)


@untimed
@given(counts=st.lists(st.integers(1, 6), max_size=10), compression=compressions, data=st.data())
def test_sub_batches_there_and_back(counts: list[int], compression: Compression, data: st.DataObject) -> None:
    n = sum(counts)
    messages = data.draw(st.lists(st.binary(max_size=30), min_size=n, max_size=n))
    ids = np.arange(len(counts), dtype=np.uint64)
    found, found_counts = [], []
    values = pa.array(messages, pa.large_binary())
    for frame in encode_sub_batches(0, ids, np.array(counts, np.int64), values, compression, 600):
        part = decode_publish(frame, 8, len(frame), 1)
        found += cut_out(part.buffer, part.starts, part.ends)
        found_counts += part.counts.tolist()
    assert (found, found_counts) == (messages, counts)


def one_by_one(raw: bytes, at: int, end: int, count: int, before: int) -> tuple[list[int], list[int], int] | None:
    """Read a chain naively; None when it is broken."""
    starts, ends = [], []
    for _ in range(count):
        if end - at < before + 4:
            return None
        (length,) = struct.unpack_from(">I", raw, at + before)
        if length >= SPECIAL:
            break
        if at + before + 4 + length > end:
            return None
        starts.append(at + before + 4)
        at = starts[-1] + length
        ends.append(at)
    return starts, ends, at


@settings(max_examples=examples(400), deadline=None)
@given(
    messages=bodies,
    wrong=st.none() | st.tuples(st.integers(0, 10_000), st.sampled_from([0x80000000, 0xFFFFFFFF, 256, 0, 5])),
    before=st.sampled_from([0, 8]),
    behind=st.integers(0, 9),
    more=st.integers(-2, 2),
)
def test_a_chain_is_read_as_entry_by_entry(
    messages: list[bytes], wrong: tuple[int, int] | None, before: int, behind: int, more: int
) -> None:
    parts = [b"\x07" * before + struct.pack(">I", len(message)) + message for message in messages]
    if wrong is not None and parts:
        where, length = wrong[0] % len(parts), wrong[1]
        head = parts[where]
        parts[where] = head[:before] + struct.pack(">I", length) + head[before + 4 :]
    raw = b"".join(parts)
    end = len(raw)
    raw += b"\0" * behind
    count = max(0, len(messages) + more)
    expected = one_by_one(raw, 0, end, count, before)
    if expected is None:
        with pytest.raises(RemoteProtocolError):
            read_entries(raw, 0, end, count, before)
    else:
        found = read_entries(raw, 0, end, count, before)
        assert (found.starts.tolist(), found.ends.tolist(), found.stop) == expected


@untimed
@given(messages=st.lists(st.binary(max_size=30), max_size=40), width=st.integers(1, 12), data=st.data())
def test_interleaved_columns(messages: list[bytes], width: int, data: st.DataObject) -> None:
    n = len(messages)
    heads = np.frombuffer(data.draw(st.binary(min_size=n * width, max_size=n * width)), np.uint8).reshape(n, width)
    words = data.draw(st.lists(st.binary(max_size=16), min_size=n, max_size=n))
    joined = interleave(heads, Ranges(*laid_out(words, 1)), heads, Ranges(*laid_out(messages, 0)))
    rows = zip(heads, words, messages, strict=True)
    assert joined.to_pybytes() == b"".join(h.tobytes() + w + h.tobytes() + m for h, w, m in rows)


DECODERS: dict[str, Callable[[bytes], object]] = {
    "chunk": lambda raw: decode_chunk(raw, 0, len(raw), check_crc=False),
    "publish 1": lambda raw: decode_publish(raw, 0, len(raw), 1),
    "publish 2": lambda raw: decode_publish(raw, 0, len(raw), 2),
    "confirm": lambda raw: decode_confirm(raw, 0, len(raw)),
    "publish error": lambda raw: decode_publish_error(raw, 0, len(raw)),
}


def sound(decoded: object) -> None:
    """Check that a result stays inside its own buffer and agrees with itself."""
    for names in (("starts", "ends"), ("filter_starts", "filter_ends")):
        starts, ends = (getattr(decoded, name, None) for name in names)
        if isinstance(starts, np.ndarray) and isinstance(ends, np.ndarray):
            size = len(decoded.buffer)  # type: ignore[attr-defined]
            real = starts >= 0
            assert (starts <= ends)[real].all() and (ends <= size).all()
            if names[0] == "starts":
                assert real.all()


def fed(name: str, raw: bytes) -> None:
    try:
        decoded = DECODERS[name](raw)
    except RemoteProtocolError as fault:
        assert str(fault)
    else:
        sound(decoded)


@pytest.mark.parametrize("name", DECODERS)
@untimed
@given(raw=st.binary(max_size=200), head=st.sampled_from([b"", b"P\0", b"P\1", b"\1\0\0\0\2", b"\1\0\0\0\1"]))
def test_garbage(name: str, raw: bytes, head: bytes) -> None:
    fed(name, head + raw)


def good(name: str) -> list[bytes]:
    """Return valid bytes of all kinds for a decoder."""
    some = [[b"abc"] * 70, [b"a" * n for n in range(40)], [b"x" * 300, b""]]
    batches = [pack_sub_batch(kind, 3, chain([b"one", b"", b"three" * 20])) for kind in Compression]
    if name == "chunk":
        data = [*(chain(messages) for messages in some), *batches, chain([b"a"]) + batches[3] + chain([b"b"])]
        counts = [(len(messages), len(messages)) for messages in some] + [(1, 3)] * 5 + [(3, 5)]
        plain = ChunkHeader(0, 0, 0, 5, 1, 7, 0, 0)
        return [
            replace(plain, entries=n, records=m, data_bytes=len(each), crc=zlib.crc32(each)).encode() + each
            for each, (n, m) in zip(data, counts, strict=True)
        ]
    if name == "publish 1":
        plain_entries = [struct.pack(">BI", 1, 70) + (b"\0" * 7 + b"\5" + chain([b"abc"])) * 70]
        return plain_entries + [struct.pack(">BIQ", 1, 1, n) + batch for n, batch in enumerate(batches)]
    if name == "publish 2":
        column = pa.array([None, "", "abc"] * 10)
        values = pa.array([b"abc"] * 30, pa.large_binary())
        return [encode_publish(1, np.arange(30, dtype=np.uint64), values, column)[0][8:]]
    return [struct.pack(">BIQ", 1, 1, 5)] if name == "confirm" else [struct.pack(">BIQH", 1, 1, 5, 17)]


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_mutated_bytes(name: str, data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(good(name))))
    fed(name, bytes(raw))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    fed(name, bytes(raw))


@pytest.mark.parametrize("kind", [kind for kind in Compression if kind])
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), plain=st.sampled_from([b"a" * 3000, bytes(range(256)) * 3, b"x"]))
def test_mutated_compressed_bytes(kind: Compression, data: st.DataObject, plain: bytes) -> None:
    raw = bytearray(compress(kind, plain))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    try:
        assert len(decompress(kind, bytes(raw), len(plain))) == len(plain)
    except RemoteProtocolError as fault:
        assert kind.name.lower() in str(fault)


@pytest.mark.parametrize("kind", [kind for kind in Compression if kind])
@untimed
@given(raw=st.binary(min_size=1, max_size=100), size=st.integers(0, 1 << 20))
def test_garbage_is_not_inflated(kind: Compression, raw: bytes, size: int) -> None:
    try:
        assert len(decompress(kind, raw, size)) == size
    except RemoteProtocolError as fault:
        assert kind.name.lower() in str(fault)


@settings(max_examples=examples(50), deadline=None)
@given(
    records=st.integers(0, 2**32 - 1),
    count=st.integers(1, 2**16 - 1),
    size=st.integers(1 << 20, 64 << 20) | st.integers(0, 2**32 - 1),
    kind=st.sampled_from([kind for kind in Compression if kind]),
    stored=st.just(0) | st.integers(0, 2**32),
)
def test_declared_sizes_cost_no_memory(records: int, count: int, size: int, kind: int, stored: int) -> None:
    """Whatever the numbers in the heads say, what is allocated depends on the bytes that are there."""
    body = compress(kind, b"abcdefgh" * 10)
    length = (len(body) + stored) % 2**32
    batch = struct.pack(">BHII", 0x80 | kind << 4, count, size, length) + body
    published = struct.pack(">BIQ", 1, 1, 5) + batch
    header = ChunkHeader(0, 1, records, 0, 1, 0, 0, len(batch)).encode()
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        for name, raw in (("chunk", header + batch), ("publish 1", published)):
            with contextlib.suppress(RemoteProtocolError):
                DECODERS[name](raw)
        peak = tracemalloc.get_traced_memory()[1] + (counted.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    # 100 bytes of zstd can be 3 MB, so that much may be tried; Arrow's stream has a buffer of 1 MiB.
    assert peak < 5 << 20


@untimed
@given(
    values=st.sets(st.binary(max_size=8)),
    other=st.binary(max_size=8),
    unfiltered=st.booleans(),
    size=st.integers(16, 255),
)
def test_bloom_filters_never_miss(values: set[bytes], other: bytes, unfiltered: bool, size: int) -> None:
    bloom = bloom_of(values, unfiltered, size)
    for value in values:
        assert BloomProbe([value], False).may_match(bloom) and BloomProbe([other, value], False).may_match(bloom)
    assert BloomProbe([other], True).may_match(bloom) or not (unfiltered or other in values or (not bloom))
