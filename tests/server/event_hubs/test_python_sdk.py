"""Microsoft's SDK for Python, azure-eventhub, against the door: unchanged, and without anything between.

The contract is docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import requests
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub._eventprocessor.in_memory_checkpoint_store import InMemoryCheckpointStore
from azure.eventhub.amqp import AmqpMessageBodyType
from azure.eventhub.exceptions import AuthenticationError, ConnectError, ConnectionLostError, EventHubError

from spark_streams.server import Permissions
from spark_streams.testing import eventually
from tests.server.amqp.raw_peer import EARLIEST
from tests.server.event_hubs.conftest import HUB, WAIT_S, Namespace, Receiving, sas

YEAR_1 = datetime(1, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the SDK logs of errors that a test provokes is no news."""
    logger = logging.getLogger("azure.eventhub")
    before, logger.disabled = logger.level, True
    logger.setLevel(logging.CRITICAL)
    yield
    logger.disabled = False
    logger.setLevel(before)


def bodies(events: list[Any]) -> list[str]:
    return [event.body_as_str() for event in events]


# --- 3.6: properties


def test_properties_of_a_hub_and_of_its_partitions(namespace: Namespace) -> None:
    namespace.create(partitions=2)
    producer = namespace.producer()
    hub = producer.get_eventhub_properties()
    assert (hub["eventhub_name"], hub["partition_ids"]) == (HUB, ["0", "1"])
    assert abs(hub["created_at"] - datetime.now(timezone.utc)) < timedelta(hours=1)
    empty = producer.get_partition_properties("1")
    assert empty == {
        "eventhub_name": HUB,
        "id": "1",
        "beginning_sequence_number": 0,
        "last_enqueued_sequence_number": -1,
        "last_enqueued_offset": "-1",
        "last_enqueued_time_utc": YEAR_1,
        "is_empty": True,
    }
    namespace.send("a", "b", "c", partition_id="1")
    full = producer.get_partition_properties("1")
    assert (full["last_enqueued_sequence_number"], full["is_empty"]) == (2, False)
    last = namespace.receive(3, "1")[-1]
    assert (full["last_enqueued_offset"], full["last_enqueued_time_utc"]) == (last.offset, last.enqueued_time)
    with pytest.raises(ConnectError, match="Status code: 400"):
        producer.get_partition_properties("9")
    with pytest.raises(ConnectError, match="Status code: 404"):
        namespace.producer("nope").get_eventhub_properties()


# --- 3.7: sending


def test_batches_go_to_a_partition_by_key_or_in_turn_and_stay_together(namespace: Namespace) -> None:
    namespace.create(partitions=3)
    producer = namespace.producer()
    for number in range(3):
        producer.send_batch([EventData(f"{number}{letter}") for letter in "abcd"])
    assert namespace.ends() == {"0": 4, "1": 4, "2": 4}
    for _ in range(3):
        batch = producer.create_batch(partition_id="2")
        batch.add(EventData("x"))
        producer.send_batch(batch)
    assert namespace.ends() == {"0": 4, "1": 4, "2": 7}
    for number in range(3):
        producer.send_batch([EventData(f"k{number}")], partition_key="customer-7")
    producer.send_event(EventData("alone"), partition_key="customer-7")
    (home,) = (name for name, end in namespace.ends().items() if end >= 8 or (name != "2" and end > 4))
    events = namespace.receive(namespace.ends()[home], home)[-4:]
    assert bodies(events) == ["k0", "k1", "k2", "alone"]
    assert [event.partition_key for event in events] == [b"customer-7"] * 4


def test_what_an_event_has_comes_back(namespace: Namespace) -> None:
    namespace.create()
    sent = EventData(b"\x00\xff")
    sent.properties = {"text": "ö", "number": 7, "truth": True}
    sent.content_type, sent.correlation_id, sent.message_id = "application/octet-stream", "c-1", "m-1"
    sent.raw_amqp_message.annotations = {"x-own": "kept"}
    namespace.send(sent, "second", partition_id="0")
    got, second = namespace.receive(2)
    assert list(got.body) == [b"\x00\xff"] and second.body_as_str() == "second"
    assert got.properties == {b"text": "ö".encode(), b"number": 7, b"truth": True}
    assert (got.content_type, got.correlation_id, got.message_id) == ("application/octet-stream", "c-1", "m-1")
    assert got.system_properties[b"x-own"] == b"kept"
    assert (got.sequence_number, got.offset) == (0, f"{0:020d}")
    assert got.system_properties[b"x-opt-sequence-number"] == 0
    assert abs(got.enqueued_time - datetime.now(timezone.utc)) < timedelta(hours=1)


def test_a_large_batch_and_one_that_is_too_large(namespace: Namespace) -> None:
    namespace.create()
    producer = namespace.producer()
    batch = producer.create_batch(partition_id="0")
    assert batch.max_size_in_bytes == 1 << 20
    count = 0
    with pytest.raises(ValueError, match="reached its size limit: 1048576"):
        while True:
            batch.add(EventData(f"{count:0100d}" if count % 7 else f"{count}"))
            count += 1
    producer.send_batch(batch)
    assert namespace.ends() == {"0": count}
    assert [int(body) for body in bodies(namespace.receive(count))] == list(range(count))


