"""Requests and replies about streams, read and written by proton."""

from __future__ import annotations

from proton import Message

from spark_streams.wire.amqp.management import PAIR, decode_reply, encode_http_get, encode_request


def test_a_request_to_rabbitmq_as_proton_reads_it() -> None:
    read = Message()
    read.decode(encode_http_get("7", PAIR, "/queues/a%2Fb"))
    assert (read.id, read.address, read.subject, read.reply_to) == ("7", "/queues/a%2Fb", "GET", "$me")
    assert (read.body, read.properties) == (None, None)


def test_a_request_to_our_log_as_proton_reads_it() -> None:
    read = Message()
    read.decode(encode_request("7", "me", {"operation": "READ"}, {"partitions": "2"}))
    assert (read.id, read.reply_to, read.properties, read.body) == (
        "7",
        "me",
        {"operation": "READ"},
        {"partitions": "2"},
    )


def test_a_reply_of_rabbitmq_as_proton_writes_it() -> None:
    arguments = {"x-queue-type": "stream", "x-max-age": "60s"}
    reply = Message(correlation_id="7", subject="200", properties={"http:response": "1.1"})
    reply.body = {"name": "orders", "type": "stream", "arguments": arguments}
    read = decode_reply(reply.encode())
    assert (read.request, read.subject, read.said) == ("7", "200", {"http:response": "1.1"})
    assert read.body["arguments"] == arguments
    assert decode_reply(Message(correlation_id="8").encode()).subject == ""
