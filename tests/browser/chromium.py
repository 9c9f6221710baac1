"""The Chromium of this machine, driven by Playwright; none is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ViewportSize, sync_playwright

WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 360, "height": 740}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def program() -> str | None:
    """Return where Chromium is; None where it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started(where: str) -> Iterator[Browser]:
    """Run it while the context is open."""
    # As root there is no sandbox to be had.
    words = ["--no-sandbox"] if os.name == "posix" and os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where, args=words)
        yield browser
        browser.close()
