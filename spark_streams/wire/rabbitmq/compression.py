"""Compress and decompress sub-batches, in the four formats that RabbitMQ's clients agree on.

::

    1  gzip     one gzip member (RFC 1952)
    2  snappy   the framed format: identifier, then snappy chunks  type(u8) length(u24) content, little-endian
                    0xff "sNaPpY"                 the stream identifier
                    0x00 crc(u32) raw snappy      0x01 crc(u32) plain bytes
                    0xfe, 0x80..0xfd padding, skipped; 0x02..0x7f may not be skipped
                crc: CRC-32C of the plain bytes, rotated right by 15, plus 0xa282ead8; 65536 plain bytes a chunk at most
    3  lz4      lz4 frames: written with independent blocks only, because lz4-java refuses linked ones
    4  zstd     zstd frames

The declared size of a sub-batch bounds the inflated bytes: no function here takes more memory than that and a constant,
and all refuse bytes that inflate to fewer bytes, to more, or to content that is followed by other bytes.

Spec: docs/specifications.md, S-42, S-43; snappy's framing_format.txt; lz4_Frame_format.md; RFC 8878.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import google_crc32c
import pyarrow as pa

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Readable


class Compression(IntEnum):
    """The compression, by its number in a sub-batch's header."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_WBITS: Final = 31
_SNAPPY_STREAM: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_PLAIN: Final = 65_536
"""The most plain bytes of a snappy chunk."""
_MASK_DELTA: Final = 0xA282EAD8
_LZ4_HEAD: Final = bytes.fromhex("04224d18 60 70 73")
"""The magic; version 1, independent blocks, no checksums, no content size; blocks of 4 MiB; the header's check byte."""
_LZ4_BLOCK: Final = 4 << 20
_LZ4_PLAIN: Final = 1 << 31
_MOST: Final = {3: 255, 4: 32_768}
"""The most bytes that one byte can inflate to: in lz4 it lengthens a match by 255, in zstd 4 bytes are a block of 128
KiB. These two allocate the result before they inflate anything, so impossible sizes are refused first."""
_U32: Final = struct.Struct("<I")

_SNAPPY: Final = pa.Codec("snappy")
_LZ4_RAW: Final = pa.Codec("lz4_raw")
_ZSTD: Final = pa.Codec("zstd")


def compress(kind: int, plain: Readable) -> bytes:
    """Return ``plain`` in the format of ``kind``.

    Raises:
        LocalProtocolError: ``kind`` is not in ``Compression``.
    """
    codec = _CODECS.get(kind)
    if codec is None and kind != Compression.NONE:
        raise LocalProtocolError(f"compression {kind}: expected 0 to 4")
    return bytes(plain) if codec is None else codec[0](memoryview(plain))


def decompress(kind: int, packed: Readable, size: int) -> bytes:
    """Return the bytes to which ``packed`` inflates.

    Args:
        kind: a ``Compression`` other than ``NONE``.
        packed: the compressed bytes; nothing may follow them. Several lz4 or zstd frames in a row are one content, as
            their formats define.
        size: the number of inflated bytes; the caller has checked that this many are acceptable.

    Raises:
        RemoteProtocolError: the kind is unknown, or the bytes are not of that format or inflate to another size.
    """
    codec = _CODECS.get(kind)
    if codec is None:
        raise RemoteProtocolError(f"a sub-batch with compression {kind}: expected 1 to 4, or 0 for plain bytes")
    if not packed:
        raise RemoteProtocolError(f"a {Compression(kind).name.lower()} sub-batch without content")
    most = _MOST.get(kind)
    if most is not None and size > most * len(packed):
        raise _broken(kind, f"of {len(packed)} bytes: cannot inflate to {size} bytes, as its header says")
    try:
        return codec[1](memoryview(packed), size)
    except (pa.ArrowException, OSError, zlib.error) as fault:
        # pa.ArrowException is the base of Arrow's own errors; a codec's failure is an OSError.
        raise _broken(kind, f"cannot be inflated to {size} bytes: {fault}") from fault


def _broken(kind: int, problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a {Compression(kind).name.lower()} sub-batch {problem}")


def _gzip(plain: memoryview) -> bytes:
    stream = zlib.compressobj(wbits=_GZIP_WBITS)
    return stream.compress(plain) + stream.flush()


def _gunzip(packed: memoryview, size: int) -> bytes:
    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    plain = stream.decompress(packed, size + 1)
    if len(plain) > size:
        raise _broken(Compression.GZIP, f"inflates to more than the {size} bytes of its header")
    if not stream.eof or len(plain) < size:
        raise _broken(Compression.GZIP, f"ends after {len(plain)} bytes: expected {size}, as its header says")
    if stream.unused_data:
        raise _broken(Compression.GZIP, f"with {len(stream.unused_data)} bytes after its end")
    return plain


def _unzstd(packed: memoryview, size: int) -> bytes:
    # One call, straight into the result: a stream would allocate any window that the frame requests.
    return bytes(_ZSTD.decompress(pa.py_buffer(packed), decompressed_size=size, asbytes=True))


def _unlz4(packed: memoryview, size: int) -> bytes:
    # Arrow's one-call function does not report that fewer bytes came out than requested; the stream does.
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), "lz4") as stream:
        plain: bytes = stream.read(size)
        if len(plain) < size:
            raise _broken(Compression.LZ4, f"ends after {len(plain)} bytes: expected {size}, as its header says")
        if stream.read(1):
            raise _broken(Compression.LZ4, f"inflates to more than the {size} bytes of its header")
    return plain


