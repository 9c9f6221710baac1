"""Microsoft's SDK for JavaScript, @azure/event-hubs, against the door: unchanged, and without anything between.

The contract is docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import re
import time
from typing import Any

import requests
from azure.eventhub import EventData

from spark_streams.log.format.records import message_columns_of
from spark_streams.server import Permissions
from tests.server.amqp.raw_peer import EARLIEST as FROM_START
from tests.server.event_hubs.conftest import HUB, WAIT_S, sas
from tests.server.event_hubs.javascript_sdk import Sdk, events
from tests.server.node_packages import needs_node

pytestmark = needs_node

YEAR_1_MS = -62_135_596_800_000
HOUR_MS = 3_600_000
TEXT = 'Grüße, 東京 \U0001f600 \u0000 \\"'
BYTES = {"hex": "00ff80c3"}
UUID = {"hex": "00ff80c3" * 4}
"""What the SDK makes of all bytes that are an identifier."""


# --- 3.6: properties


def test_properties_of_a_hub_and_of_its_partitions(sdk: Sdk) -> None:
    sdk.namespace.create(partitions=2)
    producer = sdk.producer()
    hub = producer("hub")
    assert (hub["name"], hub["partitionIds"], hub["isGeoDrEnabled"]) == (HUB, ["0", "1"], False)
    assert abs(hub["createdOn"] - 1_000 * time.time()) < HOUR_MS
    assert producer("partition", partition="1") == {
        "eventHubName": HUB,
        "partitionId": "1",
        "beginningSequenceNumber": 0,
        "lastEnqueuedSequenceNumber": -1,
        "lastEnqueuedOffset": "-1",
        "lastEnqueuedOnUtc": YEAR_1_MS,
        "isEmpty": True,
    }
    producer("send", events=events("a", "b", "c"), partition="1")
    full = producer("partition", partition="1")
    last = sdk.receive(3, partition="1")[-1]
    assert (full["lastEnqueuedSequenceNumber"], full["isEmpty"]) == (2, False)
    assert (full["lastEnqueuedOffset"], full["lastEnqueuedOnUtc"]) == (last["offset"], last["enqueuedTimeUtc"])
    assert sdk.consumer()("hub") == hub and sdk.consumer()("partition", partition="1") == full
    code, words = producer.refusal("partition", partition="9")
    assert code == "ArgumentOutOfRangeError" and "should be one of 0, 1" in words
    missing = ("MessagingEntityNotFoundError", "The messaging entity 'nope' could not be found.")
    assert sdk.producer(hub="nope").refusal("hub") == missing


def test_hubs_partitions_and_groups_that_there_are_not(namespaces: Any, sdk_of: Any) -> None:
    sdk = sdk_of(namespaces(groups=frozenset({"known"})))
    sdk.namespace.create()
    sdk.send("event", partition="0")
    assert sdk.producer(hub="nope").refusal("send", events=events("lost"))[0] == "MessagingEntityNotFoundError"
    assert sdk.producer().refusal("send", events=events("lost"), partition="9")[0] == "ArgumentOutOfRangeError"
    assert sdk.receiving(hub="nope").failure()[0] == "MessagingEntityNotFoundError"
    assert sdk.receiving(partition="9").failure()[0] == "ArgumentOutOfRangeError"
    assert sdk.receiving(group="unknown").failure()[0] == "MessagingEntityNotFoundError"
    assert sdk.bodies(1, group="KNOWN") == sdk.bodies(1, group="$default") == ["event"]


# --- 3.7: sending


def test_batches_go_to_a_partition_by_key_or_in_turn_and_stay_together(sdk: Sdk) -> None:
    sdk.namespace.create(partitions=3)
    producer = sdk.producer()
    for number in range(3):
        producer("send", events=events(*(f"{number}{letter}" for letter in "abcd")))
    assert sdk.namespace.ends() == {"0": 4, "1": 4, "2": 4}
    producer("send", events=events("x", "y"), partition="2")
    producer("send", events=events("z"), partition="2", plain=True)
    assert sdk.namespace.ends() == {"0": 4, "1": 4, "2": 7}
    assert sdk.bodies(7, partition="2")[4:] == ["x", "y", "z"]
    before = sdk.namespace.ends()
    producer("send", events=events("k0", "k1"), key="Schlüssel")
    producer("send", events=events("k2"), key="Schlüssel", plain=True)
    sdk.program.ask("buffered", connection=sdk.namespace.connection_string, hub=HUB, events=events("b"), partition="0")
    grown = {name: end - before[name] for name, end in sdk.namespace.ends().items()}
    (home,) = (name for name, more in grown.items() if more >= 3)
    assert grown == {**dict.fromkeys(grown, 0), "0": 1, home: 3 + (home == "0")}
    keyed = [event for event in sdk.receive(sdk.namespace.ends()[home], partition=home) if event["partitionKey"]]
    assert [(event["body"], event["partitionKey"]) for event in keyed] == [(f"k{n}", "Schlüssel") for n in range(3)]


def test_a_batch_as_large_as_may_be_and_an_event_that_is_larger(sdk: Sdk) -> None:
    sdk.namespace.create()
    producer = sdk.producer()
    filled = producer("fill", event={"body": "x" * 1_000}, partition="0")
    assert filled["most"] == 1 << 20 and 1_000 < filled["count"] < 1_050
    assert sdk.namespace.ends() == {"0": filled["count"]}
    too_large = events({"hex": "00" * (1 << 20)})
    assert producer.refusal("send", events=too_large) == ("RangeError", "the batch is full after 0 events")
    code, words = producer.refusal("send", events=too_large, partition="0", plain=True)
    assert code == "MessageTooLargeError"
    assert re.fullmatch(
        r"The received message \(delivery-id:\d+, size:\d{7} bytes\) exceeds the limit \(1048576 bytes\) currently .*",
        words,
    )
    producer("send", events=events("still there"), partition="0")
    assert sdk.namespace.ends() == {"0": filled["count"] + 1}


def test_a_key_and_a_partition_together_are_refused(sdk: Sdk) -> None:
    """The SDK's own options exclude each other; an annotated message says both."""
    sdk.namespace.create(partitions=2)
    both = {"body": BYTES, "bodyType": "data", "messageAnnotations": {"x-opt-partition-key": "k"}}
    code, words = sdk.producer().refusal("send", events=[both], partition="1")
    assert code == "InvalidOperationError" and "with a partition key cannot be sent to a partition" in words
    assert sdk.namespace.ends() == {"0": 0, "1": 0}


