"""The few requests with which broker.py finds out that a broker is up, and wakes it."""

from __future__ import annotations

import socket
import struct


def peer_version(peer: socket.socket) -> str:
    """Ask for the peer's properties (command 0x0011) and return the one called ``version``."""
    body = ask(peer, 0x0011, struct.pack(">I", 0))
    texts, at = [], 14  # key, version, correlation id, code, count of properties
    while at < len(body):
        (length,) = struct.unpack_from(">H", body, at)
        texts.append(body[at + 2 : at + 2 + length].decode())
        at += 2 + length
    properties = dict(zip(texts[::2], texts[1::2], strict=True))
    if "version" not in properties:
        raise EOFError("not a stream listener yet")
    return properties["version"]


def make_first_stream(port: int) -> None:
    """Create and delete a stream, for which the broker starts what all streams need."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as peer:
        peer_version(peer)
        ask(peer, 0x0012)
        ask(peer, 0x0013, b"\0\5PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest")
        ask(peer, 0x0015, b"\0\1/")
        ask(peer, 0x000D, b"\0\5first" + struct.pack(">I", 0))
        ask(peer, 0x000E, b"\0\5first")


def ask(peer: socket.socket, key: int, body: bytes = b"") -> bytes:
    """Send a request and return the first frame with its answer's key."""
    peer.sendall(struct.pack(">IHHI", 8 + len(body), key, 1, 1) + body)
    while True:
        (size,) = struct.unpack(">I", exactly(peer, 4))
        answer = exactly(peer, size)
        if answer[:2] == struct.pack(">H", key | 0x8000):
            return answer


def exactly(peer: socket.socket, size: int) -> bytes:
    """Return the next ``size`` bytes."""
    got = b""
    while len(got) < size:
        if not (more := peer.recv(size - len(got))):
            raise EOFError("the broker closed the connection")
        got += more
    return got
