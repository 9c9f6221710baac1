"""The micro-batches of a stream: each event once, the same rows on each retry, nothing downloaded twice."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from spark_streams.client.retry import Backoff
from spark_streams.errors import (
    AuthenticationFailed,
    CheckpointError,
    NotFound,
    PositionLost,
    RemoteProtocolError,
    SparkStreamsError,
    SpoolLost,
)
from spark_streams.spark.feed import micro_batch, page_fetchers, spool_writer
from spark_streams.spark.feed import page_fetcher as following
from tests.client.feed.scripted import BadFeed, Part, Reply, numbered
from tests.spark.feed.batches import WAIT_S, Life, together, values


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

    def test_a_page_that_was_cut_is_told(self, tmp_path: Path) -> None:
        with BadFeed({0: Part(numbered(0, 50))}) as feed, Life(feed.url, spoolLocation=str(tmp_path)) as life:
            end = life.plan()
            page = next(each for each in files(tmp_path) if each.suffix == ".ndjson")
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


class TestLimits:
    def test_max_offsets_per_trigger(self) -> None:
        parts = {p: Part(numbered(0, 200)) for p in range(3)}
        with BadFeed(parts, page=lambda: 200, every=5) as feed, Life(feed.url) as life:
            sizes = []
            while sum(sizes) < 600:
                sizes.append(len(life.step(60)))
            assert max(sizes) <= 60 and len(sizes) >= 10

    def test_one_checkpoint_is_taken_whole(self) -> None:
        with BadFeed({0: Part(numbered(0, 200))}, page=lambda: 100, every=50) as feed, Life(feed.url) as life:
            assert [len(life.step(7)) for _ in range(4)] == [50] * 4

    def test_what_another_partition_took_leaves_no_room_for_a_whole_checkpoint(self) -> None:
        with (
            BadFeed({p: Part(numbered(0, 30)) for p in range(2)}, page=lambda: 10, every=10) as feed,
            Life(feed.url) as life,
        ):
            assert len(life.until(10, 12)) == 10
            deadline = time.monotonic() + WAIT_S
            while sum(life.batches.newest()["fetched"].values()) < 50:  # so that both have something
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert [len(life.step(12)) for _ in range(5)] == [10] * 5

    def test_max_bytes_per_trigger_also_bounds_what_is_read_ahead(self) -> None:
        event = b'{"x": "%b"}' % (b"x" * 1_000)
        with (
            BadFeed({0: Part([event] * 1_000), 1: Part([event] * 1_000)}, page=lambda: 10, every=1) as feed,
            Life(feed.url, maxBytesPerTrigger="20000") as life,
        ):
            first = len(life.step())
            assert 1 <= first <= 25
            time.sleep(0.3)
            # A page of ten may come for each partition when there was room left.
            assert feed.served <= first + 20 + 20 + 20
            assert len(life.until(300)) >= 300

    def test_max_offsets_per_trigger_also_bounds_what_is_read_ahead(self) -> None:
        parts = {p: Part(numbered(0, 1_000)) for p in range(2)}
        with (
            BadFeed(parts, page=lambda: 10, every=5) as feed,
            Life(feed.url, maxOffsetsPerTrigger="20") as life,
        ):
            read = 0
            for _ in range(5):
                read += len(life.step(20))
                assert feed.served <= read + 2 * (20 + 10)
            time.sleep(0.3)
            assert feed.served <= read + 2 * (20 + 10)
            assert len(life.until(2_000 - read, 20)) == 2_000 - read

    def test_a_response_without_an_end_is_read_no_further_ahead(self) -> None:
        event = b'{"x": "%b"}' % (b"x" * 10_000)
        with BadFeed({0: Part([event] * 4_000)}, page=lambda: 4_000, every=10) as feed:

            def endless() -> object:
                for n in range(0, 4_000, 10):
                    for _ in range(10):
                        yield feed.event(0, event)
                    yield feed.checkpoint(0, n + 10)

            feed.faults = [Reply(endless(), chunked=True)]  # type: ignore[arg-type]
            with Life(feed.url, maxBytesPerTrigger="1000000") as life:
                first = len(life.step())
                assert 10 <= first <= 200
                time.sleep(0.5)
                assert feed.served < 2_500  # what the sockets hold comes on top
                assert len(life.until(4_000 - first)) == 4_000 - first
                assert [each["cursor"] for each in feed.fetches].count("_first") == 1 and feed.served == 4_000

    def test_no_partition_is_left_out_under_a_limit_of_bytes(self) -> None:
        event = b'{"x": "%b"}' % (b"x" * 1_000)
        parts = {0: Part([event] * 500), 1: Part(numbered(0, 3))}
        with BadFeed(parts, page=lambda: 50, every=50) as feed, Life(feed.url, maxBytesPerTrigger="1000") as life:
            seen: set[str] = set()
            for _ in range(4):
                seen |= {row["partition"] for row in life.step()}
            assert seen == {"0", "1"}

    def test_min_offsets_per_trigger_waits_until_the_delay(self) -> None:
        with BadFeed({0: Part(numbered(0, 5))}) as feed:
            now = [0.0]
            with Life(feed.url, minOffsetsPerTrigger="10", maxTriggerDelay="1000000") as life:
                life.batches = micro_batch.FeedBatches(life.options, clock=lambda: now[0])
                for _ in range(20):
                    assert life.plan() == life.offset
                feed.add(0, *numbered(5, 10))
                assert len(life.until(10)) == 10
                feed.add(0, *numbered(10, 13))
                time.sleep(0.2)
                assert life.plan() == life.offset
                now[0] += 1_000
                assert values(life.until(3)) == numbered(10, 13)

    def test_min_partitions_splits_at_checkpoints(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_fetchers, "GATHER_S", 600.0)
        with (
            BadFeed({0: Part(numbered(0, 400)), 1: Part(numbered(0, 40))}, page=lambda: 100, every=10) as feed,
            Life(feed.url, minPartitions="6", spoolLocation=str(tmp_path)) as life,
        ):
            deadline = time.monotonic() + 240
            end = life.plan()
            assert time.monotonic() < deadline
            tasks = life.tasks(end)
            assert len(tasks) == 6
            assert sorted(values(life.rows(end))) == sorted(numbered(0, 400) + numbered(0, 40))


class TestAvailableNow:
    def test_ends_with_what_was_there(self) -> None:
        def more() -> None:
            feed.add(0, *numbered(50, 70))

        with BadFeed({0: Part(numbered(0, 50)), 1: Part()}, page=lambda: 10, every=10) as feed, Life(feed.url) as life:
            assert [values(batch) for batch in life.available_now(20, more)] == [
                numbered(0, 20),
                numbered(20, 40),
                numbered(40, 50),
            ]
            feed.add(1, *numbered(0, 10))
            with Life(feed.url, life.offset) as again:
                assert sorted(together(again.available_now())) == sorted(numbered(50, 70) + numbered(0, 10))
            with Life(feed.url, again.offset) as last:
                assert together(last.available_now()) == []

    def test_a_run_that_ends_where_it_starts_reads_nothing_that_comes_later(self) -> None:
        with BadFeed({0: Part(numbered(0, 10))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url) as life:
                assert together(life.available_now()) == numbered(0, 10)
            with Life(feed.url, life.offset) as again:
                assert together(again.available_now(meanwhile=lambda: feed.add(0, *numbered(10, 20)))) == []

    def test_of_an_empty_feed(self) -> None:
        with BadFeed({0: Part()}) as feed, Life(feed.url) as life:
            assert together(life.available_now()) == []

    @pytest.mark.parametrize("tells_end", [True, False])
    def test_reads_a_closed_partition_and_its_children(self, tells_end: bool) -> None:
        with BadFeed({0: Part(numbered(0, 20), tells_end=tells_end)}, page=lambda: 10, every=10) as feed:
            feed.split(0, 1, 2)
            feed.add(1, *numbered(100, 110))
            feed.add(2, *numbered(200, 210))
            with Life(feed.url) as life:
                rows = together(life.available_now())
                assert rows[:20] == numbered(0, 20)
                assert sorted(rows[20:]) == numbered(100, 110) + numbered(200, 210)

    def test_does_not_end_early_in_a_backlog_that_a_filter_passes_over(self) -> None:
        with BadFeed({0: Part(numbered(0, 1))}) as feed, Life(feed.url) as life:
            feed.cursor(0, 1)
            feed.faults = [Reply(feed.checkpoint(0, 1))] + [Reply(b'{"cursor": "m%d"}\n' % n) for n in range(60)]
            feed.faults += [Reply(b'{"event": {"n": 7}}\n' + feed.checkpoint(0, 1))]
            assert together(life.available_now()) == [b'{"n": 7}']


class TestLongPolls:
    def test_events_come_without_the_poll_interval(self) -> None:
        with BadFeed({0: Part(numbered(0, 5))}) as feed:
            feed.stream = True
            with Life(feed.url, pollInterval="600000") as life:
                assert values(life.until(5)) == numbered(0, 5)
                for n in range(5, 15):
                    feed.add(0, *numbered(n, n + 1))
                    assert values(life.until(1)) == numbered(n, n + 1)
                assert any(each["stream"] == str(following.LONG_POLL_MS) for each in feed.fetches if "stream" in each)
                assert len(feed.fetches) <= 5

    def test_a_follower_that_pauses_is_told_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told = following.PageFetcher.long_polls

        def late(follower: following.PageFetcher) -> None:
            deadline = time.monotonic() + 240
            while not follower.idle:
                assert time.monotonic() < deadline
                follower.wait_for_change(0.05)
            time.sleep(0.1)  # it is in its pause of ten minutes now
            told(follower)

        monkeypatch.setattr(following.PageFetcher, "long_polls", late)
        with BadFeed({0: Part(numbered(0, 5))}) as feed:
            feed.stream = True
            with Life(feed.url, pollInterval="600000") as life:
                assert values(life.until(5)) == numbered(0, 5)
                feed.add(0, *numbered(5, 6))
                assert values(life.until(1)) == numbered(5, 6)

    def test_a_feed_that_takes_no_notice_is_not_asked_in_a_row(self) -> None:
        with BadFeed({0: Part(numbered(0, 5))}) as feed:
            feed.stream = feed.stream_ignored = True
            with Life(feed.url, pollInterval="100") as life:
                life.until(5)
                before = len(feed.fetches)
                life.still(0.5)
                assert len(feed.fetches) - before <= 8

    def test_a_partition_that_leaves_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(following, "LONG_POLL_MS", 3_600_000)
        with BadFeed({0: Part(numbered(0, 10))}) as feed:
            feed.stream = feed.waiting_for_ever = True  # the server does not end the response
            with Life(feed.url) as life:
                life.until(10)
                deadline = time.monotonic() + 240
                while "stream" not in feed.fetches[-1]:
                    assert life.still(0.05) == [] and time.monotonic() < deadline
                feed.split(0, 1, 2, history=True)
                feed.add(1, *numbered(10, 12))
                assert values(life.until(2)) == numbered(10, 12)

    def test_are_not_used_where_they_are_not_offered(self) -> None:
        with BadFeed({0: Part(numbered(0, 5))}) as feed, Life(feed.url) as life:
            life.until(5)
            life.still(0.1)
            assert not any("stream" in each for each in feed.fetches)


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
        """The planner's list of partitions is old; the followers are refused."""
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


