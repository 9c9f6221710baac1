"""ES-400 … ES-407: the information source ``<log>/$info``, at the node."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Link, symbol

from tests.server.amqp.raw_peer import EARLIEST, PARTITION, Refused, annotations_filter, sections

OFFSETS = ("earliest-offset", "latest-offset")


def test_es_400_each_log_has_an_information_source(node: Any) -> None:
    node.create("orders")
    node.create("a/b c", 2)
    peer = node.peer()
    for stream, partitions in (("orders", 1), ("a/b c", 2)):
        receiver = peer.receiver(f"{stream}/$info")
        assert receiver.link.remote_source.address == f"{stream}/$info"
        assert len(receiver.take(1)[0].body["partitions"]) == partitions


def test_es_400_there_is_none_for_a_log_that_is_not_there_and_none_to_send_to(node: Any) -> None:
    node.create()
    peer = node.peer()
    for link in (peer.attach_receiver("nowhere/$info"), peer.attach_receiver("$info"), peer.attach_receiver("/$info")):
        assert link.wait_closed() == "amqp:not-found"
    with pytest.raises(Refused) as refused:
        peer.sender("orders/$info")
    assert refused.value.condition in ("amqp:not-allowed", "amqp:not-found", "amqp:not-implemented")


def test_es_401_one_message_for_each_credit(node: Any) -> None:
    node.create()
    receiver = node.peer().receiver("orders/$info")
    receiver.peer.pause(0.05)
    assert receiver.arrived() == []  # none without credit
    for _ in range(3):
        assert len(receiver.take(1)) == 1
        receiver.peer.pause(0.03)
        assert receiver.arrived() == []


def test_es_401_each_message_tells_how_things_are_now(node: Any) -> None:
    node.create()
    receiver = node.peer().receiver("orders/$info")
    assert receiver.take(1)[0].body["partitions"][0]["latest-offset"] is None
    node.send("orders", b"x")
    offset = node.receive("orders")[0].offset
    assert receiver.take(1)[0].body["partitions"][0]["latest-offset"] == offset


def test_es_402_more_credit_gives_more_messages(node: Any) -> None:
    node.create()
    receiver = node.peer().receiver("orders/$info")
    bodies = [e.body for e in receiver.take(3, timeout_s=120)]
    assert len(bodies) == 3 and bodies[0] == bodies[1] == bodies[2]


@pytest.mark.parametrize("address", ["orders/$info", "$streams"])
@pytest.mark.parametrize("presettled", [True, False])
def test_messages_are_settled_as_the_receiver_asks(node: Any, address: str, presettled: bool) -> None:
    node.create()
    receiver = node.peer().receiver(address, presettled=presettled)
    assert receiver.link.remote_snd_settle_mode == (Link.SND_SETTLED if presettled else Link.SND_UNSETTLED)
    for settle in (False, True):
        (event,) = receiver.take(1, settle=settle, timeout_s=120)
        assert event.delivery.settled == presettled


def test_a_receiver_that_settles_nothing_is_sent_no_more_than_a_few(nodes: Any) -> None:
    node = nodes(max_unsettled=3, info_interval_ms=1)
    node.create()
    receiver = node.peer().receiver("orders/$info")
    first, *others = receiver.take(3, settle=False, timeout_s=120)
    receiver.link.flow(5)
    receiver.peer.pause(0.2)
    assert receiver.arrived() == []
    first.delivery.update(Delivery.RELEASED)  # not sent again: the next one tells how things are then
    assert len(receiver.take(1, credit=False, settle=False, timeout_s=120)) == 1
    for each in others:
        each.delivery.settle()
    assert len(receiver.take(2, credit=False, settle=False, timeout_s=120)) == 2


def test_es_403_the_body_is_an_amqp_value_with_a_map(node: Any) -> None:
    node.create(partitions=2)
    encoded = node.receive("orders/$info", 1, filter=None)[0].encoded
    bodies = [value for code, value in sections(encoded) if code in (0x75, 0x76, 0x77)]
    assert [code for code, _ in sections(encoded) if code in (0x75, 0x76, 0x77)] == [0x77]
    assert isinstance(bodies[0], dict)
    assert [str(k) for k in bodies[0]].count("partitions") == 1
    assert all(str(k) == "partitions" or str(k).startswith("x-opt-") for k in bodies[0])


@pytest.mark.parametrize("partitions", [1, 2, 12])
def test_es_404_there_is_one_entry_for_each_partition(node: Any, partitions: int) -> None:
    node.create(partitions=partitions)
    entries = node.info("orders")["partitions"]
    assert isinstance(entries, list)
    assert [e["partition"] for e in entries] == [str(n) for n in range(partitions)]


def test_es_404_partitions_that_come_later_are_listed(node: Any) -> None:
    node.create(partitions=1)
    node.server.call(lambda: node.log.add_partitions("orders", 2))
    assert [e["partition"] for e in node.info("orders")["partitions"]] == ["0", "1", "2"]


def test_es_405_each_entry_has_its_reserved_keys(node: Any) -> None:
    node.create(partitions=2)
    for entry in node.info("orders")["partitions"]:
        assert type(entry["partition"]) is symbol
        assert [entry[key] for key in OFFSETS] == [None, None]
    node.send("orders", b"a", b"b", b"c", target="1")
    offsets = [e.offset for e in node.receive("orders")]
    empty, full = node.info("orders")["partitions"]
    assert [empty[key] for key in OFFSETS] == [None, None]
    assert [full[key] for key in OFFSETS] == [offsets[0], offsets[2]]
    assert all(type(full[key]) is symbol for key in OFFSETS)


def test_es_405_offsets_of_the_source_are_those_of_deliveries(node: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    latest = node.info("orders")["partitions"][0]["latest-offset"]
    receiver = node.peer().receiver("orders", filter=annotations_filter(offset=latest))
    node.send("orders", b"c")
    assert receiver.bodies(receiver.take(1)) == [b"c"]


def test_es_407_a_log_without_partitions_needs_no_word_about_them(node: Any) -> None:
    node.create("plain", 1)
    peer = node.peer(desired=())
    peer.sender("plain").send(b"x")
    assert peer.receiver("plain", filter=EARLIEST).bodies() == [b"x"]


def positions(**after: str) -> dict[Any, Any]:
    return {symbol("x-opt-positions"): {symbol(p[1:]): symbol(o) for p, o in after.items()}}


def test_our_extensions_tell_incarnation_truncation_and_what_remains(node: Any) -> None:
    node.create(partitions=2)
    node.send("orders", b"a", b"b", b"c", target="0")
    offsets = [e.offset for e in node.receive("orders")]
    told = node.info("orders", properties=positions(p0=offsets[0], p1="@earliest"))
    assert [e["x-opt-remaining"] for e in told["partitions"]] == [2, 0]
    told = node.info("orders", properties=positions(p0="@earliest"))
    assert told["partitions"][0]["x-opt-remaining"] == 3 and "x-opt-remaining" not in told["partitions"][1]
    plain = node.info("orders")
    assert all("x-opt-remaining" not in e for e in plain["partitions"])
    assert [e["x-opt-truncated-offset"] for e in plain["partitions"]] == [None, None]
    before = plain["x-opt-incarnation"]
    node.server.call(lambda: node.log.delete_stream("orders"))
    node.create(partitions=2)
    assert node.info("orders")["x-opt-incarnation"] != before


def test_our_extension_leaves_out_partitions_that_the_attach_does_not_name(node: Any) -> None:
    node.create(partitions=3)
    node.send("orders", b"a", b"b", target="1")
    only = {symbol("x-opt-named-only"): True}

    def told(properties: dict[Any, Any]) -> list[str]:
        return [e["partition"] for e in node.info("orders", properties=properties)["partitions"]]

    (entry,) = node.info("orders", properties=positions(p1="@earliest") | only)["partitions"]
    assert (entry["partition"], entry["x-opt-remaining"]) == ("1", 2)
    assert told(positions(p2="@earliest", p0="@earliest", p9="@earliest") | only) == ["2", "0"]
    assert told({symbol("x-opt-witnesses"): {symbol("1"): symbol(f"{0:020d}")}} | only) == ["1"]
    assert told(only) == []
    for other in (False, "true", 1, None):
        assert told({symbol("x-opt-named-only"): other}) == ["0", "1", "2"]


def test_our_extension_tells_the_newest_event_that_retention_removed(node: Any) -> None:
    node.create(segment_max_bytes=2_000, retention_max_bytes=3_000)
    for n in range(40):
        node.send("orders", b"%03d" % n + b"x" * 300)
    node.server.call(node.log.enforce_retention)
    entry = node.info("orders")["partitions"][0]
    events = node.receive("orders")
    assert 0 < len(events) < 40
    assert entry["earliest-offset"] == events[0].offset
    first = int(events[0].body[:3])
    assert entry["x-opt-truncated-offset"] == f"{first - 1:020d}"
    assert PARTITION not in node.peer().receiver("orders/$info").properties
