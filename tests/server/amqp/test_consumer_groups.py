"""ES-200 … ES-212: consumer groups and epochs, at the node."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Terminus, symbol, ulong

from tests.server.amqp.raw_peer import EARLIEST, EPOCH, GROUP, PARTITION, Ended, Refused


def group(name: str = "g", partition: str | None = None, epoch: Any = None) -> dict[Any, Any]:
    properties: dict[Any, Any] = {GROUP: name}
    if partition is not None:
        properties[PARTITION] = symbol(partition)
    if epoch is not None:
        properties[EPOCH] = epoch
    return properties


def refused(peer: Any, properties: dict[Any, Any], stream: str = "orders") -> str | None:
    """Attach a receiver that is to be refused, with a null source and a closing detach, and return the condition."""
    receiver = peer.attach_receiver(stream, properties=properties)
    condition = receiver.wait_closed()
    assert receiver.link.remote_source.type == Terminus.UNSPECIFIED and receiver.closed
    return condition


def renegotiate(node: Any, name: str = "g", stream: str = "orders") -> None:
    node.server.call(lambda: node.server.server.renegotiate(stream, name))


def test_es_200_a_receiver_joins_a_group(node: Any) -> None:
    node.create(partitions=2)
    receiver = node.peer().receiver("orders", properties=group("billing", "1"))
    assert receiver.properties[GROUP] == "billing" and type(receiver.properties[GROUP]) is str


def test_es_201_groups_come_into_being_or_must_be_configured(nodes: Any) -> None:
    dynamic, configured = nodes(folder="a"), nodes(folder="b", groups=frozenset({"known"}))
    for node in (dynamic, configured):
        node.create()
    assert dynamic.peer().receiver("orders", properties=group("unheard of")).properties[GROUP] == "unheard of"
    peer = configured.peer()
    assert refused(peer, group("unheard of")) == "amqp:not-found"
    assert peer.receiver("orders", properties=group("known")).properties[GROUP] == "known"


@pytest.mark.parametrize("properties", [None, {PARTITION: symbol("0")}])
def test_es_202_the_node_gives_no_group_that_was_not_claimed(node: Any, properties: Any) -> None:
    node.create(partitions=2)
    answer = node.peer().receiver("orders", properties=properties).properties
    assert GROUP not in answer and EPOCH not in answer


@pytest.mark.parametrize("partitions", [1, 3])
def test_es_203_a_link_with_a_group_is_bound(node: Any, partitions: int) -> None:
    node.create(partitions=partitions)
    answer = node.peer().receiver("orders", properties=group()).properties
    assert answer[GROUP] == "g" and answer[PARTITION] in {"0", "1", "2"} and type(answer[PARTITION]) is symbol


def test_es_204_one_active_receiver_for_each_partition_and_group(node: Any) -> None:
    node.create(partitions=2)
    owner = node.peer().receiver("orders", properties=group("g", "0"), filter=EARLIEST)
    other = node.peer()
    assert refused(other, group("g", "0")) == "amqp:resource-locked"
    assert refused(owner.peer, group("g", "0")) == "amqp:resource-locked"
    assert other.receiver("orders", properties=group("h", "0")).properties[GROUP] == "h"
    assert other.receiver("orders", properties=group("g", "1")).properties[PARTITION] == "1"
    node.create("bills", 1)
    assert other.receiver("bills", properties=group("g", "0")).properties[GROUP] == "g"  # groups are of one log
    node.send("orders", b"x", target="0")
    assert owner.bodies(owner.take(1)) == [b"x"]  # the refusals did not disturb it


def test_es_204_the_place_is_free_again_after_close_and_after_a_broken_connection(node: Any) -> None:
    node.create()
    first = node.peer().receiver("orders", properties=group())
    first.close()
    second = node.peer().receiver("orders", properties=group())
    second.peer.drop()
    third = node.peer()
    for _ in range(100):
        try:
            assert third.receiver("orders", properties=group()).properties[GROUP] == "g"
            return
        except Refused as taken:  # until the node has seen the end of the socket
            assert taken.condition in ("amqp:resource-locked", "amqp:link:detach-forced")
            third.pause(0.02)
    raise AssertionError("the partition never became free")


def test_es_205_consumers_of_a_group_get_distinct_partitions(node: Any) -> None:
    node.create(partitions=4)
    receivers = [node.peer().receiver("orders", properties=group()) for _ in range(4)]
    assert {r.properties[PARTITION] for r in receivers} == {"0", "1", "2", "3"}
    # A partition that was asked for by name is not given away, either.
    node.create("bills", 2)
    node.peer().receiver("bills", properties=group("g", "0"))
    assert node.peer().receiver("bills", properties=group()).properties[PARTITION] == "1"


def test_es_206_none_free_is_refused_with_detach_forced(nodes: Any) -> None:
    node = nodes(unassigned="reject")
    node.create(partitions=2)
    receivers = [node.peer().receiver("orders", properties=group()) for _ in range(2)]
    late = node.peer()
    assert refused(late, group()) == "amqp:link:detach-forced"
    freed = receivers[0].properties[PARTITION]
    receivers[0].close()
    assert late.receiver("orders", properties=group()).properties[PARTITION] == freed


def test_es_206_none_free_waits_where_configured(nodes: Any) -> None:
    node = nodes(unassigned="wait", unassigned_wait_ms=30_000)
    node.create(partitions=1)
    owner = node.peer().receiver("orders", properties=group())
    late = node.peer().attach_receiver("orders", properties=group(), filter=EARLIEST)
    later = node.peer().attach_receiver("orders", properties=group())
    late.peer.pause(0.1)
    assert late.pending
    owner.close()
    late.answered()
    assert late.properties[PARTITION] == "0"
    later.peer.pause(0.05)
    assert later.pending  # first come, first served
    node.send("orders", b"x")
    assert late.bodies(late.take(1)) == [b"x"]
    late.peer.drop()
    later.answered()
    assert later.properties[PARTITION] == "0"


def test_one_that_waits_and_cannot_be_served_is_tried_once(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its stream is deleted just now; the claim that is given back was offered to the same link again."""
    from spark_streams.log.storage.readable_partition import PartitionClosed
    from spark_streams.server.amqp.consumer_link import ConsumerLink

    node = nodes(unassigned="wait", unassigned_wait_ms=600_000)
    node.create(partitions=1)
    owner = node.peer().receiver("orders", properties=group())
    late = node.peer().attach_receiver("orders", properties=group())
    late.peer.pause(0.1)
    tried: list[bool] = []

    def gone(*_: Any, **__: Any) -> Any:
        tried.append(True)
        raise PartitionClosed("the stream was deleted")

    with monkeypatch.context() as patched:
        patched.setattr(ConsumerLink, "_position", gone)
        owner.close()
        with pytest.raises(Ended):
            late.peer.pump(lambda: False, 60)
    assert len(tried) == 1
    node.peer().receiver("orders", properties=group()).check()


