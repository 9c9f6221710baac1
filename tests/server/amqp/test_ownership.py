"""Durable links and consumer groups are their user's: another one who knows their names takes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proton import Terminus, symbol, ulong

from spark_streams.server import Permissions
from spark_streams.server.amqp.consumer_groups import Group, Groups
from tests.server.amqp.raw_peer import EARLIEST, EPOCH, GROUP, PARTITION, Refused

USERS = {"alice": "a", "bob": "b", "mallory": "m"}
PERMISSIONS = {"mallory": Permissions("", "", "lobby")}
DURABLE = {"name": "mine", "durability": Terminus.DELIVERIES, "expiry": Terminus.EXPIRE_NEVER}


@pytest.fixture
def shared(nodes: Any) -> Any:
    """A node with alice and bob, who may do everything, and mallory, who may read ``lobby``."""
    return filled(nodes(users=USERS, permissions=PERMISSIONS))


def filled(node: Any) -> Any:
    for name in ("orders", "lobby"):
        node.create(name)
        peer_of(node, "alice").sender(name).send_all([b"%d" % n for n in range(8)])
    return node


def peer_of(node: Any, user: str, **options: Any) -> Any:
    return node.peer(username=user, password=USERS[user], **options)


def attached(node: Any, user: str, stream: str = "orders", **options: Any) -> Any:
    """A durable receiver by the names that all of them use."""
    return peer_of(node, user, container="reader").receiver(stream, **{"filter": EARLIEST, **DURABLE, **options})


def test_another_users_link_of_the_same_names_is_another(shared: Any) -> None:
    alice = attached(shared, "alice")
    assert alice.bodies(alice.take(3)) == [b"0", b"1", b"2"]
    mallory = attached(shared, "mallory", "lobby")
    assert len(mallory.take(8)) == 8
    bob = attached(shared, "bob")
    assert bob.bodies(bob.take(2)) == [b"0", b"1"], "not from where alice is"
    assert alice.bodies(alice.take(2)) == [b"3", b"4"], "and hers goes on"
    for receiver in (mallory, bob, alice):
        receiver.detach()
    closed = attached(shared, "bob")
    closed.close()
    assert attached(shared, "alice").bodies() == [b"5", b"6", b"7"]
    assert attached(shared, "bob").bodies()[0] == b"0", "he closed his own"


def test_the_same_user_still_takes_over_from_its_old_socket(shared: Any) -> None:
    old = attached(shared, "alice")
    old.take(2)
    new = attached(shared, "alice")
    assert old.wait_closed() == "amqp:link:stolen" and new.take(1)


def test_a_group_that_is_made_as_it_is_named_is_its_users(shared: Any) -> None:
    group = {GROUP: "g", PARTITION: symbol("0")}
    alice = peer_of(shared, "alice").receiver("orders", filter=EARLIEST, properties={**group, EPOCH: ulong(1)})
    bob = peer_of(shared, "bob").receiver("orders", filter=EARLIEST, properties={**group, EPOCH: ulong(9)})
    assert len(alice.take(8)) == len(bob.take(8)) == 8
    again = peer_of(shared, "alice").receiver("orders", properties={**group, EPOCH: ulong(2)})
    assert alice.wait_closed() == "amqp:link:stolen" and again.properties[EPOCH] == 2


def test_a_group_that_the_settings_list_is_everybodys_who_may_read(nodes: Any) -> None:
    node = filled(nodes(users=USERS, permissions=PERMISSIONS, groups=frozenset({"g"})))
    group = {GROUP: "g", PARTITION: symbol("0")}
    alice = peer_of(node, "alice").receiver("orders", properties={**group, EPOCH: ulong(1)})
    with pytest.raises(Refused) as refused:
        peer_of(node, "bob").receiver("orders", properties=group)
    assert refused.value.args[0] == "amqp:resource-locked"
    with pytest.raises(Refused) as refused:
        peer_of(node, "mallory").receiver("orders", properties={**group, EPOCH: ulong(9)})
    assert refused.value.args[0] == "amqp:unauthorized-access"
    peer_of(node, "bob").receiver("orders", properties={**group, EPOCH: ulong(2)})
    assert alice.wait_closed() == "amqp:link:stolen"


def test_termini_of_streams_that_are_gone_go_at_the_start(nodes: Any) -> None:
    from spark_streams.server.amqp.durable_termini import Termini

    node = filled(nodes(users=USERS))
    attached(node, "alice").detach()
    attached(node, "bob", "lobby").detach()
    node.server.call(lambda: node.log.delete_stream("orders"))
    node.server.call(lambda: Termini(node.log, node.server.server.door("amqp").node.loop, most=9))
    assert [key for key, _ in node.log.state.items("amqp-termini")] == ['["bob", "reader", "mine"]']


def test_a_terminus_that_timed_out_goes_at_the_start(nodes: Any) -> None:
    from spark_streams.server.amqp.durable_termini import Termini

    node = filled(nodes(users=USERS))
    attached(node, "alice").detach()
    key = '["alice", "reader", "mine"]'
    kept = json.loads(node.log.state.get("amqp-termini", key))
    node.log.state.put("amqp-termini", key, json.dumps({**kept, "expires_ms": 1}).encode())
    node.server.call(lambda: Termini(node.log, node.server.server.door("amqp").node.loop, most=9))
    assert attached(node, "alice").bodies()[0] == b"0"


# --- how many names a user may have


def test_a_user_has_so_many_durable_links_and_takes_no_room_from_others(nodes: Any) -> None:
    node = filled(nodes(users=USERS, permissions=PERMISSIONS, max_durable_links=2))
    for name in ("one", "two"):
        attached(node, "mallory", "lobby", name=name).detach()
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            attached(node, "mallory", "lobby", name="three")
        condition, said = refused.value.args
        assert condition == "amqp:resource-limit-exceeded"
        assert "user 'mallory' has 2 durable links, and max_durable_links is 2" in str(said)
    assert attached(node, "mallory", "lobby", name="three", durability=Terminus.NONDURABLE).take(1), "it is not kept"
    assert attached(node, "alice", name="three").take(1), "another user"
    again = attached(node, "mallory", "lobby", name="two")
    again.close()
    assert attached(node, "mallory", "lobby", name="three").take(1)


def test_links_that_wait_for_a_partition_are_counted_when_they_are_served(nodes: Any) -> None:
    from proton import symbol

    node = nodes(max_durable_links=1, unassigned="wait", unassigned_wait_ms=600_000)
    node.log.create_stream("orders")
    group = {symbol("event-streams-consumer-group"): "g"}
    owner = node.peer().receiver("orders", properties=group)
    waiting = []
    for name in ("one", "two"):
        waiting.append(node.peer().attach_receiver("orders", properties=group, **{**DURABLE, "name": name}))
        waiting[-1].peer.pause(0.1)
    owner.close()
    waiting[0].answered()
    waiting[0].detach()
    with pytest.raises(Refused) as refused:
        waiting[1].answered()
    assert refused.value.args[0] == "amqp:resource-limit-exceeded"
    node.peer().receiver("orders", properties=group).check()


def test_durable_links_are_counted_over_restarts_and_those_that_are_gone_are_not(nodes: Any) -> None:
    from spark_streams.server.amqp.durable_termini import Termini
    from spark_streams.server.amqp.error_conditions import LinkRefused

    node = filled(nodes(users=USERS))
    attached(node, "alice").detach()
    attached(node, "alice", "lobby", name="other").detach()
    attached(node, "bob").detach()
    loop = node.server.server.door("amqp").node.loop
    key = Termini.key("alice", "reader", "third")
    again = node.server.call(lambda: Termini(node.log, loop, most=2))
    with pytest.raises(LinkRefused):
        again.check_room(key)
    again.check_room(Termini.key("alice", "reader", "mine"))
    again.check_room(Termini.key("bob", "reader", "third"))
    node.server.call(lambda: node.log.delete_stream("lobby"))
    again.check_room(key)


def test_a_user_has_so_many_consumer_groups(nodes: Any) -> None:
    node = filled(nodes(users=USERS, permissions=PERMISSIONS, max_groups=2))

    def member(user: str, name: str, stream: str = "lobby", **more: Any) -> Any:
        return peer_of(node, user).receiver(stream, properties={GROUP: name, **more})

    with_epoch, without = member("mallory", "one", **{EPOCH: ulong(3)}), member("mallory", "two")
    with pytest.raises(Refused) as refused:
        member("mallory", "three")
    condition, said = refused.value.args
    assert condition == "amqp:resource-limit-exceeded"
    assert "user 'mallory' has 2 consumer groups, and max_groups is 2" in str(said)
    assert member("alice", "three")
    with_epoch.close()
    with pytest.raises(Refused):
        member("mallory", "three")
    without.close()
    assert member("mallory", "three"), "one without an epoch goes with its last member"
    with pytest.raises(Refused):
        member("mallory", "two")
    assert member("mallory", "one").properties[EPOCH] == 3


def test_groups_are_counted_over_restarts_and_those_of_streams_that_are_gone_are_not(nodes: Any) -> None:
    from spark_streams.server.amqp.error_conditions import LinkRefused

    log = nodes().log
    first, second = (log.create_stream(name).incarnation for name in ("orders", "lobby"))
    for name in "ab":
        for partition in "01":
            Groups(log, reset_epoch=False, most=9).claim(Group(first, name, "ann"), partition, 5)
    Groups(log, reset_epoch=False, most=9).claim(Group(first, "listed"), "0", 5)
    groups = Groups(log, reset_epoch=False, most=2)
    with pytest.raises(LinkRefused):
        groups.claim(Group(second, "c", "ann"), "0", None)
    assert groups.claim(Group(first, "a", "ann"), "0", None).epoch == 5
    assert groups.claim(Group(second, "c", "bob"), "0", None) and groups.claim(Group(second, "c"), "0", None)
    log.delete_stream("orders")
    assert groups.claim(Group(second, "c", "ann"), "0", None)
    Groups(log, reset_epoch=False, most=2)
    assert log.state.items("amqp-epochs") == []
