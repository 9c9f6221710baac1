"""Feeds and spools that fail, and feeds that were created again: what a query waits for, and what it raises."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_streams.client.retry import Backoff
from spark_streams.errors import (
    AuthenticationFailed,
    NotFound,
    PositionLost,
    RemoteProtocolError,
    SparkStreamsError,
    SpoolLost,
)
from spark_streams.spark.feed import page_fetcher as following
from tests.client.feed.scripted import BadFeed, Part, Reply, numbered
from tests.spark.feed.batches import WAIT_S, Life, together, values


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
            for thread in life.batches._fetchers.each.values():
                thread._ended.wait(60)  # half of what a request may take
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
        monkeypatch.setattr(following, "FEED_BACKOFF", patient)
        with BadFeed({0: Part(numbered(0, 30))}) as feed, Life(feed.url, failOnDataLoss="false") as life:
            life.batches._client.backoff = patient
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
                fetcher = None
                while fetcher is None:
                    again.plan(limit=10)
                    fetcher = again.batches._fetchers.each.get(0)
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
            for thread in life.batches._fetchers.each.values():
                thread._ended.wait(60)  # half of what a request may take
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
