"""Compressed bytes of other implementations, and bytes that have to be refused before they cost memory."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.rabbitmq.compression import Compression, compress, decompress
from spark_streams.wire.rabbitmq.sub_batches import RecordSpans, SubBatch, pack_sub_batch

PACKED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
LINES = (Path(__file__).parent / "golden" / "compression.hex").read_text().splitlines()
VECTORS = {line.split()[0]: bytes.fromhex(line.split()[1]) for line in LINES if not line.startswith("#")}
IDENTIFIER = b"\xff\x06\0\0sNaPpY"


def pattern(n: int) -> bytes:
    block = random.Random(5).randbytes(500)
    return (block * (n // 500 + 1))[:n]


def noise(n: int) -> bytes:
    return random.Random(n).randbytes(n)


def content(name: str) -> bytes:
    """Return the plain bytes that a vector's name ends with."""
    kind, size = name.split("-")[-2:]
    return {"noise": noise, "pattern": pattern}[kind](int(size))


def kind_of(name: str) -> Compression:
    return Compression[name.split("-")[0].upper()]


def snappy_chunk(kind: int, body: bytes) -> bytes:
    return struct.pack("<I", kind | len(body) << 8) + body


@pytest.mark.parametrize("name", VECTORS)
def test_what_others_compressed(name: str) -> None:
    packed, plain, kind = VECTORS[name], content(name), kind_of(name)
    assert decompress(kind, packed, len(plain)) == plain
    for view in (bytearray(packed), memoryview(b"-" + packed + b"-")[1:-1]):
        assert decompress(kind, view, len(plain)) == plain


@pytest.mark.parametrize("name", VECTORS)
def test_another_size_than_declared(name: str) -> None:
    packed, size, kind = VECTORS[name], len(content(name)), kind_of(name)
    for wrong in {0, 1, size - 1, size + 1, 2 * size + 100, 1 << 20} - {size, -1}:
        with pytest.raises(RemoteProtocolError):
            decompress(kind, packed, wrong)


@pytest.mark.parametrize("name", [name for name in VECTORS if len(VECTORS[name]) < 2000])
def test_truncated(name: str) -> None:
    packed, size, kind = VECTORS[name], len(content(name)), kind_of(name)
    # An empty snappy stream is nothing but its identifier; whatever is cut off a larger one leaves less content.
    for cut in range(len(packed)):
        with pytest.raises(RemoteProtocolError):
            decompress(kind, packed[:cut], size)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("tail", [b"\0", b"x", b"\0\0\0\0", b"trailing bytes"])
