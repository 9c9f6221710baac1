"""The pictures of the window in docs/pictures: all there, small, each on the page; and they can be taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from tests.browser.believable import believable
from tests.browser.pictures import FOLDER, PICTURES, SCREEN, take

MOST_BYTES = 150_000
PAGE = FOLDER.parent / "log-window.md"


def names() -> set[str]:
    """The files that `make pictures` makes."""
    looks = {name: ("", "-dark", "-narrow") if picture.live else ("", "-dark") for name, picture in PICTURES.items()}
    return {f"{name}{look}.png" for name, each in looks.items() for look in each}


def test_the_page_shows_all_that_there_are() -> None:
    there = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert there.keys() == names()
    assert max(there.values()) <= MOST_BYTES
    assert set(re.findall(r"\]\(pictures/([\w-]+\.png)\)", PAGE.read_text())) == names()


@pytest.mark.nightly
def test_a_picture_can_be_taken(chromium: Browser, tmp_path: Path) -> None:
    with believable(tmp_path / "log") as (_, url):
        for name in ("event", "groups", "sign-in"):
            take(chromium, url, tmp_path, name)
            for look in ("", "-dark"):
                with Image.open(tmp_path / f"{name}{look}.png") as picture:
                    assert picture.width == SCREEN["width"] and 200 < picture.height <= SCREEN["height"]
                    assert len(picture.getcolors(256) or ()) > 10