# --- 3.4: receiving


@pytest.mark.nightly  # JavaScript's SDK by day
def test_receiving_from_every_kind_of_position(namespaces: Any) -> None:
    now = [1_700_000_000_000]
    namespace = namespaces(clock=lambda: now[0])
    namespace.create()
    for number in range(6):
        namespace.send(f"event {number}", partition_id="0")
        now[0] += 1_000
    instant = datetime.fromtimestamp(1_700_000_003, timezone.utc)
    for start, inclusive, first in (
        ("-1", False, 0),
        (2, False, 3),
        (2, True, 2),
        (f"{2:020d}", False, 3),
        ("2", True, 2),
        (instant, False, 4),
        (instant, True, 3),
        (5, True, 5),
    ):
        events = namespace.receive(6 - first, start=start, starting_position_inclusive=inclusive)
        assert bodies(events) == [f"event {number}" for number in range(first, 6)], (start, inclusive)
    assert events[0].enqueued_time == datetime.fromtimestamp(1_700_000_005, timezone.utc)


def test_receiving_only_what_is_new(namespace: Namespace) -> None:
    namespace.create()
    namespace.send("old", partition_id="0")
    receiving = [namespace.receiving(start="@latest"), namespace.receiving(start=0)]
    eventually(lambda: len(namespace.receivers) == 2, "both receivers", WAIT_S)
    namespace.send("new", partition_id="0")
    assert [bodies(each.take(1)) for each in receiving] == [["new"]] * 2


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (77, "The supplied sequence number '77' is invalid. The last sequence number in the system is '0'"),
        ("77", f"The supplied offset '77' is invalid. The last offset in the system is '{0:020d}'"),
    ],
)
def test_a_position_behind_the_end_is_refused(namespace: Namespace, start: Any, words: str) -> None:
    namespace.create()
    namespace.send("only", partition_id="0")
    with pytest.raises(ConnectError, match=words) as refused:
        namespace.receive(1, start=start)
    assert "com.microsoft:argument-error" in str(refused.value)


def test_each_event_tells_how_far_behind_it_is(namespace: Namespace) -> None:
    namespace.create()
    namespace.send(*map(str, range(5)), partition_id="0")
    receiving = namespace.receiving(track_last_enqueued_event_properties=True)
    last = receiving.take(5)[-1]
    told = receiving.contexts["0"].last_enqueued_event_properties
    assert (told["sequence_number"], told["offset"]) == (4, last.offset)
    assert told["enqueued_time"] == last.enqueued_time
    assert abs(told["retrieval_time"] - datetime.now(timezone.utc)) < timedelta(hours=1)
    silent = namespace.receiving()
    silent.take(5)
    assert silent.contexts["0"].last_enqueued_event_properties is None


def test_more_events_than_the_clients_window(namespace: Namespace) -> None:
    """The SDK settles nothing that it receives."""
    namespace.create()
    producer = namespace.producer()
    for first in range(0, 12_000, 2_000):
        producer.send_batch([EventData(str(number)) for number in range(first, first + 2_000)])
    assert bodies(namespace.receive(12_000)) == [str(number) for number in range(12_000)]


# --- 3.5: epochs, and balancing


@pytest.mark.nightly  # JavaScript's SDK by day
def test_an_owner_is_displaced_by_another_of_its_level_or_a_higher_one(namespace: Namespace) -> None:
    namespace.create()
    namespace.send("event", partition_id="0")
    plain = namespace.receiving()
    plain.take(1)
    owner = namespace.receiving(owner_level=2)
    owner.take(1)
    assert isinstance(plain.failure(), ConnectionLostError)
    equal = namespace.receiving(owner_level=2)
    equal.take(1)
    with pytest.raises(ConnectionLostError, match=r"New receiver '.*' with higher epoch of '2' is created hence"):
        raise owner.failure()
    with pytest.raises(ConnectionLostError, match=r"with a higher epoch of '2' already exists"):
        namespace.receive(1, owner_level=1)
    with pytest.raises(
        ConnectionLostError, match=r"created with epoch of '2', and so non-epoch receiver is not allowed"
    ):
        namespace.receive(1)
    assert bodies(namespace.receive(1, group="another")) == ["event"]
    equal.stop()
    assert bodies(namespace.receive(1)) == ["event"]


@pytest.mark.nightly  # JavaScript's SDK by day
def test_a_sixth_receiver_without_level_is_refused(namespace: Namespace) -> None:
    namespace.create()
    namespace.send("event", partition_id="0")
    five = [namespace.receiving() for _ in range(5)]
    for each in five:
        each.take(1)
    with pytest.raises(
        EventHubError, match="allowed receivers per partition in a consumer group which is 5"
    ) as refused:
        namespace.receive(1)
    assert "amqp:resource-limit-exceeded" in str(refused.value)