def test_what_an_event_has_comes_back(sdk: Sdk) -> None:
    sdk.namespace.create()
    instant = 1_700_000_000_123
    sent = {
        "body": {"text": TEXT, "list": [1, None, True]},
        "contentType": "application/json",
        "correlationId": "c-ö",
        "messageId": "m-1",
        "properties": {"täxt": TEXT, "int": -7, "half": 0.5, "truth": True, "none": None, "at": {"ms": instant}},
    }
    sdk.send("first", partition="0")
    producer = sdk.producer()
    producer("send", events=[sent, {**sent, "correlationId": 7, "messageId": UUID}], partition="0")
    first, got, other = sdk.receive(3)
    assert first["body"] == "first" and first.get("properties") is None
    assert {name: got[name] for name in sent} == {**sent, "properties": {**sent["properties"], "at": instant}}
    assert (other["correlationId"], other["messageId"]) == (7, UUID)
    assert got["systemProperties"] == {
        "messageId": "m-1",
        "correlationId": "c-ö",
        "contentType": "application/json",
    }
    assert [(event["sequenceNumber"], event["offset"]) for event in (first, got)] == [
        (0, f"{0:020d}"),
        (1, f"{1:020d}"),
    ]
    assert abs(got["enqueuedTimeUtc"] - 1_000 * time.time()) < HOUR_MS


def test_bodies_of_every_kind_come_back(sdk: Sdk) -> None:
    sdk.namespace.create()
    annotated = {"messageAnnotations": {"x-own": TEXT}, "properties": {"subject": "s", "groupId": "g"}}
    sent = [
        {"body": BYTES},
        {"body": {"hex": TEXT.encode().hex()}},
        {"body": {"hex": ""}},
        {"body": TEXT, "bodyType": "value", **annotated},
        {"body": {"a": [1, "x", True]}, "bodyType": "value"},
        {"body": [[1, "x"], [BYTES]], "bodyType": "sequence"},
    ]
    producer = sdk.producer()
    producer("send", events=sent, partition="0")
    got = sdk.receive(len(sent), skipParsingBodyAsJson=True)
    assert [event["body"] for event in got] == [event["body"] for event in sent]
    assert [event["bodyType"] for event in got] == ["data"] * 3 + ["value"] * 2 + ["sequence"]
    assert got[3]["systemProperties"] == {"x-own": TEXT, "subject": "s", "groupId": "g"}


def test_bodies_of_null_are_none(sdk: Sdk) -> None:
    """The SDK writes a data section that holds null for a body of null, and for none."""
    sdk.namespace.create()
    producer = sdk.producer()
    producer("send", events=[{"body": None}, {}, {"body": BYTES}], partition="0")
    producer("send", events=[{"body": None}], partition="0", plain=True)
    records = sdk.namespace.server.call(lambda: sdk.namespace.log.stream(HUB).partitions["0"].read(0, 1 << 20))
    assert [records.value(row)[-4:] == b"\x00\x53\x75\x40" for row in range(4)] == [True, True, False, True]
    assert message_columns_of(records, ("value",))["value"].to_pylist() == [None, None, bytes.fromhex("00ff80c3"), None]


