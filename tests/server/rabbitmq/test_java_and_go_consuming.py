"""Consumers of RabbitMQ's clients for Java and Go, on the door and on a real broker: filters, stored offsets, turns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.rabbitmq.consuming import wait_until_stored
from tests.server.rabbitmq.interop import Client, Made, of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]  # the first one of a machine downloads and compiles

WANTED = {"filter_values": ["apac"]}
UNFILTERED = {**WANTED, "match_unfiltered": True}
LOTS = [["emea"] * 20, ["apac"] * 20, [None] * 20] * 2 + [(["emea"] * 20 + ["apac"] * 20) * 20, ["apac"]]
"""What is published, by filter value: lots of one value or none, one in which two take turns, and one more message."""


def publish_lots(client: Client, stream: str) -> list[str | None]:
    """Publish them, each lot in a chunk of its own or several; return the filter value of each message.

    Those without one have a producer without filter values: the Go client cannot leave out a single one.
    """
    producers = {filtered: client.producer(stream=stream, filter=filtered) for filtered in (True, False)}
    kinds: list[str | None] = []
    for lot in LOTS:
        messages = [message(number, kind) for number, kind in enumerate(lot, len(kinds))]
        kinds += lot
        sent = producers[lot[0] is not None]("send", messages=messages)
        assert sent == {"confirmed": len(lot), "codes": []}
    return kinds


def offsets_of(kinds: list[str | None], *wanted: str | None) -> list[int]:
    return [offset for offset, kind in enumerate(kinds) if kind in wanted]


def message(number: int, kind: str | None) -> dict[str, Any]:
    return {"body": str(number)} if kind is None else {"body": str(number), "filter": kind}


def at(stream: str, offsets: list[int]) -> list[list[Any]]:
    return [[stream, offset, str(offset)] for offset in offsets]


@pytest.mark.parametrize("wanted", [WANTED, UNFILTERED], ids=["apac", "apac-or-none"])
def test_filters_from_first_and_from_an_offset(broker: Any, client: Client, wanted: dict[str, Any]) -> None:
    stream = broker.stream()
    found = offsets_of(publish_lots(client, stream), "apac", *([None] if "match_unfiltered" in wanted else []))
    assert client.consumer(stream=stream, **wanted).take(len(found)) == at(stream, found)
    for start in (30, 45, 50, 90, 165, 370, 890, 920):
        behind = [offset for offset in found if offset >= start]
        consumer = client.consumer({"offset": start}, stream=stream, **wanted)
        assert consumer.take(len(behind)) == at(stream, behind), start
        consumer.close()


def test_a_filtered_consumer_goes_on_from_its_stored_offset(broker: Any, client: Client) -> None:
    stream = broker.stream()
    found = offsets_of(publish_lots(client, stream), "apac")
    first = client.consumer(stream=stream, name="app", **WANTED)
    assert first.take(len(found)) == at(stream, found)
    done = found[324]
    client.ask("store", name="app", stream=stream, offset=done)
    wait_until_stored(broker.peer(), "app", stream, done)
    assert first("stored") == done
    first.close()
    second = client.consumer("stored", stream=stream, name="app", **WANTED)
    assert second.take(len(found) - 325) == at(stream, found[325:])


def test_offsets_are_tracked(broker: Any, client: Client) -> None:
    stream = broker.stream()
    client.publish([message(n, None) for n in range(20)], stream=stream)
    unnamed = client.consumer("stored", stream=stream, name="another")
    assert unnamed.take(20) == of(stream, range(20))
    assert unnamed("stored") is None
    first = client.consumer("stored", stream=stream, name="app", store_every=10)
    assert first.take(20) == of(stream, range(20))
    wait_until_stored(broker.peer(), "app", stream, 19)
    first.close()
    client.publish([message(n, None) for n in range(20, 30)], stream=stream)
    # A broker, unlike the door, has a chunk of its own for the stored offset in the stream: the offsets differ.
    taken = client.consumer("stored", stream=stream, name="app").take(10)
    assert [body for _, _, body in taken] == [str(n) for n in range(20, 30)]


@pytest.mark.parametrize("wanted", [{}, WANTED], ids=["all", "filtered"])
def test_consumers_of_a_name_take_turns(broker: Any, client: Client, wanted: dict[str, Any]) -> None:
    stream = broker.stream()
    kinds = publish_lots(client, stream)
    found = offsets_of(kinds, "apac") if wanted else list(range(len(kinds)))

    def member() -> Made:
        return client.consumer(stream=stream, name="group", single_active=True, **wanted)

    first = member()
    assert first("told", count=1) == [[stream, True]]
    second = member()
    assert first.take(len(found)) == at(stream, found)
    done = 39  # the end of a chunk: from its middle the Java client gives the whole chunk again
    client.ask("store", name="group", stream=stream, offset=done)
    wait_until_stored(broker.peer(), "group", stream, done)
    assert second("told", count=0) == [] and second.take(0) == []
    first.close()
    assert second("told", count=1) == [[stream, True]]
    behind = [offset for offset in found if offset > done]
    assert second.take(len(behind)) == at(stream, behind)
