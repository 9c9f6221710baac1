"""No door shows two things under one name: what is refused, in which order it may come, and when."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.errors import NameTaken
from spark_streams.log import ReferenceLog, Stream
from spark_streams.wire.amqp.columns.encode import encode_columns


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("orders", 2), ("orders-1", 1), "stream 'orders-1', and partition 1 of stream 'orders' has that name"),
        (("orders-1", 1), ("orders", 2), "partition 1 of stream 'orders', and stream 'orders-1' has that name"),
        (("a", 2, ["x", "y"]), ("y", 1), "stream 'y', and partition 1 of stream 'a' has that name"),
        (("y", 1), ("a", 2, ["x", "y"]), "partition 1 of stream 'a', and stream 'y' has that name"),
        (("a", 1, ["x"]), ("x", 3), "stream 'x', and partition 0 of stream 'a' has that name"),
        (("a-0", 2), ("a", 2), "partition 0 of stream 'a', and stream 'a-0' has that name"),
        (("a", 2, ["x", "y"]), ("b", 2, ["z", "y"]), "partition 1 of stream 'b', and partition 1 of stream 'a' has"),
        (("orders", 1), ("/orders", 1), "'/orders' would be the name of stream '/orders', and stream 'orders' has"),
        (("a/b", 1), ("a%2Fb", 1), "'a%2Fb' would be the name of stream 'a%2Fb', and stream 'a/b' has 'a/b'"),
        (("%61", 1), ("/a", 1), "has '%61', which addresses may mean"),
        (("/orders", 1), ("%2Forders", 1), "stream '/orders' has '/orders', which addresses may mean"),
        (("%41", 1), ("%2541", 1), "stream '%41' has '%41', which addresses may mean"),
        (("/orders-1", 1), ("orders", 2), "partition 1 of stream 'orders', and stream '/orders-1' has '/orders-1'"),
    ],
)
def test_a_name_is_taken(tmp_path: Path, first: Any, second: Any, said: str) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        create(log, first)
        for _ in range(2):
            with pytest.raises(NameTaken) as taken:
                create(log, second)
            assert said in str(taken.value) and "choose another name" in str(taken.value)
        assert [stream.name for stream in log.streams()] == [first[0]]
        log.delete_stream(first[0])
        create(log, second)
    with ReferenceLog(tmp_path / "log") as log, pytest.raises(NameTaken):
        create(log, first)


def create(log: ReferenceLog, what: tuple[Any, ...]) -> None:
    name, partitions, *names = what
    log.create_stream(name, partitions, partition_names=names[0] if names else None)


def test_names_that_nobody_is_shown_are_free(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders")
        for name in ("orders-0", "orders-x", "orders-00", "orders0"):
            log.create_stream(name)
        log.create_stream("wide", 2)
        for name in ("wide-2", "wide-01", "wide-"):
            log.create_stream(name)
        log.create_stream("self", 2, partition_names=["self", "self-b"])


@pytest.mark.parametrize("names", [[], ["a"], ["a", "a"], ["a", "b", "c"]])
def test_each_partition_gets_a_name_of_its_own(tmp_path: Path, names: list[str]) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        with pytest.raises(ValueError, match="a partition's name has 256 bytes: expected at most 255"):
            log.create_stream("long", 2, partition_names=["%25" * 85, "%25" * 85 + "x"])
        with pytest.raises(ValueError, match="expected 2 different names"):
            log.create_stream("orders", 2, partition_names=names)
        log.create_stream("a")


def test_partitions_are_not_added_under_a_taken_name(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        for name, partitions in (("orders", 1), ("orders-0", 1), ("wide", 2), ("wide-4", 1)):
            log.create_stream(name, partitions)
        with pytest.raises(NameTaken, match="partition 0 of stream 'orders', and stream 'orders-0' has"):
            log.add_partitions("orders", 1)
        for history in (False, True):
            with pytest.raises(NameTaken, match="stream 'orders-0'"):
                log.split_partition("orders", "0", 2, history=history)
            with pytest.raises(NameTaken, match="partition 4 of stream 'wide', and stream 'wide-4' has"):
                log.split_partition("wide", "0", 3, history=history)
        assert list(log.stream("orders").partitions) == ["0"] and list(log.stream("wide").partitions) == ["0", "1"]
        log.add_partitions("wide", 2)
        with pytest.raises(NameTaken):
            log.create_stream("wide-3")
        log.delete_stream("wide-4")
        log.split_partition("wide", "3", 2)
        with pytest.raises(NameTaken):
            log.create_stream("wide-5")


def test_a_partition_that_is_seen_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doors look while another thread changes a stream."""
    seen = []
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 2)
        split, found = Stream.split, log.shown

        def watched(stream: Stream, *arguments: Any, **more: Any) -> None:
            split(stream, *arguments, **more)
            seen.append([found(f"orders-{number}") == (stream, number) for number in stream.partitions])

        monkeypatch.setattr(Stream, "split", watched)
        log.split_partition("orders", "0")
        log.split_partition("orders", "1", 2, history=True)
        assert seen == [[True] * 4, [True] * 5]
        with pytest.raises(ValueError, match="closed"):
            log.split_partition("orders", "0", 3)
        log.create_stream("orders-6")