# --- 3.1, 3.2: signing in


def test_wrong_keys_and_unknown_rules(sdk: Sdk) -> None:
    sdk.namespace.create()
    right = sdk.namespace.connection_string
    for wrong in (
        right.replace("SharedAccessKey=guest", "SharedAccessKey=wrong"),
        right.replace("SharedAccessKeyName=guest", "SharedAccessKeyName=nobody"),
    ):
        refused = ("UnauthorizedError", "InvalidSignature: The token has an invalid signature.")
        assert sdk.producer(connection=wrong).refusal("send", events=events("lost")) == refused
        assert sdk.producer(connection=wrong).refusal("hub") == refused
        assert sdk.receiving(connection=wrong).failure() == refused
    assert sdk.namespace.ends() == {"0": 0}


def test_a_token_in_the_place_of_a_key_and_the_hub_in_the_string(sdk: Sdk) -> None:
    sdk.namespace.create()
    host = sdk.namespace.url.removeprefix("amqp://").rstrip("/")
    endpoint = sdk.namespace.connection_string.partition(";")[0]

    def by(token: str) -> str:
        return f"{endpoint};SharedAccessSignature={token};EntityPath={HUB};UseDevelopmentEmulator=true"

    allowed = by(sas(f"sb://{host}/{HUB}", "guest", "guest"))
    producer = sdk.producer(connection=allowed)
    producer("send", events=events("by token"))
    assert producer("hub")["name"] == HUB
    assert sdk.bodies(1, connection=allowed) == ["by token"]
    elsewhere = sdk.producer(connection=by(sas(f"sb://{host}/others", "guest", "guest")))
    code, words = elsewhere.refusal("send", events=events("not allowed"))
    assert code == "UnauthorizedError" and "claim is required" in words
    expired = sdk.producer(connection=by(sas(f"sb://{host}/{HUB}", "guest", "guest", time.time() - 60)))
    refused = ("UnauthorizedError", "ExpiredToken: The token is expired.")
    assert expired.refusal("send", events=events("too late")) == refused


def test_permissions_are_those_of_the_rule(namespaces: Any, sdk_of: Any) -> None:
    reader = {"reader": Permissions(configure="", write="", read="orders")}
    sdk = sdk_of(namespaces(users={"writer": "w-key", "reader": "r-key"}, permissions=reader))
    sdk.namespace.create()
    sdk.send("event", partition="0")
    as_reader = sdk.namespace.connection_string.replace("writer", "reader").replace("w-key", "r-key")
    assert sdk.bodies(1, connection=as_reader) == ["event"]
    code, words = sdk.producer(connection=as_reader).refusal("send", events=events("no"))
    assert code == "UnauthorizedError" and "may not write stream 'orders'" in words


# --- the same log through the other doors


def test_events_of_the_other_doors_and_events_for_them(sdk: Sdk, make_peer: Any) -> None:
    sdk.namespace.create()
    sdk.send({"by": "js"}, key="k1")
    peer = make_peer(sdk.namespace.server.urls["amqp"])
    peer.sender(HUB).send_all(["by proton"], key="k2")
    feed = f"{sdk.namespace.server.feed_url}/{HUB}"
    lines = {"Content-Type": "application/x-ndjson"}
    posted = requests.post(feed, b'{"event":{"by":"feed"},"key":"k3"}\n', headers=lines, timeout=WAIT_S)
    assert posted.json()["appended"] == 1
    by_python = EventData(TEXT.encode())
    by_python.properties = {"täxt": TEXT}
    sdk.namespace.send(by_python, partition_key="k4")
    sdk.producer()("send", events=[{"body": BYTES, "properties": {"täxt": TEXT}}], key="k5")
    got = sdk.receive(5)
    assert [event["partitionKey"] for event in got] == ["k1", "k2", "k3", "k4", "k5"]
    assert [event["sequenceNumber"] for event in got] == [0, 1, 2, 3, 4]
    text = {"hex": TEXT.encode().hex()}
    assert [event["body"] for event in got] == [{"by": "js"}, "by proton", {"by": "feed"}, text, BYTES]
    assert got[3]["properties"] == got[4]["properties"] == {"täxt": TEXT}
    through = peer.receiver(HUB, filter=FROM_START).drain()
    assert [each.message.annotations["event-streams-group-key"] for each in through] == ["k1", "k2", "k3", "k4", "k5"]
    assert [bytes(through[n].message.body) for n in (0, 4)] == [b'{"by":"js"}', bytes.fromhex(BYTES["hex"])]
    assert through[4].message.properties == {"täxt": TEXT}
    python = sdk.namespace.receive(5)
    assert python[0].body_as_json() == {"by": "js"} and list(python[4].body) == [bytes.fromhex(BYTES["hex"])]
    assert python[4].properties == {"täxt".encode(): TEXT.encode()}
