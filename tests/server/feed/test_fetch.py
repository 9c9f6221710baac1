"""Fetches of version 2, in both dialects: P-20 to P-28, P-39."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.server.feed.conftest import Door

Doors = Callable[..., Door]


def numbered(first: int, stop: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, stop)]


def test_p20_first_is_the_beginning_and_last_the_end(either: Door) -> None:
    either.create("orders", 2)
    either.numbers(0, 5)
    assert either.page(0, "_first").events == numbered(0, 5)
    last = either.page(0, "_last")
    assert last.events == [] and last.cursors != ["_last"]
    either.numbers(5, 7)
    assert either.page(0, last.cursor).events == numbered(5, 7)
    assert either.page(1, "_first").events == []


def test_p20_the_members_of_a_line_are_those_of_the_dialect(doors: Doors) -> None:
    for dialect, member in (("v2a", "event"), ("v2b", "data")):
        door = doors(dialect=dialect, folder=dialect)
        door.create()
        door.append([b'{"a":1}'])
        event, checkpoint = door.page().answer.content.split(b"\n")[:-1]
        assert event == b'{"%s":{"a":1}}' % member.encode()
        assert list(json.loads(checkpoint)) == ["cursor"]


NASTY = [
    '{"a":"\\n"}',
    '{"a":"\u2028\u2029\u0085\u000b"}'.replace("\u000b", "\\u000b"),
    "line\none\r\ntwo\u2028three\u0085four\x0b\x0c\x1c\x1d\x1e",
    "\ufeffbom",
    '"quoted" \\ and \t',
    "\x00",
    "",
    "😀",
]


def test_p21_a_message_is_one_line_whatever_is_in_it(either: Door) -> None:
    either.create()
    either.append([text.encode() for text in NASTY])
    answer = either.page().answer
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = answer.content.split(b"\n")
    assert len(lines) == len(NASTY) + 2 and lines[-1] == b""
    assert either.page().events == [json.loads(NASTY[0]), json.loads(NASTY[1]), *NASTY[2:]]


def test_p21_raw_newlines_between_the_tokens_of_a_document_become_spaces(either: Door) -> None:
    either.create()
    either.append([b'{\n  "a": [1,\r\n 2]\n}'])
    assert either.page().events == [{"a": [1, 2]}]
    assert either.page().answer.content.count(b"\n") == 2


def test_a_document_is_sent_byte_for_byte(either: Door) -> None:
    document = b'{ "b":1.50,"a" : "\\u0041\\/", "b":1e400 , "big":123456789012345678901234567890}'
    either.create()
    either.append([document])
    line = either.page().answer.content.split(b"\n")[0]
    assert line.split(b":", 1)[1][:-1] == document


def test_p22_a_response_without_events_has_one_checkpoint(either: Door) -> None:
    either.create()
    for cursor in ("_first", "_last", either.page().cursor):
        assert [list(line) for line in either.page(0, cursor).lines] == [["cursor"]]


def test_p23_the_last_line_is_a_checkpoint_of_all_before(either: Door) -> None:
    either.create()
    either.numbers(0, 2500)
    cursor, seen = "_first", []
    for size in (1, 7, 1000, 999, 493, 10):
        page = either.page(0, cursor, pageSizeHint=size)
        assert "cursor" in page.lines[-1]
        seen += page.events
        cursor = page.cursor
    assert seen == numbered(0, 2500)


@pytest.mark.parametrize("every", [1, 3, 100])
def test_p24_reading_goes_on_right_after_every_checkpoint(doors: Doors, every: int) -> None:
    door = doors(checkpoint_events=every)
    door.create()
    chance = random.Random(every)
    count = 0
    while count < 60:  # stored batches of all sizes
        size = chance.randint(1, 9)
        door.numbers(count, count + size)
        count += size
    before = 0
    for line in door.page().lines:
        if "cursor" in line:
            rest = door.page(0, line["cursor"]).events
            assert rest == numbered(before, count)
        else:
            before += 1


def test_p24_cursors_outlive_the_server(doors: Doors) -> None:
    door = doors()
    door.create()
    door.numbers(0, 10)
    cursor = door.page(pageSizeHint=4).cursor
    door.server.stop()
    door.log.close()
    again = doors()
    assert again.page(0, cursor).events == numbered(4, 10)


def test_p25_an_event_is_an_object_or_a_text(either: Door) -> None:
    values = [
        b"[1]",
        b"1",
        b"true",
        b"null",
        b'"text"',
        b"",
        b"{",
        b'{"a":}',
        b'{"a":1} x',
        b"\xff\x00",
        b"{}",
        b"[{}]",
    ]
    either.create()
    either.append(values)
    lines = either.page().lines[:-1]
    events = [line.get("event", line.get("data")) for line in lines]
    assert events == [
        "[1]", "1", "true", "null", '"text"', "", "{", '{"a":}', '{"a":1} x', "/wA=", {}, "[{}]",
    ]  # fmt: skip
    assert [line.get("encoding") for line in lines] == [None] * 9 + ["base64", None, None]


def test_p25_a_message_without_body_is_null(either: Door) -> None:
    """As is an amqp-value null; an empty body is an empty text, and a text of these letters is one."""
    either.create()
    either.append([None, b"x", b"null", b""])  # type: ignore[list-item]
    partition = either.log.stream("orders").partitions["0"]
    partition.append([b"", bytes.fromhex("005377a1046e756c6c"), bytes.fromhex("005375a00400537740")])
    assert either.page().events == [None, "x", "null", "", None, "null", "\0Sw@"]


def test_a_damaged_message_is_sent_as_its_bytes_and_hides_no_other(either: Door) -> None:
    either.create()
    either.numbers(0, 3)
    either.log.stream("orders").partitions["0"].append([b"\x00\x53\x77\xa1\x05ab\xff"])
    either.numbers(3, 5)
    lines = either.page().lines
    assert [line.get("event", line.get("data")) for line in lines[:3]] == numbered(0, 3)
    assert lines[3]["encoding"] == "base64"
    assert [line.get("event", line.get("data")) for line in lines[4:6]] == numbered(3, 5)


def test_what_amqp_can_say_besides_data(either: Door) -> None:
    from spark_streams.wire.amqp.encode import encode_value

    either.create()
    partition = either.log.stream("orders").partitions["0"]
    partition.append([b"\x00\x53\x77" + encode_value(value) for value in ("text", '{"a":1}', 7, {"a": [1]})])
    partition.append([b'\x00\x53\x75\xa0\x03{"a\x00\x53\x75\xa0\x04":1}'])  # two data sections, joined
    assert either.page().events == ["text", {"a": 1}, "7", {"a": [1]}, {"a": 1}]


def test_p26_two_reads_give_the_same(either: Door) -> None:
    either.create()
    for first in range(0, 200, 3):
        either.numbers(first, first + 3)
    assert either.read() == either.read() == numbered(0, 201)


@pytest.mark.parametrize(("every", "checkpoints"), [(1, 12), (5, 3), (1000, 1)])
def test_p27_checkpoints_come_as_often_as_is_set(doors: Doors, every: int, checkpoints: int) -> None:
    door = doors(checkpoint_events=every)
    door.create()
    door.numbers(0, 12)
    page = door.page()
    assert len(page.cursors) == checkpoints and page.events == numbered(0, 12)


def test_p28_the_page_size_is_a_hint(doors: Doors) -> None:
    door = doors(page_size=5, max_page_size=20)
    door.create()
    door.numbers(0, 50)
    assert len(door.page(pageSizeHint=1).events) == 1
    assert len(door.page(pageSizeHint=10**6).events) == 20
    assert len(door.page().events) == len(door.page(pageSizeHint=0).events) == 5
    assert len(door.page(pagesizehint=7).events) == 7, "both spellings are taken"
    assert door.page(pageSizeHint="many").answer.status_code == 400


def test_p28_a_page_ends_at_its_bytes_too(doors: Doors) -> None:
    door = doors(max_page_bytes=100_000)
    door.create()
    for _ in range(10):
        door.append([b"x" * 60_000])
    page = door.page(pageSizeHint=1000)
    assert 1 <= len(page.events) < 10
    assert door.read() == ["x" * 60_000] * 10


def test_p39_what_is_wrong_is_answered_400(either: Door) -> None:
    either.create("orders", 2)
    either.create("others")
    either.numbers(0, 3)
    good, beyond = either.page().cursor, either.page().cursor[:-1] + "f"
    partitions = ("x", "", "2", "-0", "1e0", "99999999999999999999", "0x0")
    cursors = ("", "nonsense", good[:-1], good + "0", good.upper() + "Z", beyond, "_First", "é")
    for partition in partitions:
        answer = either.page(partition).answer
        assert answer.status_code == 400 and answer.text.count("\n") == 1, partition
    for cursor in cursors:
        answer = either.page(0, cursor).answer
        assert answer.status_code == 400 and answer.text.count("\n") == 1, cursor
    assert "partition 0" in either.page(1, good).answer.text, "one partition's cursor is no other's"
    assert "another feed" in either.page(0, good, name="others").answer.text


def test_p39_a_fetch_needs_both_arguments(door: Door) -> None:
    door.create()
    for query in ({"partition": 0}, {"cursor": "_first"}, {"pageSizeHint": 3}, {"nonsense": 1}):
        assert door.get(**query).status_code == 400


def test_p39_a_cursor_of_a_feed_that_was_made_anew(either: Door) -> None:
    either.create()
    either.numbers(0, 3)
    cursor = either.page().cursor
    either.server.call(lambda: either.log.delete_stream("orders"))
    assert either.get("orders").status_code == 404
    either.create()
    either.numbers(0, 9)
    assert either.page(0, cursor).answer.status_code == 400
    assert len(either.page().events) == 9, "nothing of the former one is kept"


def test_arguments_that_are_no_utf8(door: Door) -> None:
    door.create()
    assert door.session.get(f"{door.url}/orders?partition=0&cursor=%ff", timeout=120).status_code == 400
    many = "&".join(f"x{n}=1" for n in range(500))
    assert door.session.get(f"{door.url}/orders?partition=0&cursor=_first&{many}", timeout=120).status_code == 400


def test_events_that_retention_removed_are_gone_and_that_is_said(doors: Doors) -> None:
    now = [1_000]
    door = doors(clock=lambda: now[0])
    door.create("orders", 1, segment_max_bytes=300, retention_max_age_ms=500)
    door.numbers(0, 10)
    cursor = door.page(pageSizeHint=3).cursor
    assert door.page(0, cursor).events == numbered(3, 10)
    now[0] = 10_000
    for first in range(10, 40, 10):
        door.numbers(first, first + 10)
    assert door.log.enforce_retention() > 0
    answer = door.page(0, cursor).answer
    assert answer.status_code == 410 and "_first" in answer.text
    kept = door.page(0, "_first").events
    assert kept == numbered(40 - len(kept), 40)


def test_keys_go_along(either: Door) -> None:
    either.create()
    either.append([b"{}", b"text", b"\xff"], keys=["a", None, 'q"\u2028'])
    assert [line.get("key") for line in either.page().lines] == ["a", None, 'q"\u2028', None]


def test_properties_of_messages_do_not_change_the_payload(either: Door) -> None:
    either.create()
    properties = pa.array([{"subject": "s", "content_type": "application/json"}])
    either.append([b'{"a":1}'], properties=properties)
    assert either.page().events == [{"a": 1}]


def test_p28_a_cursor_of_what_an_older_copy_lacks_is_refused(doors: Doors, tmp_path: Path) -> None:
    before = doors(folder="log")
    before.create()
    before.numbers(0, 5)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    kept = before.page().cursor
    before.numbers(5, 9)
    lost = before.page().cursor
    copy = doors(folder="copy")
    assert copy.get(partition=0, cursor=lost).status_code == 400, "the copy ends before it"
    copy.numbers(100, 120)
    refused = copy.get(partition=0, cursor=lost)
    assert (refused.status_code, "replaced by an older copy" in refused.text) == (400, True)
    assert copy.page(0, kept).events == numbered(100, 120)
    assert before.page(0, lost).events == [], "of the log that gave it, it is one"


def test_p28_a_cursor_of_another_version_is_refused(either: Door) -> None:
    either.create()
    either.numbers(0, 9)
    cursor = either.page(pageSizeHint=4, pagesizehint=4).cursor
    place, offset = cursor[1:21], cursor[-16:]
    for wrong in (f"1{place}{offset}", f"2{place}{offset}", f"1{cursor[1:]}", f"3{cursor[1:]}"):
        assert either.get(partition=0, cursor=wrong, token=either.discover().get("token")).status_code != 200
