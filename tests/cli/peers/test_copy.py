"""copy: between any two of the three protocols, on the embedded log."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import requests

from spark_streams.cli.peers.log_peers import LogPeer
from spark_streams.cli.peers.peer import PeerReader, ReadRequest
from spark_streams.errors import PositionLost
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from spark_streams.testing import LogStream, StreamFactory, eventually
from tests.cli.conftest import Ran
from tests.cli.peers.opened import PEERS, run, url

COMMAND = [sys.executable, "-m", "spark_streams.cli"]


@pytest.mark.parametrize("target", PEERS)
@pytest.mark.parametrize("source", PEERS)
def test_copy_between_any_two_protocols(reference_log: StreamFactory, source: str, target: str) -> None:
    origin, copies = reference_log.create("orders", 3), reference_log.create("copies", 2)
    rows = [
        {
            "value": f"v{n}",
            "key": f"k{n % 7}",
            "application_properties": {"type": f"t{n % 2}"},
            "properties": {"to": "x"},
        }
        for n in range(100)
    ]
    origin.produce(rows)
    done = run("copy", url(origin, source), url(copies, target))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("100 events copied from ")
    assert "guest" not in done.stdout
    table = copies.table(["value", "key", "application_properties", "properties"]).to_pylist()
    assert {row["value"]: row["key"] for row in table} == {f"v{n}".encode(): f"k{n % 7}" for n in range(100)}
    for n in range(7):
        assert [row["value"] for row in table if row["key"] == f"k{n}"] == [f"v{m}".encode() for m in range(n, 100, 7)]
    if "feedapi" not in (source, target):
        assert all(row["application_properties"] == [("type", f"t{int(row['value'][1:]) % 2}")] for row in table)
        assert all(row["properties"]["to"] == "x" for row in table)


@pytest.mark.parametrize("middle", PEERS)
def test_copy_of_a_feed_keeps_null_its_text_and_an_empty_event(reference_log: StreamFactory, middle: str) -> None:
    origin, copies, last = (reference_log.create(name) for name in ("origin", "copies", "last"))
    lines = [{"event": None, "key": "k"}, {"event": "null"}, {"event": ""}, {"event": {}}]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    feed = origin.options("feedapi")["url"]
    requests.post(feed, body, headers={"Content-Type": "application/x-ndjson"}, timeout=60).raise_for_status()
    for source, target in ((url(origin, "feedapi"), url(copies, middle)), (url(copies, middle), url(last, "feedapi"))):
        done = run("copy", source, target)
        assert done.exit_code == 0, done.stderr
    assert copies.values() == [None, "null", "", "{}"]
    page = requests.get(last.options("feedapi")["url"], {"partition": "0", "cursor": "_first"}, timeout=60).text
    assert [json.loads(line) for line in page.splitlines()][:-1] == lines


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream"])
def test_what_columns_cannot_say_is_copied_byte_for_byte(tmp_path: Path, door: str) -> None:
    def at(milliseconds: int) -> bytes:
        return b"\0Ss\xc0\x13\x0a" + b"\x40" * 9 + struct.pack(">Bq", 0x83, milliseconds) + b"\0Su\xa0\x01a"

    symbols = [
        b"\0Sr\xc1\x0f\x02\xa3\x09x-gr\xc3\xb6\xc3\x9fe\xa1\x01L\0Su\xa0\x03odd",
        b"\0Ss\xc0\x0b\x07" + b"\x40" * 6 + b"\xa3\x02\xc3\xa9\0Su\xa0\x01b",
    ]
    plain, null, empty = b"\0Su\xa0\x05plain", b"\0Sw\x40", b"\0Su\xa0\0"
    stored = [plain, *symbols, at(2**63 - 1), at(-(2**63)), at(5), null, empty]
    with ReferenceLog(tmp_path) as log, ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0)) as server:
        address = server.amqp_url if door == "amqp" else server.rabbit_url
        origin, copies = (log.create_stream(name, 1).partitions["0"] for name in ("origin", "copies"))
        origin.append(stored, None, [0] * len(stored))
        done = run("copy", f"{address}#origin", f"{address}#copies")
        assert done.exit_code == 0, done.stderr
        records = copies.read(0, 1 << 20)
        found = [records.value(n) for n in range(len(records))]
        assert [found[n] for n in (0, 1, 2, 3, 4)] == stored[:5]
        assert found[6:] == [null, empty]
        for output in ("text", "json", "value"):
            tail = run("tail", f"{address}#copies", "--from", "earliest", "--no-follow", "--output", output)
            assert tail.exit_code == 0, tail.stderr
            assert len(tail.stdout.splitlines()) == len(stored)


@pytest.mark.parametrize("door", PEERS)
def test_copy_goes_on_where_it_is_told(reference_log: StreamFactory, door: str) -> None:
    origin, copies = reference_log.create(), reference_log.create("copies")
    origin.produce(["a", "b"])
    assert run("copy", url(origin, "amqp"), url(copies, door)).exit_code == 0
    origin.produce(["c"])
    last = f"after:{1:020d}"
    assert run("copy", url(origin, "amqp"), url(copies, door), "--from", last, "--partition", "0").exit_code == 0
    assert copies.values() == ["a", "b", "c"]


def test_copy_of_a_version_1_feed(reference_log: StreamFactory) -> None:
    origin, copies = reference_log.create("orders", 2), reference_log.create("copies")
    origin.produce({"value": f"v{n}", "partition": str(n % 2)} for n in range(4))
    done = run("copy", url(origin, "feedapi"), url(copies, "amqp"), "--partitions", "2")
    assert done.exit_code == 0 and done.stdout.startswith("4 events copied"), done.stderr
    assert copies.values() == ["v0", "v2", "v1", "v3"]


def test_copy_follows_until_ctrl_c_and_says_where_it_is(reference_log: StreamFactory) -> None:
    origin, copies = reference_log.create(), reference_log.create("copies")
    origin.produce(["a"])
    command = [*COMMAND, "copy", url(origin, "rabbitmq-stream"), url(copies, "feedapi"), "--follow"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "TERM": "dumb"},
    )
    wait_for(copies, ["a"])
    origin.produce(["b"])
    wait_for(copies, ["a", "b"])
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out.startswith("2 events copied")
    told = json.loads(said.strip().splitlines()[-1])
    assert told == {"copied": 2, "from": {origin.name: f"after:{1:020d}"}}


def wait_for(stream: LogStream, values: list[str]) -> None:
    deadline = time.monotonic() + 240
    while stream.values() != values:
        assert time.monotonic() < deadline, f"{stream.values()}, expected {values}"
        time.sleep(0.05)


# --- the bar

TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "150"}


def plain(said: str) -> str:
    """Return what was said without the codes for a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)


