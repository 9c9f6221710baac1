"""What no door that speaks HTTP takes: the same at the feeds' door and at the log's window, its figures included."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_streams.protocols import load, with_doors
from spark_streams.server import ServerThread, WebConfig
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.http.door import HttpDoor
from spark_streams.server.http.guard import MOST_LINES, head_fault
from tests.server.long_timeouts import LONG_TIMEOUTS

KINDS: dict[str, tuple[type[DoorConfig], str, str]] = {
    "feedapi": (FeedConfig, "/orders", "/orders/partitions/0/split?into=2"),
    "web": (WebConfig, "/metrics", "/create"),
}
"""Door to its settings, what is read of it, and what changes something."""
Doors = Callable[..., "AnHttpDoor"]


class AnHttpDoor:
    """A door of a log with stream ``orders``, and what it answers to bytes."""

    def __init__(self, url: str, log: Any, reading: str, changing: str) -> None:
        self.place = urlsplit(url)
        self.log = log
        self.reading = reading
        self.changing = changing

    def answer(self, head: str, *, closed: bool = False, body: bytes = b"") -> str:
        """The whole of what is answered to one request, which ends the connection.

        Args:
            head: its lines, without the end.
            closed: whether the door is to close the connection by itself; without it the request asks for that.
            body: what follows the head.
        """
        with socket.create_connection((self.place.hostname, self.place.port), 60) as raw:
            asked = "" if closed else "Connection: close\r\n"
            raw.sendall(head.replace("\n", "\r\n").encode() + b"\r\n" + asked.encode() + b"\r\n" + body)
            said = b""
            while piece := raw.recv(65_536):
                said += piece
        return said.decode()

    @property
    def unchanged(self) -> bool:
        return [(each.name, list(each.partitions)) for each in self.log.streams()] == [("orders", ["0"])]


@pytest.fixture(params=KINDS)
def doors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Doors]:
    """Open doors of one kind, with settings."""
    from spark_streams.log import ReferenceLog

    kind, *paths = KINDS[request.param]
    with ExitStack() as stack:
        log = stack.enter_context(ReferenceLog(tmp_path))
        log.create_stream("orders", 1)

        def make(**settings: Any) -> AnHttpDoor:
            config: Any = kind
            server = stack.enter_context(ServerThread(log, config(**{"port": 0, **LONG_TIMEOUTS, **settings})))
            return AnHttpDoor(server.urls[request.param], log, *paths)

        yield make


def test_each_door_that_speaks_http_is_tested_here() -> None:
    speaking = {each.name for each in with_doors().values() if issubclass(load(each.door), HttpDoor)}
    assert speaking == set(KINDS)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_where_nobody_is_asked_a_name_that_leads_here_gets_nothing(doors: Doors, host: str) -> None:
    """A page of another site whose name leads to this machine (DNS rebinding) is of the door's own origin."""
    door = doors()
    for request in (f"GET {door.reading}", f"POST {door.changing}", "DELETE /orders", "PUT /new", "GET /"):
        said = door.answer(f"{request} HTTP/1.1\nHost: {host}", closed=True)
        assert said.startswith("HTTP/1.1 403 ") and "is for this machine alone" in said and "connection: close" in said
        assert (
            f"asked for as '{host.removesuffix(':80')}'" in said
            and "Start the log with a user" in said
            and "allowed_hosts" in said
        )
    assert door.unchanged


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1",
        "127.0.0.1:80",
        "[::1]:8080",
        "127.1.2.3",
        "Log.Test:80",
        "log.test.",
        "[fd00:0::7]:80",
    ],
)
def test_its_own_names_and_those_of_its_settings_are_taken(doors: Doors, host: str) -> None:
    door = doors(allowed_hosts=frozenset({"Log.test", "host.docker.internal", "fd00::0007"}))
    assert door.answer(f"GET {door.reading} HTTP/1.1\nHost: {host}").startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "host", ["Evil.Example:80", "[FD00::0:7]:80", "[fe80::1%eth0]", "evil.example.", "10.0.0.1:8080"]
)
def test_the_host_that_a_refusal_names_can_be_put_into_the_settings(doors: Doors, host: str) -> None:
    door = doors()
    said = door.answer(f"GET {door.reading} HTTP/1.1\nHost: {host}")
    allowing = doors(allowed_hosts=frozenset({said.partition("asked for as '")[2].partition("'")[0]}))
    assert allowing.answer(f"GET {door.reading} HTTP/1.1\nHost: {host}").startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "entry",
    [
        *("log.test:8080", "[fd00::7]", "[fd00::7]:80", "http://log.test", "log.test/", "*.log.test", "", " log.test"),
        *("a..b", "user@log.test", "127.0.0.1:80", "b\u00fccher.example", "log.test?", "log%2etest", "log.test\n"),
        *("127.0.0.1%25", "10.0.0.0/8"),
    ],
)
def test_an_allowed_host_that_no_request_can_name_is_refused_at_the_start(entry: str) -> None:
    for kind, *_ in KINDS.values():
        settings: Any = {"allowed_hosts": frozenset({"log.test", entry})}
        with pytest.raises(ValueError, match=r"allowed_hosts has .*without scheme, port and brackets"):
            kind(**settings)