def test_processors_share_the_partitions_and_go_on_from_checkpoints(namespace: Namespace) -> None:
    namespace.create(partitions=2)
    for partition in ("0", "1"):
        namespace.send("a", "b", partition_id=partition)
    store = InMemoryCheckpointStore()
    options = {"checkpoint_store": store, "load_balancing_interval": 1, "partition_ownership_expiration_interval": 600}
    first, second = (
        Receiving(namespace.consumer(**options), None, "-1", {"prefetch": 1, "max_batch_size": 1}) for _ in range(2)
    )
    eventually(lambda: len(first.owned) == len(second.owned) == 1, "one partition each", WAIT_S)
    assert first.owned | second.owned == {"0", "1"}
    eventually(lambda: {"0", "1"} <= {*first.contexts, *second.contexts}, "events of both", WAIT_S)
    for each in (first, second):
        for partition, event in list(each.events):
            if event.body_as_str() == "a":
                each.contexts[partition].update_checkpoint(event)
    first.stop()
    second.stop()
    third = Receiving(namespace.consumer(**options), None, "-1", {})
    assert bodies(third.take(2)) == ["b", "b"]
    third.stop()


# --- 3.1, 3.2: signing in


def test_wrong_keys_and_unknown_rules(namespace: Namespace) -> None:
    namespace.create()
    right = namespace.connection_string
    for wrong in (
        right.replace("SharedAccessKey=guest", "SharedAccessKey=wrong"),
        right.replace("SharedAccessKeyName=guest", "SharedAccessKeyName=nobody"),
    ):
        with pytest.raises(AuthenticationError, match="Status code: 401"):
            namespace.producer(connection_string=wrong).create_batch()


def test_a_token_in_the_place_of_a_key_and_the_hub_in_the_string(namespace: Namespace) -> None:
    namespace.create()
    host = namespace.url.removeprefix("amqp://").rstrip("/")
    for hub, allowed in ((HUB, True), ("others", False)):
        token = sas(f"sb://{host}/{hub}", "guest", "guest")
        endpoint = namespace.connection_string.partition(";")[0]
        given = f"{endpoint};SharedAccessSignature={token};EntityPath={HUB};UseDevelopmentEmulator=true"
        with EventHubProducerClient.from_connection_string(given, retry_total=0) as producer:
            if allowed:
                producer.send_batch([EventData("by token")])
                assert producer.get_eventhub_properties()["eventhub_name"] == HUB
            else:
                with pytest.raises(EventHubError, match=r"unauthorized-access|401"):
                    producer.send_batch([EventData("not allowed")])
    assert bodies(namespace.receive(1)) == ["by token"]


def test_permissions_are_those_of_the_rule(namespaces: Any) -> None:
    reader = {"reader": Permissions(configure="", write="", read="orders")}
    namespace = namespaces(users={"writer": "w-key", "reader": "r-key"}, permissions=reader)
    namespace.create()
    assert "SharedAccessKey" not in namespace.server.urls["event-hubs"], "a key that is a secret is not told"
    assert "SharedAccessKeyName=writer;SharedAccessKey=w-key" in namespace.connection_string
    namespace.send("event", partition_id="0")
    as_reader = namespace.connection_string.replace("writer", "reader").replace("w-key", "r-key")
    assert bodies(namespace.receive(1, connection_string=as_reader)) == ["event"]
    with pytest.raises(EventHubError, match="may not write stream 'orders'"):
        namespace.producer(connection_string=as_reader).send_batch([EventData("no")])


# --- the same log through the other doors


def test_events_of_the_other_doors_and_events_for_them(namespace: Namespace, make_peer: Any) -> None:
    namespace.create()
    namespace.send(EventData("by the sdk"), partition_key="k1")
    peer = make_peer(namespace.server.urls["amqp"])
    peer.sender(HUB).send_all(["by proton"], key="k2")
    feed = f"{namespace.server.feed_url}/{HUB}"
    lines = {"Content-Type": "application/x-ndjson"}
    posted = requests.post(feed, b'{"event":{"by":"feed"},"key":"k3"}\n', headers=lines, timeout=WAIT_S)
    assert posted.json()["appended"] == 1
    events = namespace.receive(3)
    assert [event.partition_key for event in events] == [b"k1", b"k2", b"k3"]
    assert [event.sequence_number for event in events] == [0, 1, 2]
    assert events[0].body_as_str() == "by the sdk"
    assert events[1].body_type == AmqpMessageBodyType.VALUE and events[1].body == b"by proton"
    assert events[2].body_as_json() == {"by": "feed"}
    got = peer.receiver(HUB, filter=EARLIEST).drain()
    assert [each.message.annotations["event-streams-group-key"] for each in got] == ["k1", "k2", "k3"]
    assert bytes(got[0].message.body) == b"by the sdk"
    page = requests.get(feed, {"partition": 0, "cursor": "_first"}, timeout=WAIT_S).text.splitlines()
    assert '"by":"feed"' in page[2].replace(" ", "")
