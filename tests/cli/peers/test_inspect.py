"""inspect: what any peer of the three protocols has and can, on the embedded log."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import requests
from rich.console import Console

from spark_streams.cli.peers import inspect as inspecting
from spark_streams.cli.peers.peer import Peer
from spark_streams.cli.peers.terminal import print_facts, print_rows
from spark_streams.errors import NotFound
from spark_streams.testing import LogProcess, StreamFactory
from tests.cli.peers.opened import PEERS, run, url, url_of
from tests.client.feed.scripted import Reply, Request, Scripted
from tests.client.rabbitmq.scripted import Scripted as ScriptedRabbit
from tests.client.rabbitmq.scripted import answers, metadata, stats
from tests.real_rabbitmq import by_hand as key

CAPABILITY = {"amqp": "AMQP_EVENT_STREAMS_V1_0", "rabbitmq-stream": "Publish 2", "feedapi": "key"}


def cells(shown: str) -> list[list[str]]:
    """Return the rows of the tables that were printed."""
    rows = [line.replace("┃", "│").strip("│").split("│") for line in shown.splitlines() if line[:1] in ("│", "┃")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("door", PEERS)
def test_inspect_shows_partitions_and_what_they_hold(reference_log: StreamFactory, door: str, partitions: int) -> None:
    stream = reference_log.create("orders", partitions)
    stream.produce({"value": f"v{n}", "partition": "0"} for n in range(3))
    found = json.loads(run("inspect", url(stream, door), "--json").stdout)
    assert (found["stream"], len(found["partitions"])) == (stream.name, partitions)
    first = found["partitions"][0]
    if door == "feedapi":
        assert found["peer"]["dialect"] == "v2a"
        assert CAPABILITY[door] in found["peer"]["filters"]
        assert (first["closed"], first["last cursor"][-1]) == ("no", "3")
    else:
        assert (first["events"], int(first["earliest"]), int(first["latest"])) == (3, 0, 2)
        assert [p["events"] for p in found["partitions"][1:]] == [0] * (partitions - 1)
        assert CAPABILITY[door] in found["peer"].get("capabilities", found["peer"].get("commands"))


@pytest.mark.parametrize("door", PEERS)
def test_inspect_prints_tables(reference_log: StreamFactory, door: str) -> None:
    stream = reference_log.create("orders", 2)
    stream.produce({"value": f"v{n}", "partition": "0"} for n in range(3))
    found = json.loads(run("inspect", url(stream, door), "--json").stdout)
    shown = run("inspect", url(stream, door), COLUMNS="900").stdout
    assert shown.splitlines()[0].strip() == f"{stream.name} ({found['kind']}) at {found['url']}"
    *facts, head, first, second = cells(shown)
    told = dict(facts)
    settings = ["partitions", *found["config"]] if found["config"] else []
    assert list(told) == [*found["peer"], *settings]
    if door == "feedapi":
        assert head == ["partition", "closed", "last cursor", "starts after", "cursors from"]
        cursors = [p["last cursor"] for p in found["partitions"]]
        assert [first, second] == [["0", "no", cursors[0], "", ""], ["1", "no", cursors[1], "", ""]]
        assert (told["dialect"], told["exactly once"], told["long responses (stream)"]) == ("v2a", "no", "yes")
        offered = told["filters"]
    else:
        width = 20 if door == "amqp" else 1
        names = ["0", "1"] if door == "amqp" else [f"{stream.name}-0", f"{stream.name}-1"]
        assert head == ["partition", "events", "earliest", "latest", "removed up to"]
        assert [first[:2], second] == [[names[0], "3"], [names[1], "0", "", "", ""]]
        assert (int(first[2]), int(first[3]), first[4], len(first[2]) >= width) == (0, 2, "", True)
        assert told["product"] == found["peer"]["product"]
        offered = told["capabilities" if door == "amqp" else "commands"]
    assert CAPABILITY[door] in offered.split(", ")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("door", PEERS)
def test_no_cell_is_broken_however_narrow_the_terminal_is(
    reference_log: StreamFactory, door: str, terminal: bool
) -> None:
    """So that an offset, a cursor or a name can be copied from it."""
    stream = reference_log.create("a-name-that-alone-takes-more-than-half-of-a-line-of-a-narrow-terminal", 2)
    stream.produce({"value": f"v{n}", "partition": "0"} for n in range(3))
    for address in (url(stream, door), url(stream, door).removesuffix(stream.name).rstrip("#/")):
        lines = run("inspect", address, "--json").stdout.splitlines()
        told = [each for each in map(json.loads, lines) if each["stream"] is None or stream.name in each["stream"]]
        as_if = {"FORCE_COLOR": "1", "TERM": "xterm"} if terminal else {}
        shown = re.sub(r"\x1b\[[0-9;]*m", "", run("inspect", address, COLUMNS="80", **as_if).stdout)
        for found in told:
            rows = [cell for row in found.get("partitions", ()) for cell in row.values()]
            facts = [
                each for value in found["peer"].values() for each in (value if isinstance(value, list) else [value])
            ]
            if found["stream"] != told[0]["stream"]:
                facts = []  # a table of several streams has the facts of their peer only
            for cell in (*rows, *facts, found["stream"]):
                assert cell is None or re.search(rf"(?<!\S){re.escape(str(cell))}(?=[\s,]|$)", shown, re.M), cell
        if terminal:
            table = [line for line in shown.splitlines() if line[:1] in ("│", "┃")]
            assert all(len(line) <= 80 for line in table)


def test_a_table_that_is_too_wide_has_a_line_for_each_cell(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, width=40, markup=False, highlight=False, color_system=None)
    rows = [{"partition": "0", "events": 3, "cursor": "c" * 50}, {"partition": "1", "events": 0, "cursor": None}]
    print_rows(console, rows)
    cursor = "c" * 50
    expected = f"\npartition  0\nevents     3\ncursor     {cursor}\n\npartition  1\nevents     0\n"
    assert capsys.readouterr().out == expected
    print_facts(console, {"dialect": "v2a", "filters": ["key", "partition", "publish_time", "type"]})
    told = capsys.readouterr().out
    assert "│ filters │ key, partition,    │\n│         │ publish_time, type │\n" in told
    print_facts(console, {"dialect": "v2a", "filters": ["key", "f" * 40]})
    assert capsys.readouterr().out == f"dialect  v2a\nfilters  key,\n         {'f' * 40}\n"


@pytest.mark.parametrize("door", PEERS)
def test_inspect_of_our_log_shows_all_its_streams(reference_log: StreamFactory, door: str) -> None:
    streams = [reference_log.create(name, partitions) for name, partitions in (("orders", 2), ("payments", 1))]
    streams[1].produce(["a", "b"])
    address = streams[0].process.urls[door].replace("//", "//" if door == "feedapi" else "//guest:guest@")
    peer, *found = [json.loads(line) for line in run("inspect", address, "--json").stdout.splitlines()]
    assert peer["stream"] is None and [each["stream"] for each in found] == peer["streams"]
    rows = {each["stream"]: each["partitions"] for each in found}
    orders, payments = (stream.name for stream in streams)
    # To RabbitMQ's protocol each partition is a stream; the log may have those of other tests, too.
    expected = (
        {f"{orders}-0": 1, f"{orders}-1": 1, payments: 1} if door == "rabbitmq-stream" else {orders: 2, payments: 1}
    )
    assert {name: len(rows[name]) for name in rows if name.startswith((orders, payments))} == expected
    last = rows[payments][0]
    assert last["last cursor"][-1] == "2" if door == "feedapi" else last["events"] == 2
    for name in expected:
        assert rows[name] == json.loads(run("inspect", url_of(address, door, name), "--json").stdout)["partitions"]
    shown = run("inspect", address, COLUMNS="900").stdout
    head, *table = [row for row in cells(shown) if len(row) > 2]
    # Partitions of other tests' streams may have more columns, such as that of a split.
    columns = ["stream", *last]
    assert [name for name in head if name in columns] == columns
    printed = [dict(zip(head, row, strict=True)) for row in table]
    told = [
        ["" if cell is None else str(cell) for cell in (name, *row.values())] for name in expected for row in rows[name]
    ]
    assert sorted([row[name] for name in columns] for row in printed if row["stream"] in expected) == sorted(told)


@pytest.mark.parametrize("door", PEERS)
def test_inspect_of_our_log_with_names_that_are_odd_or_gone(
    tmp_path: Path, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names may be rich's markup, or no part of a url; and a stream may be deleted while the list is gone through."""
    with LogProcess(tmp_path, ["--stream", "a[/b]:1", "--stream", "c:1", "--stream", "..:1"]) as log:
        address = log.urls[door].replace("//", "//" if door == "feedapi" else "//guest:guest@")
        looked = inspecting._stream

        def gone(peer: Peer) -> dict[str, Any]:
            if peer.stream == "c":
                raise NotFound("status 404", "it was deleted", "c")
            return looked(peer)

        monkeypatch.setattr(inspecting, "_stream", gone)
        shown = run("inspect", address, COLUMNS="900")
    stream = [row[0] for row in cells(shown.stdout) if len(row) > 2][1:]
    if door == "feedapi":
        assert (stream, shown.exit_code) == (["a[/b]"], 1)
        last = shown.stdout.splitlines()[-1]
        assert last.startswith(".. cannot be shown: ") and "no parts of an address" in last
    else:
        assert (stream, shown.exit_code) == (["..", "a[/b]"], 0)


