"""Version 1, ZeroEventHub, beside version 2: P-40, P-50 to P-52; and its own client, from PyPI."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.server.feed.conftest import Door, Page
from tests.server.foreign_programs import Driver, Refused

Doors = Callable[..., Door]


def test_p40_version_1_is_served_on_the_same_path(either: Door) -> None:
    either.create("orders", 2)
    either.numbers(0, 3, partition=1)
    page = Page(either.get(n=2, cursor1="_first"))
    assert page.lines[:-1] == [{"partition": 1, "data": {"n": n}} for n in range(3)]
    assert page.lines[-1] == {"partition": 1, "cursor": page.cursor}
    assert page.answer.headers["content-type"] == "application/x-ndjson"
    assert Page(either.get(n=2, cursor0="_first")).events == []


def test_p40_cursors_are_the_same_in_both_versions(door: Door) -> None:
    door.create()
    door.numbers(0, 10)
    cursor = door.page(pageSizeHint=4).cursor
    assert Page(door.get(n=1, cursor0=cursor)).events == [{"n": n} for n in range(4, 10)]


@pytest.mark.parametrize(
    "query",
    [
        {"cursor0": "_first"},
        {"n": "x", "cursor0": "_first"},
        {"n": "", "cursor0": "_first"},
        {"n": 0, "cursor0": "_first"},
        {"n": 1, "cursor0": "_first"},
        {"n": 3, "cursor0": "_first"},
        {"n": 2},
        {"n": 2, "cursor": "_first"},
        {"n": 2, "cursor2": "_first"},
        {"n": 2, "cursorx": "_first"},
        {"n": 2, "cursor0": ""},
        {"n": 2, "cursor0": "nonsense"},
        {"n": 2, "cursor0": "_first", "pagesizehint": "x"},
        {"n": 2, "cursor0": "_first", "cursor1": "_first"},
    ],
)
def test_p50_what_is_wrong_is_answered_400(either: Door, query: dict[str, Any]) -> None:
    either.create("orders", 2)
    answer = either.get(**query)
    assert answer.status_code == 400 and answer.text.count("\n") == 1


def test_p50_a_base_path_without_n_is_no_version_1(door: Door) -> None:
    door.create()
    assert door.get(pagesizehint=5).status_code == 400


def test_p51_cursors_are_printable_ascii(either: Door) -> None:
    either.create()
    either.numbers(0, 3)
    cursor = Page(either.get(n=1, cursor0="_first")).cursor
    assert cursor.isascii() and cursor.isprintable() and cursor.isalnum()


def test_p52_another_number_of_partitions_is_refused_not_emulated(door: Door) -> None:
    door.create("orders", 2)
    assert "2 partitions" in door.get(n=4, cursor0="_first").text


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/zeh-v1", "application/zeh-v1"),
        ("application/zeh-v1, application/x-ndjson;q=0.9, */*;q=0.5", "application/zeh-v1"),
        ("Application/ZEH-V1;q=0.5 , text/html;q=0.9", "application/zeh-v1"),
        ("application/zeh-v2, application/zeh-v1;q=0.1", "application/zeh-v1"),
        ("application/zeh-v1;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("application/zeh-v1;q=0, */*", "application/x-ndjson"),
        ("application/zeh-v1;q=much, application/x-ndjson", "application/x-ndjson"),
        ("application/zeh-v2, */*;q=0.1", "application/x-ndjson"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/json", "application/x-ndjson"),
        ("*/*", "application/x-ndjson"),
        ("", "application/x-ndjson"),
    ],
)
def test_the_answer_has_the_media_type_that_is_asked_for(either: Door, accept: str, kind: str) -> None:
    either.create()
    answer = either.get(n=1, cursor0="_first", headers_={"Accept": accept})
    assert answer.status_code == 200 and answer.headers["content-type"] == kind
    assert "accept" in answer.headers["vary"].split(", ")


def test_a_later_version_alone_is_not_acceptable(door: Door) -> None:
    door.create()
    answer = door.get(n=1, cursor0="_first", headers_={"Accept": "application/zeh-v2"})
    assert answer.status_code == 406 and "application/zeh-v1" in answer.text
    answer = door.get(partition=0, cursor="_first", headers_={"Accept": "application/zeh-v1"})
    assert answer.headers["content-type"] == "application/x-ndjson", "version 2 is no ZeroEventHub"


def test_page_sizes_of_version_1(door: Door) -> None:
    door.create()
    door.numbers(0, 20)
    assert len(Page(door.get(n=1, cursor0="_first", pagesizehint=7)).events) == 7
    assert len(Page(door.get(n=1, cursor0="_first", pagesizehint=0)).events) == 20


def test_headers_are_application_properties_and_only_sent_when_asked_for(door: Door) -> None:
    door.create()
    properties = pa.array(
        [[("ce_id", "1"), ("ce_type", 'q"é')], [], [("ce_id", None)], None], pa.map_(pa.string(), pa.string())
    )
    door.append(
        [b'{"a":1,"b":2}', b"text", b"x", b"y"], application_properties=properties, keys=["k", None, None, None]
    )

    def headers(text: str | None) -> list[Any]:
        query = {} if text is None else {"headers": text}
        page = Page(door.get(n=1, cursor0="_first", **query))
        assert page.events == [{"a": 1, "b": 2}, "text", "x", "y"]
        return [line.get("headers") for line in page.lines[:-1]]

    assert headers(None) == [None] * 4
    assert headers("ce_type") == [{"ce_type": 'q"é'}, None, None, None]
    assert headers("ce_id,ce_type") == headers("_all") == [{"ce_id": "1", "ce_type": 'q"é'}, None, None, None]
    assert headers("nosuch") == [None] * 4


# --- the PyPI package


def test_the_zeroeventhub_client_reads_a_few_events(either: Door, zeroeventhub: Driver) -> None:
    either.create("orders", 2)
    either.append([b'{"a":"\xc3\xa9\\u2028"}', "line\none\u2028".encode(), b"{}"], partition=1)
    found = zeroeventhub.ask("read", url=f"{either.url}/orders", partitions=2)
    assert found == [[], [{"a": "é\u2028"}, "line\none\u2028", {}]]


def test_the_zeroeventhub_client_reads_tens_of_thousands_of_events(door: Door, zeroeventhub: Driver) -> None:
    door.create("orders", 4)
    for partition in range(4):
        for first in range(0, 10_000, 500):
            rows = range(first, first + 500)
            door.append(
                [b'{"partition":%d,"n":%d,"text":"%s"}' % (partition, n, b"x" * (n % 90)) for n in rows],
                partition=partition,
            )
    found = zeroeventhub.ask("read", url=f"{door.url}/orders", partitions=4, page_size=3_000)
    assert len(found) == 4
    for partition, events in enumerate(found):
        assert [event["n"] for event in events] == list(range(10_000))
        assert {event["partition"] for event in events} == {partition}
        assert all(len(event["text"]) == event["n"] % 90 for event in events)


def test_the_zeroeventhub_client_is_told_what_is_wrong(door: Door, zeroeventhub: Driver) -> None:
    door.create("orders", 2)
    with pytest.raises(Refused, match=r"HTTPStatusError.*400"):
        zeroeventhub.ask("read", url=f"{door.url}/orders", partitions=3)


def test_the_zeroeventhub_client_asks_for_headers(door: Door, zeroeventhub: Driver) -> None:
    door.create()
    properties = pa.array([[("ce_id", "1")], []], pa.map_(pa.string(), pa.string()))
    door.append([b"{}", b"{}"], application_properties=properties)
    assert zeroeventhub.ask("headers", url=f"{door.url}/orders") == [{"ce_id": "1"}, None]


def test_a_line_of_version_1_is_what_the_specification_shows(door: Door) -> None:
    door.create()
    door.append([b'{"a":1}'])
    event, checkpoint = door.get(n=1, cursor0="_first").content.split(b"\n")[:-1]
    assert json.loads(event) == {"partition": 0, "data": {"a": 1}} and set(json.loads(checkpoint)) == {
        "partition",
        "cursor",
    }
