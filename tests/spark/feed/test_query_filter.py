"""Option ``filter``: what the feed is asked to check, what is checked here, and that nothing is lost between them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from spark_streams.errors import CheckpointError, OptionError
from tests.client.feed.scripted import BadFeed, Part
from tests.spark.feed.batches import Life, through_json, values
from tests.spark.feed.filtering import FilteringFeed, batch_rows, equal

TYPES = ("order", "view", "ORDER", "order")


def mixed(start: int, stop: int) -> list[bytes]:
    """Return events with a type, a nested member, and a key within."""
    return [
        json.dumps({"n": n, "type": TYPES[n % 4], "to": {"city": f"c{n % 3}"}, "who": f"k{n % 5}"}).encode()
        for n in range(start, stop)
    ]


def chosen(start: int, stop: int, **members: Any) -> list[int]:
    """Return the numbers of the events that have these members."""
    events = [json.loads(event) for event in mixed(start, stop)]
    return [e["n"] for e in events if all(e[name] == value for name, value in members.items())]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [json.loads(value)["n"] for value in values(rows)]


def told(**more: Any) -> FilteringFeed:
    """Return a feed whose discovery says what its filters compare."""
    compares = {"type": equal("type"), "who": equal("who")}
    return FilteringFeed({0: Part(mixed(0, 60))}, compares, {"type": "/type", "who": "/who"}, **more)


@pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
class TestCheckedHere:
    """Where nothing can be pushed the rows are the same."""

    TEXT = "type = 'order' AND ([/to/city] IN ('c1', 'c2') OR n >= 50) AND NOT who = 'k4'"

    @staticmethod
    def wanted(stop: int = 90) -> list[int]:
        events = [json.loads(event) for event in mixed(0, stop)]
        return [
            e["n"]
            for e in events
            if e["type"] == "order" and (e["to"]["city"] != "c0" or e["n"] >= 50) and e["who"] != "k4"
        ]

    def test_batch(self, dialect: str) -> None:
        more = {"partitions": "1"} if dialect == "v1" else {}
        with BadFeed({0: Part(mixed(0, 90))}, dialect, page=lambda: 20, every=7) as feed:
            rows, _ = batch_rows(feed.url, filter=self.TEXT, **more)
            assert numbers(rows) == self.wanted()
            only, _ = batch_rows(feed.url, ("partition", "offset"), filter=self.TEXT, **more)
            assert only == [{"partition": "0", "offset": row["offset"]} for row in rows]

    def test_stream(self, dialect: str) -> None:
        more = {"partitions": "1"} if dialect == "v1" else {}
        with BadFeed({0: Part(mixed(0, 90))}, dialect, page=lambda: 20, every=7) as feed:
            with Life(feed.url, filter=self.TEXT, minPartitions="3", **more) as life:
                rows = life.until(len(self.wanted()), limit=25)
                assert numbers(rows) == self.wanted() and life.still() == []
            assert feed.served == 90
            feed.add(0, *mixed(90, 120))
            with Life(feed.url, life.offset, filter=self.TEXT, **more) as again:
                assert numbers(again.until(len(self.wanted(120)) - len(rows))) == self.wanted(120)[len(rows) :]


class TestPushed:
    def test_what_discovery_says(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        with told(page=lambda: 10, every=3) as feed:
            rows, _ = batch_rows(feed.url, filter="type = 'order' AND n < 40 AND who = 'k1'")
            assert numbers(rows) == [n for n in chosen(0, 60, type="order", who="k1") if n < 40]
            assert feed.pushed() == [{"filter-type": "order", "filter-who": "k1"}]
            assert feed.served == len(chosen(0, 60, type="order", who="k1"))
        lines = [line for line in caplog.messages if "pushed:" in line]
        assert len(lines) == 1
        assert "filter-type=order, filter-who=k1" in lines[0] and lines[0].endswith("checked by the tasks: n < 40")

    def test_streams(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        wanted = [n for n in chosen(0, 60, type="order") if n >= 10]
        with told(page=lambda: 10, every=3) as feed:
            with Life(feed.url, filter="type = 'order' AND n >= 10") as life:
                assert numbers(life.until(len(wanted), limit=6)) == wanted
                assert life.still() == []
            assert sum("pushed:" in line for line in caplog.messages) == 1
            assert feed.pushed() == [{"filter-type": "order"}]
            assert life.offset["pushed"] == {"type": {"value": "order", "field": "/type", "exact": True}}

    def test_of_a_feed_that_says_nothing_nothing_is_pushed(self) -> None:
        """A filter called type may compare anything: what is called alike is no reason to push."""
        with FilteringFeed({0: Part(mixed(0, 20))}, {"type": lambda event, value: False}) as feed:
            rows, _ = batch_rows(feed.url, filter="type = 'order'")
            assert numbers(rows) == chosen(0, 20, type="order")
            assert feed.pushed() == [{}]

    def test_what_the_user_says_is_pushed_and_checked_again(self) -> None:
        """A feed that compares without regard to case lets more through, which is nobody's harm."""

        def loosely(event: Any, value: str) -> bool:
            return str(event["type"]).lower() == value.lower()

        with FilteringFeed({0: Part(mixed(0, 20))}, {"kind": loosely}) as feed:
            rows, _ = batch_rows(feed.url, filter="type = 'order'", filterFields="kind=/type")
            assert numbers(rows) == chosen(0, 20, type="order")
            assert feed.pushed() == [{"filter-kind": "order"}] and feed.served == 15
            with Life(feed.url, filter="type = 'order'", filterFields="kind = /type") as life:
                assert numbers(life.until(10)) == chosen(0, 20, type="order") and life.still() == []

    def test_none_pushes_nothing(self) -> None:
        with told() as feed:
            rows, _ = batch_rows(feed.url, filter="type = 'order'", filterFields="none")
            assert numbers(rows) == chosen(0, 60, type="order") and feed.pushed() == [{}]

    def test_column_key_is_what_key_field_says(self) -> None:
        """A filter that compares the line's own member ``key`` is then another thing."""
        with told() as feed:
            feed.tells = {"type": "key", "who": "/who"}
            rows, _ = batch_rows(feed.url, filter="key = 'k2'", keyField="/who")
            assert numbers(rows) == chosen(0, 60, who="k2") and feed.pushed() == [{"filter-who": "k2"}]
        with told() as feed:
            feed.tells = {"type": "key"}
            rows, _ = batch_rows(feed.url, filter="key = 'k2'", keyField="/who")
            assert numbers(rows) == chosen(0, 60, who="k2") and feed.pushed() == [{}]
        with told() as feed:
            rows, _ = batch_rows(feed.url, filter="key = 'k2'", keyField="/who", filterFields="who=key")
            assert numbers(rows) == chosen(0, 60, who="k2") and feed.pushed() == [{"filter-who": "k2"}]

    def test_the_users_own_filters_come_first(self) -> None:
        with told() as feed:
            rows, _ = batch_rows(feed.url, filter="type = 'order' AND who = 'k1'", **{"filter-type": "view"})
            assert rows == []
            assert feed.pushed() == [{"filter-type": "view", "filter-who": "k1"}]

    @pytest.mark.parametrize("dialect", ["v1", "v2b"])
    def test_filter_fields_of_other_dialects(self, dialect: str) -> None:
        more = {"partitions": "1"} if dialect == "v1" else {}
        with (
            BadFeed({0: Part(mixed(0, 4))}, dialect) as feed,
            pytest.raises(OptionError, match=r"filterFields.*no filt"),
        ):
            batch_rows(feed.url, filter="type = 'order'", filterFields="type=/type", **more)

    def test_a_filter_that_is_not_offered(self) -> None:
        with told() as feed, pytest.raises(OptionError, match=r"filterFields.*'kind'; it offers 'type', 'who'"):
            batch_rows(feed.url, filter="type = 'order'", filterFields="kind=/type")

    def test_beside_a_cursor_nothing_is_pushed(self) -> None:
        """It belongs to a read without filters."""
        with told(page=lambda: 10, every=2) as feed:
            rows, _ = batch_rows(feed.url)
            start, end = rows[19]["offset"], rows[39]["offset"]
            for more in (
                {"startingOffsets": json.dumps({"0": start}), "endingOffsets": json.dumps({"0": end})},
                {"endingOffsets": json.dumps({"0": end})},
                {"startingOffsets": json.dumps({"0": start})},
            ):
                feed.asked.clear()
                found, _ = batch_rows(feed.url, filter="type = 'order'", **more)
                first, stop = 20 if "startingOffsets" in more else 0, 40 if "endingOffsets" in more else 60
                assert numbers(found) == chosen(first, stop, type="order")
                assert feed.pushed() == [{}]
            with Life(feed.url, filter="type = 'order'", startingOffsets=json.dumps({"0": start})) as life:
                assert numbers(life.until(20)) == chosen(20, 60, type="order")
            assert feed.pushed() == [{}]

    def test_a_closed_partition_ends_where_its_filtered_cursors_end(self) -> None:
        """``lastCursor`` belongs to no filters; the same text may be another place to the filtered feed (C-13)."""

        class Confusing(FilteringFeed):
            def cursor(self, partition: int, index: int) -> str:
                text = f"c{index * 2 if self._asked else index}"
                self.places[text] = partition, index
                return text

        events = mixed(0, 40)
        wanted = chosen(0, 40, type="order")
        for way in ("stream", "available now", "batch"):
            with Confusing({0: Part(events, closed=True)}, {"type": equal("type")}, {"type": "/type"}, every=2) as feed:
                if way == "batch":
                    rows, _ = batch_rows(feed.url, filter="type = 'order'")
                else:
                    with Life(feed.url, filter="type = 'order'") as life:
                        if way == "stream":
                            rows = life.until(len(wanted), limit=3)
                        else:
                            rows = [row for batch in life.available_now(limit=3) for row in batch]
                assert numbers(rows) == wanted, way


