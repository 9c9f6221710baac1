"""A real browser, Chromium, that looks at the log's window: a log in this process, a page that may do nothing wrong.

Without Chromium on the machine the tests are skipped. Playwright keeps a
loop in the thread that uses it, where another test's ``asyncio.run`` would find it: each module has one, and ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread, WebConfig
from spark_streams.server.users import Permissions
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.browser.chromium import WIDE, program, started

GUARD_MS = 60_000
expect.set_options(timeout=GUARD_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser, one process for a module."""
    where = program()
    if where is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with started(where) as browser:
        yield browser


@dataclass
class Watched:
    """The page of a module: each test gets it as new, as a page of its own costs half a second.

    Attributes:
        origin: what it may ask for, and ``others``.
        complaints: errors of scripts, violations of the policy of content security, requests to others, dialogs.
        errors_expected: whether answers of status 400 and more, which a browser says on its console, are wanted.
    """

    page: Page
    origin: str = "about:blank"
    others: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    errors_expected: bool = False

    def __post_init__(self) -> None:
        self.page.set_default_timeout(GUARD_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("request", self._request)
        self.page.on("dialog", self._dialog)

    def renew(self, origin: str) -> None:
        """Make it a page without history of what is at this origin."""
        self.page.goto("about:blank")
        self.page.context.clear_cookies()
        self.page.set_viewport_size(WIDE)
        self.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        self.origin, self.errors_expected = origin, False
        self.others.clear()
        self.complaints.clear()

    def _console(self, message: ConsoleMessage) -> None:
        expected = self.errors_expected and "the server responded with a status" in message.text
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", *self.others, "data:", "blob:", "about:")):
            self.complaints.append(f"request to {request.url}")

    def _dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@dataclass
class Window:
    """A log that is served here, and a page to look at it.

    Attributes:
        url: where the page is, without a slash at the end.
    """

    log: ReferenceLog
    url: str
    watched: Watched

    @property
    def page(self) -> Page:
        """The browser's page."""
        return self.watched.page

    def show(self, path: str = "/") -> Page:
        """Load a page of the window, and return the browser's."""
        self.page.goto(self.url + path)
        return self.page

    def publish(self, stream: str, partition: str = "0", **columns: Any) -> None:
        """Append events, by columns of the sinks."""
        arrays = {name: each if isinstance(each, pa.Array) else pa.array(each) for name, each in columns.items()}
        self.log.stream(stream).partitions[partition].append(encode_columns(arrays))


def too_wide(page: Page) -> bool:
    """Whether a page as a whole has to be moved sideways; a table in it may."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@pytest.fixture(scope="module")
def watched(chromium: Browser) -> Iterator[Watched]:
    """The page of a module."""
    with chromium.new_context() as context:
        yield Watched(context.new_page())


@pytest.fixture
def window(watched: Watched, tmp_path: Path) -> Iterator[Callable[..., Window]]:
    """A function that serves a new log with a window, given streams and settings of the window; once in a test.

    At the end the page may have complained of nothing: no error of a script, nothing that the policy of content
    security had to stop, no request to another host, no dialog.
    """
    with ExitStack() as ending:

        def serve(streams: Mapping[str, int] | None = None, **settings: Any) -> Window:
            log = ending.enter_context(ReferenceLog(tmp_path / "log"))
            for name, partitions in (streams or {}).items():
                log.create_stream(name, partitions)
            named = {key: settings[key] for key in ("users", "permissions") if key in settings}
            doors = [kind(port=0, **named) for kind in (AmqpConfig, RabbitConfig, FeedConfig, EventHubsConfig)]
            server = ending.enter_context(ServerThread(log, *doors, WebConfig(port=0, **settings)))
            url = server.urls["web"].rstrip("/")
            watched.renew(url)
            return Window(log, url, watched)

        yield serve
    assert watched.complaints == []


@contextmanager
def serving(pages: Mapping[str, str]) -> Iterator[str]:
    """Serve pages of another site, by their paths, and give where it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


ONE_STREAM = {"reader": Permissions(configure="", write="", read="orders")}
