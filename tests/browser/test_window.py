"""The log's window in a browser: what people do there, and what hostile events do not.

What costs more, or fails less alone, is in ``test_screens.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone

import pyarrow as pa
from playwright.sync_api import Page, expect

from spark_streams.log import StreamConfig
from tests.browser.believable import append
from tests.browser.conftest import ONE_STREAM, Window

Windows = Callable[..., Window]
SPUTNIK = datetime(1957, 10, 4, 19, 28, 34, tzinfo=timezone.utc)
HOSTILE = (
    "<script>document.title = 'owned'; alert(1)</script>",
    "</code></pre></textarea></title></script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)><a href="javascript:alert(1)" onclick="alert(1)">here</a>',
    "<style>body{display:none}</style><base href=//x.example><meta http-equiv=refresh content='0;url=//x.example'>",
    "<form action=//evil.example><button>Sign in</button></form><iframe src=//evil.example></iframe>",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "left \u202eright\u2066 \u200f\u0000\u0007\u001b[31m\x7f\u2028end",
)
"""Texts that do something where a page takes them for more than text."""


def shown(page: Page) -> list[str]:
    """Return the offsets of the events that a page lists."""
    return page.locator("table.events tbody th").all_inner_texts()


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


def test_events_are_found_by_offset_time_and_filter(window: Windows) -> None:
    log = window()
    log.watched.errors_expected = True
    log.log.create_stream("telemetry", 2, StreamConfig(timestamp_type="create"))
    rows = [
        {
            "value": json.dumps({"beep": number}).encode(),
            "timestamp": SPUTNIK.replace(minute=28 + number),
            "application_properties": {"kind": "beep" if number % 2 else "pause"},
        }
        for number in range(6)
    ]
    append(log.log, "telemetry", rows, 1)
    page = log.show("/stream?stream=telemetry")
    page.get_by_role("link", name="Events of partition 1").click()
    expect(page.get_by_role("row", name="1957-10-04 19:33:34")).to_contain_text('{"beep": 5}')
    assert shown(page) == ["0", "1", "2", "3", "4", "5"]
    page.get_by_label("Start").select_option("from time")
    page.get_by_label("Offset or time").fill("1957-10-04T19:31:00Z")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("3 events, offsets 3 to 5")).to_be_visible()
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_text("3 events, offsets 0 to 2")).to_be_visible()
    page.get_by_label("Start").select_option("earliest")
    page.get_by_role("textbox", name="Filter").fill("kind = 'beep' AND AND")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Column 19: ")
    text, pointer = alert.locator("pre").inner_text().splitlines()
    assert (
        text.index("AND", 15) == pointer.index("^") and page.get_by_role("textbox", name="Filter").input_value() == text
    )
    page.get_by_role("textbox", name="Filter").fill("kind = 'beep' AND publish_time < -386310686000")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No event matches")).to_be_visible()
    page.get_by_role("textbox", name="Filter").fill("kind = 'beep'")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("3 events, offsets 1 to 5")).to_be_visible()
    assert shown(page) == ["1", "3", "5"]
    pushed = page.get_by_role("region", name="Pushed filters")
    expect(pushed.get_by_role("row", name="amqp-events")).to_contain_text("a.kind = 'beep'")
    page.get_by_role("link", name="3", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Event 3 of partition 1")
    expect(page.get_by_role("row", name="kind")).to_contain_text("beep")
    page.get_by_role("link", name="Previous").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Event 2 of partition 1")


def test_an_event_is_published(window: Windows) -> None:
    log = window({"orders": 3})
    log.watched.errors_expected = True
    page = log.show("/stream?stream=orders")
    page.get_by_role("link", name="Publish").click()
    page.get_by_label("Key").fill("ada")
    page.get_by_label("Value", exact=True).fill('{"id": 1, ')
    page.get_by_label("Subject").fill("order.placed")
    page.get_by_label("Application properties").fill("region=eu\npriority=high")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert")).to_contain_text("JSON")
    expect(page.get_by_label("Application properties")).to_have_value("region=eu\npriority=high")
    page.get_by_label("Value", exact=True).fill('{"id": 1, "total": 0.10, "id2": 12345678901234567890}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status")).to_have_text("The event was published.")
    page.get_by_role("link", name="at offset 0").click()
    expect(page.get_by_label("Key").or_(page.get_by_text("ada", exact=True)).first).to_be_visible()
    expect(page.locator("figure.code code")).to_have_text(
        '{\n  "id": 1,\n  "total": 0.10,\n  "id2": 12345678901234567890\n}'
    )
    expect(page.get_by_role("row", name="priority")).to_contain_text("high")
    assert sum(each.next_offset for each in log.log.stream("orders").partitions.values()) == 1


def test_who_may_read_one_stream_sees_and_does_no_more(window: Windows) -> None:
    users = {"reader": "secret", "writer": "other"}
    log = window({"orders": 1, "salaries": 1}, users=users, permissions=ONE_STREAM)
    log.watched.errors_expected = True
    log.publish("orders", value=[b"an order"])
    log.publish("salaries", value=[b"1000000"])
    page = log.show("/events?stream=orders")
    expect(page).to_have_url(log.url + "/sign-in?to=%2Fevents%3Fstream%3Dorders")
    page.get_by_label("User").fill("reader")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("user or password are not known here")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("an order")).to_be_visible()
    expect(page.get_by_role("link", name="Publish")).to_have_count(0)
    log.show()
    expect(page.get_by_role("row", name="orders")).to_be_visible()
    assert "salaries" not in page.content()
    for path in ("/events?stream=salaries", "/event?stream=salaries&partition=0&offset=0", "/publish?stream=orders"):
        log.show(path)
        expect(page.get_by_role("alert")).to_contain_text("user 'reader' may not")
        assert "1000000" not in page.content()
    log.show("/create")
    page.get_by_label("Name").fill("more")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_have_text("user 'reader' may not create stream 'more'")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_have_text("You signed out.")
    log.show()
    expect(page.get_by_label("Password")).to_be_visible()


def test_hostile_events_are_text(window: Windows) -> None:
    log = window({"orders": 1})
    texts = (HOSTILE[0], "".join(HOSTILE[1:-1]), HOSTILE[-1])
    rows = [
        {
            "key": text.replace("\x00", ""),
            "value": text.encode(),
            "properties": {
                "subject": text,
                "content_type": text.encode("ascii", "ignore").decode(),
                "message_id": text,
            },
            "application_properties": {text: text},
        }
        for text in texts
    ]
    append(log.log, "orders", rows)
    log.publish(
        "orders", value=pa.array([b"\xff\xfe<script>alert(1)</script>\xed\xa0\x80", b"", b'{"a": "</script>"}'])
    )
    page = log.show("/events?stream=orders")
    assert shown(page) == ["0", "1", "2", "3", "4", "5"]
    paths = page.locator("table.events a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    seen = []
    for path in paths:
        log.show(path)
        seen.append(page.locator("main").inner_text())
        assert page.locator("main :is(script, style, iframe, img, base, meta, svg, form)").count() == 0
        assert page.locator("main a").evaluate_all("all => all.filter(a => a.origin !== location.origin).length") == 0
        expect(page).to_have_title(f"Event {len(seen) - 1} of orders · spark-streams log")
    assert all(texts[number] in seen[number] for number in (0, 1))
    # What turns the direction of text, or what a terminal obeys, is shown by its name.
    assert not {"\u202e", "\u2066", "\u0000", "\u001b"} & set(seen[2])
    assert "<script>alert(" in seen[3] and "no body" not in seen[4]
