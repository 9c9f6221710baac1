"""Messages that are larger than the door's limit: rejected as the service does it, on a link that goes on."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

from tests.server.event_hubs.conftest import HUB

LIMIT = 100_000
TOO_LARGE = "amqp:link:message-size-exceeded"


@pytest.fixture(params=["in many frames", "in one frame"])
def sending(request: pytest.FixtureRequest, namespaces: Any, make_peer: Any) -> Any:
    frame_bytes = 4_096 if request.param == "in many frames" else 4 * LIMIT
    namespace = namespaces(max_message_bytes=LIMIT, max_frame_bytes=frame_bytes)
    namespace.create()
    return make_peer(namespace.url).sender(f"{HUB}/Partitions/0"), namespace


def test_it_is_rejected_and_the_others_are_stored(sending: Any) -> None:
    link, namespace = sending
    large = 2 * LIMIT
    sizes = [10, large, 20, large, large, 30]
    deliveries = [link.put(b"x" * size) for size in sizes]
    link.peer.pump(lambda: all(each.settled for each in deliveries))
    outcomes = [each.remote_state == Delivery.ACCEPTED for each in deliveries]
    assert outcomes == [size < LIMIT for size in sizes]
    for number in (1, 3, 4):
        condition = deliveries[number].remote.condition
        assert condition.name == TOO_LARGE
        assert condition.description.startswith(f"The received message (delivery-id:{number}, size:")
        assert condition.description.endswith(f"exceeds the limit ({LIMIT} bytes) currently allowed on the link.")
    link.send(b"after")
    assert [len(next(iter(event.body))) for event in namespace.receive(4)] == [10, 20, 30, 5]


def test_one_that_was_sent_settled_ends_the_link(sending: Any) -> None:
    """It has no outcome that could say it."""
    link, namespace = sending
    link.send(b"before")
    link.put(b"x" * 2 * LIMIT).settle()
    assert link.wait_closed() == TOO_LARGE
    assert namespace.ends() == {"0": 1}