def counts(said: str) -> list[tuple[int, ...]]:
    """Return what the bar said, again and again: events, and of how many where it knows."""
    shown = re.findall(r"(\d+)(?:/(\d+))? events", plain(said))
    return [tuple(int(number) for number in each if number) for each in shown]


@pytest.mark.parametrize("door", PEERS)
def test_the_bar_moves_on_the_way(reference_log: StreamFactory, door: str) -> None:
    origin, copies = reference_log.create("orders", 2), reference_log.create("copies")
    origin.produce(f"v{n}" for n in range(12_000))
    done = run("copy", url(origin, door), url(copies, "amqp"), **TERMINAL)
    assert done.exit_code == 0, done.stderr
    shown = counts(done.stderr)
    total = () if door == "feedapi" else (12_000,)  # a feed does not say how many events it has
    assert shown[-1] == (12_000, *total)
    assert {each[1:] for each in shown} == {total}
    sent = [each[0] for each in shown]
    assert sent == sorted(sent)
    on_the_way = {each for each in sent if 0 < each < 12_000}
    assert len(on_the_way) >= (1 if door == "feedapi" else 9), sent
    left = r" 0:\d\d:\d\d left" if total else ""
    assert re.search(rf"events [\d,]+/s 0:\d\d:\d\d so far{left}", plain(done.stderr))
    assert ("left" in plain(done.stderr)) == bool(total)


def test_without_a_terminal_there_is_no_bar(reference_log: StreamFactory) -> None:
    origin, copies = reference_log.create(), reference_log.create("copies")
    origin.produce(["a", "b", "c"])
    done = run("copy", url(origin, "amqp"), url(copies, "amqp"), COLUMNS="150")
    assert (done.stderr, done.stdout.partition(" from ")[0]) == ("", "3 events copied")