def test_a_request_that_names_no_host_is_of_http_1_0(doors: Doors) -> None:
    """Of a program: a browser says the host, and so does a page whose name leads here."""
    door = doors()
    assert door.answer(f"GET {door.reading} HTTP/1.0").startswith("HTTP/1.1 200 ")
    for head in ("Host: evil.example", "Host: ", "Host: localhost\nHost: evil.example"):
        assert door.answer(f"GET {door.reading} HTTP/1.0\n{head}").split()[1] in ("400", "403")
    said = door.answer(f"POST {door.changing} HTTP/1.0\nOrigin: http://evil.example\nContent-Length: 0")
    assert said.startswith("HTTP/1.1 403 ") and door.unchanged
    assert door.answer(f"GET {door.reading} HTTP/1.1", closed=True).startswith("HTTP/1.1 400 ")


def test_the_name_that_it_listens_at_is_taken(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed url has it: a name for the loopback address in the machine's own table of hosts, say."""
    found = socket.getaddrinfo

    def with_name(host: Any, *arguments: Any, **settings: Any) -> Any:
        return found("127.0.0.1" if host == "log.test" else host, *arguments, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", with_name)
    door = doors(host="log.test")
    assert door.answer(f"GET {door.reading} HTTP/1.1\nHost: log.test").startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize("settings", [{"users": {"ann": "pw"}}, {"tokens": ("t",)}, {"insecure": True}], ids=str)
def test_where_somebody_is_asked_any_name_is_taken(doors: Doors, settings: dict[str, Any]) -> None:
    """Behind a proxy or in a container it has another name; a page of another site has no password."""
    door = doors(**settings)
    said = door.answer(f"GET {door.reading} HTTP/1.1\nHost: log.example.com")
    assert said.startswith("HTTP/1.1 200 " if "insecure" in settings else "HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "host",
    [
        "localhost:99999",
        "localhost:port",
        "[::",
        "localhost/a",
        "a?b",
        "a@localhost",
        "[::1].evil.example",
        "[::1]x",
        "[::1%a/b]",
        "127.0.0.1%.evil.example",
        "[127.0.0.1]",
        "::1",
        "localhost,evil.example",
        "a b:80",
    ],
)
def test_a_host_that_is_none_is_refused(doors: Doors, host: str) -> None:
    door = doors(users={"ann": "secret"})
    said = door.answer(f"GET {door.reading} HTTP/1.1\nHost: {host}", closed=True)
    assert said.startswith("HTTP/1.1 400 ") and "no host and port" in said


@pytest.mark.parametrize("header", ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: same-site"])
def test_what_a_page_of_another_site_sends_changes_nothing(doors: Doors, header: str) -> None:
    """A form needs no leave to be sent to another origin, and a browser adds the password that it knows."""
    door = doors()
    said = door.answer(f"POST {door.changing} HTTP/1.1\nHost: localhost\n{header}\nContent-Length: 0", closed=True)
    assert said.startswith("HTTP/1.1 403 ") and "a form of another site" in said
    assert door.unchanged
    assert door.answer(f"GET {door.reading} HTTP/1.1\nHost: localhost\n{header}").startswith("HTTP/1.1 200 ")


def test_a_request_with_two_lengths_ends_the_connection(doors: Doors) -> None:
    """Who believes the other length reads another request behind it."""
    door = doors()
    smuggled = f"POST {door.changing} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    two = f"Host: localhost\nContent-Length: {len(smuggled) + 5}\nTransfer-Encoding: chunked"
    said = door.answer(f"POST {door.changing} HTTP/1.1\n{two}", body=b"0\r\n\r\n" + smuggled, closed=True)
    assert said.startswith("HTTP/1.1 400 ") and "Content-Length stands beside Transfer-Encoding" in said
    assert said.count("HTTP/1.1") == 1 and "connection: close" in said and door.unchanged


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [(f"a: {'b' * 2_000}", "more than 2000 bytes"), ("a:\n" * MOST_LINES, f"more than {MOST_LINES} lines")],
)
def test_a_long_head_that_comes_at_once_is_refused(doors: Doors, fields: str, wrong: str) -> None:
    """Whole or in parts: 250 kB of short lines, read at once, kept the loop of all doors for 140 ms."""
    door = doors(max_head_bytes=2_000)
    said = door.answer(f"GET {door.reading} HTTP/1.1\nHost: localhost\n{fields.strip()}", closed=True)
    assert said.startswith("HTTP/1.1 431 ") and wrong in said


def test_lines_behind_a_head_are_not_its_own() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert head_fault(head + b"{}\n" * 10_000, 65_536) is None
    assert head_fault(head + b"{}\n" * 100_000, 65_536) is None
    assert head_fault(head.replace(b"\r", b"") + b"\n" * 100_000, 65_536) is None
    assert head_fault(head[:-2] + b"a:\n" * MOST_LINES, 65_536) is not None
    assert head_fault(b"a" * 65_536, 65_536) is None
    assert head_fault(b"a" * 65_537 + b"\n\n", 65_536) is not None


def test_every_answer_says_that_it_is_for_its_own_pages(doors: Doors) -> None:
    door = doors()
    for head in (f"GET {door.reading} HTTP/1.1\nHost: localhost", "GET / HTTP/1.1\nHost: evil.example"):
        said = door.answer(head).lower()
        assert "x-content-type-options: nosniff" in said and "cross-origin-resource-policy: same-origin" in said
