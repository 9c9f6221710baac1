"""Publish, PublishConfirm, PublishError: frames of rstream and of real brokers, limits, bad sub-batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.rabbitmq.compression import Compression, compress
from spark_streams.wire.rabbitmq.publish_decode import (
    Published,
    decode_confirm,
    decode_publish,
    decode_publish_error,
    encode_confirm,
    encode_publish_error,
    publish_parts,
)
from spark_streams.wire.rabbitmq.publish_encode import encode_publish, encode_sub_batches
from spark_streams.wire.rabbitmq.sub_batches import pack_sub_batch

GOLDEN = Path(__file__).parent / "golden"


def vectors(name: str) -> dict[str, bytes]:
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return {line.split()[0]: bytes.fromhex(line.split()[1]) for line in lines if not line.startswith("#")}


FRAMES = {f"{broker}-{name}": raw for broker in ("3.10", "4.3") for name, raw in vectors(f"rabbitmq-{broker}").items()}


def of_key(word: str) -> list[str]:
    found = [name for name in FRAMES if f"-{word}-v" in name]
    assert found
    return found


def read(frame: bytes) -> Published:
    size, key, version = struct.unpack_from(">IHH", frame)
    assert (size, key) == (len(frame) - 4, 2)
    return decode_publish(frame, 8, len(frame), version)


def messages(published: Published) -> list[bytes]:
    ranges = zip(published.starts.tolist(), published.ends.tolist(), strict=True)
    return [bytes(published.buffer[a:b]) for a, b in ranges]


def filters(published: Published) -> list[str | None]:
    assert published.filter_starts is not None and published.filter_ends is not None
    ranges = zip(published.filter_starts.tolist(), published.filter_ends.tolist(), strict=True)
    assert all((a < 0) == (b < 0) for a, b in zip(published.filter_starts, published.filter_ends, strict=True))
    return [None if a < 0 else bytes(published.buffer[a:b]).decode() for a, b in ranges]


def large(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def numbers(*ids: int) -> np.ndarray:
    return np.array(ids, np.uint64)


def content(*entries: bytes, publisher: int = 7, count: int | None = None) -> bytes:
    return struct.pack(">BI", publisher, len(entries) if count is None else count) + b"".join(entries)


def plain(publishing_id: int, message: bytes) -> bytes:
    return struct.pack(">QI", publishing_id, len(message)) + message


def chain(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


def filtered(publishing_id: int, value: bytes | None, message: bytes) -> bytes:
    head = struct.pack(">Qh", publishing_id, -1 if value is None else len(value)) + (value or b"")
    return head + struct.pack(">I", len(message)) + message


def join(frames: list[bytes]) -> tuple[list[int], list[int], list[bytes]]:
    """Return ids, counts and messages of frames, whose entries have to follow one another."""
    ids: list[int] = []
    counts: list[int] = []
    found: list[bytes] = []
    for frame in frames:
        published = read(frame)
        assert published.bad_from is None and published.ids.size > 0
        ids += published.ids.tolist()
        counts += published.counts.tolist()
        found += messages(published)
    return ids, counts, found


@pytest.mark.parametrize("name", of_key("publish"))
def test_captured_publishes_are_written_again(name: str) -> None:
    raw = FRAMES[name]
    found = read(raw)
    if name.endswith("bad-sub-batch"):
        assert (found.ids.tolist(), found.counts.tolist(), messages(found)) == ([1, 2, 3], [1, 0, 0], [b"one"])
        assert found.bad_from == 1  # the broker answered 2 and 3 with an error: the capture that follows
        return
    assert found.bad_from is None and int(found.counts.sum()) == found.starts.size
    if (found.counts != 1).any() or "sub-batch" in name or "mixed" in name:
        if "sub-batch-none" in name or name.endswith("rstream-2"):
            (ours,) = encode_sub_batches(found.publisher_id, found.ids, found.counts, large(messages(found)), 0)
            assert ours == raw
        return
    values = None if found.filter_starts is None else pa.array(filters(found))
    (ours,) = encode_publish(found.publisher_id, found.ids, large(messages(found)), values)
    assert ours == raw


def test_captured_contents() -> None:
    found = read(FRAMES["4.3-client-publish-v2-filter-values"])
    assert (filters(found), messages(found)) == (["äpple", None, "pear"], [b"a", b"n", b"p"])
    found = read(FRAMES["3.10-client-publish-v1-mixed-entries"])
    assert (found.ids.tolist(), found.counts.tolist()) == ([1, 2, 3, 4], [1, 3, 1, 1])
    assert messages(found) == [b"plain", b"first", b"", "drïtte ".encode() * 8, b"", b"x"]
    assert read(FRAMES["4.3-client-publish-v1-big-id"]).ids.tolist() == [2**63 + 5]
    assert messages(read(FRAMES["4.3-client-publish-v1-rstream-3"])) == [b"sub", b"batch"]


@pytest.mark.parametrize("name", of_key("publish-confirm"))
def test_captured_confirms(name: str) -> None:
    raw = FRAMES[name]
    publisher_id, ids = decode_confirm(raw, 8, len(raw))
    assert ids.dtype == np.uint64 and encode_confirm(publisher_id, ids) == raw
    for cut in range(8, len(raw)):
        with pytest.raises(RemoteProtocolError):
            decode_confirm(raw, 8, cut)


@pytest.mark.parametrize("name", of_key("publish-error"))
def test_captured_errors(name: str) -> None:
    raw = FRAMES[name]
    found = decode_publish_error(raw, 8, len(raw))
    assert encode_publish_error(*found) == raw
    expected = ([2, 3], [0x11] * 2) if "sub-batch" in name else ([1, 2], [0x12] * 2)
    assert (found.ids.tolist(), found.codes.tolist()) == expected
    for cut in range(8, len(raw)):
        with pytest.raises(RemoteProtocolError):
            decode_publish_error(raw, 8, cut)
    with pytest.raises(RemoteProtocolError):
        decode_publish_error(raw + b"\0", 8, len(raw) + 1)


def test_confirms_of_the_largest_ids() -> None:
    ids = numbers(0, 2**63, 2**64 - 1)
    assert decode_confirm(encode_confirm(255, ids), 8, 37)[1].tolist() == ids.tolist()
    assert decode_confirm(encode_confirm(0, numbers()), 8, 13)[1].size == 0


ROWS = {
    "alike": [b"x" * 100] * 3000,
    "varied": [b"y" * (n * 7 % 400) for n in range(3000)],
    "short": [b"z" * (n % 14) for n in range(3000)],
    "one": [b"one"],
    "none": [],
}


@pytest.mark.parametrize("max_frame_bytes", [0, 430, 5000, 1 << 20])
@pytest.mark.parametrize("rows", ROWS)
def test_messages_there_and_back(rows: str, max_frame_bytes: int) -> None:
    values = ROWS[rows]
    ids = np.arange(len(values), dtype=np.uint64) * np.uint64(3) + np.uint64(2**63)
    sliced = large([b"before", *values, b"after"])[1:-1]
    frames = encode_publish(7, ids, sliced, None, max_frame_bytes)
    assert not max_frame_bytes or max((len(frame) for frame in frames), default=0) <= max_frame_bytes
    assert join(frames) == (ids.tolist(), [1] * len(values), values)
    if rows == "varied" and max_frame_bytes == 430:  # none could have taken the first entry of the next
        firsts = list(accumulate(read(frame).ids.size for frame in frames))
        for frame, following in zip(frames, firsts[:-1], strict=False):
            assert len(frame) + 12 + len(values[following]) > 430


@pytest.mark.parametrize("max_frame_bytes", [0, 450])
@pytest.mark.parametrize("rows", ROWS)
def test_filter_values_there_and_back(rows: str, max_frame_bytes: int) -> None:
    values = ROWS[rows]
    words = [[None, "", "apple", "ä" * 5][n * 7 // 5 % 4] if n < 2000 else None for n in range(len(values))]
    ids = np.arange(len(values), dtype=np.uint64)
    column = pa.array(["before", *words], pa.string())[1:]
    frames = encode_publish(0, ids, large(values), column, max_frame_bytes)
    found: list[str | None] = []
    for frame in frames:
        published = read(frame)
        some = [None] * published.ids.size if published.filter_starts is None else filters(published)
        assert (published.filter_starts is None) == (set(some) == {None})
        found += some
        assert not max_frame_bytes or len(frame) <= max_frame_bytes
    assert found == words
    assert join(frames) == (ids.tolist(), [1] * len(values), values)


def test_filter_values_that_are_all_null_go_in_version_1() -> None:
    (frame,) = encode_publish(1, numbers(1), large([b"a"]), pa.array([None], pa.string()))
    assert frame == encode_publish(1, numbers(1), large([b"a"]))[0]


def test_a_null_filter_value_with_bytes_behind_it() -> None:
    offsets, text = np.array([0, 3, 6], np.int64), b"abcdef"
    buffers = [pa.py_buffer(b"\x01"), pa.py_buffer(offsets), pa.py_buffer(text)]
    column = pa.Array.from_buffers(pa.large_string(), 2, buffers)
    (frame,) = encode_publish(1, numbers(1, 2), large([b"a", b"b"]), column)
    assert filters(read(frame)) == ["abc", None]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("max_frame_bytes", [0, 12_000])
def test_sub_batches_there_and_back(compression: Compression, max_frame_bytes: int) -> None:
    counts = [1 + n * 5 % 37 for n in range(60)]
    values = [b"%d:" % n * (n * 7 % 50) for n in range(sum(counts))]
    ids = np.arange(60, dtype=np.uint64) + np.uint64(10)
    frames = encode_sub_batches(3, ids, np.array(counts), large([b"", *values])[1:], compression, max_frame_bytes)
    assert not max_frame_bytes or max(len(frame) for frame in frames) <= max_frame_bytes
    assert join(frames) == (ids.tolist(), counts, values)


def test_no_sub_batches() -> None:
    assert encode_sub_batches(3, numbers(), np.empty(0, np.int64), large([]), 1) == []


def test_a_message_too_large_for_a_frame() -> None:
    values = large([b"x", b"y" * 75, b"z" * 76])
    assert len(encode_publish(1, numbers(1, 2), values[:2], None, 100)) == 2
    with pytest.raises(LocalProtocolError, match=r"row 2: 88 bytes .* at most 87"):
        encode_publish(1, numbers(1, 2, 3), values, None, 100)
    with pytest.raises(LocalProtocolError, match="row 1: 89 bytes"):
        encode_publish(1, numbers(1, 2), values[:2], pa.array([None, ""]), 100)
    with pytest.raises(LocalProtocolError, match="row 1: "):
        encode_sub_batches(1, numbers(1, 2), np.array([1, 2]), values, 0, 100)


def test_what_cannot_be_published() -> None:
    with pytest.raises(LocalProtocolError, match="row 1: a filter value of 32768 bytes"):
        encode_publish(1, numbers(1, 2), large([b"", b""]), pa.array(["", "x" * 32_768]))
    with pytest.raises(LocalProtocolError, match="nulls"):
        encode_publish(1, numbers(1, 2), large([b"", None]))  # type: ignore[list-item]
    with pytest.raises(LocalProtocolError, match="row 1: a sub-batch of 0 messages"):
        encode_sub_batches(1, numbers(1, 2), np.array([1, 0]), large([b""]), 0)
    with pytest.raises(LocalProtocolError, match="row 0: a sub-batch of 65536 messages"):
        encode_sub_batches(1, numbers(1), np.array([65_536]), large([b""] * 65_536), 0)
    with pytest.raises(LocalProtocolError, match="2 messages"):
        encode_sub_batches(1, numbers(1), np.array([1]), large([b"", b""]), 0)
    with pytest.raises(LocalProtocolError, match="compression 5"):
        encode_sub_batches(1, numbers(1), np.array([1]), large([b""]), 5)


def bad(kind: int, records: int, plain_bytes: int, stored: bytes) -> bytes:
    return struct.pack(">QBHII", 2, 0x80 | kind << 4, records, plain_bytes, len(stored)) + stored


@pytest.mark.parametrize(
    "entry",
    [
        bad(5, 1, 5, chain(b"a")),
        bad(7, 1, 5, chain(b"a")),
        bad(0, 0, 0, b""),
        bad(0, 2, 7, bytes(7)),
        bad(0, 1, 6, chain(b"a")),
        bad(0, 1, 6, chain(b"a") + b"?"),
        bad(0, 2, 9, chain(b"a") + b"\0\0\0\1"),
        bad(0, 1, 16, b"\x80" + bytes(15)),
        bad(1, 1, 5, b""),
        bad(1, 1, 5, b"not gzip"),
        bad(4, 1, (64 << 20) + 1, b"x"),
        bad(2, 2, 5, compress(Compression.SNAPPY, chain(b"a"))),
        bad(3, 1, 6, compress(Compression.LZ4, chain(b"a"))),
        bad(4, 1, 5, compress(Compression.ZSTD, chain(b"ab"))),
    ],
)
def test_a_bad_sub_batch_leaves_out_the_rest(entry: bytes) -> None:
    good = struct.pack(">Q", 9) + pack_sub_batch(1, 2, chain(b"b", b"c"))
    raw = content(plain(1, b"a"), good, entry, plain(4, b"d"), good, entry)
    found = decode_publish(raw, 0, len(raw), 1)
    assert found.bad_from == 2
    assert found.ids.tolist() == [1, 9, 2, 4, 9, 2]
    assert found.counts.tolist() == [1, 2, 0, 0, 0, 0]
    assert messages(found) == [b"a", b"b", b"c"]


def joined(parts: list[Published]) -> tuple[list[int], list[int], list[bytes]]:
    ids = [number for part in parts for number in part.ids.tolist()]
    counts = [number for part in parts for number in part.counts.tolist()]
    return ids, counts, [message for part in parts for message in messages(part)]


def sub_batch_of(number: int, count: int, kind: int = 1) -> bytes:
    return struct.pack(">Q", number) + pack_sub_batch(kind, count, chain(*[b"%d" % number] * count))


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    "entries",
    [
        [],
        [plain(1, b"a")],
        [plain(n, b"x" * (n % 300)) for n in range(40_000)],
        [sub_batch_of(n, 60_000) for n in range(4)],
        [sub_batch_of(n, 2, n % 2) for n in range(1_000)],
        [*[plain(n, b"x") for n in range(20_000)], sub_batch_of(7, 20_000), *[plain(n, b"y") for n in range(20_000)]],
        [struct.pack(">Q", n) + pack_sub_batch(4, 1, chain(bytes(900_000))) for n in range(5)],
    ],
    ids=["none", "one", "many", "large sub-batches", "many sub-batches", "both kinds", "large messages"],
)
def test_a_frame_in_parts_is_the_whole_frame(entries: list[bytes], broken: bool) -> None:
    if broken:
        entries = [*entries, bad(5, 1, 5, chain(b"a")), *entries]
    raw = content(*entries)
    whole, parts = decode_publish(raw, 0, len(raw), 1), list(filter(None, publish_parts(raw, 0, len(raw), 1)))
    assert joined(parts) == joined([whole])
    assert {part.publisher_id for part in parts} == {whole.publisher_id}
    assert sum(part.ids.size if part.bad_from is None else part.bad_from for part in parts) == (
        whole.ids.size if whole.bad_from is None else whole.bad_from
    )
    for part in parts:
        assert part.starts.size < (1 << 14) + (1 << 16) and len(part.buffer) <= max(len(raw), 4 << 20)
    assert len(parts) > 1 or len(entries) < 6, "it has been cut"


def test_a_frame_of_filter_values_is_one_part() -> None:
    (frame,) = encode_publish(1, numbers(1, 2), large([b"a", b"b"]), pa.array(["x", None]))
    (part,) = filter(None, publish_parts(frame, 8, len(frame), 2))
    assert messages(part) == [b"a", b"b"] and filters(part) == ["x", None]


def test_a_frame_that_is_malformed_at_its_end_ends_its_parts_there() -> None:
    raw = content(*[plain(n, b"x") for n in range(40_000)])
    parts = publish_parts(raw + b"?", 0, len(raw) + 1, 1)
    first = next(parts)
    assert first is not None and first.ids.tolist() == list(range(1 << 14))
    with pytest.raises(RemoteProtocolError, match="1 bytes after its last entry"):
        list(parts)


def test_what_the_sub_batches_of_a_frame_inflate_to_is_bounded() -> None:
    bomb = struct.pack(">Q", 1) + pack_sub_batch(4, 1, chain(bytes(1 << 20)))
    raw = content(*[bomb] * 5)
    found = decode_publish(raw, 0, len(raw), 1, max_inflated_bytes=5 << 20)
    assert (found.bad_from, found.starts.size) == (4, 4)


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        (0, content()),
        (3, content()),
        (1, b""),
        (1, content()[:4]),
        (1, content(count=1)),
        (1, content(count=0xFFFFFFFF)),
        (2, content(count=0x7FFFFFFF)),
        (1, content() + b"?"),
        (2, content() + b"?"),
        (1, content(plain(1, b"abc"), count=2)),
        (1, content(plain(1, b"abc"), b"?")),
        (1, content(plain(1, b"abc")[:-1])),
        (1, content(bad(0, 1, 5, chain(b"a"))[:-1])),
        (1, content(bad(0, 1, 5, chain(b"a"))[:12])),
        (2, content(filtered(1, b"f", b"abc")[:-1])),
        (2, content(filtered(1, b"f", b"abc")[:12])),
        (2, content(filtered(1, b"f", b"abc"), b"???")),
        (2, content(struct.pack(">QhI", 1, -2, 0))),
        (2, content(struct.pack(">QhI", 1, 0x7FFF, 0))),
        (2, content(struct.pack(">QhI", 1, -1, 0xFFFFFFFF))),
        (2, content(filtered(1, None, b""), bad(0, 1, 5, chain(b"a")))),
    ],
)
def test_malformed_frames(version: int, raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_publish(raw, 0, len(raw), version)


@pytest.mark.parametrize("version", [1, 2])
def test_every_cut_of_a_frame(version: int) -> None:
    entries = [filtered(n, [None, b"", b"abc"][n % 3], b"x" * (n % 5)) for n in range(20)]
    if version == 1:
        entries = [plain(n, b"x" * (n % 5)) for n in range(20)] + [bad(0, 1, 5, chain(b"a")), plain(1, b"")]
    raw = content(*entries)
    assert decode_publish(raw, 0, len(raw), version).ids.size == len(entries)
    for cut in range(len(raw)):
        with pytest.raises(RemoteProtocolError):
            decode_publish(raw, 0, cut, version)


def test_version_2_with_alike_and_other_entries() -> None:
    rows = [(n, b"key" if n % 500 else b"longer", b"m" * (100 if n % 700 else 99)) for n in range(5000)]
    raw = b"--" + content(*(filtered(*row) for row in rows)) + b"--"
    found = decode_publish(raw, 2, len(raw) - 2, 2)
    assert found.ids.tolist() == [row[0] for row in rows]
    assert filters(found) == [row[1].decode() for row in rows]
    assert messages(found) == [row[2] for row in rows]