def test_something_behind(name: str, tail: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decompress(kind_of(name), VECTORS[name] + tail, len(content(name)))


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("size", [1, 300, 65_536, 65_537, 1 << 20, (4 << 20) + 1, 9_000_000])
@pytest.mark.parametrize("make", [noise, pattern])
def test_ours_and_back(kind: Compression, size: int, make: object) -> None:
    plain = noise(size) if make is noise else pattern(size)
    packed = compress(kind, plain)
    assert len(packed) < size + 64 + size // 1000
    if make is pattern and size > 300 and kind is not Compression.NONE:
        assert len(packed) < size / 5
    assert (packed if kind is Compression.NONE else decompress(kind, packed, size)) == plain
    assert compress(kind, memoryview(plain)) == packed or kind is Compression.GZIP


@pytest.mark.parametrize("kind", PACKED)
def test_the_reference_reads_ours(kind: Compression) -> None:
    plain = pattern(200_000) + noise(100_000)
    packed = compress(kind, plain)
    if kind is Compression.GZIP:
        assert gzip.decompress(packed) == plain
    elif kind is Compression.SNAPPY:  # its own framing is compared with python-snappy's below
        assert packed.startswith(IDENTIFIER)
    else:
        with pa.CompressedInputStream(pa.BufferReader(packed), kind.name.lower()) as stream:
            assert stream.read() == plain


def test_lz4_blocks_are_independent() -> None:
    """lz4-java, which RabbitMQ's Java client uses, refuses frames without this bit."""
    packed = compress(Compression.LZ4, pattern(10 << 20))
    magic, flags = struct.unpack_from("<IB", packed)
    assert (magic, flags >> 6, flags >> 5 & 1) == (0x184D2204, 1, 1)


@pytest.mark.parametrize("plain", [noise(300), pattern(5000), pattern(140_000)])
def test_snappy_chunks_have_the_crcs_of_python_snappy(plain: bytes) -> None:
    def crcs(packed: bytes) -> list[tuple[int, bytes]]:
        found, at = [], len(IDENTIFIER)
        while at < len(packed):
            (head,) = struct.unpack_from("<I", packed, at)
            found.append((head & 0xFF, packed[at + 4 : at + 8]))
            at += 4 + (head >> 8)
        return found

    name = f"snappy-python-{'noise' if len(plain) == 300 else 'pattern'}-{len(plain)}"
    assert content(name) == plain
    assert crcs(compress(Compression.SNAPPY, plain)) == crcs(VECTORS[name])


def test_snappy_framing() -> None:
    data = VECTORS["snappy-python-pattern-5000"][len(IDENTIFIER) :]
    crc = VECTORS["snappy-python-noise-1"][len(IDENTIFIER) + 4 :][:4]
    padding, skipped = snappy_chunk(0xFE, b"???"), snappy_chunk(0x80, b"")
    accepted = IDENTIFIER + padding + IDENTIFIER + skipped + data + padding
    assert decompress(Compression.SNAPPY, accepted, 5000) == pattern(5000)
    for refused in (
        data,
        IDENTIFIER[:-1] + b"y" + data,
        IDENTIFIER + b"\xff\x06\0\0sNaPpy" + data,
        IDENTIFIER + snappy_chunk(0x02, b"") + data,
        IDENTIFIER + snappy_chunk(0x7F, b"abc") + data,
        IDENTIFIER + data + snappy_chunk(1, crc[:3]),
        IDENTIFIER + data + snappy_chunk(0, crc),
        IDENTIFIER + data + snappy_chunk(0, crc + b"\xff\xff\xff\xff\xff"),
        IDENTIFIER + data + b"\0",
        IDENTIFIER + data[:4] + bytes([data[4] ^ 1]) + data[5:],
    ):
        with pytest.raises(RemoteProtocolError, match="snappy"):
            decompress(Compression.SNAPPY, refused, 5000)
    raw = bytes(pa.Codec("snappy").compress(pattern(5000)))
    with pytest.raises(RemoteProtocolError, match="stream identifier"):
        decompress(Compression.SNAPPY, raw, 5000)


def test_a_snappy_chunk_holds_at_most_65536_bytes() -> None:
    raw = pa.Codec("snappy").compress(pa.py_buffer(pattern(70_000)), asbytes=True)
    with pytest.raises(RemoteProtocolError, match="65536"):
        decompress(Compression.SNAPPY, IDENTIFIER + snappy_chunk(0, bytes(4) + raw), 70_000)


@pytest.mark.parametrize("kind", [5, 6, 7, -1])
def test_unknown_kinds(kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match="expected 1 to 4, or 0 for plain bytes"):
        decompress(kind, b"abc", 3)
    with pytest.raises(LocalProtocolError, match="expected 0 to 4"):
        compress(kind, b"abc")


@pytest.mark.parametrize("kind", PACKED)
def test_nothing_at_all(kind: Compression) -> None:
    with pytest.raises(RemoteProtocolError, match="without content"):
        decompress(kind, b"", 0)


def test_plain_bytes() -> None:
    """They are read where they are: nothing is inflated."""
    record = bytes((0, 0, 0, 3)) + b"abc"
    packed = pack_sub_batch(Compression.NONE, 1, record)
    spans = RecordSpans(packed, 100, 100)
    batch = SubBatch.read(packed, 0, len(packed))
    spans.add_sub_batch(batch)
    assert spans.collected()[0] is packed
    for size in (6, 8):
        with pytest.raises(RemoteProtocolError, match="of 7 bytes: expected"):
            spans.add_sub_batch(batch._replace(plain_bytes=size))
    with pytest.raises(RemoteProtocolError, match="expected 1 to 4, or 0 for plain bytes"):
        decompress(Compression.NONE, b"abc", 3)


@pytest.mark.parametrize("kind", PACKED)
def test_a_bomb_takes_no_more_than_was_declared(kind: Compression) -> None:
    """64 MiB of zeros that say they are 1 MiB: refused within little more than that."""
    bomb = compress(kind, bytes(64 << 20))
    size = 1 << 20
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decompress(kind, bomb, size)
        peak = tracemalloc.get_traced_memory()[1] + (counted.max_memory() or 0)
        assert not counted.bytes_allocated()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    # A stream works with 1 MiB beside the result.
    assert peak < 4 * size


@pytest.mark.parametrize("kind", PACKED)
def test_a_few_bytes_that_say_64_mib(kind: Compression) -> None:
    packed = compress(kind, b"abc")
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decompress(kind, packed, 64 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_gzip_members_and_zlib_streams() -> None:
    plain = pattern(5000)
    with pytest.raises(RemoteProtocolError):
        decompress(Compression.GZIP, zlib.compress(plain), 5000)
    with pytest.raises(RemoteProtocolError, match="after its end"):
        decompress(Compression.GZIP, gzip.compress(plain) + gzip.compress(b""), 5000)
    broken = bytearray(gzip.compress(plain))
    broken[-5] ^= 1  # the CRC at its end
    with pytest.raises(RemoteProtocolError):
        decompress(Compression.GZIP, bytes(broken), 5000)