def test_inspect_of_our_log_when_it_has_no_stream(tmp_path: Path) -> None:
    with LogProcess(tmp_path) as log:
        for door in PEERS:
            shown = run("inspect", log.urls[door].replace("//", "//" if door == "feedapi" else "//guest:guest@"))
            assert shown.stdout.splitlines()[-1] == "It has no streams, or none that this user may read."


@pytest.mark.parametrize(("door", "why"), [("amqp", "AMQP has no way"), ("rabbitmq-stream", "no command that lists")])
def test_inspect_of_another_peer_says_what_it_is_and_how_to_name_streams(
    reference_log: StreamFactory, door: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_streams.client.amqp.peer.PRODUCT", "another")
    monkeypatch.setattr("spark_streams.client.rabbitmq.connection.PRODUCT", "another")
    address = url(reference_log.create(), door).partition("#")[0]
    shown = run("inspect", address, COLUMNS="900")
    assert shown.exit_code == 0, shown.stderr
    told = dict(row for row in cells(shown.stdout))
    assert "spark-streams" in told["product" if door == "amqp" else "implementation"]
    assert CAPABILITY[door] in told["capabilities" if door == "amqp" else "commands"].split(", ")
    last = shown.stdout.splitlines()[-1]
    assert last.startswith("Its streams are not known: ") and why in last
    assert last.endswith(f"spark-streams inspect {address.replace('guest:guest@', '')} STREAM...")
    found = json.loads(run("inspect", address, "--json").stdout)
    assert (found["stream"], found["streams"], found["peer"]["product"]) == (None, None, told["product"])
    assert why in found["why"]


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream"])
def test_inspect_shows_each_stream_that_is_named(reference_log: StreamFactory, door: str) -> None:
    streams = [reference_log.create(name, partitions) for name, partitions in (("orders", 2), ("payments", 1))]
    streams[1].produce(["a", "b"])
    address = url(streams[0], door).partition("#")[0]
    names = [stream.name for stream in streams]
    lines = run("inspect", address, *names, "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["stream"] for each in found] == names
    assert [[p["events"] for p in each["partitions"]] for each in found] == [[0, 0], [2]]
    shown = run("inspect", address, *names, COLUMNS="900").stdout
    assert [row[:2] for row in cells(shown) if row[0] in names] == ([[names[1], "2"]] if door != "amqp" else [])
    titles = [line for line in shown.splitlines() if " at " in line and line[:1] not in "│┃"]
    assert [title.split(" ")[0] for title in titles] == names
    half = run("inspect", address, names[0], "missing", "--json")
    assert (half.exit_code, json.loads(half.stdout)["stream"]) == (1, names[0])


def test_inspect_tells_of_splits(reference_log: StreamFactory) -> None:
    stream = reference_log.create()
    stream.produce(["a"])
    where = url(stream, "feedapi")
    requests.post(f"{where}/partitions/0/split?into=2", timeout=120).raise_for_status()
    parent, first, second = json.loads(run("inspect", where, "--json").stdout)["partitions"]
    assert (parent["closed"], first["starts after"], second["starts after"]) == ("yes", 0, 0)


def test_inspect_of_a_version_1_feed(reference_log: StreamFactory) -> None:
    stream = reference_log.create("orders", 2)
    stream.produce({"value": f"v{n}", "partition": "1"} for n in range(3))
    found = json.loads(run("inspect", url(stream, "feedapi"), "--partitions", "2", "--json").stdout)
    assert found["peer"]["dialect"] == "v1"
    assert [p["partition"] for p in found["partitions"]] == ["0", "1"]
    assert found["partitions"][1]["last cursor"].endswith("3")


def test_a_feed_that_speaks_version_1_alone_asks_for_the_option() -> None:
    """One that answers a call without arguments with status 400, as ZeroEventHub does."""

    def answer(asked: Request) -> Reply:
        if "n" not in asked:
            return Reply(b"no partition count\n", status=400)
        partition = next(name for name in dict(asked.pairs) if name.startswith("cursor")).removeprefix("cursor")
        return Reply(b'{"partition": %s, "cursor": "17"}\n' % partition.encode())

    with Scripted(answer) as feed:
        without = run("inspect", f"{feed.url}/orders")
        assert without.exit_code == 2
        assert "--partitions: is required" in without.stderr
        found = json.loads(run("inspect", f"{feed.url}/orders", "--partitions", "2", "--json").stdout)
    assert [(p["partition"], p["last cursor"]) for p in found["partitions"]] == [("0", "17"), ("1", "17")]


def test_the_dialect_of_an_amqp_peer_may_be_said(reference_log: StreamFactory) -> None:
    address = url(reference_log.create(), "amqp")
    for words in ((), ("--dialect", "event-streams")):
        assert json.loads(run("inspect", address, *words, "--json").stdout)["peer"]["dialect"] == "event-streams"
    refused = run("inspect", address.replace("amqp://", "rabbitmq-stream://"), "--dialect", "rabbitmq")
    assert refused.exit_code != 0 and "'--dialect': is for AMQP" in refused.stderr


def test_an_empty_stream_of_rabbitmq_that_begins_above_0_is_empty(reference_log: StreamFactory) -> None:
    """RabbitMQ 4.4 with an initial offset of 1,000, see ``client/rabbitmq/test_bounds.py``: empty at once."""
    copies = reference_log.create("copies")
    chunks = dict.fromkeys(("first_chunk_id", "last_chunk_id"), 999)
    committed = dict.fromkeys(("committed_chunk_id", "committed_offset"), -1)
    script = {
        key.STREAM_STATS: answers(key.STREAM_STATS, (1, stats(**chunks, **committed))),
        key.RESOLVE_OFFSET: answers(key.RESOLVE_OFFSET, (1, struct.pack(">HQ", 4, 1_000))),
        key.PARTITIONS: answers(key.PARTITIONS, (2, b"")),  # it is no super stream
    }
    with ScriptedRabbit(script) as broker:
        broker.handlers[key.METADATA] = lambda wire, number, _: wire.send(
            key.METADATA | key.RESPONSE, struct.pack(">I", number) + metadata("s", port=broker.port)
        )
        address = f"rabbitmq-stream://guest:guest@127.0.0.1:{broker.port}#s"
        shown = run("inspect", address, "--json")
        assert shown.exit_code == 0, (shown.stderr, broker.seen[-8:])
        (partition,) = json.loads(shown.stdout)["partitions"]
        assert partition["events"] == 0
        done = run("copy", address, url(copies, "rabbitmq-stream"))
        assert (done.exit_code, done.stdout[:14]) == (0, "0 events copie"), done.stderr
    assert copies.values() == []
