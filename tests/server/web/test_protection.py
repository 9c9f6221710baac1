"""What browsers are made to send for other sites is refused, and every answer says what a browser may do with it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import requests

from spark_streams.server import WebConfig
from spark_streams.server.web.site import FOLDER
from tests.server.web.conftest import TIMEOUT_S, Window

Windows = Callable[..., Window]
PAGES = ("/", "/stream?stream=orders", "/create", "/sign-in", "/nothing", "/healthz", "/static/window.js", "/static/no")


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_has_the_headers(window: Window, path: str) -> None:
    window.create()
    headers = window.get(path).headers
    parts = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
    assert parts["default-src"] == parts["base-uri"] == parts["frame-ancestors"] == "'none'"
    assert {parts[each] for each in ("script-src", "style-src", "img-src", "connect-src", "form-action")} == {"'self'"}
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", [each for each in PAGES[:5] if each != "/sign-in"])
def test_no_page_has_a_script_or_style_of_its_own_or_an_address_elsewhere(window: Window, path: str) -> None:
    window.create()
    page = window.get(path).text
    assert re.findall(r"<script[^>]*>", page) == ['<script src="/static/window.js" defer>']
    assert not re.search(r"<style|\sstyle=|<[^>]*\son\w+=", page)
    assert "http://" not in page.replace("http://127.0.0.1", "") and "https://" not in page and "//cdn" not in page


def test_a_site_that_is_named_may_frame_it(windows: Windows) -> None:
    headers = windows(frame_ancestors=frozenset({"http://localhost:*", "vscode-webview:"})).get().headers
    assert "frame-ancestors 'self' http://localhost:* vscode-webview:" in headers["content-security-policy"]
    assert "x-frame-options" not in headers
    with pytest.raises(ValueError, match="frame_ancestors has 'a; script-src'"):
        WebConfig(frame_ancestors=frozenset({"a; script-src"}))
    assert WebConfig().answer_headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[::]"])
def test_where_nobody_is_asked_a_page_of_another_name_is_not_shown(window: Window, host: str) -> None:
    window.create()
    answer = window.get(headers_={"Host": host})
    assert answer.status_code == 403 and "orders" not in answer.text
    assert "is for this machine alone" in answer.text and "Start the log with a user" in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8090", "127.0.0.1:1", "[::1]:8090", "127.1.2.3"])
def test_a_loopback_name_is_taken(window: Window, host: str) -> None:
    assert window.get(headers_={"Host": host}).status_code == 200


def test_with_users_any_name_is_taken(windows: Windows) -> None:
    secured = windows(users={"ann": "secret"})
    assert secured.get("/sign-in", headers_={"Host": "log.example.com"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_a_form_of_another_site_is_refused_even_with_the_csrf_token(window: Window, headers: dict[str, str]) -> None:
    answer = window.post("/create", name="orders", headers_=headers)
    assert answer.status_code == 403 and "a form of another site" in answer.text
    assert window.log.streams() == []


def test_a_form_without_our_csrf_token_is_refused(window: Window) -> None:
    for token in ("0" * 64, "é", ""):
        answer = requests.post(f"{window.url}/create", {"csrf_token": token, "name": "orders"}, timeout=TIMEOUT_S)
        assert answer.status_code == 403 and "load the page again" in answer.text
    assert window.log.streams() == []
    same = {"Origin": window.url, "Sec-Fetch-Site": "same-origin"}
    assert window.post("/create", name="orders", headers_=same).status_code == 303


def test_a_csrf_token_belongs_to_one_sign_in(windows: Windows) -> None:
    secured = windows(users={"ann": "secret", "ben": "secret"})
    secured.sign_in("ann", "secret")
    token = secured.csrf_token()
    secured.session.cookies.clear()
    secured.sign_in("ben", "secret")
    assert secured.post("/create", name="orders", csrf_token=token).status_code == 403
    assert secured.post("/create", name="orders").status_code == 303


@pytest.mark.parametrize("body", [b"\xff\xfe", b"csrf_token=%FF", b"&".join(b"a%d=1" % n for n in range(100))])
def test_a_body_that_is_no_form_is_refused(window: Window, body: bytes) -> None:
    answer = requests.post(f"{window.url}/create", data=body, timeout=TIMEOUT_S)
    assert answer.status_code == 400 and "the form cannot be read" in answer.text


def test_a_form_that_is_too_long_is_refused(windows: Windows) -> None:
    small = windows(max_body_bytes=1_000)
    answer = requests.post(f"{small.url}/create", data=b"a" * 1_001, timeout=TIMEOUT_S)
    assert answer.status_code == 413 and "more than 1000 bytes" in answer.text


def test_an_origin_that_is_none_is_refused(window: Window) -> None:
    answer = window.post("/create", name="orders", headers_={"Origin": "http://["})
    assert answer.status_code == 403 and "a form of another site" in answer.text and "x-frame-options" in answer.headers


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
def test_strangers_send_little(windows: Windows, path: str) -> None:
    secured = windows(users={"ann": "secret"})
    answer = requests.post(f"{secured.url}{path}", data=b"a" * 16_385, timeout=TIMEOUT_S)
    assert answer.status_code == 413 and "more than 16384 bytes" in answer.text


def test_a_fault_of_the_disk_tells_no_path(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **named: object) -> None:
        raise OSError(28, "No space left on device", "/secret/place")

    token = window.csrf_token()
    monkeypatch.setattr(window.log, "create_stream", full)
    answer = window.post("/create", name="orders", csrf_token=token)
    assert answer.status_code == 507 and "No space left on device" in answer.text and "secret" not in answer.text


@pytest.mark.parametrize(
    ("name", "kind"), [("window.js", "javascript"), ("window.css", "text/css"), ("icon.svg", "image/svg+xml")]
)
def test_style_and_script_are_answered_whole_whatever_parts_are_asked_for(window: Window, name: str, kind: str) -> None:
    answer = window.get(f"/static/{name}", headers_={"Range": "bytes=0-0,2-2"})
    assert answer.status_code == 200 and kind in answer.headers["content-type"]
    assert answer.content == (FOLDER / "static" / name).read_bytes()
    assert window.get(f"/static/{name}", headers_={"Range": "bytes=9999999-"}).status_code == 200
    assert window.get("/static/../site.py").status_code == 404
