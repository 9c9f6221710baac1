"""Discovery: P-01 to P-05, P-11, P-12, P-30; what depends on splits is in test_split.py."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.server.feed.conftest import Door

Doors = Callable[..., Door]


def test_p01_a_get_without_arguments_is_a_json_object_with_partitions(either: Door) -> None:
    either.create("orders", 3)
    answer = either.get()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.endswith(b"}\n")
    assert [each["id"] for each in answer.json()["partitions"]] == ["0", "1", "2"]


def test_p02_version_2b_has_a_token_and_2a_has_none(doors: Doors) -> None:
    new, old = doors(dialect="v2b"), doors(folder="other")
    for door in (new, old):
        door.create()
    assert isinstance(new.discover()["token"], str) and new.discover()["token"]
    assert "token" not in old.discover()
    assert not {"stream", "filters"} & set(new.discover()), "which today's specification does not have"


def test_p03_ids_are_texts_of_distinct_integers(either: Door) -> None:
    either.create("orders", 300)
    ids = [each["id"] for each in either.discover()["partitions"]]
    assert all(isinstance(each, str) and str(int(each)) == each and 0 <= int(each) <= 32767 for each in ids)
    assert len(set(ids)) == 300


def test_p03_partitions_are_named_0_to_32767(either: Door) -> None:
    either.create()
    assert either.page("32768").answer.status_code == 400
    assert either.page("32767").answer.status_code == 400  # it may be one, but here is none
    assert either.page("-1").answer.status_code == 400
    assert either.page("0").answer.status_code == 200


def test_p05_the_last_cursor_is_the_one_that_reading_to_the_end_gives(door: Door) -> None:
    door.create("orders", 2)
    door.numbers(0, 10)
    zero, one = door.discover()["partitions"]
    assert door.page(0).cursor == zero["lastCursor"] == door.page(0, "_last").cursor
    assert door.page(1).cursor == one["lastCursor"]
    door.numbers(10, 12)
    assert door.page(0, zero["lastCursor"]).events == [{"n": 10}, {"n": 11}]


def test_p11_partitions_may_appear_at_any_time(door: Door) -> None:
    door.create()
    door.server.call(lambda: door.log.add_partitions("orders", 2))
    assert [each["id"] for each in door.discover()["partitions"]] == ["0", "1", "2"]


def test_p12_exactly_once_is_a_promise_of_who_runs_the_door(doors: Doors) -> None:
    without, promised = doors(), doors(folder="other", exactly_once=True)
    for door in (without, promised):
        door.create()
    assert without.discover()["exactlyOnce"] is False
    assert promised.discover()["exactlyOnce"] is True


def test_p12_a_repeated_request_is_not_repeated_on_the_feed(doors: Doors) -> None:
    door = doors(exactly_once=True)
    door.create("orders", 2)
    body = b'{"event":{"id":"a"},"key":"x"}\n{"event":{"id":"b"},"key":"y"}\n{"event":{"id":"c"}}\n'
    for _ in range(3):
        assert door.post(body, Idempotency_Key="writer", Idempotency_Sequence="7").status_code == 200
    found = [event["id"] for partition in (0, 1) for event in door.read(partition)]
    assert sorted(found) == ["a", "b", "c"]


def test_p30_filters_are_listed(door: Door) -> None:
    door.create()
    assert door.discover()["filters"] == ["key", "subject", "/*"]
    assert door.discover()["stream"] is True


def test_a_feed_that_is_not_there(either: Door) -> None:
    for path in ("nothing", "nothing/events", "favicon.ico"):
        answer = either.get(path)
        assert answer.status_code == 404 and answer.text.count("\n") == 1


def test_the_root_lists_the_feeds(either: Door) -> None:
    assert either.get("").json() == {"feeds": []}
    for name in ("b", "a/c"):
        either.create(name)
    assert either.get("").json() == {"feeds": ["a/c", "b"]}
    assert either.get("?cursor=_first").status_code == 404


def test_names_with_anything_in_them(either: Door) -> None:
    from urllib.parse import quote

    for name in ("a/b", "größe", "a b+c&d=e?f#g%h", "a/events"):
        either.create(name)
        either.numbers(0, 1, name=name)
        assert either.page(name=quote(name, safe="")).events == [{"n": 0}]
    assert either.page(name="a/b").events == [{"n": 0}]


def test_other_methods_are_not_allowed(door: Door) -> None:
    door.create()
    for method in ("OPTIONS", "PATCH"):
        assert door.session.request(method, f"{door.url}/orders", timeout=120).status_code == 405


@pytest.mark.parametrize("numbers", [False, True])
def test_the_document_is_strict_json(doors: Doors, numbers: bool) -> None:
    door = doors(go_numbers=numbers)
    door.create()

    def refuse(text: str) -> None:
        raise AssertionError(text)

    json.loads(door.get().content, parse_constant=refuse)
