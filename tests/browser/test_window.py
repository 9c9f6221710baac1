"""The log's window in a browser: what people do there, and what hostile names and events do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from spark_streams.testing.notebook import FRAME_ANCESTORS, LogFrame
from tests.browser.chromium import NARROW
from tests.browser.conftest import ONE_STREAM, Window, serving

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


def wider_than_the_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_streams_and_what_grows(window: Windows) -> None:
    log = window({"orders": 4, "telemetry": 1})
    page = log.show()
    row = page.get_by_role("row", name="orders")
    expect(row).to_contain_text("super stream")
    log.publish("orders", value=[b"a", b"b"])
    expect(row.locator("[data-figure=events]")).to_have_text("2")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    expect(page.get_by_role("row", name="0 0 1 2")).to_be_visible()


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


def test_who_may_read_one_stream_sees_and_does_no_more(window: Windows) -> None:
    users = {"reader": "secret", "writer": "other"}
    log = window({"orders": 1, "salaries": 1}, users=users, permissions=ONE_STREAM)
    log.watched.errors_expected = True
    page = log.page
    log.show("/stream?stream=orders")
    expect(page).to_have_url(log.url + "/sign-in?to=%2Fstream%3Fstream%3Dorders")
    page.get_by_label("User").fill("reader")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("user or password are not known here")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(log.url + "/stream?stream=orders")
    expect(page.get_by_text("Delete this stream")).to_have_count(0)
    log.show()
    expect(page.get_by_role("row", name="orders")).to_be_visible()
    assert "salaries" not in page.content()
    log.show("/stream?stream=salaries")
    expect(page.get_by_role("alert")).to_have_text("user 'reader' may not read stream 'salaries'")
    log.show("/create")
    page.get_by_label("Name").fill("more")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("user 'reader' may not create stream 'more'")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_have_text("You signed out.")
    log.show()
    expect(page.get_by_label("Password")).to_be_visible()


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
        assert not wider_than_the_screen(page), path
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            grounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    lightness = [sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) / 3 for ground in grounds]
    assert min(lightness[::2]) > 200 and max(lightness[1::2]) < 60
