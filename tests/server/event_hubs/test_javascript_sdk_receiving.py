"""Receiving by Microsoft's SDK for JavaScript from the door: positions, epochs, and processors that share partitions.

The contract is docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import time
from typing import Any

from spark_streams.testing import eventually
from tests.faults.proxy import Break, TcpProxy
from tests.server.event_hubs.conftest import WAIT_S
from tests.server.event_hubs.javascript_sdk import LATEST, Sdk, events
from tests.server.node_packages import needs_node

pytestmark = needs_node

HOUR_MS = 3_600_000


# --- 3.4: receiving


def test_receiving_from_every_kind_of_position(namespaces: Any, sdk_of: Any) -> None:
    now = [1_700_000_000_000]
    sdk = sdk_of(namespaces(clock=lambda: now[0]))
    sdk.namespace.create()
    producer = sdk.producer()
    for number in range(6):
        producer("send", events=events(number), partition="0")
        now[0] += 1_000
    for start, first in (
        ({"offset": "-1"}, 0),
        ({"offset": f"{2:020d}"}, 3),
        ({"offset": "2", "isInclusive": True}, 2),
        ({"sequenceNumber": 2}, 3),
        ({"sequenceNumber": 2, "isInclusive": True}, 2),
        ({"sequenceNumber": -1}, 0),
        ({"sequenceNumber": 5, "isInclusive": True}, 5),
        ({"enqueuedOn": 1_700_000_003_000}, 4),
        ({"enqueuedOn": {"ms": 1_700_000_002_999}}, 3),
        ({"enqueuedOn": 0}, 0),
    ):
        got = sdk.receive(6 - first, start=start)
        assert [event["body"] for event in got] == list(range(first, 6)), start
    assert got[-1]["enqueuedTimeUtc"] == 1_700_000_005_000


def test_receiving_only_what_is_new(sdk: Sdk) -> None:
    sdk.namespace.create()
    sdk.send("old", partition="0")
    starts = (LATEST, {"sequenceNumber": 0}, {"sequenceNumber": 1, "isInclusive": True})
    receiving = [sdk.receiving(start) for start in starts]
    eventually(lambda: len(sdk.namespace.receivers) == len(starts), "all receivers", WAIT_S)
    sdk.send("new", partition="0")
    assert [[event["body"] for event in each("take", count=1)] for each in receiving] == [["new"]] * len(starts)


def test_a_position_behind_the_end_is_refused(sdk: Sdk) -> None:
    sdk.namespace.create()
    sdk.send("only", partition="0")
    for start, words in (
        ({"sequenceNumber": 77}, "sequence number '77' is invalid. The last sequence number in the system is '0'"),
        ({"offset": "77"}, f"offset '77' is invalid. The last offset in the system is '{0:020d}'"),
    ):
        assert sdk.receiving(start).failure() == ("ArgumentError", f"The supplied {words}")


def test_a_position_that_retention_removed_is_the_first_one_retained(sdk: Sdk) -> None:
    sdk.namespace.create(segment_max_bytes=2_000, retention_max_bytes=3_000)
    producer = sdk.producer()
    for number in range(20):
        producer("send", events=events(f"{number:0500d}"), partition="0")
    assert sdk.namespace.server.call(sdk.namespace.log.enforce_retention) > 0
    told = producer("partition", partition="0")
    first = told["beginningSequenceNumber"]
    assert 0 < first < 19 and (told["lastEnqueuedSequenceNumber"], told["isEmpty"]) == (19, False)
    for start in ({"offset": "-1"}, {"offset": f"{0:020d}"}, {"sequenceNumber": first - 1}, {"enqueuedOn": 0}):
        assert [int(body) for body in sdk.bodies(20 - first, start=start)] == list(range(first, 20)), start


def test_each_event_tells_how_far_behind_it_is(sdk: Sdk) -> None:
    sdk.namespace.create()
    sdk.send(*range(5), partition="0")
    last = sdk.receive(5, trackLastEnqueuedEventProperties=True)[-1]
    told = last["last"]
    assert abs(told.pop("retrievedOn") - 1_000 * time.time()) < HOUR_MS
    assert told == {"sequenceNumber": 4, "offset": last["offset"], "enqueuedOn": last["enqueuedTimeUtc"]}
    assert not sdk.receive(1)[0]["last"]


def test_more_events_than_the_clients_window(sdk: Sdk) -> None:
    """The SDK's session takes 2,048 transfers until it says that it takes more."""
    sdk.namespace.create()
    producer = sdk.producer()
    for first in range(0, 12_000, 2_000):
        producer("send", events=events(*range(first, first + 2_000)), partition="0")
    assert sdk.bodies(12_000) == list(range(12_000))


