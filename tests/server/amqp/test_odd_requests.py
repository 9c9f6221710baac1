"""Requests that are legal AMQP and unusual, or wrong in a way that must cost no more than the link."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proton
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proton import Delivery, Described, Link, Message, Terminus, symbol, ulong

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, ServerThread
from tests.examples import examples
from tests.server.amqp.raw_peer import (
    DA_CODE,
    EARLIEST,
    EPOCH,
    GROUP,
    GROUP_KEY,
    OFFSET,
    PARTITION,
    SQL_CODE,
    TARGET_PARTITION,
    TIMESTAMP,
    Ended,
    Peer,
    Refused,
)


def settled(sender: Any, message: Any, **sections: Any) -> Any:
    """Send and return the outcome, whatever it is."""
    delivery = sender.put(message, **sections)
    sender.peer.pump(lambda: delivery.settled or sender.closed)
    sender.check()
    return delivery.remote_state


def test_a_deleted_log_ends_its_links(node: Any) -> None:
    node.create()
    peer = node.peer()
    receiver, sender = peer.receiver("orders"), peer.sender("orders")
    node.server.call(lambda: node.log.delete_stream("orders"))
    assert receiver.wait_closed() in ("amqp:resource-deleted", "amqp:not-found")
    with pytest.raises(Refused) as refused:
        sender.send(b"x")
    assert refused.value.condition in ("amqp:resource-deleted", "amqp:not-found")
    node.create()
    assert peer.receiver("orders", filter=EARLIEST).drain() == []


def test_a_server_that_stops_says_so(nodes: Any, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "stopping") as log:
        log.create_stream("orders", 1)
        server = ServerThread(log, AmqpConfig(port=0))
        server.start()
        peer = Peer(server.urls["amqp"])
        peer.receiver("orders")
        server.stop()
        with pytest.raises(Ended) as ended:
            peer.pause(2)
        peer.close()
    assert ended.value.condition == "amqp:connection:forced"


def test_a_receiver_that_settles_second_is_settled_by_the_node(node: Any) -> None:
    node.create()
    node.send("orders", b"a", b"b")
    peer = node.peer()
    link = peer.session.receiver("second")
    link.source.address = "orders"
    link.source.filter.put_dict({symbol("start"): EARLIEST})
    link.rcv_settle_mode = Link.RCV_SECOND
    link.open()
    link.flow(2)
    peer.pump(lambda: link.current and link.current.readable and not link.current.partial)
    delivery = link.current
    link.recv(delivery.pending)
    delivery.update(Delivery.ACCEPTED)
    peer.pump(lambda: delivery.settled)
    assert delivery.settled


@pytest.mark.parametrize("kind", ["coordinator", "dynamic", "no address"])
def test_termini_that_the_node_does_not_have_are_refused(node: Any, kind: str) -> None:
    node.create()
    peer = node.peer()
    link = peer.session.sender("odd") if kind != "dynamic" else peer.session.receiver("odd")
    if kind == "coordinator":
        link.target.type = Terminus.COORDINATOR
    elif kind == "dynamic":
        link.source.dynamic = True
    link.open()
    peer.pump(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)
    assert link.remote_condition.name in (
        "amqp:not-implemented",
        "amqp:not-found",
        "amqp:not-allowed",
        "amqp:invalid-field",
    )
    assert peer.receiver("orders").properties is not None


@pytest.mark.parametrize("name", ["ein Strom", "zürich/日本", "a", "x" * 200])
def test_names_of_logs_are_any_text(node: Any, name: str) -> None:
    try:
        node.create(name)
    except ValueError:
        with pytest.raises(Refused):
            node.receive(name)  # not a name for a log: then it is not found either
        return
    node.send(name, b"x")
    assert [e.body for e in node.receive(name)] == [b"x"]
    assert len(node.info(name)["partitions"]) == 1


@pytest.mark.parametrize("epoch", [ulong(2**63), ulong(2**64 - 1), 2**63 - 1])
def test_epochs_at_the_edge_of_long(node: Any, epoch: Any) -> None:
    """The counter is told as a long (A-2); what does not fit is refused, not wrapped."""
    node.create()
    peer = node.peer()
    receiver = peer.attach_receiver("orders", properties={GROUP: "g", PARTITION: symbol("0"), EPOCH: epoch})
    if epoch < 2**63:
        receiver.answered()
        assert receiver.properties[EPOCH] == epoch
    else:
        assert receiver.wait_closed() == "amqp:invalid-field"
    peer.sender("orders").send(b"the connection lives on")


@pytest.mark.parametrize("depth", [1, 100, 3_000])
def test_a_filter_nested_without_end_costs_at_most_the_link(node: Any, depth: int) -> None:
    node.create()
    peer = node.peer()
    link = peer.session.receiver("nested")
    link.source.address = "orders"
    filters = link.source.filter
    filters.put_map()
    filters.enter()
    filters.put_symbol(symbol("deep"))
    for _ in range(depth):
        filters.put_list()
        filters.enter()
    link.open()
    answered = proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED
    peer.pump(lambda: link.state & answered)
    peer.sender("orders").send(b"the connection lives on")
    assert len(node.receive("orders")) == 1


ODD = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**64 - 1).map(ulong),
        st.integers(0, 255).map(proton.ubyte),
        st.floats(allow_nan=False),
        st.text(max_size=8),
        st.text(alphabet=string.printable, max_size=8).map(symbol),
        st.sampled_from(["0", "1", "@earliest", "TRUE", "d.event-streams-offset > 'x'"]),
        st.sampled_from(["0", "1", "2", "@earliest", "@latest", ""]).map(symbol),
        st.binary(max_size=8),
        st.integers(-(2**63), 2**63 - 1).map(proton.timestamp),
        st.uuids(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=5), st.sampled_from([OFFSET, TIMESTAMP, symbol("x")])), inner, max_size=3
        ),
        st.builds(Described, st.sampled_from([DA_CODE, SQL_CODE, ulong(7), symbol("x:y")]), inner),
    ),
    max_leaves=5,
)
PROPERTIES = st.dictionaries(
    st.sampled_from([PARTITION, GROUP, EPOCH, symbol("x-opt-positions"), symbol("com.example:other")]), ODD, max_size=4
)
FILTERS = st.dictionaries(st.sampled_from([symbol("a"), symbol("b")]), ODD, max_size=2)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ReferenceLog(tmp_path_factory.mktemp("odd")) as log, ServerThread(log, AmqpConfig(port=0)) as server:
        log.create_stream("orders", 2)
        yield server


QUICK = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(st.sampled_from(["orders", "orders/$info"]), PROPERTIES, FILTERS, st.booleans())
def test_whatever_an_attach_asks_for_costs_at_most_the_link(
    served: ServerThread, address: str, properties: Any, filters: Any, sends: bool
) -> None:
    peer = Peer(served.urls["amqp"])
    try:
        link = (
            peer.attach_sender(address, properties=properties)
            if sends
            else peer.attach_receiver(address, properties=properties, filter=filters, credit=1)
        )
        try:
            link.answered()
        except Refused as refused:
            assert refused.condition != "amqp:internal-error"
        peer.sender("orders", properties={PARTITION: symbol("0")}).send(b"the connection lives on")
    finally:
        peer.close()


@QUICK
@given(
    st.dictionaries(st.sampled_from([TARGET_PARTITION, symbol("x-opt-a"), OFFSET]), ODD, max_size=3),
    st.dictionaries(st.sampled_from([GROUP_KEY, symbol("x-opt-b")]), ODD, max_size=2),
    ODD,
)
def test_whatever_an_event_holds_is_stored_as_it_is_or_rejected(
    served: ServerThread, instructions: Any, annotations: Any, body: Any
) -> None:
    peer = Peer(served.urls["amqp"])
    try:
        receiver = peer.receiver("orders")
        sender = peer.sender("orders")
        message = Message(body=body, subject="odd", instructions=instructions or None, annotations=annotations or None)
        encoded = bytes(message.encode())
        outcome = settled(sender, bytearray(encoded))
        assert outcome in (Delivery.ACCEPTED, Delivery.REJECTED)
        if outcome == Delivery.ACCEPTED:
            got = receiver.take(1)[0].encoded
            bare = encoded[encoded.index(b"\x00\x53\x73") :]
            assert got.endswith(bare)
    finally:
        peer.close()
