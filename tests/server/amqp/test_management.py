"""Requests to ``$management`` of the AMQP door, by proton: streams are created, described and deleted."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from proton import Message

from spark_streams.errors import RemoteProtocolError
from spark_streams.server import Permissions
from spark_streams.server.amqp.requests import read_request
from tests.server.amqp.raw_peer import Peer, Refused

STREAM = "spark-streams:stream"


class Asker:
    """Sends requests on one link, and takes the replies on another."""

    def __init__(self, peer: Peer, reply_to: str = "me") -> None:
        self.sender, self.receiver = peer.sender("$management"), peer.receiver("$management")
        self.receiver.link.flow(1_000)
        self.reply_to = reply_to

    def send(self, number: int, operation: str, name: str, body: Any = None, kind: str = STREAM) -> None:
        properties = {"operation": operation, "type": kind, "name": name}
        message = Message(id=number, body=body, properties=properties, reply_to=self.reply_to)
        self.sender.send(message)

    def ask(self, *request: Any, **more: Any) -> tuple[int, str]:
        """Send a request; return the status of the reply, and its words."""
        status, words, _ = self.answer(*request, **more)
        return status, words

    def answer(self, *request: Any, **more: Any) -> tuple[int, str, Any]:
        """Send a request; return the status of the reply, its words and its body."""
        self.send(7, *request, **more)
        (event,) = self.receiver.take(1, credit=False)
        assert event.message.correlation_id == 7
        said = event.message.properties
        return int(said["status-code"]), said["status-description"], event.message.body


def test_a_stream_comes_and_goes(node: Any) -> None:
    asker = Asker(node.peer())
    assert asker.ask(
        "CREATE", "orders", {"partitions": "3", "retention_max_bytes": "7", "timestamp_type": "create"}
    ) == (
        201,
        "it was created",
    )
    stream = node.log.stream("orders")
    assert (list(stream.partitions), stream.config.retention_max_bytes) == (["0", "1", "2"], 7)
    assert stream.config.timestamp_type == "create"
    assert asker.ask("CREATE", "orders", {"partitions": "3"}) == (200, "it was there")
    assert asker.ask("CREATE", "orders") == (200, "it was there"), "what is not said is not compared"
    status, words = asker.ask("CREATE", "orders", {"partitions": "2"})
    assert status == 409 and words == "stream 'orders' is there already with 3 partitions, not 2"
    assert asker.ask("CREATE", "orders-1")[0] == 409, "the name is a partition's"
    assert asker.ask("DELETE", "orders") == (204, "it was deleted")
    assert node.log.find("orders") is None
    assert asker.ask("DELETE", "orders") == (404, "there is no stream 'orders' here")
    assert asker.ask("CREATE", "plain")[0] == 201
    assert list(node.log.stream("plain").partitions) == ["0"]


def test_a_stream_is_described_in_the_shape_of_rabbitmqs_queues(node: Any) -> None:
    asker = Asker(node.peer())
    assert asker.ask("CREATE", "orders", {"partitions": "3", "retention_max_age_ms": "60000"})[0] == 201
    status, _, body = asker.answer("READ", "orders")
    assert status == 200
    arguments = dataclasses.asdict(node.log.stream("orders").config)
    assert arguments["retention_max_age_ms"] == 60_000
    assert body == {"name": "orders", "type": "stream", "partitions": 3, "arguments": arguments}
    assert asker.answer("READ", "order") == (404, "there is no stream 'order' here", None)


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (("CREATE", "x", {"partitions": "none"}), 400, "partitions is 'none', expected 1 to 4096"),
        (("CREATE", "x", {"partitions": "0"}), 400, "partitions is '0', expected 1 to 4096"),
        (("CREATE", "x", {"partitions": 4_097}), 400, "partitions is '4097', expected 1 to 4096"),
        (
            ("CREATE", "x", {"retention": "7"}),
            400,
            "there is no setting 'retention': expected some of partitions, index",
        ),
        (("CREATE", "x", {"timestamp_type": "never"}), 400, "timestamp_type"),
        (("CREATE", "x", {"retention_max_bytes": "many"}), 400, "retention_max_bytes is 'many', expected a number"),
        (("CREATE", ""), 400, ""),
        (("UPDATE", "x"), 501, "expected CREATE, DELETE or READ of spark-streams:stream"),
    ],
)
def test_a_request_that_is_wrong_changes_nothing(node: Any, request_: tuple[Any, ...], status: int, words: str) -> None:
    asker = Asker(node.peer())
    found = asker.ask(*request_)
    assert found[0] == status and words in found[1]
    assert asker.ask("CREATE", "x", kind="com.microsoft:eventhub")[0] == 501
    assert list(node.log.streams()) == []


def test_a_user_needs_the_permission_to_configure(nodes: Any) -> None:
    users = {"admin": "a", "reader": "r"}
    node = nodes(users=users, permissions={"reader": Permissions(configure="mine.*")})
    node.create("orders")
    reader = Asker(node.peer(username="reader", password="r"))
    for name in ("orders", "/orders", "%6frders", "other"):
        for operation in ("CREATE", "DELETE"):
            assert reader.ask(operation, name) == (403, f"user 'reader' may not configure stream '{name}'")
    assert reader.ask("READ", "orders")[0] == 200, "to describe a stream is to read"
    assert reader.ask("CREATE", "mine-1")[0] == 201
    assert Asker(node.peer(username="admin", password="a")).ask("DELETE", "orders")[0] == 204


def test_a_user_who_may_not_read_is_not_told_whether_a_stream_is_there(nodes: Any) -> None:
    node = nodes(users={"writer": "w"}, permissions={"writer": Permissions(read="mine.*")})
    node.create("orders")
    writer = Asker(node.peer(username="writer", password="w"))
    for name in ("orders", "/orders", "%6frders", "other"):
        assert writer.answer("READ", name) == (403, f"user 'writer' may not read stream '{name}'", None)
    assert writer.ask("READ", "mine")[0] == 404


def test_replies_come_when_the_change_is_made_and_the_door_serves_others_meanwhile(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("orders")
    begun, go_on = threading.Event(), threading.Event()
    create = node.log.create_stream

    def slowly(name: str, *more: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(120)
        if name == "broken":
            raise OSError(28, "No space left on device")
        if name == "unexpected":
            raise RuntimeError("a fault of ours")
        return create(name, *more, **named)

    monkeypatch.setattr(node.log, "create_stream", slowly)
    asker = Asker(node.peer())
    for number, name in enumerate(("first", "broken", "second", "unexpected")):
        asker.send(number, "CREATE", name)
    assert begun.wait(120)
    node.peer().sender("orders").send(b"x")
    assert asker.receiver.arrived() == []
    go_on.set()
    replies = asker.receiver.take(4, credit=False)
    found = {event.message.correlation_id: int(event.message.properties["status-code"]) for event in replies}
    assert found == {0: 201, 1: 500, 2: 201, 3: 500}


def test_a_peer_may_leave_before_the_reply(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    create = node.log.create_stream

    def slowly(*more: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(120)
        return create(*more, **named)

    monkeypatch.setattr(node.log, "create_stream", slowly)
    peer = node.peer()
    Asker(peer).send(1, "CREATE", "orders")
    assert begun.wait(120)
    peer.drop()
    go_on.set()
    assert Asker(node.peer()).ask("CREATE", "orders") == (200, "it was there")


def test_what_is_no_request_is_rejected_and_the_link_stays(node: Any) -> None:
    asker = Asker(node.peer())
    with pytest.raises(Refused) as refused:
        asker.sender.send(bytearray(b"\x00\x53"))
    assert refused.value.args[0] == "amqp:decode-error"
    assert asker.ask("CREATE", "orders")[0] == 201


def test_a_message_id_that_no_reply_can_have_is_refused() -> None:
    """Symbols are read as UTF-8, and written as ASCII."""
    with pytest.raises(RemoteProtocolError, match="a message-id that is a symbol beyond ASCII"):
        read_request(b"\x00\x53\x73\xc0\x05\x01\xa3\x02\xc3\xa9")
    assert read_request(b"\x00\x53\x73\xc0\x04\x01\xa3\x01e").message_id == "e"
