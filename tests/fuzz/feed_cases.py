"""Cases for the FeedAPI door: what requests said, damaged, and requests of which each part may be anything."""

from __future__ import annotations

import functools
import gzip
import re
import struct
from random import Random
from urllib.parse import quote

import pyarrow as pa

PATHS = (
    "orders",
    "many",
    "created",
    "nobody",
    "",
    "orders/events",
    "%00",
    "%ff",
    "o" * 300,
    "../x",
    "many/partitions/0/split",
    "//orders",
    "é",
)
VALUES = (
    "",
    "0",
    "1",
    "-1",
    "2",
    "9" * 30,
    "_first",
    "_last",
    "y",
    "10",
    "1" * 32,
    "%00",
    "%zz",
    "\u0663",
    "true",
    "x" * 5_000,
    "a;b",
    "1e9",
)
NAMES = (
    "partition",
    "cursor",
    "n",
    "cursor0",
    "cursor1",
    "pageSizeHint",
    "pagesizehint",
    "stream",
    "headers",
    "token",
    "partitions",
    "into",
    "history",
    "event-types",
    "filter-x",
    "filter-subject",
    "filter-type",
)
SQL = (
    "(" * 3_000,
    "NOT " * 3_000 + "a",
    "a = " + "9" * 5_000,
    "a IN (" + "1," * 3_000 + "1)",
    "a LIKE '" + "%a" * 2_000 + "'",
    "\0",
    "'" * 3_001,
    "a = 1 AND b > '2'",
)
JSON = (
    b'{"event":{"n":1}}\n',
    b'{"data":{"n":1},"key":"k"}\n{"event":"text"}\n',
    b'{"event":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    b'{"event":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}\n",
    b'{"event":{"n":' + b"9" * 100_000 + b"}}\n",
    b'{"event":{"n":1e99999999}}\n',
    b'{"event":"\\ud800"}\n',
    b'{"event":"\xff"}\n',
    b'{"event":{},"key":1}\n',
    b'{"cursor":"x"}\n',
    b"[1]\nnull\n1\n",
    b"\n" * 100_000,
    b'{"event":{}}' * 3,
    b'\xef\xbb\xbf{"event":{}}\n',
)
NESTED = (b"[" * 5_000, b'{"a":' * 5_000, b"%00", b"\r\n", b"a: b\r\n" * 300, b"\xff" * 500)
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BOMB_BYTES = 64 << 20
SIGNED_IN = 0


