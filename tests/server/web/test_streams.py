"""The pages of streams: what they show, what they create and delete, and how many partitions they bear."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest
from markupsafe import escape
from starlette.requests import Request

from spark_streams.log import LogConfig
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, Permissions, RabbitConfig
from spark_streams.server.web.site import Paging
from tests.server.web.conftest import Window, shown

Windows = Callable[..., Window]


def test_a_log_without_streams_says_what_to_do(window: Window) -> None:
    assert "There is no stream yet" in window.text() and "--stream orders:4" in window.text()
    assert "No stream has “x” in its name" in window.text(search="x")


def test_all_streams_with_their_numbers(window: Window) -> None:
    window.create("orders", 3)
    window.create("telemetry")
    window.append([b"x" * 100] * 7, partition=2)
    page = window.text()
    stored = window.log.stream("orders").partitions["2"].stored_bytes
    assert re.search(rf"orders super stream 3 7 {stored} B – by partition [0-9: Z-]{{20}} [0-9: Z-]{{20}}", page)
    assert re.search(r"telemetry 1 0 0 B – – – –", page)
    assert "telemetry" not in window.text(search="RDER")


def test_one_stream_with_its_partitions(window: Window) -> None:
    window.create("orders", 2, timestamp_type="create")
    window.append([b"a", b"b"], timestamps=[-386_380_800_000, 1_000])
    page = window.text("/stream", stream="orders")
    assert "Super stream of 2 partitions" in page
    assert re.search(r"0 0 1 2 \d+ B 1957-10-04 00:00:00.000Z 1970-01-01 00:00:01.000Z", page)
    assert re.search(r" 1 – – 0 0 B – –", page), "an empty partition"
    assert "timestamp_type create" in page and "retention_max_bytes none" in page


def test_a_split_partition_says_its_successors(window: Window) -> None:
    window.create("orders", 1)
    window.log.split_partition("orders", "0")
    page = window.text("/stream", stream="orders")
    assert "0 split into 1, 2" in page and "3 partitions, 2 open" in page


def test_the_lines_of_code_lead_to_each_door(windows: Windows) -> None:
    doors = (AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0), EventHubsConfig(port=0))
    window = windows(*doors)
    window.create("orders", 2)
    urls = window.server.urls
    page = window.text("/stream", stream="orders")
    assert page.count("spark.readStream") == page.count("events.writeStream") == 4
    for line in (
        f'.option("url", "{urls["amqp"]}") .option("stream", "orders") .option("username", "guest")',
        f'.option("url", "{urls["rabbitmq-stream"]}") .option("superStream", "orders") .option("username", "guest")',
        f'.format("feedapi") .option("url", "{urls["feedapi"]}/orders")',
        f'.option("connectionString", "{urls["event-hubs"]}") .option("stream", "orders")',
    ):
        assert line in page, page


def test_no_password_of_a_user_is_in_them(windows: Windows) -> None:
    users = {"ann": "hidden-word"}
    window = windows(
        AmqpConfig(port=0, users=users),
        FeedConfig(port=0, users=users),
        EventHubsConfig(port=0, users=users),
        users=users,
    )
    window.create()
    window.sign_in("ann", "hidden-word")
    page = window.get("/stream", stream="orders").text
    assert "hidden-word" not in page and "&#34;password&#34;, &#34;...&#34;" in page


def test_a_stream_is_created_with_its_settings(window: Window) -> None:
    answer = window.post("/create", name="orders", partitions="3", timestamp_type="create", retention_max_bytes="4096")
    assert (answer.status_code, answer.headers["location"]) == (303, "/stream?stream=orders&notice=created")
    stream = window.log.stream("orders")
    assert len(stream.partitions) == 3
    assert (stream.config.timestamp_type, stream.config.retention_max_bytes) == ("create", 4_096)
    assert "The stream was created." in window.text("/stream", stream="orders", notice="created")
    assert "<b>" not in window.get("/stream", stream="orders", notice="<b>").text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "orders"}, "is there already with 2 partitions, not 1"),
        ({"name": "orders-1"}, "orders-1"),
        ({"name": "new", "partitions": "0"}, "partitions is '0', expected a number from 1 on"),
        ({"name": "new", "partitions": "１"}, "expected a number from 1 on"),
        ({"name": "new", "partitions": "5000"}, "max_partitions"),
        ({"name": "new", "segment_max_bytes": "many"}, "segment_max_bytes is 'many', expected a number"),
    ],
)
def test_what_cannot_be_created_is_said_and_what_was_typed_stays(
    window: Window, fields: dict[str, str], words: str
) -> None:
    window.create("orders", 2)
    answer = window.post("/create", **fields)
    assert answer.status_code == 422 and words in shown(answer.text)
    assert f'value="{fields["name"]}"' in answer.text
    assert [stream.name for stream in window.log.streams()] == ["orders"]


def test_a_stream_is_deleted_only_when_its_name_is_written(window: Window) -> None:
    window.create()
    assert window.post("/delete", stream="orders", confirm="order").status_code == 422
    assert window.log.find("orders") is not None
    answer = window.post("/delete", stream="orders", confirm="orders")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?notice=deleted")
    assert window.log.find("orders") is None
    assert window.post("/delete", stream="orders", confirm="orders").status_code == 404


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a\"onmouseover='x", "a&b=c#d?e", "ä ö/ü", "a%2Fb"])
def test_a_name_is_only_text(window: Window, name: str) -> None:
    window.create(name)
    page = window.get().text
    assert f"<bdi>{escape(name)}</bdi></a>" in page and f'data-live="{escape(name)}"' in page
    (address,) = re.findall(r'<a href="(/stream\?[^"]*)"', window.get().text)
    one = window.get(unescape(address)).text
    assert f"<h1><bdi>{escape(name)}</bdi></h1>" in one and "<script>alert" not in one


def test_who_may_only_write_sees_no_numbers(windows: Windows) -> None:
    window = windows(users={"writer": "secret"}, permissions={"writer": Permissions(configure="", read="")})
    window.create()
    window.append([b"x"] * 77)
    window.sign_in("writer", "secret")
    page = window.text()
    assert "orders" in page and "may not be read by you" in page and "77" not in page


def test_a_page_of_a_hundred_thousand_partitions_is_small(window: Window) -> None:
    window.create()
    window.append([b"x"] * 3)
    stream = window.log.stream("orders")
    before = stream._partitions
    stream._partitions = {str(number): before["0"] for number in range(100_000)}  # one file for all of them
    try:
        first = window.get("/stream", stream="orders").text
        last = window.get("/stream", stream="orders", page="1000").text
        whole = window.get().text
    finally:
        stream._partitions = before
    assert max(map(len, (first, last, whole))) < 200_000
    assert "Super stream of 100 000 partitions" in shown(first) and "of 1 000 Next" in shown(first)
    assert last.count("<tr>") == 101 and "300\u202f000" in whole


def test_which_rows_a_page_has() -> None:
    rows = range(100_000)
    request = Request({"type": "http", "method": "GET", "path": "/stream", "query_string": b"page=1000", "headers": []})
    last = Paging(request, len(rows), 100, stream="orders")
    assert (last.pages, last.cut(rows)[-1], len(last.cut(rows))) == (1_000, 99_999, 100)
    for text in (b"page=0", b"page=-1", b"page=x", b"page=9999999999", "page=２".encode()):
        request.scope["query_string"] = text
        found = Paging(Request(request.scope.copy()), 250, 100)
        assert found.page in (1, 3) and found.first in (0, 200), text


def test_further_partitions_are_on_further_pages(windows: Windows) -> None:
    window = windows(page_rows=3, log=LogConfig(max_partitions=10))
    window.create("orders", 8)
    first, last = window.text("/stream", stream="orders"), window.text("/stream", stream="orders", page="3")
    assert re.findall(r" (\d+) – – 0", first) == ["0", "1", "2"]
    assert re.findall(r" (\d+) – – 0", last) == ["6", "7"]
    assert "of 3 Next →" in first and "← Previous" in last


def test_the_page_of_a_stream_that_goes_while_it_is_made(window: Window) -> None:
    from spark_streams.server.web.summaries import summaries_of
    from spark_streams.wire.amqp.decode import finished

    window.create("orders", 2)
    window.append([b"x"])
    partitions = list(window.log.stream("orders").partitions.values())
    window.log.delete_stream("orders")
    assert [each.id for each in finished(summaries_of(partitions))] == ["1"], "of an empty one nothing is read"


def test_unknown_pages_are_said_to_be_unknown(window: Window) -> None:
    answer = window.get("/nothing<b>")
    assert answer.status_code == 404 and "there is no page" in answer.text and "<b>" not in answer.text
    assert window.get("/stream", stream="x").status_code == 404


@pytest.mark.parametrize("argument", ["path", "_Context__obj", "caller", "page_", "_loop_vars", ""])
def test_arguments_that_mean_nothing_are_left_out_of_further_pages(windows: Windows, argument: str) -> None:
    small = windows(page_rows=1)
    for name in ("a1", "a2", "b"):
        small.create(name)
    answer = small.get("/", **{f"{argument}_": "x", "search": "a"})
    assert answer.status_code == 200 and 'href="/?page=2&amp;search=a"' in answer.text


def test_the_lines_of_a_door_that_asks_for_a_token_have_a_place_for_it(windows: Windows) -> None:
    window = windows(FeedConfig(tokens=("secret-token",)))
    window.create()
    page = unescape(window.get("/stream", stream="orders").text)
    assert page.count('.option("token", "...")') == 2 and "secret-token" not in page


def test_a_name_that_turns_text_around_is_shown_as_it_is(window: Window) -> None:
    name = window.create("a\u202egnp.exe")
    for path in ("/", "/stream", "/events", "/publish", "/connections", "/groups"):
        page = shown(window.get(path, stream=name).text)
        assert "\u202e" not in page and "a\u27e8U+202E\u27e9gnp.exe" in page
