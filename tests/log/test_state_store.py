"""The log's state store: many values at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.log.state_store import StateStore


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(tmp_path / "state")
    yield store
    store.close()


def test_many_values_are_set_at_once(state: StateStore) -> None:
    state.put("a", "1", b"old")
    state.put_all("a", {"1": b"one", "2": b"two", "3": b""})
    state.put_all("a", {})
    assert state.items("a") == [("1", b"one"), ("2", b"two"), ("3", b"")]


def test_all_of_them_or_none(state: StateStore) -> None:
    state.put("a", "1", b"old")
    with pytest.raises(sqlite3.Error):
        state.put_all("a", {"1": b"new", b"a blob": b"x", ("no", "key"): b"x"})  # type: ignore[dict-item]
    assert state.items("a") == [("1", b"old")]
    state.put("a", "2", b"and it goes on")


def test_values_are_deleted_by_the_beginning_of_their_keys_a_few_at_a_time(state: StateStore) -> None:
    kept = ["stream", "stream.", "stream0", "streal/9", "Stream/1"]
    state.put_all("a", {key: b"" for key in [*kept, "stream/", *(f"stream/{n}" for n in range(10))]})
    state.put("b", "stream/1", b"")
    assert [state.delete_some("a", "stream/", 4) for _ in range(4)] == [4, 4, 3, 0]
    assert {key for key, _ in state.items("a")} == set(kept)
    assert state.items("b") == [("stream/1", b"")]


def test_a_walk_yields_all_a_few_at_a_time(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")
    store.put_all("here", {f"key {number:02}": b"%d" % number for number in range(10)})
    store.put("elsewhere", "key 00", b"another")
    for at_once in (1, 3, 5, 10, 100):
        assert list(store.walk("here", at_once)) == store.items("here")
    walk = store.walk("here", 5)
    assert [next(walk) for _ in range(5)][-1] == ("key 04", b"4")
    store.delete("here", "key 05")
    store.put("here", "key 99", b"late")
    assert [key for key, _ in walk] == ["key 06", "key 07", "key 08", "key 09", "key 99"]
    assert list(store.walk("nowhere")) == []
    store.close()


def test_a_walk_goes_past_what_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = StateStore(tmp_path / "state")
    store.put_all("here", {f"key {number}": b"%d" % number for number in range(4)})
    with store._use() as db:
        db.execute("UPDATE state SET value=zeroblob(5) WHERE key='key 0'")
        db.execute("UPDATE state SET key=CAST(x'6b657920ff' AS TEXT) WHERE key='key 3'")
    for at_once in (1, 2, 100):
        assert list(store.walk("here", at_once)) == [("key 1", b"1"), ("key 2", b"2")]
    assert ["does not pass its CRC-32C" in text for text in caplog.messages] == [True, True], "each once"
    store.close()