def test_the_name_of_a_partition_that_has_left_is_not_given_to_a_stream(tmp_path: Path) -> None:
    """Its readers still ask for it, and would go on reading there."""
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 2)
        log.split_partition("orders", "0", 2, history=True)
        assert list(log.stream("orders").partitions) == ["1", "2", "3"]
    with ReferenceLog(tmp_path / "log") as log, pytest.raises(NameTaken):
        log.create_stream("orders-0")


def test_given_names_are_kept_with_the_stream(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("sales", 2, partition_names=["eu", "us"])
        log.add_partitions("sales", 1)
    with ReferenceLog(tmp_path / "log") as log:
        assert log.stream("sales").partition_names == ("eu", "us")
        shown = {name: log.shown(name) for name in ("sales", "eu", "us", "sales-2", "sales-0")}
        assert {name: found and found[1] for name, found in shown.items()} == {
            "sales": None,
            "eu": "0",
            "us": "1",
            "sales-2": "2",
            "sales-0": None,
        }
        assert shown["sales-0"] is None and shown["sales"] is not None


def put_together(folder: Path, streams: dict[str, int], names: dict[str, list[str]]) -> None:
    """Make a log of streams that came from others: nothing has compared their names."""
    for place, (name, partitions) in enumerate(streams.items()):
        with ReferenceLog(folder / f"part-{place}") as log:
            stream = log.create_stream(name, partitions, partition_names=names.get(name))
            stream.partitions["0"].append(encode_columns({"value": pa.array([name.encode()])}))
        (folder / "log" / "streams").mkdir(parents=True, exist_ok=True)
        shutil.move(stream.folder, folder / "log" / "streams")


@pytest.mark.parametrize(
    ("streams", "names"),
    [
        ({"orders": 2, "orders-0": 1}, {}),
        ({"orders-1": 1, "orders": 2}, {}),
        ({"sales": 2, "eu": 1}, {"sales": ["eu", "us"]}),
        ({"/orders": 1, "orders": 1}, {}),
    ],
)
def test_a_log_that_has_such_names_says_at_the_start_what_to_do(
    tmp_path: Path, streams: dict[str, int], names: dict[str, list[str]]
) -> None:
    put_together(tmp_path, streams, names)
    with pytest.raises(NameTaken) as taken:
        ReferenceLog(tmp_path / "log")
    said = str(taken.value)
    folders = {folder.name: folder for folder in (tmp_path / "log" / "streams").iterdir()}
    assert all(f"'{name}'" in said for name in folders) and "into the folder 'streams' of another data" in said
    # As it says; and nothing of either is lost.
    one, other = streams
    (tmp_path / "other" / "streams").mkdir(parents=True)
    moved = next(
        folder for folder in folders.values() if json.loads((folder / "stream.json").read_text())["name"] == one
    )
    shutil.move(moved, tmp_path / "other" / "streams")
    for folder, name in (("log", other), ("other", one)):
        with ReferenceLog(tmp_path / folder) as log:
            (stream,) = log.streams()
            assert stream.name == name
            assert stream.partitions["0"].next_offset == 1


def test_streams_are_listed_while_others_come_and_go(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        create(log, ("orders", 1))

        class Deleted(dict[str, Any]):
            """Streams, of which another thread deletes one while they are put in order."""

            def __iter__(self) -> Iterator[str]:
                log._streams = {}
                return super().__iter__()

        there = log._streams
        log._streams = Deleted(there)
        assert [stream.name for stream in log.streams()] == ["orders"]
        log._streams = there
