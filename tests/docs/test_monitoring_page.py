"""docs/monitoring.md: its commands, run against a log with all its doors, and its table of figures."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from spark_streams.spark.progress.figures import COUNTERS, FIGURES, GAUGES
from tests.cli.conftest import served_here
from tests.cli.peers.opened import run as command
from tests.docs.pages import blocks
from tests.door_urls import plain_url

ROOT = Path(__file__).resolve().parents[2]

PORTS = {
    "amqp": "localhost:5672",
    "rabbitmq-stream": "localhost:5552",
    "feedapi": "localhost:8080",
    "event-hubs": "localhost:5673",
}


def test_the_commands_that_speak_with_any_peer(tmp_path: Path) -> None:
    (block,) = blocks("docs/monitoring.md", "bash")
    said = []
    with served_here(tmp_path, orders=4, payments=1, copies=1) as served:
        served.publish("orders", *([f"v{2 * n}", f"v{2 * n + 1}"] for n in range(4)))
        for door, address in PORTS.items():
            block = block.replace(address, urlsplit(plain_url(served.doors[door])).netloc)
        for line in block.splitlines():
            name, *words = shlex.split(line)
            done = command(*words, COLUMNS="200")
            assert (name, done.exit_code) == ("spark-streams", 0), done.stderr
            said.append(done.stdout)
    peer, streams, feed, feeds, tailed, version_1, copied, hub = said
    assert "AMQP_EVENT_STREAMS_V1_0" in peer
    for listed in (peer, feeds):
        assert [listed.count(f"{name} ") for name in ("orders", "payments", "copies")] == [4, 1, 1]
    assert streams.index("orders (RabbitMQ super stream)") < streams.index("payments (RabbitMQ s")
    assert len(json.loads(feed)["partitions"]) == 4
    assert sorted(line.split("\t")[4] for line in tailed.splitlines()) == [f"v{n}" for n in range(8)]
    assert len([json.loads(line) for line in version_1.splitlines()]) == 2
    assert hub.startswith("orders (AMQP event stream)")
    assert copied.startswith("8 events copied from rabbitmq-stream://")


def test_the_table_has_every_figure_of_queries() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `spark_streams_query_")]
    assert rows == [
        [
            f"`{figure.name}`",
            "gauge" if figure in GAUGES else "counter" if figure in COUNTERS else "histogram",
            ", ".join(f"`{label}`" for label in figure.labels),
            f"`{figure.instrument}`, `{figure.unit}`",
            figure.meaning,
        ]
        for figure in FIGURES
    ]


def test_the_alerts_and_the_table_have_the_same_names() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    named = set(re.findall(r"\bspark_streams_query_\w+", page))
    assert named == {figure.name for figure in FIGURES}
