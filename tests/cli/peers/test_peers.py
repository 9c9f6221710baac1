"""tail, and what is wrong: any peer of the three protocols, on the embedded log."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from spark_streams.testing import LogStream, StreamFactory
from tests.cli.peers.opened import PEERS, run, url
from tests.client.feed.brief import BriefFeed

COMMAND = [sys.executable, "-m", "spark_streams.cli"]


def tailed(stream: LogStream, door: str, *words: str) -> list[Any]:
    done = run("tail", url(stream, door), "--no-follow", "--output", "json", *words)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- tail


@pytest.mark.parametrize("door", PEERS)
def test_a_line_of_json_has_the_sections_of_a_message_as_spark_names_them(
    reference_log: StreamFactory, door: str
) -> None:
    """The oldest instant of AMQP that Python's datetime cannot hold, and bytes that are no text, among them."""
    stream = reference_log.create()
    year_0_us = -62_167_219_200_000_000
    whole = {
        "value": b"a",
        "properties": {
            "message_id": "m1",
            "user_id": b"\xff",
            "subject": "s",
            "creation_time": year_0_us,
            "absolute_expiry_time": 1_700_000_000_000_123_000,
        },
        "application_properties": {"type": "order", "n": "7"},
        "message_annotations": {"x-opt-a": "b"},
    }
    stream.produce([whole, {"value": "plain"}])
    first, second = tailed(stream, door, "--from", "earliest")
    assert list(first)[:6] == ["stream", "partition", "offset", "timestamp", "key", "value"]
    if door == "feedapi":
        assert list(first)[6:] == list(second)[6:] == []
        return
    assert first["properties"] == {
        "message_id": "m1",
        "user_id_base64": "/w==",
        "subject": "s",
        "creation_time": "0000-01-01T00:00:00.000Z",
        "absolute_expiry_time": "+55840-11-08T22:13:20.123Z",
    }
    assert first["application_properties"] == {"type": "order", "n": "7"}
    assert first["message_annotations"] == {"x-opt-a": "b"}
    assert not any(second.get(name) for name in ("properties", "application_properties", "message_annotations"))


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("door", PEERS)
def test_tail_shows_all_events_of_any_peer(reference_log: StreamFactory, door: str, partitions: int) -> None:
    stream = reference_log.create("orders", partitions)
    stream.produce({"value": f"v{n}", "key": f"k{n % 5}"} for n in range(20))
    events = tailed(stream, door, "--from", "earliest")
    assert sorted(event["value"] for event in events) == sorted(f"v{n}" for n in range(20))
    assert {event["value"]: event["key"] for event in events} == {f"v{n}": f"k{n % 5}" for n in range(20)}
    for n in range(5):
        of_key = [event["value"] for event in events if event["key"] == f"k{n}"]
        assert of_key == [f"v{m}" for m in range(n, 20, 5)]


@pytest.mark.parametrize(
    ("output", "shown"), [("value", "\nnull\n\n"), ("json", [None, "null", ""]), ("text", ["-", "null", ""])]
)
def test_tail_shows_null(reference_log: StreamFactory, output: str, shown: str | list[str | None]) -> None:
    stream = reference_log.create()
    stream.produce([None, "null", ""])
    done = run("tail", url(stream, "feedapi"), "--no-follow", "--from", "earliest", "--output", output)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    if output == "json":
        assert [json.loads(line)["value"] for line in lines] == shown
    elif output == "text":
        assert [line.split("\t")[-1] for line in lines] == shown
    else:
        assert done.stdout == shown


def test_a_version_1_feed_without_a_checkpoint_at_its_end(reference_log: StreamFactory) -> None:
    with BriefFeed(5) as feed:
        where = [f"{feed.url}/orders", "--partitions", "1"]
        shown = run("tail", *where, "--no-follow", "--from", "earliest", "--output", "value")
        assert [json.loads(line)["n"] for line in shown.stdout.splitlines()] == [0, 1, 2, 3, 4], shown.stderr
        about = run("inspect", *where, "--json")
        assert json.loads(about.stdout)["partitions"][0]["last cursor"] is None, about.stderr
        copies = reference_log.create()
        copied = run("copy", where[0], url(copies, "amqp"), *where[1:])
        assert copied.stdout.startswith("5 events copied"), copied.stderr
        late = run("tail", *where, "--no-follow")
        assert late.exit_code and "the response has no cursor, so reading cannot start there" in late.stderr


