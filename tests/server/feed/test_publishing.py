"""The extension that publishes, and the one that creates feeds."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import requests

from spark_streams.server.feed.request_bodies import rows_of
from spark_streams.server.http.requests import HttpError
from tests.server.feed.conftest import Door

Doors = Callable[..., Door]
ARROW = "application/vnd.apache.arrow.stream"


def arrow(**columns: pa.Array) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def everything(door: Door, name: str = "orders") -> list[Any]:
    return [event for each in door.discover(name)["partitions"] for event in door.read(each["id"], name=name)]


def test_lines_come_back_as_they_were(door: Door) -> None:
    door.create()
    lines = [
        b'{"event":{"a" : 1.50}}',
        b'{"data":{"b":2},"key":"k"}',
        '{"event":"text\u2028\\n"}'.encode(),
        b'{"event":"/wA=","encoding":"base64"}',
    ]
    answer = door.post(b"\n".join(lines) + b"\n\n")
    assert answer.status_code == 200 and answer.json() == {"appended": 4, "repeated": 0}
    shown = door.page().lines[:-1]
    assert [line["event"] for line in shown] == [{"a": 1.5}, {"b": 2}, "text\u2028\n", "/wA="]
    assert [line.get("key") for line in shown] == [None, "k", None, None]
    assert shown[3]["encoding"] == "base64"
    assert door.page().answer.content.startswith(b'{"event":{"a" : 1.50}}\n')


def test_an_arrow_stream(doors: Doors) -> None:
    door = doors(others=True)
    door.create("orders", 1, timestamp_type="create")
    body = arrow(
        value=pa.array([b"{}", b"\xff", b"text"]),
        key=pa.array(["a", None, "b"]),
        timestamp=pa.array([-386_380_800_000_000, None, 1_500], pa.timestamp("us", tz="UTC")),
    )
    assert door.post(body, kind=ARROW).json() == {"appended": 3, "repeated": 0}
    assert door.read() == [{}, "/w==", "text"]
    assert door.read(filter__key="b") == ["text"]
    records = door.log.stream("orders").partitions["0"].read(0)
    assert records.timestamps.tolist() == [-386_380_800_000, -(2**63), 1]
    assert [records.key(row) for row in range(3)] == [b"a", None, b"b"]


@pytest.mark.parametrize("name", ["value", "key"])
def test_a_batch_with_text_that_is_no_utf_8_is_refused(name: str) -> None:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["v"]), name: broken})
    with pytest.raises(HttpError) as caught:
        rows_of(batch)
    assert (caught.value.status_code, "UTF8" in caught.value.text) == (400, True)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_arrow_values_are_text_or_bytes(door: Door, kind: pa.DataType) -> None:
    door.create()
    assert door.post(arrow(value=pa.array(["{}", "x"], kind)), kind=ARROW).status_code == 200
    assert door.read() == [{}, "x"]


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (ARROW, b"nonsense", 400),
        (ARROW, arrow(values=pa.array([b"x"])), 400),
        (ARROW, arrow(value=pa.array([b"x"]), partition=pa.array(["0"])), 400),
        (ARROW, arrow(value=pa.array([1])), 400),
        (ARROW, arrow(value=pa.array([b"x"]), key=pa.array([b"k"])), 400),
        (ARROW, arrow(value=pa.array([b"x"]), timestamp=pa.array([5])), 400),
        (ARROW, arrow(value=pa.array([b"x" * 1000] * 9))[:-600], 400),
        ("application/x-ndjson", b'{"event":{}}\n{"event":', 400),
        ("application/x-ndjson", b'{"event":{}}\n{"no":1}\n', 400),
        ("application/x-ndjson", b'{"event":{}}\n{"cursor":"x"}\n', 400),
        ("application/x-ndjson", b'{"event":[1]}\n', 400),
        ("application/x-ndjson", b'{"event":{},"data":{}}\n', 400),
        ("application/x-ndjson", b'{"event":{},"encoding":"gzip"}\n', 400),
        ("application/x-ndjson", b"\xff\n", 400),
        ("application/json", b"{}", 415),
        ("", b"{}", 415),
    ],
)
def test_what_cannot_be_read_is_refused_whole(door: Door, kind: str, body: bytes, status: int) -> None:
    door.create()
    answer = door.post(body, kind=kind)
    assert answer.status_code == status and answer.text.count("\n") == 1
    assert everything(door) == []


def test_nothing_to_publish(door: Door) -> None:
    door.create()
    assert door.post(b"").json() == {"appended": 0, "repeated": 0}
    assert door.post(arrow(value=pa.array([], pa.binary())), kind=ARROW).json() == {"appended": 0, "repeated": 0}


def test_a_feed_that_is_not_there_is_not_made_by_publishing(door: Door) -> None:
    assert door.post(b'{"event":{}}\n').status_code == 404


def test_packed_bodies_and_limits(doors: Doors) -> None:
    door = doors(max_body_bytes=1000)
    door.create()
    line = b'{"event":{}}\n'
    assert door.post(gzip.compress(line), Content_Encoding="gzip").json()["appended"] == 1
    assert door.post(gzip.compress(line * 1000), Content_Encoding="gzip").status_code == 413
    assert door.post(gzip.compress(line)[:-4], Content_Encoding="gzip").status_code == 400
    assert door.post(b"no gzip", Content_Encoding="gzip").status_code == 400
    assert door.post(line, Content_Encoding="br").status_code == 415
    assert door.post(line * 100).status_code == 413
    chunked = requests.post(
        f"{door.url}/orders", data=iter([line] * 100), headers={"Content-Type": "application/x-ndjson"}, timeout=120
    )
    assert chunked.status_code == 413
    assert everything(door) == [{}]


# --- where events go


def test_a_key_goes_where_the_other_doors_send_it(door: Door) -> None:
    door.create("orders", 3)
    keys = [f"key-{n}" for n in range(50)]
    door.post(b"".join(b'{"event":"%s","key":"%s"}\n' % (key.encode(), key.encode()) for key in keys))
    for partition in range(3):
        assert door.read(partition) == [key for key in keys if zlib.crc32(key.encode()) % 3 == partition]


def test_a_long_key_goes_there_too(door: Door) -> None:
    """Above some size, keys are not copied to be looked at."""
    door.create(partitions=7)
    keys = ["k" * 40_000 + str(n) for n in range(20)] + ["ü" * 20_000, "k", "", None]
    body = b"".join(json.dumps({"event": {"n": n}, "key": key}).encode() + b"\n" for n, key in enumerate(keys))
    assert door.post(body).status_code == 200
    stream = door.log.stream("orders")
    for n, key in enumerate(keys[:-1]):
        assert key is not None
        home = stream.home(key.encode())
        assert {"n": n} in door.read(int(home)), key[:10]


@pytest.mark.parametrize("blank", [b"\n", b" \t\r\n", b"\r\n" * 3])
def test_blank_lines_between_events_are_passed_over(door: Door, blank: bytes) -> None:
    door.create()
    body = blank + b'{"event":"1"}\n' + blank + b'{"event":"2"}\r\n' + blank + b'{"event":"3"}'
    for content in (body, body + b"\n", body + blank, blank):
        assert door.post(content).status_code == 200, content
    assert door.read() == ["1", "2", "3"] * 3
    answer = door.post(body + blank + b'{"cursor":"c"}\n')
    assert answer.status_code == 400
    number = 1 + (body + blank).count(b"\n")
    assert answer.text.startswith(f"line {number} of the body: holds 0 events, expected one")


@pytest.mark.parametrize("member", ['"timestamp":5', '"headers":{"a":"b"}', '"partition":0', '"Key":"k"', '"":1'])
@pytest.mark.parametrize("count", [1, 200])
def test_a_member_that_would_be_lost_is_refused(door: Door, member: str, count: int) -> None:
    """Alone, and among so many lines that they are read together."""
    door.create()
    body = b'{"event":{}}\n' * (count - 1) + f'{{"event":{{}},{member}}}\n'.encode()
    answer = door.post(body)
    name = member.split('"')[1]
    assert answer.status_code == 400
    assert answer.text.startswith(
        f"line {count} of the body: member '{name}' would be lost, expected 'event', 'key' and"
    )
    assert door.read() == []


@pytest.mark.parametrize("count", [1, 100])
def test_a_key_of_any_type_is_its_text(door: Door, count: int) -> None:
    """As option ``keyField`` reads it, and so equal keys share a partition, whatever the size of the request."""
    door.create("orders", 4)
    texts = {"5": "5", '"5"': "5", "5.0": "5.0", "true": "true", '{"a" : [1, "é"]}': r'{"a":[1,"\u00e9"]}', '"k"': "k"}
    for key in texts:
        assert door.post(f'{{"event":{{"k":{key}}},"key":{key}}}\n'.encode() * count).status_code == 200
    assert door.post(b'{"event":{"k":1},"key":null}\n').status_code == 200
    found: dict[Any, set[int]] = {}
    for partition in range(4):
        for line in door.page(partition).lines[:-1]:
            found.setdefault(line.get("key"), set()).add(partition)
    stream = door.log.stream("orders")
    assert found.pop(None)
    assert found == {text: {int(stream.home(text.encode()))} for text in texts.values()}


@pytest.mark.parametrize("count", [1, 100])
def test_null_is_stored_as_a_null(door: Door, count: int) -> None:
    door.create()
    lines = [b'{"event":null}', b'{"event":"null"}', b'{"data":null,"key":"k"}', b'{"event":""}', b'{"event":{}}']
    assert door.post(b"\n".join(lines * count)).json()["appended"] == 5 * count
    values = pa.array([None, b"null", b""] * count)
    assert door.post(arrow(value=values), kind=ARROW).json()["appended"] == 3 * count
    assert everything(door) == [None, "null", None, "", {}] * count + [None, "null", ""] * count
    records = door.log.stream("orders").partitions["0"].read(0)
    bodies = [bytes(records.value(row)) for row in range(5)]
    assert [body[-4:] == b"\x00Sw@" for body in bodies] == [True, False, True, False, False]


def test_what_has_no_key_goes_to_all_in_turn(door: Door) -> None:
    door.create("orders", 3)
    for n in range(9):
        door.post(b'{"event":"%d"}\n' % n)
    assert [door.read(partition) for partition in range(3)] == [["0", "3", "6"], ["1", "4", "7"], ["2", "5", "8"]]


# --- once


def body_of(first: int, stop: int, *, keyed: bool = True) -> bytes:
    return b"".join(
        b'{"event":{"n":%d}%s}\n' % (n, b',"key":"%d"' % n if keyed and n % 3 else b"") for n in range(first, stop)
    )


def numbers(door: Door) -> list[int]:
    return sorted(event["n"] for event in everything(door))


def test_a_number_is_stored_once(door: Door) -> None:
    door.create("orders", 3)
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "0"}
    assert door.post(body_of(0, 30), **one).json() == {"appended": 30, "repeated": 0, "last": 0}
    assert door.post(body_of(0, 30), **one).json() == {"appended": 0, "repeated": 30, "last": 0}
    assert door.post(body_of(30, 40), Idempotency_Key="writer", Idempotency_Sequence="5").json()["appended"] == 10
    assert door.post(body_of(30, 40), Idempotency_Key="writer", Idempotency_Sequence="5").json()["repeated"] == 10
    assert door.post(body_of(40, 50), Idempotency_Key="other", Idempotency_Sequence="0").json()["appended"] == 10
    assert numbers(door) == list(range(50))


def test_a_number_outlives_the_server_however_it_ended(doors: Doors) -> None:
    door = doors()
    door.create("orders", 2)
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "3"}
    door.post(body_of(0, 30), **one)
    door.server.stop()
    door.log.close()
    again = doors()
    assert again.post(body_of(0, 30), **one).json() == {"appended": 0, "repeated": 30, "last": 3}
    assert numbers(again) == list(range(30))


def test_a_part_that_failed_is_added_and_the_others_are_not_repeated(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.log.storage.partition import Partition

    door.create("orders", 3)
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "3"}
    store = Partition._store

    def failing(self: Any, *arguments: Any) -> Any:
        if self.id == "1":
            raise OSError(5, "the disk is broken")
        return store(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "_store", failing)
        answer = door.post(body_of(0, 60), **one)
        assert answer.status_code == 503 and "again" in answer.text
    stored = numbers(door)
    assert 0 < len(stored) < 60
    assert door.post(body_of(0, 60), **one).json() == {"appended": 60 - len(stored), "repeated": len(stored), "last": 3}
    assert numbers(door) == list(range(60))


def test_a_full_disk_is_507(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.log.storage.partition import Partition

    door.create()

    def full(self: Any, *arguments: Any) -> Any:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "_store", full)
        assert door.post(body_of(0, 1)).status_code == 507
    assert door.post(body_of(0, 1)).status_code == 200


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_the_same_request_from_many_at_once(doors: Doors, fsync: Any) -> None:
    from spark_streams.log import LogConfig

    door = doors(log_config=LogConfig(fsync=fsync))
    door.create("orders", 2)
    answers: list[dict[str, int]] = []

    def publish() -> None:
        for sequence in range(5):
            body = body_of(sequence * 20, sequence * 20 + 20)
            headers = {
                "Content-Type": "application/x-ndjson",
                "Idempotency-Key": "writer",
                "Idempotency-Sequence": str(sequence),
            }
            answers.append(requests.post(f"{door.url}/orders", data=body, headers=headers, timeout=120).json())

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(door) == list(range(100))
    assert sum(answer["appended"] for answer in answers) == 100
    assert sum(answer["repeated"] for answer in answers) == 500


def test_a_number_below_the_highest_of_any_partition_is_there(door: Door) -> None:
    door.create("orders", 3)
    for sequence in (4, 7):
        one = {"Idempotency_Key": "writer", "Idempotency_Sequence": str(sequence)}
        assert door.post(b'{"event":{"n":%d},"key":"k"}\n' % sequence, **one).json()["last"] == sequence
    answer = door.post(body_of(100, 130), Idempotency_Key="writer", Idempotency_Sequence="5").json()
    assert answer == {"appended": 0, "repeated": 30, "last": 7}, "also for partitions that have no number"
    assert numbers(door) == [4, 7]


def test_other_events_under_a_number_that_is_stored(doors: Doors) -> None:
    door = doors()
    door.create("orders", 3)
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "4"}
    assert door.post(b'{"event":{"n":1},"key":"k"}\n', **one, Idempotency_Digest="0000abcd").status_code == 200
    door.server.stop()
    door.log.close()
    again = doors()
    answer = again.post(body_of(100, 130), **one, Idempotency_Digest="FFFFFFFF")
    assert answer.status_code == 422 and "0000abcd, not ffffffff" in answer.text
    assert numbers(again) == [1], "nothing is added, wherever it goes"
    assert again.post(b'{"event":{"n":1},"key":"k"}\n', **one, Idempotency_Digest="0000ABCD").json()["repeated"] == 1
    assert again.post(b'{"event":{"n":1},"key":"k"}\n', **one).json()["repeated"] == 1, "no digest is not compared"
    later = {"Idempotency_Key": "writer", "Idempotency_Sequence": "5"}
    assert again.post(body_of(2, 4), **later, Idempotency_Digest="ffffffff").json()["appended"] == 2


def test_a_large_request_is_one_stored_batch_a_partition(door: Door) -> None:
    door.create()
    body = arrow(value=pa.array([b"x" * 1000] * 4000))  # more than an append stores in one piece otherwise
    assert door.post(body, kind=ARROW, Idempotency_Key="a", Idempotency_Sequence="1").status_code == 200
    batches = list(door.log.stream("orders").partitions["0"].batches(0))
    assert len(batches) == 1 and batches[0].next_offset == 4000


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency_Key": "a"},
        {"Idempotency_Sequence": "1"},
        {"Idempotency_Key": "", "Idempotency_Sequence": "1"},
        {"Idempotency_Key": "a" * 256, "Idempotency_Sequence": "1"},
        {"Idempotency_Key": "a", "Idempotency_Sequence": "-1"},
        {"Idempotency_Key": "a", "Idempotency_Sequence": "x"},
        {"Idempotency_Key": "a", "Idempotency_Sequence": str(2**63)},
        {"Idempotency_Key": "a", "Idempotency_Sequence": "1", "Idempotency_Digest": "1234567"},
        {"Idempotency_Key": "a", "Idempotency_Sequence": "1", "Idempotency_Digest": "1234567x"},
        {"Idempotency_Digest": "12345678"},
    ],
)
def test_wrong_idempotency_headers(door: Door, headers: dict[str, str]) -> None:
    door.create()
    assert door.post(b'{"event":{}}\n', **headers).status_code == 400
    assert everything(door) == []


def test_publishers_of_two_doors_do_not_forget_each_other(doors: Doors) -> None:
    from contextlib import closing

    from tests.real_rabbitmq.by_hand import QUERY_PUBLISHER_SEQUENCE, Peer, text

    door = doors(others=True)
    door.create()
    one = {"Idempotency_Key": "writer", "Idempotency_Sequence": "9"}
    door.post(body_of(0, 3), **one)
    url = door.server.urls["rabbitmq-stream"].replace("://", "://guest:guest@")
    with closing(Peer(url).open()) as peer:
        body = peer.ask(QUERY_PUBLISHER_SEQUENCE, text("writer") + text("orders")).body
        assert body[-8:] == bytes(8), "another kind of publisher of the same name"
    door.server.stop()
    door.log.close()
    again = doors()
    assert again.post(body_of(0, 3), **one).json() == {"appended": 0, "repeated": 3, "last": 9}


# --- creating


def test_a_feed_is_created_once(door: Door) -> None:
    answer = door.put("orders", partitions=3)
    assert answer.status_code == 201 and len(answer.json()["partitions"]) == 3
    again = door.put("orders", partitions=3)
    assert again.status_code == 200 and len(again.json()["partitions"]) == 3
    assert door.put("orders", partitions=2).status_code == 409
    assert len(door.put("single").json()["partitions"]) == 1


def test_a_feed_is_created_with_settings_of_its_stream(door: Door) -> None:
    given = {"partitions": 2, "timestamp_type": "create", "segment_max_bytes": 2_000, "retention_max_bytes": 5_000}
    assert door.put("orders", **given).status_code == 201
    config = door.log.stream("orders").config
    assert (config.timestamp_type, config.segment_max_bytes, config.retention_max_bytes) == ("create", 2_000, 5_000)
    assert config.retention_max_age_ms is None
    assert door.put("orders", **given).status_code == 200
    assert door.put("orders", partitions=2).status_code == 200
    other = door.put("orders", partitions=2, timestamp_type="append")
    assert (other.status_code, "with timestamp_type create" in other.text) == (409, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timestamp_type": "never"}, "timestamp_type is 'never', expected one of append, create"),
        ({"timestamp_type": 5}, "timestamp_type is 5, expected one of append, create"),
        ({"segment_max_bytes": 0}, "expected at least 1 byte"),
        ({"retention_max_bytes": "all"}, "retention_max_bytes is 'all', expected a number"),
    ],
)
def test_settings_that_cannot_be(door: Door, given: dict[str, Any], words: str) -> None:
    answer = door.put("orders", **given)
    assert (answer.status_code, words in answer.text) == (400, True)
    assert door.get("orders").status_code == 404


def test_a_feed_is_deleted_with_its_events(door: Door) -> None:
    door.put("orders", partitions=2)
    door.append([b"{}"])
    deleted = door.session.delete(f"{door.url}/orders", timeout=120)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert door.get("orders").status_code == 404
    assert door.session.delete(f"{door.url}/orders", timeout=120).status_code == 404
    door.put("orders", partitions=2)
    assert door.read() == []


@pytest.mark.parametrize(
    "query", [{"partitions": "0"}, {"partitions": "x"}, {"partitions": "1001"}, {"partitions": ""}]
)
def test_a_feed_that_cannot_be_created(door: Door, query: dict[str, str]) -> None:
    assert door.put("orders", **query).status_code == 400
    assert door.put("a" * 300).status_code == 400
    assert door.get("orders").status_code == 404


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        ("partition=3", "did you mean partitions?"),
        ("partitions=2&timestamp_typ=create", "did you mean timestamp_type?"),
        ("Partitions=2", "did you mean partitions?"),
        ("retentionMaxBytes=5", "did you mean retention_max_bytes?"),
        ("x=1", "there is partitions, "),
        ("partitions=2&partitions=3", "partitions is given twice"),
    ],
)
def test_a_feed_is_not_created_with_a_setting_that_there_is_not(door: Door, query: str, meant: str) -> None:
    answer = door.put(f"orders?{query}")
    assert (answer.status_code, meant in answer.text) == (400, True), answer.text
    assert door.get("orders").status_code == 404


@pytest.mark.parametrize("body", [{"data": {"partitions": "3"}}, {"json": {"partitions": 3}}, {"data": iter([b"x"])}])
def test_settings_are_not_taken_from_a_body(door: Door, body: dict[str, Any]) -> None:
    answer = door.session.put(f"{door.url}/orders", timeout=120, **body)
    assert (answer.status_code, "?partitions=2" in answer.text) == (400, True)
    assert door.get("orders").status_code == 404


def test_publishing_and_deleting_take_no_arguments(door: Door) -> None:
    door.put("orders", partitions=2)
    body = b'{"event": {}}\n'
    assert door.post(body, "orders?partition=1").status_code == 400
    deleted = door.session.delete(f"{door.url}/orders?partition=1", timeout=120)
    assert (deleted.status_code, "DELETE has no argument 'partition'" in deleted.text) == (400, True)
    assert (door.read(0), door.read(1)) == ([], [])


@pytest.mark.parametrize("name", ["Idempotency-Sequenz", "Idempotency-Seq", "Idempotent-Key"])
def test_a_header_that_is_nearly_one_of_ours(door: Door, name: str) -> None:
    door.create()
    answer = door.post(b'{"event": {}}\n', **{name: "1"})
    assert (answer.status_code, "did you mean Idempotency-" in answer.text) == (400, True)
    assert door.read() == []


def test_what_is_published_is_read_through_the_other_doors(doors: Doors) -> None:
    from spark_streams.wire.amqp.columns.block import MessageBlock
    from spark_streams.wire.amqp.columns.decode import decode_columns

    door = doors(others=True)
    door.create()
    door.post(b'{"event":{"a":1},"key":"k"}\n')
    records = door.log.stream("orders").partitions["0"].read(0)
    columns = decode_columns(MessageBlock(records.buffer, records.value_starts, records.value_ends), ("value", "key"))
    assert json.loads(columns["value"][0].as_py()) == {"a": 1} and columns["key"][0].as_py() == "k"
