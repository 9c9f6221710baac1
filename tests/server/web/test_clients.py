"""The pages of the doors' clients: who reads and writes at each door, how far each is, and who may see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proton import Endpoint, symbol

from spark_streams.server import BearerToken, FeedConfig, Permissions
from spark_streams.server.activity import MOST_TEXT, client_text, peer_text
from tests.server.web.conftest import Window
from tests.server.web.peers import USERS, Peers, connected, doors

Windows = Callable[..., Window]
PEER = r"127\.0\.0\.1:\d+"
TIMEOUT_S = 60


@pytest.fixture
def opened(windows: Windows) -> Iterator[Callable[..., tuple[Window, Peers]]]:
    """Open a window with all doors, stream ``orders`` of two partitions, and clients."""
    import contextlib

    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[Window, Peers]:
            window = windows(*doors(), **settings)
            window.create("orders", 2)
            return window, stack.enter_context(connected(window))

        yield make


def rows(page: str, pattern: str) -> list[str]:
    return re.findall(pattern, page)


def test_readers_and_writers_at_each_door(opened: Any) -> None:
    window, peers = opened()
    assert "Nobody reads it or writes to it now" in window.text("/stream", stream="orders")
    assert "There are no readers now" in window.text("/connections", show="readers")
    peers.send_by_amqp(20)
    peers.read_by_amqp(7)
    peers.read_hub(6)
    peers.publish_by_rabbit(5)
    peers.read_by_rabbit(8)
    feed = peers.feed("bob")
    url = f"{window.server.urls['feedapi']}/orders"
    fetched = {"partition": "0", "cursor": "_first", "pageSizeHint": "3"}
    assert feed.get(url, params=fetched, timeout=TIMEOUT_S).status_code == 200
    page = window.text("/connections")
    assert "Connections 7 Readers 4 Writers 2" in page
    assert re.search(rf"amqp {PEER} ann till \d{{4}}-", page), "an AMQP client is called by its container-id"
    assert rows(page, rf"rabbitmq-stream {PEER} ann capture 1 \d{{4}}-") != []
    assert re.search(rf"feedapi {PEER} bob reader/7 ", page) and re.search(
        rf"web {PEER} anonymous python-requests", page
    )
    page = window.text("/connections", show="readers")
    assert re.search(rf"amqp orders 0 {PEER} ann link-\d+ billing 3 7 18 ", page)
    assert re.search(rf"rabbitmq-stream orders 0 {PEER} ann mail mail – 25 0 ", page)
    assert re.search(rf"feedapi orders 0 {PEER} bob – – – 3 22 ", page)
    assert re.search(rf"event-hubs orders 0 {PEER} ann link-\d+ \$default 5 6 19", page)
    page = window.text("/connections", show="writers")
    assert re.search(rf"amqp orders 0 {PEER} ann invoices rabbitmq-stream orders 0 {PEER} ann shop$", page)
    page = window.text("/stream", stream="orders")
    assert re.search(rf"amqp 0 {PEER} ann link-\d+ billing 3 7 18 ", page)
    assert re.search(rf"Writers .* rabbitmq-stream 0 {PEER} ann shop Groups", page)
    peers.publish_by_feed(feed, 1)
    assert re.search(rf"feedapi orders any {PEER} bob –", window.text("/connections", show="writers"))
    window.create("other")
    assert "Nobody reads it or writes to it now" in window.text("/stream", stream="other")
    assert "There are no writers now" in window.text("/connections", show="writers", stream="other")


def test_groups_and_what_is_kept_of_them(opened: Any) -> None:
    window, peers = opened()
    assert "no offset is stored" in window.text("/groups")
    window.append([b"x"] * 30)
    reader = peers.read_by_amqp(7, epoch=3)
    peers.leave_durable(4)
    peers.read_hub(6)
    peers.read_by_rabbit(8)
    wait_for(window, "mail orders 0 all stored offset")
    page = window.text("/groups")
    assert "amqp archive/year orders 0 ann durable link none – 4 26" in page
    assert re.search(rf"amqp billing orders 0 ann consumer group 1 {PEER} 3 7 23 ", page)
    assert re.search(rf"event-hubs \$default orders 0 all consumer group 1 {PEER} 5 6 24 ", page)
    assert re.search(rf"rabbitmq-stream mail orders 0 all stored offset 1 {PEER} – 9 21", page), "behind offset 8"
    reader.peer.close()
    wait_for(window, "amqp billing orders 0 ann consumer group none 3 – –")
    page = window.text("/stream", stream="orders")
    assert "amqp archive/year 0 ann durable link none – 4 26" in page and "$default 0 all consumer group 1" in page
    window.log.delete_stream("orders")
    wait_for(window, "No reader is in a group, and no offset is stored")


def wait_for(window: Window, text: str) -> None:
    """Load the page of groups until it says something: doors write some of it down a moment later."""
    import time

    deadline = time.monotonic() + TIMEOUT_S
    while text not in window.text("/groups"):
        assert time.monotonic() < deadline, window.text("/groups")
        time.sleep(0.02)


def test_a_reader_of_all_partitions_and_one_that_waits_for_one(opened: Any) -> None:
    window, peers = opened(page_rows=2)
    window.append([b"x"] * 3, partition=1)
    peers.amqp().receiver("orders")
    for number in range(2):
        peers.read_group("orders", name=f"member-{number}")
    peers.wait_in_group("orders", name="late")
    first = window.text("/connections", show="readers")
    assert "Readers 7" in first and "of 4 Next" in first, "both partitions of two readers, and three members"
    assert len(rows(first, rf"amqp orders \d {PEER} ann link-\d+ – – \d 0")) == 2, "each of its partitions"
    page = window.text("/connections", show="readers", page="3")
    assert re.search(rf"amqp orders – {PEER} ann late g – waits –", page)
    last = window.text("/connections", show="readers", page="4")
    assert last == window.text("/connections", show="readers", page="99999999")
    page = window.text("/groups", page="1")
    assert re.search(rf"amqp g orders – ann consumer group 1 {PEER} – – –", page)


def test_a_user_sees_what_is_its_own_and_a_monitor_what_it_may_read(opened: Any) -> None:
    permissions = {
        "ann": Permissions(configure="", write="", read="orders"),
        "bob": Permissions(configure="", write="", read="orders"),
    }
    window, peers = opened(users=USERS, permissions=permissions, monitors=frozenset({"bob"}))
    window.create("secrets")
    window.append([b"x"] * 9)
    window.append([b"x"] * 9, name="secrets")
    peers.read_by_amqp(2)
    peers.read_by_amqp(2, user="bob")
    peers.read_by_amqp(2, stream="secrets", user="bob")
    window.sign_in("ann", USERS["ann"])
    page = window.text("/connections", show="readers")
    assert "Readers 1 " in page and "Only those of user 'ann' are shown" in page and "bob" not in page
    assert len(rows(window.text("/groups"), "amqp billing orders 0 ann")) == 1 and "bob" not in window.text("/groups")
    assert len(rows(window.text("/stream", stream="orders"), rf"amqp 0 {PEER} ann")) == 1
    assert "bob" not in window.text("/connections")
    assert window.get("/connections", show="readers", stream="secrets").text.count("<tr>") == 0
    window.session.cookies.clear()
    window.sign_in("bob", USERS["bob"])
    page = window.text("/connections", show="readers")
    assert "Readers 2 " in page and "Only those of" not in page and "secrets" not in page
    assert re.search(rf"orders 0 {PEER} ann .* orders 0 {PEER} bob ", page)
    assert "amqp billing orders 0 ann" in window.text("/groups") and "secrets" not in window.text("/groups")
    window.session.cookies.clear()
    assert window.get("/connections").status_code == window.get("/groups").status_code == 303, "sign in first"


def test_a_token_is_no_user_of_other_doors(windows: Windows) -> None:
    limited = BearerToken("of-the-page", read="orders")
    window = windows(FeedConfig(port=0, tokens=("of-the-door",)), tokens=(limited,))
    window.create("orders")
    import requests

    with requests.Session() as feed:
        feed.headers["Authorization"] = "Bearer of-the-door"
        assert feed.get(f"{window.server.urls['feedapi']}/orders?n=1&partition=0&cursor=_first", timeout=60).ok
        answer = window.get("/connections", show="readers", headers_={"Authorization": "Bearer of-the-page"})
    assert answer.status_code == 200
    assert "There are no readers now" in answer.text, "token 0 of the page is another one than token 0 of the door"


def test_a_connection_of_several_users_is_each_ones(opened: Any) -> None:
    permissions = {user: Permissions(configure="", write="", read="orders") for user in USERS}
    window, peers = opened(users=USERS, permissions=permissions)
    window.create("secrets")
    proxy, url = peers.feed("ann"), window.server.urls["feedapi"]
    fetched = {"n": "1", "partition": "0", "cursor": "_first"}
    assert proxy.get(f"{url}/secrets", params=fetched, timeout=TIMEOUT_S).ok
    assert proxy.get(url, auth=("bob", USERS["bob"]), timeout=TIMEOUT_S).ok
    window.sign_in("bob", USERS["bob"])
    assert "feedapi" in window.text("/connections"), "it is his now"
    assert "secrets" not in window.text("/connections", show="readers"), "and what it read before was hers"


def test_names_of_clients_are_text(opened: Any) -> None:
    window, peers = opened()
    hostile = "<script>alert(1)</script>\n" + "x" * 10_000
    peers.amqp(container=hostile).receiver("orders", name=hostile)
    named = peers.amqp(container="reader", open=False)
    named.connection.properties = {symbol("product"): "<b>lib</b>", symbol("version"): "1.2"}
    named.connection.open()
    named.pump(lambda: named.connection.state & Endpoint.REMOTE_ACTIVE)
    assert "&lt;b&gt;lib&lt;/b&gt; 1.2 reader" in window.get("/connections").text
    for show in ("connections", "readers"):
        html = window.get("/connections", show=show).text
        assert "<script>alert" not in html and "&lt;script&gt;alert(1)" in html
        assert len(html) < 12_000


def test_what_peers_say_is_one_short_line() -> None:
    assert client_text("product", None, "", "1.2") == "product 1.2"
    assert client_text("a\nb\x1b[2J") == r"a\nb\x1b[2J"
    assert len(client_text("x" * 1_000, "y" * 1_000)) == MOST_TEXT
    assert peer_text(("::1", 5, 0, 0)) == "[::1]:5" and peer_text(None) == "?" and peer_text("/run/s") == "/run/s"
