"""The log's window narrow, dark, by keyboard and in a frame, and with large events and odd names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from spark_streams.testing.notebook import FRAME_ANCESTORS, LogFrame
from tests.browser.believable import append
from tests.browser.chromium import NARROW
from tests.browser.conftest import Window, serving, too_wide

pytestmark = pytest.mark.nightly
Windows = Callable[..., Window]
NAMES = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}",
    "a\u202egnp.exe",
    "&lt;b&gt;",
)
"""Names of streams that mean something where a page forgets to write them as text."""

UNNAMED = """
() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, [role=region]")]
  .filter(each => !(each.labels?.length || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby")
    || (each.matches("a, button") && each.textContent.trim())))
  .map(each => each.outerHTML)
"""
"""What a screen reader could not name."""
PALE = """
() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = text => rgb(text).slice(0, 3).map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = each => {
    for (; each; each = each.parentElement) {
      const found = getComputedStyle(each).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(found)) return found;
    }
  };
  const own = each => [...each.childNodes].some(part => part.nodeType === 3 && part.data.trim());
  return [...document.querySelectorAll("body *")].filter(each => own(each) && each.checkVisibility()
      && !each.closest("[aria-hidden=true]"))
    .map(each => {
      const [one, other] = [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => b - a);
      return [(one + 0.05) / (other + 0.05), each.textContent.trim().slice(0, 40)];
    }).filter(([ratio]) => ratio < 4.5);
}
"""
"""Texts whose contrast to what is behind them is below 4.5, which WCAG 2 asks for (success criterion 1.4.3)."""


def test_a_stream_is_created_and_deleted(window: Windows) -> None:
    log = window()
    log.watched.errors_expected = True
    page = log.show()
    page.get_by_role("link", name="New stream").click()
    page.get_by_label("Name").fill("orders")
    page.get_by_label("Partitions").fill("0")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("partitions is '0', expected a number from 1 on")
    page.get_by_label("Partitions").fill("3")
    page.get_by_label("timestamp_type").select_option("create")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("The stream was created.")
    stream = log.log.stream("orders")
    assert len(stream.partitions) == 3 and stream.config.timestamp_type == "create"
    page.get_by_text("Delete this stream").click()
    page.get_by_label("Write its name to confirm").fill("Orders")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("was not deleted")
    page.go_back()
    page.get_by_text("Delete this stream").click()
    page.get_by_label("Write its name to confirm").fill("orders")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status")).to_have_text("The stream was deleted, with all its events.")
    assert log.log.find("orders") is None


def test_names_are_text(window: Windows) -> None:
    log = window(dict.fromkeys(NAMES, 1))
    page = log.show()
    links = [(name, page.get_by_role("link", name=name, exact=True).get_attribute("href")) for name in NAMES]
    for name, path in links:
        log.show(path or "")
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.locator("main script, main img")).to_have_count(0)


def test_by_keyboard_alone(window: Windows) -> None:
    log = window({"orders": 1, "telemetry": 1})
    page = log.show()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    expect(page.get_by_role("link", name="To the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert reached[:3] == ["search", "Search", "New stream"] and reached[4:] == ["orders", "telemetry"]
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("telemetry")


def test_each_control_has_a_name_and_each_text_contrast(window: Windows) -> None:
    log = window({"orders": 2})
    append(log.log, "orders", [{"value": b'{"a": 1}', "key": "ada"}])
    paths = ("/", "/create", "/stream?stream=orders", "/events?stream=orders", "/publish?stream=orders", "/connections")
    for path in paths:
        page = log.show(path)
        assert page.evaluate(UNNAMED) == [], path
        levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(each => Number(each.tagName[1]))")
        assert levels[0] == 1 and levels.count(1) == 1 and all(b - a <= 1 for a, b in pairwise(levels)), path
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert page.evaluate(PALE) == [], (path, scheme)


@pytest.mark.parametrize("allowed", [True, False])
def test_in_a_frame_of_a_notebook(window: Windows, allowed: bool) -> None:
    log = window({"orders": 2}, **({"frame_ancestors": frozenset(FRAME_ANCESTORS)} if allowed else {}))
    log.watched.errors_expected = True
    frame = LogFrame(f"{log.url}/create", 500)._repr_html_()
    with serving({"/": f"<!doctype html><title>A notebook</title>{frame}"}) as notebook:
        log.watched.others.append(notebook)
        page = log.page
        if not allowed:
            with page.expect_console_message(lambda message: "frame-ancestors 'none'" in message.text):
                page.goto(notebook)
            assert len(log.watched.complaints) == 1 and log.watched.complaints.pop()
            return
        page.goto(notebook)
        shown = page.frame_locator("iframe")
        shown.get_by_label("Name").fill("payments")
        shown.get_by_role("button", name="Create").click()
        expect(shown.get_by_role("heading", level=1)).to_have_text("payments")


def test_a_narrow_screen_light_and_dark(window: Windows) -> None:
    log = window({"orders": 4, "a-stream-whose-name-is-longer-than-a-telephone-is-wide-and-has-no-blank": 1})
    log.page.set_viewport_size(NARROW)
    grounds = []
    for path in ("/", "/create", "/stream?stream=orders"):
        page = log.show(path)
        assert not too_wide(page), path
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            grounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    lightness = [sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) / 3 for ground in grounds]
    assert min(lightness[::2]) > 200 and max(lightness[1::2]) < 60


def test_pages_on_a_narrow_screen(window: Windows) -> None:
    log = window({"orders": 2})
    append(log.log, "orders", [{"value": b'{"a": "' + b"x" * 500 + b'"}', "key": "k" * 90}])
    log.page.set_viewport_size(NARROW)
    for path in ("/events?stream=orders", "/event?stream=orders&partition=0&offset=0", "/publish?stream=orders"):
        assert not too_wide(log.show(path)), path
    for path in ("/connections?show=readers", "/groups"):
        assert not too_wide(log.show(path)), path


def test_a_body_of_10_mb(window: Windows) -> None:
    log = window({"orders": 1})
    log.publish("orders", value=[b'{"long": "' + b"<b>" * 3_500_000 + b'"}'])
    page = log.show("/events?stream=orders")
    assert len(page.content()) < 100_000
    page.get_by_role("link", name="0", exact=True).last.click()
    expect(page.get_by_text("the first 64.0 KiB are shown")).to_be_visible()
    assert len(page.content()) < 2_000_000 and not too_wide(page)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save the body").click()
    assert saved.value.path().stat().st_size > 10_000_000
