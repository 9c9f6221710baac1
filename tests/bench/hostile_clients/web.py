"""Bad clients of the log's window: forms as long as they may be, which take long to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import requests

from tests.bench.hostile_clients.feed import GUARD_S, create, expect, together
from tests.bench.hostile_clients.registry import attack

DOOR = "web"
FORM_BYTES = 15_000_000
LONG_FORMS = "[web]\nmax_body_bytes = 16_777_216\n"
"""By default a form has 1 MiB at most."""
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def send_for_ever(urls: Mapping[str, str], fields: str, status: int) -> Iterator[None]:
    """Have two clients send a form to publish, again and again, each with our CSRF token."""
    create(urls, "bad")
    page = requests.get(f"{urls[DOOR]}/publish?stream=bad", timeout=GUARD_S)
    token = re.search(r'name="csrf_token" value="([0-9a-f]+)"', page.text)
    assert token is not None, page.text
    body = f"csrf_token={token[1]}&{fields}".encode()

    def send(session: requests.Session) -> None:
        session.cookies.update(page.cookies)
        url = f"{urls[DOOR]}/publish?stream=bad"
        expect(session.post(url, body, headers=FORM, timeout=GUARD_S, allow_redirects=False), status)

    yield from together(2, send)


@attack(f"{DOOR}: a form of 15 MB of escapes", LONG_FORMS)
def escapes(urls: Mapping[str, str]) -> Iterator[None]:
    yield from send_for_ever(urls, "value=" + "%41" * (FORM_BYTES // 3), 303)


@attack(f"{DOOR}: a form of 15 MB of JSON that is none at its end", LONG_FORMS)
def broken(urls: Mapping[str, str]) -> Iterator[None]:
    value = "[" + "[]," * (FORM_BYTES // 3)
    yield from send_for_ever(urls, f"content_type=application%2Fjson&value={value}", 422)
