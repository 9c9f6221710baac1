"""Arguments of fetches in three dialects: what others send, what is refused and with which words."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.feed.fetch_arguments import ENDLESS, FIRST, Fetch, decode_fetch
from spark_streams.wire.feed.line import Dialect
from tests.server.foreign_programs import Driver

V1, V2A, V2B = Dialect.V1, Dialect.V2A, Dialect.V2B


def decoded(query: str, dialect: Dialect, **more: Any) -> Fetch:
    return decode_fetch(parse_qsl(query, keep_blank_values=True), dialect, **more)


def test_golden_the_specifications_call() -> None:
    query = "partition=16000&cursor=f1ceaa92eb7c11eda43d6fb319691265"
    fetch = Fetch(V2A, 16000, "f1ceaa92eb7c11eda43d6fb319691265")
    assert decoded(query, V2A) == fetch
    assert fetch.query() == parse_qsl(query)


def test_golden_zeroeventhubs_client(zeroeventhub: Driver) -> None:
    headers = ["ce_id", "ce_type"]
    sent = zeroeventhub.ask("parameters", partition=2, cursor="a+b/c=;&%", page_size=1000, headers=headers)
    pairs = [(name, value) for name, value in sent]
    fetch = decode_fetch(pairs, V1)
    assert fetch == Fetch(V1, 2, "a+b/c=;&%", 1000, count=4, headers=("ce_id", "ce_type"))
    assert sorted(fetch.query()) == sorted(pairs)


FETCHES = [
    Fetch(V1, 0, FIRST, count=1),
    Fetch(V1, 3, "c", 10, count=4, headers=("_all",)),
    Fetch(V2A, 0, "c", 10, filters={"subject": "a b;c", "x-y": ""}),
    Fetch(V2A, 0, "c", stream_ms=5000),
    Fetch(V2A, 0, "c", stream_ms=ENDLESS),
    Fetch(V2B, 32767, "c", 10, token=""),
    Fetch(V2B, 0, "c", token="a+b", filters={"event-types": "a;b"}),
    Fetch(V2B, 0, "c", token="t", filters={"skip-event-types": "a"}),
]


@pytest.mark.parametrize("fetch", FETCHES, ids=str)
def test_there_and_back(fetch: Fetch) -> None:
    assert decode_fetch(fetch.query(), fetch.dialect) == fetch


def test_each_dialect_spells_the_page_size_its_own_way() -> None:
    assert ("pageSizeHint", "5") in Fetch(V2A, 0, "c", 5).query()
    assert ("pagesizehint", "5") in Fetch(V2B, 0, "c", 5, token="t").query()
    assert ("pagesizehint", "5") in Fetch(V1, 0, "c", 5, count=1).query()


def test_f20_f23_page_sizes() -> None:
    assert Fetch(V2A, 0, "c", 0).query() == [("partition", "0"), ("cursor", "c")]
    assert decoded("partition=0&cursor=c&pageSizeHint=0", V2A).page_size is None
    assert decoded("partition=0&cursor=c&pagesizehint=x&pageSizeHint=7", V2A).page_size == 7
    assert decoded("partition=0&cursor=c&pagesizehint=7&pageSizeHint=8", V2B).page_size == 7
    assert decoded("partition=0&cursor=c&pageSizeHint=1000000", V2A).page_size == 1_000_000


def test_unknown_arguments_are_passed_over() -> None:
    assert decoded("partition=0&cursor=c&utm=5&n=3", V2A) == Fetch(V2A, 0, "c")


REFUSED = [
    (V2A, "cursor=c", "no partition"),
    (V2A, "partition=0", "no cursor argument"),
    (V2A, "partition=0&cursor=", "no cursor argument"),
    (V2A, "partition=x&cursor=c", "partition is 'x'"),
    (V2A, "partition=-1&cursor=c", "partition is"),
    (V2A, "partition=32768&cursor=c", "0 to 32767"),
    (V2A, "partition=%D9%A1&cursor=c", "partition is"),
    (V2A, "partition=0&partition=1&cursor=c", "twice"),
    (V2A, "partition=0&cursor=c&cursor=d", "twice"),
    (V2A, "partition=0&cursor=c&pageSizeHint=x", "not|expected an integer"),
    (V2A, "partition=0&cursor=c&pageSizeHint=5&stream=y", "exclude each other"),
    (V2A, "partition=0&cursor=c&stream=0", "stream is '0'"),
    (V2A, "partition=0&cursor=c&stream=n", "stream is 'n'"),
    (V2A, "partition=0&cursor=c&filter-nosuch=x", "filter nosuch is not supported"),
    (V2A, "partition=0&cursor=c&filter-subject=x&filter-subject=x", "twice"),
    (V2B, "partition=0&cursor=c&event-types=a&skip-event-types=b", "exclude each other"),
    (V1, "cursor0=c", "no n argument"),
    (V1, "n=x&cursor0=c", "n is 'x'"),
    (V1, "n=0&cursor0=c", "n is 0"),
    (V1, "n=1", "cursors are missing"),
    (V1, "n=2&cursor0=a&cursor1=b", "one partition at a time"),
    (V1, "n=2&cursor2=a", "partitions go from 0 to 1"),
    (V1, "n=1&cursor0=", "empty"),
]


@pytest.mark.parametrize(("dialect", "query", "words"), REFUSED, ids=lambda value: str(value))
def test_what_is_refused_with_400(dialect: Dialect, query: str, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decoded(query, dialect, offered=("subject",))


def test_p33_a_missing_token_is_for_the_server_to_refuse_with_409() -> None:
    assert decoded("partition=0&cursor=c", V2B).token == ""


NEVER_SENT = [
    Fetch(V2A, 0, "c", token="t"),
    Fetch(V2B, 0, "c"),
    Fetch(V1, 0, "c"),
    Fetch(V2A, 0, "c", count=1),
    Fetch(V2A, 0, "c", headers=("a",)),
    Fetch(V2A, 0, "c", 5, stream_ms=ENDLESS),
    Fetch(V2B, 0, "c", token="t", stream_ms=5),
    Fetch(V1, 0, "c", count=1, filters={"a": "b"}),
    Fetch(V2B, 0, "c", token="t", filters={"subject": "b"}),
    Fetch(V2B, 0, "c", token="t", filters={"event-types": "a", "skip-event-types": "b"}),
]


@pytest.mark.parametrize("fetch", NEVER_SENT, ids=str)
def test_what_a_dialect_does_not_have_is_never_sent(fetch: Fetch) -> None:
    with pytest.raises(LocalProtocolError):
        fetch.query()


@pytest.mark.parametrize(
    ("query", "dialect", "meant"),
    [
        ("partition=0&cursor=c&pagesize=5", V2A, "pageSizeHint|pagesizehint"),
        ("partition=0&cursor=c&page_size_hint=5", V2A, "pageSizeHint|pagesizehint"),
        ("partition=0&cursor=c&streem=5", V2A, "stream"),
        ("partition=0&cursor=c&filter_key=5", V2A, "filter-key"),
        ("partition=0&cursor=c&Filter-Subject=5", V2A, "filter-subject"),
        ("partition=0&cursr=c", V2A, "cursor"),
        ("token=t&partition=0&cursor=c&event-type=a", V2B, "event-types"),
        ("token=t&partition=0&cursor=c&skip-event-type=a", V2B, "skip-event-types"),
        ("toke=t&partition=0&cursor=c", V2B, "token"),
        ("n=1&cursor0=c&header=a", V1, "headers"),
        ("n=1&curser0=c", V1, "cursor0"),
    ],
)
def test_a_misspelt_argument_is_not_passed_over(query: str, dialect: Dialect, meant: str) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"did you mean ({meant})\?"):
        decoded(query, dialect)


@pytest.mark.parametrize("name", ["_", "api-version", "code", "sig", "subscription-key", "utm_source", "wait", "limit"])
@pytest.mark.parametrize(
    ("query", "dialect"),
    [("partition=0&cursor=c", V2A), ("token=t&partition=0&cursor=c", V2B), ("n=1&cursor0=c", V1)],
)
def test_an_argument_unlike_any_is_passed_over(name: str, query: str, dialect: Dialect) -> None:
    assert decoded(f"{query}&{name}=1", dialect) == decoded(query, dialect)


@pytest.mark.parametrize(
    ("query", "dialect"),
    [
        ("token=t&token=u&partition=0&cursor=c", V2B),
        ("partition=0&cursor=c&stream=1&stream=2", V2A),
        ("n=1&cursor0=c&cursor0=d", V1),
        ("n=1&cursor0=c&headers=a&headers=b", V1),
    ],
)
def test_an_argument_that_is_given_twice(query: str, dialect: Dialect) -> None:
    with pytest.raises(RemoteProtocolError, match="given twice"):
        decoded(query, dialect)
