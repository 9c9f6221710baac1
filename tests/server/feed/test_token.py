"""Version 2b's token: P-33, P-34."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.feed.conftest import Door


@pytest.fixture
def door(doors: Callable[..., Door]) -> Door:
    started = doors(dialect="v2b")
    started.create("orders", 2)
    started.numbers(0, 3)
    return started


def test_p33_another_token_or_none_is_a_conflict(door: Door) -> None:
    token = door.discover()["token"]
    where = {"partition": 0, "cursor": "_first"}
    assert door.get("orders/events", token=token, **where).status_code == 200
    for query in ({"token": token[:-1]}, {"token": ""}, {"token": token + " "}, {}):
        assert door.get("orders/events", **query, **where).status_code == 409


def test_p33_a_token_is_known_before_anything_else_about_partitions(door: Door) -> None:
    # A partition that has left after a split is 409, so that clients ask again, not 400.
    assert door.get("orders/events", token="old", partition=77, cursor="_first").status_code == 409


def test_p34_the_token_of_all_partitions_changes_at_once(door: Door) -> None:
    token = door.discover()["token"]
    door.server.call(lambda: door.log.add_partitions("orders", 1))
    assert door.discover()["token"] != token
    for partition in (0, 1, 2):
        assert door.get("orders/events", token=token, partition=partition, cursor="_first").status_code == 409
        assert door.page(partition).answer.status_code == 200


def test_the_token_stays_while_partitions_do(door: Door) -> None:
    token = door.discover()["token"]
    door.numbers(3, 9)
    assert door.discover()["token"] == token


def test_version_2a_is_not_served_there(door: Door) -> None:
    assert door.get("orders", partition=0, cursor="_first").status_code == 400
    assert door.get("orders", partition=0, cursor="_first", token=door.discover()["token"]).status_code == 400


def test_streaming_is_gone_in_version_2b(door: Door) -> None:
    assert door.page(stream=60_000).events == [{"n": 0}, {"n": 1}, {"n": 2}], "an argument like any other unknown one"