class TestFaults:
    def test_what_passes_is_not_noticed(self) -> None:
        with BadFeed({0: Part(numbered(0, 30))}, page=lambda: 10, every=10) as feed:
            feed.faults = [
                Reply(b"", 500),
                Reply(b"", 429, headers={"Retry-After": "0"}),
                Reply(b"{", 200),
                Reply(b'{"event": {}}\nInternal server error\n'),
            ]
            with Life(feed.url) as life:
                assert values(life.until(30)) == numbered(0, 30)

    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (Reply(b"who are you", 401), AuthenticationFailed),
            (Reply(b"<html>Sign in", kind="text/html"), RemoteProtocolError),
            (Reply(b'{"event": {"n": 1}}\n'), RemoteProtocolError),
        ],
    )
    def test_what_does_not_is_raised_at_the_next_trigger(self, reply: Reply, kind: type[SparkStreamsError]) -> None:
        with BadFeed({0: Part(numbered(0, 30)), 1: Part()}) as feed, Life(feed.url) as life:
            life.until(30)
            feed.faults = [reply] * 1_000
            with pytest.raises(kind, match=r"127\.0\.0\.1"):
                life.still(20)
            for thread in life.batches._followers.each.values():
                thread.join(60)  # half of what a request may take
                assert not thread.is_alive()

    def test_events_that_are_gone_are_a_loss(self, caplog: pytest.LogCaptureFixture) -> None:
        with BadFeed({0: Part(numbered(0, 30))}) as feed:
            feed.page = lambda: 12
            with Life(feed.url) as life:
                assert len(life.step(limit=12)) == 12
            feed.page, feed.gone = lambda: 100, {12}
            with Life(feed.url, life.offset) as again, pytest.raises(PositionLost, match="gone"):
                again.still(10)
            with Life(feed.url, life.offset, failOnDataLoss="false") as again:
                assert values(again.until(30)) == numbered(0, 30)
            assert "gone" in caplog.text

    @pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
    def test_a_feed_that_was_made_anew_is_read_from_its_beginning(
        self, dialect: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        more = {"partitions": "2"} if dialect == "v1" else {}
        with BadFeed({p: Part(numbered(p, p + 30)) for p in range(2)}, dialect) as feed:
            with Life(feed.url, failOnDataLoss="false", **more) as life:
                life.until(60)
                feed.make_anew({0: Part(numbered(100, 105)), 1: Part(numbered(200, 203))})
                assert sorted(values(life.until(8))) == [*numbered(100, 105), *numbered(200, 203)]
                assert life.still() == []
            losses = [each.message for each in caplog.records if "going on with what is left" in each.message]
            assert len(losses) == 2 and all("status 400: no such cursor" in each for each in losses)
            with Life(feed.url, life.offset, failOnDataLoss="true", **more) as again:
                feed.add(0, *numbered(105, 107))
                assert values(again.until(2)) == numbered(105, 107), "the cursors are those of the new feed"

    def test_a_feed_that_was_made_anew_is_an_error(self) -> None:
        with BadFeed({0: Part(numbered(0, 30))}) as feed, Life(feed.url) as life:
            life.until(30)
            feed.make_anew({0: Part(numbered(100, 105))})
            with pytest.raises(PositionLost, match=r"status 400: no such cursor.*failOnDataLoss"):
                life.still(WAIT_S)

    def test_a_feed_that_was_made_anew_between_two_runs(self) -> None:
        with BadFeed({0: Part(numbered(0, 30))}) as feed:
            with Life(feed.url) as life:
                life.until(30)
            feed.make_anew({0: Part(numbered(100, 105))})
            with Life(feed.url, life.offset) as again, pytest.raises(PositionLost, match="no such cursor"):
                again.still(WAIT_S)
            with Life(feed.url, life.offset, failOnDataLoss="false") as again:
                assert together(again.available_now()) == numbered(100, 105)

    def test_a_feed_that_is_not_there_for_a_moment_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        patient = Backoff(attempts=8, first_ms=1, limit_ms=5)
        monkeypatch.setattr(following, "PATIENT", patient)
        with BadFeed({0: Part(numbered(0, 30))}) as feed, Life(feed.url, failOnDataLoss="false") as life:
            life.batches._client._backoff = patient
            life.until(30)
            feed.make_anew({0: Part(numbered(100, 105))}, gone_for=3)
            assert values(life.until(5)) == numbered(100, 105)

    def test_a_feed_that_is_not_there_is_an_error(self) -> None:
        with BadFeed({0: Part(numbered(0, 30))}) as feed, Life(feed.url) as life:
            life.until(30)
            feed.make_anew({0: Part(numbered(100, 105))}, gone_for=1_000)
            with pytest.raises(NotFound, match="status 404"):
                life.still(WAIT_S)

    def test_one_that_never_was_there_is_an_error_at_once(self) -> None:
        with BadFeed({0: Part()}) as feed:
            feed.discovery_faults = [Reply(b"there is no such feed\n", 404)] * 1_000
            with pytest.raises(NotFound, match="status 404"):
                Life(feed.url, failOnDataLoss="false")
            assert len(feed.asked) == 1

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_partition_that_was_read_to_its_end_and_is_open_again(self, restarted: bool) -> None:
        with BadFeed({0: Part(numbered(0, 30), closed=True), 1: Part(numbered(50, 60))}) as feed:
            with Life(feed.url, failOnDataLoss="false") as life:
                life.until(40)
                while life.offset.get("finished") != [0]:
                    life.step()
                feed.make_anew({0: Part(numbered(100, 105)), 1: Part(numbered(200, 203))})
                if not restarted:
                    assert sorted(values(life.until(8))) == [*numbered(100, 105), *numbered(200, 203)]
                    feed.add(0, *numbered(105, 107))
                    assert values(life.until(2)) == numbered(105, 107)
                    assert "finished" not in life.offset
            if restarted:
                with Life(feed.url, life.offset) as failing, pytest.raises(PositionLost):
                    failing.still(WAIT_S)
                with Life(feed.url, life.offset, failOnDataLoss="false") as again:
                    assert sorted(values(again.until(8))) == [*numbered(100, 105), *numbered(200, 203)]

    def test_a_closed_partition_of_a_feed_that_was_made_anew_is_open(self) -> None:
        with BadFeed({0: Part(numbered(0, 30))}, page=lambda: 10) as feed:
            with Life(feed.url) as life:
                life.step(limit=10)
            feed.parts[0].closed = True
            with Life(feed.url, life.offset, failOnDataLoss="false") as again:
                follower = None
                while follower is None:
                    again.plan(limit=10)
                    follower = again.batches._followers.each.get(0)
                feed.make_anew({0: Part(numbered(100, 105))})
                until = time.monotonic() + WAIT_S
                rows: list[bytes] = []
                while rows[-5:] != numbered(100, 105):
                    rows += values(again.step(limit=10))
                    assert time.monotonic() < until, rows
                feed.add(0, *numbered(105, 107))
                assert values(again.until(2)) == numbered(105, 107)

    def test_a_spool_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with (
            BadFeed({0: Part(numbered(0, 30))}) as feed,
            Life(feed.url, spoolLocation=str(tmp_path / "file")) as life,
            pytest.raises(SpoolLost, match="spool"),
        ):
            life.plan()

    def test_threads_end_with_the_query(self) -> None:
        with BadFeed({p: Part(numbered(0, 30)) for p in range(3)}) as feed, Life(feed.url) as life:
            life.until(90)
            life.batches.close()
            for thread in life.batches._followers.each.values():
                assert thread.daemon
                thread.join(60)  # half of what a request may take
                assert not thread.is_alive()

    def test_a_partition_that_hangs_does_not_hold_up_others(self) -> None:
        done: list[int] = []

        def hangs() -> object:
            while not done:
                time.sleep(0.01)
                yield b'{"ping": 1}\n'

        with BadFeed({0: Part(numbered(0, 30)), 1: Part(numbered(0, 30))}) as feed:
            feed.faults = [Reply(hangs(), chunked=True)]  # type: ignore[arg-type]
            try:
                with Life(feed.url, requestTimeout="1000") as life:
                    assert len(life.until(30)) == 30
                    assert life.still(0.1) == []
            finally:
                done.append(1)