class TestKept:
    """The checkpoint's cursors belong to what was pushed (C-13)."""

    FILTER = "type = 'order' AND n >= 4"

    def begun(self, feed: FilteringFeed, **more: str) -> dict[str, Any]:
        with Life(feed.url, filter=self.FILTER, **more) as life:
            life.until(20)
            assert life.still() == []
            return through_json(life.offset)

    def goes_on(self, feed: FilteringFeed, offset: dict[str, Any], text: str, wanted: list[int], **more: str) -> None:
        feed.add(0, *mixed(60, 80))
        with Life(feed.url, offset, filter=text, **more) as again:
            assert numbers(again.until(len(wanted))) == wanted
            assert again.still() == []
            assert again.offset["pushed"] == offset["pushed"]

    def test_though_discovery_says_nothing_any_more(self) -> None:
        with told() as feed:
            offset = self.begun(feed)
            feed.tells = None
            self.goes_on(feed, offset, self.FILTER, chosen(60, 80, type="order"))
            assert feed.pushed() == [{"filter-type": "order"}]

    def test_though_more_could_be_pushed(self) -> None:
        with told() as feed:
            feed.tells = None
            offset = self.begun(feed)
            feed.tells = {"type": "/type"}
            assert "pushed" not in offset
            feed.add(0, *mixed(60, 80))
            with Life(feed.url, offset, filter=self.FILTER) as again:
                assert numbers(again.until(10)) == chosen(60, 80, type="order")
            assert feed.pushed() == [{}]

    def test_another_filter_that_asks_for_it_too(self) -> None:
        with told() as feed:
            offset = self.begun(feed)
            wanted = chosen(60, 80, type="order", who="k1")
            self.goes_on(feed, offset, "who = 'k1' AND type = 'order'", wanted)
            assert feed.pushed() == [{"filter-type": "order"}]

    def test_a_pointer_is_as_good_as_a_name(self) -> None:
        with told() as feed:
            offset = self.begun(feed)
            self.goes_on(feed, offset, "[/type] = 'order'", chosen(60, 80, type="order"))

    @pytest.mark.parametrize("text", ["type = 'view'", "n >= 4", "type = 'order' OR n >= 4", None])
    def test_another_filter_that_lets_more_through_is_an_error(self, text: str | None) -> None:
        with told() as feed:
            offset = self.begun(feed)
            more = {} if text is None else {"filter": text}
            with (
                Life(feed.url, offset, **more) as again,
                pytest.raises(CheckpointError, match=r"filter-type=order.*another checkpointLocation"),
            ):
                again.plan()

    def test_another_filter_is_no_matter_where_nothing_was_pushed(self) -> None:
        with told() as feed:
            offset = self.begun(feed, filterFields="none")
            feed.add(0, *mixed(60, 80))
            with Life(feed.url, offset, filter="type = 'view'") as again:
                assert numbers(again.until(5)) == chosen(60, 80, type="view")
            with Life(feed.url, offset) as again:
                assert numbers(again.until(20)) == list(range(60, 80))

    def test_a_feed_that_does_not_offer_it_any_more(self) -> None:
        with told() as feed:
            offset = self.begun(feed)
            del feed.compares["type"]
            with Life(feed.url, offset, filter=self.FILTER) as again, pytest.raises(OptionError, match="any more"):
                again.plan()

    def test_available_now_after_a_restart(self) -> None:
        with told() as feed:
            offset = self.begun(feed)
            feed.tells = None
            feed.add(0, *mixed(60, 80))
            with Life(feed.url, offset, filter=self.FILTER) as again:
                rows = [row for batch in again.available_now(limit=4) for row in batch]
            assert numbers(rows) == chosen(60, 80, type="order")
            with Life(feed.url, filter=self.FILTER) as fresh:
                rows = [row for batch in fresh.available_now() for row in batch]
            assert numbers(rows) == [n for n in chosen(0, 80, type="order") if n >= 4]

    def test_a_lost_spool_is_fetched_again_under_the_same_filters(self) -> None:
        with told(page=lambda: 10, every=5) as feed:
            with Life(feed.url, filter=self.FILTER) as life:
                life.step(10)
                end = life.plan(10)
                first = life.rows(end)
            with Life(feed.url, life.offset, filter=self.FILTER) as again:
                assert again.rows(end) == first and len(first) >= 5
            assert feed.pushed() == [{"filter-type": "order"}]
