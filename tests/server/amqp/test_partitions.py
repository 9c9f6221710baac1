"""ES-100 … ES-121: partitions, binding, routing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from proton import Array, Delivery, Message, Terminus, symbol

from tests.server.amqp.raw_peer import (
    CHANGED,
    EARLIEST,
    GROUP,
    GROUP_KEY,
    PARTITION,
    SOURCE_PARTITION,
    TARGET_PARTITION,
    Refused,
)


def bound(partition: str) -> dict[Any, Any]:
    return {PARTITION: symbol(partition)}


def refusal(link: Any) -> str | None:
    """Check that an attach was refused in the way AMQP says, and return the condition (AMQP 1.0 part 2 §2.6.3)."""
    condition = link.wait_closed()
    terminus = link.link.remote_source if link.link.is_receiver else link.link.remote_target
    assert terminus.type == Terminus.UNSPECIFIED, "the answering attach names no terminus"
    assert link.closed, "the detach closes"
    return condition


def test_es_100_a_log_has_one_or_several_partitions(node: Any) -> None:
    node.create("one", 1)
    node.create("many", 5)
    assert len(node.info("one")["partitions"]) == 1
    assert len(node.info("many")["partitions"]) == 5


def test_es_101_a_link_is_redirected_to_the_container_that_has_the_partition(nodes: Any) -> None:
    from urllib.parse import urlsplit

    from spark_streams.server import Redirect

    there = nodes(folder="there")
    there.create("elsewhere", 2)
    port = urlsplit(there.url).port
    redirect = Redirect(hostname="other.example", network_host="127.0.0.1", port=port, address="elsewhere")
    here = nodes(folder="here", redirects={("orders", "1"): redirect})
    here.create("orders", 2)
    peer = here.peer()
    for link in (
        peer.attach_receiver("orders", properties=bound("1")),
        peer.attach_sender("orders", properties=bound("1")),
    ):
        assert refusal(link) == "amqp:link:redirect"
        info = dict(link.link.remote_condition.info)
        assert {str(k): v for k, v in info.items()} == {
            "hostname": "other.example",
            "network-host": "127.0.0.1",
            "port": port,
            "address": "elsewhere",
        }
    assert peer.receiver("orders", properties=bound("0")).properties[PARTITION] == "0"


@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_es_102_a_peer_asks_for_a_partition(node: Any, kind: str) -> None:
    node.create(partitions=3)
    link = getattr(node.peer(), kind)("orders", properties=bound("2"))
    assert link.properties[PARTITION] == "2"


@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_es_103_an_unknown_partition_is_refused(node: Any, kind: str) -> None:
    node.create(partitions=2)
    peer = node.peer()
    for name in ("nope", "2", "", "00"):
        assert refusal(getattr(peer, f"attach_{kind}")("orders", properties=bound(name))) == "amqp:not-found"
    assert getattr(peer, kind)("orders", properties=bound("1")).properties[PARTITION] == "1"


def test_es_104_the_node_binds_links_that_did_not_ask_where_configured(nodes: Any) -> None:
    node = nodes(bind_unrequested=True)
    node.create(partitions=3)
    peer = node.peer()
    receivers = [peer.receiver("orders", filter=EARLIEST) for _ in range(3)]
    assert {r.properties[PARTITION] for r in receivers} <= {"0", "1", "2"}
    sender = peer.sender("orders")
    sender.send(b"x")
    assert [e.body for e in node.receive("orders", properties={PARTITION: sender.properties[PARTITION]})] == [b"x"]


@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_es_105_the_answer_carries_the_effective_partition_as_symbol(node: Any, kind: str) -> None:
    node.create(partitions=2)
    partition = getattr(node.peer(), kind)("orders", properties=bound("1")).properties[PARTITION]
    assert type(partition) is symbol and partition == "1"


@pytest.mark.parametrize("kind", ["receiver", "sender"])
def test_es_106_an_agnostic_link_has_no_partition_property(node: Any, kind: str) -> None:
    node.create(partitions=2)
    assert PARTITION not in getattr(node.peer(), kind)("orders").properties


def test_es_107_the_node_closes_assigned_links_to_renegotiate(node: Any) -> None:
    node.create(partitions=2)
    peer = node.peer()
    assigned = [peer.receiver("orders", properties={GROUP: "g"}) for _ in range(2)]
    renegotiate(node, "g")
    for link in assigned:
        link.wait_closed()
        assert link.closed
    assert {peer.receiver("orders", properties={GROUP: "g"}).properties[PARTITION] for _ in range(2)} == {"0", "1"}


def renegotiate(node: Any, group: str) -> None:
    node.server.call(lambda: node.server.server.renegotiate("orders", group))


def test_es_110_hints_on_an_agnostic_sender_choose_the_partition(node: Any) -> None:
    node.create(partitions=4)
    sender = node.peer().sender("orders")
    sender.send(b"hinted", target="3")
    for _ in range(5):
        sender.send(b"keyed", key="customer-1")
    events = node.receive("orders")
    assert [e.partition for e in events if e.body == b"hinted"] == ["3"]
    assert len({e.partition for e in events if e.body == b"keyed"}) == 1


def test_es_111_a_target_other_than_the_bound_partition_is_rejected(node: Any) -> None:
    node.create(partitions=2)
    sender = node.peer().sender("orders", properties=bound("0"))
    delivery = sender.put(b"astray", target="1")
    sender.peer.pump(lambda: delivery.settled)
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "amqp:not-allowed"
    sender.send(b"home", target="0")  # the link lives on
    assert [e.body for e in node.receive("orders")] == [b"home"]


def test_es_112_an_unknown_target_is_rejected(node: Any) -> None:
    node.create(partitions=2)
    sender = node.peer().sender("orders")
    for target in ("2", "nope", ""):
        with pytest.raises(Refused) as refused:
            sender.send(b"astray", target=target)
        assert refused.value.condition == "amqp:not-found"
    sender.send(b"home", target="1")
    assert [e.body for e in node.receive("orders")] == [b"home"]


def test_es_112_an_unknown_target_on_a_bound_link_is_rejected(node: Any) -> None:
    node.create(partitions=2)
    sender = node.peer().sender("orders", properties=bound("0"))
    with pytest.raises(Refused):
        sender.send(b"astray", target="nope")
    assert node.receive("orders") == []


def test_es_113_the_event_lands_in_exactly_that_partition(node: Any) -> None:
    node.create(partitions=3)
    for target in ("2", "0", "2"):
        node.send("orders", target.encode(), target=target, key="the same key")
    for partition, bodies in {"0": [b"0"], "1": [], "2": [b"2", b"2"]}.items():
        assert [e.body for e in node.receive("orders", properties=bound(partition))] == bodies


@pytest.mark.parametrize("properties", [None, bound("1")])
def test_es_114_the_target_is_stripped(node: Any, properties: Any) -> None:
    node.create(partitions=2)
    node.send("orders", b"x", target="1", properties=properties)
    event = node.receive("orders")[0]
    assert TARGET_PARTITION not in event.annotations
    assert TARGET_PARTITION not in (event.message.annotations or {})
    assert b"target-partition" not in event.encoded


def test_es_115_a_key_stays_with_its_partition(node: Any) -> None:
    node.create(partitions=5)
    sender = node.peer().sender("orders")
    deliveries = [sender.put(b"", key=f"customer-{n}") for _ in range(3) for n in range(1000)]
    sender.peer.pump(lambda: all(d.settled for d in deliveries))
    of_key: dict[str, set[str]] = defaultdict(set)
    share: dict[str, int] = defaultdict(int)
    for event in node.receive("orders"):
        of_key[event.message.annotations[GROUP_KEY]].add(event.partition)
        share[event.partition] += 1
    assert len(of_key) == 1000 and all(len(partitions) == 1 for partitions in of_key.values())
    assert sum(share.values()) == 3000 and len(share) == 5 and min(share.values()) > 300


def test_es_115_a_key_finds_its_partition_again_on_other_connections_and_after_a_restart(nodes: Any) -> None:
    found = []
    for folder in ("a", "b"):
        node = nodes(folder=folder)
        node.create(partitions=7)
        node.send("orders", *[b"%d" % n for n in range(20)], key="k")
        node.send("orders", b"again", key="k")
        found.append({e.partition for e in node.receive("orders")})
    assert found[0] == found[1] and len(found[0]) == 1


def test_es_116_the_group_key_is_an_annotation_of_its_own_and_survives(node: Any) -> None:
    node.create(partitions=2)
    node.send("orders", Message(body="x", group_id="the group"), key="the key")
    message = node.receive("orders")[0].message
    assert message.annotations[GROUP_KEY] == "the key" and type(message.annotations[GROUP_KEY]) is str
    assert message.group_id == "the group"


def test_es_117_agnostic_deliveries_name_their_partition(node: Any) -> None:
    node.create(partitions=3)
    for target in ("0", "1", "2"):
        node.send("orders", target.encode(), target=target)
    events = node.receive("orders")
    assert len(events) == 3
    for event in events:
        assert type(event.annotations[SOURCE_PARTITION]) is symbol
        assert event.partition == event.body.decode()


def test_es_119_a_partitioned_log_names_the_partition_on_bound_links_too(node: Any) -> None:
    node.create(partitions=3)
    node.send("orders", b"x", target="1")
    event = node.receive("orders", properties=bound("1"))[0]
    assert event.annotations[SOURCE_PARTITION] == "1" and type(event.annotations[SOURCE_PARTITION]) is symbol


def test_es_121_the_next_transfer_after_a_change_tells_the_partitions(node: Any) -> None:
    node.create(partitions=2)
    node.send("orders", b"a", b"b")
    receiver = node.peer().receiver("orders", filter=EARLIEST)
    receiver.take(2)
    node.server.call(lambda: node.log.add_partitions("orders", 1))
    sender = node.peer().sender("orders")
    for body in (b"c", b"d", b"e"):
        sender.send(body, target="0")
    first, *rest = receiver.take(3)
    changed = first.annotations[CHANGED]
    assert isinstance(changed, Array) and list(changed.elements) == ["0", "1", "2"]
    assert all(type(p) is symbol for p in changed.elements)
    assert all(CHANGED not in event.annotations for event in rest)
    node.send("orders", b"new", target="2")
    assert receiver.bodies(receiver.take(1)) == [b"new"]  # the new partition belongs to the link


def test_es_121_bound_links_are_told_nothing(node: Any) -> None:
    node.create(partitions=2)
    receiver = node.peer().receiver("orders", filter=EARLIEST, properties=bound("0"))
    node.server.call(lambda: node.log.add_partitions("orders", 1))
    node.send("orders", b"c", target="0")
    assert CHANGED not in receiver.take(1)[0].annotations


def split(node: Any, partition: str, **how: Any) -> None:
    node.server.call(lambda: node.log.split_partition("orders", partition, **how))


@pytest.mark.parametrize("history", [False, True])
def test_a_key_goes_to_one_partition_after_a_split(node: Any, history: bool) -> None:
    node.create(partitions=2)
    sender = node.peer().sender("orders")
    for turn in range(3):
        if turn == 1:
            split(node, "0", into=3, history=history)
        deliveries = [sender.put(b"%d" % turn, key=f"customer-{n}") for n in range(200)]
        deliveries += [sender.put(b"unkeyed") for _ in range(30)]
        sender.peer.pump(lambda waited=deliveries: all(d.settled for d in waited))
        assert all(d.remote_state == Delivery.ACCEPTED for d in deliveries)
    homes: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    events = node.receive("orders")
    assert len(events) == 690
    for event in events:
        if event.body != b"unkeyed":
            homes[event.message.annotations[GROUP_KEY]].append((event.partition, event.body))
    seen = set()
    for found in homes.values():
        before, *after = [partition for partition, _ in sorted(found, key=lambda each: each[1])]
        assert len(set(after)) == 1
        if before == "1":
            assert after[0] == "1"
        else:
            assert after[0] in ("2", "3", "4")
            assert before == (after[0] if history else "0")
        seen.add(after[0])
    assert seen == {"1", "2", "3", "4"}


def test_a_closed_partition_is_read_and_takes_no_more(node: Any) -> None:
    node.create(partitions=1)
    node.send("orders", b"old")
    peer = node.peer()
    bound_sender, agnostic = peer.sender("orders", properties=bound("0")), peer.sender("orders")
    receiver = peer.receiver("orders", filter=EARLIEST)
    assert [e.body for e in receiver.take(1)] == [b"old"]
    split(node, "0")
    for sender, hints in ((bound_sender, {}), (bound_sender, {"target": "0"}), (agnostic, {"target": "0"})):
        with pytest.raises(Refused) as refused:
            sender.send(b"late", **hints)
        assert refused.value.condition == "amqp:not-allowed"
    assert refusal(peer.attach_sender("orders", properties=bound("0"))) == "amqp:not-allowed"
    agnostic.send(b"new")
    (new,) = receiver.take(1)
    assert (new.body, new.partition in ("1", "2")) == (b"new", True)
    assert [str(name) for name in new.annotations[CHANGED].elements] == ["0", "1", "2"]
    assert [e.body for e in node.receive("orders", properties=bound("0"))] == [b"old"]
    told = {str(p["partition"]): p for p in node.info("orders")["partitions"]}
    assert told["0"]["x-opt-closed"] is True and "x-opt-closed" not in told["1"]
    assert [str(told[name]["x-opt-starts-after"]) for name in ("1", "2")] == ["0", "0"]


def test_a_redistributed_partition_is_gone_and_a_durable_receiver_goes_on(node: Any) -> None:
    node.create(partitions=1)
    sender = node.peer().sender("orders")
    for n in range(60):
        sender.send(b"%d" % n, key=f"k{n % 9}")
    durable = {
        "filter": EARLIEST, "name": "reader", "durability": Terminus.DELIVERIES, "expiry": Terminus.EXPIRE_NEVER,
    }  # fmt: skip
    peer = node.peer(container="app")
    receiver = peer.receiver("orders", **durable)
    taken = [int(event.body) for event in receiver.take(25)]
    unsettled = [int(event.body) for event in receiver.take(5, settle=False)]
    on_it = peer.receiver("orders", properties=bound("0"))
    split(node, "0", history=True)
    for link in (receiver, on_it):
        assert link.wait_closed() == "amqp:resource-deleted"
    assert refusal(peer.attach_receiver("orders", properties=bound("0"))) == "amqp:not-found"
    rest = [int(event.body) for event in node.peer(container="app").receiver("orders", **durable).drain()]
    assert sorted(taken + rest) == list(range(60))
    assert set(unsettled) < set(rest), "they are sent again"
    told = {str(p["partition"]): [str(n) for n in p["x-opt-cursor-from"]] for p in node.info("orders")["partitions"]}
    assert told == {"1": ["0"], "2": ["0"]}


@pytest.mark.parametrize("history", [False, True])
def test_events_that_were_routed_when_their_partition_was_split_find_a_home(
    node: Any, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    from spark_streams.server.amqp.placement import Placement

    node.create(partitions=1)
    sender = node.peer().sender("orders")
    sender.send(b"first", key="k0")
    real, splits = Placement.open_here, [1]

    def split_behind(placement: Any, stream: Any) -> Any:
        found = real(placement, stream)
        if splits:
            node.log.split_partition("orders", "0", into=splits.pop() + 1, history=history)
        return found

    monkeypatch.setattr(Placement, "open_here", split_behind)
    aimed = sender.put(b"aimed", target="0")
    deliveries = [sender.put(b"x", key=f"k{n}") for n in range(20)] + [sender.put(b"x") for _ in range(4)]
    sender.peer.pump(lambda: all(d.settled for d in [*deliveries, aimed]))
    assert all(d.remote_state == Delivery.ACCEPTED for d in deliveries)
    assert (aimed.remote_state, aimed.remote.condition.name) == (Delivery.REJECTED, "amqp:resource-deleted")
    sender.send(b"last", key="k0")
    counters = node.server.server.door("amqp").counters
    assert (counters.received, counters.refused_events) == (26, {"split": 1}), "what found a home is not refused"
    events = [event for event in node.receive("orders") if event.body != b"first"]
    assert len(events) == 25 and {event.partition for event in events} == {"1", "2"}
    of_key = [event.partition for event in events if (event.message.annotations or {}).get(GROUP_KEY) == "k0"]
    assert len(of_key) == 2 and len(set(of_key)) == 1
