"""Calls to a feed over HTTP: pauses, tokens, secrets and redirects, and the errors that name them."""

from __future__ import annotations

import email.utils
import time

import pytest
import requests
import urllib3

from spark_streams.client.feed.errors import mapped
from spark_streams.client.feed.http import Conflict
from spark_streams.client.retry import Attempts
from spark_streams.endpoint import Endpoint, Tls
from spark_streams.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Refused,
    SparkStreamsError,
)
from tests.client.feed.scripted import (
    QUICK,
    BadFeed,
    Part,
    Reply,
    Request,
    Scripted,
    answers,
    client_of,
    numbered,
    read,
)

DISCOVERY = b'{"partitions": [{"id": "0"}, {"id": "1", "closed": true, "lastCursor": "z"}]}'


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("text", "low", "high"),
        [
            ("7", 7, 7),
            ("100000", 60, 60),
            ("", None, None),
            ("-1", None, None),
            ("\xb2", None, None),
            ("soon", None, None),
        ],
    )
    def test_is_how_long_to_wait(self, text: str, low: float | None, high: float | None) -> None:
        pauses: list[float] = []
        replies = answers(Reply(b"slow down", 429, headers={"Retry-After": text}), Reply(DISCOVERY))
        with Scripted(replies) as server, client_of(server.url, pause=pauses.append) as client:
            client.discover()
        assert len(pauses) == 1
        assert pauses[0] < 0.1 if low is None else low <= pauses[0] <= high

    def test_as_a_date(self) -> None:
        pauses: list[float] = []
        date = email.utils.formatdate(time.time() + 30, usegmt=True)
        replies = answers(Reply(b"", 503, headers={"Retry-After": date}), Reply(DISCOVERY))
        with Scripted(replies) as server, client_of(server.url, pause=pauses.append) as client:
            client.discover()
        assert 20 < pauses[0] <= 30

    def test_deadlines_count_for_more_than_one_try(self) -> None:
        attempts = Attempts(QUICK)
        attempts.pause_s(DeadlineExceeded("x"))
        with pytest.raises(DeadlineExceeded):
            attempts.pause_s(DeadlineExceeded("x"))


class TestToken:
    def test_c15_a_new_token_is_fetched_and_reading_goes_on(self) -> None:
        with BadFeed({0: Part(numbered(0, 10))}, "v2b", page=lambda: 5) as feed, client_of(feed.url) as client:
            client.discover()
            first = read(client)
            feed.token = "a;b &c"
            assert read(client, first[1][-1])[0] == numbered(5, 10)
            assert feed.asked[-1]["token"] == "a;b &c"

    def test_f26_an_empty_token_is_one(self) -> None:
        with BadFeed({0: Part(numbered(0, 1))}, "v2b") as feed, client_of(feed.url) as client:
            feed.token = ""
            client.discover()
            assert read(client)[0] == numbered(0, 1)

    def test_c16_a_feed_that_refuses_its_own_token_is_given_up(self) -> None:
        pauses: list[float] = []
        with BadFeed({0: Part()}, "v2b") as feed, client_of(feed.url, pause=pauses.append) as client:
            client.discover()
            feed.faults = [Reply(b"illegal token geheim-t\n", 409)] * 100
            with pytest.raises(Conflict):
                read(client)
            assert len(pauses) == 4 and len(feed.fetches) == 6
            with pytest.raises(Conflict):
                client.last_cursor(0)
            assert len(feed.fetches) == 6 + 6 * QUICK.attempts


