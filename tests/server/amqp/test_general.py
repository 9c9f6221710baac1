"""ES-001 … ES-016: capability, defaults, delivery state."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Link, Message, Terminus, symbol

from tests.server.amqp.raw_peer import CAPABILITY, EARLIEST, PARTITION, SOURCE_PARTITION, annotations_filter, sql_filter


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def test_es_001_a_receiver_gives_an_initial_offset(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(5))
    third = node.receive("orders")[2].offset
    assert node.receive("orders", filter=annotations_filter(offset=third))[0].body == b"3"


def test_es_002_events_come_in_log_order_and_go_on_to_newer_ones(node: Any) -> None:
    node.create(partitions=3)
    for partition in ("0", "1", "2"):
        node.send("orders", *numbered(50), target=partition)
    receiver = node.peer().receiver("orders", filter=EARLIEST)
    events = receiver.take(150)
    node.send("orders", *numbered(10, start=50), target="1")
    events += receiver.take(10)
    by_partition: dict[str, list[bytes]] = {}
    for event in events:
        by_partition.setdefault(event.partition, []).append(event.body)
    assert by_partition == {"0": numbered(50), "1": numbered(60), "2": numbered(50)}


@pytest.mark.parametrize("partitions", [1, 3])
def test_es_003_without_a_filter_only_events_after_the_attach_come(node: Any, partitions: int) -> None:
    node.create(partitions=partitions)
    node.send("orders", b"before")
    receiver = node.peer().receiver("orders")
    node.send("orders", b"after")
    assert receiver.bodies(receiver.take(1)) == [b"after"]
    assert receiver.drain() == []


def test_es_004_each_default_works_for_a_client_that_knows_no_extension(node: Any) -> None:
    """No capability desired, no property, no annotation, no filter: a plain AMQP client."""
    node.create(partitions=2)
    peer = node.peer(desired=())
    receiver = peer.receiver("orders", credit=10)
    peer.sender("orders").send(Message(body="plain"))
    assert receiver.bodies(receiver.take(1, credit=False)) == ["plain"]


def test_es_005_the_terminus_keeps_position_and_delivery_state(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(20))
    receiver = node.peer().receiver("orders", filter=EARLIEST)
    seen = []
    for step in (1, 2, 7, 10):
        seen += receiver.bodies(receiver.take(step))
        receiver.peer.pause(0.02)
        assert receiver.arrived() == []  # never more than was granted
    assert seen == numbered(20)
    assert receiver.drain() == []  # accepted events are not sent again


def test_es_005_a_released_event_comes_again_on_the_same_link(node: Any) -> None:
    node.create()
    node.send("orders", b"one", b"two")
    receiver = node.peer().receiver("orders", filter=EARLIEST)
    first = receiver.take(1, settle=False)[0]
    first.delivery.update(Delivery.RELEASED)
    first.delivery.settle()
    bodies = receiver.bodies(receiver.take(2))
    assert bodies == [b"one", b"two"]


def test_es_005_rejected_and_undeliverable_events_do_not_come_again(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(4))
    receiver = node.peer().receiver("orders", filter=EARLIEST)
    rejected, modified = receiver.take(2, settle=False)
    rejected.delivery.update(Delivery.REJECTED)
    modified.delivery.local.undeliverable = True
    modified.delivery.update(Delivery.MODIFIED)
    for event in (rejected, modified):
        event.delivery.settle()
    assert receiver.bodies() == numbered(2, start=2)


@pytest.mark.parametrize("desired", [(), (CAPABILITY,)])
def test_es_010_the_open_offers_the_capability(node: Any, desired: tuple[str, ...]) -> None:
    offered = node.peer(desired=desired).connection.remote_offered_capabilities
    assert CAPABILITY in list(offered)
    assert all(isinstance(c, symbol) for c in offered)


def test_es_013_core_rules_hold_for_a_plain_sender_and_receiver(node: Any) -> None:
    node.create()
    message = Message(body={"a": [1, 2.5, "x", None]}, properties={"p": "q"}, subject="s", id="42", durable=True)
    peer = node.peer()
    receiver = peer.receiver("orders", name="in", credit=1)
    sender = peer.sender("orders", name="out")
    assert (receiver.link.remote_source.address, sender.link.remote_target.address) == ("orders", "orders")
    sender.send(message)
    got = receiver.take(1, credit=False)[0].message
    assert (got.body, got.properties, got.subject, got.id) == (message.body, message.properties, "s", "42")
    presettled = peer.receiver("orders", filter=EARLIEST, presettled=True)
    assert presettled.link.remote_snd_settle_mode == Link.SND_SETTLED
    assert presettled.take(1, settle=False)[0].delivery.settled
    assert presettled.link.remote_source.distribution_mode in (Terminus.DIST_MODE_COPY, Terminus.DIST_MODE_UNSPECIFIED)


def test_es_013_an_unknown_address_is_refused_as_core_amqp_says(node: Any) -> None:
    peer = node.peer()
    for link in (peer.attach_receiver("nowhere"), peer.attach_sender("nowhere")):
        assert link.wait_closed() == "amqp:not-found"
        terminus = link.link.remote_source if link.link.is_receiver else link.link.remote_target
        assert terminus.type == Terminus.UNSPECIFIED
    node.create()
    assert peer.receiver("orders").properties.keys() <= {PARTITION}  # the connection lives on


def test_es_014_a_link_without_a_request_is_agnostic_unless_configured(nodes: Any) -> None:
    agnostic, binding = nodes(folder="a"), nodes(folder="b", bind_unrequested=True)
    for node, bound in ((agnostic, False), (binding, True)):
        node.create(partitions=3)
        peer = node.peer()
        for link in [peer.receiver("orders") for _ in range(3)] + [peer.sender("orders") for _ in range(3)]:
            assert (PARTITION in link.properties) is bound


def test_es_015_events_without_hints_are_routed_by_the_node(node: Any) -> None:
    node.create(partitions=4)
    node.send("orders", *numbered(100))
    shares = [node.receive("orders", properties={PARTITION: symbol(str(p))}) for p in range(4)]
    assert sorted(int(e.body) for share in shares for e in share) == list(range(100))
    assert sum(1 for share in shares if share) > 1


DURABLE = {"durability": Terminus.DELIVERIES, "expiry": Terminus.EXPIRE_NEVER}


def test_es_016_a_durable_terminus_goes_on_where_it_was_cut(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(10))
    first = node.peer(container="reader")
    receiver = first.receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    assert receiver.link.remote_source.durability != Terminus.NONDURABLE
    assert receiver.bodies(receiver.take(4)) == numbered(4)
    unsettled = receiver.take(2, settle=False)
    assert receiver.bodies(unsettled) == numbered(2, start=4)
    first.pause(0.02)
    first.drop()
    node.send("orders", b"10")
    again = node.peer(container="reader").receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    assert again.bodies(again.drain()) == numbered(7, start=4)  # no gap, and nothing settled comes again


def test_es_016_a_durable_terminus_outlives_the_server(nodes: Any, tmp_path: Any) -> None:
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread
    from tests.server.amqp.raw_peer import Peer

    seen = []
    for round_ in range(2):
        with ReferenceLog(tmp_path / "d") as log, ServerThread(log, AmqpConfig(port=0)) as server:
            if not round_:
                log.create_stream("orders", 1)
            peer = Peer(server.urls["amqp"], container="reader")
            if not round_:
                peer.sender("orders").send_all(numbered(6))
            receiver = peer.receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
            seen.append(receiver.bodies(receiver.take(3)))
            peer.pause(0.02)
            peer.drop()
    assert seen == [numbered(3), numbered(3, start=3)]


def test_es_016_a_durable_agnostic_terminus_keeps_the_place_in_each_partition(node: Any) -> None:
    node.create(partitions=3)
    for partition in ("0", "1", "2"):
        node.send("orders", *[f"{partition}-{n}" for n in range(5)], target=partition)
    first = node.peer(container="reader")
    receiver = first.receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    seen = receiver.bodies(receiver.take(7))
    first.pause(0.02)
    first.drop()
    again = node.peer(container="reader").receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    seen += again.bodies(again.drain())
    assert sorted(seen) == [f"{p}-{n}" for p in range(3) for n in range(5)]


@pytest.mark.parametrize(
    ("expiry", "timeout_s", "resumes"),
    [
        (Terminus.EXPIRE_NEVER, 0, True),
        (Terminus.EXPIRE_WITH_CONNECTION, 60, True),
        (Terminus.EXPIRE_WITH_SESSION, 60, True),
        (Terminus.EXPIRE_WITH_CONNECTION, 0, False),
        (Terminus.EXPIRE_WITH_LINK, 0, False),
    ],
)
def test_es_016_a_terminus_expires_as_its_policy_says(node: Any, expiry: int, timeout_s: int, resumes: bool) -> None:
    """AMQP 1.0 part 3 §3.5.6: the timeout counts from the event that the policy names."""
    node.create()
    node.send("orders", *numbered(4))
    durable = {"durability": Terminus.DELIVERIES, "expiry": expiry, "timeout_s": timeout_s}
    first = node.peer(container="reader")
    first.receiver("orders", name="mine", filter=EARLIEST, **durable).take(2)
    first.pause(0.02)
    first.close()
    again = node.peer(container="reader").receiver("orders", name="mine", filter=EARLIEST, **durable)
    assert again.bodies() == (numbered(2, start=2) if resumes else numbered(4))


@pytest.mark.parametrize("start", [EARLIEST, None], ids=["earliest", "no filter"])
def test_es_016_a_durable_link_that_is_only_detached_goes_on(node: Any, start: Any) -> None:
    node.create()
    peer = node.peer(container="reader")
    receiver = peer.receiver("orders", name="mine", filter=start, **DURABLE)
    node.send("orders", *numbered(5))
    assert receiver.bodies(receiver.take(3)) == numbered(3)
    receiver.detach()
    node.send("orders", b"5")
    again = node.peer(container="reader").receiver("orders", name="mine", filter=start, **DURABLE)
    assert again.bodies() == numbered(3, start=3)


def test_es_016_with_another_filter_it_is_another_terminus(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(3))
    receiver = node.peer(container="reader").receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    receiver.take(2)
    receiver.detach()
    again = node.peer(container="reader").receiver(
        "orders", name="mine", filter=sql_filter("d.event-streams-timestamp > 0"), **DURABLE
    )
    assert again.bodies() == numbered(3)


def test_es_016_the_same_link_on_a_new_connection_takes_over_from_one_that_only_seems_alive(node: Any) -> None:
    """A client often comes back before the node has noticed that it was gone (AMQP 1.0 part 2 §2.6.1)."""
    node.create()
    node.send("orders", *numbered(6))
    old = node.peer(container="reader").receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    old.take(2)
    old.peer.pause(0.02)
    new = node.peer(container="reader").receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    assert new.bodies(new.drain()) == numbered(4, start=2)
    assert old.wait_closed() == "amqp:link:stolen"


def test_es_016_closing_the_link_ends_the_terminus_and_other_names_are_others(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(3))
    peer = node.peer(container="reader")
    receiver = peer.receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    receiver.take(2)
    other = node.peer(container="another").receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    assert len(other.take(3)) == 3
    receiver.close()
    again = peer.receiver("orders", name="mine", filter=EARLIEST, **DURABLE)
    assert again.bodies(again.drain()) == numbered(3)


def test_es_016_a_link_that_is_not_durable_starts_anew(node: Any) -> None:
    node.create()
    node.send("orders", *numbered(3))
    peer = node.peer(container="reader")
    peer.receiver("orders", name="mine", filter=sql_filter("TRUE")).take(2)
    peer.drop()
    again = node.peer(container="reader").receiver("orders", name="mine", filter=sql_filter("TRUE"))
    assert again.bodies(again.drain()) == numbered(3)
    assert SOURCE_PARTITION in again.peer.receiver("orders", filter=EARLIEST).take(1)[0].annotations
