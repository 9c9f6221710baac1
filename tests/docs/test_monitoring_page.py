"""The commands of docs/monitoring.md that speak with any peer, run against a log with all three doors."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from urllib.parse import urlsplit

from tests.cli.conftest import Ran, Served
from tests.cli.peers import run as command
from tests.docs.pages import blocks

PORTS = {"amqp": "localhost:5672", "rabbitmq-stream": "localhost:5552", "feedapi": "localhost:8080"}


def test_the_commands_that_speak_with_any_peer(serve: Callable[..., Served], run: Callable[..., Ran]) -> None:
    doors = ("--rabbitmq-stream", "0", "--feedapi", "0")
    served = serve("--stream", "orders:4", "--stream", "payments:1", "--stream", "copies:1", *doors)
    assert run("log", "append", served.url, "orders", stdin="".join(f"v{n}\n" for n in range(8))).code == 0
    (block,) = blocks("docs/monitoring.md", "bash")
    for door, address in PORTS.items():
        block = block.replace(address, urlsplit(served.doors[door]).netloc)
    said = []
    for line in block.splitlines():
        name, *words = shlex.split(line)
        done = command(*words, COLUMNS="200")
        assert (name, done.exit_code) == ("spark-streams", 0), done.stderr
        said.append(done.stdout)
    peer, streams, feed, feeds, tailed, version_1, copied = said
    assert "AMQP_EVENT_STREAMS_V1_0" in peer
    for listed in (peer, feeds):
        assert [listed.count(f"{name} ") for name in ("orders", "payments", "copies")] == [4, 1, 1]
    assert streams.index("orders (RabbitMQ super stream)") < streams.index("payments (RabbitMQ s")
    assert len(json.loads(feed)["partitions"]) == 4
    assert sorted(line.split("\t")[4] for line in tailed.splitlines()) == [f"v{n}" for n in range(8)]
    assert len([json.loads(line) for line in version_1.splitlines()]) == 2
    assert copied.startswith("8 events copied from rabbitmq-stream://")
