"""Discovery documents: the specification's own examples, every spelling, and what is refused.

Golden documents: the examples of feedapi-spec SPEC.md of 2023-05 (trailing commas taken out: F-7) and the form of the
Go library's answer (F-3).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.feed.discovery import Discovery, FeedPartition, decode_discovery, encode_discovery

CURSOR = "f1ceaa92eb7c11eda43d6fb319691265"


def test_golden_the_example_of_the_discovery_call() -> None:
    body = b"""{
    "partitions": [
      {"id": "0", "lastCursor": "f1ceaa92eb7c11eda43d6fb319691265", "closed": true},
      {"id": "16000", "startsAfterPartition": "0"}
    ],
    "stream": true, "exactlyOnce": true, "filters": ["subject"]
}"""
    assert decode_discovery(body) == Discovery(
        (FeedPartition(0, True, CURSOR), FeedPartition(16000, starts_after=0)),
        stream=True,
        exactly_once=True,
        filters=("subject",),
    )


def test_golden_the_overviews_other_spellings_f1_f2() -> None:
    body = b"""{"partitions": [
      {"id": "0", "lastCursor": "f1ceaa92eb7c11eda43d6fb319691265", "closed": true},
      {"id": "16232", "startsAfterParent": "0"},
      {"id": "24223", "splitFromAncestors": ["24001", "24100"]}
    ]}"""
    found = decode_discovery(body).partitions
    assert (found[1].starts_after, found[2].cursor_from) == (0, (24001, 24100))


def test_golden_the_go_librarys_numbers_f3() -> None:
    body = b'{"token":"xyz","partitions":[{"id":"1","closed":true},{"id":"2","startsAfterPartition":1},{"id":"5","cursorFromPartitions":[3,4]}]}\n'  # noqa: E501
    found = decode_discovery(body)
    assert found.token == "xyz"
    assert found.partitions[0] == FeedPartition(1, closed=True)
    assert (found.partitions[1].starts_after, found.partitions[2].cursor_from) == (1, (3, 4))


@pytest.mark.parametrize("zero", [0, "0"])
@pytest.mark.parametrize("name", ["startsAfterPartition", "startsAfterParent"])
def test_c14_numbers_and_strings_zero_too(zero: object, name: str) -> None:
    body = json.dumps({"partitions": [{"id": zero, "closed": True}, {"id": "1", name: zero}]}).encode()
    assert decode_discovery(body).partitions[1].starts_after == 0


def test_both_spellings_may_stand_there_when_they_agree() -> None:
    def body(other: object) -> bytes:
        child = {"id": 1, "startsAfterPartition": "0", "startsAfterParent": other}
        return json.dumps({"partitions": [{"id": 0, "closed": True}, child]}).encode()

    assert decode_discovery(body(0)).partitions[1].starts_after == 0
    with pytest.raises(RemoteProtocolError, match="disagree"):
        decode_discovery(body(2))


@pytest.mark.parametrize(
    "body", [b'{"partitions":[]}', b'{"partitions":null}', b'\xef\xbb\xbf{"partitions":[],"x":{}}']
)
def test_f15_there_may_be_no_partitions(body: bytes) -> None:
    assert decode_discovery(body) == Discovery(())


def test_flags_may_be_objects_and_are_false_when_missing_p12() -> None:
    assert decode_discovery(b'{"partitions":[],"stream":{"max":5},"exactlyOnce":null}') == Discovery((), stream=True)


def test_f04_filters_of_one_partition() -> None:
    found = decode_discovery(b'{"partitions":[{"id":"0","filters":["a"]}],"filters":["b"]}')
    assert (found.filters, found.partitions[0].filters) == (("b",), ("a",))


def test_f26_an_empty_token_is_a_token() -> None:
    assert decode_discovery(b'{"partitions":[],"token":""}').token == ""


def partition(**more: Any) -> dict[str, Any]:
    return {"id": "1", **more}


REFUSED = {
    "HTML": b"<!DOCTYPE html>",
    "array": b"[]",
    "no partitions": b'{"error":"x"}',
    "nothing": b"",
    "deep": b'{"partitions":' + b"[" * 100_000,
    "partitions is an object": b'{"partitions":{}}',
    "token is a number": b'{"partitions":[],"token":5}',
    "partition is a string": {"partitions": ["0"]},
    "no id": {"partitions": [{}]},
    "p03 id above": {"partitions": [{"id": "32768"}]},
    "p03 id below": {"partitions": [{"id": -1}]},
    "p03 id is no integer": {"partitions": [{"id": "a"}]},
    "p03 id with zeros": {"partitions": [{"id": "01"}]},
    "p03 id is true": {"partitions": [{"id": True}]},
    "p03 id is a fraction": {"partitions": [{"id": 1.0}]},
    "p03 twice": {"partitions": [{"id": "1"}, {"id": 1}]},
    "p06 parent is open": {"partitions": [{"id": "0"}, partition(startsAfterPartition="0")]},
    "p06 parent is not there": {"partitions": [partition(startsAfterPartition="0")]},
    "p07 both": {
        "partitions": [{"id": 0, "closed": True}, partition(startsAfterPartition="0", cursorFromPartitions=["5"])]
    },
    "p08 ancestor is there": {"partitions": [{"id": "0"}, partition(cursorFromPartitions=["0"])]},
    "p08 no list": {"partitions": [partition(cursorFromPartitions="0")]},
    "p08 no ids": {"partitions": [partition(cursorFromPartitions=["x"])]},
    "closed is a word": {"partitions": [partition(closed="yes")]},
    "last cursor is a number": {"partitions": [partition(lastCursor=5)]},
    "filters is a string": b'{"partitions":[],"filters":"a"}',
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(document: bytes | dict[str, Any]) -> None:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(RemoteProtocolError):
        decode_discovery(body)


@pytest.mark.parametrize("number", [0, 32767])
def test_p03_the_ends_of_the_range(number: int) -> None:
    assert decode_discovery(b'{"partitions":[{"id":"%d"}]}' % number).partitions[0].id == number


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("token", [None, "", "a b"])
def test_there_and_back(numbers: bool, token: str | None) -> None:
    told = Discovery(
        (
            FeedPartition(0, True, "last"),
            FeedPartition(1, starts_after=0, last_cursor="é"),
            FeedPartition(9, cursor_from=(7, 3), filters=("x",)),
        ),
        token,
        stream=token is None,
        exactly_once=True,
        filters=("subject",) if token is None else (),
    )
    body = encode_discovery(told, numbers=numbers)
    assert decode_discovery(body) == told
    document = json.loads(body)
    assert [item["id"] for item in document["partitions"]] == ["0", "1", "9"]
    assert document["partitions"][1]["startsAfterPartition"] == (0 if numbers else "0")
    assert document["partitions"][2]["cursorFromPartitions"] == ([7, 3] if numbers else ["7", "3"])
    assert ("token" in document, "stream" in document) == (token is not None, token is None)


def test_p05_a_closed_partition_has_a_last_cursor() -> None:
    with pytest.raises(LocalProtocolError, match="no last cursor"):
        encode_discovery(Discovery((FeedPartition(0, closed=True),)))
    with pytest.raises(LocalProtocolError, match="not listed as closed"):
        encode_discovery(Discovery((FeedPartition(0), FeedPartition(1, starts_after=0))))


def test_what_filters_compare_is_an_extension_that_may_be_anything_elsewhere() -> None:
    said = {"subject": "/subject", "key": "key", "day": "date", "n": 5}
    found = decode_discovery(json.dumps({"partitions": [], "filters": ["key"], "filterFields": said}).encode())
    assert found.filter_fields == {"subject": "/subject", "key": "key"}
    assert json.loads(encode_discovery(found))["filterFields"] == {"subject": "/subject", "key": "key"}
    for other in ("x", ["x"], None, 1):
        body = json.dumps({"partitions": [], "filterFields": other}).encode()
        assert decode_discovery(body).filter_fields == {}
    assert "filterFields" not in json.loads(encode_discovery(Discovery((), token="t", filter_fields=said)))  # type: ignore[arg-type]
    assert "filterFields" not in json.loads(encode_discovery(Discovery(())))


def test_settings_are_an_extension_that_may_be_anything_elsewhere() -> None:
    settings = {"timestamp_type": "append", "retention_max_bytes": None, "segment_max_bytes": 5}
    feed = Discovery((FeedPartition(0),), settings=settings)
    assert json.loads(encode_discovery(feed))["settings"] == settings
    assert decode_discovery(encode_discovery(feed)).settings == settings
    assert "settings" not in json.loads(encode_discovery(Discovery((FeedPartition(0),))))
    for other in ("5", "[]", "null", '{"a": {}}', '{"a": [1]}'):
        assert decode_discovery(f'{{"partitions": [], "settings": {other}}}'.encode()).settings is None
