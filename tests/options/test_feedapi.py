"""Options of format feedapi for reading: what is taken, what is refused, and that nothing secret is shown."""

from __future__ import annotations

import pickle

import pytest

from spark_streams.errors import OptionError
from spark_streams.filters import parse
from spark_streams.options.feedapi import DEFAULT_POLL_INTERVAL_MS, FeedSourceOptions, parse_source, validate
from spark_streams.position import EARLIEST, LATEST, After, Matching

URL = {"url": "https://user:geheim-1@host:8443/feeds/orders?key=geheim-2"}


def stream(**options: str) -> FeedSourceOptions:
    return parse_source({**URL, **options}, streaming=True)


def batch(**options: str) -> FeedSourceOptions:
    return parse_source({**URL, **options}, streaming=False)


def test_the_defaults() -> None:
    options = stream()
    assert options.endpoint.url == "https://host:8443/feeds/orders"
    assert (options.stream, options.dialect, options.partitions, options.ordered) == ("orders", "auto", None, True)
    assert options.starting.everywhere == LATEST and batch().starting.everywhere == EARLIEST
    assert options.filters == () and options.spool_location is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://h/a/b", "b"),
        ("http://h/a/b/", "b"),
        ("http://h/a?b=/c", "a"),
        ("http://h", "h"),
        ("http://u:p@h:80", "h:80"),
    ],
)
def test_the_name_is_what_the_path_ends_with(url: str, name: str) -> None:
    assert parse_source({"url": url}, streaming=True).stream == name
    assert parse_source({"url": url, "stream": "mine"}, streaming=True).stream == "mine"


def test_all_of_them() -> None:
    options = stream(
        DIALECT="V2A",
        ordered="FALSE",
        spoollocation="s3://bucket/x",
        keyField="/a/b~1c",
        timestampField="/t",
        pageSize="7",
        maxBytesPerTrigger="8",
        maxLineBytes="9",
        **{"filter-Subject": "A;b", "filter-x": ""},
    )
    assert (options.dialect, options.ordered, options.spool_location) == ("v2a", False, "s3://bucket/x")
    assert (options.key_field, options.timestamp_field, options.page_size) == ("/a/b~1c", "/t", 7)
    assert (options.max_bytes_per_trigger, options.max_line_bytes) == (8, 9)
    assert options.filters == (("subject", "A;b"), ("x", ""))
    assert stream(dialect="v1", partitions="4").partitions == 4


def test_how_often_a_feed_is_asked() -> None:
    assert stream(pollInterval="7").poll_interval_ms == 7
    assert stream(pollInterval="0").poll_interval_ms == 0
    assert stream().poll_interval_ms == DEFAULT_POLL_INTERVAL_MS


def test_the_smallest_sizes() -> None:
    options = stream(pageSize="1", maxBytesPerTrigger="1", maxLineBytes="1", dialect="v1", partitions="1")
    assert (options.page_size, options.max_bytes_per_trigger, options.max_line_bytes) == (1, 1, 1)
    assert options.partitions == 1
    assert stream(dialect="v1", partitions="32768").partitions == 32768


def test_positions() -> None:
    options = stream(startingOffsets='{"0": "earliest", "1": "latest", "2": "a=", "3": {"after": "latest"}}')
    assert options.starting.each == {"0": EARLIEST, "1": LATEST, "2": After("a="), "3": After("latest")}


def test_filters_and_expressions() -> None:
    options = stream(filter="type = 'a' AND key = 'k'", filterFields=" kind = /type ,who=key, x=/a~1b")
    assert options.filter == parse("type = 'a' AND key = 'k'")
    assert options.filter_fields == {"kind": "/type", "who": "key", "x": "/a~1b"}
    assert stream(filter="type = 'a'", filterFields="None").filter_fields == {}
    assert stream(filter="type = 'a'").filter_fields is None
    assert stream(startingExpression="n > 5").starting.everywhere == Matching("n > 5")
    each = stream(startingOffsets='{"0": {"expression": "n > 5"}, "1": "earliest"}').starting.each
    assert each == {"0": Matching("n > 5"), "1": EARLIEST}
    assert stream(filter="event_time > 5", timestampField="/at").filter is not None


