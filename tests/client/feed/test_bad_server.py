"""The badly behaved server: what it holds can be read, by a client of its own kind that is as simple as can be."""

from __future__ import annotations

import json
from collections import Counter
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from spark_streams.wire.feed.line import Dialect
from tests.client.feed.bad_feed import BadFeed
from tests.client.feed.bad_server import FAULTS, BadServer, Behaviour


def get(url: str, pairs: dict[str, str] | None = None, **headers: str) -> tuple[int, bytes]:
    address = url + ("?" + urlencode(pairs) if pairs else "")
    try:
        with urlopen(Request(address, headers=headers), timeout=120) as response:
            return response.status, response.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def arguments(server: BadServer, partition: int, cursor: str) -> tuple[str, dict[str, str]]:
    dialect = server.behaviour.dialect
    if dialect is Dialect.V1:
        return server.url, {"n": str(len(server.feed.partitions)), f"cursor{partition}": cursor}
    pairs = {"partition": str(partition), "cursor": cursor}
    return (server.url + "/events", pairs | {"token": server.token}) if dialect is Dialect.V2B else (server.url, pairs)


def read_page(server: BadServer, partition: int, cursor: str) -> tuple[list[Any], str]:
    """Return the events that a page's checkpoints cover, and the last cursor."""
    status, body = get(*arguments(server, partition, cursor))
    assert status == 200, body
    covered: list[Any] = []
    pending: list[Any] = []
    for line in body.split(b"\n"):
        members = json.loads(line) if line.strip() else {}
        event = members.get("event", members.get("data"))
        if event is not None:
            pending.append(event)
        if "cursor" in members:
            cursor = members["cursor"]
            covered, pending = covered + pending, []
    return covered, cursor


def read_all(server: BadServer, partition: int, cursor: str = "_first") -> tuple[list[Any], str]:
    """Read a partition until a few pages in a row bring nothing."""
    events: list[Any] = []
    quiet = 0
    while quiet < 12:
        some, cursor = read_page(server, partition, cursor)
        events += some
        quiet = 0 if some else quiet + 1
    return events, cursor


@pytest.mark.parametrize("dialect", Dialect)
def test_everything_is_there_once_in_the_order_of_each_key(dialect: Dialect) -> None:
    feed = BadFeed(2)
    feed.append(300)
    behaviour = Behaviour(dialect, empty=0.2, shuffled=True, noise=True, crlf=True, uncovered=True, piece_bytes=7)
    with BadServer(feed, behaviour) as server:
        for number, partition in feed.partitions.items():
            events, _ = read_all(server, number)
            assert Counter(event["id"] for event in events) == Counter(event.body["id"] for event in partition.events)
            for key in {event.key for event in partition.events}:
                assert [e["n"] for e in events if e["key"] == key] == [
                    e.number for e in partition.events if e.key == key
                ]


def test_pages_differ_cursors_have_no_order_and_events_repeat() -> None:
    feed = BadFeed()
    feed.append(500)
    with BadServer(feed, Behaviour(duplicates=0.5)) as server:
        assert json.loads(get(server.url)[1])["exactlyOnce"] is False
        sizes = {len(read_page(server, 0, "_first")[0]) for _ in range(20)}
        assert len(sizes) > 5
        cursors = [read_page(server, 0, "_first")[1] for _ in range(20)]
        assert len(set(cursors)) == 20
        assert sorted(cursors) != cursors
        ids = Counter(event["id"] for event in read_all(server, 0)[0])
        assert set(ids) == {event.body["id"] for event in feed.events}
        assert max(ids.values()) > 1


def test_method_1_the_parent_closes_and_the_children_go_on() -> None:
    feed = BadFeed()
    feed.append(100)
    with BadServer(feed, Behaviour()) as server:
        children = feed.split(0)
        feed.append(100)
        listed = json.loads(get(server.url)[1])["partitions"]
        assert [item.get("startsAfterPartition") for item in listed] == [None, "0", "0"]
        events, cursor = read_all(server, 0)
        assert (listed[0]["closed"], listed[0]["lastCursor"]) == (True, cursor)
        assert [event["n"] for event in events] == list(range(1, 101))
        rest = [event["n"] for child in children for event in read_all(server, child)[0]]
        assert sorted(rest) == list(range(101, 201))