def _lz4_frame(plain: memoryview) -> bytes:
    pieces: list[Readable] = [_LZ4_HEAD]
    for at in range(0, len(plain), _LZ4_BLOCK):
        block = plain[at : at + _LZ4_BLOCK]
        packed = _LZ4_RAW.compress(pa.py_buffer(block), asbytes=True)
        if len(packed) < len(block):
            pieces += _U32.pack(len(packed)), packed
        else:
            pieces += _U32.pack(len(block) | _LZ4_PLAIN), block
    return b"".join((*pieces, bytes(4)))


def _masked_crc(plain: Readable) -> int:
    crc: int = google_crc32c.value(bytes(plain))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _snappy_frames(plain: memoryview) -> bytes:
    pieces: list[Readable] = [_SNAPPY_STREAM]
    for at in range(0, len(plain), _SNAPPY_PLAIN):
        block = plain[at : at + _SNAPPY_PLAIN]
        packed: Readable = _SNAPPY.compress(pa.py_buffer(block), asbytes=True)
        kind = 0
        if len(packed) >= len(block):
            kind, packed = 1, block
        pieces += _U32.pack(kind | (len(packed) + 4) << 8), _U32.pack(_masked_crc(block)), packed
    return b"".join(pieces)


def _unsnappy(packed: memoryview, size: int) -> bytes:
    if bytes(packed[: len(_SNAPPY_STREAM)]) != _SNAPPY_STREAM:
        raise _broken(Compression.SNAPPY, "does not begin with the framed format's stream identifier")
    pieces: list[bytes] = []
    left, at, end = size, 0, len(packed)
    while at < end:
        if end - at < 4:
            raise _broken(Compression.SNAPPY, f"ends inside the head of a chunk, at byte {at}")
        (head,) = _U32.unpack_from(packed, at)
        kind, start, at = head & 0xFF, at + 4, at + 4 + (head >> 8)
        if at > end:
            raise _broken(Compression.SNAPPY, f"ends inside a chunk of {head >> 8} bytes at byte {start}")
        if kind == 0xFF:
            if head >> 8 != 6 or bytes(packed[start - 4 : at]) != _SNAPPY_STREAM:
                raise _broken(Compression.SNAPPY, f"has a wrong stream identifier at byte {start - 4}")
        elif kind < 2:
            block = _snappy_chunk(packed[start:at], kind, left)
            left -= len(block)
            pieces.append(block)
        elif kind < 0x80:
            raise _broken(Compression.SNAPPY, f"has a chunk of the reserved type {kind} at byte {start - 4}")
    if left:
        raise _broken(Compression.SNAPPY, f"ends after {size - left} bytes: expected {size}, as its header says")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy_chunk(chunk: memoryview, kind: int, left: int) -> bytes:
    """Return the plain bytes of a snappy chunk, which starts with its CRC; at most ``left`` of them."""
    if len(chunk) < 4:
        raise _broken(Compression.SNAPPY, "has a chunk that is too short for its CRC")
    length = _snappy_length(chunk) if kind == 0 else len(chunk) - 4
    if length > min(left, _SNAPPY_PLAIN):
        raise _broken(Compression.SNAPPY, f"has a chunk of {length} plain bytes: expected at most {_SNAPPY_PLAIN}, "
                      f"and {left} by its header")  # fmt: skip
    content = chunk[4:]
    plain = bytes(content)
    if kind == 0:
        plain = _SNAPPY.decompress(pa.py_buffer(content), decompressed_size=length, asbytes=True)
    if _masked_crc(plain) != _U32.unpack_from(chunk)[0]:
        raise _broken(Compression.SNAPPY, "has a chunk whose CRC-32C does not match")
    return plain


def _snappy_length(chunk: memoryview) -> int:
    """Return the plain length at the head of raw snappy bytes: a varint after the CRC."""
    length = 0
    for shift, byte in zip(range(0, 35, 7), chunk[4:9], strict=False):
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length
    raise _broken(Compression.SNAPPY, "has a chunk without a length")


_CODECS: Final[dict[int, tuple[Callable[[memoryview], bytes], Callable[[memoryview, int], bytes]]]] = {
    Compression.GZIP: (_gzip, _gunzip),
    Compression.SNAPPY: (_snappy_frames, _unsnappy),
    Compression.LZ4: (_lz4_frame, _unlz4),
    Compression.ZSTD: (lambda plain: bytes(_ZSTD.compress(pa.py_buffer(plain), asbytes=True)), _unzstd),
}
"""What packs bytes, and what unpacks them to a size."""