@pytest.mark.parametrize("position", ["5", "-1", '{"at": "c"}', '{"timestamp": 5}', "null", "[]"])
def test_positions_that_feeds_do_not_have(position: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets.*is no position in a feed"):
        stream(startingOffsets=f'{{"0": {position}}}')


@pytest.mark.parametrize(
    ("given", "option", "words"),
    [
        ({"url": "ftp://h/x"}, "url", "http"),
        ({"dialect": "v3"}, "dialect", "v2a"),
        ({"dialect": "v1"}, "partitions", "required"),
        ({"dialect": "v2a", "partitions": "3"}, "partitions", "version 1"),
        ({"partitions": "0"}, "partitions", "at least 1"),
        ({"partitions": "32769"}, "partitions", "32768"),
        ({"partitions": "x"}, "partitions", "whole number"),
        ({"keyField": "a"}, "keyField", "JSON pointer"),
        ({"timestampField": "/a~2"}, "timestampField", "JSON pointer"),
        ({"filter-": "x"}, "filter-", "no filter"),
        ({"dialect": "v1", "partitions": "1", "filter-a": "x"}, "filter-a", "no filters"),
        ({"dialect": "v2b", "filter-a": "x"}, "filter-a", "no filters"),
        ({"spoolLocation": " "}, "spoolLocation", "empty"),
        ({"ordered": "yes"}, "ordered", "true"),
        ({"pageSize": "0"}, "pageSize", "at least 1"),
        ({"token": "t"}, "token", "credentials in 'url'"),
        ({"startingTimestamp": "0"}, "startingTimestamp", "by time"),
        ({"startingOffsetsByTimestamp": "{}"}, "startingOffsetsByTimestamp", "by time"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "startingOffsetsByTimestampStrategy", "by time"),
        ({"consumerGroup": "g"}, "consumerGroup", "consumer groups"),
        ({"filter": "x"}, "filter", "column 2"),
        ({"filter": "publish_time > 5"}, "filter", "timestampField"),
        ({"filter": "[/a~2] = 'x'"}, "filter", "JSON pointer"),
        ({"filterFields": "a=/a"}, "filterFields", "needs 'filter'"),
        ({"filter": "a = 'x'", "filterFields": "a"}, "filterFields", "'a' is not"),
        ({"filter": "a = 'x'", "filterFields": "a=b"}, "filterFields", "JSON pointer"),
        ({"filter": "a = 'x'", "filterFields": "a=/a,"}, "filterFields", "'' is not"),
        ({"filter": "a = 'x'", "filterFields": "a=/a, a=/b"}, "filterFields", "twice"),
        ({"filter": "a = 'x'", "filterFields": "a=/a", "dialect": "v2b"}, "filterFields", "no filters"),
        ({"startingExpression": "n ="}, "startingExpression", "column 4"),
        ({"startingExpression": "event_time > 5"}, "startingExpression", "timestampField"),
        ({"startingExpression": "offset > 'a'"}, "startingExpression", "offset"),
        ({"startingOffsets": '{"0": {"expression": "n ="}}'}, "startingOffsets", "column 4"),
        ({"startingOffsets": "earliest", "startingExpression": "n = 1"}, "startingExpression", "together"),
        ({"pagesize2": "1"}, "pagesize2", "did you mean 'pageSize'"),
        ({"path": "x"}, "path", "option 'url'"),
    ],
)
def test_is_refused(given: dict[str, str], option: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream(**given)
    assert option in str(caught.value) and words in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("option", ["spoolLocation", "maxBytesPerTrigger", "ordered"])
def test_a_batch_takes_no_options_of_streams(option: str) -> None:
    value = {"spoolLocation": "/x", "maxBytesPerTrigger": "1", "ordered": "false"}[option]
    with pytest.raises(OptionError, match=rf"{option}.*for streams"):
        batch(**{option: value})


def test_a_token_takes_the_place_of_a_user() -> None:
    options = parse_source({"url": "http://h/x", "token": " geheim-3 "}, streaming=True)
    assert options.endpoint.token is not None and options.endpoint.token.reveal() == "geheim-3"
    for token in ("a\nb", "ä", "a\x7f"):
        with pytest.raises(OptionError, match="token") as caught:
            parse_source({"url": "http://h/x", "token": token}, streaming=True)
        assert token not in str(caught.value)


def test_secrets_are_not_shown_and_survive_a_pickle() -> None:
    options = stream()
    assert "geheim" not in repr(options) and b"geheim" not in pickle.dumps(options)
    back = pickle.loads(pickle.dumps(options))
    assert back == options
    assert back.endpoint.password.reveal() == "geheim-1" and back.endpoint.query.reveal() == "key=geheim-2"


def test_validation_before_it_is_known_whether_they_are_for_reading() -> None:
    validate(URL, reading=True)
    with pytest.raises(OptionError):
        validate({**URL, "dialect": "v9"})
    with pytest.raises(OptionError):
        validate({**URL, "startingOffsets": "soon"})
    with pytest.raises(OptionError, match="url"):
        validate({}, reading=True)
