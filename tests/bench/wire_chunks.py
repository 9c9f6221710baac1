"""What reading and writing chunks and Publish frames costs, beside rstream's codec in the same run.

``python tests/bench/wire_chunks.py [messages]`` prints a table; ``measure`` gives the numbers.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from rstream import schema
from rstream.encoding import decode_frame, encode_frame

from spark_streams.wire.rabbitmq.chunk import decode_chunk
from spark_streams.wire.rabbitmq.compression import Compression
from spark_streams.wire.rabbitmq.hashes import murmur3_32
from spark_streams.wire.rabbitmq.publish_decode import decode_publish
from spark_streams.wire.rabbitmq.publish_encode import encode_publish, encode_sub_batches

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.wire.rabbitmq.chunks import encode_chunk

Row = tuple[str, float, float | None]


def cpu_ns(work: Callable[[], object], count: int, rounds: int = 7) -> float:
    """Return the least CPU time of several rounds, in ns a message."""
    spent = []
    for _ in range(rounds):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return min(spent) / count * 1e9


def read_by_rstream(chunk: bytes) -> None:
    """Read a Deliver frame and its messages."""
    frame = decode_frame(struct.pack(">HHB", 8, 1, 0) + chunk)
    assert isinstance(frame, schema.Deliver)
    frame.get_messages()


def published_by_rstream(bodies: list[bytes]) -> bytes:
    messages = [
        schema.Message(publishing_id=number, filter_value=None, data=body) for number, body in enumerate(bodies)
    ]
    return encode_frame(schema.Publish(publisher_id=1, messages=messages))


def measure(n: int = 16_384) -> list[Row]:
    """Return (what, ns a message, ns a message of rstream's or None) for chunks of ``n`` messages."""
    random = np.random.default_rng(1)
    rows: list[Row] = []
    layouts = {
        "100 bytes": np.full(n, 100),
        "80 to 140 bytes": random.integers(80, 141, n),
        "200 to 400 bytes": random.integers(200, 401, n),
    }
    for what, lengths in layouts.items():
        ends = np.cumsum(lengths)
        starts = ends - lengths
        buffer = random.bytes(int(ends[-1]))
        chunk = encode_chunk(buffer, starts, ends)
        theirs = cpu_ns(lambda c=chunk: read_by_rstream(c), n, 3)
        rows.append((f"decode chunk, {what}", cpu_ns(lambda c=chunk: decode_chunk(c, 0, len(c)), n), theirs))
        unchecked = cpu_ns(lambda c=chunk: decode_chunk(c, 0, len(c), check_crc=False), n)
        rows.append((f"decode chunk, {what}, CRC not checked", unchecked, theirs))
        bodies = [buffer[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        values, ids = pa.array(bodies, pa.large_binary()), np.arange(n, dtype=np.uint64)
        theirs = cpu_ns(lambda b=bodies: published_by_rstream(b), n, 3)
        ours = cpu_ns(lambda v=values, i=ids: encode_publish(1, i, v, None, 1 << 20), n)
        rows.append((f"encode Publish, {what}", ours, theirs))
        (frame,) = encode_publish(1, ids, values)
        decode = cpu_ns(lambda f=frame: decode_publish(f, 8, len(f), 1), n)
        rows.append((f"decode Publish, {what}", decode, None))
        names = pa.array([f"value-{number % 50:02}" for number in range(n)])
        encode = cpu_ns(lambda v=values, i=ids, f=names: encode_publish(1, i, v, f, 1 << 20), n)
        rows.append((f"encode Publish 2, {what}", encode, None))
        (frame,) = encode_publish(1, ids, values, names)
        decode = cpu_ns(lambda f=frame: decode_publish(f, 8, len(f), 2), n)
        rows.append((f"decode Publish 2, {what}", decode, None))
    text = pa.array([b"order %08d of customer-%04d, " % (i, i % 500) * 3 for i in range(n)], pa.large_binary())
    counts = np.full(n // 128, 128)
    for kind in Compression:
        ids = np.arange(counts.size, dtype=np.uint64)
        work = cpu_ns(lambda k=kind, i=ids: encode_sub_batches(1, i, counts, text[: n // 128 * 128], k), n)
        rows.append((f"encode sub-batches of 128, {kind.name.lower()}", work, None))
        (frame,) = encode_sub_batches(1, ids, counts, text[: n // 128 * 128], kind)
        decode = cpu_ns(lambda f=frame: decode_publish(f, 8, len(f), 1), n)
        rows.append((f"decode sub-batches of 128, {kind.name.lower()}", decode, None))
    keys = pa.array([f"customer-{i % 500}" for i in range(n)])
    rows.append(("murmur3", cpu_ns(lambda: murmur3_32(keys), n), None))
    return rows


if __name__ == "__main__":
    for what, ours, theirs in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 16_384):
        ratio = "" if theirs is None else f"{theirs / ours:8.0f} times rstream ({theirs:.0f} ns)"
        print(f"{what:50}{ours:8.0f} ns {1e3 / ours:8.2f} M/s{ratio}")
