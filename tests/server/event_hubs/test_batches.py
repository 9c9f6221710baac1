"""Batches that are not as they should be: each is refused by itself, whole, and nothing else with it.

Microsoft's client for Python packs what it is given, so its batches carry what no client would make.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import proton
import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError
from proton import symbol

from tests.server.event_hubs.conftest import HUB, Namespace
from tests.wire.amqp.messages import by_proton

NO_MESSAGE = b"\xff"
"""Nothing that can be a section."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the SDK logs of errors that a test provokes is no news."""
    logger = logging.getLogger("azure.eventhub")
    logger.disabled = True
    yield
    logger.disabled = False


def packed(producer: Any, events: list[bytes], **where: str) -> Any:
    """Return a batch with these bytes as its events."""
    batch = producer.create_batch(**where)
    batch.add(EventData("stands for them, so that the client counts one"))
    batch._message[5][:] = [bytearray(event) for event in events]
    return batch


def encoded(body: str, key: str | None = None, created_ms: int | None = None) -> bytes:
    message = proton.Message(body, annotations=None if key is None else {symbol("x-opt-partition-key"): key})
    if created_ms is not None:
        message.creation_time = created_ms / 1_000
    return by_proton(message)


def refused(producer: Any, batch: Any) -> str:
    with pytest.raises(EventHubError) as caught:
        producer.send_batch(batch)
    return str(caught.value)


def test_one_broken_event_refuses_its_batch_and_no_other(namespace: Namespace) -> None:
    namespace.create()
    producer = namespace.producer()
    assert "cannot be decoded" in refused(
        producer, packed(producer, [encoded("a"), NO_MESSAGE, encoded("b")], partition_id="0")
    )
    producer.send_batch(packed(producer, [encoded("c"), encoded("d")], partition_id="0"))
    assert namespace.ends() == {"0": 2}


@pytest.mark.timeout(240)
def test_a_batch_of_ever_so_many_broken_events_takes_no_longer_than_one_of_good_ones(
    namespace: Namespace, make_peer: Callable[..., Any]
) -> None:
    """Once it took hours, in which no door answered anybody; the test's guard is all that judges the time."""
    namespace.create()
    producer = namespace.producer()
    assert "cannot be decoded" in refused(producer, packed(producer, [NO_MESSAGE] * 150_000, partition_id="0"))
    make_peer(namespace.url).sender(HUB).send("others are served")
    assert namespace.ends() == {"0": 1}


def test_a_key_anywhere_in_a_batch_contradicts_a_partition(namespace: Namespace) -> None:
    namespace.create()
    producer = namespace.producer()
    batch = packed(producer, [encoded("a"), encoded("b", key="k")], partition_id="0")
    assert "an event with a partition key cannot be sent to a partition" in refused(producer, batch)
    assert namespace.ends() == {"0": 0}


def test_what_the_stream_refuses_of_a_batch_refuses_it_whole(namespace: Namespace) -> None:
    """Where creation times are events' times, a batch has them all or none."""
    namespace.create(timestamp_type="create")
    producer = namespace.producer()
    mixed = packed(producer, [encoded("a", created_ms=5), encoded("b")], partition_id="0")
    assert "with and without a timestamp" in refused(producer, mixed)
    producer.send_batch(packed(producer, [encoded("c"), encoded("d")], partition_id="0"))
    assert namespace.ends() == {"0": 2}
