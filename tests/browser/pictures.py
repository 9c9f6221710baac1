"""Take the pictures of the log's window in docs/pictures, light and dark and narrow; `make pictures` runs it.

python -m tests.browser.pictures [--only NAME] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize

from tests.browser.believable import believable
from tests.browser.chromium import NARROW, program, started

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SCREEN: Final[ViewportSize] = {"width": 1200, "height": 780}
COLOURS: Final = 128
"""Of a picture: flat areas and grey letters need no more."""
SAMPLES: Final = 25
"""Seconds of live figures before a picture of them."""


@dataclass(frozen=True)
class Picture:
    """A page as it is shown.

    Args:
        path: the page; None for the one that asks who signs in.
        prepare: what is done on it before.
        live: whether its figures are to have a history.
    """

    path: str | None
    prepare: Callable[[Page], None] = lambda page: None
    live: bool = False


FILTER: Final = "priority = 'high' AND key IN ('ada', 'grace')"
PICTURES: Final = {
    "streams": Picture("/", live=True),
    "stream": Picture("/stream?stream=orders", live=True),
    "events": Picture("/events?stream=telemetry&from=time&at=1958-02-01T06:00Z"),
    "filter": Picture("/events?stream=orders&from=earliest&filter=" + quote(FILTER)),
    "event": Picture("/event?stream=orders&partition=1&offset=451"),
    "publish": Picture("/publish?stream=orders"),
    "connections": Picture("/connections?show=readers"),
    "groups": Picture("/groups"),
    "new-stream": Picture("/create"),
    "sign-in": Picture(None),
}
"""File name to what is on it; each is taken light and dark, and those that are live narrow too."""


def take(browser: Browser, url: str, folder: Path, only: str | None) -> None:
    """Take the pictures of a window."""
    for name, picture in PICTURES.items():
        if only not in (None, name):
            continue
        with browser.new_context(viewport=SCREEN, color_scheme="light", reduced_motion="reduce") as context:
            page = context.new_page()
            page.goto(f"{url}/sign-in")
            if picture.path is not None:
                page.get_by_label("User").fill("ann")
                page.get_by_label("Password").fill("secret")
                page.get_by_role("button", name="Sign in").click()
                page.goto(url + picture.path)
            picture.prepare(page)
            if picture.live:
                page.wait_for_function(
                    "n => document.querySelector('.plot polyline').points.length >= n", arg=SAMPLES, timeout=300_000
                )
            save(page, folder / f"{name}.png")
            page.emulate_media(color_scheme="dark")
            save(page, folder / f"{name}-dark.png")
            if picture.live:
                page.set_viewport_size(NARROW)
                page.emulate_media(color_scheme="light")
                save(page, folder / f"{name}-narrow.png")


def save(page: Page, file: Path) -> None:
    """Write what the screen shows, without the room that is left below, and with few colours."""
    screen = page.viewport_size or SCREEN
    bottom = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
    height = min(screen["height"], bottom)
    seen = Image.open(io.BytesIO(page.screenshot(clip={"x": 0, "y": 0, "width": screen["width"], "height": height})))
    seen.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB", flush=True)


def main() -> None:
    """Take them all, or one."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=list(PICTURES))
    options.add_argument("--folder", type=Path, default=FOLDER)
    given = options.parse_args()
    where = program()
    if where is None:
        sys.exit("pictures: no Chromium is installed: apt-get install chromium")
    given.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        believable(Path(folder) / "log") as (_, url),
        started(where) as browser,
    ):
        take(browser, url, given.folder, given.only)


if __name__ == "__main__":
    main()
