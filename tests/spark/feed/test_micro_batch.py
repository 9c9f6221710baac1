"""The micro-batches of a stream: each event once, the same rows on each retry, nothing downloaded twice."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from spark_streams.errors import (
    CheckpointError,
    PositionLost,
    SpoolLost,
)
from spark_streams.spark.feed import micro_batch, page_fetchers, spool_writer
from tests.client.feed.scripted import BadFeed, Part, Reply, numbered
from tests.spark.feed.batches import WAIT_S, Life, values


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


class TestEachEventOnce:
    @pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
    def test_of_a_feed_that_misbehaves(self, dialect: str, tmp_path: Path) -> None:
        chance = random.Random(5)
        parts = {p: Part(numbered(p * 1_000, p * 1_000 + 300)) for p in range(3)}
        with BadFeed(parts, dialect, page=lambda: chance.randint(1, 70), every=7) as feed:
            feed.same_cursors = False
            feed.empty_pages = 2
            feed.unknown_lines = True
            feed.uncovered = 3
            feed.cuts = [1, 30, 333, 800, 801]
            more = {"partitions": "3"} if dialect == "v1" else {}
            with Life(feed.url, spoolLocation=str(tmp_path), **more) as life:
                rows = life.until(900, limit=100)
                assert sorted(values(rows)) == sorted(e for p in range(3) for e in numbered(p * 1_000, p * 1_000 + 300))
                for partition in range(3):
                    mine = values([row for row in rows if row["partition"] == str(partition)])
                    assert mine == numbered(partition * 1_000, partition * 1_000 + 300)
                assert life.still() == []

    def test_of_a_feed_whose_last_lines_have_no_newline(self, tmp_path: Path) -> None:
        with BadFeed({0: Part(numbered(0, 100))}, page=lambda: 7, every=3) as feed:
            feed.bare_end = True
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                assert values(life.until(100)) == numbered(0, 100)
                assert feed.served == 100

    def test_nothing_is_downloaded_twice(self, tmp_path: Path) -> None:
        with BadFeed({0: Part(numbered(0, 1_000)), 1: Part(numbered(0, 500))}, page=lambda: 33, every=5) as feed:
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                assert len(life.until(1_500, limit=50)) == 1_500
                assert feed.served == 1_500
                feed.add(0, *numbered(1_000, 1_010))
                life.until(10)
                assert feed.served == 1_510
            served = feed.served
            with Life(feed.url, life.offset, spoolLocation=str(tmp_path)) as again:
                feed.add(1, *numbered(500, 510))
                assert values(again.until(10)) == numbered(500, 510)
                assert feed.served == served + 10

    def test_the_newest_offset_tells_how_far_each_partition_is(self) -> None:
        parts = {0: Part(numbered(0, 30)), 1: Part(numbered(100, 110))}
        with BadFeed(parts, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            assert len(life.until(40)) == 40
            deadline = time.monotonic() + WAIT_S
            while None in (newest := life.batches.newest())["lag"].values():
                assert time.monotonic() < deadline, newest
                time.sleep(0.01)
            assert newest["partitions"] == life.offset["partitions"]
            assert newest["fetched"] == newest["lag"] == {"0": 0, "1": 0}
            assert newest["planned"]["events"].keys() <= {"0", "1"}

    def test_c08_events_behind_the_last_cursor_are_not_emitted(self) -> None:
        body = b'{"event": {"n": 0}}\n{"cursor": "a"}\n{"event": {"n": 1}}\n{"event": {"n": 2}}\n'
        with BadFeed({0: Part()}) as feed:
            feed.faults = [Reply(body), *[Reply(b'{"cursor": "a"}\n')] * 10_000]
            with Life(feed.url) as life:
                assert values(life.until(1)) == [b'{"n": 0}']
                assert life.still() == []
                assert life.offset["partitions"] == {"0": {"after": "a"}}

    def test_what_the_feed_repeats_is_repeated(self) -> None:
        with BadFeed({0: Part(numbered(0, 20))}, page=lambda: 10, every=10) as feed:
            feed.repeated = 2
            with Life(feed.url) as life:
                assert values(life.until(22)) == numbered(0, 10) + numbered(8, 20)

    def test_events_whose_cursor_does_not_move_are_not_dropped(self) -> None:
        same = b'{"cursor": "same"}\n'
        with BadFeed({0: Part()}) as feed:
            feed.faults = [Reply(same)] * 2 + [Reply(b'{"event": {"n": 1}}\n' + same)] + [Reply(same)] * 10_000
            with Life(feed.url) as life:
                assert values(life.until(1)) == [b'{"n": 1}']

    def test_a_large_stretch_without_a_checkpoint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spool_writer, "HELD_BYTES", 500)
        monkeypatch.setattr(spool_writer, "FILE_BYTES", 3_000)
        with BadFeed({0: Part(numbered(0, 2_000))}, page=lambda: 1_000, every=300) as feed:
            feed.cuts = [9_000, 15_000]
            with Life(feed.url) as life:
                assert values(life.until(2_000, limit=150)) == numbered(0, 2_000)

    def test_c07_cursors_that_move_without_events_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(micro_batch, "IDLE_CURSORS_S", 0.05)
        with BadFeed({0: Part(numbered(0, 1))}) as feed, Life(feed.url) as life:
            life.until(1)
            feed.faults = [Reply(b'{"cursor": "moved"}\n')] * 10_000
            deadline = time.monotonic() + 240
            while life.offset["partitions"] != {"0": {"after": "moved"}}:
                assert life.step() == [] and time.monotonic() < deadline
            end = life.offset
            assert life.still() == [] and life.offset == end


class TestPlanned:
    def test_a_range_has_the_same_rows_each_time_and_after_a_restart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though the feed never answers the same twice."""
        monkeypatch.setattr(page_fetchers, "GATHER_S", 600.0)
        with BadFeed({0: Part(numbered(0, 90)), 1: Part(numbered(0, 50))}, page=lambda: 40, every=20) as feed:
            feed.shuffled = True
            feed.same_cursors = False
            with Life(feed.url, spoolLocation=str(tmp_path), minPartitions="5") as life:
                before = len(life.step(limit=20))
                end = life.plan()
                first = life.rows(end)
                assert len(first) > 10 and life.rows(end) == first
                assert len(life.tasks(end)) >= 2
            feed.faults = [Reply(b"", 500)] * 1_000
            with Life(feed.url, life.offset, spoolLocation=str(tmp_path)) as again:
                assert again.rows(end) == first
                feed.faults.clear()
                again.offset = end
                assert len(again.until(140 - before - len(first))) == 140 - before - len(first)

    def test_asked_for_twice_it_is_the_same(self) -> None:
        with BadFeed({0: Part(numbered(0, 90))}, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            end = life.plan(10)
            assert life.plan(10) == end
            assert values(life.step(10)) == numbered(0, 10)
            assert values(life.step(10)) == numbered(10, 20)

    def test_a_batch_that_a_restart_repeats_has_its_line_with_its_events(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "spark_streams.spark.progress")
        with BadFeed({0: Part(numbered(0, 20))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                before, end = life.offset, life.plan(20)
                rows = life.rows(end)
            with Life(feed.url, before, spoolLocation=str(tmp_path)) as again:
                assert again.rows(end) == rows and rows
        first, repeated = (line.partition("batch of ")[2] for line in caplog.messages)
        assert first.startswith(f"{len(rows)} events, ") and repeated == f"{len(rows)} events"

    def test_the_spool_is_removed_once_committed(self, tmp_path: Path) -> None:
        with BadFeed({0: Part(numbered(0, 50))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                life.until(50, limit=10)
                before = files(tmp_path)
                assert any(each.name.startswith("batch-") for each in before)
                life.batches.committed(life.offset)
                assert files(tmp_path) == []
                feed.add(0, *numbered(50, 60))
                life.until(10)
                assert files(tmp_path) != []
            with Life(feed.url, life.offset, spoolLocation=str(tmp_path)) as again:
                assert again.still(0.1) == []
                left = files(tmp_path)
                assert not any(each.name.startswith("batch-") for each in left)

    def test_f13_a_lost_temporary_spool_is_fetched_again_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        with BadFeed({0: Part(numbered(0, 50)), 1: Part(numbered(0, 9))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url) as life:
                before = len(life.step(20))
                end = life.plan(20)
                first = life.rows(end)
            assert caplog.text.count("option 'spoolLocation' is not set") == 1
            assert "fetched again:" not in caplog.text
            feed.add(0, *numbered(50, 60))
            with Life(feed.url, life.offset) as again:
                assert again.rows(end) == first
                assert "are lost, they are fetched again" in caplog.text
                again.offset = end
                assert len(again.until(69 - before - len(first))) == 69 - before - len(first)

    def test_a_lost_micro_batch_of_a_partition_that_has_left_is_a_loss(self, caplog: pytest.LogCaptureFixture) -> None:
        with BadFeed({0: Part(numbered(0, 50)), 1: Part(numbered(0, 9))}) as feed:
            with Life(feed.url) as life:
                end = life.plan()
            feed.split(0, 2, 3, history=True)
            with (
                Life(feed.url, life.offset) as again,
                pytest.raises(PositionLost, match=r"'0'.*no such partition any more"),
            ):
                again.rows(end)
            with Life(feed.url, life.offset, failOnDataLoss="false") as again:
                assert values(again.rows(end)) == numbered(0, 9)
            assert "no such partition any more" in caplog.text

    def test_a_lost_lasting_spool_is_a_loss(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with BadFeed({0: Part(numbered(0, 50))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                end = life.plan(20)
                first = life.rows(end)
            shutil.rmtree(tmp_path)
            with (
                Life(feed.url, life.offset, spoolLocation=str(tmp_path)) as again,
                pytest.raises(PositionLost, match=r"manifest.*failOnDataLoss"),
            ):
                again.rows(end)
            with Life(feed.url, life.offset, spoolLocation=str(tmp_path), failOnDataLoss="false") as again:
                assert again.rows(end) == first
            assert "are lost" in caplog.text

    @pytest.mark.parametrize("failing", ["true", "false"])
    def test_a_manifest_of_another_query_with_a_copy_of_the_checkpoint_is_not_read(
        self, tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each plans a micro-batch of the same number, and they end at other cursors."""
        monkeypatch.setattr(page_fetchers, "GATHER_S", 600.0)  # a slow machine plans as much
        with BadFeed({0: Part(numbered(0, 90))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                life.step(10)
                copied, end = life.offset, life.plan(20)
                assert values(life.rows(end)) == numbered(10, 30)
            with Life(feed.url, copied, spoolLocation=str(tmp_path)) as copy:
                assert values(copy.rows(copy.plan(50))) == numbered(10, 60)
            with Life(feed.url, life.offset, spoolLocation=str(tmp_path), failOnDataLoss=failing) as again:
                if failing == "true":
                    with pytest.raises(PositionLost, match=r"manifest.*copy of this checkpoint"):
                        again.rows(end)
                else:
                    assert values(again.rows(end)) == numbered(10, 30)

    def test_a_page_that_was_cut_is_told(self, tmp_path: Path) -> None:
        with BadFeed({0: Part(numbered(0, 50))}) as feed, Life(feed.url, spoolLocation=str(tmp_path)) as life:
            end = life.plan()
            page = next(each for each in files(tmp_path) if each.suffix == ".events")
            page.write_bytes(page.read_bytes()[:100])
            with pytest.raises(SpoolLost, match="100 bytes"):
                life.rows(end)
            page.unlink()
            with pytest.raises(SpoolLost, match="spoolLocation"):
                life.rows(end)

    def test_nothing_left_behind_by_a_run_that_crashed_is_read(self, tmp_path: Path) -> None:
        with BadFeed({0: Part(numbered(0, 30))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url, spoolLocation=str(tmp_path)) as life:
                life.step(10)
                life.plan(10)  # Spark never heard of it
            with Life(feed.url, life.offset, spoolLocation=str(tmp_path)) as again:
                assert values(again.until(20)) == numbered(10, 30)

    @pytest.mark.parametrize(
        ("before", "after"), [({}, {"filter-subject": "a"}), ({"filter-subject": "a"}, {"filter-subject": "b"})]
    )
    def test_c13_a_restart_with_other_filters_is_an_error(self, before: dict[str, str], after: dict[str, str]) -> None:
        with BadFeed({0: Part(numbered(0, 3))}) as feed:
            feed.filters = ("subject",)
            with Life(feed.url, **before) as life:
                life.until(3)
            with Life(feed.url, life.offset, **after) as again, pytest.raises(CheckpointError, match="filter-subject"):
                again.plan()

    def test_latest_is_a_real_cursor_before_the_first_batch(self) -> None:
        with BadFeed({0: Part(numbered(0, 3)), 1: Part()}) as feed, Life(feed.url, startingOffsets="latest") as life:
            start = life.offset
            assert start["partitions"] == {str(p): {"after": feed.cursor(p, 3 if p == 0 else 0)} for p in (0, 1)}
            assert life.batches.initial() == start
            feed.add(0, *numbered(3, 5))
            assert values(life.until(2)) == numbered(3, 5)

    def test_the_first_plan_is_made_without_events_too(self) -> None:
        """Only then does the checkpoint hold where the query began."""
        with BadFeed({0: Part()}) as feed, Life(feed.url, startingOffsets="latest") as life:
            assert life.plan() != life.offset
            assert life.step() == []
            assert life.plan() == life.offset