@pytest.mark.parametrize("dialect", [Dialect.V2A, Dialect.V2B])
def test_method_2_an_ancestors_cursor_goes_on_at_every_child(dialect: Dialect) -> None:
    feed = BadFeed()
    feed.append(100)
    with BadServer(feed, Behaviour(dialect, numbers=True, old_spellings=True)) as server:
        seen, cursor = read_page(server, 0, "_first")

        def split(partition: int) -> None:
            if partition == 0 and not feed.partitions[0].gone:
                feed.split(0, history=True)
                server.rotate_token()

        server.before_fetch = split
        status, _ = get(*arguments(server, 0, cursor))
        assert status == (400 if dialect is Dialect.V2A else 409)
        feed.split(1, history=True)
        listed = json.loads(get(server.url)[1])["partitions"]
        assert [(item["id"], item["splitFromAncestors"]) for item in listed] == [
            ("2", [0]),
            ("3", [1, 0]),
            ("4", [1, 0]),
        ]
        rest = [event["n"] for child in (2, 3, 4) for event in read_all(server, child, cursor)[0]]
        assert sorted(rest) == list(range(len(seen) + 1, 101))


def test_filters_are_part_of_the_cursor() -> None:
    feed = BadFeed()
    feed.append(200)
    with BadServer(feed, Behaviour(filters=("subject",), page_sizes=(500, 500))) as server:
        pairs = {"partition": "0", "cursor": "_first", "filter-subject": "a"}
        lines = [json.loads(line) for line in get(server.url, pairs)[1].splitlines()]
        events = [line["event"]["n"] for line in lines if "event" in line]
        assert events == [event.number for event in feed.events if event.body["subject"] == "a"]
        cursor = lines[-1]["cursor"]
        assert get(server.url, pairs | {"cursor": cursor})[0] == 200
        assert get(server.url, {"partition": "0", "cursor": cursor})[0] == 400
        assert get(server.url, pairs | {"filter-other": "x"})[0] == 400


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_happen_once(fault: str) -> None:
    feed = BadFeed()
    feed.append(30)
    dialect = Dialect.V2B if fault == "409" else Dialect.V2A
    with BadServer(feed, Behaviour(dialect, page_sizes=(20, 20), hang_s=0.1)) as server:
        server.fail(fault)
        token = server.token
        try:
            status, body = get(*arguments(server, 0, "_first"))
        except (HTTPException, URLError, ConnectionError):
            assert fault in ("cut", "part", "reset", "hang")
        else:
            assert status == (int(fault) if fault.isdecimal() else 200)
            if fault == "no-cursor":
                assert b'"event"' in body and b'"cursor"' not in body
            if fault in ("late-500", "malformed"):
                with pytest.raises(ValueError):
                    json.loads(body.splitlines()[-1])
        assert (server.token != token) == (fault == "409")
        assert server.pending_faults == 0
        assert len(read_page(server, 0, "_first")[0]) == 20


def test_bearer_tokens() -> None:
    with BadServer(BadFeed(), Behaviour(bearer="secret")) as server:
        assert get(server.url)[0] == 401
        assert get(server.url, Authorization="Bearer secret")[0] == 200
        assert [path for path, _ in server.requests] == ["/bad/feed"] * 2


def test_stream_goes_on_for_its_time() -> None:
    feed = BadFeed()
    feed.append(5)
    with BadServer(feed, Behaviour(stream=True, page_sizes=(1, 2))) as server:
        status, body = get(server.url, {"partition": "0", "cursor": "_first", "stream": "1000"})
        assert status == 200
        assert [json.loads(line)["event"]["n"] for line in body.splitlines() if b'"event"' in line] == [1, 2, 3, 4, 5]
        assert b'"cursor"' in body.splitlines()[-1]
