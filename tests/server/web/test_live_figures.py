"""Figures that are sent to pages as they change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import requests

from spark_streams.server import Permissions
from spark_streams.testing import eventually
from tests.server.web.conftest import TIMEOUT_S, Window

Windows = Callable[..., Window]


def figures(window: Window, *streams: str) -> Iterator[Any]:
    answer = window.session.get(
        f"{window.url}/live", params=[("stream", each) for each in streams], stream=True, timeout=TIMEOUT_S
    )
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.status_code
    with answer:
        for line in answer.iter_lines():
            if line:
                assert line.startswith(b"data: ")
                yield json.loads(line[6:])


def test_the_figures_of_the_streams_that_are_shown(window: Window) -> None:
    window.create("orders", 2)
    window.create("others")
    window.append([b"x"] * 5)
    following = figures(window, "orders", "unknown")
    first = next(following)
    stored = window.log.stream("orders").partitions["0"].stored_bytes
    assert first["streams"] == [{"name": "orders", "events": 5, "ever": 5, "bytes": stored}]
    window.append([b"x"] * 3, partition=1)
    second = next(following)
    while second["streams"][0]["ever"] == 5:
        second = next(following)
    assert second["streams"][0]["events"] == 8 and second["now"] > first["now"]
    following.close()


def test_nothing_is_told_of_what_may_not_be_read_and_to_who_is_not_signed_in(windows: Windows) -> None:
    window = windows(users={"ann": "secret"}, permissions={"ann": Permissions(read="orders")})
    for name in ("orders", "others"):
        window.create(name)
    assert window.get("/live", stream="orders").status_code == 204
    window.sign_in("ann", "secret")
    assert window.get("/live", stream="others").status_code == 204
    following = figures(window, "others", "orders")
    assert [each["name"] for each in next(following)["streams"]] == ["orders"]
    following.close()


def test_only_so_many_pages_are_told(windows: Windows) -> None:
    window = windows(max_watchers=1)
    window.create()
    following = figures(window, "orders")
    next(following)
    assert window.get("/live", stream="orders").status_code == 204, "a browser does not ask again"
    following.close()

    def is_told() -> bool:
        with requests.get(f"{window.url}/live?stream=orders", stream=True, timeout=TIMEOUT_S) as answer:
            return answer.status_code == 200

    eventually(is_told, "room, once the first page was closed")


def test_a_server_that_stops_ends_them(window: Window) -> None:
    window.create()
    following = figures(window, "orders")
    next(following)
    window.server.stop()
    for _ in following:
        pass  # the response has an end


def test_figures_end_with_the_sign_in(windows: Windows) -> None:
    window = windows(users={"ann": "secret"})
    window.create()
    window.sign_in("ann", "secret")
    following = figures(window, "orders")
    next(following)
    assert requests.post(
        f"{window.url}/sign-out", {"word": window.word()}, cookies=window.session.cookies.get_dict(), timeout=TIMEOUT_S
    ).ok
    assert len(list(following)) <= 2, "it ends by itself"


def test_a_stream_that_is_named_often_is_counted_once(window: Window) -> None:
    window.create()
    following = figures(window, *["orders"] * 50)
    assert [each["name"] for each in next(following)["streams"]] == ["orders"]
    following.close()