def test_a_receiver_goes_on_after_its_connection_broke(sdk: Sdk) -> None:
    sdk.namespace.create()
    port = int(sdk.namespace.url.rstrip("/").rpartition(":")[2])
    with TcpProxy(port) as proxy:
        broken = sdk.namespace.connection_string.replace(f":{port}/", f":{proxy.port}/")
        receiving = sdk.receiving(connection=broken, retries=10)
        sdk.send("a", "b", partition="0")
        receiving("take", count=2)
        proxy.order(Break("reset"))
        sdk.send("c", partition="0")
        sdk.send("d", partition="0")
        eventually(lambda: not proxy.pending, "the break", WAIT_S)
        assert [event["body"] for event in receiving("take", count=4)] == ["a", "b", "c", "d"]


# --- 3.5: epochs, and balancing


def test_an_owner_is_displaced_by_another_of_its_level_or_a_higher_one(sdk: Sdk) -> None:
    sdk.namespace.create()
    sdk.send("event", partition="0")
    plain = sdk.receiving()
    plain("take", count=1)
    owner = sdk.receiving(ownerLevel=2)
    owner("take", count=1)
    stolen = "ReceiverDisconnectedError"
    code, words = plain.failure()
    assert code == stolen and "with higher epoch of '2' is created hence current receiver" in words
    assert plain("closed", partition="0") == "OwnershipLost"
    equal = sdk.receiving(ownerLevel=2)
    equal("take", count=1)
    code, words = owner.failure()
    assert code == stolen and "with epoch '2' is getting disconnected" in words
    code, words = sdk.receiving(ownerLevel=1).failure()
    assert code == stolen and "with a higher epoch of '2' already exists" in words
    code, words = sdk.receiving().failure()
    assert code == stolen and "epoch of '2', and so non-epoch receiver is not allowed" in words
    assert sdk.bodies(1, group="another") == ["event"]
    equal.close()
    assert sdk.bodies(1) == ["event"]


def test_a_sixth_receiver_without_level_is_refused(sdk: Sdk) -> None:
    sdk.namespace.create()
    sdk.send("event", partition="0")
    for each in [sdk.receiving() for _ in range(5)]:
        each("take", count=1)
    code, words = sdk.receiving().failure()
    assert code == "QuotaExceededError" and "allowed receivers per partition in a consumer group which is 5" in words


def test_processors_share_the_partitions_and_go_on_from_checkpoints(sdk: Sdk) -> None:
    partitions = 4
    sdk.namespace.create(partitions=partitions)
    store = sdk.store()
    balance = {"updateIntervalInMs": 100, "partitionOwnershipExpirationIntervalInMs": HOUR_MS}
    options: dict[str, Any] = {"partition": None, "store": store, "balance": balance}
    first = sdk.receiving(identifier="first", **options)
    assert sdk.program.ask("owned", of=[first.name], counts=[partitions]) == [["0", "1", "2", "3"]]
    eventually(lambda: len(sdk.namespace.receivers) == partitions, "a receiver of each", WAIT_S)
    second = sdk.receiving(identifier="second", **options)
    owned = sdk.program.ask("owned", of=[first.name, second.name], counts=[2, 2])
    assert sorted(owned[0] + owned[1]) == ["0", "1", "2", "3"]
    assert [first("closed", partition=name) for name in owned[1]] == ["OwnershipLost"] * 2
    for _ in owned[1]:
        code, words = first.failure()
        assert code == "ReceiverDisconnectedError"
        assert words.startswith(
            "New receiver 'second' with higher epoch of '0' is created hence current receiver 'first'"
        )
    for name in map(str, range(partitions)):
        sdk.send(f"{name}a", f"{name}b", partition=name)
    for each, names in zip((first, second), owned, strict=True):
        got = each("take", count=4)
        assert sorted(event["body"] for event in got) == [name + letter for name in names for letter in "ab"]
        for name in names:
            each("checkpoint", partition=name, offset=f"{0:020d}")
        each.close()
    third = sdk.receiving(**options)
    assert sorted(event["body"] for event in third("take", count=partitions)) == ["0b", "1b", "2b", "3b"]
