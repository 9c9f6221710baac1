"""Filters of chunks: which ones pass, and that the others cost neither credit nor decoding.

A chunk without the value asked for may pass all the same, by a false positive; the values here are such that neither
the door's bloom filter nor RabbitMQ's takes one for another.

Spec: Streams Protocol Reference, Subscribe (filter.*, match-unfiltered);
docs/specifications.md, S-91, S-92.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import FIRST, LAST, filtered, offset
from tests.server.rabbitmq.consuming import delivered, firsts, grant, publish_filtered, publish_one

CHUNKS = ("apple", "pear", None, "apple", "")
"""Filter value of chunk 0, 1 …; an empty one counts as none."""


@pytest.fixture
def stream(broker: Any) -> str:
    name: str = broker.stream()
    peer = broker.peer()
    for number, value in enumerate(CHUNKS):
        publish_filtered(peer, name, value, b"%d" % number)
    publish_one(peer, name, b"5")  # Publish 1: no filter value either
    return name


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        pytest.param({"filter.0": "apple"}, [0, 3], id="one"),
        pytest.param({"filter.0": "apple", "filter.1": "pear"}, [0, 1, 3], id="two"),
        pytest.param({"filter.x": "pear"}, [1], id="any-suffix"),
        pytest.param({"filter.": "pear"}, [1], id="empty-suffix"),
        pytest.param({"filter.0": "kiwi"}, [], id="absent"),
        pytest.param({"filter.0": "pear", "match-unfiltered": "true"}, [1, 2, 4, 5], id="and-unfiltered"),
        pytest.param({"filter.0": "pear", "match-unfiltered": "false"}, [1], id="not-unfiltered"),
        pytest.param({"filter.0": "pear", "match-unfiltered": "TRUE"}, [1], id="true-is-spelt-in-one-way"),
        pytest.param({"match-unfiltered": "true"}, [0, 1, 2, 3, 4, 5], id="no-filter"),
        pytest.param({"match-unfiltered": "false"}, [0, 1, 2, 3, 4, 5], id="no-filter-at-all"),
        pytest.param({"filter": "pear", "filterx": "pear"}, [0, 1, 2, 3, 4, 5], id="other-names"),
    ],
)
def test_which_chunks_pass(broker: Any, stream: str, properties: dict[str, str], expected: list[int]) -> None:
    peer = broker.peer()
    assert peer.subscribe(1, stream, FIRST, 10, properties) == 1
    assert firsts(peer, stream) == expected


def test_a_chunk_of_many_values_passes_for_each_of_them(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    # One frame, but a broker may make several chunks of it: so each record is looked for in the chunks that come.
    values = ["apple", "pear", None]
    assert peer.declare(1, stream) == 1
    peer.publish(1, [filtered(number, value, b"x") for number, value in enumerate(values)], version=2)
    peer.confirmed(3)
    asked = [{"filter.0": "apple"}, {"filter.0": "pear"}, {"filter.0": "kiwi", "match-unfiltered": "true"}]
    for number, properties in enumerate(asked):
        assert peer.subscribe(number, stream, FIRST, 10, properties) == 1
        found = [each.first + row for each in delivered(peer, stream) for row in range(each.records)]
        assert number in found


def test_chunks_that_do_not_pass_cost_no_credit(broker: Any, stream: str) -> None:
    peer = broker.peer()
    assert peer.subscribe(1, stream, offset(1), 1, {"filter.0": "apple"}) == 1
    assert firsts(peer, stream) == [3]
    publish_filtered(peer, stream, "pear", b"6")
    grant(peer, 1, 1)
    assert firsts(peer, stream) == []
    publish_filtered(peer, stream, "apple", b"7")
    assert firsts(peer, stream) == [7]


def test_a_filter_begins_where_it_is_told_and_goes_on_with_what_comes(broker: Any, stream: str) -> None:
    peer = broker.peer()
    assert peer.subscribe(1, stream, offset(2), 10, {"filter.0": "apple"}) == 1
    assert peer.subscribe(2, stream, LAST, 10, {"filter.0": "apple"}) == 1
    assert [(each.subscription, each.first) for each in delivered(peer, stream)] == [(1, 3)]
    publish_filtered(peer, stream, "pear", b"6")
    publish_filtered(peer, stream, "apple", b"7")
    found = {(each.subscription, each.first) for each in delivered(peer, stream)}
    assert found == {(1, 7), (2, 7)}


def test_names_of_any_script_are_compared_by_their_bytes(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    for value in ("é", "e\u0301", "苹果"):
        publish_filtered(peer, stream, value, b"x")
    for number, value in enumerate(("é", "e\u0301", "苹果")):
        assert peer.subscribe(number, stream, FIRST, 10, {"filter.0": value}) == 1
        assert firsts(peer, stream) == [number]


def test_records_of_skipped_chunks_are_not_read(doors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.log import Partition

    door = doors()
    stream, peer = door.stream(), door.peer()
    for number in range(50):
        publish_filtered(peer, stream, "apple" if number == 40 else "pear", b"%d" % number)
    rows = []
    original = Partition.read

    def counted(self: Partition, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        if found is not None:
            rows.extend(found.offsets.tolist())
        return found

    monkeypatch.setattr(Partition, "read", counted)
    assert peer.subscribe(1, stream, offset(3), 10, {"filter.0": "apple"}) == 1
    assert firsts(peer, stream) == [40]
    assert rows == [40]


def test_a_door_without_filtering_delivers_everything(doors: Callable[..., Any]) -> None:
    """As RabbitMQ before 3.13 does."""
    door = doors(filtering=False)
    stream, peer = door.stream(), door.peer()
    publish_one(peer, stream, b"0")
    assert peer.subscribe(1, stream, FIRST, 10, {"filter.0": "apple"}) == 1
    assert firsts(peer, stream) == [0]


def test_many_chunks_that_do_not_pass_hold_up_nobody(doors: Callable[..., Any]) -> None:
    """More than one turn skips: deliveries still come before the next answer, and another connection is served."""
    door = doors()
    stream, other = door.stream(), door.peer()
    partition = door.partition(stream)

    def fill() -> None:
        for number in range(3000):
            partition.append([b"%d" % number])
        partition.append([b"match"], notes=[(b"rabbitmq-bloom", b"\xff" * 16)])

    door.server.call(fill)
    peer = door.peer()
    assert peer.subscribe(1, stream, FIRST, 1, {"filter.0": "apple"}) == 1
    assert firsts(peer, stream) == [3000]
    assert other.subscribe(1, stream, LAST, 1) == 1
    assert firsts(other, stream) == [3000]
