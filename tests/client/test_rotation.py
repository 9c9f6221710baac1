"""Tokens and passwords that change while they are in use: read anew when a feed says 401, and at each connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_streams import secrets
from spark_streams.client.amqp.client import AmqpClient
from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.client.rabbitmq.client import RabbitClient
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, RABBITMQ_SCHEMES, Secret, parse_url
from spark_streams.errors import AuthenticationFailed, OptionError
from spark_streams.log import ReferenceLog
from spark_streams.secrets import CalledSecret, FileSecret
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from spark_streams.wire.feed.line import Dialect
from tests.client.feed.scripted import QUICK, Reply, Request, Scripted

issued = "token-1"
calls = 0


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the function tried already: the first call in a process is in a copy of it, whose ``calls`` are its own."""
    monkeypatch.setattr(secrets, "_TRIED", {f"{__name__}:provide"})


def provide() -> str:
    """Return the token that is valid now, as a vault would."""
    global calls
    calls += 1
    return issued


class GuardedFeed:
    """A feed of one partition and 20 events, two a page, that lets in whoever has the token of the moment."""

    def __init__(self) -> None:
        self.token = "token-1"
        self.refused = 0
        self.signed: list[str | None] = []

    def __call__(self, request: Request) -> Reply:
        shown = request.headers.get("Authorization")
        self.signed.append(shown)
        if shown != f"Bearer {self.token}":
            self.refused += 1
            return Reply(f"{shown} is not {self.token}".encode(), status=401, kind="text/plain")
        if not request.pairs:
            return Reply(b'{"partitions": [{"id": "0"}]}', kind="application/json")
        start = 0 if request["cursor"] == "_first" else int(request["cursor"])
        lines = [b'{"event": {"n": %d}}\n{"cursor": "%d"}\n' % (n, n + 1) for n in range(start, min(start + 2, 20))]
        return Reply(b"".join(lines))


@pytest.fixture
def feed() -> GuardedFeed:
    return GuardedFeed()


@pytest.fixture
def server(feed: GuardedFeed) -> Iterator[Scripted]:
    with Scripted(feed) as served:
        yield served


def client(server: Scripted, token: Secret) -> FeedClient:
    endpoint = parse_url(f"{server.url}/orders", schemes=HTTP_SCHEMES).with_token(token)
    return FeedClient(
        FeedAddress(endpoint, "orders", Dialect.V2A, None, {}, None, 10_000, 1 << 20),
        backoff=QUICK,
        pause=lambda _: None,
    )


def read_all(reader: FeedClient, between: Callable[[int], None]) -> list[bytes]:
    """Read page by page; ``between`` is told how many pages there were."""
    events: list[bytes] = []
    cursor, pages = "_first", 0
    while len(events) < 20:
        for lines in reader.lines(0, cursor):
            assert lines.values is not None
            events += lines.values.to_pylist()
            cursor = lines.cursors.to_pylist()[-1]
        pages += 1
        between(pages)
    return events


WANTED = [b'{"n": %d}' % n for n in range(20)]


def test_a_token_in_a_file_changes_in_mid_read(server: Scripted, feed: GuardedFeed, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token-1\n")

    def rotate(pages: int) -> None:
        if pages in (3, 6):
            feed.token = f"token-{pages}"
            new = tmp_path / "new"
            new.write_text(feed.token)
            new.replace(file)

    with client(server, FileSecret(str(file), "tokenFile")) as reader:
        assert read_all(reader, rotate) == WANTED
    assert feed.refused == 0, "the file's change is noticed before a request is refused"
    assert list(dict.fromkeys(feed.signed)) == ["Bearer token-1", "Bearer token-3", "Bearer token-6"]


def test_a_file_that_is_written_into_is_read_though_it_looks_the_same(
    server: Scripted, feed: GuardedFeed, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("token-1")
    before = file.stat()

    def rotate(pages: int) -> None:
        if pages == 3:
            feed.token = "token-3"
            file.write_text(feed.token)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    with client(server, FileSecret(str(file), "tokenFile")) as reader:
        assert read_all(reader, rotate) == WANTED
    assert feed.refused == 0


def test_a_callable_is_called_again_after_401(server: Scripted, feed: GuardedFeed) -> None:
    global issued, calls
    issued, calls = "token-1", 0

    def rotate(pages: int) -> None:
        global issued
        if pages == 4:
            issued = feed.token = "token-4"

    with client(server, CalledSecret(f"{__name__}:provide", "tokenProvider")) as reader:
        assert read_all(reader, rotate) == WANTED
    assert (feed.refused, calls) == (1, 2)


def test_one_that_is_refused_again_is_an_error_that_shows_no_token(
    server: Scripted, feed: GuardedFeed, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("token-1\n")

    def revoke(pages: int) -> None:
        if pages == 2:
            feed.token = "another-1"

    with client(server, FileSecret(str(file), "tokenFile")) as reader, pytest.raises(AuthenticationFailed) as caught:
        read_all(reader, revoke)
    assert "Bearer *** is not" in str(caught.value) and "token-1" not in str(caught.value)
    assert feed.refused == 1, "the same token is not shown twice"


def test_a_file_that_goes_away_is_an_error_that_says_so(server: Scripted, feed: GuardedFeed, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token-1\n")
    with (
        client(server, FileSecret(str(file), "tokenFile")) as reader,
        pytest.raises(OptionError, match=r"option 'tokenFile': .* cannot be read here"),
    ):
        read_all(reader, lambda pages: file.unlink() if pages == 2 else None)
    assert feed.refused == 0


def test_a_token_that_no_header_can_carry(server: Scripted, feed: GuardedFeed, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("geheim\nzwei\n")
    with (
        client(server, FileSecret(str(file), "tokenFile")) as reader,
        pytest.raises(OptionError, match="no HTTP header can carry") as caught,
    ):
        reader.discover()
    assert "geheim" not in str(caught.value) and not feed.signed


@pytest.mark.parametrize("way", ["passwordFile", "passwordProvider"])
@pytest.mark.parametrize("protocol", ["amqp", "rabbitmq-stream"])
def test_a_password_from_elsewhere_is_asked_for_at_each_connection(protocol: str, way: str, tmp_path: Path) -> None:
    global issued, calls
    users = {"ann": "first"}
    file = tmp_path / "password"
    file.write_text("first\n")
    issued, calls = "first", 0
    secret = FileSecret(str(file), way) if way == "passwordFile" else CalledSecret(f"{__name__}:provide", way)
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 1)
        config = AmqpConfig(port=0, users=users)
        rabbit = RabbitConfig(port=0, users=users, authentication_delay_ms=0)
        with ServerThread(log, config, rabbit=rabbit) as server:
            url = server.urls[protocol]
            endpoint = replace(
                parse_url(url, schemes=AMQP_SCHEMES | RABBITMQ_SCHEMES),
                username="ann",
                password=secret,
            )

            def partitions() -> int:
                if protocol == "amqp":
                    with AmqpClient(endpoint, timeout_ms=120_000) as amqp:
                        return len(amqp.describe("orders").partitions)
                with RabbitClient(endpoint, timeout_ms=120_000) as broker:
                    return len(broker.describe("orders").partitions)

            assert partitions() == 1
            users["ann"] = "second"
            with pytest.raises(AuthenticationFailed) as caught:
                partitions()
            assert "first" not in str(caught.value)
            file.write_text("second\n")
            issued = "second"
            assert partitions() == 1
    assert calls == (0 if way == "passwordFile" else 3), "once for each connection"
