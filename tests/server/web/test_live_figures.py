"""Figures that are sent to pages as they change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import requests

from spark_streams.server import Permissions
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


def test_only_so_many_pages_are_told_and_the_oldest_of_the_user_that_has_most_asks_again_later(
    windows: Windows,
) -> None:
    window = windows(max_watchers=3, users=dict.fromkeys(("admin", "reader", "auditor"), "secret"))
    window.create()

    def lines_of(user: str) -> Iterator[str]:
        address = f"{window.url}/live?stream=orders"
        with requests.get(address, auth=(user, "secret"), stream=True, timeout=TIMEOUT_S) as answer:
            assert answer.status_code == 200
            yield from answer.iter_lines(decode_unicode=True)

    pages = [lines_of("admin"), *(lines_of("reader") for _ in range(2))]
    assert all(next(page).startswith("data:") for page in pages), "all places are taken"
    more = [lines_of("reader"), lines_of("reader"), lines_of("auditor")]
    for number, page in enumerate(more):
        assert next(page).startswith("data:"), f"page {number} is told"
    assert [list(filter(None, page))[-1] for page in pages[1:]] == ["retry: 60000"] * 2, "these two make room"
    assert list(filter(None, more[0]))[-1] == "retry: 60000", "of reader, who had two, for auditor"
    assert all(any(line.startswith("data:") for line in page) for page in (pages[0], more[1], more[2])), "these go on"
    for page in (*pages, *more):
        page.close()


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
        f"{window.url}/sign-out",
        {"csrf_token": window.csrf_token()},
        cookies=window.session.cookies.get_dict(),
        timeout=TIMEOUT_S,
    ).ok
    assert len(list(following)) <= 2, "it ends by itself"


def test_a_stream_that_is_named_often_is_counted_once(window: Window) -> None:
    window.create()
    following = figures(window, *["orders"] * 50)
    assert [each["name"] for each in next(following)["streams"]] == ["orders"]
    following.close()
