"""Commands at an event hub, which a connection string names: the log's own door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_streams.client.amqp import credit
from spark_streams.testing import LogStream, StreamFactory
from tests.cli.peers.opened import run
from tests.client.amqp.fake_hub import FakeHub, Partition


@pytest.fixture
def orders(reference_log: StreamFactory) -> LogStream:
    return reference_log.create("orders", 2)


def test_inspect_tail_and_copy(reference_log: StreamFactory, orders: LogStream) -> None:
    orders.produce({"value": f"e{n}", "partition": "1"} for n in range(5))
    namespace = reference_log.event_hubs_connection_string
    hub = f"{namespace};EntityPath={orders.name}"
    for words in ((hub,), (namespace, orders.name)):
        shown = run("inspect", *words, "--json")
        assert shown.exit_code == 0, shown.stderr
        (told,) = [json.loads(line) for line in shown.stdout.splitlines()]
        assert [each["events"] for each in told["partitions"]] == [0, 5] and "guest" not in shown.stdout
    tailed = run("tail", hub, "--from", "offset:3", "--partition", "1", "--no-follow", "--output", "json")
    assert tailed.exit_code == 0, tailed.stderr
    assert [json.loads(line)["value"] for line in tailed.stdout.splitlines()] == ["e3", "e4"]
    copies = reference_log.create("copies")
    copied = run("copy", hub, f"{namespace};EntityPath={copies.name}")
    assert copied.exit_code == 0, copied.stderr
    assert copies.values() == [f"e{n}" for n in range(5)]


def test_the_key_may_be_in_a_file_and_in_the_environment(
    reference_log: StreamFactory, orders: LogStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.produce(["e0"])
    endpoint, *_, emulator = reference_log.event_hubs_connection_string.split(";")
    without = f"{endpoint};EntityPath={orders.name};{emulator}"
    (tmp_path / "key").write_text("guest")
    monkeypatch.setenv("SPARK_STREAMS_USERNAME", "guest")
    assert run("inspect", without, "--password-file", str(tmp_path / "key")).exit_code == 0
    monkeypatch.setenv("SPARK_STREAMS_PASSWORD", "guest")
    appended = run("log", "append", without, orders.name, "e1")
    assert appended.exit_code == 0, appended.stderr
    assert sorted(orders.values()) == ["e0", "e1"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("SharedAccessKey=guest", "SharedAccessKey="), "a connection string: SharedAccessKey is empty"),
        (("SharedAccessKey=guest", "Key=s3cret"), "part 3 is no name=value"),
        (
            ("SharedAccessKey=guest", "SharedAccessKey=s3cret"),
            "credentials were not accepted for user 'guest' (PLAIN): check URL",
        ),
    ],
)
def test_what_is_wrong_is_told_without_the_key(
    reference_log: StreamFactory, orders: LogStream, change: tuple[str, str], words: str
) -> None:
    wrong = reference_log.event_hubs_connection_string.replace(*change)
    said = run("inspect", wrong, orders.name)
    assert said.exit_code != 0
    assert words in said.stderr and "s3cret" not in said.stderr, said.stderr


def test_one_hub_at_a_time(reference_log: StreamFactory, orders: LogStream) -> None:
    hub = f"{reference_log.event_hubs_connection_string};EntityPath={orders.name}"
    twice = run("tail", hub, "others")
    assert twice.exit_code != 0 and "names stream" in twice.stderr


def test_a_compacted_hub(reference_log: StreamFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last event is gone: what is left is there, and the command ends."""
    monkeypatch.setattr(credit, "LOOK_AFTER_S", 0.01)
    with FakeHub({"0": Partition(4_210, [b"e%d" % n for n in range(20)], {4_215, 4_229})}) as hub:
        (told,) = [json.loads(line) for line in run("inspect", hub.connection_string, "--json").stdout.splitlines()]
        assert [(each["events"], each["latest"]) for each in told["partitions"]] == [(20, f"{4_229:020d}")]
        tailed = run("tail", hub.connection_string, "--from", "earliest", "--no-follow", "--output", "json")
        assert tailed.exit_code == 0, tailed.stderr
        left = [f"e{n}" for n in range(20) if n not in (5, 19)]
        assert [json.loads(line)["value"] for line in tailed.stdout.splitlines()] == left
        copies = reference_log.create("compacted")
        to = f"{reference_log.event_hubs_connection_string};EntityPath={copies.name}"
        copied = run("copy", hub.connection_string, to)
        assert copied.exit_code == 0, copied.stderr
        assert copies.values() == left
