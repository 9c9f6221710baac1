"""The browser of events over HTTP: starts, filters and their faults, what is pushed, hostile content, permissions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from html import unescape
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from starlette.requests import Request

from spark_streams.errors import CorruptLog
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.http.requests import HttpError
from spark_streams.server.users import Permissions
from spark_streams.server.web.event_page import EventPage
from spark_streams.server.web.events import _while_there
from tests.server.web.conftest import Window

T1957 = -386_380_800_000
HOSTILE = b"<script>alert(1)</script><img src=x onerror=alert(1)>\"'\x00\x1b[31m\xe2\x80\xaeevil"


def filled(window: Window, count: int = 10) -> Window:
    """Events of 1957-10-04, a minute apart, with property ``type`` order or refund in turn."""
    window.create(timestamp_type="create")
    window.append(
        [b'{"n":%d}' % row for row in range(count)],
        timestamps=T1957 + 60_000 * np.arange(count),
        key=pa.array([f"k{row}" for row in range(count)]),
        application_properties=pa.array(
            [[("type", ("order", "refund")[row % 2])] for row in range(count)], pa.map_(pa.string(), pa.string())
        ),
    )
    return window


def offsets(html: str) -> list[int]:
    return [int(each) for each in re.findall(r'<th scope="row" class="n"><a [^>]*>([0-9]+)</a>', html)]


def links(html: str) -> dict[str, str]:
    return {rel: unescape(to) for rel, to in re.findall(r'<a rel="(prev|next)" href="([^"]*)"', html)}


@pytest.mark.parametrize(
    ("start", "at", "expected"),
    [
        ("latest", "", [7, 8, 9]),
        ("earliest", "", [0, 1, 2]),
        ("offset", "4", [4, 5, 6]),
        ("before", "4", [1, 2, 3]),
        ("time", "1957-10-04T00:05:00Z", [5, 6, 7]),
        ("time", str(T1957 + 8 * 60_000), [8, 9]),
    ],
)
def test_every_start(windows: Callable[..., Window], start: str, at: str, expected: list[int]) -> None:
    window = filled(windows(page_rows=3))
    answer = window.get("/events", stream="orders", from_=start, at=at)
    assert answer.status_code == 200
    assert offsets(answer.text) == expected


def test_the_pages_lead_to_each_other(windows: Callable[..., Window]) -> None:
    window = filled(windows(page_rows=3))
    first = window.get("/events", stream="orders", from_="earliest", filter="type = 'refund'").text
    assert offsets(first) == [1, 3, 5]
    then = window.get(links(first)["next"]).text
    assert offsets(then) == [7, 9]
    assert "next" not in links(then)
    assert offsets(window.get(links(then)["prev"]).text) == [1, 3, 5]


def test_a_fault_of_a_filter_is_shown_at_its_column(window: Window) -> None:
    filled(window)
    answer = window.get("/events", stream="orders", filter="type == 'refund'")
    assert answer.status_code == 422
    assert "Column 6: expected one of = &lt;&gt;" in answer.text
    text, pointer = re.findall(r"<pre><code>(.*)\n.*>( *\^)</span>", answer.text)[0]
    assert unescape(text) == "type == 'refund'"
    assert pointer == " " * 5 + "^"
    assert 'value="type == &#39;refund&#39;"' in answer.text


def test_a_caret_is_right_in_a_long_filter_with_signs(window: Window) -> None:
    filled(window)
    text = f"a = '{'x' * 100}' AND b = '\u202e' AND c ~ 5 AND d = '{'y' * 100}'"
    html = window.get("/events", stream="orders", filter=text).text
    shown, pointer = re.findall(r"<pre><code>(.*)\n.*>( *\^)</span>", html)[0]
    assert unescape(shown)[len(pointer) - 1] == "~"
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"filter": "properties.user_id = 'x'"}, "user_id"),
        ({"from_": "time", "at": "yesterday"}, "'yesterday' is no instant"),
        ({"from_": "offset", "at": "x"}, "offset is 'x', expected a number"),
        ({"from_": "elsewhere"}, "expected one of latest"),
    ],
)
def test_what_is_wrong_is_said_beside_the_form(window: Window, arguments: dict[str, str], said: str) -> None:
    filled(window)
    answer = window.get("/events", stream="orders", **arguments)
    assert answer.status_code == 422
    assert said in unescape(answer.text)
    assert not offsets(answer.text)


def test_what_each_protocol_checks_is_shown(window: Window) -> None:
    filled(window)
    text = window.text("/events", stream="orders", filter="type = 'refund' AND offset > 2")
    assert "amqp-events SQL: a.type = 'refund'" in text
    assert "rabbitmq-stream starting offset 3 type = 'refund'" in text
    assert "filterValueFrom is application_properties.type starting offset 3 filter values 'refund'" in text
    assert "feedapi filter-/type=refund offset > 2" in text


def test_no_events_yet(window: Window) -> None:
    window.create()
    assert "Partition 0 has no events" in window.text("/events", stream="orders")
    assert "No event matches" in window.text("/events", stream="orders", filter="type = 'x'")


def test_hostile_events_are_text(window: Window) -> None:
    window.create("<i>orders</i>")
    window.append(
        [HOSTILE, b"\xff\xfe", b"\xed\xa0\x80"],
        name="<i>orders</i>",
        key=pa.array(["<b>key</b>\u202e", None, None]),
    )
    for page in (
        window.get("/events", stream="<i>orders</i>", filter="key <> '<u>x</u>' OR body_size > 0"),
        window.get("/event", stream="<i>orders</i>", offset=0),
    ):
        assert page.status_code == 200
        for tag in ("<script>alert", "<img", "<b>", "<i>", "<u>"):
            assert tag not in page.text
        assert not re.search("[\x00\x1b\u202e]", page.text)
        assert "\u27e8U+0000\u27e9" in page.text
        assert "<bdi>" in page.text
    listed = window.get("/events", stream="<i>orders</i>").text
    assert "ff fe" in listed
    assert "ed a0 80" in listed  # half of a pair of surrogates is no UTF-8


def test_a_stream_of_many_partitions_asks_for_a_number(window: Window) -> None:
    window.create("few", 3)
    window.create("many", 201)
    assert window.get("/events", stream="few").text.count("<option>") == 2  # and one that is selected
    html = window.get("/events", stream="many", partition="200").text
    assert '<input id="partition" name="partition" inputmode="numeric" size="8" value="200">' in html
    assert len(html) < 10_000


def test_a_partition_that_is_not_there(window: Window) -> None:
    window.create()
    assert window.get("/events", stream="orders", partition="7").status_code == 404
    assert window.get("/events", stream="others").status_code == 404


@pytest.fixture
def guarded(windows: Callable[..., Window]) -> Window:
    window = windows(
        users={"reader": "r", "writer": "w"},
        permissions={
            "reader": Permissions(configure="^$", write="^$", read="^orders$"),
            "writer": Permissions(configure="^$", write="^orders$", read="^$"),
        },
    )
    window.create("orders")
    window.create("secret")
    window.append([b"x"])
    return window


PAGES: list[tuple[str, dict[str, Any]]] = [("/events", {}), ("/event", {"offset": 0}), ("/event/body", {"offset": 0})]


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_who_may_read_one_stream_sees_its_events_only(guarded: Window, path: str, query: dict[str, Any]) -> None:
    assert guarded.get(path, stream="orders", **query).headers["location"].startswith("/sign-in?")
    guarded.sign_in("reader", "r")
    assert guarded.get(path, stream="orders", **query).status_code == 200
    answer = guarded.get(path, stream="secret", **query)
    assert answer.status_code == 403
    assert "may not read stream &#39;secret&#39;" in answer.text


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_who_may_only_write_sees_no_event(guarded: Window, path: str, query: dict[str, Any]) -> None:
    guarded.sign_in("writer", "w")
    assert guarded.get(path, stream="orders", **query).status_code == 403


def test_who_may_only_read_is_shown_no_way_to_publish(guarded: Window) -> None:
    guarded.sign_in("reader", "r")
    assert "/publish" not in guarded.get("/events", stream="orders").text
    assert "/publish" not in guarded.get("/stream", stream="orders").text
    assert guarded.get("/publish", stream="orders").status_code == 403


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (
            PartitionClosed("partition 0 of stream 'orders' is closed: the stream was deleted"),
            404,
            "the events are gone",
        ),
        (CorruptLog("/secret/place", 0, "check"), 500, "The server&#39;s log names the file"),
    ],
)
def test_what_happens_while_a_page_is_read(
    window: Window, fault: Exception, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(window)

    def fail(*arguments: object) -> None:
        raise fault

    monkeypatch.setattr("spark_streams.log.Partition.offset_for_time", fail)
    answer = window.get("/events", stream="orders", from_="time", at="1957-10-04")
    assert answer.status_code == status
    assert said in answer.text
    assert "/secret/place" not in answer.text


def test_a_search_that_nobody_waits_for_ends() -> None:
    there = SimpleNamespace(gone=False)
    request = Request({"type": "http", "state": {"connection": there}})
    steps = _while_there(request, (EventPage() for _ in itertools.count()))
    next(steps)
    there.gone = True
    with pytest.raises(HttpError, match="nobody waits"):
        next(steps)
