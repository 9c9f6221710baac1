"""Partitions of a feed that close, split, leave and come while a query reads: their children go on where they ended."""

from __future__ import annotations

import pytest

from spark_streams.errors import (
    PositionLost,
)
from spark_streams.spark.feed import micro_batch
from tests.client.feed.scripted import BadFeed, Part, numbered
from tests.spark.feed.batches import Life, values


class TestSplits:
    def test_c11_children_start_when_the_closed_parent_is_read(self) -> None:
        with BadFeed({0: Part(numbered(0, 100))}, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            rows = values(life.until(30, limit=30))
            feed.split(0, 1, 2)
            feed.add(1, *numbered(100, 120))
            feed.add(2, *numbered(200, 220))
            while len(rows) < 140:
                batch = life.step(limit=30)
                assert not ({"0"} < {row["partition"] for row in batch}), "the parent beside its children"
                rows += values(batch)
            assert rows[:100] == numbered(0, 100)
            assert sorted(rows[100:]) == numbered(100, 120) + numbered(200, 220)
            assert life.offset["finished"] == [0]
            with Life(feed.url, life.offset) as again:
                feed.add(2, *numbered(220, 221))
                assert values(again.until(1)) == numbered(220, 221)
                assert again.still() == []

    def test_f9_without_last_cursor_two_quiet_responses_are_the_end(self) -> None:
        with BadFeed({0: Part(numbered(0, 10))}, "v2b") as feed, Life(feed.url) as life:
            life.until(10)
            feed.parts[0].tells_end = False
            feed.split(0, 1)
            feed.add(1, *numbered(10, 20))
            assert values(life.until(10)) == numbered(10, 20)

    def test_c11_unordered_children_start_at_once(self) -> None:
        with BadFeed({0: Part(numbered(0, 1_000))}, page=lambda: 10, every=10) as feed:
            feed.split(0, 1)
            feed.add(1, *numbered(5_000, 5_010))
            with Life(feed.url, ordered="false", maxBytesPerTrigger="2000") as life:
                assert "1" in life.offset["partitions"]
                rows: list[str] = []
                while "1" not in rows:
                    rows += [row["partition"] for row in life.step()]
                assert rows.count("0") < 1_000

    def test_c12_a_history_split_goes_on_behind_the_parents_cursor(self) -> None:
        with BadFeed({0: Part(numbered(0, 100))}, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            rows = values(life.until(40, limit=10))
            feed.split(0, 1, 2, history=True)
            feed.add(1, *numbered(100, 105))
            rows += values(life.until(105 - len(rows)))
            assert sorted(rows) == sorted(numbered(0, 105))
            assert life.still() == []
            assert "0" not in life.offset["partitions"]
            with Life(feed.url, life.offset) as again:
                assert again.still() == []

    def test_c12_two_splits_while_the_query_was_down(self) -> None:
        with BadFeed({0: Part(numbered(0, 100))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url) as life:
                rows = values(life.until(40, limit=10))
            feed.split(0, 1, 2, history=True)
            feed.split(2, 3, 4, history=True)
            with Life(feed.url, life.offset) as again:
                rows += values(again.until(100 - len(rows)))
                assert sorted(rows) == sorted(numbered(0, 100))
                assert again.still() == []

    def test_c12_two_splits_one_after_the_other(self) -> None:
        with BadFeed({0: Part(numbered(0, 100))}, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            rows = values(life.until(20, limit=10))
            feed.split(0, 1, 2, history=True)
            rows += values(life.until(30, limit=10))
            feed.split(2, 3, 4, history=True)
            rows += values(life.until(100 - len(rows)))
            assert sorted(rows) == sorted(numbered(0, 100))
            assert life.still() == []

    def test_f18_a_split_between_discovery_and_fetch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The planner's list of partitions is old; the fetchers are refused."""
        monkeypatch.setattr(micro_batch, "DISCOVERY_MS", 300)
        with BadFeed({0: Part(numbered(0, 100)), 5: Part()}, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            rows = values(life.until(20, limit=10))
            feed.split(0, 1, 2, history=True)
            rows += values(life.until(100 - len(rows)))
            assert sorted(rows) == sorted(numbered(0, 100))

    def test_c15_a_split_under_v2b_changes_the_token(self) -> None:
        with BadFeed({0: Part(numbered(0, 50))}, "v2b", page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            rows = values(life.until(20, limit=10))
            feed.token = "another"
            feed.split(0, 1, 2, history=True)
            rows += values(life.until(50 - len(rows)))
            assert sorted(rows) == sorted(numbered(0, 50))

    def test_c10_new_partitions_are_read_from_their_beginning(self) -> None:
        with BadFeed({0: Part(numbered(0, 5))}) as feed, Life(feed.url, startingOffsets="latest") as life:
            life.step()
            with feed.lock:
                feed.parts[7] = Part(numbered(70, 75))
            assert values(life.until(5)) == numbered(70, 75)

    def test_a_partition_that_leaves_is_a_loss(self, caplog: pytest.LogCaptureFixture) -> None:
        parts = {0: Part(numbered(0, 5)), 1: Part(numbered(10, 15))}
        with BadFeed(parts) as feed, Life(feed.url) as life:
            life.until(10)
            with feed.lock:
                del feed.parts[0]
            with pytest.raises(PositionLost, match=r"'0'.*no such partition"):
                life.still(10)
            with Life(feed.url, life.offset, failOnDataLoss="false") as again:
                feed.add(1, *numbered(15, 20))
                assert values(again.until(5)) == numbered(15, 20)
                again.still(0.2)
            assert caplog.text.count("no such partition") == 1

    def test_f15_no_partitions_yet(self) -> None:
        with BadFeed({}) as feed, Life(feed.url) as life:
            assert life.still(0.1) == []
            with feed.lock:
                feed.parts[3] = Part(numbered(0, 5))
            assert values(life.until(5)) == numbered(0, 5)