@functools.cache
def arrow(kind: int) -> bytes:
    """Return an Arrow stream: a good one, one of other columns, or a bomb."""
    options = pa.ipc.IpcWriteOptions(compression="zstd" if kind in (3, 4) else "lz4" if kind == 5 else None)
    if kind == 0:
        table = pa.table(
            {"value": [b"a", b"b"], "key": ["x", None], "timestamp": pa.array([1, None], pa.timestamp("us"))}
        )
    elif kind == 1:
        table = pa.table({"value": pa.array(["a", "b"]).dictionary_encode(), "key": pa.nulls(2)})
    elif kind == 2:
        table = pa.table({"value": [b"a"], "timestamp": pa.array([2**63 - 1], pa.timestamp("s", tz="Mars/Olympus"))})
    elif kind == 6:
        table = pa.table({"value": [b"a"], "key": pa.array([[["x"]]])})
    elif kind == 7:
        table = pa.table({"value": [b""] * 300_000})
    else:
        table = pa.table({"value": [bytes(BOMB_BYTES if kind in (3, 5) else 1 << 20)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@functools.cache
def packed(size: int) -> bytes:
    return gzip.compress(b'{"event":"' + b"a" * size + b'"}\n', mtime=0)


def body(chance: Random) -> tuple[bytes, str, str]:
    """Return a body, its content type and its coding."""
    kind = chance.randrange(10)
    if kind < 4:
        return b"".join(chance.choice(JSON) for _ in range(chance.randint(1, 3))), NDJSON, ""
    if kind < 7:
        content = bytearray(arrow(chance.randrange(8)))
        if chance.random() < 0.7:
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(min(len(content), 1_500))
                size = chance.choice((1, 4, 8))
                number = chance.choice((0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**62)) % (1 << 8 * size)
                content[at : at + size] = struct.pack("<Q", number)[:size]
        return bytes(content), ARROW, ""
    if kind < 9:
        content = bytearray(packed(chance.choice((10, 1 << 20, BOMB_BYTES))))
        if chance.random() < 0.5:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return bytes(content), NDJSON, "gzip"
    return (
        chance.randbytes(chance.randrange(300)),
        chance.choice((NDJSON, ARROW, "", "text/html", "x" * 3_000)),
        chance.choice(("", "br", "gzip, gzip")),
    )


def request(chance: Random) -> bytes:
    """Return a request, its parts mostly what they should be."""
    method = chance.choice(("GET", "GET", "GET", "POST", "POST", "PUT", "HEAD", "DELETE", "PATCH", "OPTIONS", "\0"))
    pairs = [(chance.choice(NAMES), chance.choice((*VALUES, *SQL))) for _ in range(chance.randrange(5))]
    if method == "GET" and chance.random() < 0.8:
        pairs = [("partition", chance.choice("0012")), ("cursor", chance.choice(("_first", "_last", *VALUES))), *pairs]
    query = "&".join(
        f"{name}={quote(value, safe='%') if chance.random() < 0.9 else value.strip()}" for name, value in pairs
    )
    path = chance.choice((*("orders", "many") * 4, *PATHS))
    target = f"/{path}?{query}" if query else f"/{path}"
    headers = [f"Host: {chance.choice(('localhost', 'localhost', 'h', '', 'x' * 3_000))}"]
    content = b""
    if method in ("POST", "PUT", "PATCH") and chance.random() < 0.95:
        content, kind, coding = body(chance)
        headers += [f"Content-Type: {kind}"] + ([f"Content-Encoding: {coding}"] if coding else [])
        if chance.random() < 0.6:
            key, number = chance.choice(("w", "", "é", "k" * 300)), chance.choice(("1", "2", "-1", "9" * 19, "x"))
            headers += [f"Idempotency-Key: {key}", f"Idempotency-Sequence: {number}"]
            headers += [f"Idempotency-Digest: {chance.choice(('00ff00ff', 'x', ''))}"] * chance.randrange(2)
        if chance.random() < 0.15:
            size = chance.choice((1, 1_000, 1 << 16))
            headers.append("Transfer-Encoding: chunked")
            pieces = [content[at : at + size] for at in range(0, min(len(content), 40 * size), size)]
            content = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        else:
            length = len(content) if chance.random() < 0.9 else chance.choice((0, 1, -1, 10**30, len(content) + 10))
            headers.append(f"Content-Length: {length}")
    if chance.random() < 0.2:
        headers.append(
            chance.choice(
                (
                    "Accept-Encoding: gzip;q=nan, *;q=1e999",
                    "Authorization: Bearer \xff",
                    "Expect: 100-continue",
                    "Connection: upgrade\r\nUpgrade: websocket",
                    "A: " + "b" * 70_000,
                    "Authorization: Basic ====",
                    "Transfer-Encoding: gzip",
                )
            )
        )
    # Latin-1, where it goes: what does not is a path, which is percent-encoded.
    head = f"{method} {target} HTTP/1.{chance.choice('1110')}\r\n" + "\r\n".join(headers) + "\r\n\r\n"
    return head.encode("utf-8", "surrogatepass") + content


def grammar(chance: Random) -> list[bytes]:
    """Return some requests."""
    return [request(chance) for _ in range(chance.choice((1, 1, 1, 2, 4)))]


def opening() -> list[bytes]:
    """Return nothing: every request stands for itself."""
    return []


def sized(content: bytes) -> bytes:
    """Return a request whose head says how long its body is."""
    head, gap, rest = content.partition(b"\r\n\r\n")
    return re.sub(rb"(?i)(content-length: *)[0-9]+", rb"\g<1>%d" % len(rest), head) + gap + rest


def illegal(answer: bytes, reset: bool) -> str | None:
    """Return what is wrong with all that the door said on a connection, or None."""
    if answer and not answer.startswith(b"HTTP/1.1 "[: len(answer)]):
        return f"an answer that begins {answer[:40]!r}"
    broken = re.search(rb"HTTP/1\.1 (500|501|502)[^\r]*", answer)
    return f"it says {broken.group().decode()}" if broken else None
