"""Fixtures of the window's tests: a served log, and what a browser without scripts sees of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests

from tests.server.long_timeouts import LONG_TIMEOUTS

TIMEOUT_S = 60
_CSRF_TOKEN = re.compile(r'name="csrf_token" value="([0-9a-f]{64})"')


class Window:
    """The window of a log, and a client with its own cookies."""

    def __init__(self, server: Any, log: Any) -> None:
        self.server = server
        self.log = log
        self.session = requests.Session()

    @property
    def url(self) -> str:
        return str(self.server.urls["web"])

    def create(self, name: str = "orders", partitions: int = 1, **config: Any) -> str:
        from spark_streams.log import StreamConfig

        self.log.create_stream(name, partitions, StreamConfig(**config) if config else None)
        return name

    def append(
        self, values: Sequence[bytes], *, name: str = "orders", partition: int | str = 0, **columns: Any
    ) -> None:
        """Append messages straight to a partition of the log; ``timestamps`` are ms since the epoch."""
        from spark_streams.wire.amqp.columns.encode import encode_columns

        timestamps = columns.pop("timestamps", None)
        encoded = encode_columns({"value": pa.array(values, pa.binary()), **columns})
        given = {} if timestamps is None else {"timestamps": timestamps}
        self.log.stream(name).partitions[str(partition)].append(encoded, **given)

    def get(self, path: str = "/", **query: Any) -> requests.Response:
        headers, pairs = query.pop("headers_", None), {name.rstrip("_"): value for name, value in query.items()}
        return self.session.get(
            f"{self.url}{path}", params=pairs, headers=headers, timeout=TIMEOUT_S, allow_redirects=False
        )

    def text(self, path: str = "/", **query: Any) -> str:
        """The page's text as a browser shows it, without its tags."""
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return shown(answer.text)

    def csrf_token(self, path: str = "/create") -> str:
        """The CSRF token of the forms on a page."""
        found = _CSRF_TOKEN.search(self.get(path).text)
        assert found is not None
        return found[1]

    def post(self, path: str, **fields: str) -> requests.Response:
        """Send a form with our CSRF token; ``headers_`` are further headers, ``csrf_token`` is another token."""
        headers = fields.pop("headers_", None)
        token = fields.pop("csrf_token", None) or self.csrf_token("/sign-in" if path == "/sign-in" else "/create")
        sent = {"csrf_token": token, **fields}
        return self.session.post(f"{self.url}{path}", sent, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)

    def sign_in(self, user: str, password: str) -> None:
        answer = self.post("/sign-in", user=user, password=password)
        assert answer.status_code == 303, answer.text


def shown(html: str) -> str:
    """A page's text without its tags, its blanks joined."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", html))).strip()


@pytest.fixture
def windows(tmp_path: Path) -> Iterator[Callable[..., Window]]:
    """Make windows: settings of ``WebConfig``, and ``doors`` with the settings of other doors."""
    from spark_streams.log import LogConfig, ReferenceLog
    from spark_streams.server import ServerThread, WebConfig

    with contextlib.ExitStack() as stack:

        def make(*doors: Any, log: LogConfig | None = None, **settings: Any) -> Window:
            folder = tmp_path / f"log-{len(list(tmp_path.iterdir()))}"
            opened = stack.enter_context(ReferenceLog(folder, log))
            server = ServerThread(opened, *doors, WebConfig(**{"port": 0, **LONG_TIMEOUTS, **settings}))
            return Window(stack.enter_context(server), opened)

        yield make


@pytest.fixture
def window(windows: Callable[..., Window]) -> Window:
    """A window that asks nobody."""
    return windows()
