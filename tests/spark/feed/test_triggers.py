"""When a micro-batch of a feed is planned, and how much it reads: limits, Trigger.AvailableNow, long responses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_streams.client.data_loss import LossPolicy
from spark_streams.options.feedapi import parse_source
from spark_streams.spark.feed import micro_batch, page_fetchers
from spark_streams.spark.feed import page_fetcher as following
from spark_streams.spark.feed.fetch_pool import FetchPool
from spark_streams.spark.feed.spool import Spool
from spark_streams.spark.feed.spool_writer import SpoolWriter
from tests.client.feed.scripted import BadFeed, Part, Reply, client_of, numbered
from tests.spark.feed.batches import WAIT_S, Life, together, values


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

    def test_a_micro_batch_takes_many_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All there are, or half of ``maxBytesPerTrigger``, however long the pages take."""
        monkeypatch.setattr(page_fetchers, "GATHER_S", 0.0)
        monkeypatch.setattr(page_fetchers, "BULK_S", 600.0)
        with BadFeed({0: Part(numbered(0, 200)), 1: Part()}, page=lambda: 5, every=5) as feed:
            with Life(feed.url) as life:
                assert [values(batch) for batch in life.available_now()] == [numbered(0, 200)]
            with Life(feed.url, maxBytesPerTrigger="1000") as life:
                batches = life.available_now()
            assert together(batches) == numbered(0, 200) and 1 < len(batches) <= 20

    def test_a_run_that_ends_where_it_starts_reads_nothing_that_comes_later(self) -> None:
        with BadFeed({0: Part(numbered(0, 10))}, page=lambda: 10, every=10) as feed:
            with Life(feed.url) as life:
                assert together(life.available_now()) == numbered(0, 10)
            with Life(feed.url, life.offset) as again:
                assert together(again.available_now(meanwhile=lambda: feed.add(0, *numbered(10, 20)))) == []

    def test_of_an_empty_feed(self) -> None:
        with BadFeed({0: Part()}) as feed, Life(feed.url) as life:
            assert together(life.available_now()) == []

    def test_of_a_feed_without_partitions_whose_first_one_comes_later(self) -> None:
        with BadFeed({}) as feed, Life(feed.url) as life:
            assert together(life.available_now(meanwhile=lambda: feed.parts.update({0: Part(numbered(0, 10))}))) == []
            with Life(feed.url, life.offset) as again:
                assert together(again.available_now()) == numbered(0, 10)

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

    def test_reads_a_partition_that_is_closed_meanwhile_on_behind_its_stop(self, tmp_path: Path) -> None:
        """There the first events of a response come before its first checkpoint."""
        with BadFeed({0: Part(numbered(0, 20))}, page=lambda: 10, every=10) as feed:
            stop, end = feed.cursor(0, 10), feed.cursor(0, 20)
            feed.faults = [Reply(b"".join(feed.lines(0, 0)))]
            feed.faults += [Reply(feed.lines(0, 10), chunked=True) for _ in range(50)]
            fetcher = following.PageFetcher(
                parse_source({"url": feed.url, "pollInterval": "1"}, streaming=True),
                LossPolicy("orders", fail=True),
                FetchPool(lambda: client_of(feed.url, "v2a")),
                SpoolWriter(Spool(str(tmp_path), "q"), "f"),
                0,
                "_first",
                read_ahead_bytes=1 << 20,
                stops=(stop,),
                begins_at=None,
            )
            fetcher.closed(end)
            fetcher.start()
            fetcher._ended.wait(WAIT_S)
            assert fetcher.finished and fetcher.cursor == end and fetcher.waiting() == 20
            assert len(feed.fetches) == 2

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

    def test_a_fetcher_that_pauses_is_told_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told = following.PageFetcher.long_polls

        def late(fetcher: following.PageFetcher) -> None:
            deadline = time.monotonic() + 240
            while not fetcher.idle:
                assert time.monotonic() < deadline
                fetcher.wait_for_change(0.05)
            time.sleep(0.1)  # it is in its pause of ten minutes now
            told(fetcher)

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
