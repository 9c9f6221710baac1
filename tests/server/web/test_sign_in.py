"""Signing in with the log's users and tokens, and what a sign-in is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from spark_streams.server import BearerToken, Permissions
from spark_streams.server.http.authorization import Known
from spark_streams.server.web.sessions import Sessions
from tests.certificate_authority import Authority
from tests.server.web.conftest import Window

Windows = Callable[..., Window]
READER = {"reader": Permissions(configure="", write="", read="orders")}
KNOWN = Known("ann", "user 'ann'", lambda action, stream: True, limited=False)


def test_without_users_nobody_is_asked(window: Window) -> None:
    window.create()
    assert "orders" in window.text()
    answer = window.get("/sign-in")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("path", ["/", "/stream?stream=orders", "/create", "/stream?stream=unknown"])
def test_who_is_not_signed_in_is_led_there_and_back(windows: Windows, path: str) -> None:
    secured = windows(users={"ann": "secret"})
    secured.create()
    answer = secured.get(path)
    assert answer.status_code == 303 and answer.headers["location"].startswith("/sign-in?to=")
    form = secured.get(answer.headers["location"]).text
    assert f'name="to" value="{path}"' in form and "orders</" not in form
    back = secured.post("/sign-in", user="ann", password="secret", to=path)
    assert (back.status_code, back.headers["location"]) == (303, path)


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "script:1", "/a\nb"])
def test_nobody_is_led_to_another_site(windows: Windows, target: str) -> None:
    secured = windows(users={"ann": "secret"})
    answer = secured.post("/sign-in", user="ann", password="secret", to=target)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"user": "ann", "password": "wrong"}, "user or password are not known here"),
        ({"user": "nobody", "password": "secret"}, "user or password are not known here"),
        ({"user": "", "password": ""}, "nobody is named"),
        ({"token": "wrong"}, "the bearer token is not known here"),
        ({"token": "é"}, "the bearer token is not known here"),
    ],
)
def test_what_is_not_known_is_refused_in_words(windows: Windows, fields: dict[str, str], words: str) -> None:
    secured = windows(users={"ann": "secret"}, tokens=("token-1",))
    answer = secured.post("/sign-in", **fields)
    assert answer.status_code == 401 and words in answer.text and "set-cookie" not in answer.headers
    assert secured.get().status_code == 303


def test_the_cookie_is_no_script_s_and_no_other_site_s(windows: Windows) -> None:
    secured = windows(users={"ann": "secret"})
    cookie = secured.post("/sign-in", user="ann", password="secret").headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    port = secured.url.rsplit(":", 1)[1]
    assert cookie.startswith(f"spark-streams-{port}=")


def test_signing_out_ends_it(windows: Windows) -> None:
    secured = windows(users={"ann": "secret"})
    secured.sign_in("ann", "secret")
    kept = dict(secured.session.cookies)
    assert "ann" in secured.text()
    answer = secured.post("/sign-out")
    assert answer.headers["location"] == "/sign-in?notice=signed-out"
    secured.session.cookies.update(kept)  # the token itself is worth nothing any more
    assert secured.get().status_code == 303


def test_a_token_signs_in(windows: Windows) -> None:
    secured = windows(tokens=(BearerToken("token-1", configure="", write="", read="orders"),))
    for name in ("orders", "others"):
        secured.create(name)
    assert 'id="user"' not in secured.get("/sign-in").text
    assert secured.post("/sign-in", token="token-1").status_code == 303
    assert "orders" in secured.text() and "others" not in secured.text()


def test_a_header_is_as_good_as_a_cookie(windows: Windows) -> None:
    secured = windows(users={"ann": "secret"})
    secured.session.auth = ("ann", "secret")
    assert "Streams" in secured.text()
    secured.session.auth = ("ann", "wrong")
    assert secured.get().status_code == 401


def test_a_user_sees_its_streams_only(windows: Windows) -> None:
    secured = windows(users={"reader": "secret"}, permissions=READER)
    for name in ("orders", "others"):
        secured.create(name)
    secured.sign_in("reader", "secret")
    page = secured.text()
    assert "orders" in page and "others" not in page
    for path, words in (("/stream", "may not read stream 'others'"), ("/stream", None)):
        answer = secured.get(path, stream="others" if words else "unknown")
        assert answer.status_code == 403, "whether a stream is there is not told"
    assert "Delete" not in secured.text("/stream", stream="orders")
    assert secured.post("/delete", stream="orders", confirm="orders").status_code == 403
    made = secured.post("/create", name="mine")
    assert made.status_code == 422 and "user &#39;reader&#39; may not create stream" in made.text
    assert {stream.name for stream in secured.log.streams()} == {"orders", "others"}


def test_sign_ins_end_after_their_time_and_the_oldest_makes_room() -> None:
    now = [0.0]
    sessions = Sessions(10_000, 2, lambda: now[0])
    first, second = sessions.begin(KNOWN), sessions.begin(KNOWN)
    assert sessions.find(first) is sessions.find(second) is KNOWN
    third = sessions.begin(KNOWN)
    assert sessions.find(first) is None and sessions.find(third) is KNOWN
    now[0] = 10.0
    assert sessions.find(second) is sessions.find(third) is None
    assert sessions.find("") is sessions.find("\ud800") is None
    sessions.end("unknown")


def test_many_sign_ins_of_one_user_end_that_users_alone() -> None:
    sessions = Sessions(10_000, 1_000, lambda: 0.0)
    admin, others = replace(KNOWN, user="admin"), [replace(KNOWN, user=f"user {number}") for number in range(1_000)]
    token = sessions.begin(admin)
    tokens = [sessions.begin(KNOWN) for _ in range(1_001)]
    assert sessions.find(token) is admin and sessions.find(tokens[-1]) is KNOWN
    assert [sessions.find(each) for each in tokens[:2]] == [None, None], "the oldest of the user that has most"
    taken = [sessions.begin(each) for each in others]
    assert all(sessions.find(each) for each in taken[1:]), "the limit for all is shared evenly"


def test_guest_is_let_in_from_this_machine_alone(windows: Windows) -> None:
    secured = windows(users={"guest": "guest"}, loopback=frozenset({"::1"}))
    answer = secured.post("/sign-in", user="guest", password="guest")
    assert answer.status_code == 401 and "own machine alone" in answer.text


def secured_by(folder: Path, windows: Windows, **settings: Any) -> Window:
    """A window with TLS, whose client shows a certificate."""
    authority = Authority(folder, "authority")
    certificate, key = authority.issue("server")
    found = windows(tls_cert=certificate, tls_key=key, tls_client_ca=str(authority.file), **settings)
    found.session.trust_env = False  # whose bundle of authorities would count instead
    found.session.verify, found.session.cert = str(authority.file), authority.issue("client")
    return found


def test_a_client_certificate_lets_in_where_nobody_can_sign_in(tmp_path: Path, windows: Windows) -> None:
    window = secured_by(tmp_path, windows, tls_client_required=True)
    window.create()
    assert "orders" in window.text() and "Sign out" not in window.text()
    assert window.get("/sign-in").headers["location"] == "/"
    assert window.post("/create", name="others").status_code == 303
    window.session.close()  # a connection that is kept has shown it
    window.session.cert = None
    with pytest.raises(requests.ConnectionError):
        window.get()


def test_a_cookie_of_tls_is_ended_as_browsers_demand(tmp_path: Path, windows: Windows) -> None:
    window = secured_by(tmp_path, windows, users={"ann": "secret"})
    begun = window.post("/sign-in", user="ann", password="secret").headers["set-cookie"]
    ended = window.post("/sign-out").headers["set-cookie"]
    for cookie in (begun, ended):
        assert cookie.startswith("__Host-spark-streams-")
        assert "Secure" in cookie and "HttpOnly" in cookie and "Path=/" in cookie and "Domain" not in cookie
    assert "Max-Age=0" in ended
