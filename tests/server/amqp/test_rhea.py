"""A client that is not proton, rhea on Node.js, against the node: publish, consume, filters, annotations, binding."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.node_packages import installed, needs_node

HERE = Path(__file__).parent / "rhea"
pytestmark = needs_node


@pytest.fixture(scope="module")
def script() -> Path:
    """Install rhea once, and return the script beside it."""
    return installed(HERE, "rhea")


class Rhea:
    """Runs steps with rhea against one node; each run is a connection of its own."""

    def __init__(self, script: Path, node: Any) -> None:
        self.script = script
        self.node = node

    def __call__(self, *steps: dict[str, Any], password: str = "guest") -> Any:
        port = int(self.node.url.rsplit(":", 1)[1])
        run = {"port": port, "username": "guest", "password": password, "steps": steps}
        done = subprocess.run(
            ["node", str(self.script)], input=json.dumps(run), capture_output=True, text=True, timeout=120, check=True
        )
        return json.loads(done.stdout.splitlines()[0])

    def publish(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        return self({"do": "publish", "address": "orders", "messages": messages, **options})["results"][0]

    def consume(self, count: int, **options: Any) -> Any:
        return self({"do": "consume", "address": "orders", "count": count, **options})["results"][0]


@pytest.fixture
def rhea(script: Path, node: Any) -> Rhea:
    return Rhea(script, node)


FROM_START = {"start": {"descriptor": 512, "offset": "@earliest"}}


def numbered(count: int, **sections: str) -> list[dict[str, Any]]:
    return [{"body": f"event {n}", **sections} for n in range(count)]


def test_rhea_publishes_and_consumes_in_one_connection(rhea: Rhea, node: Any) -> None:
    node.create(partitions=3)
    ran = rhea(
        {"do": "publish", "address": "orders", "messages": numbered(50)},
        {"do": "consume", "address": "orders", "count": 50, "filters": FROM_START},
    )
    assert ran["offered"] == ["AMQP_EVENT_STREAMS_V1_0", "AMQP_FILTEX_SQL_V1_0"]
    published, consumed = ran["results"]
    assert published["outcomes"] == ["accepted"] * 50
    assert sorted(e["body"] for e in consumed["events"]) == sorted(m["body"] for m in numbered(50))
    for event in consumed["events"]:
        annotations = event["delivery"]
        assert annotations["event-streams-source-partition"] in {"0", "1", "2"}
        assert len(annotations["event-streams-offset"]) == 20
        assert annotations["event-streams-timestamp"] > 1_700_000_000_000
    assert consumed["properties"] == {}


def test_rhea_reads_what_proton_wrote_and_the_other_way_round(rhea: Rhea, node: Any) -> None:
    node.create(partitions=2)
    node.send("orders", "from proton", key="k", target="1")
    event = rhea.consume(1, filters=FROM_START)["events"][0]
    assert (event["body"], event["annotations"]) == ("from proton", {"event-streams-group-key": "k"})
    rhea.publish([{"body": {"a": [1, "x", True]}, "key": "r", "target": "0"}])
    got = next(e for e in node.receive("orders") if e.partition == "0")
    assert got.body == {"a": [1, "x", True]} and got.message.annotations == {"event-streams-group-key": "r"}


def test_rhea_binds_links_and_routes(rhea: Rhea, node: Any) -> None:
    node.create(partitions=3)
    bound = rhea.publish([{"body": "home"}, {"body": "astray", "target": "1"}], partition="2")
    assert bound["properties"] == {"event-streams-partition": "2"}
    assert bound["outcomes"] == ["accepted", "amqp:not-allowed"]
    hinted = rhea.publish([{"body": "t", "target": "0"}, {"body": "u", "target": "nope"}])
    assert hinted["outcomes"] == ["accepted", "amqp:not-found"]
    keyed = rhea.publish(numbered(5, key="customer-7"))
    assert keyed["outcomes"] == ["accepted"] * 5
    consumed = rhea.consume(1, partition="2", filters=FROM_START)
    assert consumed["properties"]["event-streams-partition"] == "2"
    assert consumed["events"][0]["body"] == "home"
    of_key = {e.partition for e in node.receive("orders") if str(e.body).startswith("event")}
    assert len(of_key) == 1
    assert rhea.consume(1, partition="nope") == {"error": "amqp:not-found"}


@pytest.mark.parametrize("descriptor", [513, "amqp:event-streams-sql-filter"])
def test_rhea_filters_with_sql(rhea: Rhea, node: Any, descriptor: Any) -> None:
    node.create()
    rhea.publish(numbered(6))
    offsets = [e["delivery"]["event-streams-offset"] for e in rhea.consume(6, filters=FROM_START)["events"]]
    text = f"d.event-streams-offset >= '{offsets[2]}' AND d.event-streams-offset <> '{offsets[3]}'"
    consumed = rhea.consume(3, filters={"sql": {"descriptor": descriptor, "sql": text}})
    assert [e["body"] for e in consumed["events"]] == ["event 2", "event 4", "event 5"]
    assert consumed["echoed"] == ["sql"]
    refused = rhea.consume(1, filters={"sql": {"descriptor": descriptor, "sql": "(TRUE)"}})
    assert refused == {"error": "amqp:invalid-field"}


@pytest.mark.parametrize("descriptor", [512, "amqp:event-streams-delivery-annotations-filter"])
def test_rhea_filters_by_annotations(rhea: Rhea, node: Any, descriptor: Any) -> None:
    node.create()
    rhea.publish(numbered(4))
    events = rhea.consume(4, filters=FROM_START)["events"]
    after = events[1]["delivery"]["event-streams-offset"]
    consumed = rhea.consume(2, filters={"start": {"descriptor": descriptor, "offset": after, "timestamp": 5}})
    assert [e["body"] for e in consumed["events"]] == ["event 2", "event 3"]
    unknown = rhea.consume(1, filters={**FROM_START, "x": {"descriptor": "x:unknown", "sql": "FALSE"}})
    assert unknown["echoed"] == ["start"]


def test_rhea_joins_groups(rhea: Rhea, node: Any) -> None:
    node.create(partitions=2)
    rhea.publish([{"body": "0", "target": "0"}, {"body": "1", "target": "1"}])
    joined = rhea.consume(1, group="g", filters=FROM_START)
    assert joined["properties"] == {
        "event-streams-consumer-group": "g",
        "event-streams-partition": joined["events"][0]["body"],
        "event-streams-epoch": 0,
    }
    owner = node.peer().receiver("orders", properties={"event-streams-consumer-group": "h"})
    taken = owner.properties["event-streams-partition"]
    assert rhea.consume(1, group="h", partition=str(taken)) == {"error": "amqp:resource-locked"}
    stolen = rhea.consume(1, group="h", partition=str(taken), epoch=3, filters=FROM_START)
    assert stolen["properties"]["event-streams-epoch"] == 3
    assert owner.wait_closed() == "amqp:link:stolen"


def test_rhea_reads_the_runtime_information(rhea: Rhea, node: Any) -> None:
    node.create(partitions=2)
    rhea.publish([{"body": "x", "target": "1"}])
    body = rhea.consume(1, address="orders/$info")["events"][0]["body"]
    assert [p["partition"] for p in body["partitions"]] == ["0", "1"]
    assert body["partitions"][0]["latest-offset"] is None
    assert len(body["partitions"][1]["latest-offset"]) == 20


def test_rhea_is_told_of_a_wrong_password(rhea: Rhea) -> None:
    assert "auth" in str(rhea(password="wrong")["error"]).lower()
