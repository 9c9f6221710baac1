"""Filters: P-29, P-30 and cursors of other sets in version 2a; P-35 to P-37 in version 2b."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.server.feed.conftest import Door, Page

Doors = Callable[..., Door]


def filled(door: Door) -> Door:
    """Append 0 to 99: key by number modulo 3, subject Even or odd, none for every tenth."""
    door.create()
    subjects = [None if n % 10 == 0 else "Even" if n % 2 == 0 else "odd" for n in range(100)]
    for first in range(0, 100, 20):
        rows = range(first, first + 20)
        door.append(
            [b"%d" % n for n in rows],
            keys=[f"k{n % 3}" for n in rows],
            properties=pa.array([{"subject": subjects[n]} for n in rows], pa.struct([("subject", pa.string())])),
        )
    return door


def expected(wanted: Callable[[int], bool]) -> list[str]:
    return [str(n) for n in range(100) if wanted(n)]


def test_p29_an_unsupported_filter_is_refused(door: Door) -> None:
    filled(door)
    refused: list[dict[str, str]] = [{"filter-nosuch": "x"}, {"filter-": "x"}, {"filter-KEY": "k1"}]
    refused += [{"filter-key": "k1", "filter-x": ""}, {"filter-/a~2": "x"}, {"filter-a/b": "x"}]
    for query in refused:
        answer = door.get(partition=0, cursor="_first", **query)
        assert answer.status_code == 400 and "filter" in answer.text
    twice = f"{door.url}/orders?partition=0&cursor=_first&filter-key=a&filter-key=b"
    assert door.session.get(twice, timeout=120).status_code == 400


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_p30_what_is_listed_works(door: Door, size: int) -> None:
    filled(door)
    assert set(door.discover()["filters"]) == {"key", "subject", "/*"}
    assert door.read(filter__key="k1", pageSizeHint=size) == expected(lambda n: n % 3 == 1)
    assert door.read(filter__subject="odd", pageSizeHint=size) == expected(lambda n: n % 2 == 1)
    both = expected(lambda n: n % 2 == 0 and n % 10 != 0 and n % 3 == 0)
    assert door.read(filter__subject="Even", filter__key="k0", pageSizeHint=size) == both
    assert door.read(filter__key="none", pageSizeHint=size) == []


EVENTS = (
    b'{"type":"order","to":{"city":"Oslo","no":7},"a/b":"x"}',
    b'{"type":"\\u006frder"}',
    b'{"type" : "order", "n": 1}',
    b'{"type":"ORDER","note":"order"}',
    b'{"kind":{"type":"order"}}',
    b'{"type":null,"*":"order"}',
    b'{"type":5,"to":{"no":7.0}}',
    b'{"type":["order"],"to":[{"city":"Oslo"}]}',
    b'{"type":true,"to":{"city":"Troms\xc3\xb8"}}',
    b"order",
    b'"order"',
    b'["order"]',
    b"\xff order",
    b"",
    b'{"type":{"a": [1,"b"]}}',
)
SENT = [None if body[:1] != b"{" else json.loads(body) for body in EVENTS]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("pointer", "value", "found"),
    [
        ("/type", "order", [0, 1, 2]),
        ("/type", "ORDER", [3]),
        ("/type", "5", [6]),
        ("/type", "true", [8]),
        ("/type", "null", []),
        ("/type", "", []),
        ("/type", '["order"]', [7]),
        ("/type", '{"a":[1,"b"]}', [14]),
        ("/kind/type", "order", [4]),
        ("/to/city", "Oslo", [0]),
        ("/to/0/city", "Oslo", [7]),
        ("/to/city", "Troms\u00f8", [8]),
        ("/to/no", "7", [0]),
        ("/to/no", "7.0", [6]),
        ("/a~1b", "x", [0]),
        ("/*", "order", [5]),
        ("/nosuch", "order", []),
    ],
)
def test_a_json_pointer_is_a_filter(door: Door, size: int, pointer: str, value: str, found: list[int]) -> None:
    door.create()
    door.append(EVENTS)
    query = {f"filter-{pointer}": value, "pageSizeHint": str(size)}
    assert door.read(**query) == [SENT[number] for number in found]


def test_discovery_says_what_the_filters_compare(door: Door, doors: Doors) -> None:
    door.create()
    assert door.discover()["filterFields"] == {"key": "key", "/*": "/*"}
    newer = doors(dialect="v2b", folder="newer")
    newer.create()
    assert {"filters", "filterFields"} & newer.discover().keys() == set()


def test_pointers_go_together_with_the_other_filters(door: Door) -> None:
    door.create()
    door.append(
        [b'{"n":%d,"even":%s}' % (n, b"true" if n % 2 == 0 else b"false") for n in range(12)], keys=["a", "b", "c"] * 4
    )
    query = {"filter-/even": "true", "filter-key": "a"}
    assert [event["n"] for event in door.read(**query)] == [0, 6]
    cursor = door.page(**query, pageSizeHint="1").cursor
    assert door.page(0, cursor, **{"filter-/even": "true"}).answer.status_code == 400, "another set of filters"


def test_what_is_filtered_out_is_not_sent(door: Door) -> None:
    """Bytes fall in proportion: 1% of the events is about 1% of the bytes."""
    door.create()
    text = b"x" * 100
    for first in range(0, 20_000, 2_000):
        door.append([b'{"n":%d,"hundredth":%d,"text":"%s"}' % (n, n % 100, text) for n in range(first, first + 2_000)])

    def bytes_of(**query: str) -> tuple[int, int]:
        size, events, cursor = 0, 0, "_first"
        while True:
            page = door.page(0, cursor, pageSizeHint="100000", **query)
            if page.cursor == cursor:
                return size, events
            size, events, cursor = size + len(page.answer.content), events + len(page.events), page.cursor

    every, some = bytes_of(), bytes_of(**{"filter-/hundredth": "7"})
    assert (every[1], some[1]) == (20_000, 200)
    assert some[0] < every[0] / 80


def test_a_group_id_is_a_key_too(door: Door) -> None:
    door.create()
    groups = pa.array([{"group_id": "a"}, {"group_id": "b"}])
    door.append([b"1", b"2"], properties=groups)
    assert door.read(filter__key="b") == ["2"]


def test_cursors_belong_to_a_set_of_filters(door: Door) -> None:
    filled(door)
    sets = [{}, {"filter__key": "k1"}, {"filter__key": "k2"}, {"filter__key": "k1", "filter__subject": "odd"}]
    cursors = [door.page(pageSizeHint=2, **filters).cursor for filters in sets]
    for one, cursor in enumerate(cursors):
        for other, filters in enumerate(sets):
            answer = door.page(0, cursor, **filters).answer
            assert answer.status_code == (200 if one == other else 400)
            assert one == other or "filters" in answer.text
    # Neither the order of the arguments nor what else is asked for belongs to the set.
    swapped = {"filter__subject": "odd", "filter__key": "k1"}
    assert door.page(0, cursors[3], **swapped, pageSizeHint=1).answer.status_code == 200


def test_a_fetch_that_finds_nothing_gets_on_all_the_same(doors: Doors) -> None:
    door = doors(scan_bytes=1)
    door.create()
    size = 800_000  # so that what is looked at in one go is two of six
    for number in range(6):
        door.append([b"x" * size, b"y" * size], keys=["a", "b" if number == 5 else "a"])
    seen, cursors, cursor = [], [], "_first"
    while cursor not in cursors:
        cursors.append(cursor)
        page = door.page(0, cursor, filter__key="b")
        seen += page.events
        cursor = page.cursor
    assert seen == ["y" * size] and len(cursors) > 3, "each fetch looks at a little, and says how far it came"


def test_p35_version_2b_may_filter_by_event_types(doors: Doors) -> None:
    door = filled(doors(dialect="v2b"))
    assert door.read(event__types="odd") == expected(lambda n: n % 2 == 1)
    assert door.read(event__types="odd;even") == expected(lambda n: n % 10 != 0)
    assert door.read(skip__event__types="odd") == expected(lambda n: n % 2 == 0), "what has no type stays"
    assert door.read(event__types="nosuch") == []
    cursor = door.page(event__types="odd", pagesizehint=1).cursor
    assert door.page(0, cursor).answer.status_code == 200, "version 2b binds no cursor to filters"
    assert door.page(filter__nosuch="x").answer.status_code == 200, "unknown arguments are passed over"


def test_p36_both_event_type_arguments_are_too_many(doors: Doors) -> None:
    door = filled(doors(dialect="v2b"))
    page: Page = door.page(**{"event-types": "a", "skip-event-types": "b"})
    assert page.answer.status_code == 400


def test_p37_case_does_not_count_in_event_types(doors: Doors) -> None:
    door = filled(doors(dialect="v2b"))
    even = expected(lambda n: n % 2 == 0 and n % 10 != 0)
    for text in ("even", "EVEN", "eVeN", "Even; nosuch"):
        assert door.read(event__types=text) == even
    assert door.read(skip__event__types="EVEN;ODD") == expected(lambda n: n % 10 == 0)
