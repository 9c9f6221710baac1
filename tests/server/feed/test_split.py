"""Both ways of changing the number of partitions: P-04 to P-10, and what clients see of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.feed.conftest import Door, Page

Doors = Callable[..., Door]


def publish(door: Door, first: int, stop: int, **headers: str) -> None:
    """Publish ``{"n": …, "key": …}``, with one of 20 keys each."""
    body = b"".join(b'{"event":{"n":%d,"key":"k%d"},"key":"k%d"}\n' % (n, n % 20, n % 20) for n in range(first, stop))
    assert door.post(body, **headers).json()["appended"] == stop - first


def partition(door: Door, number: int) -> Any:
    (found,) = [each for each in door.discover()["partitions"] if each["id"] == str(number)]
    return found


def by_key(events: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event["key"], []).append(event["n"])
    return found


def test_p04_a_closed_partition_takes_nothing_any_more(doors: Doors) -> None:
    door = doors(others=True)
    door.create()
    publish(door, 0, 40)
    assert door.split(0).status_code == 200
    assert partition(door, 0)["closed"] is True
    from spark_streams.errors import PartitionEnded

    with pytest.raises(PartitionEnded):
        door.log.stream("orders").partitions["0"].append([b"x"])
    before = door.read(0)
    publish(door, 40, 200)
    assert door.read(0) == before and partition(door, 0)["closed"] is True


def test_p05_reading_a_closed_partition_to_the_end_gives_its_last_cursor(door: Door) -> None:
    door.create()
    publish(door, 0, 40)
    door.split(0)
    last = partition(door, 0)["lastCursor"]
    assert door.page(0).cursor == last
    again = door.page(0, last)
    assert again.events == [] and again.cursors == [last], "further reads return it unchanged (F-9)"


def test_p05_an_empty_partition_that_is_closed(door: Door) -> None:
    door.create()
    door.split(0)
    assert door.page(0).cursors == [partition(door, 0)["lastCursor"]]


def test_p06_children_start_after_a_closed_partition(either: Door) -> None:
    either.create("orders", 2)
    either.split(1, into=3)
    found = either.discover()["partitions"]
    assert [each["id"] for each in found] == ["0", "1", "2", "3", "4"]
    assert [each.get("startsAfterPartition") for each in found] == [None, None, "1", "1", "1"]
    assert [each.get("closed", False) for each in found] == [False, True, False, False, False]


def test_p07_a_partition_has_one_kind_of_parent(either: Door) -> None:
    either.create("orders", 2)
    publish(either, 0, 40)
    either.split(0)
    either.split(1, history="true")
    kinds = [{"startsAfterPartition", "cursorFromPartitions"} & set(each) for each in either.discover()["partitions"]]
    assert all(len(kind) <= 1 for kind in kinds)
    assert sorted(map(sorted, kinds)) == [[], ["cursorFromPartitions"], ["cursorFromPartitions"],
                                          ["startsAfterPartition"], ["startsAfterPartition"]]  # fmt: skip


@pytest.mark.parametrize("start", ["_first", "middle", "end"])
def test_p08_a_cursor_of_the_parent_works_on_every_child(either: Door, start: str) -> None:
    either.create()
    for first in range(0, 300, 30):
        publish(either, first, first + 30)
    read: list[Any] = []
    cursor = "_first"
    if start != "_first":
        page = either.page(0, pageSizeHint=127 if start == "middle" else 1000)
        read, cursor = page.events, page.cursor
    assert either.split(0, into=3, history="true").status_code == 200
    children = [each["id"] for each in either.discover()["partitions"]]
    assert children == ["1", "2", "3"]
    assert all(partition(either, int(each))["cursorFromPartitions"] == ["0"] for each in children)
    assert either.page(0, cursor).answer.status_code == 400, "the parent has left the list"
    publish(either, 300, 360)
    rest = [either.read(child, cursor) for child in children]
    every = [event["n"] for events in [read, *rest] for event in events]
    assert sorted(every) == list(range(360)), "what was missing, none twice"
    for events in rest:
        assert [event["n"] for event in events] == sorted(event["n"] for event in events)
    homes = [set(by_key(events)) for events in rest]
    assert not homes[0] & homes[1] and not homes[1] & homes[2] and not homes[0] & homes[2]


def test_p08_a_cursor_of_the_grandparent_works_after_two_splits(door: Door) -> None:
    door.create()
    for first in range(0, 200, 20):
        publish(door, first, first + 20)
    page = door.page(0, pageSizeHint=77)
    door.split(0, history="true")
    middle = {child: door.page(child, page.cursor, pageSizeHint=11) for child in (1, 2)}
    publish(door, 200, 240)
    door.split(2, history="true")
    found = {each["id"]: each for each in door.discover()["partitions"]}
    assert list(found) == ["1", "3", "4"]
    assert found["3"]["cursorFromPartitions"] == found["4"]["cursorFromPartitions"] == ["2", "0"]
    from_grandparent = [event["n"] for child in (1, 3, 4) for event in door.read(child, page.cursor)]
    assert sorted([event["n"] for event in page.events] + from_grandparent) == list(range(240))
    from_parent = [event["n"] for child in (3, 4) for event in door.read(child, middle[2].cursor)]
    first_half = [event["n"] for event in [*page.events, *middle[2].events, *door.read(1, page.cursor)]]
    assert sorted(first_half + from_parent) == list(range(240))


def test_p08_a_filtered_cursor_of_the_parent_works_under_the_same_filters(door: Door) -> None:
    door.create()
    publish(door, 0, 200)
    page = door.page(0, pageSizeHint=3, filter__key="k7")
    door.split(0, history="true")
    rest = [event["n"] for child in (1, 2) for event in door.read(child, page.cursor, filter__key="k7")]
    assert [event["n"] for event in page.events] + rest == list(range(7, 200, 20))
    assert door.page(1, page.cursor).answer.status_code == 400


def test_a_cursor_of_another_partition_is_refused(door: Door) -> None:
    door.create("orders", 2)
    publish(door, 0, 40)
    cursor = door.page(0, pageSizeHint=3).cursor
    door.split(0)
    assert door.page(2, cursor).answer.status_code == 400, "children of method 1 have cursors of their own"
    assert door.page(0, cursor).answer.status_code == 200


def test_p09_a_parent_stays_readable_from_the_beginning(either: Door) -> None:
    either.create()
    publish(either, 0, 100)
    before = either.read(0)
    either.split(0)
    publish(either, 100, 200)
    assert either.read(0) == before and len(before) == 100


def test_p10_an_entity_is_on_the_parent_before_and_on_one_child_after(either: Door) -> None:
    either.create()
    publish(either, 0, 100)
    either.split(0)
    publish(either, 100, 200)
    either.split(1)
    publish(either, 200, 300)
    trees = {number: by_key(either.read(number)) for number in range(5)}
    assert all(numbers == list(range(n, 100, 20)) for n, numbers in ((int(k[1:]), v) for k, v in trees[0].items()))
    assert not set(trees[1]) & set(trees[2]) and len(set(trees[1]) | set(trees[2])) == 20
    assert set(trees[3]) | set(trees[4]) == set(trees[1]) and not set(trees[3]) & set(trees[4])
    for key in trees[0]:
        chain = [*trees[0][key]]
        for number in (1, 2, 3, 4):
            chain += trees[number].get(key, [])
        assert chain == list(range(int(key[1:]), 300, 20)), "in order along the tree"


@pytest.mark.parametrize("history", ["false", "true"])
def test_a_request_that_is_repeated_after_a_split_is_still_repeated(door: Door, history: str) -> None:
    door.create("orders", 2)
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "1"}
    publish(door, 0, 60, **one)
    body = b"".join(b'{"event":{"n":%d}}\n' % n for n in range(60, 80))
    other = {"Idempotency_Key": "unkeyed", "Idempotency_Sequence": "1"}
    assert door.post(body, **other).json()["appended"] == 20
    for number in (0, 1):
        door.split(number, into=3, history=history)
    again = b"".join(b'{"event":{"n":%d,"key":"k%d"},"key":"k%d"}\n' % (n, n % 20, n % 20) for n in range(60))
    assert door.post(again, **one).json() == {"appended": 0, "repeated": 60, "last": 1}
    assert door.post(body, **other).json() == {"appended": 0, "repeated": 20, "last": 1}
    every = [event["n"] for each in door.discover()["partitions"] for event in door.read(each["id"])]
    assert sorted(every) == list(range(80))


def test_a_part_that_was_missing_is_added_after_a_split(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.log.storage.partition import Partition

    door.create("orders", 2)
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "1"}
    store = Partition._store

    def failing(self: Any, *arguments: Any) -> Any:
        if self.id == "1":
            raise OSError(5, "the disk is broken")
        return store(self, *arguments)

    body = b"".join(b'{"event":{"n":%d,"key":"k"},"key":"k%d"}\n' % (n, n % 20) for n in range(60))
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "_store", failing)
        assert door.post(body, **one).status_code == 503
    stored = len(door.read(0))
    door.split(0)
    door.split(1)
    assert door.post(body, **one).json() == {"appended": 60 - stored, "repeated": stored, "last": 1}
    every = [event["n"] for each in door.discover()["partitions"] for event in door.read(each["id"])]
    assert sorted(every) == list(range(60))


def test_publishing_goes_on_while_partitions_split(door: Door) -> None:
    import threading

    door.create()
    failures: list[str] = []

    def write(writer: int) -> None:
        import requests

        with requests.Session() as session:
            for sequence in range(40):
                first = writer * 1000 + sequence * 20
                body = b"".join(b'{"event":{"n":%d},"key":"k%d"}\n' % (n, n % 20) for n in range(first, first + 20))
                headers = {
                    "Content-Type": "application/x-ndjson",
                    "Idempotency-Key": f"writer-{writer}",
                    "Idempotency-Sequence": str(sequence),
                }
                answer = session.post(f"{door.url}/orders", data=body, headers=headers, timeout=120)
                if answer.status_code != 200:
                    failures.append(answer.text)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    for number, history in ((0, "false"), (1, "false"), (2, "false"), (3, "false")):
        answer = door.split(number, history=history)
        assert answer.status_code == 200, answer.text
    for writer in writers:
        writer.join()
    assert failures == []
    counters = door.server.server.door("feedapi").counters
    assert (counters.received, counters.refused_events) == (3 * 800, {}), "what found a home is not refused"
    every = [event["n"] for each in door.discover()["partitions"] for event in door.read(each["id"])]
    assert sorted(every) == [writer * 1000 + n for writer in range(3) for n in range(800)]


def test_references_are_numbers_for_go(doors: Doors) -> None:
    door = doors(go_numbers=True)
    door.create("orders", 2)
    door.split(0)
    door.split(1, history="true")
    found = {each["id"]: each for each in door.discover()["partitions"]}
    assert found["2"]["startsAfterPartition"] == 0 and found["4"]["cursorFromPartitions"] == [1]


@pytest.mark.parametrize("history", ["false", "true"])
def test_p34_a_split_changes_the_token(doors: Doors, history: str) -> None:
    door = doors(dialect="v2b")
    door.create()
    token = door.discover()["token"]
    door.split(0, history=history)
    assert door.get("orders/events", token=token, partition=0, cursor="_first").status_code == 409
    assert door.discover()["token"] != token


def test_version_1_after_splits(door: Door) -> None:
    door.create()
    publish(door, 0, 100)
    cursor = Page(door.get(n=1, cursor0="_first", pagesizehint=30)).cursor
    door.split(0, history="true")
    assert door.get(n=1, cursor0=cursor).status_code == 400
    pages = [Page(door.get(**{"n": 2, f"cursor{number}": cursor})) for number in (0, 1)]
    assert all({line["partition"] for line in page.lines} == {number} for number, page in enumerate(pages))
    assert sorted(event["n"] for page in pages for event in page.events) == list(range(30, 100))


@pytest.mark.parametrize("history", ["false", "true"])
def test_an_open_response_ends_when_its_partition_does(doors: Doors, history: str) -> None:
    import http.client
    from urllib.parse import urlsplit

    door = doors(checkpoint_interval_ms=200)
    door.create()
    publish(door, 0, 10)
    connection = http.client.HTTPConnection(urlsplit(door.url).netloc, timeout=120)
    connection.request("GET", "/orders?partition=0&cursor=_first&stream=y")
    response = connection.getresponse()
    while "cursor" not in json.loads(response.readline()):
        pass
    door.split(0, history=history)
    rest = response.read()
    connection.close()
    assert all("cursor" in json.loads(line) for line in rest.split(b"\n") if line)


@pytest.mark.parametrize(
    ("number", "query", "status"),
    [
        (5, {}, 404),
        (0, {"into": "1"}, 400),
        (0, {"into": "x"}, 400),
        (0, {"into": "257"}, 400),
        (0, {"history": "yes"}, 400),
    ],
)
def test_splits_that_cannot_be(door: Door, number: int, query: dict[str, str], status: int) -> None:
    door.create()
    answer = door.split(number, **query)
    assert answer.status_code == status and answer.text.count("\n") == 1
    assert len(door.discover()["partitions"]) == 1


def test_a_closed_partition_cannot_be_split_again(door: Door) -> None:
    door.create()
    door.split(0)
    assert door.split(0).status_code == 409
    assert door.split(0, name="nothing").status_code == 404


def test_all_three_doors_after_a_split(doors: Doors) -> None:
    door = doors(others=True)
    door.create("orders", 2)
    assert isinstance(door.split(0).json()["partitions"], list)
    assert set(door.server.urls) == {"amqp", "rabbitmq-stream", "feedapi"}
    publish(door, 0, 20)
    assert len([event for number in (1, 2, 3) for event in door.read(number)]) == 20


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"in_to": 3}, "did you mean into?"),
        ({"histroy": "true"}, "did you mean history?"),
        ({"partitions": 3}, "there is into, history"),
    ],
)
def test_a_partition_is_not_split_with_an_argument_that_there_is_not(
    door: Door, query: dict[str, Any], words: str
) -> None:
    door.create()
    answer = door.split(0, **query)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert [each["id"] for each in door.discover()["partitions"]] == ["0"]
