"""The spool in places that are no local folder: an object store, and one that is slow to write to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_streams.errors import PositionLost
from spark_streams.spark.feed import spool as spooling
from spark_streams.spark.feed import spool_writer, tasks
from spark_streams.spark.feed.page_file import PageFile
from spark_streams.spark.feed.spool import Spool
from spark_streams.spark.feed.spool_writer import SpoolWriter
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import parse_lines
from tests.client.feed.scripted import BadFeed, Part, Reply, numbered
from tests.spark.feed.batches import Life, values
from tests.spark.feed.object_store import SCHEME, ObjectStore

PLACE = f"{SCHEME}bucket/spools"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    made = ObjectStore()
    for module in (spooling, tasks):
        monkeypatch.setattr(module, "open_file_system", made.open)
    yield made


def test_manifests_in_an_object_store(store: ObjectStore) -> None:
    spool = Spool(PLACE, "q")
    assert spool.lasting and spool.manifest("one") is None and spool.names() == []
    spool.write_manifest("one", {"tasks": []})
    spool.write_manifest("two", {"tasks": []})
    assert Spool(PLACE, "q").manifest("two") == {"version": 2, "tasks": []}
    writer = spool.writer("page")
    writer.write(b"1\n")
    assert "page" not in spool.names()
    writer.close()
    spool.remove(["one"])
    assert spool.names() == ["page", "two"]
    spool.remove(["page", "nosuch"])
    assert list(store.objects) == ["bucket/spools/q/two"]


@pytest.mark.parametrize("place", [PLACE, f"{PLACE}/"])
def test_a_query_that_spools_to_an_object_store(
    place: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows after a restart, from the store and not from the feed, and nothing left behind."""
    monkeypatch.setattr(spool_writer, "FILE_BYTES", 2_000)
    with BadFeed({0: Part(numbered(0, 500)), 1: Part(numbered(500, 700))}, page=lambda: 60, every=7) as feed:
        with Life(feed.url, spoolLocation=place) as life:
            rows = life.until(100, 100)
            end = life.plan(100)
            planned = life.rows(end)
            assert planned and {Path(each).suffix for each in list(store.objects)} == {".events", ".json"}
        feed.faults = [Reply(b"", 500)] * 1_000
        with Life(feed.url, life.offset, spoolLocation=place) as again:
            assert again.rows(end) == planned
            feed.faults.clear()
            again.offset = end
            rows += planned
            rows += again.until(700 - len(rows), 100)
            for partition, expected in (("0", numbered(0, 500)), ("1", numbered(500, 700))):
                assert values([row for row in rows if row["partition"] == partition]) == expected
            again.batches.committed(again.offset)
        assert store.objects == {}


def test_an_object_store_that_was_emptied_is_a_loss(store: ObjectStore) -> None:
    with BadFeed({0: Part(numbered(0, 50))}) as feed:
        with Life(feed.url, spoolLocation=PLACE) as life:
            end = life.plan()
        store.objects.clear()
        with Life(feed.url, life.offset, spoolLocation=PLACE) as again, pytest.raises(PositionLost, match="manifest"):
            again.rows(end)


def test_a_place_that_is_slow_to_write_to_does_not_hold_up_who_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = b'{"event": {"n": 1}}\n{"cursor": "a"}\n'
    pages = SpoolWriter(Spool(str(tmp_path), "q"), "x")
    pages.take(parse_lines(block, Dialect.V2A), moved=True)
    begun, go_on = threading.Event(), threading.Event()
    write = PageFile.write

    def slowly(self: PageFile, piece: Any) -> None:
        begun.set()
        assert go_on.wait(120)
        write(self, piece)

    monkeypatch.setattr(PageFile, "write", slowly)
    thread = threading.Thread(target=pages.take, args=(parse_lines(block, Dialect.V2A),), kwargs={"moved": True})
    thread.start()
    try:
        assert begun.wait(120)
        counted: list[int] = []
        counting = threading.Thread(
            target=lambda: counted.extend((pages.waiting_events, pages.waiting_bytes)), daemon=True
        )
        counting.start()
        counting.join(60)  # while the other one is held
        assert counted == [1, len(block)]
    finally:
        go_on.set()
        thread.join(120)
    cut = pages.plan(None, 1 << 20)
    assert cut is not None and cut.events == 2
