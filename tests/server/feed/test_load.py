"""Slow clients, many clients, compression, and the door's end."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from tests.server.feed.conftest import Door, Page

Doors = Callable[..., Door]


def fill(door: Door, count: int, size: int = 1000) -> None:
    door.create()
    for first in range(0, count, 500):
        door.append([b"%08d" % n + b"x" * (size - 8) for n in range(first, first + 500)])


def asked(door: Door, query: str) -> socket.socket:
    """A connection that has asked and reads nothing."""
    where = urlsplit(door.url)
    assert where.hostname is not None
    quiet = socket.socket()
    quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    quiet.connect((where.hostname, where.port))
    quiet.sendall(f"GET /orders?partition=0&cursor=_first&{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return quiet


def test_clients_that_do_not_read_hold_up_nobody_and_take_no_memory(doors: Doors) -> None:
    door = doors(cache_bytes=1 << 20, max_page_size=10**6, max_page_bytes=1 << 30)
    fill(door, 40_000)
    door.page(pageSizeHint=2_000)
    before = psutil.Process(os.getpid()).memory_info().rss
    quiet = [asked(door, query) for query in ("pageSizeHint=40000", "stream=y") for _ in range(10)]
    try:
        for _ in range(5):
            assert len(door.page(pageSizeHint=2_000).events) == 2_000
        grown = psutil.Process(os.getpid()).memory_info().rss - before
        # 20 clients asked for 40 MB each.
        assert grown < 200 << 20
    finally:
        for each in quiet:
            each.close()
    assert door.page(0, "_last").events == []


def test_a_client_that_takes_nothing_is_dropped(doors: Doors) -> None:
    door = doors(write_timeout_ms=300)
    fill(door, 20_000)
    quiet = asked(door, "stream=y")
    connections = door.server.server.door("feedapi").connections
    deadline = time.monotonic() + 240
    while connections and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not connections
    quiet.close()


def test_a_client_that_reads_slowly_gets_everything(doors: Doors) -> None:
    door = doors()
    fill(door, 3_000)
    quiet = asked(door, "pageSizeHint=3000")
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += quiet.recv(50_000)
        time.sleep(0.001)
    quiet.close()
    assert received.count(b'{"event":') == 3_000


def test_the_server_stops_under_a_client_that_does_not_read(doors: Doors) -> None:
    door = doors()
    fill(door, 20_000)
    quiet = asked(door, "stream=y")
    time.sleep(0.3)
    door.server.stop()
    quiet.close()


def test_a_stop_keeps_no_idle_connection_and_no_port(doors: Doors) -> None:
    door = doors()
    door.create()
    door.page()
    port = urlsplit(door.url).port
    door.server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=120).close()


def test_pages_are_compressed_when_they_are_large_and_it_is_wanted(doors: Doors) -> None:
    door = doors(gzip_min_bytes=20_000)
    fill(door, 1_000, 100)
    large, small = {"pageSizeHint": 1000}, {"pageSizeHint": 3}

    def coding(query: dict[str, int], accept: str) -> str | None:
        answer = door.get(partition=0, cursor="_first", headers_={"Accept-Encoding": accept}, **query)
        assert len(Page(answer).events) == query["pageSizeHint"]
        return answer.headers.get("content-encoding")

    assert coding(large, "gzip, deflate") == coding(large, "br;q=1, gzip;q=0.5") == coding(large, "*") == "gzip"
    assert coding(large, "identity;q=0.5, gzip") == "gzip" and coding(large, "identity, gzip;q=0.5") is None
    assert coding(large, "identity") is coding(large, "gzip;q=0") is coding(large, "") is coding(small, "gzip") is None


def test_a_large_compressed_page_is_one_gzip_member(doors: Doors) -> None:
    door = doors()
    fill(door, 5_000)
    where = urlsplit(door.url)
    connection = http.client.HTTPConnection(where.netloc, timeout=120)
    connection.request(
        "GET", "/orders?partition=0&cursor=_first&pageSizeHint=5000", headers={"Accept-Encoding": "gzip"}
    )
    response = connection.getresponse()
    assert response.headers["content-encoding"] == "gzip"
    packed = response.read()
    connection.close()
    lines = gzip.decompress(packed).split(b"\n")[:-1]
    assert len(packed) < 1_000_000 and sum(b"event" in line for line in lines) == 5_000


def test_compression_can_be_switched_off(doors: Doors) -> None:
    door = doors(gzip_min_bytes=0)
    fill(door, 1_000)
    assert "content-encoding" not in door.page(pageSizeHint=1000).answer.headers


def test_many_clients_at_once(doors: Doors) -> None:
    door = doors()
    fill(door, 5_000, 50)
    counts: list[int] = []

    def read() -> None:
        session, cursor, count = requests.Session(), "_first", 0
        while True:
            query: dict[str, Any] = {"partition": 0, "cursor": cursor, "pageSizeHint": 700}
            page = Page(session.get(f"{door.url}/orders", params=query, timeout=120))
            count += len(page.events)
            if page.cursor == cursor:
                break
            cursor = page.cursor
        session.close()
        counts.append(count)

    threads = [threading.Thread(target=read) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [5_000] * 12


def test_more_connections_than_allowed_are_answered_503(doors: Doors) -> None:
    door = doors(max_connections=4, max_user_connections=4)
    door.create()
    quiet = [asked(door, "stream=y") for _ in range(4)]
    for each in quiet:
        assert b"200 OK" in each.recv(4096)
    assert door.get().status_code == 503
    for each in quiet:
        each.close()
    deadline = time.monotonic() + 240
    while door.get().status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert door.get().status_code == 200


def test_rendered_events_are_kept_within_bounds(doors: Doors) -> None:
    door = doors(cache_bytes=2 << 20)
    fill(door, 5_000)
    cache = door.server.server.door("feedapi").application._cache
    for _ in range(2):
        assert len(door.read(pageSizeHint=900)) == 5_000
        assert 0 < cache._bytes <= 2 << 20
        assert cache._bytes == sum(len(block.lines) for block in cache._recent.values())
        assert sum(map(len, cache._blocks.values())) == len(cache._recent)


def test_a_corrupt_log_is_a_500_or_an_end_that_is_none(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.errors import CorruptLog
    from spark_streams.log.storage.partition import Partition

    door = doors(cache_bytes=0)
    fill(door, 1_000)
    read = Partition.read

    def broken(from_offset: int) -> Callable[..., Any]:
        def reading(self: Any, offset: int, *arguments: Any, **options: Any) -> Any:
            if offset >= from_offset:
                raise CorruptLog("file", 7, "a flipped bit")
            return read(self, offset, *arguments, **options)

        return reading

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "read", broken(0))
        answer = door.get(partition=0, cursor="_first")
        assert answer.status_code == 500 and answer.text == "Internal server error\n"
        patched.setattr(Partition, "read", broken(400))
        with pytest.raises(requests.exceptions.RequestException):
            door.get(partition=0, cursor="_first", pageSizeHint=1000)
    assert len(door.page(pageSizeHint=1000).events) == 1_000


def test_kept_connections_serve_many_requests(door: Door) -> None:
    door.create()
    connection = http.client.HTTPConnection(urlsplit(door.url).netloc, timeout=120)
    for _ in range(20):
        connection.request("GET", "/orders")
        response = connection.getresponse()
        assert json.loads(response.read())["partitions"]
    connection.close()


def test_noise_is_answered_or_dropped(doors: Doors) -> None:
    door = doors(handshake_timeout_ms=500)
    door.create()
    where = urlsplit(door.url)
    for noise in (b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, b"AMQP\x00\x01\x00\x00"):
        with socket.create_connection((where.hostname or "", where.port or 0), timeout=120) as peer:
            peer.sendall(noise)
            try:
                answer = peer.recv(100)
            except ConnectionError:
                answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert door.get().status_code == 200
