"""log create and append, inspect and tail: what they print, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from tests.cli.conftest import COMMAND, Doors, Ran, Served, served_here

Run = Callable[..., Ran]


def events(run: Run, url: str, *words: Any) -> list[dict[str, Any]]:
    done = run("tail", url, "orders", "--no-follow", "--output", "json", *words)
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.split("\n") if line]


def test_lines_of_stdin_become_events(run: Run, run_process: Run, orders: Doors) -> None:
    done = run_process("log", "append", orders.url, "orders", "--key", "alice", stdin="one\n\nthr\u2028ee\nvier ä")
    assert (done.code, done.out, done.err) == (0, "4 events appended to 'orders'\n", "")
    found = events(run, orders.url, "--from", "earliest")
    assert [e["value"] for e in found] == ["one", "", "thr\u2028ee", "vier ä"]
    assert {e["key"] for e in found} == {"alice"} and len({e["partition"] for e in found}) == 1
    assert [e["offset"] for e in found] == sorted(e["offset"] for e in found)


@pytest.mark.parametrize("given", ["file", "pipe"])
def test_append_shows_how_fast_it_is_and_what_is_left_of_a_file(
    run: Run, orders: Doors, tmp_path: Path, given: str
) -> None:
    lines = "".join(f"{n:0100}\n" for n in range(30_000))
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "150"}
    if given == "file":
        done = run("log", "append", orders.url, "orders", stdin=lines, **terminal)
        assert (done.code, done.out) == (0, "30000 events appended to 'orders'\n")
        said = done.err
    else:
        words = [*COMMAND, "log", "append", orders.url, "orders"]
        process = subprocess.run(
            words, input=lines, capture_output=True, text=True, timeout=240, env={**os.environ, **terminal}
        )
        assert process.returncode == 0
        said = process.stderr
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)
    assert re.search(r"stdin to orders .* 30000 events [\d,]+/s 0:\d\d:\d\d so far", said)
    assert ("left" in said) == (given == "file")


def test_words_become_events_in_the_partition_that_is_named(run: Run, orders: Doors) -> None:
    for partition in ("0", "1"):
        assert run("log", "append", orders.url, "orders", f"for {partition}", "--partition", partition).code == 0
    assert {(e["partition"], e["value"]) for e in events(run, orders.url, "--from", "earliest")} == {
        ("0", "for 0"),
        ("1", "for 1"),
    }
    assert [e["value"] for e in events(run, orders.url, "--from", "earliest", "--partition", "1")] == ["for 1"]


def test_info_of_a_served_stream(run: Run, orders: Doors) -> None:
    run("log", "append", orders.url, "orders", "a", "b", "--partition", "1")
    said = json.loads(run("inspect", orders.url, "orders", "--json").out)
    first, second = said["partitions"]
    assert first == {"partition": "0", "events": 0, "earliest": None, "latest": None, "removed up to": None}
    assert second == {
        "partition": "1",
        "events": 2,
        "earliest": f"{0:020}",
        "latest": f"{1:020}",
        "removed up to": None,
    }
    shown = run("inspect", orders.url, "orders").out
    assert "orders" in shown and f"{1:020}" in shown


def test_where_tail_begins(run: Run, orders: Doors) -> None:
    run("log", "append", orders.url, "orders", "a", "b", "c", "--partition", "0")
    for start, expected in (
        ("earliest", ["a", "b", "c"]),
        ("latest", []),
        (f"offset:{1:020}", ["b", "c"]),
        (f"after:{1:020}", ["c"]),
        ("timestamp:1957-10-04", ["a", "b", "c"]),
    ):
        found = events(run, orders.url, "--from", start, "--partition", "0")
        assert [e["value"] for e in found] == expected, start
    late = run("tail", orders.url, "orders", "--no-follow", "--from", "timestamp:2200-01-01T00:00:00Z")
    assert (late.code, late.out) == (0, "")
    assert "reading starts at 7258118400000, which is 2200-01-01T00:00:00.000Z, behind the newest event" in late.err


def test_instants_before_1970_are_kept_and_found(run: Run, tmp_path: Path) -> None:
    made = run("log", "create", "--data-dir", "kept", "--timestamp-type", "create", "orders")
    assert (made.code, made.out) == (0, "orders: created\n")
    with served_here(tmp_path / "kept") as served:
        for when in ("1957-10-04T19:28:34Z", "-1", "1999-12-31"):
            assert run("log", "append", served.url, "orders", f"at {when}", "--timestamp", when).code == 0
        found = events(run, served.url, "--from", "timestamp:-1000")
        (first,) = events(run, served.url, "--from", "earliest", "--count", "1")
    assert [e["timestamp"] for e in found] == ["1969-12-31T23:59:59.999Z", "1999-12-31T00:00:00.000Z"]
    assert first["timestamp"] == "1957-10-04T19:28:34.000Z"


def test_tail_follows_and_stops_after_a_count(orders: Doors, run: Run) -> None:
    words = [*COMMAND, "tail", orders.url, "orders", "--from", "earliest", "--count", "3", "--output", "value"]
    follower = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    run("log", "append", orders.url, "orders", "first", "--partition", "0")
    assert follower.stdout.readline() == "first\n"
    run("log", "append", orders.url, "orders", "second", "third", "fourth", "--partition", "1")
    assert follower.stdout.read() == "second\nthird\n"
    assert follower.wait(timeout=120) == 0


def test_ctrl_c_ends_tail_without_a_word(orders: Doors, run: Run) -> None:
    run("log", "append", orders.url, "orders", "seen")
    words = [*COMMAND, "tail", orders.url, "orders", "--from", "earliest", "--output", "value"]
    follower = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert follower.stdout is not None and follower.stdout.readline() == "seen\n"
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=120)[1] == ""
    assert follower.returncode == 130


def test_values_that_are_no_text(run: Run, orders: Doors) -> None:
    assert run("log", "append", orders.url, "orders", stdin=b"\xff\x00\n").code == 0
    assert events(run, orders.url, "--from", "earliest")[0]["value_base64"] == "/wA="
    shown = run("tail", orders.url, "orders", "--from", "earliest", "--no-follow").out
    assert shown.endswith("\\xff\x00\n")


def test_info_of_a_log_that_is_not_served(run: Run, run_process: Run) -> None:
    assert run("log", "create", "--data-dir", "kept", "orders:2", "old").code == 0
    said = [json.loads(line) for line in run_process("inspect", "--data-dir", "kept", "--json").out.splitlines()]
    assert [(s["stream"], len(s["partitions"])) for s in said] == [("old", 1), ("orders", 2)]
    assert said[0]["config"]["timestamp_type"] == "append"


def test_create_says_what_was_there(run: Run) -> None:
    assert run("log", "create", "--data-dir", "kept", "orders:2").code == 0
    again = run("log", "create", "--data-dir", "kept", "orders:2")
    assert again.code == 1 and "there is a stream 'orders' already" in again.err
    kept = run("log", "create", "--data-dir", "kept", "--if-not-exists", "orders:2", "more")
    assert (kept.code, kept.out) == (0, "orders: was there\nmore: created\n")
    other = run("log", "create", "--data-dir", "kept", "--if-not-exists", "orders:3")
    assert other.code == 2 and "with 2 partitions, not 3" in other.err


def test_split(run: Run, run_process: Run, serve: Callable[..., Served]) -> None:
    assert run("log", "create", "--data-dir", "kept", "orders:2").code == 0
    first = run_process("log", "split", "orders", "0", "--data-dir", "kept")
    assert (first.code, first.out) == (0, "orders: partition 0 closed, followed by 2, 3\n")
    second = run("log", "split", "orders", "1", "--into", "3", "--history", "--data-dir", "kept")
    assert (second.code, second.out) == (0, "orders: partition 1 redistributed onto 4, 5, 6\n")
    said = json.loads(run("inspect", "--data-dir", "kept", "orders", "--json").out)
    found = {p["partition"]: (p["closed"], p["starts_after"], p["cursor_from"]) for p in said["partitions"]}
    assert found == {
        "0": (True, None, []),
        **dict.fromkeys(("2", "3"), (False, "0", [])),
        **dict.fromkeys(("4", "5", "6"), (False, None, ["1"])),
    }
    table = run("inspect", "--data-dir", "kept", "orders", COLUMNS="200").out
    assert "closed" in table and "starts after 0" in table and "history of 1" in table
    for words, said_then in (
        (("0",), "partition 0 is closed"),
        (("1",), "no partition '1'"),
        (("2", "--history"), "begins on"),
    ):
        wrong = run("log", "split", "orders", *words, "--data-dir", "kept")
        assert wrong.code == 2 and said_then in wrong.err
    served = serve("--data-dir", "kept", "--stream", "orders:2")
    done = run("log", "split", "orders", "2", "--data-dir", "kept")
    assert done.code == 1 and "open in another process" in done.err
    assert run("log", "append", served.url, "orders", "x", "--key", "k").code == 0
    refused = run("log", "append", served.url, "orders", "x", "--partition", "0")
    assert refused.code == 1 and "split into partitions 2, 3" in refused.err
    assert [e["value"] for e in events(run, served.url, "--from", "earliest", "--count", "1")] == ["x"]
    told = json.loads(run("inspect", served.url, "orders", "--json").out)["partitions"]
    assert {p["partition"]: (p["closed"], p["starts_after"], p["cursor_from"]) for p in told} == found
    table = run("inspect", served.url, "orders", COLUMNS="200").out
    assert "closed" in table and "starts after 0" in table and "history of 1" in table


def test_create_while_the_log_is_served(run_process: Run, tmp_path: Path) -> None:
    with served_here(tmp_path / "kept"):
        done = run_process("log", "create", "--data-dir", "kept", "orders")
    assert done.code == 1 and "open in another process: stop the server" in done.err
    assert "While a log is served, name its url in place of --data-dir" in done.err


def test_credentials_of_the_environment(run: Run, orders: Doors) -> None:
    bare = orders.doors["amqp"]
    known = {"SPARK_STREAMS_USERNAME": "guest", "SPARK_STREAMS_PASSWORD": "guest"}
    assert run("inspect", bare, "orders", **known).code == 0
    assert run("inspect", bare, "orders").code == 1


WRONG = [
    (["tail", "URL", "order"], 1, "there is no stream 'order'"),
    (["tail", "WRONG", "orders"], 1, "credentials were not accepted for user 'guest'"),
    (["tail", "amqp://guest:hidden-word@127.0.0.1:1", "orders"], 1, "127.0.0.1:1: connection refused"),
    (["tail", "amqp://guest:hidden-word@nowhere.invalid", "orders"], 1, "nowhere.invalid"),
    (["tail", "http://guest:hidden-word@127.0.0.1", "orders"], 2, "names it already: leave the stream out"),
    (["tail", "URL", "orders", "--from", "begin"], 2, "none of earliest, latest"),
    (["tail", "URL", "orders", "--from", "offset:5"], 2, "without --partition"),
    (["tail", "URL", "orders", "--from", "timestamp:soon"], 2, "expected milliseconds since 1970"),
    (["tail", "URL", "orders", "--partition", "7"], 1, "partition '7'"),
    (["log", "append", "URL", "orders", "x", "--partition", "7"], 1, "line 1 was rejected by stream 'orders'"),
    (["log", "append", "URL", "orders", "x", "--timestamp", "never"], 2, "expected milliseconds since 1970"),
    (["log", "append", "URL", "orders", "x", "--timestamp", str(2**62)], 2, "outside the years"),
    (["inspect"], 2, "expected a URL, or --data-dir DIR"),
    (["inspect", "--data-dir", "."], 2, "holds no log"),
    (["log", "create", "--data-dir", "d", "orders:none"], 2, "is not NAME[:PARTITIONS]"),
    (["log", "create", "--data-dir", "d", ""], 2, "cannot be created"),
]


@pytest.fixture(scope="module")
def shared_orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """One served log for all the faults: none of them changes it."""
    with served_here(tmp_path_factory.mktemp("shared"), orders=2) as served:
        yield served


@pytest.mark.parametrize(
    ("words", "code", "said"), WRONG, ids=lambda value: "_".join(value) if isinstance(value, list) else ""
)
def test_what_is_wrong_is_said_in_one_line(
    run: Run, shared_orders: Doors, words: list[str], code: int, said: str
) -> None:
    urls = {"URL": shared_orders.url, "WRONG": shared_orders.url.replace("guest:guest", "guest:hidden-word")}
    done = run(*(urls.get(word, word) for word in words))
    assert done.code == code and said in done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert done.err.endswith(line + "\n")
    assert "Traceback" not in done.err and "hidden-word" not in done.err + done.out


def test_a_name_that_a_partition_has_is_refused_by_every_command(run: Run, tmp_path: Path) -> None:
    kept = ("--data-dir", "kept")
    assert run("log", "create", *kept, "orders:2", "plain", "plain-1").code == 0
    for words in (("log", "create", *kept, "orders-1"), ("log", "serve", *kept, "--amqp", "0", "--stream", "orders-1")):
        refused = run(*words)
        assert refused.code == 2 and "partition 1 of stream 'orders' has that name" in refused.err
    split = run("log", "split", *kept, "plain", "0")
    assert split.code == 1 and "stream 'plain-1' has that name" in split.err and "Traceback" not in split.err
    with ReferenceLog(tmp_path / "other") as log:
        folder = log.create_stream("plain-0").folder
    folder.rename(tmp_path / "kept" / "streams" / folder.name)
    assert run("inspect", *kept).code == 0
    with ReferenceLog(tmp_path / "other") as log:
        folder = log.create_stream("orders-1").folder
    folder.rename(tmp_path / "kept" / "streams" / folder.name)
    for words in (("inspect", *kept), ("log", "serve", *kept, "--amqp", "0")):
        refused = run(*words)
        assert refused.code == 1 and "Move one of the folders" in refused.err and "Traceback" not in refused.err
