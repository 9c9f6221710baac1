"""What of a filter goes to a feed's own filters, as it and the user say what those compare."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_streams.client.feed.pushdown import FeedFilter, NotImplied, left_of, push, shown
from spark_streams.errors import OptionError
from spark_streams.filters import parse, to_text
from spark_streams.wire.feed.discovery import Discovery, FeedPartition

EXACT = {"/type": FeedFilter("a", "/type", True)}
LOOSE = {"t": FeedFilter("a", "/type")}
ANY = {"key": "key", "/*": "/*"}
OURS = Discovery((FeedPartition(0),), filters=("key", "subject", "/*"), filter_fields=ANY)


def pushed(
    text: str | None,
    discovery: Discovery = OURS,
    declared: Mapping[str, str] | None = None,
    *,
    key_field: str | None = None,
    taken: tuple[str, ...] = (),
    starts: tuple[str, ...] = (),
) -> dict[str, str]:
    expression = None if text is None else parse(text)
    found = push(
        expression,
        discovery,
        declared=declared,
        key_field=key_field,
        taken=taken,
        starts=[parse(start) for start in starts],
    )
    if expression is not None:
        left_of(expression, found, key_field)  # whatever is pushed is implied by the filter that it came from
    return {name: each.value for name, each in found.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type = 'order'", {"/type": "order"}),
        ("[/type] = 'order'", {"/type": "order"}),
        ("[/to/city] = 'Oslo' AND key = 'k' AND n > 5", {"/to/city": "Oslo", "key": "k"}),
        ("[a/b~c] = 'x'", {"/a~1b~0c": "x"}),
        ("NOT type <> 'order'", {"/type": "order"}),
        ("type IN ('order')", {"/type": "order"}),
        ("(type = 'a' AND n = 1) OR (type = 'a' AND n = 2)", {"/type": "a"}),
        ("type = 'a' OR type = 'b'", {}),
        ("type IN ('a', 'b')", {}),
        ("type = 5", {}),
        ("type LIKE 'a'", {}),
        ("type <> 'a'", {}),
        ("type IS NULL", {}),
        ("type = ''", {}),
        ("[7] = 'a'", {}),
        ("[/a~2] = 'x'", {}),
        ("partition = '0' AND offset = 'x'", {}),
        (f"type = '{'x' * 1000}'", {"/type": "x" * 1000}),
        (f"type = '{'x' * 1001}' AND key = 'k'", {"key": "k"}),
        ("subject = 'x'", {"/subject": "x"}),
        (None, {}),
    ],
)
def test_to_a_door_that_compares_whatever_a_pointer_names(text: str | None, expected: dict[str, str]) -> None:
    assert pushed(text) == expected


def test_without_a_word_about_it_nothing_is_pushed() -> None:
    silent = Discovery((FeedPartition(0),), filters=("type", "key", "/*"))
    assert pushed("type = 'a' AND key = 'k'", silent) == {}
    unlisted = Discovery((FeedPartition(0),), filters=("type",), filter_fields={"kind": "/type", "/*": "/*"})
    assert pushed("type = 'a'", unlisted) == {}, "what is not offered is not pushed, whatever is said of it"


def test_the_users_word_is_all_there_is() -> None:
    feed = Discovery((FeedPartition(0),), filters=("type", "who"), filter_fields={"type": "/type"})
    assert pushed("type = 'a' AND who = 'b'", feed, {"who": "/who"}) == {"who": "b"}
    assert pushed("type = 'a' AND who = 'b'", feed, {}) == {}
    with pytest.raises(OptionError, match=r"filterFields.*'Who'; it offers 'type', 'who'"):
        pushed("who = 'b'", feed, {"Who": "/who"})


def test_filters_of_single_partitions_have_to_be_those_of_all() -> None:
    some = Discovery((FeedPartition(0, filters=("a", "b")), FeedPartition(1, filters=("b",))))
    assert pushed("x = '1'", some, {"b": "/x"}) == {"b": "1"}
    with pytest.raises(OptionError, match="it offers 'b'"):
        pushed("x = '1'", some, {"a": "/x"})
    with pytest.raises(OptionError, match="it offers none"):
        pushed("x = '1'", Discovery(()), {"a": "/x"})


def test_column_key() -> None:
    assert pushed("key = 'k'", key_field="/who") == {"/who": "k"}
    assert pushed("who = 'k'", key_field="/who") == {"/who": "k"}
    feed = Discovery((FeedPartition(0),), filters=("id",), filter_fields={"id": "key"})
    assert pushed("key = 'k'", feed) == {"id": "k"}
    assert pushed("key = 'k'", feed, key_field="/who") == {}, "the line's key is not column key then"
    assert pushed("key = 'k'", feed, {"id": "key"}, key_field="/who") == {"id": "k"}
    assert pushed("[key] = 'k'", feed) == {}, "a member of the event that is called key"


def test_names_that_the_user_gave_values_for() -> None:
    feed = Discovery((FeedPartition(0),), filters=("Type", "who"), filter_fields={"Type": "/type", "who": "/who"})
    assert pushed("type = 'a' AND who = 'b'", feed, taken=("type",)) == {"who": "b"}


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (("type = 'a' AND n = 5",), {"/type": "a"}),
        (("type = 'b'",), {}),
        (("n = 5",), {}),
        (("type = 'a'", "n = 5"), {}),
        (("type = 'a'", "[/type] = 'a' AND n = 5"), {"/type": "a"}),
    ],
)
def test_only_what_each_start_demands_too(starts: tuple[str, ...], expected: dict[str, str]) -> None:
    assert pushed("type = 'a' AND who = 'x'", starts=starts) == expected
    assert pushed(None, starts=starts) == {}


class TestLeft:
    def test_what_the_feed_compares_exactly_is_not_checked_again(self) -> None:
        left = left_of(parse("type = 'a' AND n > 5"), EXACT, None)
        assert left is not None and to_text(left) == "n > 5"
        assert left_of(parse("type = 'a'"), EXACT, None) is None

    def test_what_the_user_says_it_compares_is(self) -> None:
        whole = parse("type = 'a' AND n > 5")
        assert left_of(whole, LOOSE, None) == whole
        assert left_of(parse("type = 'a'"), LOOSE, None) == parse("type = 'a'")

    def test_where_nothing_is_pushed_all_is_left(self) -> None:
        assert left_of(parse("n > 5"), {}, None) == parse("n > 5")
        assert left_of(None, {}, None) is None

    @pytest.mark.parametrize("text", [None, "type = 'b'", "n > 5", "type = 'a' OR n > 5", "type LIKE 'a'", "key = 'a'"])
    def test_what_does_not_ask_for_it_has_lost_its_cursors(self, text: str | None) -> None:
        for filters in (EXACT, LOOSE):
            with pytest.raises(NotImplied):
                left_of(None if text is None else parse(text), filters, None)

    def test_what_column_key_is_belongs_to_it(self) -> None:
        by_key = {"key": FeedFilter("k", "key", True)}
        assert left_of(parse("key = 'k'"), by_key, None) is None
        with pytest.raises(NotImplied):
            left_of(parse("key = 'k'"), by_key, "/who")


def test_shown() -> None:
    assert shown({}) == "nothing"
    assert shown({"b": FeedFilter("2", "/b"), "a": FeedFilter("1", "/a")}) == "filter-a=1, filter-b=2"