def test_es_206_waiting_has_a_limit(nodes: Any) -> None:
    node = nodes(unassigned="wait", unassigned_wait_ms=100)
    node.create(partitions=1)
    node.peer().receiver("orders", properties=group())
    assert refused(node.peer(), group()) == "amqp:link:detach-forced"


def test_es_207_renegotiation_closes_the_links_of_the_group_and_loses_nothing(node: Any) -> None:
    node.create(partitions=2)
    peer = node.peer()
    members = [peer.receiver("orders", properties=group(), filter=EARLIEST) for _ in range(2)]
    bystander = peer.receiver("orders", properties=group("h"), filter=EARLIEST)
    node.send("orders", *[b"%d" % n for n in range(20)])
    seen = {m.properties[PARTITION]: m.take(3) for m in members}
    renegotiate(node)
    last = {}
    for member in members:
        condition = member.wait_closed()
        assert member.closed and condition in (None, "amqp:link:detach-forced")
        seen[member.properties[PARTITION]] += member.arrived()
        last[member.properties[PARTITION]] = seen[member.properties[PARTITION]][-1].offset
    bystander.check()
    from tests.server.amqp.raw_peer import annotations_filter

    for _ in range(2):
        member = peer.receiver("orders", properties=group(), filter=EARLIEST)
        partition = member.properties[PARTITION]
        member.close()
        resumed = peer.receiver(
            "orders", properties=group("g", partition), filter=annotations_filter(offset=last[partition])
        )
        seen[partition] += resumed.drain()
    bodies = [int(e.body) for events in seen.values() for e in events]
    assert sorted(bodies) == list(range(20))


