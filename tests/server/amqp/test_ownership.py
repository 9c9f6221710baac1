"""Durable links and consumer groups are their user's: another one who knows their names takes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proton import Terminus, symbol, ulong

from spark_streams.server import Permissions
from spark_streams.server.groups import Group, Groups
from tests.server.amqp.raw_peer import EARLIEST, EPOCH, GROUP, PARTITION, Refused, sql_filter

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


def kept_before(node: Any, stream: str, position: int, **more: Any) -> bytes:
    """What an earlier release kept of a link that had come so far: of nobody in particular."""
    record = {
        "version": 1,
        "incarnation": node.log.stream(stream).incarnation,
        "filter": fingerprint(node),
        "partition": None,
        "positions": {"0": [position, 0]},
        "pending": {"0": [[1, 1]]},
        **more,
    }
    content = json.dumps(record).encode()
    node.log.state.put("amqp-termini", '["reader", "mine"]', content)
    return content


def fingerprint(node: Any) -> Any:
    """What stands for the filters of ``attached``, which is no matter of this test."""
    receiver = peer_of(node, "bob", container="any").receiver("orders", filter=EARLIEST, **DURABLE)
    receiver.detach()
    (kept,) = (json.loads(value) for key, value in node.log.state.items("amqp-termini") if '"any"' in key)
    return kept["filter"]


def test_what_an_earlier_release_kept_is_where_each_user_begins(nodes: Any) -> None:
    node = filled(nodes(users=USERS, permissions=PERMISSIONS))
    content = kept_before(node, "orders", 5)
    assert len(attached(node, "mallory", "lobby").take(8)) == 8, "another stream's"
    bob = attached(node, "bob")
    assert bob.bodies(bob.take(4)) == [b"1", b"5", b"6", b"7"]
    bob.close()
    assert attached(node, "bob").bodies()[0] == b"0", "he closed it, and does not get it again"
    alice = attached(node, "alice")
    assert alice.bodies(alice.take(2)) == [b"1", b"5"], "nobody took it from her"
    alice.detach()
    assert attached(node, "alice").bodies() == [b"6", b"7"]
    assert attached(node, "bob", filter=sql_filter("d.event-streams-timestamp > 0")).take(1), "nor do others matter"
    assert node.log.state.get("amqp-termini", '["reader", "mine"]') == content


def test_termini_of_streams_that_are_gone_go_at_the_start(nodes: Any) -> None:
    from spark_streams.server.termini import Termini

    node = filled(nodes(users=USERS))
    attached(node, "alice").detach()
    attached(node, "bob", "lobby").detach()
    kept_before(node, "orders", 5)
    node.server.call(lambda: node.log.delete_stream("orders"))
    node.server.call(lambda: Termini(node.log, node.server.server._node.loop).remove_expired())
    assert [key for key, _ in node.log.state.items("amqp-termini")] == ['["bob", "reader", "mine"]']


def test_a_terminus_that_timed_out_does_not_become_what_an_earlier_release_kept(nodes: Any) -> None:
    from spark_streams.server.termini import Termini

    node = filled(nodes(users=USERS))
    kept_before(node, "orders", 5)
    attached(node, "alice").detach()
    key = '["alice", "reader", "mine"]'
    kept = json.loads(node.log.state.get("amqp-termini", key))
    node.log.state.put("amqp-termini", key, json.dumps({**kept, "expires_ms": 1}).encode())
    node.server.call(lambda: Termini(node.log, node.server.server._node.loop).remove_expired())
    assert attached(node, "alice").bodies()[0] == b"0"


def test_epochs_that_an_earlier_release_kept_do_not_fall(nodes: Any) -> None:
    log = nodes().log
    log.state.put("amqp-epochs", "i\ng\n0", b"7")
    for user in ("alice", "bob", None):
        assert Groups(log, reset_epoch=False).claim(Group("i", "g", user), "0", None).epoch == 7
    assert Groups(log, reset_epoch=False).claim(Group("i", "g", "alice"), "0", 9).epoch == 9
    assert Groups(log, reset_epoch=False).claim(Group("i", "g", "bob"), "0", None).epoch == 7
    assert log.state.get("amqp-epochs", "i\ng\n0") == b"7"