class TestSecrets:
    SECRETS = ("geheim-query", "geheim-token", "geheim-password", "geheim-feed")

    @pytest.mark.parametrize("who", ["token", "password"])
    def test_are_in_no_error(self, who: str) -> None:
        everything = " ".join(self.SECRETS)
        replies = [
            Reply(f"echo {everything}\n".encode(), status) for status in (400, 401, 403, 404, 409, 410, 429, 500)
        ]
        replies += [Reply(f"echo {everything}".encode()), Reply(f"<i>{everything}".encode(), kind="text/html")]
        replies += [Reply(b"", 302, headers={"Location": f"https://user:{everything}@other.example/?{everything}"})]
        replies += [Reply(b"x" * 10, cut=True), Reply(b"", 302, headers={"Location": "/?geheim-query"})]
        with BadFeed({0: Part()}, "v2b") as feed:
            feed.token = "geheim-feed"
            url = f"{feed.url}/x?key=geheim-query"
            secret = {"token": "geheim-token"} if who == "token" else {"password": "geheim-password"}
            for reply in replies:
                with client_of(url, **secret) as client:  # type: ignore[arg-type]
                    client.discover()
                    feed.faults = [reply] * 50
                    with pytest.raises(SparkStreamsError) as caught:
                        read(client)
                shown = f"{caught.value!s} {caught.value!r} {caught.value.__cause__} {caught.value.__context__}"
                given = [each for each in self.SECRETS if each not in ("geheim-token", "geheim-password")]
                for each in [*given, f"geheim-{who}"]:
                    assert each not in shown, (reply, shown)
                feed.faults = []
                with client_of(url, **secret) as client:  # type: ignore[arg-type]
                    feed.discovery_faults = [reply] * 10
                    with pytest.raises(SparkStreamsError) as caught:
                        client.discover()
                for each in ("geheim-query", f"geheim-{who}"):
                    assert each not in str(caught.value), reply
                feed.discovery_faults = []

    def test_are_sent(self) -> None:
        with BadFeed({0: Part()}) as feed:
            with client_of(feed.url, token="t") as client:
                client.discover()
                assert feed.asked[-1].headers["Authorization"] == "Bearer t"
            with client_of(feed.url, password="p") as client:
                client.discover()
                assert feed.asked[-1].headers["Authorization"] == "Basic dXNlcjpw"
            with client_of(feed.url) as client:
                client.discover()
                assert "Authorization" not in feed.asked[-1].headers

    def test_a_netrc_file_is_not_asked(self, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
        from pathlib import Path

        netrc = Path(str(tmp_path)) / "netrc"
        netrc.write_text("machine 127.0.0.1 login me password mine\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("NETRC", str(netrc))
        with BadFeed({0: Part()}) as feed, client_of(feed.url) as client:
            client.discover()
            assert "Authorization" not in feed.asked[-1].headers


class TestRedirects:
    def test_f25_are_followed_on_the_same_origin_with_credentials(self) -> None:
        def answer(request: Request) -> Reply:
            if request.path == "/old":
                return Reply(b"", 307, headers={"Location": "/new?moved=1"})
            return Reply(DISCOVERY)

        with Scripted(answer) as server, client_of(f"{server.url}/old", token="t") as client:
            assert len(client.discover().partitions) == 2
            assert server.asked[-1].path == "/new" and server.asked[-1].pairs == [("moved", "1")]
            assert server.asked[-1].headers["Authorization"] == "Bearer t"

    def test_f25_are_not_followed_to_another_one(self) -> None:
        with Scripted(answers(Reply(DISCOVERY))) as other:
            moved = Reply(b"", 302, headers={"Location": f"{other.url}/x?secret=1"})
            with Scripted(answers(moved)) as server, client_of(server.url, token="t") as client:
                with pytest.raises(Refused, match="redirects to") as caught:
                    client.discover()
                assert other.url in str(caught.value) and "secret" not in str(caught.value)
            assert other.asked == []

    def test_f25_for_ever(self) -> None:
        with (
            Scripted(answers(Reply(b"", 302, headers={"Location": "/"}))) as server,
            client_of(server.url) as client,
            pytest.raises(Refused, match="redirects"),
        ):
            client.discover()


@pytest.mark.parametrize(("scheme", "advised"), [("https", True), ("http", False)])
def test_a_reset_may_mean_that_a_certificate_is_wanted(scheme: str, advised: bool) -> None:
    """A door ends a connection without one by a reset, where the request has come meanwhile."""
    fault = ConnectionResetError(104, "Connection reset by peer")
    reset = urllib3.exceptions.ProtocolError("Connection aborted.", fault)
    endpoint = Endpoint(scheme, "h", 1, tls=Tls() if advised else None)
    with pytest.raises(ConnectionLost) as caught, mapped(f"GET {scheme}://h/x", endpoint):
        raise requests.exceptions.ConnectionError(reset)
    assert ("certificate" in str(caught.value)) is advised


def test_the_environment_is_read_once_however_many_calls_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read_it, whole = [], requests.utils.get_environ_proxies

    def counted(*given: object, **named: object) -> dict[str, str]:
        read_it.append(given)
        return whole(*given, **named)

    for module in (requests.utils, requests.sessions):
        monkeypatch.setattr(module, "get_environ_proxies", counted)
    with BadFeed({0: Part(numbered(0, 20))}) as feed, client_of(feed.url, "v2a") as client:
        for _ in range(10):
            assert read(client)[0] == numbered(0, 20)
        assert len(feed.asked) == 10 and len(read_it) <= 1


def test_each_origin_has_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy for one scheme or host is not used for another one."""
    with Scripted(answers(Reply(DISCOVERY))) as server, Scripted(answers(Reply(DISCOVERY))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
        with client_of(server.url) as near, client_of("http://feed.example/x") as far:
            for _ in range(3):
                near.discover()
                far.discover()
        assert len(server.asked) == 3 and len(proxy.asked) == 3
