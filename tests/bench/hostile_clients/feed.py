"""Bad clients of the feed door."""

from __future__ import annotations

import gzip
import itertools
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pyarrow as pa
import requests

from tests.bench.hostile_clients.registry import attack

DOOR = "feedapi"
NDJSON = {"Content-Type": "application/x-ndjson"}
GZIP = {**NDJSON, "Content-Encoding": "gzip"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
BODY_BYTES = 16 << 20
GUARD_S = 600.0
MILLION = 1_000_000


def expect(answer: requests.Response, status: int) -> requests.Response:
    if answer.status_code != status:
        raise AssertionError(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text:.200}")
    return answer


def create(urls: Mapping[str, str], name: str, partitions: int = 1) -> str:
    """Make a feed; return its address."""
    url = f"{urls[DOOR]}/{name}"
    expect(requests.put(url, params={"partitions": partitions}, timeout=GUARD_S), 201)
    return url


def together(clients: int, do: Callable[[requests.Session], object]) -> Iterator[None]:
    """Have so many clients do something, each on a connection of its own, again and again."""
    sessions = [requests.Session() for _ in range(clients)]
    with ThreadPoolExecutor(clients) as threads:
        yield
        while True:
            list(threads.map(do, sessions))
            yield


def publish_for_ever(url: str, body: bytes, headers: Mapping[str, str], clients: int = 1) -> Iterator[None]:
    yield from together(clients, lambda s: expect(s.post(url, body, headers=headers, timeout=GUARD_S), 200))


@attack(f"{DOOR}: four gzip bodies of newlines")
def newlines(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(create(urls, "bad"), gzip.compress(b"\n" * BODY_BYTES), GZIP, clients=4)


@attack(f"{DOOR}: four gzip bodies of newlines with an event here and there")
def sparse(urls: Mapping[str, str]) -> Iterator[None]:
    body = gzip.compress((b"\n" * 100_000 + b'{"event":""}\n') * (BODY_BYTES // 100_013))
    yield from publish_for_ever(create(urls, "bad"), body, GZIP, clients=4)


@attack(f"{DOOR}: a million events in one body")
def million(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(create(urls, "bad", 4), gzip.compress(b'{"event":""}\n' * MILLION), GZIP)


@attack(f"{DOOR}: a million events in one body, four at a time")
def millions(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(create(urls, "bad", 4), gzip.compress(b'{"event":""}\n' * MILLION), GZIP, clients=4)


@attack(f"{DOOR}: a million events in one Arrow body")
def arrow(urls: Mapping[str, str]) -> Iterator[None]:
    batch = pa.record_batch({"value": pa.array([b""] * MILLION, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    yield from publish_for_ever(create(urls, "bad", 4), sink.getvalue().to_pybytes(), ARROW)


@attack(f"{DOOR}: a million events in one body, once only")
def numbered(urls: Mapping[str, str]) -> Iterator[None]:
    url = create(urls, "bad", 4)
    body = gzip.compress(b'{"event":""}\n' * MILLION)
    numbers = itertools.count(1)

    def publish(session: requests.Session) -> None:
        headers = {**GZIP, "Idempotency-Key": "bad", "Idempotency-Sequence": str(next(numbers))}
        expect(session.post(url, body, headers=headers, timeout=GUARD_S), 200)

    yield from together(1, publish)


@attack(f"{DOOR}: a key of 15.9 MB")
def long_key(urls: Mapping[str, str]) -> Iterator[None]:
    body = b'{"event":"","key":"' + b"k" * 15_900_000 + b'"}\n'
    yield from publish_for_ever(create(urls, "bad", 4), body, NDJSON)


@attack(f"{DOOR}: a key of 300 kB, a body of 350 bytes in gzip")
def packed_key(urls: Mapping[str, str]) -> Iterator[None]:
    body = gzip.compress(b'{"key":"' + b"k" * 300_000 + b'","event":{}}\n')
    yield from publish_for_ever(create(urls, "bad"), body, GZIP)


@attack(f"{DOOR}: brackets, and a string without an end")
def endless(urls: Mapping[str, str]) -> Iterator[None]:
    url = create(urls, "bad")
    body = gzip.compress(b'{"event":' + b"[" * 600 + b'"' + b'\\"' * 2_000_000)
    yield from together(1, lambda session: expect(session.post(url, body, headers=GZIP, timeout=GUARD_S), 400))


@attack(f"{DOOR}: a body of tiny chunks, four clients")
def tiny_chunks(urls: Mapping[str, str]) -> Iterator[None]:
    create(urls, "bad")
    where = urlsplit(urls[DOOR])
    head = b"POST /bad HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    body = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n\n\r\n" * 500_000 + b"0\r\n\r\n"
    peers = [socket.create_connection((where.hostname, where.port), GUARD_S) for _ in range(4)]

    def send(peer: socket.socket) -> None:
        peer.sendall(body)
        answer = b""
        while not answer.endswith(b"}"):
            if not (came := peer.recv(1_000)):
                raise EOFError("its body took too long")
            answer += came
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise EOFError(answer.decode())

    with ThreadPoolExecutor(len(peers)) as threads:
        yield
        while True:
            list(threads.map(send, peers))
            yield


@attack(f"{DOOR}: an event to each of 1,000 partitions")
def scattered(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(create(urls, "bad", 1_000), b'{"event":""}\n' * 1_000, NDJSON, clients=4)


@attack(f"{DOOR}: 1,000 partitions made and removed")
def partitions(urls: Mapping[str, str]) -> Iterator[None]:
    def make_and_remove(session: requests.Session) -> None:
        expect(session.put(f"{urls[DOOR]}/bad", params={"partitions": 1_000}, timeout=GUARD_S), 201)
        expect(session.delete(f"{urls[DOOR]}/bad", timeout=GUARD_S), 204)

    yield from together(1, make_and_remove)


@attack(f"{DOOR}: discovery of 1,000 partitions, eight clients")
def discovery(urls: Mapping[str, str]) -> Iterator[None]:
    url = create(urls, "bad", 1_000)
    yield from together(8, lambda session: expect(session.get(url, timeout=GUARD_S), 200))


def search(urls: Mapping[str, str], query: str) -> Iterator[None]:
    url = create(urls, "bad")
    body = gzip.compress(b'{"event":{"a":"some text that is long","b":[1,2,3]},"key":"k"}\n' * 200_000)
    for _ in range(2):
        expect(requests.post(url, body, headers=GZIP, timeout=GUARD_S), 200)
    address = f"{url}?partition=0&cursor=_first&{query}"
    yield from together(4, lambda session: expect(session.get(address, timeout=GUARD_S), 200))


for named, query in {
    "a key": "filter-key=none",
    "a subject": "filter-subject=none",
    "a member that holds another text": "filter-/a=none",
    "a member, with a text that others hold": "filter-/c=some+text+that+is+long",
    "an item of a list": "filter-/b/0=2",
}.items():
    attack(f"{DOOR}: a filter that matches nothing, on {named}")(lambda urls, query=query: search(urls, query))


@attack(f"{DOOR}: reading tiny events, four clients")
def tiny(urls: Mapping[str, str]) -> Iterator[None]:
    url = create(urls, "bad")
    body = gzip.compress(b'{"event":""}\n' * MILLION)
    expect(requests.post(url, body, headers=GZIP, timeout=GUARD_S), 200)
    address = f"{url}?partition=0&cursor=_first&pageSizeHint=100000"
    yield from together(4, lambda session: expect(session.get(address, timeout=GUARD_S), 200))
