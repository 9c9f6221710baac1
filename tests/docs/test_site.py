"""The site of `make site`: all pages are in it, all links lead somewhere, nothing comes from another host."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.site import source
from tests.docs.pages import ROOT


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source of the site, written into a folder of the test."""
    monkeypatch.setattr(source, "PAGES", tmp_path)
    source.write_pages()
    return tmp_path


def flat(entries: object) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entries, dict):
        return [page for each in entries.values() for page in flat(each)]
    return [page for each in entries for page in flat(each)] if isinstance(entries, list) else [str(entries)]


def test_each_page_is_once_in_the_navigation(pages: Path) -> None:
    named = flat(source.navigation())
    assert len(named) == len(set(named))
    there = {file.relative_to(pages).as_posix() for file in pages.rglob("*.md")}
    assert set(named) <= there
    # The index itself is what the navigation is made of; the others are files that a page shows.
    left = {page for page in there - set(named) if page.startswith("docs/") and "example-project" not in page}
    assert left == {"docs/index.md"}
    assert {"docs/guides/aggregate.md", "docs/glossary.md", "reference/spark_streams.testing.md"} <= set(named)


def test_links_lead_to_pages(pages: Path) -> None:
    found = 0
    for page in pages.rglob("*.md"):
        for link in source.LINK.finditer(source.FENCE.sub("", page.read_text())):
            found += 1
            assert (page.parent / link[1]).exists(), f"{page.relative_to(pages)}: {link[1]}"
    assert found > 300


def test_a_file_that_is_linked_becomes_a_page(pages: Path) -> None:
    assert "```toml\n" in (pages / "conf" / "log.toml.md").read_text()
    tour = (pages / "notebooks" / "tour.ipynb.md").read_text()
    (name, *_) = re.findall(r"!\[.*\]\((tour-1\.png)\)", tour)
    assert (pages / "notebooks" / name).read_bytes().startswith(b"\x89PNG")
    assert "```dockerfile\n" in (pages / "conf" / "Dockerfile.md").read_text()
    assert "](../conf/log.toml.md)" in (pages / "docs" / "testing.md").read_text()
    assert "MAP&lt;STRING,STRING&gt;" in (pages / "docs" / "amqp-events.md").read_text()


def test_each_drawing_has_a_frame_that_it_moves_in(pages: Path) -> None:
    text = (pages / "docs" / "how-it-works.md").read_text()
    drawings = text.count("```mermaid\n")
    assert drawings > 4
    framed = r'^<div class="drawing" markdown>\n\n```mermaid\n.*?^```\n\n</div>$'
    assert len(re.findall(framed, text, re.MULTILINE | re.DOTALL)) == drawings
    style = (ROOT / "docs" / "site" / "site.css").read_text()
    assert ".drawing { overflow-x: auto; }" in style
    assert re.search(r"\.drawing > \.mermaid \{ min-width", style)


def references(text: str) -> list[tuple[str, str]]:
    """Attribute and address of what a page of HTML takes or links to."""
    return [(name, html.unescape(to)) for name, to in re.findall(r'<[^>]*\s(src|href)="?([^"\s>]+)', text)]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="what builds the site needs Python 3.11")
def test_the_built_site() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    made = subprocess.run(
        ["make", "site"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1100, check=False
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    site = ROOT / "build" / "site"
    built = {file: file.read_text() for file in site.rglob("*.html")}
    anchors = {file: set(map(html.unescape, re.findall(r'\sid="?([^"\s>]+)', text))) for file, text in built.items()}
    assert len(built) > 100
    for file, text in built.items():
        for attribute, to in references(text):
            parts = urlsplit(to)
            if parts.scheme or parts.netloc:
                assert attribute == "href" and not re.search(rf'<(?:link|script)[^>]*"?{re.escape(to)}', text), to
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if file.name != "404.html":
                assert target.exists(), f"{file.relative_to(site)}: {to}"
                if parts.fragment and target in anchors and not parts.fragment.startswith("__"):
                    assert unquote(parts.fragment) in anchors[target], f"{file.relative_to(site)}: {to}"
    for module, names in source.public().items():
        there = anchors[site / "reference" / f"{module}.html"]
        assert {name for name in names if f"{module}.{name}" not in there} == set(), module
    assert "watermark" in (site / "search.json").read_text()
    assert (site / "assets" / "mermaid.min.js").exists() or "```" not in made.stderr
    assert not any("fonts.googleapis" in text or "unpkg.com" in text for text in built.values())
