"""Long forms and long answers: in steps of some milliseconds, and within one budget of memory."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.server.web import site
from spark_streams.server.web.publish import _event_of
from spark_streams.server.web.site import _fields
from spark_streams.wire.amqp.decode import finished
from tests.server.web.conftest import TIMEOUT_S, Window

MANY = 100_000
STEPS = 12
"""As many steps a long form has at least: each is some thousand characters."""


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=40)), max_size=5), st.integers(3, 9))
def test_a_form_is_read_as_the_library_reads_it(pairs: list[tuple[str, str]], step: int) -> None:
    sent = urlencode(pairs).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "_STEP_CHARACTERS", step)
        read = finished(_fields(sent))
    expected = dict(parse_qsl(sent.decode(), keep_blank_values=True))
    assert {**read, "": ""} == {**expected, "": ""}  # a field without a name is none of ours


@pytest.mark.parametrize("text", ["%", "a%", "a%4", "%4%41", "%%41", "%zz", "a+b%2", "%C3%A4" * 5, "%25" * 9])
def test_odd_escapes_are_read_as_the_library_reads_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(3, 12):
        monkeypatch.setattr(site, "_STEP_CHARACTERS", step)
        assert finished(_fields(f"a={text}".encode())) == dict(parse_qsl(f"a={text}", keep_blank_values=True))


@pytest.mark.parametrize(
    "steps",
    [_fields(b"value=" + b"%41" * MANY), _fields(b"%41" * MANY + b"=value")],
    ids=["escapes", "a name of escapes"],
)
def test_a_long_form_is_read_in_steps(steps: Iterator[None]) -> None:
    """15 MB of any of these in one piece kept everything else of the window waiting for 4 to 16 s."""
    assert sum(1 for _ in steps) >= STEPS


@pytest.mark.parametrize("each", ["[],", "1,", '{"a":1},', '"",', "[0,{}],"])
def test_long_json_is_checked(each: str) -> None:
    form = {"content_type": "application/json", "value": f"[{each * MANY}0]"}
    assert _event_of(form).values.to_pylist()[0].endswith(form["value"].encode())
    with pytest.raises(ValueError, match="is no JSON, which its content type says"):
        _event_of({**form, "value": form["value"][:-1]})


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is no JSON, which its content type says: .*depth"):
        _event_of({"content_type": "application/json", "value": "[" * MANY + "]" * MANY})


def test_properties_are_few() -> None:
    with pytest.raises(ValueError, match="have 65537 characters, expected at most 65536"):
        _event_of({"properties": "\n" * 65_537})


def test_long_forms_have_a_budget(windows: Callable[..., Window]) -> None:
    """Of those that have not come whole the largest makes room: who sends slowly keeps none."""
    window = windows(bodies_bytes=200_000)
    window.create()
    place = urlsplit(window.url)
    assert window.get().status_code == 200  # the pages are made when somebody looks
    with contextlib.ExitStack() as stack:
        slow: list[Any] = []
        for size in (90_000, 80_000):
            sender = stack.enter_context(socket.create_connection((place.hostname, place.port), TIMEOUT_S))
            head = b"POST /publish?stream=orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
            sender.sendall(head + b"a" * size)
            slow.append(sender)
        wait_until(lambda: bodies(window).held.total() == 170_000)
        whole = window.post("/publish?stream=orders", value="b" * 60_000)
        assert whole.status_code == 303
        slow[0].sendall(b"a")
        assert slow[0].recv(65_536).startswith(b"HTTP/1.1 503 ")
        slow[1].sendall(b"a" * 20_000)
        assert slow[1].recv(65_536).startswith(b"HTTP/1.1 403 ")  # without our CSRF token, but it was read
    wait_until(lambda: bodies(window).held.total() == 0)


def test_what_is_saved_as_a_file_has_a_budget(windows: Callable[..., Window]) -> None:
    """Of 1,000 who save a long event and do not read, each would take as much memory as the event."""
    window = windows(bodies_bytes=20_000_000)
    window.create()
    window.append([b"v" * 15_000_000])
    asked = {"stream": "orders", "offset": "0"}
    with requests.get(f"{window.url}/event/body", asked, stream=True, timeout=TIMEOUT_S) as first:
        assert first.status_code == 200 and first.headers["Content-Length"] == "15000000"
        wait_until(lambda: bodies(window).held.total() == 15_000_000)
        second = window.get("/event/body", **asked)
        assert second.status_code == 503 and "bodies of 15000000 bytes are under way" in second.text
        assert window.post("/publish?stream=orders", value="b" * 60_000).status_code == 303
        assert first.content == b"v" * 15_000_000
    wait_until(lambda: bodies(window).held.total() == 0)
    with requests.get(f"{window.url}/event/body", asked, stream=True, timeout=TIMEOUT_S) as gone:
        assert gone.status_code == 200
    wait_until(lambda: bodies(window).held.total() == 0)  # whoever goes in the middle leaves nothing


def test_one_answer_may_be_longer_than_the_budget(windows: Callable[..., Window]) -> None:
    window = windows(bodies_bytes=100_000)
    window.create()
    window.append([b"v" * 15_000_000])
    asked = {"stream": "orders", "offset": "0"}
    with requests.get(f"{window.url}/event/body", asked, stream=True, timeout=TIMEOUT_S) as first:
        assert first.status_code == 200
        wait_until(lambda: bodies(window).held.total() == 15_000_000)
        assert window.post("/publish?stream=orders", value="b" * 60_000).status_code == 503
        assert window.post("/publish?stream=orders", value="b" * 6_000).status_code == 303
        assert len(first.content) == 15_000_000
    assert window.post("/publish?stream=orders", value="b" * 60_000).status_code == 303


def bodies(window: Window) -> Any:
    return window.server.server.door("web").application._made._site.bodies


def wait_until(true: Callable[[], bool]) -> None:
    from time import monotonic, sleep

    end = monotonic() + TIMEOUT_S
    while not true():
        assert monotonic() < end
        sleep(0.01)