def test_es_208_group_links_are_never_left_agnostic(node: Any) -> None:
    """The node binds them all (A-6), so there is nothing to announce."""
    node.create(partitions=3)
    node.send("orders", *[b"%d" % n for n in range(30)])
    receiver = node.peer().receiver("orders", properties=group(), filter=EARLIEST)
    node.server.call(lambda: node.log.add_partitions("orders", 1))
    events = receiver.drain()
    assert {e.partition for e in events} == {receiver.properties[PARTITION]}
    assert all("event-streams-associated-partitions-changed" not in e.annotations for e in events)


def test_es_209_the_epoch_starts_at_zero_and_is_told(node: Any) -> None:
    node.create(partitions=2)
    peer = node.peer()
    for properties in (group("g", "0"), group("g"), group("h", "0")):
        assert peer.receiver("orders", properties=properties).properties[EPOCH] == 0


@pytest.mark.parametrize("current", [0, 7])
def test_es_210_an_active_link_yields_only_to_a_greater_epoch(node: Any, current: int) -> None:
    node.create()
    owner = node.peer().receiver("orders", properties=group("g", "0", current), filter=EARLIEST)
    assert owner.properties[EPOCH] == current
    taker = node.peer()
    for epoch in (None, 0, current, max(0, current - 1)):
        assert refused(taker, group("g", "0", epoch)) == "amqp:resource-locked"
    node.send("orders", b"x")
    assert owner.bodies(owner.take(1)) == [b"x"]


def test_es_211_a_greater_epoch_takes_the_partition(node: Any) -> None:
    node.create()
    node.send("orders", b"1", b"2", b"3")
    owner = node.peer().receiver("orders", properties=group("g", "0", 1), filter=EARLIEST)
    owner.take(1)
    taker = node.peer().receiver("orders", properties=group("g", "0", ulong(5)), filter=EARLIEST)
    assert taker.properties[EPOCH] == 5 and taker.properties[PARTITION] == "0"
    assert owner.wait_closed() == "amqp:link:stolen"
    assert owner.closed
    assert "5" in owner.link.remote_condition.description  # the new owner's epoch, for people
    node.send("orders", b"4")
    assert owner.arrived() == []
    assert taker.bodies(taker.take(4)) == [b"1", b"2", b"3", b"4"]
    assert refused(node.peer(), group("g", "0", 5)) == "amqp:resource-locked"
    assert node.peer().receiver("orders", properties=group("g", "0", 6)).properties[EPOCH] == 6


def test_es_211_the_displaced_link_gets_nothing_more_even_with_credit(node: Any) -> None:
    node.create()
    owner = node.peer().receiver("orders", properties=group("g", "0"), filter=EARLIEST, credit=1000)
    node.peer().receiver("orders", properties=group("g", "0", 1))
    node.send("orders", *[b"%d" % n for n in range(50)])
    owner.wait_closed()
    assert owner.arrived() == []


@pytest.mark.parametrize(("reset", "epoch"), [(True, 0), (False, 9)])
def test_es_212_the_epoch_goes_back_to_zero_where_configured(nodes: Any, reset: bool, epoch: int) -> None:
    node = nodes(reset_epoch=reset)
    node.create()
    peer = node.peer()
    peer.receiver("orders", properties=group("g", "0", 9)).close()
    assert peer.receiver("orders", properties=group("g", "0")).properties[EPOCH] == epoch
