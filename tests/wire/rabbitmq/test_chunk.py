"""Chunks: bytes made by hand, captures of real brokers, files of a real broker, and what has to be refused."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.rabbitmq.chunk import (
    HEADER_BYTES,
    ChunkHeader,
    ChunkRecords,
    ChunkType,
    checksum,
    decode_chunk,
)
from spark_streams.wire.rabbitmq.compression import Compression
from spark_streams.wire.rabbitmq.hashes import BloomProbe, bloom_of
from spark_streams.wire.rabbitmq.publish_decode import decode_publish
from spark_streams.wire.rabbitmq.sub_batches import pack_sub_batch
from tests.wire.rabbitmq.chunks import (
    OFFSET,
    SEQUENCE,
    StoredChunk,
    Tracking,
    decode_stored_chunk,
    decode_tracking,
    encode_chunk,
)

GOLDEN = Path(__file__).parent / "golden"
BROKERS = ("3.10", "4.3")
HELLO = bytes.fromhex(
    "50000001000000010000018bcfe56800000000000000000100000000000000007b2fd0420000000e0000000000000000"
    "0000000a005375a00568656c6c6f"
)
MIXED = bytes.fromhex(
    "5000000200000003ffffffffffffffff000000000000000700000000000000641285f1ad0000001b0000000000000000"
    "8000020000000b0000000b00000001610000000262630000000164"
)


def vectors(name: str) -> dict[str, bytes]:
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return {line.split()[0]: bytes.fromhex(line.split()[1]) for line in lines if not line.startswith("#")}


def messages(chunk: ChunkRecords) -> list[bytes]:
    return [bytes(chunk.buffer[a:b]) for a, b in zip(chunk.starts.tolist(), chunk.ends.tolist(), strict=True)]


def encoded(bodies: Sequence[bytes], gap: int = 0, **fields: int) -> bytes:
    """Return our chunk of bodies that lie in one buffer with ``gap`` bytes between them."""
    ends = np.array(list(accumulate(len(body) + gap for body in bodies)), np.int64)
    starts = ends - [len(body) for body in bodies]
    buffer = b"".join(b"\xee" * gap + body for body in bodies)
    return encode_chunk(buffer, starts, ends, **fields)


def chunk(data: bytes, entries: int, records: int, **fields: int) -> bytes:
    """Return a chunk around any data section, its CRC right."""
    header = ChunkHeader(0, entries, records, 5, 1, 7, zlib.crc32(data), len(data))
    return replace(header, **fields).encode() + data


def plain(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def test_the_notes_vector_with_one_entry() -> None:
    found = decode_chunk(b"\xff" + HELLO + b"\xff", 1, len(HELLO) + 2)
    assert found.header == ChunkHeader(0, 1, 1, 1_700_000_000_000, 1, 0, 0x7B2FD042, 14)
    assert messages(found) == [b"\0Su\xa0\x05hello"]
    assert found.offsets.tolist() == [0]
    assert encoded(messages(found), timestamp_ms=1_700_000_000_000) == HELLO


def test_the_notes_vector_with_a_sub_batch() -> None:
    found = decode_chunk(MIXED, 0, len(MIXED))
    assert found.header.timestamp_ms == -1 and found.header.epoch == 7 and found.header.next_offset == 103
    assert (found.offsets.tolist(), messages(found)) == ([100, 101, 102], [b"a", b"bc", b"d"])
    assert found.header.encode() == MIXED[:HEADER_BYTES]


def test_the_crc_is_not_castagnolis() -> None:
    found = decode_chunk(chunk(plain(b"12345"), 1, 1), 0, 57)
    assert found.header.crc == zlib.crc32(b"\0\0\0\x0512345")
    assert checksum(b"123456789") == zlib.crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 255, 256, 257, 4_095, 100_003])
def test_the_fast_crc_is_zlibs(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 3, np.uint8)
    assert checksum(memoryview(data)[3:]) == checksum(data[3:].tobytes()) == zlib.crc32(data[3:])


def test_a_machine_without_isal_checks_with_zlib() -> None:
    code = (
        "import sys, zlib; sys.modules['isal'] = None\n"
        "from spark_streams.wire.rabbitmq import chunk\n"
        "assert chunk.crc32 is zlib.crc32, chunk.crc32\n"
        "print(chunk.checksum(memoryview(b'123456789')))"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert int(said.stdout) == 0xCBF43926


@pytest.mark.parametrize("cut", range(len(MIXED)))
def test_a_truncated_chunk(cut: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_chunk(MIXED, 0, cut)
    with pytest.raises(RemoteProtocolError):
        decode_chunk(MIXED[:cut], 0, cut)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer(kind: type[bytes]) -> None:
    assert messages(decode_chunk(kind(MIXED), 0, len(MIXED))) == [b"a", b"bc", b"d"]


def delivered(raw: bytes) -> tuple[ChunkRecords, bytes]:
    """Return the chunk of a Deliver frame, and the bytes behind its data."""
    at = {1: 9, 2: 17}[raw[7]]
    found = decode_chunk(raw, at, len(raw))
    return found, raw[at + HEADER_BYTES + found.header.data_bytes :]


@pytest.mark.parametrize("broker", BROKERS)
def test_what_a_broker_delivers_is_what_was_published(broker: str) -> None:
    frames = vectors(f"rabbitmq-{broker}")
    labels = {name.split("-", 3)[3]: raw for name, raw in frames.items() if name.startswith("client-publish-v")}
    wanted = [label for label in labels if label.startswith(("sub-batch", "mixed", "amqp", "filter-values"))]
    assert len(wanted) >= 10 and {"mixed-entries", "sub-batch-zstd", "sub-batch-snappy"} <= set(wanted)
    for label in wanted:
        publish = labels[label]
        published = decode_publish(publish, 8, len(publish), publish[7])
        assert published.bad_from is None
        # One chunk, or several when the broker was quick: the capture numbers them.
        chunks = [
            delivered(raw) for name, raw in frames.items() if re.fullmatch(rf"server-deliver-v\d-{label}(-\d+)?", name)
        ]
        ranges = zip(published.starts.tolist(), published.ends.tolist(), strict=True)
        expected = [bytes(published.buffer[a:b]) for a, b in ranges]
        assert [message for found, _ in chunks for message in messages(found)] == expected, label
        assert sum(found.header.entries for found, _ in chunks) == published.ids.size
        assert [offset for found, _ in chunks for offset in found.offsets.tolist()] == list(range(len(expected)))
        assert not any(rest for _, rest in chunks)


@pytest.mark.parametrize("broker", BROKERS)
def test_delivered_chunks_are_encoded_as_the_broker_did(broker: str) -> None:
    again = 0
    for name, raw in vectors(f"rabbitmq-{broker}").items():
        if not name.startswith("server-deliver-v") or "sub-batch" in name:
            continue
        found, _ = delivered(raw)
        header = found.header
        if header.kind or header.trailer_bytes or header.bloom_bytes or header.entries < header.records:
            continue
        ours = encode_chunk(
            found.buffer, found.starts, found.ends,
            first_offset=header.first_offset, timestamp_ms=header.timestamp_ms, epoch=header.epoch,
        )  # fmt: skip
        assert raw.endswith(ours)
        again += 1
    assert again >= 8


@pytest.mark.parametrize("broker", BROKERS)
def test_tracking_chunks_and_trailers_as_delivered(broker: str) -> None:
    frames = vectors(f"rabbitmq-{broker}")
    version = "v1" if broker == "3.10" else "v2"
    found, trailer = delivered(frames[f"server-deliver-{version}-tracking-chunks"])
    assert (messages(found), found.header.trailer_bytes) == ([b"one", b"two"], len(trailer))
    assert decode_tracking(trailer) == (Tracking(SEQUENCE, b"writer", 2),)
    found, _ = delivered(frames[f"server-deliver-{version}-tracking-chunks-2"])
    assert found.header.kind == ChunkType.TRACKING_DELTA
    assert (found.offsets.size, found.starts.size, found.header.next_offset) == (0, 0, 3)
    found, rest = delivered(frames[f"server-deliver-{version}-gap-of-a-tracking-chunk-2"])
    assert (found.offsets.tolist(), messages(found), rest) == ([3], [b"three"], b"")
    assert found.header.trailer_bytes == 16  # said, but not sent


def segment(name: str) -> list[StoredChunk]:
    raw = vectors("osiris-segments")[name]
    assert raw[:8] == b"OSIL\0\0\0\x01"
    found, at = [], 8
    while at < len(raw):
        found.append(decode_stored_chunk(raw, at))
        at = found[-1].end
    return found


def test_a_brokers_file() -> None:
    first = segment("first")
    assert [part.header.kind for part in first] == [0, 0, 0, 1, 0]
    assert [messages(part.records) for part in first] == [
        [b"one", b"two"], [b"three", b"four"], [b"five", b"six"], [], [b"seven"],
    ]  # fmt: skip
    assert [part.header.first_offset for part in first] == [0, 2, 4, 6, 7]
    assert [part.trailer for part in first] == [
        *((Tracking(SEQUENCE, b"writer", last),) for last in (2, 4, 5)),
        (),
        (Tracking(SEQUENCE, b"writer", 6),),
    ]
    assert [len(part.bloom) for part in first] == [0, 20, 0, 0, 0]
    assert first[1].bloom[0] & 0x80, "a record has no filter value"
    assert first[3].tracking == (Tracking(OFFSET, b"reader", 3),)


def test_a_snapshot_in_a_brokers_file() -> None:
    snapshot, last = segment("second")
    assert snapshot.header.kind == ChunkType.TRACKING_SNAPSHOT
    assert snapshot.tracking == (
        Tracking(OFFSET, b"reader", 3),
        Tracking(SEQUENCE, b"writer", 500, chunk_id=158),
    )
    assert (messages(last.records), last.trailer) == ([b"last"], ())


def test_stored_headers_are_encoded_as_the_broker_did() -> None:
    for name, raw in vectors("osiris-segments").items():
        at = 8
        for part in segment(name):
            assert part.header.encode() == raw[at : at + HEADER_BYTES]
            at = part.end


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x51" + HELLO[1:], "0x51: expected 0x50"),
        (b"\x40" + HELLO[1:], "0x40: expected 0x50"),
        (HELLO[:-1] + b"O", "CRC-32"),
        (chunk(plain(b"a"), 2, 2), "0 are left"),
        (chunk(plain(b"a", b"b"), 1, 1), "5 bytes after its 1 entries"),
        (chunk(plain(b"a"), 1, 2), "of 1 records: expected 2"),
        (chunk(plain(b"a"), 1, 1, first_offset=2**63), "expected offsets up to"),
        (chunk(b"\x7f\xff\xff\xff", 1, 1), "2147483647 bytes at byte 48: 0 are left"),
        (chunk(b"\x80\0\1", 1, 1), "entry's head of 4 bytes"),
        (chunk(b"\x80\0\1\0", 1, 1), "head of 11 bytes"),
        (chunk(struct.pack(">BHII", 0xD0, 1, 5, 5) + plain(b"a"), 1, 1), "compression 5"),
        (chunk(struct.pack(">BHII", 0xF0, 1, 5, 5) + plain(b"a"), 1, 1), "compression 7"),
        (chunk(struct.pack(">BHII", 0x80, 0, 0, 0), 1, 0), "of no records"),
        (chunk(struct.pack(">BHII", 0x80, 2, 5, 5) + plain(b"a"), 1, 2), "2 records in 5 bytes"),
        (chunk(struct.pack(">BHII", 0x80, 1, 6, 5) + plain(b"a"), 1, 1), "5 bytes: expected 6"),
        (chunk(struct.pack(">BHII", 0x80, 1, 5, 6) + plain(b"a"), 1, 1), "6 bytes at byte 48: 5 are left"),
        (chunk(struct.pack(">BHII", 0x80, 1, 10, 10) + plain(b"a", b"b"), 1, 1), "5 bytes after its 1 records"),
        (chunk(struct.pack(">BHII", 0x80, 1, 16, 16) + b"\x80" + bytes(15), 1, 1), "inside a sub-batch"),
        (chunk(struct.pack(">BHII", 0x90, 1, 5, 0), 1, 1), "without content"),
        (chunk(struct.pack(">BHII", 0x90, 1, (64 << 20) + 1, 1) + b"x", 1, 1), "at most 67108864"),
    ],
)
def test_what_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decode_chunk(raw, 0, len(raw))


def test_unchecked_crc() -> None:
    assert messages(decode_chunk(HELLO[:-1] + b"O", 0, len(HELLO), check_crc=False)) == [b"\0Su\xa0\x05hellO"]


@pytest.mark.parametrize("kind", [3, 127, 255])
def test_chunks_of_an_unknown_type(kind: int) -> None:
    raw = chunk(b"whatever", 1, 1, kind=kind)
    for read in (decode_chunk, ChunkHeader.decode):
        with pytest.raises(
            RemoteProtocolError, match=rf"^the chunk at offset 7 has type {kind}: expected 0 \(messages\)"
        ):
            read(raw, 0, len(raw))


@pytest.mark.parametrize("kind", [1, 2])
def test_chunks_without_records(kind: int) -> None:
    raw = chunk(b"whatever", 1, 1, kind=kind)
    found = decode_chunk(raw, 0, len(raw))
    assert (found.header.kind, found.header.next_offset, found.offsets.size, found.starts.size) == (kind, 8, 0, 0)


def test_the_last_offset_there_is() -> None:
    raw = encoded([b"x"], first_offset=2**63 - 1)
    assert decode_chunk(raw, 0, len(raw)).offsets.tolist() == [2**63 - 1]
    raw = encoded([b"x", b"y"], first_offset=2**63 - 1)
    with pytest.raises(RemoteProtocolError, match="expected offsets up to"):
        decode_chunk(raw, 0, len(raw))


LAYOUTS = {
    "alike": [b"a" * 100] * 5000,
    "alike but one": [b"a" * 100] * 700 + [b"b" * 99] + [b"a" * 100] * 700,
    "runs": [bytes([n]) * (50 + n) for n in range(200) for _ in range(90)],
    "short": [b"x" * (n % 13) for n in range(3000)],
    "narrow": [b"x" * (n * 7 % 256) for n in range(5000)],
    "wide": [b"y" * (250 + n * 7 % 300) for n in range(5000)],
    "empty": [b""] * 300,
    "one": [b"z"],
    "one empty": [b""],
    "large": [b"a" * 70_000, b"", b"b" * 300_000],
    "zeros": [bytes(n % 300) for n in range(4000)],
    "ones": [b"\xff" * (n % 300) for n in range(4000)],
    "most": [b"m"] * 65_535,
}


@pytest.mark.parametrize("gap", [0, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, gap: int) -> None:
    bodies = LAYOUTS[layout]
    raw = encoded(bodies, gap, first_offset=3)
    assert raw[HEADER_BYTES:] == plain(*bodies)
    found = decode_chunk(raw, 0, len(raw))
    assert messages(found) == bodies
    assert found.offsets.tolist() == list(range(3, 3 + len(bodies)))


def test_records_in_any_order() -> None:
    buffer = b"onetwothree"
    raw = encode_chunk(buffer, np.array([3, 6, 0, 0]), np.array([6, 11, 3, 11]))
    assert messages(decode_chunk(raw, 0, len(raw))) == [b"two", b"three", b"one", b"onetwothree"]


@pytest.mark.parametrize("compression", Compression)
def test_sub_batches_and_plain_entries_take_turns(compression: Compression) -> None:
    bodies = [b"%d" % n * (n % 30) for n in range(600)]
    data, records = b"", []
    for n in range(0, 600, 6):
        data += plain(*bodies[n : n + 2]) + pack_sub_batch(compression, 4, plain(*bodies[n + 2 : n + 6]))
        records += bodies[n : n + 6]
    raw = chunk(data, 300, 600)
    assert messages(decode_chunk(raw, 0, len(raw))) == records
    whole = chunk(pack_sub_batch(compression, 600, plain(*bodies)), 1, 600)
    assert messages(decode_chunk(whole, 0, len(whole))) == bodies


def test_what_all_sub_batches_inflate_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(pack_sub_batch(Compression.ZSTD, 1, plain(bytes(1 << 20))) for _ in range(10))
    raw = chunk(data, 10, 10)
    assert len(raw) < 4096
    assert decode_chunk(raw, 0, len(raw)).offsets.size == 10
    monkeypatch.setattr("spark_streams.wire.rabbitmq.chunk.MAX_INFLATED_BYTES", 10 << 20)
    with pytest.raises(RemoteProtocolError, match="taken at once"):
        decode_chunk(raw, 0, len(raw))
    monkeypatch.setattr("spark_streams.wire.rabbitmq.chunk.MAX_PLAIN_BYTES", 1 << 20)
    with pytest.raises(RemoteProtocolError, match="at most 1048576"):
        decode_chunk(raw, 0, len(raw))


def test_a_number_that_does_not_fit_its_field_cannot_be_encoded() -> None:
    for wrong in ({"timestamp_ms": 2**63}, {"entries": 65_536}, {"bloom_bytes": 256}):
        with pytest.raises(LocalProtocolError):
            replace(ChunkHeader(0, 1, 1, 5, 1, 7, 0, 0), **wrong).encode()


def may_match(bloom: bytes, values: Collection[bytes], match_unfiltered: bool) -> bool:
    return BloomProbe(values, match_unfiltered).may_match(bloom)


@pytest.mark.parametrize("size", [16, 17, 255])
def test_bloom(size: int) -> None:
    assert bloom_of([], True, size) == bloom_of([], False, size) == bloom_of([b""], False, size) == b""
    values = [b"value %d" % n for n in range(10)]
    for unfiltered in (False, True):
        bloom = bloom_of(values, unfiltered, size)
        assert len(bloom) == size
        assert bloom[0] >> 7 == unfiltered
        assert all(may_match(bloom, [value], False) for value in values)
        assert may_match(bloom, [b"none", values[3]], False)
        assert may_match(bloom, [], True) == may_match(bloom, [b""], False) == unfiltered
        assert not may_match(bloom, [], False)
        others = sum(may_match(bloom, [b"other %d" % n], False) for n in range(2000))
        assert others < 2000 * (21 / (8 * size)) ** 2 * 2 + 10
    assert bloom_of([b"a", b""], False, size) == bloom_of([b"a"], True, size) != bloom_of([b"a"], False, size)
    assert may_match(b"", [b"a"], True) and not may_match(b"", [b"a"], False)


@pytest.mark.parametrize("size", [0, 15, 256])
def test_bloom_sizes(size: int) -> None:
    with pytest.raises(LocalProtocolError, match="16 to 255"):
        bloom_of([b"a"], False, size)