# --- losses


def overtaken(reference_log: StreamFactory, door: str) -> tuple[LogStream, list[str]]:
    """Return a stream whose first events retention has removed, and the words that begin at the first of them."""
    stream = reference_log.create("orders", segment_max_bytes=2_000, retention_max_bytes=2_000)
    stream.produce(["first"])
    partition = stream.name if door == "rabbitmq-stream" else "0"
    seen = run("tail", url(stream, door), "--from", "earliest", "--no-follow", "--output", "json").stdout
    words = ["--partition", partition, "--from", f"after:{json.loads(seen)['offset']}"]
    for number in range(40):
        stream.produce([f"{number:04}" + "x" * 200])
    eventually(lambda: int(stream.begins()["0"]) > 2, "retention removes what was to come next")
    return stream, words


@pytest.mark.parametrize("door", PEERS)
def test_copy_fails_where_events_are_gone_unless_that_is_allowed(
    reference_log: StreamFactory, door: str, run: Callable[..., Ran]
) -> None:
    origin, words = overtaken(reference_log, door)
    copies = reference_log.create("copies")
    failed = run("copy", url(origin, door), url(copies, "amqp"), *words)
    assert failed.code == 1, failed.err
    *_, positions, why = failed.err.strip().splitlines()
    assert json.loads(positions) == {"copied": 0, "from": {words[1]: words[3]}}
    assert f"stream '{origin.name}' partition '{words[1]}': copying was to go on " in why
    assert "say --allow-loss to go on with what is left" in why
    assert copies.values() == []
    done = run("copy", url(origin, door), url(copies, "amqp"), *words, "--allow-loss")
    assert done.code == 0, done.err
    assert "WARNING" in done.err and "Events may have been lost" in done.err
    copied = [int(value[:4]) for value in copies.values()]
    assert copied == list(range(copied[0], 40)) and copied[0] > 0


@pytest.mark.parametrize("door", PEERS)
def test_tail_warns_of_events_that_are_gone(reference_log: StreamFactory, door: str, run: Callable[..., Ran]) -> None:
    stream, words = overtaken(reference_log, door)
    done = run("tail", url(stream, door), *words, "--no-follow", "--output", "value")
    assert done.code == 0, done.err
    assert "WARNING" in done.err and "Events may have been lost" in done.err
    assert int(done.out.splitlines()[-1][:4]) == 39


def test_what_came_before_a_loss_is_confirmed(reference_log: StreamFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, copies = reference_log.create(), reference_log.create("copies")
    origin.produce(["a", "b"])

    open_reader = LogPeer.open_reader

    @contextmanager
    def open_it(peer: LogPeer, request: ReadRequest) -> Iterator[PeerReader]:
        with open_reader(peer, request) as reader:
            events = reader.new_events

            def then_lose() -> Iterator[pa.RecordBatch]:
                yield from events()
                raise PositionLost(origin.name, "0", "after 'x'", "it is gone")

            reader.new_events = then_lose  # type: ignore[method-assign]
            yield reader

    monkeypatch.setattr(LogPeer, "open_reader", open_it)
    done = run("copy", url(origin, "amqp"), url(copies, "feedapi"))
    assert done.exit_code == 1
    positions = json.loads(done.stderr.strip().splitlines()[-2])
    assert positions == {"copied": 2, "from": {"0": f"after:{1:020d}"}}
    assert copies.values() == ["a", "b"]


def test_a_stream_that_was_created_anew_is_not_gone_on_with(
    reference_log: StreamFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, copies = reference_log.create(), reference_log.create("copies")
    origin.produce(["a", "b"])

    open_reader = LogPeer.open_reader

    @contextmanager
    def open_it(peer: LogPeer, request: ReadRequest) -> Iterator[PeerReader]:
        with open_reader(peer, request) as reader:
            origin.delete()
            origin.create()
            yield reader

    monkeypatch.setattr(LogPeer, "open_reader", open_it)
    done = run("copy", url(origin, "amqp"), url(copies, "feedapi"))
    assert (done.exit_code, copies.values()) == (1, [])
    assert "it was deleted and created again under its name: copy the new one with --from earliest" in done.stderr