@pytest.mark.parametrize("door", PEERS)
def test_tail_begins_at_the_end_unless_told_otherwise(reference_log: StreamFactory, door: str) -> None:
    stream = reference_log.create()
    stream.produce(["old"])
    assert tailed(stream, door) == []


@pytest.mark.parametrize("door", PEERS)
def test_tail_goes_on_after_an_event(reference_log: StreamFactory, door: str) -> None:
    stream = reference_log.create("orders", 2)
    stream.produce({"value": f"v{n}", "partition": "1"} for n in range(3))
    partition = f"{stream.name}-1" if door == "rabbitmq-stream" else "1"
    events = tailed(stream, door, "--from", "earliest", "--partition", partition)
    stream.produce([{"value": "v3", "partition": "1"}, {"value": "elsewhere", "partition": "0"}])
    (rest,) = tailed(stream, door, "--from", f"after:{events[-1]['offset']}", "--partition", partition)
    assert rest["value"] == "v3"


@pytest.mark.parametrize("operand", ["5", "0005", "@latest", "9" * 20])
@pytest.mark.parametrize("word", ["offset", "after"])
def test_an_offset_that_no_event_can_have_is_refused(reference_log: StreamFactory, word: str, operand: str) -> None:
    stream = reference_log.create()
    stream.produce(f"v{n}" for n in range(8))
    done = run("tail", url(stream, "amqp"), "--no-follow", "--partition", "0", "--from", f"{word}:{operand}")
    assert (done.exit_code, done.stdout) == (2, ""), "without --no-follow it would wait for ever"
    assert f"'{operand}': expected 20 decimal digits" in done.stderr and "--from" in done.stderr
    if operand in ("5", "0005"):
        meant = f"{5:020d}"
        assert f"such as '{meant}'" in done.stderr
        assert tailed(stream, "amqp", "--partition", "0", "--from", f"{word}:{meant}")


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream"])
def test_a_url_may_list_hosts(reference_log: StreamFactory, door: str) -> None:
    stream = reference_log.create()
    stream.produce(["a"])
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        hosts = f"127.0.0.1:{held.getsockname()[1]},127.0.0.1:"
        listed = url(stream, door).replace("127.0.0.1:", hosts)
        assert listed.count("127.0.0.1") == 2
        done = run("tail", listed, "--no-follow", "--from", "earliest", "--output", "value")
    assert (done.exit_code, done.stdout) == (0, "a\n")


def test_a_feed_has_one_host(reference_log: StreamFactory) -> None:
    address = url(reference_log.create(), "feedapi").replace("127.0.0.1:", "127.0.0.1,127.0.0.1:")
    done = run("tail", address)
    assert done.exit_code != 0 and "lists 2 hosts, and a feed has one address" in done.stderr


