"""What a task of a batch query reads."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client.feed import range_reader as scanning
from spark_streams.client.feed.range_reader import FeedRange, scan
from spark_streams.client.feed.row_decoder import FeedRows
from spark_streams.errors import PositionLost, Refused, RemoteProtocolError
from spark_streams.rows import COMMON_SCHEMA
from tests.client.feed.scripted import BadFeed, Part, Reply, Request, client_of, numbered

COLUMNS = tuple(COMMON_SCHEMA.names)


def rows_of(
    feed: BadFeed,
    wanted: FeedRange | None = None,
    *,
    key_field: str | None = None,
    timestamp_field: str | None = None,
    columns: tuple[str, ...] = COLUMNS,
    fail: bool = True,
) -> list[dict[str, Any]]:
    """Read a range as rows."""
    rows = FeedRows("orders", 0, columns, key_field, timestamp_field)
    with client_of(feed.url, feed.dialect, partitions=1 if feed.dialect == "v1" else None) as client:
        found = list(scan(client, wanted or FeedRange(0, "_first"), rows, fail_on_data_loss=fail))
    return pa.Table.from_batches(found).to_pylist() if found else []


@pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
def test_the_whole_of_a_feed_that_misbehaves(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "EMPTY_RESPONSES", 40)
    chance = random.Random(3)
    with BadFeed({0: Part(numbered(0, 700))}, dialect, page=lambda: chance.randint(1, 90), every=9) as feed:
        feed.same_cursors = False
        feed.empty_pages = 3
        feed.unknown_lines = True
        feed.bare_end = True
        feed.uncovered = 4
        feed.faults = [Reply(b"", 503)]
        feed.cuts = [1, 50, 400, 999, 77]
        rows = rows_of(feed)
        assert [row["value"] for row in rows] == numbered(0, 700)
        assert {row["partition"] for row in rows} == {"0"} and {row["stream"] for row in rows} == {"orders"}
        for row in (rows[0], rows[349], rows[699]):
            assert feed.places[row["offset"]][1] >= 1 + int(row["value"][6:-1])


@pytest.mark.parametrize(("value", "words"), [('"soon"', "is 'soon': expected"), ("1e30", "1e30 does not fit")])
def test_a_time_that_cannot_be_read_is_told_with_its_place(value: str, words: str) -> None:
    body = b'{"event": {"t": 1}}\n{"cursor": "x"}\n{"event": {"t": %b}}\n{"cursor": "y"}\n' % value.encode()
    with BadFeed({0: Part()}) as feed:
        feed.faults = [Reply(body * 2)]
        with pytest.raises(
            RemoteProtocolError, match=f"^stream 'orders' partition '0', .* cursor 'y': '/t' of .*{words}"
        ):
            rows_of(feed, timestamp_field="/t", columns=("timestamp",))


def test_the_offset_is_the_cursor_of_the_checkpoint_that_covers_the_event() -> None:
    body = b'{"event": {"a": 1}}\n{"event": {"a": 2}}\n{"cursor": "x"}\n{"cursor": "y"}\n{"event": {"a": 3}}\n'
    body += b'{"cursor": "z"}\n{"event": {"a": 4}}\n'
    with BadFeed({0: Part()}) as feed:
        feed.faults = [Reply([body[:45], body[45:70], body[70:]], chunked=True), Reply(b'{"cursor": "z"}\n')]
        rows = rows_of(feed)
    assert [(row["value"], row["offset"]) for row in rows] == [
        (b'{"a": 1}', "x"),
        (b'{"a": 2}', "x"),
        (b'{"a": 3}', "z"),
    ]


def test_c08_what_no_checkpoint_covers_is_asked_for_again() -> None:
    with BadFeed({0: Part(numbered(0, 20))}, page=lambda: 20, every=20) as feed:
        feed.cuts = [300]  # behind the fifteenth event or so
        assert [row["value"] for row in rows_of(feed)] == numbered(0, 20)
        assert [each["cursor"] for each in feed.fetches][:2] == ["_first", "_first"]
        assert feed.served == 40


def test_ends_at_the_cursor_though_more_has_come() -> None:
    with BadFeed({0: Part(numbered(0, 50))}, page=lambda: 50, every=10) as feed:
        stop = feed.cursor(0, 30)
        rows = rows_of(feed, FeedRange(0, feed.cursor(0, 10), (stop,), required=True))
        assert [row["value"] for row in rows] == numbered(10, 30)
        assert rows_of(feed, FeedRange(0, stop, (stop,), required=True)) == []


def test_a_cursor_that_does_not_come_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    with BadFeed({0: Part(numbered(0, 5))}) as feed:
        wanted = FeedRange(0, "_first", ("nosuch",), required=True)
        with pytest.raises(PositionLost, match=r"'nosuch'.*without that cursor"):
            rows_of(feed, wanted)
        assert [row["value"] for row in rows_of(feed, wanted, fail=False)] == numbered(0, 5)
        assert "nosuch" in caplog.text
        assert len(rows_of(feed, FeedRange(0, "_first", ("nosuch",)))) == 5


def test_events_that_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    with BadFeed({0: Part(numbered(0, 5))}) as feed:
        feed.gone = {2}
        wanted = FeedRange(0, feed.cursor(0, 2))
        with pytest.raises(PositionLost, match="events are gone"):
            rows_of(feed, wanted)
        assert [row["value"] for row in rows_of(feed, wanted, fail=False)] == numbered(0, 5)
        assert "events are gone" in caplog.text


def test_a_feed_that_was_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    with BadFeed({0: Part(numbered(0, 5))}) as feed:
        wanted = FeedRange(0, feed.cursor(0, 2))
        feed.make_anew({0: Part(numbered(10, 13))})
        with pytest.raises(PositionLost, match="status 400: no such cursor"):
            rows_of(feed, wanted)
        assert [row["value"] for row in rows_of(feed, wanted, fail=False)] == numbered(10, 13)
        assert "no such cursor" in caplog.text


def test_a_cursor_is_not_at_fault_where_nothing_is_answered() -> None:
    with BadFeed({0: Part(numbered(0, 5))}) as feed:
        wanted = FeedRange(0, feed.cursor(0, 2))
        feed.faults = [Reply(b"page size?", 400)] * 2
        with pytest.raises(Refused, match="page size"):
            rows_of(feed, wanted, fail=False)
        feed.faults = [Reply(b"no such cursor", 400), Reply(b"", 503)]
        assert len(rows_of(feed, wanted, fail=False)) == 3, "it was asked again"


def test_a_feed_that_knows_none_of_its_own_cursors_is_not_read_for_ever() -> None:
    with BadFeed({0: Part(numbered(0, 5))}, page=lambda: 2, every=2) as feed:

        def answer(asked: Request) -> Reply:
            if len(feed.asked) > 60:
                return Reply(b"enough", 403)
            return feed.respond(asked) if asked["cursor"] == "_first" else Reply(b"no such cursor", 400)

        feed.answer = answer
        with pytest.raises(Refused, match="status 400: no such cursor"):
            rows_of(feed, fail=False)


@pytest.mark.parametrize("body", [b"", b'{"event": {"n": 1}}\n', b'{"ping": 1}\n'])
def test_p22_a_response_without_a_cursor(body: bytes) -> None:
    with BadFeed({0: Part()}) as feed:
        feed.faults = [Reply(body)]
        with pytest.raises(RemoteProtocolError, match=r"cursor=_first.*no cursor.*checkpoint command"):
            rows_of(feed)


def test_responses_without_events_are_no_end_while_the_cursor_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    with BadFeed({0: Part(numbered(0, 1))}) as feed:
        moving = [Reply(b'{"cursor": "m%d"}\n' % n) for n in range(100)]
        feed.faults = [*moving, Reply(b'{"event": {"n": 7}}\n{"cursor": "end"}\n'), *[Reply(b'{"cursor": "end"}\n')]]
        assert [row["value"] for row in rows_of(feed)] == [b'{"n": 7}']
        monkeypatch.setattr(scanning, "EMPTY_RESPONSES", 5)
        feed.faults = [Reply(b'{"cursor": "m%d"}\n' % n) for n in range(100)]
        assert rows_of(feed) == []
        assert len(feed.faults) == 95


def test_a_feed_that_breaks_off_again_and_again_is_given_up() -> None:
    from spark_streams.client.feed.client import FEED_BACKOFF
    from spark_streams.errors import ConnectionLost

    with BadFeed({0: Part(numbered(0, 9))}) as feed:
        feed.faults = [Reply(b'{"cursor": "_first"}\n{"event": {"n": 0}}\n', cut=True)] * 100
        with pytest.raises(ConnectionLost):
            rows_of(feed)
        assert len(feed.fetches) == FEED_BACKOFF.attempts


def test_keys_and_timestamps() -> None:
    events = [b'{"id": "a", "at": "2026-11-21T12:00:00Z"}', b'{"id": 7, "at": -1}', b'{"x": 1}']
    with BadFeed({0: Part(events)}) as feed:
        rows = rows_of(feed, key_field="/id", timestamp_field="/at")
        assert [row["key"] for row in rows] == ["a", "7", None]
        assert [row["timestamp"] for row in rows] == [
            datetime(2026, 11, 21, 12, tzinfo=timezone.utc),
            datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc),
            None,
        ]
        lines = b'{"key": "k1", "event": {}}\n{"event": {"a": 1}}\n'
        feed.faults = [Reply([lines, b'{"event": 3}\n'.replace(b"3", b'"t"'), b'{"cursor": "c"}\n'], chunked=True)]
        rows = rows_of(feed, FeedRange(0, "_first", ("c",)), columns=("key", "value"))
        assert rows == [
            {"key": "k1", "value": b"{}"},
            {"key": None, "value": b'{"a": 1}'},
            {"key": None, "value": b"t"},
        ]


def test_only_the_columns_asked_for() -> None:
    with BadFeed({0: Part(numbered(0, 2))}) as feed:
        assert rows_of(feed, columns=("partition",)) == [{"partition": "0"}] * 2
