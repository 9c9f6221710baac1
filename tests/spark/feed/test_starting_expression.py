"""Option ``startingExpression``: each partition starts exactly at its first matching event, once and for all."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from spark_streams.client.feed.row_decoder import FeedRows, FirstMatch
from spark_streams.errors import OptionError
from spark_streams.filters import parse
from spark_streams.spark.feed import spool_writer
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import parse_lines
from tests.client.feed.scripted import BadFeed, Part, Reply, numbered
from tests.spark.feed.batches import Life, through_json, together, values
from tests.spark.feed.filtering import FilteringFeed, batch_rows, equal

DIALECTS = pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])


def versions(dialect: str, partitions: int = 1) -> dict[str, str]:
    return {"partitions": str(partitions)} if dialect == "v1" else {}


class Started(Life):
    """A stream that starts at an expression; ``Life`` says 'earliest' otherwise."""

    def __init__(self, url: str, offset: Any = None, **more: str) -> None:
        word = json.dumps({"0": {"expression": more.pop("start")}}) if "start" in more else more["startingOffsets"]
        super().__init__(url, offset, **{**more, "startingOffsets": word})


@DIALECTS
class TestWhere:
    def test_batch(self, dialect: str) -> None:
        parts = {p: Part(numbered(0, 60)) for p in range(2)}
        with BadFeed(parts, dialect, page=lambda: 9, every=4) as feed:
            rows, _ = batch_rows(feed.url, startingExpression="n = 17", **versions(dialect, 2))
            assert values(rows) == numbered(17, 60) * 2
            where = json.dumps({"0": {"expression": "n > 40"}, "1": "earliest"})
            rows, _ = batch_rows(feed.url, startingOffsets=where, **versions(dialect, 2))
            assert values(rows) == numbered(41, 60) + numbered(0, 60)
            assert batch_rows(feed.url, startingExpression="n = 100", **versions(dialect, 2))[0] == []

    @pytest.mark.parametrize("match", [0, 1, 3, 4, 16, 17, 59])
    def test_stream(self, dialect: str, match: int) -> None:
        with BadFeed({0: Part(numbered(0, 60))}, dialect, page=lambda: 17, every=4) as feed:
            feed.unknown_lines = True
            with Started(feed.url, start=f"n = {match}", **versions(dialect)) as life:
                assert values(life.until(60 - match, limit=11)) == numbered(match, 60)
                assert life.still() == []
                assert "searching" not in life.offset

    def test_events_that_match_no_more_are_read_all_the_same(self, dialect: str) -> None:
        with BadFeed({0: Part(numbered(0, 60))}, dialect, page=lambda: 17, every=4) as feed:
            with Started(feed.url, start="n IN (5, 30)", **versions(dialect)) as life:
                assert values(life.until(55)) == numbered(5, 60)
            feed.add(0, *numbered(60, 70))
            with Started(feed.url, life.offset, start="n IN (5, 30)", **versions(dialect)) as again:
                assert values(again.until(10)) == numbered(60, 70)


class TestRemembered:
    def test_that_it_was_not_found_yet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from spark_streams.spark.feed import micro_batch

        monkeypatch.setattr(micro_batch, "IDLE_CURSORS_S", 0.02)
        with BadFeed({0: Part(numbered(0, 40))}, page=lambda: 10, every=5) as feed:
            with Started(feed.url, start="n >= 50") as life:
                life.come_to({"0": feed.cursor(0, 40)})
                assert life.still() == []
                assert life.offset["searching"] == {"0": "n >= 50"}
            feed.add(0, *numbered(40, 55))
            asked = len(feed.fetches)
            # What the options say of the start now is no matter, as of any start.
            with Life(feed.url, life.offset) as again:
                assert values(again.until(5)) == numbered(50, 55)
                assert "searching" not in again.offset and again.offset["found"] == {"0": "n >= 50"}
            cursors = {each["cursor"] for each in feed.fetches[asked:]}
            assert feed.cursor(0, 40) in cursors
            searched = {"_first", *(feed.cursor(0, n) for n in range(40))}
            assert not cursors & searched, "what was searched is not searched again"

    def test_that_it_was_found(self) -> None:
        with BadFeed({0: Part(numbered(0, 40))}, page=lambda: 10, every=5) as feed:
            with Started(feed.url, start="n = 12") as life:
                life.until(28)
            feed.add(0, *numbered(40, 50))
            with Started(feed.url, through_json(life.offset), start="n = 12") as again:
                assert values(again.until(10)) == numbered(40, 50)

    def test_by_the_micro_batch_whose_pages_are_lost(self) -> None:
        with BadFeed({0: Part(numbered(0, 40))}, page=lambda: 10, every=5) as feed:
            with Started(feed.url, start="n = 12") as life:
                end = life.plan(6)
                first = life.rows(end)
                assert values(first)[0] == b'{"n": 12}'
            with Started(feed.url, life.offset, start="n = 12") as again:
                assert again.rows(end) == first
                again.offset = end
                assert values(again.until(28 - len(first))) == numbered(12 + len(first), 40)

    def test_available_now(self) -> None:
        with BadFeed({0: Part(numbered(0, 40))}, page=lambda: 10, every=5) as feed:
            with Started(feed.url, start="n = 12") as life:
                assert together(
                    life.available_now(limit=7, meanwhile=lambda: feed.add(0, *numbered(40, 50)))
                ) == numbered(12, 40)
            with Started(feed.url, start="n = 45") as life:
                feed.parts[0].events[45:] = []
                assert together(life.available_now()) == []
                feed.add(0, *numbered(45, 50))
            with Started(feed.url, life.offset, start="n = 45") as again:
                assert together(again.available_now()) == numbered(45, 50)


class TestChecks:
    def test_a_match_that_no_checkpoint_covers_is_searched_again(self) -> None:
        """And another event may be the first then."""
        broken = b'{"event": {"n": 0}}\n{"cursor": "a"}\n{"event": {"n": 7}}\n{"event": {"n": 1}}\n'
        whole = b'{"event": {"n": 1}}\n{"event": {"n": 8}}\n{"cursor": "b"}\n{"event": {"n": 2}}\n{"cursor": "c"}\n'
        with BadFeed({0: Part()}) as feed:
            feed.faults = [Reply(broken), Reply(whole), *[Reply(b'{"cursor": "c"}\n')] * 10_000]
            with Started(feed.url, start="n > 6") as life:
                assert values(life.until(2)) == [b'{"n": 8}', b'{"n": 2}']

    def test_a_match_that_a_later_block_covers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spool_writer, "HELD_BYTES", 40)
        pieces = [b'{"event": {"n": %d}}\n' % n for n in range(12)] + [b'{"cursor": "c"}\n']
        with BadFeed({0: Part()}) as feed:
            feed.faults = [Reply(pieces, chunked=True), *[Reply(b'{"cursor": "c"}\n')] * 10_000]
            with Started(feed.url, start="n = 3") as life:
                assert values(life.until(9)) == numbered(3, 12)

    def test_an_event_and_its_checkpoint_in_one_line(self) -> None:
        body = b"".join(b'{"event": {"n": %d}, "cursor": "c%d"}\n' % (n, n) for n in range(6))
        with BadFeed({0: Part()}) as feed:
            feed.faults = [Reply(body), *[Reply(b'{"cursor": "c5"}\n')] * 10_000]
            with Started(feed.url, start="n = 4") as life:
                assert values(life.until(2)) == numbered(4, 6)

    def test_key_and_time(self) -> None:
        events = [json.dumps({"n": n, "who": f"k{n}", "at": n * 1000}).encode() for n in range(20)]
        for text in ("key = 'k7'", "publish_time >= 6500", "event_time = 7000", "partition = '0' AND n = 7"):
            with BadFeed({0: Part(events)}, page=lambda: 6, every=4) as feed:
                with Started(feed.url, start=text, keyField="/who", timestampField="/at") as life:
                    assert values(life.until(13)) == events[7:]
                rows, _ = batch_rows(
                    feed.url, ("value",), startingExpression=text, keyField="/who", timestampField="/at"
                )
                assert values(rows) == events[7:]

    def test_a_cursor_is_no_offset(self) -> None:
        with pytest.raises(OptionError, match="offset"):
            batch_rows("http://127.0.0.1:1", startingExpression="offset > 'a'")
        with pytest.raises(OptionError, match="timestampField"):
            batch_rows("http://127.0.0.1:1", startingExpression="publish_time > 5")


class TestWithFilter:
    def events(self) -> list[bytes]:
        return [json.dumps({"n": n, "type": "a" if n % 3 else "b"}).encode() for n in range(60)]

    def feed(self) -> FilteringFeed:
        return FilteringFeed(
            {0: Part(self.events())}, {"type": equal("type")}, {"type": "/type"}, page=lambda: 9, every=4
        )

    @pytest.mark.parametrize(
        ("start", "text", "first", "pushed"),
        [
            ("n = 20", "type = 'b'", 21, {}),  # 20 is of type a: it is where reading starts though it is no row
            ("type = 'a' AND n = 20", "type = 'b'", 21, {}),
            ("type = 'b' AND n > 20", "type = 'b'", 21, {"filter-type": "b"}),
            ("n > 20 OR type = 'b'", "type = 'b'", 0, {}),
        ],
    )
    def test_what_the_start_looks_for_is_not_filtered_away(
        self, start: str, text: str, first: int, pushed: dict[str, str]
    ) -> None:
        wanted = [n for n in range(first, 60) if n % 3 == 0]
        with self.feed() as feed:
            rows, _ = batch_rows(feed.url, startingExpression=start, filter=text)
            assert [json.loads(value)["n"] for value in values(rows)] == wanted
            assert feed.pushed() == [pushed]
        with self.feed() as feed, Started(feed.url, start=start, filter=text) as life:
            assert [json.loads(value)["n"] for value in values(life.until(len(wanted), limit=8))] == wanted
            assert life.still() == [] and feed.pushed() == [pushed]


class TestPartitions:
    def test_each_has_its_own_first_match(self) -> None:
        with BadFeed({0: Part(numbered(0, 30)), 1: Part(numbered(100, 130))}, page=lambda: 7) as feed:
            where = json.dumps({"0": {"expression": "n = 11"}, "1": {"expression": "n > 120"}})
            with Started(feed.url, startingOffsets=where) as life:
                assert sorted(values(life.until(28))) == sorted(numbered(11, 30) + numbered(121, 130))

    def test_a_partition_that_takes_the_place_of_one_that_was_searched_is_searched_on(self) -> None:
        with (
            BadFeed({0: Part(numbered(0, 30))}, page=lambda: 7) as feed,
            Started(feed.url, start="n >= 40") as life,
        ):
            assert life.still() == []
            feed.split(0, 1, 2, history=True)
            feed.add(1, *numbered(36, 44))
            feed.add(2, *numbered(30, 36))
            assert values(life.until(4)) == numbered(40, 44)
            assert life.still() == []
            feed.add(2, *numbered(50, 52))
            assert values(life.until(2)) == numbered(50, 52)

    def test_a_partition_after_one_in_which_it_was_found_is_read_whole(self) -> None:
        with (
            BadFeed({0: Part(numbered(0, 30))}, page=lambda: 7) as feed,
            Started(feed.url, start="n = 20") as life,
        ):
            assert values(life.until(10)) == numbered(20, 30)
            feed.split(0, 1)
            feed.add(1, *numbered(0, 5))
            assert values(life.until(5)) == numbered(0, 5)

    def test_a_partition_that_waits_for_another_one_is_searched_too(self) -> None:
        parts = {0: Part(numbered(0, 30), closed=True), 1: Part(numbered(30, 60), after=0)}
        where = json.dumps({p: {"expression": "n IN (20, 45)"} for p in ("0", "1")})
        with BadFeed(parts, page=lambda: 7) as feed, Started(feed.url, startingOffsets=where) as life:
            assert values(life.until(25)) == numbered(20, 30) + numbered(45, 60)


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_any_shape(seed: int) -> None:
    """Whatever the blocks and their checkpoints: what follows the first match is left, and no cursor is lost."""
    chance = random.Random(seed)
    dialect = chance.choice([Dialect.V1, Dialect.V2A, Dialect.V2B])
    name, of = (
        ("event", "") if dialect is Dialect.V2A else ("data", '"partition": 3, ' if dialect is Dialect.V1 else "")
    )
    lines, events, covering = [], [], []
    for n in range(chance.randint(0, 200)):
        if chance.random() < 0.6:
            both = f', "cursor": "b{n}"' if chance.random() < 0.2 else ""
            lines.append(f'{{{of}"{name}": {{"n": {n}}}{both}}}\n')
            events.append(n)
        else:
            lines.append(chance.choice([f'{{{of}"cursor": "c{n}"}}\n', "\n", '{"ping": 1}\r\n']))
        covering.append(len(events))
    target = chance.choice([*events, -1])
    search = FirstMatch(parse(f"n = {target}"), FeedRows("orders", 3, ("value",)))
    left: list[bytes] = []
    cursors: list[str] = []
    at = 0
    while at < len(lines):
        end = at + chance.randint(1, 80)
        block = "".join(lines[at:end]).encode()
        whole = parse_lines(block, dialect, 3)
        held = search.take(whole)
        left += held.values.to_pylist()
        cursors += held.cursors.to_pylist()
        if len(whole.cursors):
            assert cursors[-1] == whole.cursors[-1].as_py()
        at = end
    assert [json.loads(event)["n"] for event in left] == ([] if target < 0 else [n for n in events if n >= target])
    last = max((number for number, line in enumerate(lines) if '"cursor"' in line), default=-1)
    assert search.found == (target >= 0 and last >= 0 and covering[last] > events.index(target))