def test_rabbitmq_offsets_are_numbers(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    stream.produce(f"v{n}" for n in range(5))
    events = tailed(stream, "rabbitmq-stream", "--from", "offset:3", "--partition", stream.name)
    assert [event["value"] for event in events] == ["v3", "v4"]


def test_tail_follows_a_feed(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    stream.produce(["a"])
    words = ["tail", url(stream, "feedapi"), "--from", "earliest", "--count", "3", "--output", "value"]
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "a\n"
    stream.produce(["b", "c", "d"])
    assert process.stdout.read() == "b\nc\n"
    assert process.wait(120) == 0


def test_tail_of_a_version_1_feed(reference_log: StreamFactory) -> None:
    stream = reference_log.create("orders", 2)
    stream.produce({"value": f"v{n}", "partition": str(n % 2)} for n in range(4))
    events = tailed(stream, "feedapi", "--from", "earliest", "--partitions", "2")
    assert [(e["partition"], e["value"]) for e in events] == [("0", "v0"), ("0", "v2"), ("1", "v1"), ("1", "v3")]
    stream.produce({"value": f"v{n}", "partition": str(n % 2)} for n in range(4, 6))
    words = ("--partitions", "2", "--partition", "1", "--from", f"after:{events[3]['offset']}")
    assert [e["value"] for e in tailed(stream, "feedapi", *words)] == ["v5"]
    too_many = run("tail", url(stream, "feedapi"), "--no-follow", "--from", "earliest", "--partitions", "3")
    assert (too_many.exit_code, "3" in too_many.stderr) == (1, True), too_many.stderr


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream"])
@pytest.mark.parametrize(("when", "year"), [("1764288000", 1970), ("1764288000000000", 57878)])
def test_tail_warns_of_a_time_in_another_unit(reference_log: StreamFactory, door: str, when: str, year: int) -> None:
    stream = reference_log.create(partitions=2)
    stream.produce([{"value": "a", "partition": "0"}, {"value": "b", "partition": "1"}])
    done = run("tail", url(stream, door), "--no-follow", "--output", "value", "--from", f"timestamp:{when}")
    assert sorted(done.stdout.split()) == (["a", "b"] if year == 1970 else [])
    (warning,) = (line for line in done.stderr.splitlines() if "WARNING" in line)
    assert f"stream '{stream.name}': --from: reading starts at {when}, which is {year}-" in warning
    assert "it would be 2025-11-28T00:00:00.000Z)" in warning


# --- what is wrong


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tail", "amqp://localhost:1"], 2, "names no stream, expected amqp://localhost:1#STREAM"),
        (["inspect", "amqp://localhost:1", "a", ""], 2, "is empty: expected the name of a stream"),
        (
            ["inspect", "amqp://localhost:1#a", "--partitions", "2"],
            2,
            "is for feeds of version 1: amqp://localhost:1 tells",
        ),
        (["inspect", "kafka://localhost#x"], 2, "scheme 'kafka' where one of"),
        (["inspect", "http://localhost:1/orders", "orders"], 2, "names a stream already: expected the address"),
        (["tail", "amqp://localhost:1#a", "b"], 2, "names stream 'a', and the arguments name 'b'"),
        (["tail", "FEED", "--from", "timestamp:0"], 2, "a feed starts at earliest, at latest, or after:CURSOR"),
        (["tail", "FEED", "--partition", "7"], 1, "there are: 0"),
        (["copy", "FEED", "FEED"], 2, "which is what is read: expected another stream"),
        (["copy", "FEED", "AMQP-missing"], 1, "there is no stream"),
        (["copy", "FEED", "RABBIT-missing"], 1, "stream-does-not-exist"),
        (["copy", "FEED", "FEED-missing"], 1, "404"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(reference_log: StreamFactory, words: list[str], code: int, said: str) -> None:
    stream = reference_log.create()
    places = {"FEED": url(stream, "feedapi")}
    for word, door in (("AMQP", "amqp"), ("RABBIT", "rabbitmq-stream"), ("FEED", "feedapi")):
        places[f"{word}-missing"] = url(stream, door).replace(stream.name, "missing")
    done = run(*(places.get(word, word) for word in words))
    assert done.exit_code == code, done.stderr
    assert said in done.stderr
    assert "guest" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_credentials_come_from_the_environment(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    bare = f"{stream.process.urls['rabbitmq-stream']}#{stream.name}"
    wrong = run("inspect", bare, SPARK_STREAMS_USERNAME="guest", SPARK_STREAMS_PASSWORD="hidden-word")
    assert wrong.exit_code == 1
    assert "hidden-word" not in wrong.stderr
    assert run("inspect", bare, SPARK_STREAMS_USERNAME="guest", SPARK_STREAMS_PASSWORD="guest").exit_code == 0
