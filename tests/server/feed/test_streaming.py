"""Responses that stay open, of version 2a: P-31, P-32."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server.feed.conftest import Door

Doors = Callable[..., Door]


@contextmanager
def opened(door: Door, **query: Any) -> Iterator[http.client.HTTPResponse]:
    """A response whose lines are read as they come."""
    connection = http.client.HTTPConnection(urlsplit(door.url).netloc, timeout=120)
    pairs = "&".join(f"{name}={value}" for name, value in ({"partition": 0, "cursor": "_first"} | query).items())
    connection.request("GET", f"/orders?{pairs}")
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def until_cursor(response: http.client.HTTPResponse) -> tuple[list[Any], str]:
    """Read lines to the next checkpoint."""
    events = []
    while True:
        line = json.loads(response.readline())
        if "cursor" in line:
            return events, line["cursor"]
        events.append(line["event"])


def test_p31_stream_and_a_page_size_exclude_each_other(door: Door) -> None:
    door.create()
    assert door.get(partition=0, cursor="_first", stream=100, pageSizeHint=5).status_code == 400


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "1.5", "Y"])
def test_p32_stream_is_a_number_of_milliseconds_or_y(door: Door, text: str) -> None:
    door.create()
    assert door.get(partition=0, cursor="_first", stream=text).status_code == 400


def test_p32_a_response_of_some_milliseconds_ends_by_itself(door: Door) -> None:
    door.create()
    door.numbers(0, 5)
    before = time.monotonic()
    page = door.page(stream=400)
    assert time.monotonic() - before >= 0.4
    assert page.events == [{"n": n} for n in range(5)] and "cursor" in page.lines[-1]
    assert page.answer.headers["transfer-encoding"] == "chunked"


def test_p32_an_endless_response_keeps_delivering(door: Door) -> None:
    door.create()
    door.numbers(0, 3)
    with opened(door, stream="y") as response:
        assert until_cursor(response)[0] == [{"n": n} for n in range(3)]
        for first in range(3, 30, 3):
            door.numbers(first, first + 3)
            events: list[Any] = []
            while len(events) < 3:
                more, cursor = until_cursor(response)
                events += more
            assert events == [{"n": n} for n in range(first, first + 3)]
            assert door.page(0, cursor).events == []


def test_p32_it_begins_with_a_checkpoint_and_repeats_it_when_nothing_comes(doors: Doors) -> None:
    door = doors(checkpoint_interval_ms=50)
    door.create()
    with opened(door, stream="y", cursor="_last") as response:
        cursors = {until_cursor(response)[1] for _ in range(4)}
    assert cursors == {door.page(0, "_last").cursor}


def test_p32_everything_is_delivered_once_while_somebody_appends(doors: Doors) -> None:
    door = doors(checkpoint_events=10)
    door.create()
    appended = threading.Thread(target=lambda: [door.numbers(n, n + 7) for n in range(0, 2100, 7)])
    with opened(door, stream="y") as response:
        appended.start()
        events: list[Any] = []
        while len(events) < 2100:
            events += until_cursor(response)[0]
        appended.join()
    assert events == [{"n": n} for n in range(2100)]


def test_p32_a_longest_duration(doors: Doors) -> None:
    door = doors(max_stream_ms=200)
    door.create()
    assert door.page(stream="y").events == []
    assert door.page(stream="86400000").events == []


def test_p32_the_server_stops_under_it_in_good_order(door: Door) -> None:
    door.create()
    door.numbers(0, 3)
    with opened(door, stream="y") as response:
        assert len(until_cursor(response)[0]) == 3
        door.server.stop()
        rest = response.read()  # the last chunk is there: else this raises IncompleteRead
    assert all("cursor" in json.loads(line) for line in rest.split(b"\n") if line)


def test_p32_nothing_is_left_of_a_client_that_went_away(door: Door) -> None:
    door.create()
    partition = door.log.stream("orders").partitions["0"]
    for _ in range(5):
        with opened(door, stream="y") as response:
            until_cursor(response)
    deadline = time.monotonic() + 240
    while partition._listeners and time.monotonic() < deadline:
        time.sleep(0.02)
    assert partition._listeners == []


def test_p32_a_stream_that_is_deleted_ends_its_responses(doors: Doors) -> None:
    door = doors(checkpoint_interval_ms=100)
    door.create()
    with opened(door, stream="y") as response:
        until_cursor(response)
        door.server.call(lambda: door.log.delete_stream("orders"))
        rest = response.read()
    assert all("cursor" in json.loads(line) for line in rest.split(b"\n") if line)


def test_a_wrong_cursor_is_answered_with_a_status(door: Door) -> None:
    door.create()
    assert door.get(partition=0, cursor="nonsense", stream="y").status_code == 400


def test_a_filtered_stream(door: Door) -> None:
    door.create()
    with opened(door, stream="y", **{"filter-key": "b"}) as response:
        until_cursor(response)
        door.append([b"1", b"2", b"3"], keys=["a", "b", "a"])
        events: list[Any] = []
        while not events:
            more, cursor = until_cursor(response)
            events += more
    assert events == ["2"]
    assert door.page(0, cursor, filter__key="b").events == []
