"""Publishing an event from the page: what is stored, where, what is refused beside the form, and who may do it."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from spark_streams.errors import PartitionEnded
from spark_streams.log import Partition
from spark_streams.log.format.records import message_columns_of
from spark_streams.server.users import Permissions
from spark_streams.server.web.publish import read_properties
from spark_streams.wire.amqp.message import decode_sections
from tests.server.web.conftest import Window, shown

T1957 = -386_380_800_000


def publish(window: Window, **fields: str) -> Any:
    return window.post(f"/publish?stream={fields.pop('stream', 'orders')}", **fields)


def stored(window: Window, partition: str = "0") -> dict[str, Any]:
    """The last event of a partition."""
    log = window.log.stream("orders").partitions[partition]
    records = log.read(log.next_offset - 1)
    columns = message_columns_of(records, ("value", "key", "properties", "application_properties"))
    found = {name: column[0].as_py() for name, column in columns.items()}
    return {**found, "stored_key": records.key(0), "ms": int(records.timestamps[0]), "raw": records.value(0)}


def test_an_event_with_all_its_parts(window: Window) -> None:
    window.create(timestamp_type="create")
    answer = publish(
        window,
        key="alice",
        value='{"a": 1.50,\r\n"ä": null}',
        content_type="application/json; charset=utf-8",
        subject="order",
        properties="type=order\r\n\r\nformula=a=b\r\nempty=",
        created="1957-10-04",
    )
    assert answer.status_code == 303
    event = stored(window)
    assert event["value"] == '{"a": 1.50,\n"ä": null}'.encode()
    assert (event["key"], event["stored_key"], event["ms"]) == ("alice", b"alice", T1957)
    assert event["properties"]["subject"] == "order"
    assert event["properties"]["content_type"] == "application/json; charset=utf-8"
    assert event["properties"]["creation_time"].timestamp() * 1000 == T1957
    assert event["application_properties"] == [("type", "order"), ("formula", "a=b"), ("empty", "")]
    page = window.get(answer.headers["location"]).text
    assert "The event was published. " in shown(page)
    assert "It is in partition 0, at offset 0" in shown(page)
    link = unescape(re.findall(r'href="(/event\?[^"]*)"', page)[0])
    assert "alice" in window.get(link).text


def test_an_event_with_nothing_but_a_value(window: Window) -> None:
    window.create()
    assert publish(window, value="", content_type="").status_code == 303
    assert decode_sections(stored(window)["raw"]) == [(0x75, b"")]


def test_keys_choose_partitions_as_the_doors_do(window: Window) -> None:
    window.create(partitions=5)
    stream = window.log.stream("orders")
    for key in ("alice", "bob", "ä", "42"):
        where = publish(window, key=key, value="x", content_type="").headers["location"]
        assert f"partition={stream.home(key.encode())}&" in where
    unkeyed = {publish(window, value="x", content_type="").headers["location"] for _ in range(5)}
    assert {re.findall("partition=([0-9])", each)[0] for each in unkeyed} == {"0", "1", "2", "3", "4"}
    assert "partition=3&" in publish(window, key="alice", value="x", partition="3", content_type="").headers["location"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"value": "{", "content_type": "application/json"}, "The value is no JSON, which its content type says"),
        ({"value": "[" * 5_000, "content_type": "application/cloudevents+json"}, "The value is no JSON"),
        ({"value": "NaN", "content_type": "application/json"}, "NaN is not JSON"),
        ({"properties": "type=a\nno sign"}, "Application properties, line 2: 'no sign', expected name=value."),
        ({"properties": "a=1\na=2"}, "line 2: 'a=2' repeats a name"),
        ({"properties": "=1"}, "line 1: '=1', expected name=value"),
        ({"created": "yesterday"}, "'yesterday' is no instant"),
        ({"created": "9223372036854775807"}, "lies outside the years"),
        ({"partition": "9"}, "There is no partition '9'"),
        ({"content_type": "\u20ac"}, "cannot be encoded"),
    ],
)
def test_what_cannot_be_published_is_said_beside_the_form(window: Window, fields: dict[str, str], said: str) -> None:
    window.create(timestamp_type="create")
    answer = publish(window, **{"key": "<b>k</b>", "value": "kept", "subject": "s", "content_type": "", **fields})
    assert answer.status_code == 422
    text = unescape(answer.text)
    assert said in text
    assert 'value="<b>k</b>"' in text
    assert "<b>k" not in answer.text
    for value in fields.values():
        assert value in text
    assert window.log.stream("orders").partitions["0"].next_offset == 0


def test_instants_before_1970_that_a_stream_refuses(window: Window) -> None:
    window.create(timestamp_type="create", timestamp_format="legacy", legacy_negative="error")
    answer = publish(window, value="x", content_type="", created="1957-10-04")
    assert answer.status_code == 422
    assert "The event was not stored" in answer.text


def test_a_full_disk_keeps_what_was_typed(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    window.create()

    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Partition, "append", full)
    answer = publish(window, value="typed", content_type="")
    assert answer.status_code == 422
    assert "make room on the disk of the log" in answer.text
    assert "typed</textarea>" in answer.text


def test_an_event_follows_a_split(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    window.create()
    window.append([b"x"])
    window.log.split_partition("orders", "0", 2)
    answer = publish(window, value="x", content_type="", partition="0")
    assert "Partition 0 takes no more events: it was split into 1, 2." in answer.text
    # A split between the choice of the partition and the append: the next round finds the children.
    append, refused = Partition.append, []

    def once(self: Partition, *arguments: Any, **settings: Any) -> Any:
        if not refused:
            refused.append(self.id)
            raise PartitionEnded("orders", self.id, ("1", "2"))
        return append(self, *arguments, **settings)

    monkeypatch.setattr(Partition, "append", once)
    assert publish(window, key="k", value="x", content_type="").status_code == 303
    assert refused


def test_a_form_that_is_too_large(windows: Callable[..., Window]) -> None:
    window = windows(max_body_bytes=1_000)
    window.create()
    answer = publish(window, value="x" * 1_000, content_type="")
    assert answer.status_code == 422
    assert "its form has more than 1000 bytes" in answer.text
    assert publish(window, value="x" * 500, content_type="").status_code == 303
    assert window.log.stream("orders").partitions["0"].next_offset == 1


def test_a_form_without_its_csrf_token_publishes_nothing(window: Window) -> None:
    window.create()
    assert publish(window, value="x", csrf_token="0" * 64).status_code == 403
    assert window.log.stream("orders").partitions["0"].next_offset == 0


def test_an_address_says_nothing_but_numbers(window: Window) -> None:
    window.create()
    for query in ({"partition": "9", "offset": "1"}, {"partition": "0", "offset": "<b>"}, {"offset": "1"}):
        assert "It is in partition" not in window.text("/publish", stream="orders", notice="published", **query)


def test_who_may_write_publishes_and_sees_no_event(windows: Callable[..., Window]) -> None:
    window = windows(
        users={"writer": "w", "reader": "r"},
        permissions={
            "writer": Permissions(configure="^$", write="^orders$", read="^$"),
            "reader": Permissions(configure="^$", write="^$", read="^orders$"),
        },
    )
    window.create("orders")
    window.create("others")
    window.sign_in("reader", "r")
    assert publish(window, value="x", content_type="").status_code == 403
    window.sign_in("writer", "w")
    assert publish(window, stream="others", value="x").status_code == 403
    answer = publish(window, value="x", content_type="")
    assert answer.status_code == 303
    page = window.get(answer.headers["location"]).text
    assert "It is in partition 0, at offset 0." in shown(page)
    assert "/event?" not in page
    assert "/stream?" not in page
    assert "/publish?stream=orders" in window.get("/").text
    assert window.log.stream("orders").partitions["0"].next_offset == 1
    assert window.log.stream("others").partitions["0"].next_offset == 0


def test_lines_of_properties() -> None:
    assert read_properties("") == []
    assert read_properties(" a = b \nc==") == [("a", " b "), ("c", "=")]


def test_a_long_form_is_not_repeated_with_its_fault(window: Window) -> None:
    window.create()
    answer = publish(window, value="&" * 300_000, content_type="application/json")
    assert answer.status_code == 422 and len(answer.text) < 10_000
    assert "The value is no JSON" in answer.text and "Go back in the browser" in answer.text
